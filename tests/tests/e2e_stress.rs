//! A target that is hard to record: many threads load and free DLLs and memory and raise exceptions
//! and faults at the same time.

use stk_tests::recorded::Recorded;
use stk_tests::wine::{self, Folder, Inject, Program};

/// The target checks its own results and that all its threads end. The recording covers its whole
/// life: a minute with `--long`, otherwise 12 seconds.
///
/// On an overloaded machine a thread can stay suspended for more than the 100 ms that the watchdog
/// allows; The watchdog then ends the recording, as it must, and the next one begins.
#[test]
fn a_stressed_target_neither_hangs_nor_goes_wrong_while_recorded() {
    let seconds = if wine::long() { 60 } else { 12 };
    let folder = Folder::new("stress");
    let mut stress = Program::stress(&folder, seconds);
    let mut loads = 0;
    for number in 0.. {
        let trace = format!("{number}.stk");
        let inject = Inject::start(&folder, &["--pid", &stress.pid(), "-o", &trace]);
        let finished = inject.finish();
        if folder.file(&trace).exists() {
            loads += check(&folder, &trace);
        }
        if !stress.is_running() {
            break;
        }
        finished.expect(1).says("watchdog");
    }
    stress.ends_saying("stress ok");
    // The target loads and frees its own DLL all the time. Each load is a new instance.
    assert!(loads > 1, "stress_plugin.dll was seen {loads} times");
}

/// Checks that a trace is sound, whatever ended it, and returns how often the plug-in was loaded.
fn check(folder: &Folder, trace: &str) -> usize {
    let recorded = Recorded::open(&folder.file(trace));
    assert!(recorded.damage.is_empty(), "{trace}: {:?}", recorded.damage);
    assert!(!recorded.samples.is_empty(), "{trace} holds no sample");
    let loads = recorded.modules_named("stress_plugin.dll");
    for pair in loads.windows(2) {
        assert!(pair[0].unload <= pair[1].load, "{trace}: loaded twice at the same time: {pair:?}");
    }
    wine::measured(&format!(
        "stress {trace}: {}, stress_plugin.dll loaded {} times",
        wine::figures(&recorded),
        loads.len()
    ));
    loads.len()
}
