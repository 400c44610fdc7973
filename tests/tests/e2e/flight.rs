//! `--flight`: a recording in a ring of files, of which traces are written when something asks for
//! them.

use std::path::{Path, PathBuf};
use stk_schema::event::EndReason;
use stk_tests::recorded::Recorded;
use stk_tests::stk;
use stk_tests::wine::{self, Folder, Inject, Machine, Program};

/// Names of the traces, and of unfinished files, in a folder, in the order of their numbers.
fn files(folder: &Folder) -> Vec<String> {
    let names = std::fs::read_dir(folder.path()).expect("there");
    let names = names.filter_map(|entry| entry.expect("readable").file_name().into_string().ok());
    let mut names: Vec<String> =
        names.filter(|name| name.ends_with(".stk") || name.ends_with(".tmp")).collect();
    names.sort_by_key(|name| (name.len(), name.clone()));
    names
}

/// Starts a recording and waits until there is something in it.
fn fly(folder: &Folder, pid: &str, more: &[&str]) -> Inject {
    let mut inject = Inject::start(folder, &[&["--pid", pid, "-o", "f.stk", "--flight"], more].concat());
    inject.wait_until_recording();
    wait_for_samples(folder, pid, 200);
    inject
}

/// Waits until the recording is so old. The recorder writes a block of samples each second.
fn wait_for_age(folder: &Folder, pid: &str, ms: u64) {
    wine::wait_for("some seconds", || {
        (Inject::status(folder, pid)["rotation"]["elapsed_ms"].as_u64()? >= ms).then_some(())
    });
}

/// Waits until the recording has so many samples.
fn wait_for_samples(folder: &Folder, pid: &str, samples: u64) {
    wine::wait_for("samples", || {
        (Inject::status(folder, pid)["rotation"]["samples"].as_u64()? >= samples).then_some(())
    });
}

/// A whole trace with samples, of which `stk verify` has nothing to say.
#[track_caller]
fn sound(folder: &Folder, name: &str) -> Recorded {
    let recorded = Recorded::open(&folder.file(name));
    assert!(recorded.damage.is_empty(), "{name}: {:?}", recorded.damage);
    assert!(recorded.complete && recorded.indexed, "{name}");
    assert!(!recorded.samples.is_empty(), "{name} holds no sample");
    let verify = stk::run(folder.path(), &["verify", name]);
    assert_eq!(verify.code, Some(0), "{name}: {}{}", verify.stdout, verify.stderr);
    recorded
}

#[test]
fn traces_are_written_on_request_and_numbered() {
    let folder = Folder::new("flight");
    let busy = Program::busy(&folder, 0);
    let pid = busy.pid();
    let inject = fly(&folder, &pid, &["30s"]);
    assert_eq!(files(&folder), [""; 0], "a file before anything asked for it");

    let first = Inject::run(&folder, &["snap", "--pid", &pid]);
    assert!(first.expect(0).stdout.contains("f-1.stk"), "{first:?}");
    assert_eq!(files(&folder), ["f-1.stk"]);
    let first = sound(&folder, "f-1.stk");
    assert_eq!(first.end_reason(), Some(EndReason::Stopped as u64));
    assert!(first.end_detail().contains("from the ring"), "{}", first.end_detail());
    assert_eq!(first.metadata.get("inject.flight_ms").map(String::as_str), Some("30000"));
    // Modules with their tables: stacks need nothing but the trace.
    assert!(first.modules_named("busy.exe").iter().any(|module| module.has_tables()));
    let stats = stk::json(folder.path(), &["stats", "f-1.stk", "--json"]);
    let complete = stats["traces"][0]["totals"]["complete_share"].as_f64();
    assert!(complete.is_some_and(|share| share > 0.9), "{complete:?} of stacks are complete");

    // A second trace, of the same recording, continues.
    wait_for_samples(&folder, &pid, 2 * first.samples.len() as u64);
    let again = Inject::run(&folder, &["snap", "--pid", &pid]);
    assert!(again.expect(0).stdout.contains("f-2.stk"), "{again:?}");
    let second = sound(&folder, "f-2.stk");
    let last = |recorded: &Recorded| recorded.samples.iter().map(|sample| sample.time).max();
    assert!(last(&second) > last(&first));
    assert_ne!(first.header.uuid, second.header.uuid);

    // Who ends the recording wants no more of it.
    Inject::run(&folder, &["stop", "--pid", &pid]).expect(0);
    inject.finish().expect(0).says("stopped from elsewhere").says("f-2.stk");
    assert_eq!(files(&folder), ["f-1.stk", "f-2.stk"]);
    Inject::run(&folder, &["snap", "--pid", &pid]).expect(1).says("not being recorded");
}

