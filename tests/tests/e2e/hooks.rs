//! Functions of ntdll that somebody else has hooked before the recorder comes, as security software
//! does, on `tests/programs/hooked.c` (x64).

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use stk_schema::event::{DropReason, EndReason};
use stk_tests::recorded::Recorded;
use stk_tests::stk;
use stk_tests::wine::{self, Finished, Folder, Inject, Program};

/// The program, compiled once.
fn hooked() -> &'static Path {
    static EXE: OnceLock<PathBuf> = OnceLock::new();
    EXE.get_or_init(|| wine::compiled(env!("CARGO_TARGET_TMPDIR"), "hooked"))
}

/// A recording of a program with hooks, of which one may refuse.
struct Hooked {
    folder: Folder,
    program: Program,
}

impl Hooked {
    /// A program whose hook of `function` refuses all calls.
    fn start(function: &str) -> Hooked {
        Hooked::start_with(function, &[])
    }

    /// `how` the hook of `function` refuses or delays: see hooked.c.
    fn start_with(function: &str, how: &[&str]) -> Hooked {
        let folder = Folder::new(&format!("hooked-{function}"));
        let go = wine::windows_path(&folder.file("go"));
        let arguments = [&[function, &go], how].concat();
        let program = Program::ready(&folder, folder.path(), hooked(), &arguments);
        Hooked { folder, program }
    }

    /// Lets a hook that refuses `later` refuse from now on.
    fn refuse_now(&self) {
        std::fs::write(self.folder.file("go.fault"), "").expect("writable");
    }

    /// Starts to record, and waits until samples are in the file.
    fn start_recording(&self) -> Inject {
        let mut inject = Inject::start(&self.folder, &["--pid", &self.program.pid(), "-o", "hooked.stk"]);
        inject.wait_until_recording();
        let trace = self.folder.file("hooked.stk");
        wine::wait_for("the first samples on disk", || {
            Recorded::try_open(&trace).filter(|recorded| !recorded.samples.is_empty())
        });
        inject
    }

    /// Records for two seconds at most.
    fn record(&self) -> Finished {
        Inject::run(&self.folder, &["--pid", &self.program.pid(), "-o", "hooked.stk", "-d", "2s"])
    }

    fn trace(&self) -> Recorded {
        Recorded::open_sound(&self.folder.file("hooked.stk"))
    }

    /// Lets the program take its hooks away and print how often each was called. It must have gone
    /// on.
    #[track_caller]
    fn calls(&self, function: &str) -> u64 {
        std::fs::write(self.folder.file("go"), "").expect("writable");
        let program = &self.program;
        wine::wait_for("the program to report", || program.output().contains("end\n").then_some(()));
        let said = program.output();
        assert!(said.contains("both continued\n"), "{said}");
        let line = said.lines().find_map(|line| line.strip_prefix(function)?.strip_prefix(' '));
        line.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{function}: {said}"))
    }
}

/// Text of an END that the watchdog wrote.
#[track_caller]
fn watchdogs_reason(recorded: &Recorded) -> String {
    let (reason, _, _, detail) = recorded.end.clone().expect("the trace has its end");
    assert_eq!(reason, EndReason::Watchdog as u64, "{detail}");
    detail
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
    let info = stk::run(hooked.folder.path(), &["info", "hooked.stk"]);
    assert!(info.stdout.contains("thread not identified"), "{}{}", info.stdout, info.stderr);
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

#[test]
fn a_hook_that_refuses_every_resumption_is_a_recording_that_does_not_start() {
    let hooked = Hooked::start("NtResumeThread");
    let finished = hooked.record();
    finished.expect(1).says("could not start its threads").says("denied");
    // Nothing was left behind by which a second try would fail otherwise.
    hooked.record().expect(1).says("could not start its threads").says("denied");
    assert!(hooked.calls("NtResumeThread") > 0);
}

#[test]
fn a_hook_that_refuses_some_resumptions_costs_nothing_as_they_are_tried_again() {
    let hooked = Hooked::start_with("NtResumeThread", &["every", "3"]);
    hooked.record().expect(0);
    let recorded = hooked.trace();
    assert!(!recorded.samples.is_empty());
    assert_eq!(recorded.end_reason(), Some(EndReason::Duration as u64));
    let calls = hooked.calls("NtResumeThread");
    assert!(calls as usize > 2 * recorded.samples.len(), "{calls}, {}", recorded.samples.len());
}

/// The recorder holds a thread that nothing in the process can resume. The guard can: the hook does
/// not see its call.
#[test]
fn a_hook_that_begins_to_refuse_resumptions_ends_the_recording_and_the_guard_resumes_the_thread() {
    let hooked = Hooked::start_with("NtResumeThread", &["later", "c0000022"]);
    let inject = hooked.start_recording();
    hooked.refuse_now();
    let finished = inject.finish();
    finished.expect(1).says("refuses NtResumeThread").says("continues").says("was resumed from outside");
    let recorded = hooked.trace();
    assert!(!recorded.samples.is_empty());
    let detail = watchdogs_reason(&recorded);
    assert!(detail.contains("refuses NtResumeThread"), "{detail}");
    assert!(hooked.calls("NtResumeThread") > 0);
    assert!(hooked.calls("turns") > 0);
}

#[test]
fn a_hook_that_delays_resumptions_over_the_limit_ends_the_recording() {
    let hooked = Hooked::start_with("NtResumeThread", &["delay", "300"]);
    let finished = hooked.record();
    let recorded = hooked.trace();
    finished.expect(1).says("the agent's watchdog ended the recording").says("delays NtResumeThread");
    let detail = watchdogs_reason(&recorded);
    assert!(detail.contains("delays NtResumeThread"), "{detail}");
    assert!(hooked.calls("NtResumeThread") > 0);
}
