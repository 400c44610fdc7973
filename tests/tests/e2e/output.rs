//! Outputs that fail while a recording runs: the file is deleted, renamed or replaced, its folder
//! goes, writes are refused from some moment on. The target continues, what is in a file is a valid
//! trace, and inject says what became of it. Windows itself refuses to delete or rename a file that
//! the agent has open: Wine's files are Linux', so here the tests do that as a Linux program.

#![cfg(not(windows))]

use std::path::Path;
use std::time::Duration;
use stk_tests::recorded::Recorded;
use stk_tests::stk;
use stk_tests::wine::{self, Folder, Inject, Program, figures, measured};

/// busy's last line in every undisturbed run (examples/busy/README.md).
const UNDISTURBED: &str = "checksum a9a6d267ba599d58";
/// Tests of each fault, at other moments: in CI, and with STK_LONG.
const TIMES: u32 = 1;
const LONG_TIMES: u32 = 10;

/// A busy that is being recorded into `folder/inner/a.stk`, which has samples.
struct Recording {
    folder: Folder,
    busy: Program,
    inject: Inject,
}

impl Recording {
    /// Begins with a busy of so many seconds (0 = until it is killed), and waits until samples are
    /// on disk, and `number` times 170 ms longer.
    fn start(name: &str, seconds: u32, number: u32, arguments: &[&str]) -> Recording {
        let folder = Folder::new(name);
        std::fs::create_dir(folder.file("inner")).expect("a new folder");
        std::fs::create_dir(folder.file("goal")).expect("a new folder");
        let busy = Program::busy(&folder, seconds);
        let pid = busy.pid();
        let line = [&["--pid", &pid, "-o", r"inner\a.stk"], arguments].concat();
        let mut inject = Inject::start(&folder, &line);
        inject.wait_until_recording();
        wine::wait_for("the first samples on disk", || {
            Recorded::try_open(&folder.file("inner/a.stk")).filter(|recorded| !recorded.samples.is_empty())
        });
        std::thread::sleep(Duration::from_millis(u64::from(number) * 170));
        Recording { folder, busy, inject }
    }

    /// Records a little longer, ends by `inject stop` and returns what inject said, the folder and
    /// busy, which must continue.
    #[track_caller]
    fn stop(self) -> (wine::Finished, Folder, Program) {
        let Recording { folder, mut busy, inject } = self;
        std::thread::sleep(Duration::from_millis(500));
        Inject::run(&folder, &["stop", "--pid", &busy.pid()]).expect(0);
        let finished = inject.finish();
        assert!(busy.is_running(), "busy ended before the recording");
        (finished, folder, busy)
    }
}

/// Calls the test with the numbers of its tries.
fn each_time(name: &str, test: impl Fn(u32) -> String) {
    let times = if wine::long() { LONG_TIMES } else { TIMES };
    let mut last = String::new();
    for number in 0..times {
        last = test(number);
    }
    measured(&format!("{name}: {times} of {times}; the last: {last}"));
}

#[test]
fn a_trace_deleted_during_recording_is_reported() {
    each_time("trace deleted", |number| {
        // It must outlive the recording on a loaded machine, and end by itself.
        let recording = Recording::start("deleted", 20, number, &[]);
        std::fs::remove_file(recording.folder.file("inner/a.stk")).expect("there");
        let (finished, folder, mut busy) = recording.stop();
        finished.expect(1).says("a.stk was lost while it was recorded").says("was deleted or renamed");
        assert!(!folder.file("inner/a.stk").exists());
        // It computes the same as without a recorder.
        busy.ends_saying(UNDISTURBED);
        assert!(!busy.output().contains("WRONG"), "{}", busy.output());
        finished.stderr.lines().last().unwrap_or_default().to_owned()
    });
}

#[test]
fn a_trace_whose_folder_is_renamed_is_whole_there_and_inject_says_that_it_is_gone() {
    each_time("folder renamed", |number| {
        // The way to the goal is not taken either: nothing is there to be moved.
        let recording = Recording::start("renamed", 0, number, &["--move-to", "goal"]);
        let folder = &recording.folder;
        std::fs::rename(folder.file("inner"), folder.file("away")).expect("there");
        let (finished, folder, _) = recording.stop();
        finished.expect(1).says("a.stk was lost while it was recorded").says("was deleted or renamed");
        assert!(!finished.stderr.contains("it is kept at"), "{}", finished.stderr);
        figures(&Recorded::open_sound(&folder.file("away/a.stk")))
    });
}