#[test]
fn a_killed_process_leaves_its_last_seconds() {
    for (name, kill) in [("terminated", Program::terminate as fn(&mut Program)), ("killed", Program::kill)] {
        let folder = Folder::new(name);
        let mut busy = Program::busy(&folder, 0);
        let inject = fly(&folder, &busy.pid(), &["5s"]);
        wait_for_age(&folder, &busy.pid(), 5_000);
        assert_eq!(files(&folder), [""; 0]);
        kill(&mut busy);
        inject.finish().expect(0).says("ended with exit code").says("f-1.stk");
        let recorded = sound(&folder, "f-1.stk");
        assert!(recorded.end_detail().contains("no end"), "{}", recorded.end_detail());
        assert_eq!(files(&folder), ["f-1.stk"]);
    }
}

#[test]
fn a_process_that_ends_leaves_its_last_seconds_with_their_end() {
    let folder = Folder::new("flight-ends");
    let home = wine::path("STK_ENDS_DIR");
    let go = folder.file("go");
    let arguments = ["exit", "0", &wine::windows_path(&go)];
    let mut ends = Program::ready(&folder, &home, &home.join("ends.exe"), &arguments);
    let inject = fly(&folder, &ends.pid(), &["2s"]);
    std::fs::write(&go, "").expect("writable");
    ends.wait();
    inject.finish().expect(0).says("ended with exit code").says("f-1.stk");
    assert_eq!(sound(&folder, "f-1.stk").end_reason(), Some(EndReason::ProcessExit as u64));
}

#[test]
fn old_samples_leave_the_window_and_modules_and_threads_stay_known() {
    let folder = Folder::new("flight-window");
    let busy = Program::busy(&folder, 0);
    let pid = busy.pid();
    let inject = fly(&folder, &pid, &["1s"]);
    // By then the ring's beginning is older than any window of a second.
    wait_for_age(&folder, &pid, 6_000);
    Inject::run(&folder, &["snap", "--pid", &pid]).expect(0);
    let recorded = sound(&folder, "f-1.stk");
    let times = recorded.samples.iter().map(|sample| sample.time.0);
    let (first, last) = (times.clone().min().unwrap_or(0), times.max().unwrap_or(0));
    let ms = (last - first) * 1000 / recorded.header.clock_frequency;
    let taken = stk::json(folder.path(), &["info", "f-1.stk", "--json"]);
    // A second, the rest of the file in which it begins, and what a loaded machine does.
    assert!(ms < 5_000, "{ms} ms of samples: {taken}");
    assert!(recorded.modules_named("busy.exe").iter().any(|module| module.has_tables()));
    assert!(recorded.threads.values().any(|thread| !thread.name.is_empty()));
    assert!(recorded.metadata.contains_key("os.build"), "metadata of the start");
    inject.interrupt();
    let finished = inject.finish();
    finished.expect(130).says("f-1.stk");
}

/// Folders of rings, each with its traces.
fn rings() -> Vec<(PathBuf, Vec<PathBuf>)> {
    let within = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        paths
    };
    let is_named = |path: &Path, beginning: &str| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(beginning))
    };
    let prefix = match Machine::current() {
        Machine::Native => None,
        Machine::Wine10 => Some(wine::path("STK_WINE").with_file_name("prefix")),
        _ => Some(wine::path("WINEPREFIX")),
    };
    let temporary: Vec<PathBuf> = match prefix {
        Some(prefix) => within(&prefix.join("drive_c").join("users"))
            .iter()
            .map(|user| user.join("AppData").join("Local").join("Temp"))
            .collect(),
        None => vec![std::env::temp_dir()],
    };
    let folders = temporary.iter().flat_map(|folder| within(folder));
    folders
        .filter(|folder| is_named(folder, "stk-flight-"))
        .map(|folder| {
            let files = within(&folder).into_iter().filter(|path| is_named(path, "ring.")).collect();
            (folder, files)
        })
        .collect()
}

