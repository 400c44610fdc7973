//! inject as the guard of its recording: it is killed, a copy remains after --detach, or the
//! recorder dies first.

use std::path::Path;
use stk_schema::control::TEST_FREEZE_WRITER;
use stk_schema::event::EndReason;
use stk_schema::guard::{ASKED, ASKING, RESCUING, RESUMING, STOPPED, UNDO};
use stk_tests::recorded::Recorded;
use stk_tests::wine::{self, Finished, Folder, Inject, Program};

/// How long the process that a dead sampler holds is left without a guard.
#[cfg(not(windows))]
const WITHOUT: std::time::Duration = std::time::Duration::from_secs(8);

/// Waits until the trace has an END and gives its reason.
fn ended(trace: &Path) -> u64 {
    wine::wait_for("the trace to be finished", || Recorded::try_open(trace)?.end).0
}

/// The pid of the copy that `inject --detach` left.
fn copy(detached: &Finished) -> &str {
    let pid =
        detached.expect(0).stderr.split("continues as pid ").nth(1).and_then(|rest| rest.split(' ').next());
    pid.unwrap_or_else(|| panic!("{detached:?}"))
}

/// Runs tests/programs/session.c.
fn session(folder: &Folder, arguments: &[&str]) -> Finished {
    Inject::run_exe(&wine::compiled(env!("CARGO_TARGET_TMPDIR"), "session"), folder, arguments)
}

#[test]
fn a_killed_inject_ends_its_recording_and_the_target_continues() {
    let folder = Folder::new("guard-dies");
    let mut busy = Program::busy(&folder, 8);
    let mut inject = Inject::start(&folder, &["--pid", &busy.pid(), "-o", "orphan.stk"]);
    inject.wait_until_recording();
    // SIGKILL.
    drop(inject);
    let trace = folder.file("orphan.stk");
    assert_eq!(ended(&trace), EndReason::GuardGone as u64);
    let recorded = Recorded::open(&trace);
    assert!(recorded.damage.is_empty(), "{:?}", recorded.damage);
    assert!(busy.is_running());
    // The process can be recorded again.
    Inject::record(&folder, &["--pid", &busy.pid(), "-o", "again.stk", "-d", "300ms"]);
    busy.ends_saying("checksum a9a6d267ba599d58");
}

#[test]
fn detached_inject_returns_at_once_and_its_copy_records_until_it_is_stopped() {
    let folder = Folder::new("detach");
    let busy = Program::busy(&folder, 0);
    let pid = busy.pid();
    let detached = Inject::run(&folder, &["--pid", &pid, "-o", "detached.stk", "--detach"]);
    detached.expect(0).says("recording busy.exe").says("inject continues as pid ");
    // A second recording is refused while the first runs.
    Inject::run(&folder, &["--pid", &pid, "-o", "second.stk", "--detach"])
        .expect(1)
        .says("being recorded already");
    let trace = folder.file("detached.stk");
    wine::wait_for("samples", || Recorded::try_open(&trace).filter(|recorded| !recorded.samples.is_empty()));
    Inject::run(&folder, &["stop", "--pid", &pid]).expect(0);
    assert_eq!(ended(&trace), EndReason::Stopped as u64);

    // The remaining copy is the guard. If it dies, the recording ends.
    let detached = Inject::run(&folder, &["--pid", &pid, "-o", "killed.stk", "--detach"]);
    wine::terminate(copy(&detached), &folder.file("killed.log"));
    assert_eq!(ended(&folder.file("killed.stk")), EndReason::GuardGone as u64);
}

