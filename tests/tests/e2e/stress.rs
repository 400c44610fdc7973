//! A target that is hard to record: many threads load and free DLLs and memory and raise exceptions
//! and faults at the same time.

use crate::walks::Walks;
use stk_tests::recorded::Recorded;
use stk_tests::wine::{self, Folder, Inject, Program};

/// The target checks its own results and that all its threads end. The recording covers its whole
/// life: a minute with `--long`, otherwise 12 seconds. Its threads hold the loader lock nearly all
/// the time, and loading the agent has to wait for it. If the target ends before or soon after, the
/// test begins again with a target that lives longer.
#[test]
fn a_stressed_target_neither_hangs_nor_goes_wrong_while_recorded() {
    let first = if wine::long() { 60 } else { 12 };
    let lives = [first, 2 * first, 4 * first];
    // The target loads and frees its own DLL all the time. Each load is a new instance.
    let mut begun = lives.into_iter().filter_map(record);
    assert!(begun.any(|loads| loads > 1), "stress_plugin.dll was never seen twice");
}

/// Records a target that lives for `seconds`. Returns how often the plug-in was loaded, or `None`
/// if the target ended before its first sample.
///
/// On an overloaded machine a thread can stay suspended for more than the 100 ms that the watchdog
/// allows. The watchdog then ends the recording, as it must, and the next one begins.
fn record(seconds: u32) -> Option<usize> {
    let folder = Folder::new("stress");
    let mut stress = Program::stress(&folder, seconds);
    let mut loads: Option<usize> = None;
    for number in 0.. {
        let trace = format!("{number}.stk");
        let inject = Inject::start(&folder, &["--pid", &stress.pid(), "-o", &trace]);
        let finished = inject.finish();
        let is_running = stress.is_running();
        if folder.file(&trace).exists() {
            let seen = check(&folder, &trace);
            assert!(seen.is_some() || !is_running, "{trace} holds no sample");
            loads = loads.max(seen.map(|seen| seen + loads.unwrap_or(0)));
        }
        if !is_running {
            break;
        }
        finished.expect(1).says("watchdog");
    }
    stress.ends_saying("stress ok");
    loads
}

/// Checks that a trace is sound, whatever ended it. Returns how often the plug-in was loaded;
/// `None` if the trace holds no sample.
fn check(folder: &Folder, trace: &str) -> Option<usize> {
    let recorded = Recorded::open(&folder.file(trace));
    assert!(recorded.damage.is_empty(), "{trace}: {:?}", recorded.damage);
    let loads = recorded.modules_named("stress_plugin.dll");
    for pair in loads.windows(2) {
        assert!(pair[0].unload <= pair[1].load, "{trace}: loaded twice at the same time: {pair:?}");
    }
    wine::measured(&format!(
        "stress {trace}: {}, stress_plugin.dll loaded {} times",
        wine::figures(&recorded),
        loads.len()
    ));
    (!recorded.samples.is_empty()).then_some(loads.len())
}

/// The walks of `--check-walks` take the loader's and other locks while their owner may be
/// suspended, and read tables of modules that other threads unload. The watchdog and the fault
/// handler keep the target running correctly. The test is not in walks.rs: a machine that cannot
/// run the program alone cannot run it.
#[test]
fn stressed_target_survives_check_walks() {
    let seconds = if wine::long() { 60 } else { 8 };
    let folder = Folder::new("walks-stress");
    let mut stress = Program::stress(&folder, seconds);
    for number in 0.. {
        let trace = format!("{number}.stk");
        let inject = Inject::start(&folder, &["--pid", &stress.pid(), "--check-walks", "-o", &trace]);
        let finished = inject.finish();
        if folder.file(&trace).exists() {
            let recorded = Recorded::open(&folder.file(&trace));
            assert!(recorded.damage.is_empty(), "{trace}: {:?}", recorded.damage);
            let walks = Walks::of(&folder, &trace);
            walks.explained();
            let [all, equal, discarded] = ["walks", "equal", "discarded"].map(|name| walks.number(name));
            wine::measured(&format!(
                "stress with walks {trace}: {}; {all} walks, {equal} equal, {discarded} discarded, the rest explained",
                wine::figures(&recorded)
            ));
        }
        if !stress.is_running() {
            break;
        }
        // This happens on an overloaded machine: see `record`.
        finished.expect(1).says("watchdog");
    }
    stress.ends_saying("stress ok");
}
