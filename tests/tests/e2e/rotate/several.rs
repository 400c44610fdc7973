//! Rings of several processes, of their children and of 32-bit ones; what `inject status` says of a
//! ring, and which thread is the main one in all of its files.

use super::{ended, files, merged, ring, wait_for_file};
use serde_json::Value;
use stk_schema::Arch;
use stk_schema::event::EndReason;
use stk_tests::recorded::Recorded;
use stk_tests::stk;
use stk_tests::wine::{self, Folder, Inject, Program};

/// The files of a ring whose names begin so, in order.
fn files_of(folder: &Folder, begins: &str) -> Vec<String> {
    files(folder.path()).into_iter().filter(|name| name.starts_with(begins)).collect()
}

/// What `inject status` says of all recordings that are in several files.
fn rotating(folder: &Folder) -> Vec<Value> {
    let reported = Inject::run(folder, &["status", "--json"]);
    let reported: Value = serde_json::from_str(&reported.expect(0).stdout).expect("JSON");
    let all = reported["recordings"].as_array().expect("a list").clone();
    all.into_iter().filter(|row| row["rotation"].is_object()).collect()
}

#[test]
fn several_processes_have_a_ring_each() {
    let (folder, other) = (Folder::new("rotate-several"), Folder::new("rotate-several-2"));
    let processes = [Program::busy(&folder, 0), Program::busy(&other, 0)];
    let [one, two] = processes.each_ref().map(Program::pid);
    let line = ["--pid", &one, "--pid", &two, "-o", "r-%p.stk", "--rotate", "1s", "--keep", "3"];
    let inject = Inject::start(&folder, &line);
    for pid in [&one, &two] {
        wait_for_file(folder.path(), &format!("r-{pid}.0005.stk"));
    }
    let reported = rotating(&folder);
    assert_eq!(reported.len(), 2, "{reported:?}");
    assert!(reported.iter().all(|row| row["rotation"]["index"].as_u64() >= Some(4)), "{reported:?}");
    Inject::run(&folder, &["stop", "--all"]).expect(0).says("; all files: ");
    ended(inject.finish(), 0, "2 of 2 processes recorded");
    let ids = [one, two].map(|pid| {
        let names = files_of(&folder, &format!("r-{pid}."));
        assert_eq!(names.len(), 3, "{names:?}");
        merged(&folder, &names);
        let files = ring(&folder, &names);
        assert!(files.iter().all(|file| file.recorded.header.pid.to_string() == pid));
        files[0].place().expect("its place in the recording").0.to_owned()
    });
    assert_ne!(ids[0], ids[1], "two recordings with one id");
}

#[test]
fn a_child_has_a_ring_of_its_own() {
    let folder = Folder::new("rotate-children");
    let busy = wine::path("STK_BUSY_DIR").join("busy.exe");
    let shell = r"C:\windows\system32\cmd.exe";
    let line = ["--children", "-o", "%n-%p.stk", "--rotate", "1s", "--", shell, "/c"];
    let inject = Inject::start(&folder, &[&line[..], &[&wine::windows_path(&busy), "90"]].concat());
    let child = wine::wait_for("the child's fourth file", || {
        let reported = rotating(&folder);
        let row = reported.iter().find(|row| row["name"] == "busy.exe")?;
        (row["rotation"]["index"].as_u64()? >= 4).then(|| row["pid"].to_string())
    });
    Inject::run(&folder, &["stop", "--all"]).expect(0);
    // inject waits for the program that it launched.
    wine::terminate(&child, &folder.file("busy"));
    inject.finish().says("1 of 1 child processes recorded");
    let (shell, busy) = (files_of(&folder, "cmd-"), files_of(&folder, "busy-"));
    assert!(busy.len() >= 4 && shell.len() >= 3, "{shell:?} {busy:?}");
    merged(&folder, &busy);
    let parents = ring(&folder, &shell);
    let child = &ring(&folder, &busy)[0].recorded;
    let parent = child.metadata.get("process.parent_pid").map(String::as_str);
    assert_eq!(parent, Some(parents[0].recorded.header.pid.to_string().as_str()));
}

#[test]
fn a_32_bit_process_has_a_ring() {
    let folder = Folder::new("rotate-32");
    let home = wine::path("STK_BUSY32_DIR");
    let busy = Program::ready(&folder, &home, &home.join("busy.exe"), &["0"]);
    let pid = busy.pid();
    let inject = wine::path("STK_WINDOWS32_BIN").join("inject32.exe");
    let line = ["--pid", &pid, "-o", "a.stk", "--rotate", "1s", "--keep", "3"];
    let recording = Inject::start_exe(&inject, &folder, folder.path(), &line);
    wait_for_file(folder.path(), "a.0005.stk");
    Inject::run_exe(&inject, &folder, &["mark", "--pid", &pid, "half"]).expect(0);
    let reported = Inject::status_by(&inject, &folder, &pid);
    assert!(reported["rotation"]["index"].as_u64() >= Some(5), "{reported}");
    let stopped = Inject::run_exe(&inject, &folder, &["stop", "--pid", &pid, "--unload"]);
    stopped.expect(0).says("stopped busy.exe").says("the agent has left busy.exe");
    ended(recording.finish(), 0, "stopped from elsewhere");
    let names = files(folder.path());
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(ring(&folder, &names).iter().all(|file| file.recorded.header.arch == Arch::X86));
    merged(&folder, &names);
}

