//! `--rotate`: one recording in a ring of files.
//!
//! * `several`: several processes, 32-bit ones, what `inject status` says of them.
//! * `gapless`: what the change of a file costs, and what is left when somebody dies then.
//! * `races`: whatever ends a recording or a process, in the moment in which the file changes.

mod gapless;
mod races;
mod several;

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use stk_schema::event::EndReason;
use stk_tests::chrome;
use stk_tests::recorded::Recorded;
use stk_tests::stk;
use stk_tests::wine::{self, Finished, Folder, Inject, Program};

/// Names of the traces, and of parts of files, in a folder.
fn files(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).expect("there");
    let names = names.filter_map(|entry| entry.expect("readable").file_name().into_string().ok());
    let mut names: Vec<String> =
        names.filter(|name| name.ends_with(".stk") || name.ends_with(".part")).collect();
    names.sort();
    names
}

/// Waits until a file of the ring is there.
fn wait_for_file(folder: &Path, name: &str) {
    wine::wait_for(name, || folder.join(name).exists().then_some(()));
}

/// A file of a ring.
struct RingFile {
    recorded: Recorded,
    info: Value,
}

impl RingFile {
    /// Its place in the recording. A process that ends in the moment in which a file begins leaves
    /// a trace that holds no more than its header.
    fn place(&self) -> Option<(&str, u64)> {
        let rotation = &self.info["rotation"];
        let at_once = self.recorded.end_reason() == Some(EndReason::ProcessExit as u64);
        assert!(at_once || rotation.is_object(), "{} does not report its place", self.info["file"]);
        Some((rotation["id"].as_str()?, rotation["index"].as_u64()?))
    }

    fn index(&self) -> u64 {
        self.place().expect("its place in the recording").1
    }

    fn gap_ns(&self) -> Option<u64> {
        self.info["rotation"]["gap_ns"].as_u64()
    }

    /// First and last reading of the machine's counter that a sample has. A file that was stopped
    /// at once has none.
    fn sampled(&self) -> Option<(u64, u64)> {
        let times = self.recorded.samples.iter().map(|sample| sample.time.0);
        Some((times.clone().min()?, times.max()?))
    }

    /// Threads that a conversion of this file shows, by id and time of creation.
    fn threads(&self, folder: &Folder, name: &str) -> BTreeSet<(u32, u64)> {
        let document = stk::json(folder.path(), &["convert", name, "--to", "firefox", "-o", "-"]);
        let threads = document["threads"].as_array().expect("a list");
        let shown: BTreeSet<u64> =
            threads.iter().map(|thread| thread["tid"].as_u64().expect("a thread's id")).collect();
        let sampled: BTreeSet<u64> = self.recorded.samples.iter().map(|sample| sample.thread).collect();
        let known = sampled.iter().filter_map(|id| self.recorded.threads.get(id));
        let known = known.filter(|thread| shown.contains(&thread.tid.into()));
        known.map(|thread| (thread.tid, thread.created)).collect()
    }
}

/// Opens the files of a ring in order. Each is a whole trace of which `stk verify` has nothing to
/// say, and each has its place in one recording.
#[track_caller]
fn ring(folder: &Folder, names: &[String]) -> Vec<RingFile> {
    let mut ring: Vec<RingFile> = Vec::new();
    for name in names {
        let recorded = Recorded::open_sound(&folder.file(name));
        let verify = stk::run(folder.path(), &["verify", name]);
        assert_eq!(verify.code, Some(0), "{name}: {}{}", verify.stdout, verify.stderr);
        let info = stk::json(folder.path(), &["info", name, "--json"])["traces"][0].clone();
        ring.push(RingFile { recorded, info });
    }
    for pair in ring.windows(2) {
        if let Some((id, index)) = pair[1].place() {
            assert_eq!(pair[0].place(), Some((id, index - 1)));
            assert_eq!(pair[1].gap_ns(), Some(0), "{}", pair[1].info["rotation"]);
        }
        assert_ne!(pair[1].recorded.header.uuid, pair[0].recorded.header.uuid);
        assert_eq!(pair[1].recorded.header.process_created, pair[0].recorded.header.process_created);
        if let (Some((_, before)), Some((after, _))) = (pair[0].sampled(), pair[1].sampled()) {
            assert!(after > before, "two files hold the same time");
        }
    }
    ring
}

