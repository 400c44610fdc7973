//! `inject stop --unload`: the agent leaves the process, or says why it stays. And recordings in a
//! row that leave nothing behind in the process. The target is tests/programs/guest.c, which
//! reports its own handles, threads and memory.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use stk_schema::event::EndReason;
use stk_tests::recorded::Recorded;
use stk_tests::wine::{self, Folder, Inject, Machine, Program};

/// A running guest.exe, and the inject and the agent of its width.
struct Guest {
    folder: Folder,
    program: Program,
    inject: PathBuf,
    commands: PathBuf,
    given: u32,
}

/// What the program reported, by name.
type Report = HashMap<String, u64>;

fn compiler(x86: bool) -> std::ffi::OsString {
    if x86 { "i686-w64-mingw32-gcc".into() } else { wine::c_compiler() }
}

impl Guest {
    fn new(name: &str, mode: &str, x86: bool) -> Guest {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/guest.c");
        let width = if x86 { 32 } else { 64 };
        let exe = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("guest{width}-{:?}.exe", Machine::current()));
        let mut compile = Command::new(compiler(x86));
        compile.args(["-O1", "-Wall", "-Wextra", "-Werror", "-static-libgcc", "-o"]).arg(&exe).arg(&source);
        assert!(compile.status().expect("the C compiler runs").success());
        let (bin, inject, agent) = if x86 {
            ("STK_WINDOWS32_BIN", "inject32.exe", "agent32.dll")
        } else {
            ("STK_WINDOWS_BIN", "inject.exe", "agent.dll")
        };
        let folder = Folder::new(name);
        let commands = folder.file("command");
        let agent = wine::windows_path(&wine::path(bin).join(agent));
        let arguments = [mode, &wine::windows_path(&commands), &agent];
        let program = Program::ready(&folder, folder.path(), &exe, &arguments);
        Guest { folder, program, inject: wine::path(bin).join(inject), commands, given: 0 }
    }

    /// Gives the program a command and returns what it printed.
    #[track_caller]
    fn ask(&mut self, letter: &str) -> String {
        self.given += 1;
        let begins = format!("{} {letter} ", self.given);
        std::fs::write(&self.commands, letter).expect("writable");
        wine::wait_for(&format!("the answer to {letter}"), || {
            assert!(self.program.is_running(), "the program ended:\n{}", self.program.output());
            let output = self.program.output();
            let line = output.lines().find_map(|line| line.strip_prefix(&begins))?;
            line.strip_suffix(" end").map(str::to_owned)
        })
    }

    #[track_caller]
    fn report(&mut self) -> Report {
        let line = self.ask("r");
        let words: Vec<&str> = line.split(' ').collect();
        words.chunks(2).map(|pair| (pair[0].to_owned(), pair[1].parse().expect("a number"))).collect()
    }

    /// Ends the program, which says whether something went wrong in it.
    #[track_caller]
    fn ends_well(mut self) {
        std::fs::write(&self.commands, "q").expect("writable");
        self.program.ends_saying("wrong 0 end");
    }

    fn run(&self, arguments: &[&str]) -> wine::Finished {
        Inject::run_exe(&self.inject, &self.folder, arguments)
    }

    /// Starts a recording and waits until it has samples.
    #[track_caller]
    fn record(&self, trace: &str, more: &[&str]) -> Inject {
        let pid = self.program.pid();
        let line = [&["--pid", &pid, "-o", trace, "--force"], more].concat();
        let mut inject = Inject::start_exe(&self.inject, &self.folder, self.folder.path(), &line);
        inject.wait_until_recording();
        wine::wait_for("samples", || {
            let status = Inject::status_by(&self.inject, &self.folder, &pid);
            status["samples"].as_u64().filter(|&samples| samples > 0)
        });
        inject
    }

    fn unload(&self) -> wine::Finished {
        self.run(&["stop", "--pid", &self.program.pid(), "--unload"])
    }

    /// One recording that ends with the agent gone.
    #[track_caller]
    fn cycle(&mut self, more: &[&str]) -> Report {
        let inject = self.record("cycle.stk", more);
        self.unload().expect(0).says("stopped guest").says("the agent has left guest");
        inject.finish().expect(0).says("stopped from elsewhere");
        if !more.contains(&"--flight") {
            let recorded = Recorded::open_sound(&self.folder.file("cycle.stk"));
            assert_eq!(recorded.end_reason(), Some(EndReason::Stopped as u64));
        }
        let report = self.report();
        assert_eq!((report["agent"], report["wrong"]), (0, 0), "{report:?}");
        report
    }
}

/// More committed memory than one of the recorder's smallest buffers.
const LEAK: u64 = 256 << 10;

/// Asserts that nothing of the agent is left in the process.
#[track_caller]
fn nothing_grew(before: &Report, after: &Report, cycles: u32) {
    let grew = |name: &str| after[name].saturating_sub(before[name]);
    assert_eq!(grew("threads"), 0, "{before:?} {after:?}");
    assert_eq!(grew("handles"), 0, "{before:?} {after:?}");
    assert!(grew("private") < LEAK, "{before:?} {after:?}");
    wine::measured(&format!("{cycles} times: {before:?} {after:?}"));
}