#[test]
fn a_file_put_in_a_trace_s_place_is_neither_written_nor_moved() {
    each_time("trace replaced", |number| {
        let recording = Recording::start("replaced", 0, number, &["--move-to", "goal"]);
        let trace = recording.folder.file("inner/a.stk");
        std::fs::rename(&trace, recording.folder.file("inner/b.stk")).expect("there");
        std::fs::write(&trace, "somebody else's").expect("writable");
        let (finished, folder, _) = recording.stop();
        finished.expect(1).says("another file has taken its place");
        assert_eq!(std::fs::read(&trace).expect("there"), b"somebody else's");
        assert_eq!(std::fs::read_dir(folder.file("goal")).expect("there").count(), 0);
        figures(&Recorded::open_sound(&folder.file("inner/b.stk")))
    });
}

#[test]
fn a_trace_whose_goal_is_gone_at_the_end_stays_where_it_is() {
    each_time("goal gone", |number| {
        let recording = Recording::start("goal", 0, number, &["--move-to", "goal"]);
        std::fs::remove_dir(recording.folder.file("goal")).expect("empty");
        let (finished, folder, _) = recording.stop();
        finished.expect(1).says("could not be moved to").says("it is kept at").says(r"inner\a.stk");
        figures(&Recorded::open_sound(&folder.file("inner/a.stk")))
    });
}

/// Writes to a file on a share fail so from when the share is gone.
#[test]
fn a_share_that_goes_ends_the_recording_with_what_was_written() {
    // STATUS_NETWORK_NAME_DELETED, STATUS_UNEXPECTED_NETWORK_ERROR, STATUS_DISK_FULL and the errors
    // of Windows that they are.
    let hooked = wine::compiled(env!("CARGO_TARGET_TMPDIR"), "hooked");
    for (status, error) in [("c00000c9", 64), ("c00000c4", 59), ("c000007f", 112)] {
        each_time(&format!("writes fail with error {error}"), |number| {
            let folder = Folder::new("share");
            let go = wine::windows_path(&folder.file("go"));
            let arguments = ["NtWriteFile", &go, "later", status];
            let program = Program::ready(&folder, folder.path(), &hooked, &arguments);
            let mut inject = Inject::start(&folder, &["--pid", &program.pid(), "-o", "a.stk"]);
            inject.wait_until_recording();
            let trace = folder.file("a.stk");
            wine::wait_for("the first samples on disk", || {
                Recorded::try_open(&trace).filter(|recorded| !recorded.samples.is_empty())
            });
            std::thread::sleep(Duration::from_millis(u64::from(number) * 170));
            std::fs::write(folder.file("go.fault"), "").expect("writable");
            let finished = inject.finish();
            finished.expect(1).says("the agent could not write the trace");
            finished.says(&format!("(os error {error})")).says("continues");
            let recorded = Recorded::open(&trace);
            assert!(recorded.damage.is_empty() && !recorded.complete, "{:?}", recorded.damage);
            assert!(dropped_of(&finished.stderr) > recorded.dropped_samples, "{}", finished.stderr);
            verifies_as_truncated(folder.path());
            // Neither of its threads waits for anything of the recorder's.
            std::fs::write(folder.file("go"), "").expect("writable");
            wine::wait_for("the program to report", || program.output().contains("end\n").then_some(()));
            assert!(program.output().contains("both continued\n"), "{}", program.output());
            figures(&recorded)
        });
    }
}

/// The disk is full when a recording is ended, by Ctrl-C and by `inject stop`. Whether the recorder
/// finds that before is chance; what is said must be true each time.
#[test]
fn a_disk_that_is_full_at_the_end_is_reported() {
    let hooked = wine::compiled(env!("CARGO_TARGET_TMPDIR"), "hooked");
    for by_stop in [false, true, false, true] {
        let folder = Folder::new("full-at-end");
        let go = wine::windows_path(&folder.file("go"));
        let arguments = ["NtWriteFile", &go, "later", "c000007f"];
        let program = Program::ready(&folder, folder.path(), &hooked, &arguments);
        let pid = program.pid();
        // In a pause little is written.
        let mut inject = Inject::start(&folder, &["--pid", &pid, "-o", "a.stk", "--paused"]);
        inject.wait_until_recording();
        wine::wait_for("the modules in the trace", || {
            Recorded::try_open(&folder.file("a.stk")).filter(|recorded| !recorded.modules.is_empty())
        });
        std::fs::write(folder.file("go.fault"), "").expect("writable");
        let stop = by_stop.then(|| Inject::run(&folder, &["stop", "--pid", &pid]));
        if !by_stop {
            // The program looks for the order to fail every 5 ms.
            std::thread::sleep(Duration::from_millis(100));
            inject.interrupt();
        }
        let finished = inject.finish();
        let recorded = Recorded::open(&folder.file("a.stk"));
        assert!(recorded.damage.is_empty(), "{:?}", recorded.damage);
        if recorded.complete {
            // The program had not seen the order yet.
            finished.expect(if by_stop { 0 } else { 130 });
            continue;
        }
        finished.expect(1).says("the agent could not write the trace").says("(os error 112)");
        verifies_as_truncated(folder.path());
        if let Some(stop) = stop.filter(|stop| !stop.stderr.contains("nothing to stop")) {
            stop.says("the trace is not whole").says("(os error 112)");
            stop.expect(1);
        }
    }
}

