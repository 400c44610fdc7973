//! A target that is hard to record: DLLs come and go, memory, exceptions and faults from many threads at once.

use stk_tests::recorded::Recorded;
use stk_tests::wine::{self, Folder, Inject, Program};

/// The target checks its own results, and that all its threads come to an end; the recording spans its whole life. A minute with
/// `--long`, else what fits into a run between two commits.
#[test]
fn a_stressed_target_neither_hangs_nor_goes_wrong_while_recorded() {
    let seconds = if wine::long() { 60 } else { 12 };
    let folder = Folder::new("stress");
    let mut stress = Program::stress(&folder, seconds);
    let mut inject = Inject::start(&folder, &["--pid", &stress.pid(), "-o", "stress.stk"]);
    inject.wait_until_recording();
    let status = stress.wait();
    let output = stress.output();
    assert!(status.success() && output.contains("stress ok"), "{status}\n{output}");
    inject.finish().expect(0);

    let recorded = Recorded::open(&folder.file("stress.stk"));
    assert!(recorded.damage.is_empty(), "{:?}", recorded.damage);
    assert!(!recorded.samples.is_empty());
    // It loads and frees its own DLL all the time: each load is an instance of its own.
    let loads = recorded.modules_named("stress_plugin.dll");
    assert!(loads.len() > 1, "stress_plugin.dll was seen {} times", loads.len());
    for pair in loads.windows(2) {
        assert!(pair[0].unload <= pair[1].load, "loaded twice at the same time: {pair:?}");
    }
}