/// The recorder comes and goes by inject; its agent stays loaded.
#[test]
fn recordings_that_inject_starts_and_stops_leave_no_thread_handle_or_memory() {
    /// The system itself keeps some things of the first threads that it made.
    const FIRST: u32 = 10;
    let cycles = if wine::long() { 1_000 } else { 15 };
    let mut guest = Guest::new("stops", "calm", false);
    let pid = guest.program.pid();
    let (mut first, mut sampled, mut watchdog) = (Report::new(), 0, 0);
    for number in 1..=cycles {
        let line = ["--pid", &pid, "-o", "stops.stk", "--force"];
        let mut inject = Inject::start(&guest.folder, &line);
        inject.wait_until_recording();
        let stopped = guest.run(&["stop", "--pid", &pid]);
        let finished = inject.finish();
        let recorded = Recorded::open_sound(&guest.folder.file("stops.stk"));
        if recorded.end_reason() == Some(EndReason::Watchdog as u64) {
            watchdog += 1;
        } else {
            stopped.expect(0);
            finished.expect(0).says("stopped from elsewhere");
            assert_eq!(recorded.end_reason(), Some(EndReason::Stopped as u64), "number {number}");
        }
        sampled += u32::from(!recorded.samples.is_empty());
        if number == FIRST {
            first = guest.report();
        } else if number % 100 == 0 {
            wine::measured(&format!("after {number} starts and stops: {:?}", guest.report()));
        }
    }
    // On an overloaded machine a thread may stand still for longer than the watchdog allows.
    assert!(watchdog * 10 <= cycles && sampled * 2 >= cycles, "{watchdog}, {sampled} of {cycles}");
    let last = guest.report();
    assert_eq!((last["agent"], last["wrong"]), (1, 0), "{last:?}");
    wine::measured(&format!("{cycles} starts and stops: {sampled} with samples, {watchdog} by watchdog"));
    nothing_grew(&first, &last, cycles - FIRST);
    guest.ends_well();
}

#[track_caller]
fn comes_and_goes(x86: bool, cycles: u32) {
    let mut guest = Guest::new(&format!("unload-{x86}"), "calm", x86);
    let mut first = Report::new();
    let mut last = Report::new();
    for number in 0..cycles {
        let more: &[&str] = if number % 3 == 2 { &["--flight", "5s"] } else { &[] };
        last = guest.cycle(more);
        // The system itself keeps some things of the first threads that it made.
        if number == 2 {
            first.clone_from(&last);
        }
    }
    nothing_grew(&first, &last, cycles - 3);
    guest.unload().refuses(1, "has not loaded an agent");
    guest.ends_well();
}

#[test]
fn the_agent_leaves_and_comes_back_and_leaves_nothing_behind() {
    comes_and_goes(false, if wine::long() { 100 } else { 6 });
}

#[test]
fn a_32_bit_agent_leaves_and_comes_back_and_leaves_nothing_behind() {
    comes_and_goes(true, if wine::long() { 30 } else { 6 });
}

/// The agent leaves while threads raise exceptions that it looks at, load DLLs, begin and end.
#[track_caller]
fn leaves_a_storm(x86: bool, cycles: u32) {
    let mut guest = Guest::new(&format!("unload-storm-{x86}"), "storm", x86);
    let mut before = guest.report();
    for _ in 0..cycles {
        let after = guest.cycle(&["--trigger", "exception", "--trigger", "module:version*"]);
        for name in ["raised", "loaded", "begun"] {
            assert!(after[name] > before[name], "{name} stands still: {before:?} {after:?}");
        }
        before = after;
    }
    // It all continues without the agent.
    wine::wait_for("the program to continue", || {
        let after = guest.report();
        ["raised", "loaded", "begun"].iter().all(|&name| after[name] > before[name] + 5).then_some(())
    });
    guest.ends_well();
}

#[test]
fn the_agent_leaves_among_exceptions_loads_and_threads() {
    leaves_a_storm(false, if wine::long() { 60 } else { 4 });
}

#[test]
fn a_32_bit_agent_leaves_among_exceptions_loads_and_threads() {
    leaves_a_storm(true, if wine::long() { 60 } else { 3 });
}

/// The program stops one of its threads while that is in the agent's exception handler.
#[track_caller]
fn stays_while_a_thread_is_in_it(x86: bool) {
    let mut guest = Guest::new(&format!("unload-inside-{x86}"), "storm", x86);
    let pid = guest.program.pid();
    let inject = guest.record("inside.stk", &["--trigger", "exception"]);
    assert_eq!(guest.ask("s"), "1", "a thread was never met in the handler");
    guest.run(&["stop", "--pid", &pid]).expect(0);
    inject.finish().expect(0);
    let refused = guest.run(&["stop", "--pid", &pid, "--unload", "--timeout", "2s"]);
    refused.expect(1).says("stays loaded in guest");
    let before = guest.report();
    assert_eq!(before["agent"], 1);
    assert_eq!(guest.ask("g"), "1");
    guest.unload().expect(0).says("the agent has left guest");
    wine::wait_for("the program to continue", || {
        let after = guest.report();
        assert_eq!(after["agent"], 0);
        (after["raised"] > before["raised"] + 100).then_some(())
    });
    guest.ends_well();
}