/// The weight of everything in traces that are converted each alone, or merged.
fn weight(folder: &Folder, arguments: &[&str]) -> f64 {
    let document = stk::json(folder.path(), &[arguments, &["--to", "speedscope", "-o", "-"]].concat());
    let weights = document["profiles"][0]["weights"].as_array().expect("a list");
    weights.iter().map(|weight| weight.as_f64().expect("a number")).sum()
}

/// Merges the files: they are one process whose threads are each there once, with all the weight,
/// without a gap.
#[track_caller]
fn merged(folder: &Folder, names: &[String]) {
    let ring = ring(folder, names);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let apart: f64 = names.iter().map(|name| weight(folder, &["convert", name, "--weight", "wall"])).sum();
    let together = weight(folder, &[&["merge"], &names[..], &["--weight", "wall"]].concat());
    assert!((apart - together).abs() <= apart / 1e9, "{apart} ns apart, {together} ns together");

    let arguments = [&["merge"], &names[..], &["--to", "firefox", "-o", "-"]].concat();
    let document = stk::json(folder.path(), &arguments);
    let threads = document["threads"].as_array().expect("a list");
    let pids: BTreeSet<&str> = threads.iter().map(|thread| thread["pid"].as_str().expect("a pid")).collect();
    assert_eq!(pids.len(), 1, "one process");
    // The same thread has the same id and the same time of creation in each file.
    let wanted: BTreeSet<(u32, u64)> =
        ring.iter().zip(&names).flat_map(|(file, name)| file.threads(folder, name)).collect();
    assert!(wanted.iter().all(|&(_, created)| created != 0), "a thread without its time of creation");
    assert_eq!(threads.len(), wanted.len(), "a thread is doubled, or two are one");

    let arguments = [&["merge"], &names[..], &["--to", "chrome", "-o", "-"]].concat();
    let document = stk::json(folder.path(), &arguments);
    let events = chrome::events(&document);
    let at = |phase: &str| -> Vec<f64> {
        let found = events.iter().filter(|event| event["cat"] == "gap" && event["ph"] == phase);
        found.map(|event| event["ts"].as_f64().expect("a time")).collect()
    };
    let (begins, ends) = (at("b"), at("e"));
    assert_eq!((begins.len(), ends.len()), (0, 0), "a gap between two files");
}

/// The exit code and what inject said at the end.
#[track_caller]
fn ended(finished: Finished, code: i32, says: &str) {
    finished.expect(code).says(says);
}

#[test]
fn files_by_time_follow_each_other_and_the_last_ones_are_kept() {
    let folder = Folder::new("rotate-time");
    let busy = Program::busy(&folder, 0);
    let pid = busy.pid();
    // A file of the same kind that this recording did not write, and one of another name.
    std::fs::write(folder.file("a.0001.stk"), "not a trace").expect("writable");
    std::fs::write(folder.file("b.0002.stk"), "not a trace").expect("writable");
    let mut inject = Inject::start(&folder, &["--pid", &pid, "-o", "a.stk", "--rotate", "2s", "--keep", "3"]);
    inject.wait_until_recording();
    inject.wait_until_a_line_begins("it continues in numbered files, each of 2.00 s");
    // Numbers continue behind those that are there.
    wait_for_file(folder.path(), "a.0006.stk");
    Inject::run(&folder, &["mark", "--pid", &pid, "half"]).expect(0);
    wait_for_file(folder.path(), "a.0007.stk");
    Inject::run(&folder, &["stop", "--pid", &pid]).expect(0);
    ended(inject.finish(), 0, "stopped from elsewhere");

    let names = files(folder.path());
    assert_eq!((names[0].as_str(), names.last().map(String::as_str)), ("a.0001.stk", Some("b.0002.stk")));
    let names = names[1..names.len() - 1].to_vec();
    assert_eq!(names.len(), 3, "{names:?}");
    assert_eq!(std::fs::read(folder.file("a.0001.stk")).expect("there"), b"not a trace");
    let ring = ring(&folder, &names);
    assert!(ring[0].index() >= 4, "the first files are deleted");
    assert!(ring.iter().all(|file| file.recorded.end_reason() == Some(EndReason::Stopped as u64)));
    merged(&folder, &names);
    let marks = |name: &String| {
        let events = stk::json(folder.path(), &["events", name, "--kind", "mark", "--json"]);
        events["traces"][0]["events"].as_array().expect("a list").len()
    };
    assert_eq!(names.iter().map(marks).sum::<usize>(), 1, "the mark is in one of the files");
    let shown = stk::run(folder.path(), &["info", &names[2]]).stdout;
    assert!(shown.contains("it continues without a gap"), "{shown}");
    // It is as ready for another recording as after any.
    Inject::record(&folder, &["--pid", &pid, "-o", "after.stk", "-d", "1s"]);
}

