//! What happens in the moment in which a recording goes from one file to the next: stops, with and
//! without `--unload`, two at once, another inject that wants to record, the end of the process.
//! Nothing hangs, every file reads back, and what each inject says and returns is true.

use super::{ended, files, wait_for_file};
use std::time::Duration;
use stk_tests::recorded::Recorded;
use stk_tests::stk;
use stk_tests::wine::{self, Finished, Folder, Inject, Program};

/// Runs of each race: in CI, and with STK_LONG.
const RUNS: u64 = 2;
const LONG_RUNS: u64 = 80;

/// Calls the race with the number of each run.
fn each_run(name: &str, race: impl Fn(u64)) {
    let runs = if wine::long() { LONG_RUNS } else { RUNS };
    (0..runs).for_each(&race);
    wine::measured(&format!("{name}: {runs} of {runs}"));
}

/// A recording of a process that is about to change its file.
struct Turning {
    folder: Folder,
    pid: String,
    inject: Inject,
}

impl Turning {
    /// Starts the recording of this process, waits until the second file is there, which is opened
    /// before the first one ends, and then for the part of a file's second that this run takes.
    fn start(folder: Folder, pid: &str, run: u64) -> Turning {
        let mut inject = Inject::start(&folder, &["--pid", pid, "-o", "a.stk", "--rotate", "1s"]);
        inject.wait_until_recording();
        wait_for_file(folder.path(), "a.0002.stk");
        // An inject takes some time to start. 37 and 100 have no common divisor.
        std::thread::sleep(Duration::from_millis(10 * (run * 37 % 100)));
        Turning { folder, pid: pid.to_owned(), inject }
    }

    fn begin(&self, more: &[&str]) -> Inject {
        Inject::start(&self.folder, &[more, &["--pid", &self.pid]].concat())
    }

    /// The recording ended as requested, and its files are whole.
    #[track_caller]
    fn ended_by_stop(self) {
        ended(self.inject.finish(), 0, "stopped from elsewhere");
        files_are_whole(&self.folder);
        Inject::run(&self.folder, &["stop", "--pid", &self.pid]).refuses(1, "is not being recorded");
    }
}

#[track_caller]
fn files_are_whole(folder: &Folder) {
    // The second file is opened before the first one ends, and deleted if it never begins.
    let names = files(folder.path());
    assert!(!names.is_empty());
    for name in &names {
        Recorded::open_sound(&folder.file(name));
    }
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let merged = stk::run(folder.path(), &[&["merge"], &all[..], &["-o", "all.chrome.json"]].concat());
    assert_eq!(merged.code, Some(0), "{}", merged.stderr);
}

#[track_caller]
fn stopped(finished: &Finished) {
    finished.expect(0).says("stopped busy.exe").says("; all files: ");
}

/// What only one of two injects can do, the other says that it came too late.
#[track_caller]
fn stopped_or_too_late(finished: &Finished) {
    let late = finished.code == Some(1) && finished.stderr.contains("is not being recorded: nothing to stop");
    assert!(late || finished.code == Some(0), "{finished:?}");
    if !late {
        finished.says("stopped busy.exe");
    }
}

#[test]
fn a_stop_ends_the_recording_and_not_only_a_file() {
    let home = Folder::new("race-stop");
    let busy = Program::busy(&home, 0);
    each_run("stop", |run| {
        let turning = Turning::start(Folder::new("race-stop"), &busy.pid(), run);
        if run % 4 == 3 {
            turning.inject.interrupt();
            ended(turning.inject.finish(), 130, "interrupted");
            files_are_whole(&turning.folder);
            return;
        }
        stopped(&turning.begin(&["stop"]).finish());
        turning.ended_by_stop();
    });
}

#[test]
fn a_stop_with_unload_ends_the_recording_and_the_agent_is_gone() {
    let home = Folder::new("race-unload");
    let mut busy = Program::busy(&home, 0);
    let pid = busy.pid();
    each_run("stop --unload", |run| {
        let turning = Turning::start(Folder::new("race-unload"), &pid, run);
        let unload = turning.begin(&["stop", "--unload"]).finish();
        stopped(&unload);
        unload.says("the agent has left busy.exe");
        turning.ended_by_stop();
        Inject::run(&home, &["stop", "--unload", "--pid", &pid]).refuses(1, "has not loaded an agent");
    });
    assert!(busy.is_running(), "{}", busy.output());
}

#[test]
fn two_stops_at_once_of_which_one_unloads_both_say_what_is_true() {
    let home = Folder::new("race-two");
    let mut busy = Program::busy(&home, 0);
    let pid = busy.pid();
    each_run("stop and stop --unload at once", |run| {
        let turning = Turning::start(Folder::new("race-two"), &pid, run);
        let words: [&[&str]; 2] = [&["stop"], &["stop", "--unload"]];
        let order = if run % 2 == 0 { [0, 1] } else { [1, 0] };
        let [first, second] = order.map(|which| turning.begin(words[which]));
        let (first, second) = (first.finish(), second.finish());
        let (stop, unload) = if run % 2 == 0 { (first, second) } else { (second, first) };
        stopped_or_too_late(&stop);
        unload.expect(0).says("the agent has left busy.exe");
        assert!([stop, unload].iter().any(|finished| finished.stderr.contains("stopped busy.exe")));
        turning.ended_by_stop();
        Inject::run(&home, &["stop", "--unload", "--pid", &pid]).refuses(1, "has not loaded an agent");
    });
    assert!(busy.is_running(), "{}", busy.output());
}

#[test]
fn another_inject_cannot_record_between_two_files() {
    let home = Folder::new("race-other");
    let busy = Program::busy(&home, 0);
    each_run("another recording", |run| {
        let turning = Turning::start(Folder::new("race-other"), &busy.pid(), run);
        let other = turning.begin(&["-o", "other.stk", "-d", "1s"]).finish();
        other.refuses(1, "is being recorded already");
        stopped(&turning.begin(&["stop"]).finish());
        turning.ended_by_stop();
    });
}

#[test]
fn a_process_that_ends_leaves_whole_files() {
    let home = wine::path("STK_ENDS_DIR");
    each_run("the process ends", |run| {
        let folder = Folder::new("race-ends");
        let go = folder.file("go");
        let arguments = ["exit", "0", &wine::windows_path(&go)];
        let mut ends = Program::ready(&folder, &home, &home.join("ends.exe"), &arguments);
        let turning = Turning::start(folder, &ends.pid(), run);
        std::fs::write(&go, "").expect("writable");
        ends.wait();
        ended(turning.inject.finish(), 0, "ended with exit code 4");
        // If it ended between two files, the next one never began.
        let names = files(turning.folder.path());
        assert!(!names.is_empty());
        for name in &names {
            let recorded = Recorded::open(&turning.folder.file(name));
            assert!(recorded.complete && recorded.damage.is_empty(), "{name}: {:?}", recorded.damage);
        }
    });
}
