//! The target's heaps, which the recorder leaves alone, on `tests/programs/heaps.c` (x64).

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use stk_schema::event::EndReason;
use stk_tests::recorded::Recorded;
use stk_tests::wine::{self, Folder, Inject, Program};

/// The program, compiled once.
fn heaps() -> &'static Path {
    static EXE: OnceLock<PathBuf> = OnceLock::new();
    EXE.get_or_init(|| wine::compiled(env!("CARGO_TARGET_TMPDIR"), "heaps"))
}

/// The program in this way, and a recording of it that has samples on disk.
fn recorded(folder: &Folder, way: &str) -> (Program, Inject) {
    let go = wine::windows_path(&folder.file("go"));
    let program = Program::ready(folder, folder.path(), heaps(), &[way, &go]);
    let mut inject = Inject::start(folder, &["--pid", &program.pid(), "-o", "heaps.stk"]);
    inject.wait_until_recording();
    let trace = folder.file("heaps.stk");
    wine::wait_for("the first samples on disk", || {
        Recorded::try_open(&trace).filter(|recorded| !recorded.samples.is_empty())
    });
    std::fs::write(folder.file("go"), "").expect("writable");
    (program, inject)
}

/// A C runtime, or thread-local storage, in the agent would allocate for each thread.
#[test]
fn a_threads_start_and_end_make_no_heap_call_for_the_recorder() {
    let folder = Folder::new("heaps-count");
    let (program, _inject) = recorded(&folder, "count");
    wine::wait_for("the counts of the program", || program.output().contains("end\n").then_some(()));
    let said = program.output();
    let calls = |when: &str| -> u32 {
        let line = said.lines().find_map(|line| line.strip_prefix(when)?.strip_prefix(' '));
        line.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{when}: {said}"))
    };
    // Wine itself frees and allocates for each thread, so the hooks work.
    assert!(calls("alone") > 0, "{said}");
    assert_eq!(calls("recorded"), calls("alone"), "{said}");
}

#[test]
fn a_lock_of_the_runtimes_heap_left_locked_costs_no_end() {
    let folder = Folder::new("heaps-orphan");
    let (mut program, inject) = recorded(&folder, "orphan");
    let status = program.wait_unless_wine_hangs().expect("it ends");
    assert_eq!(status.code(), Some(6));
    inject.finish();
    let recorded = Recorded::open(&folder.file("heaps.stk"));
    assert!(recorded.complete && recorded.damage.is_empty(), "{:?}", recorded.damage);
    assert_eq!(recorded.end_reason(), Some(EndReason::ProcessExit as u64));
}