#[test]
fn files_of_the_ring_become_one_trace_with_each_event_once() {
    let folder = Folder::new("flight-join");
    let busy = Program::busy(&folder, 0);
    let pid = busy.pid();
    // A file each two seconds. A loaded machine may take some seconds from the last mark to the
    // trace.
    let inject = fly(&folder, &pid, &["8s"]);
    let [(_, ring)] = &rings()[..] else { panic!("{:?}", rings()) };
    assert!(!ring.is_empty());
    for number in 0..20 {
        Inject::run(&folder, &["mark", "--pid", &pid, &format!("mark {number}")]).expect(0);
    }
    wait_for_age(&folder, &pid, 11_000);
    Inject::run(&folder, &["mark", "--pid", &pid, "last"]).expect(0);
    let index = Inject::status(&folder, &pid)["rotation"]["index"].as_u64().expect("a ring");
    assert!(index >= 5, "{index} files");
    Inject::run(&folder, &["snap", "--pid", &pid]).expect(0);
    let name = files(&folder).pop().expect("a trace");
    let recorded = sound(&folder, &name);
    let info = stk::json(folder.path(), &["info", &name, "--json"]);
    assert!(info["traces"][0]["rotation"].is_null(), "{info}");
    let covered: u64 = recorded.metadata["flight.covered_ms"].parse().expect("a number");
    assert!((8_000..15_000).contains(&covered), "{covered} ms");
    let listed = stk::json(folder.path(), &["events", &name, "--kind", "mark", "--json"]);
    let marks = listed["traces"][0]["events"].as_array().expect("a list");
    let mut texts: Vec<&str> = marks.iter().filter_map(|mark| mark["text"].as_str()).collect();
    assert_eq!(texts.last(), Some(&"last"), "{covered} ms in {name}: {listed}");
    let all = texts.len();
    texts.dedup();
    assert_eq!(texts.len(), all, "{texts:?}");
    // The process has one thread that is always there: nothing of it is missing between files.
    let mut times: Vec<u64> = recorded.samples.iter().map(|sample| sample.time.0).collect();
    times.sort_unstable();
    let gaps = times.windows(2).map(|pair| (pair[1] - pair[0]) * 1000 / recorded.header.clock_frequency);
    assert!(gaps.max() < Some(500), "a gap in {name}");
    Inject::run(&folder, &["stop", "--pid", &pid]).expect(0);
    inject.finish().expect(0);
    assert_eq!(rings(), [], "the ring is deleted");
}

#[test]
fn ring_of_a_killed_inject_stays_until_the_next_start() {
    let folder = Folder::new("flight-killed-inject");
    let mut busy = Program::busy(&folder, 0);
    let pid = busy.pid();
    let inject = fly(&folder, &pid, &["4s"]);
    wait_for_age(&folder, &pid, 3_000);
    // SIGKILL. Without its guard the agent ends the recording.
    drop(inject);
    let sizes = |ring: &[PathBuf]| -> Vec<u64> {
        ring.iter().map(|file| file.metadata().map_or(0, |metadata| metadata.len())).collect()
    };
    let end = || {
        let [(_, ring)] = &rings()[..] else { panic!("{:?}", rings()) };
        // The last one is empty if inject had made it and the agent had not begun it.
        let begun = ring.len() - usize::from(sizes(ring).last() == Some(&0));
        let last = Recorded::try_open(ring[..begun].last()?)?;
        let is_end = last.complete && last.end_reason() == Some(EndReason::GuardGone as u64);
        is_end.then(|| (ring.clone(), begun))
    };
    let show = || format!("{:?}", rings().iter().map(|(_, ring)| sizes(ring)).collect::<Vec<_>>());
    let (gone, begun) = wine::wait_for_or_show("the end of the recording", end, show);
    for file in &gone[..begun] {
        let name = file.to_str().expect("UTF-8");
        let verify = stk::run(folder.path(), &["verify", name]);
        assert_eq!(verify.code, Some(0), "{name}: {}{}", verify.stdout, verify.stderr);
    }
    assert!(busy.is_running(), "{}", busy.output());
    let inject = fly(&folder, &pid, &["4s"]);
    let [(_, ring)] = &rings()[..] else { panic!("{:?}", rings()) };
    assert!(ring.iter().all(|file| !gone.contains(file)), "{ring:?}");
    inject.interrupt();
    inject.finish().expect(130).says("nothing was written");
    assert_eq!(rings(), [], "the ring is deleted");
}

