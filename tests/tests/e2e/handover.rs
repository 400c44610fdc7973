//! The 64-bit inject hands 32-bit programs over to inject32.exe beside it, and inject32.exe hands
//! over 64-bit ones. This needs a machine that runs both widths side by side. tests/lib.sh leaves
//! this file out on the others.

use serde_json::Value;
use stk_schema::Arch;
use stk_tests::recorded::Recorded;
use stk_tests::stk;
use stk_tests::wine::{self, Folder, Inject, Machine, Program};

const UNDISTURBED: &str = "checksum a9a6d267ba599d58";

/// The four programs in one folder, as the release has them.
fn release(folder: &Folder) -> std::path::PathBuf {
    assert!(Machine::current().has_both_widths(), "no 32-bit program runs beside 64-bit ones here");
    let release = folder.file("release");
    std::fs::create_dir_all(&release).expect("ours");
    let (x64, x86) = (wine::path("STK_WINDOWS_BIN"), wine::path("STK_WINDOWS32_BIN"));
    for (from, name) in
        [(&x64, "inject.exe"), (&x64, "agent.dll"), (&x86, "inject32.exe"), (&x86, "agent32.dll")]
    {
        std::fs::copy(from.join(name), release.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    release
}

fn busy32(folder: &Folder, seconds: &str) -> Program {
    let home = wine::path("STK_BUSY32_DIR");
    Program::ready(folder, &home, &home.join("busy.exe"), &[seconds])
}

#[track_caller]
fn sound(folder: &Folder, trace: &str, arch: Arch) {
    let recorded = Recorded::open(&folder.file(trace));
    assert!(recorded.complete && recorded.damage.is_empty(), "{:?}", recorded.damage);
    assert_eq!(recorded.header.arch, arch);
    assert!(!recorded.samples.is_empty());
}

#[test]
fn a_32_bit_process_is_recorded_through_the_64_bit_inject() {
    let folder = Folder::new("handover");
    let inject = release(&folder).join("inject.exe");
    let mut busy = busy32(&folder, "12");
    Inject::run_exe(&inject, &folder, &["--pid", &busy.pid(), "-o", "x86.stk", "-d", "3s"]).expect(0);
    sound(&folder, "x86.stk", Arch::X86);
    busy.ends_saying(UNDISTURBED);
}

#[test]
fn a_32_bit_program_is_launched_through_the_64_bit_inject() {
    let folder = Folder::new("handover-launch");
    let inject = release(&folder).join("inject.exe");
    let busy = wine::windows_path(&wine::path("STK_BUSY32_DIR").join("busy.exe"));
    let finished = Inject::run_exe(&inject, &folder, &["-o", "launched.stk", "--", &busy, "3"]);
    finished.expect(0).says("ended with exit code 0");
    assert!(finished.stdout.contains(UNDISTURBED), "{}", finished.stdout);
    let recorded = Recorded::open(&folder.file("launched.stk"));
    assert!(recorded.damage.is_empty() && recorded.header.arch == Arch::X86, "{:?}", recorded.damage);
}

#[test]
fn a_recording_of_a_32_bit_process_is_listed_and_stopped_by_the_64_bit_inject() {
    let folder = Folder::new("handover-stop");
    let inject = release(&folder).join("inject.exe");
    let busy = busy32(&folder, "0");
    let mut recording =
        Inject::start_exe(&inject, &folder, folder.path(), &["--pid", &busy.pid(), "-o", "stopped.stk"]);
    recording.wait_until_recording();
    // On a loaded machine the first sample may come seconds later.
    wine::wait_for("a sample in the trace", || {
        Recorded::try_open(&folder.file("stopped.stk")).filter(|recorded| !recorded.samples.is_empty())
    });
    let line = Inject::listed_by(&inject, &folder, &busy.pid());
    assert_eq!(line["arch"], "x86", "{line}");
    assert_eq!(
        (&line["recording"], &line["recordable"]),
        (&Value::Bool(true), &Value::Bool(false)),
        "{line}"
    );
    Inject::run_exe(&inject, &folder, &["stop", "--pid", &busy.pid()]).expect(0).says("stopped busy.exe");
    recording.finish().expect(0).says("stopped from elsewhere");
    sound(&folder, "stopped.stk", Arch::X86);
}

#[test]
fn a_recording_of_a_32_bit_process_is_marked_and_paused_by_the_64_bit_inject() {
    let folder = Folder::new("handover-control");
    let inject = release(&folder).join("inject.exe");
    let busy = busy32(&folder, "0");
    let pid = busy.pid();
    let mut recording =
        Inject::start_exe(&inject, &folder, folder.path(), &["--pid", &pid, "-o", "control.stk"]);
    recording.wait_until_recording();
    let samples = || Inject::status_by(&inject, &folder, &pid)["samples"].as_u64();
    wine::wait_for("samples", || samples().filter(|&all| all > 0));
    let ask = |line: &[&str], says: &str| {
        Inject::run_exe(&inject, &folder, line).expect(0).says(says);
    };
    ask(&["mark", "--pid", &pid, "before"], "marked busy.exe");
    ask(&["pause", "--pid", &pid], "paused the recording of busy.exe");
    let at_pause = Inject::status_by(&inject, &folder, &pid);
    assert_eq!(at_pause["paused"], true, "{at_pause}");
    ask(&["mark", "--pid", &pid, "within"], "marked busy.exe");
    assert_eq!(samples(), at_pause["samples"].as_u64(), "a paused recording took samples");
    ask(&["resume", "--pid", &pid], "continues");
    wine::wait_for("samples after the pause", || {
        samples().filter(|&all| Some(all) > at_pause["samples"].as_u64())
    });
    ask(&["stop", "--pid", &pid], "stopped busy.exe");
    recording.finish().expect(0);
    sound(&folder, "control.stk", Arch::X86);
    let info = stk::json(folder.path(), &["info", "control.stk", "--json"]);
    assert_eq!(info["traces"][0]["pauses"].as_array().map(Vec::len), Some(1), "{info}");
    let listed = stk::json(folder.path(), &["events", "control.stk", "--kind", "mark", "--json"]);
    let marks = listed["traces"][0]["events"].as_array().expect("a list");
    let texts: Vec<&str> = marks.iter().filter_map(|mark| mark["text"].as_str()).collect();
    assert_eq!(texts, ["before", "within"]);
}

#[test]
fn flight_of_a_32_bit_process_written_by_the_64_bit_inject() {
    let folder = Folder::new("handover-snap");
    let inject = release(&folder).join("inject.exe");
    let busy = busy32(&folder, "0");
    let pid = busy.pid();
    let line = ["--pid", &pid, "-o", "f.stk", "--flight", "30s"];
    let mut recording = Inject::start_exe(&inject, &folder, folder.path(), &line);
    recording.wait_until_recording();
    wine::wait_for("samples", || {
        Inject::status_by(&inject, &folder, &pid)["samples"].as_u64().filter(|&all| all >= 200)
    });
    let snapped = Inject::run_exe(&inject, &folder, &["snap", "--pid", &pid]);
    assert!(snapped.expect(0).stdout.contains("f-1.stk"), "{snapped:?}");
    sound(&folder, "f-1.stk", Arch::X86);
    Inject::run_exe(&inject, &folder, &["stop", "--pid", &pid]).expect(0);
    recording.finish().expect(0);
}

#[test]
fn a_ring_of_files_of_a_32_bit_process_is_begun_watched_and_ended_by_the_64_bit_inject() {
    let folder = Folder::new("handover-rotate");
    let inject = release(&folder).join("inject.exe");
    let busy = busy32(&folder, "0");
    let pid = busy.pid();
    let line = ["--pid", &pid, "-o", "a.stk", "--rotate", "1s", "--keep", "3"];
    let recording = Inject::start_exe(&inject, &folder, folder.path(), &line);
    let reported = wine::wait_for("the fifth file", || {
        folder.file("a.0005.stk").exists().then(|| Inject::status_by(&inject, &folder, &pid))
    });
    assert!(reported["rotation"]["index"].as_u64() >= Some(4), "{reported}");
    assert!(reported["rotation"]["samples"].as_u64() > reported["samples"].as_u64(), "{reported}");
    Inject::run_exe(&inject, &folder, &["stop", "--pid", &pid]).expect(0).says("; all files: ");
    recording.finish().expect(0).says("stopped from elsewhere");
    let kept = |number: u32| folder.file(&format!("a.{number:04}.stk"));
    let first = (1..100).find(|&number| kept(number).exists()).expect("files");
    assert!(first >= 3 && !kept(first + 3).exists(), "{first}");
    for number in first..first + 3 {
        let recorded = Recorded::open_sound(&kept(number));
        assert_eq!(recorded.header.arch, Arch::X86);
    }
}

#[test]
fn a_64_bit_process_is_recorded_through_the_32_bit_inject() {
    let folder = Folder::new("handover-back");
    let inject = release(&folder).join("inject32.exe");
    let mut busy = Program::busy(&folder, 12);
    Inject::run_exe(&inject, &folder, &["--pid", &busy.pid(), "-o", "x64.stk", "-d", "3s"]).expect(0);
    sound(&folder, "x64.stk", Arch::X64);
    busy.ends_saying(UNDISTURBED);
}

#[test]
fn without_inject32_a_32_bit_process_is_refused_with_the_way_out() {
    let folder = Folder::new("handover-alone");
    let release = release(&folder);
    std::fs::remove_file(release.join("inject32.exe")).expect("a copy of ours");
    let busy = busy32(&folder, "0");
    let finished =
        Inject::run_exe(&release.join("inject.exe"), &folder, &["--pid", &busy.pid(), "-o", "x.stk"]);
    finished.refuses(3, "is x86, but this inject is x64").says("inject32.exe");
    assert!(!folder.file("x.stk").exists(), "a refused recording left a file");
}

#[test]
fn a_missed_child_is_a_failure_unless_it_is_allowed() {
    let folder = Folder::new("children-missed");
    let release = release(&folder);
    // Without it the child, a 32-bit program, cannot be recorded.
    std::fs::remove_file(release.join("inject32.exe")).expect("a copy of ours");
    let child = wine::windows_path(&wine::path("STK_BUSY32_DIR").join("busy.exe"));
    let launch = |more: &[&str]| {
        let line = ["-o", "%n-%p.stk", "--", r"C:\windows\system32\cmd.exe", "/c", &child, "2"];
        Inject::run_exe(&release.join("inject.exe"), &folder, &[&["--children"], more, &line].concat())
    };
    launch(&[]).expect(125).says("0 of 1 child processes recorded").says("--allow-missed-children");
    launch(&["--allow-missed-children"]).expect(0).says("0 of 1 child processes recorded");
}