#[test]
fn files_by_size_are_moved_during_the_recording() {
    let folder = Folder::new("rotate-size");
    let busy = Program::busy(&folder, 0);
    let pid = busy.pid();
    std::fs::create_dir(folder.file("goal")).expect("writable");
    // Stacks that are wholly stored fill files; most of the recording's bytes are images' sections.
    let arguments = ["--pid", &pid, "-o", "a.stk", "--rotate", "1M", "--embed", "full", "--move-to", "goal"];
    let mut inject = Inject::start(&folder, &arguments);
    inject.wait_until_recording();
    let goal = folder.file("goal");
    wait_for_file(&goal, "a.0002.stk");
    inject.interrupt();
    ended(inject.finish(), 130, "interrupted");
    assert_eq!(files(folder.path()), [""; 0], "all files are moved");
    let names: Vec<String> = files(&goal).iter().map(|name| format!("goal/{name}")).collect();
    assert!(names.len() >= 3 && names[0] == "goal/a.0001.stk", "{names:?}");
    let ring = ring(&folder, &names);
    assert_eq!((ring[0].index(), ring[0].gap_ns()), (1, None));
    for name in &names[..names.len() - 1] {
        let bytes = folder.file(name).metadata().expect("there").len();
        assert!(bytes >= 1 << 20, "{name} has {bytes} bytes");
    }
    merged(&folder, &names);
}

#[test]
fn a_recording_ends_when_all_its_files_have_their_limit() {
    let folder = Folder::new("rotate-limit");
    let busy = Program::busy(&folder, 0);
    let pid = busy.pid();
    let arguments =
        ["--pid", &pid, "-o", "a.stk", "--rotate", "1M", "--embed", "full", "--max-size", "4M", "-d", "5m"];
    ended(Inject::run(&folder, &arguments), 0, "the size limit was reached");
    let names = files(folder.path());
    assert!(names.len() >= 2, "{names:?}");
    ring(&folder, &names);
    let bytes: u64 = names.iter().map(|name| folder.file(name).metadata().expect("there").len()).sum();
    // The completion after the end may add what could not be read in time.
    assert!(bytes <= (4 << 20) + (256 << 10), "{bytes} bytes");
}

#[test]
fn a_recording_with_a_duration_ends_in_time_whatever_its_files() {
    let folder = Folder::new("rotate-duration");
    let busy = Program::busy(&folder, 0);
    let pid = busy.pid();
    let arguments = ["--pid", &pid, "-o", "a.stk", "--rotate", "2s", "-d", "5s"];
    Inject::record(&folder, &arguments).says("files: ");
    let names = files(folder.path());
    let ring = ring(&folder, &names);
    assert!(ring.len() >= 2, "{names:?}");
    let last = ring.last().expect("files");
    assert_eq!(last.recorded.end_reason(), Some(EndReason::Duration as u64));
    merged(&folder, &names);
}