#[test]
fn a_mark_of_the_program_writes_a_trace() {
    let folder = Folder::new("flight-mark");
    let program = wine::compiled(env!("CARGO_TARGET_TMPDIR"), "marker");
    let go = folder.file("go");
    let marker = Program::ready(&folder, folder.path(), &program, &[&wine::windows_path(&go)]);
    let inject = fly(&folder, &marker.pid(), &["30s"]);
    assert_eq!(files(&folder), [""; 0]);
    std::fs::write(&go, "").expect("writable");
    wine::wait_for("the mark's trace", || {
        assert!(!marker.output().contains("marked 1"), "no mark was left: {}", marker.output());
        let recorded = Recorded::try_open(&folder.file("f-1.stk"))?;
        recorded.complete.then_some(())
    });
    let events = stk::run(folder.path(), &["events", "f-1.stk"]);
    assert!(events.stdout.contains("the moment"), "{}{}", events.stdout, events.stderr);
    sound(&folder, "f-1.stk");
    // A second mark within the time of a trace waits for the next one: the end's.
    std::fs::write(&go, "").expect("writable");
    wine::wait_for("the second mark", || (marker.output().matches("marked 0").count() == 2).then_some(()));
    assert_eq!(files(&folder), ["f-1.stk"]);
    inject.interrupt();
    inject.finish().expect(130).says("f-2.stk");
}

/// A program that captures itself on request, and the inject that records it.
struct Capturing<'a> {
    folder: &'a Folder,
    inject: PathBuf,
    program: Program,
}

impl Capturing<'_> {
    /// Starts a recording and waits until a block of samples is in it.
    fn fly(&self, options: &[&str]) -> Inject {
        let pid = self.program.pid();
        let line = [&["--pid", &pid, "-o", "f.stk", "--flight", "30s"], options].concat();
        let mut inject = Inject::start_exe(&self.inject, self.folder, self.folder.path(), &line);
        inject.wait_until_recording();
        self.wait_for_age(3_000);
        inject
    }

    /// Waits until the recording is so old.
    fn wait_for_age(&self, ms: u64) {
        wine::wait_for("some seconds", || {
            let status = Inject::status_by(&self.inject, self.folder, &self.program.pid());
            (status["rotation"]["elapsed_ms"].as_u64()? >= ms).then_some(())
        });
    }

    /// Has the program capture itself for the `times`-th time.
    #[track_caller]
    fn capture(&self, times: usize) {
        std::fs::write(self.folder.file("go"), "").expect("writable");
        wine::wait_for("the capture", || {
            (self.program.output().matches("captured ").count() == times).then_some(())
        });
        assert_eq!(self.program.output().matches("captured 0\n").count(), times);
    }

    fn stop(&self) {
        Inject::run_exe(&self.inject, self.folder, &["stop", "--pid", &self.program.pid()]).expect(0);
    }
}

#[track_caller]
fn captures_write_their_trace_with_the_trigger_only(name: &str, program: &Path, inject: PathBuf) {
    let folder = &Folder::new(name);
    let go = wine::windows_path(&folder.file("go"));
    let program = Program::ready(folder, folder.path(), program, &[&go, "77"]);
    let capturing = Capturing { folder, inject, program };

    // Another trigger does not write captures, which are in the ring anyway.
    let inject = capturing.fly(&["--trigger", "module:none.dll"]);
    capturing.capture(1);
    capturing.wait_for_age(8_000);
    assert_eq!(files(folder), [""; 0], "a capture wrote a file without --trigger api");
    capturing.stop();
    inject.finish().expect(0).says("nothing was written");

    let inject = capturing.fly(&["--trigger", "api"]);
    assert_eq!(files(folder), [""; 0], "a file before the capture");
    capturing.capture(2);
    wine::wait_for("the capture's trace", || {
        Recorded::try_open(&folder.file("f-1.stk"))?.complete.then_some(())
    });
    let recorded = sound(folder, "f-1.stk");
    assert!(recorded.end_detail().contains("from the ring"), "{}", recorded.end_detail());
    let captures: Vec<_> = recorded.samples.iter().filter(|sample| sample.tag == Some(77)).collect();
    let [capture] = captures[..] else { panic!("{} captures", captures.len()) };
    // The seconds before it are what the user wanted.
    let first = recorded.samples.iter().map(|sample| sample.time.0).min().expect("samples");
    assert!(first + recorded.header.clock_frequency < capture.time.0, "less than a second before it");
    let listed = stk::json(folder.path(), &["events", "f-1.stk", "--kind", "mark", "--json"]);
    let marks = listed["traces"][0]["events"].as_array().expect("a list");
    let texts: Vec<&str> = marks.iter().filter_map(|mark| mark["text"].as_str()).collect();
    assert_eq!(texts, ["trigger api: tag 77"]);
    let shown = stk::run(folder.path(), &["dump", "f-1.stk", "--tag", "77"]).stdout;
    assert!(shown.contains("marker") && !shown.contains("agent"), "{shown}");

    // A capture within the time of the first file waits for the next one: here the end's.
    capturing.capture(3);
    assert_eq!(files(folder), ["f-1.stk"]);
    capturing.stop();
    inject.finish().expect(0).says("f-2.stk");
    let tags = sound(folder, "f-2.stk").samples.iter().filter(|sample| sample.tag == Some(77)).count();
    assert_eq!(tags, 2, "both are within the last 30 s");
}