/// The disk fills up while a recording goes from file to file.
#[test]
fn a_full_disk_ends_a_ring_of_files_and_the_finished_ones_stay_whole() {
    let hooked = wine::compiled(env!("CARGO_TARGET_TMPDIR"), "hooked");
    for keep in [&[][..], &["--keep", "3"]] {
        each_time(&format!("disk full in a ring, {keep:?}"), |number| {
            let folder = Folder::new("ring-full");
            let go = wine::windows_path(&folder.file("go"));
            // STATUS_DISK_FULL is ERROR_DISK_FULL, 112.
            let arguments = ["NtWriteFile", &go, "later", "c000007f"];
            let program = Program::ready(&folder, folder.path(), &hooked, &arguments);
            let pid = program.pid();
            let line = [&["--pid", &pid, "-o", "a.stk", "--rotate", "3s"], keep].concat();
            let mut inject = Inject::start(&folder, &line);
            inject.wait_until_recording();
            wine::wait_for("the third file", || folder.file("a.0003.stk").exists().then_some(()));
            std::thread::sleep(Duration::from_millis(1_000 + u64::from(number) * 310));
            std::fs::write(folder.file("go.fault"), "").expect("writable");
            let finished = inject.finish();
            // It ends within a file, or because the next one cannot be begun.
            finished.expect(1).says("(os error 112)").says("what was recorded is in ");
            let mut names: Vec<String> = std::fs::read_dir(folder.path())
                .expect("there")
                .filter_map(|entry| entry.expect("readable").file_name().into_string().ok())
                .filter(|name| name.ends_with(".stk"))
                .collect();
            names.sort();
            let (last, whole) = names.split_last().expect("files");
            assert!(whole.len() >= 2, "{names:?}");
            let mut dropped: u64 = 0;
            for name in whole {
                dropped += Recorded::open_sound(&folder.file(name)).dropped_samples;
            }
            let last = Recorded::open(&folder.file(last));
            assert!(last.damage.is_empty(), "{:?}", last.damage);
            dropped += last.dropped_samples;
            assert!(last.complete || finished.stderr.contains("could not write the trace"), "{finished:?}");
            // At its end, nothing but the END block may be missing.
            let ticks = last.samples.iter().map(|sample| sample.time.0).max().unwrap_or(0);
            let was_ending = ticks > last.header.clock_start.0 + 5 * last.header.clock_frequency / 2;
            if !last.complete && !was_ending {
                assert!(dropped_of(&finished.stderr) > dropped, "{dropped}: {}", finished.stderr);
            }
            // Neither of its threads waits for anything of the recorder's.
            std::fs::write(folder.file("go"), "").expect("writable");
            wine::wait_for("the program to report", || program.output().contains("end\n").then_some(()));
            assert!(program.output().contains("both continued\n"), "{}", program.output());
            format!("{} whole files; {}", whole.len(), figures(&last))
        });
    }
}

/// The number before `dropped` in what inject said.
#[track_caller]
fn dropped_of(said: &str) -> u64 {
    let number = said.rsplit_once(" dropped").and_then(|(before, _)| before.rsplit(' ').next());
    let number = number.map(|text| text.replace(',', ""));
    number.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no drops are reported:\n{said}"))
}

#[track_caller]
fn verifies_as_truncated(folder: &Path) {
    let verify = stk::run(folder, &["verify", "a.stk"]);
    assert_eq!(verify.code, Some(0), "{}{}", verify.stdout, verify.stderr);
    let said = format!("{}{}", verify.stdout, verify.stderr);
    assert!(said.contains("truncated"), "stk verify does not say that it is truncated:\n{said}");
}