#[test]
fn a_paused_recording_rotates_only_after_it_is_resumed() {
    let folder = Folder::new("rotate-paused");
    let busy = Program::busy(&folder, 0);
    let pid = busy.pid();
    let mut inject = Inject::start(&folder, &["--pid", &pid, "-o", "a.stk", "--rotate", "1s", "--paused"]);
    inject.wait_until_recording();
    wine::wait_for("three seconds of pause", || {
        (Inject::status(&folder, &pid)["elapsed_ms"].as_u64()? >= 3_000).then_some(())
    });
    assert_eq!(files(folder.path()), ["a.0001.stk"], "it rotated in a pause");
    Inject::run(&folder, &["resume", "--pid", &pid]).expect(0);
    wait_for_file(folder.path(), "a.0003.stk");
    Inject::run(&folder, &["pause", "--pid", &pid]).expect(0).says("paused the recording of");
    let pause_of = |ms: u64| {
        wine::wait_for("a pause", || {
            let status = Inject::status(&folder, &pid);
            assert_eq!(status["paused"], true, "{status}");
            (status["elapsed_ms"].as_u64()? >= ms).then_some(())
        });
    };
    // The pause may have come while a file changed.
    pause_of(1_000);
    let paused = files(folder.path());
    pause_of(4_000);
    assert_eq!(files(folder.path()), paused, "it rotated in a pause");
    inject.interrupt();
    ended(inject.finish(), 130, "interrupted");
    let names = files(folder.path());
    let whole = names.iter().map(|name| Recorded::open_sound(&folder.file(name)));
    assert!(whole.filter(|recorded| !recorded.samples.is_empty()).count() >= 2, "{names:?}");
}

#[test]
fn a_launched_program_is_recorded_into_files_and_its_exit_code_is_injects() {
    let folder = Folder::new("rotate-launch");
    let home = wine::path("STK_BUSY_DIR");
    let busy = wine::windows_path(&home.join("busy.exe"));
    let trace = wine::windows_path(&folder.file("a.stk"));
    let finished =
        Inject::launch_in(&folder, &home, &["-o", &trace, "--force", "--rotate", "1s", "--", &busy, "4"]);
    ended(finished, 0, "ended with exit code 0");
    let names = files(folder.path());
    assert!(names.len() >= 3, "{names:?}");
    let reported = ring(&folder, &names).iter().filter(|file| file.place().is_some()).count();
    assert!(reported >= names.len() - 1);
    merged(&folder, &names[..reported]);
    // The last one too, should the program have ended as it began.
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let together = stk::run(folder.path(), &[&["merge"], &all[..], &["-o", "all.chrome.json"]].concat());
    assert_eq!(together.code, Some(0), "{}", together.stderr);
    assert!(together.stderr.contains(": 1 process, "), "{}", together.stderr);
}

#[test]
fn a_detached_recording_rotates_until_it_is_stopped() {
    let folder = Folder::new("rotate-detach");
    let busy = Program::busy(&folder, 0);
    let pid = busy.pid();
    let arguments = ["--pid", &pid, "-o", "a.stk", "--rotate", "1s", "--detach"];
    Inject::run(&folder, &arguments).expect(0).says("inject continues as pid");
    wait_for_file(folder.path(), "a.0003.stk");
    // Another recording cannot begin between two files.
    Inject::run(&folder, &["--pid", &pid, "-o", "b.stk"]).refuses(1, "is being recorded already");
    Inject::run(&folder, &["stop", "--all"]).expect(0).says("stopped busy.exe");
    Inject::run(&folder, &["stop", "--pid", &pid]).refuses(1, "is not being recorded");
    let names = files(folder.path());
    assert!(names.len() >= 3, "{names:?}");
    for name in &names {
        // The copy of inject completes the last one after the stop.
        wine::wait_for(name, || {
            Recorded::try_open(&folder.file(name)).filter(|recorded| recorded.complete).map(|_| ())
        });
    }
    ring(&folder, &names);
}

#[test]
fn a_file_that_another_program_put_in_place_of_an_old_one_stays() {
    let folder = Folder::new("rotate-held");
    let busy = Program::busy(&folder, 0);
    let pid = busy.pid();
    let mut inject = Inject::start(&folder, &["--pid", &pid, "-o", "a.stk", "--rotate", "1s", "--keep", "6"]);
    inject.wait_until_recording();
    // Another program's file takes the name of one that is to be deleted in some seconds.
    wait_for_file(folder.path(), "a.0003.stk");
    std::fs::write(folder.file("a.0001.stk"), "mine").expect("writable");
    wait_for_file(folder.path(), "a.0009.stk");
    inject.interrupt();
    let finished = inject.finish();
    finished.expect(130).says("is another file now: it is not deleted");
    assert_eq!(std::fs::read(folder.file("a.0001.stk")).expect("there"), b"mine");
    assert!(!folder.file("a.0002.stk").exists(), "the next one is deleted anyway");
}