#[test]
fn captures_of_the_program_write_a_trace_with_the_trigger_api() {
    let program = wine::compiled(env!("CARGO_TARGET_TMPDIR"), "marker");
    let inject = wine::path("STK_WINDOWS_BIN").join("inject.exe");
    captures_write_their_trace_with_the_trigger_only("flight-api", &program, inject);
}

#[test]
fn captures_of_a_32_bit_program_write_a_trace_with_the_trigger_api() {
    let program = wine::compiled_x86(env!("CARGO_TARGET_TMPDIR"), "marker");
    let inject = wine::path("STK_WINDOWS32_BIN").join("inject32.exe");
    captures_write_their_trace_with_the_trigger_only("flight-api32", &program, inject);
}

#[test]
fn snap_of_a_file_recording_and_a_missing_folder_are_refused() {
    let folder = Folder::new("flight-refused");
    let busy = Program::busy(&folder, 0);
    let pid = busy.pid();
    let missing = ["--pid", &pid, "--flight", "5s", "-o", "none/f.stk"];
    Inject::run(&folder, &missing).expect(1).says("no such folder");
    let mut inject = Inject::start(&folder, &["--pid", &pid, "-o", "file.stk"]);
    inject.wait_until_recording();
    Inject::run(&folder, &["snap", "--pid", &pid]).expect(1).says("--flight");
    inject.interrupt();
    inject.finish().expect(130);
}

/// C++'s exceptions, which raises.exe raises.
const CPP: u64 = 0xe06d_7363;

#[test]
fn an_exception_writes_the_seconds_before_it_and_its_own_stack() {
    let folder = Folder::new("flight-exception");
    let exe = wine::path("STK_ENDS_DIR").join("raises.exe");
    let raises = Program::ready(&folder, folder.path(), &exe, &["throw", "go"]);
    let pid = raises.pid();
    let options = ["--pid", &pid, "-o", "f.stk", "--flight", "30s", "--trigger", "exception"];
    let mut inject = Inject::start(&folder, &options);
    inject.wait_until_recording();
    wait_for_age(&folder, &pid, 5_000);
    assert_eq!(files(&folder), [""; 0]);
    std::fs::write(folder.file("go"), "").expect("writable");
    wine::wait_for("the exception's trace", || {
        Recorded::try_open(&folder.file("f-1.stk"))?.complete.then_some(())
    });
    assert!(raises.output().contains("handled 3\n"), "{}", raises.output());
    let recorded = sound(&folder, "f-1.stk");
    assert!(recorded.end_detail().contains("from the ring"), "{}", recorded.end_detail());

    // The exceptions, and what each thread that raised one captured of itself.
    let listed = stk::json(folder.path(), &["events", "f-1.stk", "--kind", "exception", "--json"]);
    let events = listed["traces"][0]["events"].as_array().expect("a list").clone();
    assert_eq!(events.len(), 3, "{events:?}");
    let captures: Vec<_> = recorded.samples.iter().filter(|sample| sample.tag == Some(CPP)).collect();
    assert_eq!(captures.len(), 3);
    assert!(captures.iter().all(|capture| recorded.threads[&capture.thread].name == "raiser"));
    let number = events[0]["number"].to_string();
    let shown = stk::run(folder.path(), &["dump", "f-1.stk", "--event", &number]).stdout;
    assert!(shown.contains("RaiseException") && shown.contains("BaseThreadInitThunk"), "{shown}");

    // The thread as it was before: it slept, and looked for the file between.
    let raised_ms = events[0]["time_ns"].as_u64().expect("a time") / 1_000_000;
    for seconds_before in 1..=3 {
        let at = format!("{}ms", raised_ms.checked_sub(1000 * seconds_before).expect("seconds before it"));
        let shown = stk::run(folder.path(), &["dump", "f-1.stk", "--thread", "raiser", "--at", &at]);
        assert!(
            ["Sleep", "GetFileAttributes"].iter().any(|waits| shown.stdout.contains(waits))
                && !shown.stdout.contains("RaiseException"),
            "{at}: {shown:?}"
        );
    }
    inject.interrupt();
    inject.finish().expect(130);
    assert_eq!(files(&folder), ["f-1.stk"]);
}