#[test]
fn the_end_of_the_session_ends_a_detached_recording_whole() {
    let folder = Folder::new("logoff");
    let mut busy = Program::busy(&folder, 0);
    let pid = busy.pid();
    let trace = folder.file("logoff.stk");
    let detached = Inject::run(&folder, &["--pid", &pid, "-o", "logoff.stk", "--detach"]);
    let copy = copy(&detached);
    // A user who cancels the shutdown keeps the recording.
    let cancelled = session(&folder, &["cancel", copy]);
    assert_eq!(cancelled.expect(0).stdout.trim(), "answered 1");
    let seen = Recorded::try_open(&trace).map_or(0, |recorded| recorded.samples.len());
    wine::wait_for("further samples", || {
        Recorded::try_open(&trace).filter(|recorded| recorded.samples.len() > seen)
    });
    session(&folder, &["end", copy]).expect(0);
    assert_eq!(ended(&trace), EndReason::Stopped as u64);
    wine::wait_for("the completed trace", || {
        let recorded = Recorded::try_open(&trace)?;
        (recorded.complete && recorded.indexed && recorded.damage.is_empty()).then_some(())
    });
    assert!(busy.is_running());
}

#[test]
fn the_end_of_the_session_leaves_a_trace_of_a_flight() {
    let folder = Folder::new("logoff-flight");
    let busy = Program::busy(&folder, 0);
    let pid = busy.pid();
    let detached = Inject::run(&folder, &["--pid", &pid, "-o", "f.stk", "--flight", "5s", "--detach"]);
    wine::wait_for("samples", || {
        (Inject::status(&folder, &pid)["rotation"]["samples"].as_u64()? > 100).then_some(())
    });
    session(&folder, &["end", copy(&detached)]).expect(0);
    let recorded =
        wine::wait_for("the trace of the last seconds", || Recorded::try_open(&folder.file("f-1.stk")));
    assert!(recorded.complete && !recorded.samples.is_empty(), "{:?}", recorded.damage);
}

#[test]
fn a_detached_copy_that_cannot_leave_its_job_reports_that() {
    let folder = Folder::new("logoff-job");
    let busy = Program::busy(&folder, 0);
    let pid = busy.pid();
    let inject = wine::windows_path(&wine::path("STK_WINDOWS_BIN").join("inject.exe"));
    let line = format!("\"{inject}\" --pid {pid} -o job.stk --detach");
    session(&folder, &["job", &line])
        .expect(0)
        .says("recording busy.exe")
        .says("the job allows no process to leave");
    Inject::run(&folder, &["stop", "--pid", &pid]).expect(0);
    assert_eq!(ended(&folder.file("job.stk")), EndReason::Stopped as u64);
    let outside = Inject::run(&folder, &["--pid", &pid, "-o", "free.stk", "--detach"]);
    assert!(!outside.expect(0).stderr.contains("the job allows"), "{outside:?}");
    Inject::run(&folder, &["stop", "--pid", &pid]).expect(0);
}

#[test]
fn a_detached_recording_ends_with_its_duration_and_with_its_process() {
    let folder = Folder::new("detach-ends");
    let mut busy = Program::busy(&folder, 10);
    let pid = busy.pid();
    Inject::run(&folder, &["--pid", &pid, "-o", "short.stk", "--detach", "-d", "300ms"]).expect(0);
    assert_eq!(ended(&folder.file("short.stk")), EndReason::Duration as u64);
    wine::wait_for("the recorder's threads to leave", || {
        let again = Inject::run(&folder, &["--pid", &pid, "-o", "long.stk", "--detach"]);
        (again.code == Some(0)).then_some(())
    });
    busy.ends_saying("checksum a9a6d267ba599d58");
    assert_eq!(ended(&folder.file("long.stk")), EndReason::ProcessExit as u64);
}

#[test]
fn a_recording_ends_below_its_size_limit_with_a_whole_trace() {
    let folder = Folder::new("max-size");
    // Its stacks are deep and change all the time.
    let exe = wine::path("STK_FETCH_DIR").join("cmake/cmake/data/bin/cmake.exe");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/recurse.cmake");
    let cmake = Program::start(&folder, folder.path(), &exe, &["-P", &wine::windows_path(&script)]);
    wine::wait_for("cmake to work", || cmake.output().contains("ready").then_some(()));
    // Without the modules' tables, samples fill the trace.
    let arguments = ["--name", "cmake.exe", "-o", "small.stk", "--max-size", "4M", "--embed", "none"];
    Inject::run(&folder, &arguments).expect(0).says("the size limit was reached");
    let trace = folder.file("small.stk");
    let bytes = std::fs::metadata(&trace).expect("there").len();
    assert!((1 << 20..=4 << 20).contains(&bytes), "{bytes} bytes");
    let recorded = Recorded::open(&trace);
    assert!(recorded.complete && recorded.indexed && recorded.damage.is_empty(), "{:?}", recorded.damage);
    assert_eq!(recorded.end.map(|end| end.0), Some(EndReason::SizeLimit as u64));
    assert!(!recorded.samples.is_empty());
}

