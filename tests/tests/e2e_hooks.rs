//! Functions of ntdll that somebody else has hooked before the recorder comes, as security software
//! does, on `tests/programs/hooked.c` (x64).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use stk_schema::event::{DropReason, EndReason};
use stk_tests::recorded::Recorded;
use stk_tests::wine::{self, Finished, Folder, Inject, Machine, Program};

/// The program, compiled once.
fn hooked() -> &'static Path {
    static EXE: OnceLock<PathBuf> = OnceLock::new();
    EXE.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/hooked.c");
        let exe =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("hooked-{:?}.exe", Machine::current()));
        let mut compiler = Command::new(wine::c_compiler());
        compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&exe).arg(&source);
        assert!(compiler.status().expect("the machine's C compiler runs").success());
        exe
    })
}

/// A recording of a program with hooks, of which one may refuse.
struct Hooked {
    folder: Folder,
    program: Program,
}

impl Hooked {
    fn start(refused: &str) -> Hooked {
        let folder = Folder::new(&format!("hooked-{refused}"));
        let go = wine::windows_path(&folder.file("go"));
        let program = Program::ready(&folder, folder.path(), hooked(), &[refused, &go]);
        Hooked { folder, program }
    }

    /// Records for two seconds at most.
    fn record(&self) -> Finished {
        Inject::run(&self.folder, &["--pid", &self.program.pid(), "-o", "hooked.stk", "-d", "2s"])
    }

    fn trace(&self) -> Recorded {
        Recorded::open_sound(&self.folder.file("hooked.stk"))
    }

    /// Lets the program take its hooks away and tell how often each was called. It must have gone
    /// on.
    #[track_caller]
    fn calls(&self, function: &str) -> u64 {
        std::fs::write(self.folder.file("go"), "").expect("writable");
        let program = &self.program;
        wine::wait_for("the program to tell", || program.output().contains("end\n").then_some(()));
        let said = program.output();
        assert!(said.contains("both went on\n"), "{said}");
        let line = said.lines().find_map(|line| line.strip_prefix(function)?.strip_prefix(' '));
        line.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{function}: {said}"))
    }
}

fn dropped(recorded: &Recorded, reason: DropReason) -> u64 {
    recorded.dropped.get(&(reason as u64)).copied().unwrap_or(0)
}

#[test]
fn hooks_that_call_on_are_called_and_change_nothing() {
    let hooked = Hooked::start("none");
    hooked.record().expect(0);
    let recorded = hooked.trace();
    assert!(!recorded.samples.is_empty());
    for function in ["NtSuspendThread", "NtGetContextThread", "NtQueryInformationThread", "NtWriteFile"] {
        assert!(hooked.calls(function) > 0, "{function} was not called");
    }
}

#[test]
fn a_hook_that_refuses_suspensions_costs_the_samples_which_are_counted() {
    let hooked = Hooked::start("NtSuspendThread");
    hooked.record().expect(0);
    let recorded = hooked.trace();
    assert!(recorded.samples.is_empty(), "{} samples of threads that never stood", recorded.samples.len());
    assert!(dropped(&recorded, DropReason::NoThread) > 0, "{:?}", recorded.dropped);
    assert!(hooked.calls("NtSuspendThread") > 0);
}

#[test]
fn a_hook_that_refuses_contexts_costs_the_samples_which_are_counted_and_no_thread_stays_suspended() {
    let hooked = Hooked::start("NtGetContextThread");
    hooked.record().expect(0);
    let recorded = hooked.trace();
    assert!(recorded.samples.is_empty(), "{} samples without a context", recorded.samples.len());
    assert!(dropped(&recorded, DropReason::NoContext) > 0, "{:?}", recorded.dropped);
    assert!(hooked.calls("NtGetContextThread") > 0);
}

#[test]
fn a_hook_that_refuses_facts_about_threads_is_not_taken_for_the_process_s_end() {
    let hooked = Hooked::start("NtQueryInformationThread");
    hooked.record().expect(0);
    let recorded = hooked.trace();
    assert!(recorded.samples.is_empty(), "{} samples of threads without facts", recorded.samples.len());
    assert!(dropped(&recorded, DropReason::NoThread) > 0, "{:?}", recorded.dropped);
    assert_eq!(recorded.end_reason(), Some(EndReason::Duration as u64));
    assert!(hooked.calls("NtQueryInformationThread") > 0);
}

#[test]
fn a_hook_that_refuses_writes_is_a_recording_that_does_not_start() {
    let hooked = Hooked::start("NtWriteFile");
    let finished = hooked.record();
    assert_ne!(finished.code, Some(0), "{finished:?}");
    assert!(finished.stderr.contains("access") || finished.stderr.contains("denied"), "{finished:?}");
    assert!(hooked.calls("NtWriteFile") > 0);
}