/// `N samples` in a line.
#[track_caller]
fn samples_in(line: &str) -> u64 {
    let number = line.split_once(" samples").and_then(|(before, _)| before.rsplit(' ').next());
    let number = number.and_then(|number| number.replace(',', "").parse().ok());
    number.unwrap_or_else(|| panic!("no samples are reported: {line}"))
}

#[test]
fn the_status_shows_the_present_file_and_the_sum() {
    let folder = Folder::new("rotate-status");
    let busy = Program::busy(&folder, 0);
    let pid = busy.pid();
    // Numbers continue behind one that is there.
    std::fs::write(folder.file("a.0007.stk"), "not a trace").expect("writable");
    let inject = Inject::start(&folder, &["--pid", &pid, "-o", "a.stk", "--rotate", "1s"]);
    let last = if wine::long() { 28 } else { 11 };
    wait_for_file(folder.path(), &format!("a.{last:04}.stk"));
    let row = Inject::status(&folder, &pid);
    let (all, number) = (&row["rotation"], |value: &Value| value.as_u64().expect("a number"));
    assert!(number(&all["index"]) >= last - 8, "{row}");
    assert_eq!(number(&all["number"]), number(&all["index"]) + 7);
    for field in ["samples", "bytes", "elapsed_ms"] {
        assert!(number(&all[field]) > number(&row[field]), "{field} of all are those of one: {row}");
    }
    // Of each file but the present one, this many milliseconds at least.
    assert!(number(&all["elapsed_ms"]) >= 1000 * (number(&all["index"]) - 1), "{row}");
    let text = Inject::run(&folder, &["status", "--pid", &pid]).expect(0).stdout.clone();
    assert!(text.contains(" in its name), ") && text.contains("; all files: "), "{text}");

    let stopped = Inject::run(&folder, &["stop", "--pid", &pid]);
    let reported = stopped.expect(0).stderr.split_once("; all files: ").expect("all files").1.to_owned();
    let finished = inject.finish();
    finished.expect(0);
    // inject counted the files' own contents, stop what the agent had reported of each.
    let closing = finished.stderr.lines().last().expect("a closing line");
    assert_eq!(samples_in(&reported), samples_in(closing), "{reported}\n{closing}");
    let names: Vec<String> = files(folder.path()).split_off(1);
    let ring = ring(&folder, &names);
    assert!(closing.contains(&format!("{} files: ", ring.len())), "{closing}");
}

#[test]
fn the_main_thread_is_the_same_one_in_all_files_and_no_other_takes_its_place() {
    let folder = Folder::new("rotate-main");
    let home = wine::path("STK_ENDS_DIR");
    let go = folder.file("go");
    let ends = home.join("ends.exe");
    let program = Program::ready(&folder, &home, &ends, &["main_thread", "0", &wine::windows_path(&go)]);
    let pid = program.pid();
    let line = ["--pid", &pid, "-o", "a.stk", "--rotate", "1s", "--threads", "main"];
    let inject = Inject::start(&folder, &line);
    wait_for_file(folder.path(), "a.0003.stk");
    std::fs::write(&go, "").expect("writable");
    wait_for_file(folder.path(), "a.0006.stk");
    Inject::run(&folder, &["stop", "--pid", &pid]).expect(0);
    ended(inject.finish(), 0, "stopped from elsewhere");
    let names = files(folder.path());
    let recordings: Vec<Recorded> =
        names.iter().map(|name| Recorded::open_sound(&folder.file(name))).collect();
    let sampled = |recorded: &Recorded| {
        let threads = recorded.samples.iter().filter_map(|sample| recorded.threads.get(&sample.thread));
        let mut threads: Vec<_> = threads.map(|thread| (thread.tid, thread.created)).collect();
        threads.dedup();
        threads
    };
    let first = sampled(&recordings[0]);
    assert_eq!(first.len(), 1, "{first:?}");
    for (recorded, name) in recordings.iter().zip(&names) {
        let threads = sampled(recorded);
        assert!(threads.is_empty() || threads == first, "{name}: {threads:?}, not {first:?}");
    }
    let last = recordings.last().expect("files");
    assert_eq!(last.samples.len(), 0, "the main thread has ended");
    assert!(last.threads.len() >= 3, "the others work on, and are listed");
    assert_eq!(last.end_reason(), Some(EndReason::Stopped as u64));
    let info = stk::run(folder.path(), &["info", names.last().expect("files")]);
    assert_eq!(info.code, Some(0), "{}", info.stderr);
}