#[test]
fn stalled_recorder_is_reported_with_what_its_threads_do() {
    let folder = Folder::new("stalled");
    let mut busy = Program::busy(&folder, 12);
    let freeze = TEST_FREEZE_WRITER.to_string();
    let arguments = ["--pid", &busy.pid(), "-o", "a.stk", "--test-freeze", &freeze, "--test-stall", "3s"];
    let finished = Inject::run(&folder, &arguments);
    finished.expect(8).says("stalled: its writer stands still").says("a.stk.stall.txt");
    let report = std::fs::read_to_string(folder.file("a.stk.stall.txt")).expect("a report");
    for line in ["  writer ", "  watchdog ", "  sampler ", "  main ", "  guard ", "The last whole block"] {
        assert!(report.contains(line), "{line}:\n{report}");
    }
    let writer = report.lines().find(|line| line.starts_with("  writer ")).expect("a line");
    assert!(writer.contains("works") && writer.contains("stands still for 3 s"), "{writer}");
    assert!(Recorded::open(&folder.file("a.stk")).damage.is_empty());
    busy.ends_saying("checksum a9a6d267ba599d58");
}

/// A debugger stops a process in the same way, as far as others see.
#[cfg(not(windows))]
#[test]
fn stopped_or_idle_process_is_no_stalled_recorder() {
    let folder = Folder::new("stopped");
    let busy = Program::busy(&folder, 0);
    let pid = busy.pid();
    // A pass every 100 s: the sampler is idle, too.
    let arguments = ["--pid", &pid, "-o", "a.stk", "--test-stall", "2s", "-r", "0.01"];
    let mut inject = Inject::start(&folder, &arguments);
    inject.wait_until_recording();
    std::thread::sleep(std::time::Duration::from_secs(6));
    busy.signal("STOP");
    inject.wait_until_a_line_begins("busy.exe (pid ");
    std::thread::sleep(std::time::Duration::from_secs(4));
    assert!(inject.is_running());
    busy.signal("CONT");
    std::thread::sleep(std::time::Duration::from_secs(4));
    Inject::run(&folder, &["stop", "--pid", &pid]).expect(0);
    let finished = inject.finish();
    finished.expect(0).says("stands still (it is suspended");
    assert!(!folder.file("a.stk.stall.txt").exists(), "{}", finished.stderr);
    Recorded::open_sound(&folder.file("a.stk"));
}

#[test]
fn recording_with_a_stalled_sampler_ends_with_its_duration() {
    let folder = Folder::new("overdue");
    let busy = Program::busy(&folder, 0);
    // Frozen before it suspends a thread.
    let freeze = ASKING.to_string();
    let arguments = ["--pid", &busy.pid(), "-o", "a.stk", "-d", "2s", "--test-freeze", &freeze];
    Inject::run(&folder, &arguments).expect(0);
    let recorded = Recorded::open_sound(&folder.file("a.stk"));
    assert_eq!(recorded.end.map(|end| end.0), Some(EndReason::Duration as u64));
}

/// Milliseconds after its threads' end in which the guard has let the process go: about 150 on a
/// quiet machine, 740 in the best of three tries with seven busy programs per processor, once over
/// 1,500 in CI. Without a guard the process waits for ever.
const SOON_MS: u64 = 6_000;