#[test]
fn the_agent_stays_while_a_thread_is_in_its_exception_handler() {
    stays_while_a_thread_is_in_it(false);
}

#[test]
fn a_32_bit_agent_stays_while_a_thread_is_in_its_exception_handler() {
    // Under Wine 10's WoW64 it takes minutes to meet a thread there.
    if Machine::current().has_both_widths() {
        return;
    }
    stays_while_a_thread_is_in_it(true);
}

#[test]
fn an_agent_that_the_program_has_loaded_itself_stays_until_it_is_freed() {
    let mut guest = Guest::new("unload-own", "calm", false);
    assert_eq!(guest.ask("l"), "1");
    let inject = guest.record("own.stk", &[]);
    let refused = guest.unload();
    refused.expect(1).says("stopped guest").says("stays loaded").says("loaded or linked it itself");
    inject.finish().expect(0);
    Recorded::open_sound(&guest.folder.file("own.stk"));
    assert_eq!(guest.report()["agent"], 1);
    // It records again, and again it stays.
    let inject = guest.record("own2.stk", &[]);
    guest.unload().expect(1).says("loaded or linked it itself");
    inject.finish().expect(0);
    Recorded::open_sound(&guest.folder.file("own2.stk"));
    // The last reference is the program's.
    assert_eq!(guest.ask("f"), "1");
    assert_eq!(guest.report()["agent"], 0);
    guest.cycle(&[]);
    guest.ends_well();
}

#[test]
fn an_agent_that_the_program_has_called_stays() {
    let mut guest = Guest::new("unload-called", "calm", false);
    let inject = guest.record("called.stk", &[]);
    assert_eq!(guest.ask("c"), "0", "the capture was recorded");
    guest.unload().expect(1).says("stopped guest").says("the program itself has called it");
    inject.finish().expect(0);
    assert_eq!(guest.report()["agent"], 1);
    assert_eq!(guest.ask("c"), "1", "nothing is recording");
    guest.unload().expect(1).says("the program itself has called it");
    let inject = guest.record("again.stk", &[]);
    guest.run(&["stop", "--pid", &guest.program.pid()]).expect(0);
    inject.finish().expect(0);
    for trace in ["called.stk", "again.stk"] {
        Recorded::open_sound(&guest.folder.file(trace));
    }
    guest.ends_well();
}

#[test]
fn an_agent_that_does_not_record_leaves_too_and_all_leave_together() {
    let (mut one, two) = (Guest::new("unload-1", "calm", false), Guest::new("unload-2", "calm", false));
    one.run(&["--pid", &one.program.pid(), "-o", "short.stk", "-d", "200ms"]).expect(0);
    assert_eq!(one.report()["agent"], 1);
    one.unload().expect(0).says("the agent has left guest");
    assert_eq!(one.report()["agent"], 0);

    let injects = [one.record("1.stk", &[]), two.record("2.stk", &[])];
    let all = one.run(&["stop", "--all", "--unload"]);
    assert_eq!(all.expect(0).stderr.matches("the agent has left guest").count(), 2, "{all:?}");
    for inject in injects {
        inject.finish().expect(0);
    }
    for mut guest in [one, two] {
        assert_eq!(guest.report()["agent"], 0);
        guest.ends_well();
    }
}

#[test]
fn an_agent_that_failed_stays() {
    let mut guest = Guest::new("unload-failed", "calm", false);
    let pid = guest.program.pid();
    guest.run(&["--pid", &pid, "-o", "panic.stk", "--test-panic"]).expect(1);
    guest.unload().expect(1).says("it failed there");
    assert_eq!(guest.report()["agent"], 1);
    guest.ends_well();
}

#[test]
fn the_64_bit_inject_has_the_32_bit_agent_leave() {
    if !Machine::current().has_both_widths() {
        return;
    }
    let mut guest = Guest::new("unload-both", "calm", true);
    let inject = guest.record("both.stk", &[]);
    let pid = guest.program.pid();
    let stop = ["stop", "--pid", &pid, "--unload"];
    // It needs the other inject beside it.
    for (bin, name) in [("STK_WINDOWS_BIN", "inject.exe"), ("STK_WINDOWS32_BIN", "inject32.exe")] {
        std::fs::copy(wine::path(bin).join(name), guest.folder.file(name)).expect("a program");
    }
    let both = guest.folder.file("inject.exe");
    Inject::run_exe(&both, &guest.folder, &stop).expect(0).says("the agent has left guest");
    inject.finish().expect(0);
    assert_eq!(guest.report()["agent"], 0);
    guest.ends_well();
}