/// A recorded program whose only thread the frozen sampler holds; that thread is about to call
/// ExitProcess when `go` is there.
struct Frozen {
    folder: Folder,
    program: Program,
    inject: Inject,
}

impl Frozen {
    fn in_phase(phase: u8) -> Frozen {
        let folder = Folder::new("frozen");
        let home = wine::path("STK_ENDS_DIR");
        let go = wine::windows_path(&folder.file("go"));
        let program = Program::ready(&folder, &home, &home.join("ends.exe"), &["alone", "0", &go]);
        let (pid, number) = (program.pid(), phase.to_string());
        let arguments = ["--pid", &pid, "-o", "frozen.stk", "--test-freeze", &number];
        let mut inject = Inject::start(&folder, &arguments);
        inject.wait_until_recording();
        Frozen { folder, program, inject }
    }

    /// Has the recorder's threads ended and the process exit.
    fn cull(&self) -> Program {
        let home = wine::path("STK_ENDS_DIR");
        let mut cull = Program::start(&self.folder, &home, &home.join("cull.exe"), &[&self.program.pid()]);
        wine::wait_for("the sampler to hold the thread", || {
            assert!(cull.is_running() || cull.output().contains("held"), "{}", cull.output());
            cull.output().contains("held").then_some(())
        });
        std::fs::write(self.folder.file("go"), "").expect("writable");
        cull
    }

    /// Waits for the end of everything; gives the milliseconds that the process outlived the
    /// recorder's threads.
    fn let_go(mut self, mut cull: Program, phase: u8) -> u64 {
        let status = cull.wait();
        let said = cull.output();
        let line = said.lines().find_map(|line| line.strip_prefix("gone_after "));
        let gone = line.and_then(|line| line.trim().parse().ok());
        assert!(status.success() && gone.is_some(), "phase {phase}: {said}");
        assert_eq!(self.program.wait().code(), Some(4), "phase {phase}");
        self.inject.finish().expect(0).says("the thread was resumed").says("ended with exit code 4");
        gone.unwrap_or(u64::MAX)
    }
}

/// The sampler freezes while it holds the only thread, which is about to call ExitProcess; then it
/// dies together with the watchdog, as the system has it in a process that exits. Nobody but the
/// guard can resume that thread. In RESCUING it is the watchdog that freezes, before its
/// ResumeThread; in UNDO the sampler, which suspends only after that call. WALKING is missing: the
/// sampler owns the loader lock then, which the thread that ends the process must have, so that
/// the system never ends a sampler in that phase.
#[test]
fn a_thread_that_a_dead_sampler_holds_is_resumed_by_the_guard_in_each_phase() {
    // A loaded machine may be late by itself, but hardly each time.
    const TRIES: u32 = 3;
    for phase in [ASKING, ASKED, STOPPED, RESCUING, UNDO, RESUMING] {
        let mut best = u64::MAX;
        for _ in 0..TRIES {
            let frozen = Frozen::in_phase(phase);
            let cull = frozen.cull();
            best = best.min(frozen.let_go(cull, phase));
            if best <= SOON_MS {
                break;
            }
        }
        wine::measured(&format!("held in phase {phase}: gone after {best} ms"));
        assert!(best <= SOON_MS, "phase {phase}: gone after {best} ms at best");
    }
}

/// Shows that it is the guard who lets the process go: while inject is stopped, nobody does.
#[cfg(not(windows))]
#[test]
fn without_its_guard_the_process_hangs_until_the_guard_is_back() {
    let mut frozen = Frozen::in_phase(STOPPED);
    frozen.inject.signal("STOP");
    let cull = frozen.cull();
    std::thread::sleep(WITHOUT);
    assert!(frozen.program.is_running() && !cull.output().contains("gone_after"), "{}", cull.output());
    frozen.inject.signal("CONT");
    let gone = frozen.let_go(cull, STOPPED);
    wine::measured(&format!("without its guard for {WITHOUT:?}: gone after {gone} ms"));
    // The recorder's threads were dead for most of that time.
    assert!(gone > SOON_MS, "gone after {gone} ms");
}
