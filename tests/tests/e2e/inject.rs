//! inject.exe's own behaviour: refusals, the ends of recordings, ps, stop, launch mode.

use serde_json::Value;
use std::path::{Path, PathBuf};
use stk_schema::event::EndReason;
use stk_tests::recorded::Recorded;
use stk_tests::schema;
use stk_tests::wine::{self, Finished, Folder, Inject, Program};

/// The line of `inject ps --json` for this process.
fn listed(folder: &Folder, pid: &str) -> Value {
    Inject::listed_by(&wine::path("STK_WINDOWS_BIN").join("inject.exe"), folder, pid)
}

fn end_reason(folder: &Folder, trace: &str) -> u64 {
    let recorded = Recorded::open(&folder.file(trace));
    assert!(recorded.complete && recorded.damage.is_empty(), "{trace}: {:?}", recorded.damage);
    recorded.end.expect("a complete trace has an END").0
}

#[test]
fn impossible_recordings_are_refused_in_one_sentence_and_leave_no_file() {
    let folder = Folder::new("refused");
    let busy = Program::busy(&folder, 0);
    let pid = busy.pid();
    let with = |arguments: &[&str]| -> Finished {
        Inject::run(&folder, &[&["--pid", &pid, "-o", "x.stk", "-d", "200ms"], arguments].concat())
    };

    let run = |arguments: &[&str]| Inject::run(&folder, &[arguments, &["-o", "x.stk", "-d", "1"]].concat());
    run(&["--pid", "999999"]).refuses(3, "no process with pid 999999");
    // Windows ignores a pid's two lowest bits when it opens a process. inject must not open another
    // process for this reason.
    let neighbour = (pid.parse::<u32>().expect("a number") + 1).to_string();
    run(&["--pid", &neighbour]).refuses(3, &format!("no process with pid {neighbour}"));
    run(&["--name", "nobody.exe"]).refuses(3, "nobody.exe");

    with(&[&wine::windows_path(&wine::path("STK_DLL32"))]).refuses(3, "is x64, but dll32.dll is x86");
    let plugin = wine::path("STK_BUSY_DIR").join("plugin_ä.dll");
    with(&[&wine::windows_path(&plugin)]).refuses(1, "stk_agent_start").says("plugin_ä.dll");
    with(&["missing.dll"]).refuses(1, "missing.dll cannot be read");
    std::fs::write(folder.file("text.dll"), "no DLL at all").expect("writable");
    with(&["text.dll"]).refuses(1, "text.dll is no PE image");
    with(&[&wine::windows_path(&wine::path("STK_BUSY_DIR").join("busy.exe"))])
        .refuses(1, "busy.exe is a program");
    assert!(!folder.file("x.stk").exists(), "a refused recording left a file");

    Inject::run(&folder, &["--pid", &pid, "-o", "nowhere/x.stk"]).refuses(1, "nowhere");
    Inject::run(&folder, &["--pid", &pid, "-o", "."]).refuses(2, "is a folder");
    Inject::run(&folder, &["stop", "--pid", &pid]).refuses(1, "not being recorded");
    Inject::run(&folder, &["--pid", "x"]).expect(2);
    Inject::run(&folder, &[]).expect(2);

    // None of that has changed the process, so it can still be recorded.
    let line = listed(&folder, &pid);
    assert_eq!(
        (&line["recordable"], &line["recording"]),
        (&Value::Bool(true), &Value::Bool(false)),
        "{line}"
    );
    with(&[]).expect(0);
}

#[test]
fn a_read_only_output_is_refused_and_keeps_its_bytes() {
    let folder = Folder::new("read-only");
    let busy = Program::busy(&folder, 0);
    let file = folder.file("kept.stk");
    std::fs::write(&file, "somebody's work").expect("writable");
    let mut permissions = std::fs::metadata(&file).expect("there").permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(&file, permissions).expect("ours");
    Inject::run(&folder, &["--pid", &busy.pid(), "-o", "kept.stk", "-d", "1", "--force"])
        .refuses(1, "read-only");
    assert_eq!(std::fs::read(&file).expect("there"), b"somebody's work");
}

#[test]
fn an_existing_file_is_replaced_only_by_force_and_only_if_it_has_one_name() {
    let folder = Folder::new("force");
    let busy = Program::busy(&folder, 0);
    let run = |arguments: &[&str]| {
        Inject::run(&folder, &[&["--pid", &busy.pid(), "-o", "kept.stk", "-d", "300ms"], arguments].concat())
    };
    let (kept, other) = (folder.file("kept.stk"), folder.file("other"));
    let work = "somebody's work".repeat(1_000_000);
    std::fs::write(&kept, &work).expect("writable");
    run(&[]).refuses(1, "use --force");
    std::fs::hard_link(&kept, &other).expect("a second name");
    run(&["--force"]).refuses(1, "hard link");
    assert_eq!(std::fs::read_to_string(&other).expect("there"), work);
    std::fs::remove_file(&other).expect("ours");
    assert_eq!(std::fs::read_to_string(&kept).expect("there"), work);
    run(&["--force"]).expect(0);
    let recorded = Recorded::open(&kept);
    assert!(recorded.complete && recorded.damage.is_empty(), "{:?}", recorded.damage);
    assert_eq!(end_reason(&folder, "kept.stk"), EndReason::Duration as u64);
}

#[test]
fn force_renames_a_trace_and_back_if_nothing_begins() {
    let folder = Folder::new("set-aside");
    let busy = Program::busy(&folder, 0);
    let pid = busy.pid();
    let run = |trace: &str, arguments: &[&str]| {
        Inject::run(&folder, &[&["--pid", &pid, "-o", trace, "-d", "300ms", "--force"], arguments].concat())
    };
    let bytes = |name: &str| std::fs::read(folder.file(name)).expect(name);
    run("a.stk", &[]).expect(0);
    let first = bytes("a.stk");
    run("a.stk", &[]).expect(0).says("the trace that was there is now").says("a.stk.old");
    let second = bytes("a.stk");
    assert!(bytes("a.stk.old") == first && second != first);
    run("a.stk", &[]).expect(0).says("a.stk.old.2");
    assert!(bytes("a.stk.old") == first && bytes("a.stk.old.2") == second && bytes("a.stk") != second);

    // What begins as a trace is one, whatever its name is and wherever it ends.
    std::fs::write(folder.file("cut.txt"), &first[..16]).expect("writable");
    run("cut.txt", &[]).expect(0);
    assert_eq!(bytes("cut.txt.old"), first[..16]);

    // A recording that does not begin leaves everything as it was.
    let third = bytes("a.stk");
    let slow = wine::windows_path(&wine::path("STK_SLOW_DLL"));
    // Another program, which has no agent yet.
    let other = Program::busy(&Folder::new("set-aside-other"), 0);
    let line = ["--pid", &other.pid(), "-o", "a.stk", "--force", &slow];
    Inject::run(&folder, &line).refuses(3, "could not load");
    assert!(bytes("a.stk") == third && !folder.file("a.stk.old.3").exists());

    // A report is no recording: nothing is renamed for it.
    Inject::run(&folder, &["doctor", "-o", "a.stk", "--force"]).refuses(1, "is a trace");
    assert!(bytes("a.stk") == third);
}

/// Wine shows programs no links to files, so with `--force` it follows this one; Windows opens the
/// link itself, which inject refuses (unit tests of `trust`).
#[cfg(unix)]
#[test]
fn a_link_in_place_of_the_trace_is_refused_and_nothing_appears_behind_it() {
    let folder = Folder::new("link");
    let busy = Program::busy(&folder, 0);
    let (kept, missing) = (folder.file("kept"), folder.file("missing"));
    std::fs::write(&kept, "somebody's work").expect("writable");
    for (name, target) in [("a.stk", &kept), ("b.stk", &missing)] {
        std::os::unix::fs::symlink(target, folder.file(name)).expect("writable");
        Inject::run(&folder, &["--pid", &busy.pid(), "-o", name, "-d", "300ms"]).refuses(1, name);
        assert!(folder.file(name).is_symlink(), "{name}");
    }
    assert_eq!(std::fs::read_to_string(&kept).expect("there"), "somebody's work");
    assert!(!missing.exists());
}

/// Wine shows a file's access list as its mode: administrators as the group, everybody else as
/// others.
#[cfg(unix)]
#[test]
fn a_new_trace_is_for_its_user_and_administrators_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = Folder::new("private");
    let busy = Program::busy(&folder, 0);
    Inject::record(&folder, &["--pid", &busy.pid(), "-o", "private.stk", "-d", "300ms"]);
    let mode = std::fs::metadata(folder.file("private.stk")).expect("there").permissions().mode();
    assert_eq!(mode & 0o007, 0, "{mode:o}");
}

#[test]
fn command_lines_are_left_out_on_request() {
    let folder = Folder::new("command-lines");
    let busy = wine::windows_path(&wine::path("STK_BUSY_DIR").join("busy.exe"));
    let metadata = |trace: &str, arguments: &[&str]| {
        let line = [arguments, &["-o", trace, "--", &busy, "2"]].concat();
        Inject::run(&folder, &line).expect(0);
        let recorded = Recorded::open(&folder.file(trace));
        assert!(recorded.complete && recorded.damage.is_empty(), "{:?}", recorded.damage);
        recorded.metadata.into_keys().collect::<Vec<_>>()
    };
    let has = |keys: &[String], wanted: &str| keys.iter().any(|key| key == wanted);
    let with = metadata("with.stk", &[]);
    assert!(has(&with, "inject.command_line") && has(&with, "command_line"), "{with:?}");
    let without = metadata("without.stk", &["--no-command-line"]);
    assert!(!without.iter().any(|key| key.contains("command_line")), "{without:?}");
    assert!(has(&without, "inject.version") && has(&without, "host"), "{without:?}");
}

#[test]
fn several_processes_get_a_trace_each_with_the_labels_and_the_host() {
    let (folder, other) = (Folder::new("several"), Folder::new("several-other"));
    let (one, two) = (Program::busy(&folder, 0), Program::busy(&other, 0));
    let both = ["--pid", &one.pid(), "--pid", &two.pid(), "-d", "1s"];
    Inject::run(&folder, &[&both[..], &["-o", "x.stk"]].concat()).refuses(2, "%p");
    let more = ["-o", "%p-%h.stk", "--label", "build=12", "--label", "lab=west"];
    Inject::run(&folder, &[&both[..], &more].concat()).expect(0).says("2 of 2 processes recorded");
    for process in [&one, &two] {
        let begins = format!("{}-", process.pid());
        let files = std::fs::read_dir(folder.path()).expect("a folder").flatten();
        let names: Vec<String> = files
            .map(|file| file.file_name().to_string_lossy().into_owned())
            .filter(|name| name.starts_with(&begins) && name.ends_with(".stk"))
            .collect();
        let [name] = &names[..] else { panic!("a trace of {begins}: {names:?}") };
        assert!(!name.contains('%') && name.len() > begins.len() + ".stk".len(), "{name}");
        let recorded = Recorded::open_sound(&folder.file(name));
        let fact = |key: &str| recorded.metadata.get(key).map(String::as_str);
        assert_eq!((fact("label.build"), fact("label.lab")), (Some("12"), Some("west")));
        assert!(fact("process.parent_pid").is_some_and(|pid| pid.parse::<u32>().is_ok()));
        assert!(fact("inject.process_age_ms").is_some_and(|ms| ms.parse::<u64>().is_ok()));
    }
}

/// The version in a program's file, found by the signature of VS_FIXEDFILEINFO and the version of
/// that struct: code that reads versions has the signature, too.
fn version_of(file: &Path) -> String {
    let bytes = std::fs::read(file).expect("a program");
    let start = 0x0001_0000_feef_04bd_u64.to_le_bytes();
    let at = bytes.windows(8).position(|eight| eight == start).expect("a version");
    let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    // dwFileVersionMS and dwFileVersionLS, each the lower half first.
    [at + 10, at + 8, at + 14, at + 12].map(|at| half(at).to_string()).join(".")
}

/// What SPEC.md says of `machine.id`.
#[cfg(not(windows))]
fn machine_id_of(guid: &str) -> String {
    stk_tests::sha256::sha256(format!("stk machine.id {guid}").as_bytes())[..32].to_owned()
}

#[test]
fn a_trace_says_on_which_machine_in_which_session_and_of_which_version_it_is() {
    let folder = Folder::new("facts");
    let inject = wine::path("STK_WINDOWS_BIN").join("inject.exe");
    // A program that has a version; on Windows itself tests/fetch.sh has fetched none.
    let (exe, arguments): (PathBuf, &[&str]) = if cfg!(windows) {
        (inject.clone(), &["--version"])
    } else {
        (wine::path("STK_FETCH_DIR").join("node/bin/node.exe"), &["-e", "0"])
    };
    let program = wine::windows_path(&exe);
    // India has no daylight saving time.
    for (zone, minutes) in [("IST-5:30", "330"), ("XYZ3", "-180")] {
        let mut command = wine::command(&inject);
        command.args(["--force", "-o", "facts.stk", "-r", "50", "--", &program]).args(arguments);
        let ran = wine::output(command.env("TZ", zone).current_dir(folder.path()));
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let facts = Recorded::open(&folder.file("facts.stk")).metadata;
        // Windows itself does not look at TZ.
        if cfg!(not(windows)) {
            assert_eq!(facts["tz.offset"], minutes, "{zone}");
        }
        assert_eq!(facts["exe.version"], version_of(&exe));
        assert!(facts["session.id"].parse::<u32>().is_ok(), "{facts:?}");
        let id = &facts["machine.id"];
        assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
        #[cfg(not(windows))]
        {
            let key = r"HKLM\SOFTWARE\Microsoft\Cryptography";
            let mut command = wine::command(Path::new("reg.exe"));
            let said = wine::output(command.args(["query", key, "/v", "MachineGuid"]));
            let said = String::from_utf8_lossy(&said.stdout).into_owned();
            let guid = said.split_whitespace().last().expect("a GUID").to_ascii_lowercase();
            assert!(guid.len() == 36 && *id == machine_id_of(&guid), "{id}: {said}");
        }
    }
}

#[test]
fn a_process_that_is_waited_for_is_recorded_when_it_starts() {
    let folder = Folder::new("wait-for");
    // One that runs already is not meant.
    let _old = Program::busy(&Folder::new("wait-for-old"), 0);
    let mut inject = Inject::start(&folder, &["--wait-for", "b[u]sy", "-o", "%p.stk", "-d", "1s"]);
    inject.wait_until_a_line_begins("waiting for the start of b[u]sy");
    let new = Program::busy(&Folder::new("wait-for-new"), 0);
    inject.finish().expect(0);
    Recorded::open_sound(&folder.file(&format!("{}.stk", new.pid())));
}

#[test]
fn status_shows_a_recording_and_stop_ends_all() {
    let folder = Folder::new("status");
    let busy = Program::busy(&folder, 0);
    let pid = busy.pid();
    Inject::run(&folder, &["status", "--pid", &pid]).refuses(1, "is not being recorded");
    let mut inject = Inject::start(&folder, &["--pid", &pid, "-o", "a.stk"]);
    inject.wait_until_recording();
    let status = wine::wait_for("samples in the status", || {
        let reported = Inject::run(&folder, &["status", "--json"]);
        let reported: Value = serde_json::from_str(&reported.expect(0).stdout).expect("JSON");
        let rules = include_str!("../../../schema/status.schema.json");
        let rules: Value = serde_json::from_str(rules).expect("JSON");
        schema::check(&rules, &reported).expect("as schema/status.schema.json describes it");
        let recordings = reported["recordings"].as_array().expect("a list").clone();
        let own = recordings.into_iter().find(|row| row["pid"].as_u64() == pid.parse().ok())?;
        (own["samples"].as_u64() > Some(0) && own["held"].is_object()).then_some(own)
    });
    assert_eq!(status["name"], "busy.exe");
    assert!(status["held"]["p50_ns"].as_u64() <= status["held"]["max_ns"].as_u64(), "{status}");
    assert!(status["threads"].as_u64() > Some(1) && status["bytes"].is_u64(), "{status}");
    let table = Inject::run(&folder, &["status"]);
    assert!(table.expect(0).stdout.contains(&format!("busy.exe (pid {pid})")), "{}", table.stdout);
    assert!(table.stdout.contains("threads held "), "{}", table.stdout);
    Inject::run(&folder, &["stop", "--all"]).expect(0);
    inject.finish().expect(0);
    assert_eq!(end_reason(&folder, "a.stk"), EndReason::Stopped as u64);
    Inject::run(&folder, &["stop", "--all"]).expect(0).says("no process is being recorded");
}

#[test]
fn a_second_inject_is_refused_while_the_first_records() {
    let folder = Folder::new("second");
    let busy = Program::busy(&folder, 0);
    let mut first = Inject::start(&folder, &["--pid", &busy.pid(), "-o", "first.stk"]);
    first.wait_until_recording();
    assert_eq!(listed(&folder, &busy.pid())["recording"], true);
    Inject::run(&folder, &["--pid", &busy.pid(), "-o", "second.stk"]).refuses(1, "being recorded already");
    assert!(!folder.file("second.stk").exists());
    Inject::run(&folder, &["stop", "--name", "BUSY"]).expect(0).says("stopped busy.exe");
    first.finish().expect(0).says("stopped from elsewhere");
    assert_eq!(end_reason(&folder, "first.stk"), EndReason::Stopped as u64);
}

#[test]
fn ctrl_c_finalises_the_trace() {
    let folder = Folder::new("ctrl-c");
    let busy = Program::busy(&folder, 0);
    let mut inject = Inject::start(&folder, &["--pid", &busy.pid(), "-o", "träce.stk"]);
    inject.wait_until_recording();
    inject.interrupt();
    inject.finish().expect(130).says("interrupted").says("träce.stk");
    assert_eq!(end_reason(&folder, "träce.stk"), EndReason::Stopped as u64);
}

#[test]
fn a_duration_ends_by_itself_in_a_file_named_after_program_pid_and_time() {
    let folder = Folder::new("duration");
    let busy = Program::busy(&folder, 0);
    let finished = Inject::run(&folder, &["--pid", &busy.pid(), "-d", "500ms", "--delay", "100ms"]);
    finished.expect(0).says(&format!("recording busy.exe (pid {}) to ", busy.pid()));
    let names =
        std::fs::read_dir(folder.path()).expect("ours").map(|entry| entry.expect("readable").file_name());
    let traces: Vec<String> =
        names.filter_map(|name| name.into_string().ok()).filter(|name| name.ends_with(".stk")).collect();
    let [trace] = &traces[..] else { panic!("one trace was expected: {traces:?}") };
    assert!(trace.starts_with(&format!("busy-{}-20", busy.pid())), "{trace}");
    assert!(finished.stderr.contains(trace.as_str()), "the name is not printed: {}", finished.stderr);
    assert_eq!(end_reason(&folder, trace), EndReason::Duration as u64);
}

#[test]
fn an_earlier_file_is_replaced_whole() {
    let folder = Folder::new("replaced");
    let busy = Program::busy(&folder, 0);
    std::fs::write(folder.file("t.stk"), vec![0x55; 8 << 20]).expect("writable");
    Inject::record(&folder, &["--pid", &busy.pid(), "-o", "t.stk", "--force", "-d", "300ms"]);
    assert_eq!(end_reason(&folder, "t.stk"), EndReason::Duration as u64);
}

#[test]
fn once_takes_one_sample_of_every_thread() {
    let folder = Folder::new("once");
    let busy = Program::busy(&folder, 0);
    let finished = Inject::run(&folder, &["--pid", &busy.pid(), "-o", "once.stk", "--once"]);
    finished.expect(0).says("once.stk");
    // The agent ends such a recording by itself, and nobody else asked for it.
    assert!(!finished.stderr.contains("stopped from elsewhere"), "{}", finished.stderr);
    let recorded = Recorded::open(&folder.file("once.stk"));
    assert!(recorded.complete && recorded.damage.is_empty(), "{:?}", recorded.damage);
    for name in ["main", "recursion", "leaf loops", "größe", "spawner", "plugins", "waiter"] {
        let [thread] = recorded.threads_named(name)[..] else {
            panic!("one thread '{name}': {:?}", recorded.threads)
        };
        assert_eq!(recorded.samples_of(thread).count(), 1, "samples of '{name}'");
    }
}

#[test]
fn a_loader_lock_that_is_held_is_a_time_out_and_does_no_harm() {
    let folder = Folder::new("loader-lock");
    let mut busy = Program::busy(&folder, 8);
    let slow = wine::windows_path(&wine::path("STK_SLOW_DLL"));
    let finished =
        Inject::run(&folder, &["--pid", &busy.pid(), &slow, "-o", "x.stk", "-d", "1", "--timeout", "1s"]);
    finished.refuses(3, "loader lock is held");
    assert!(!folder.file("x.stk").exists(), "a refused recording left a file");
    // When the lock is free again, the process can be recorded.
    Inject::record(&folder, &["--pid", &busy.pid(), "-o", "x.stk", "-d", "300ms"]);
    assert_eq!(end_reason(&folder, "x.stk"), EndReason::Duration as u64);
    assert!(busy.wait().success(), "{}", busy.output());
}

#[test]
fn a_launched_program_is_recorded_from_its_start_and_its_exit_code_passed_on() {
    let folder = Folder::new("launch");
    let busy = wine::windows_path(&wine::path("STK_BUSY_DIR").join("busy.exe"));
    // Its plug-ins are found in its own folder.
    let finished = Inject::run(&folder, &["-o", "launched.stk", "--", &busy, "4"]);
    finished.expect(0).says("busy.exe").says("ended with exit code 0");
    assert!(finished.stdout.contains("checksum a9a6d267ba599d58"), "{}", finished.stdout);
    let recorded = Recorded::open(&folder.file("launched.stk"));
    assert!(recorded.damage.is_empty(), "{:?}", recorded.damage);
    let [waiter] = recorded.threads_named("waiter")[..] else { panic!("no waiter: {:?}", recorded.threads) };
    let started_late = recorded.threads[&waiter].start > recorded.header.clock_start;
    assert!(started_late, "the program had run before the recording began");

    let cmd = ["-o", "cmd.stk", "--", "cmd.exe", "/c", "exit 7"];
    Inject::run(&folder, &cmd).expect(7);
}

#[test]
fn injects_own_failures_in_launch_mode_are_125_to_127() {
    let folder = Folder::new("launch-fails");
    let x = ["-o", "x.stk"];
    Inject::run(&folder, &[&x[..], &["--", "nobody.exe"]].concat()).refuses(127, "nobody.exe");
    Inject::run(&folder, &[&x[..], &["missing.dll", "--", "cmd.exe", "/c", "exit 7"]].concat())
        .refuses(125, "missing.dll");
    std::fs::write(folder.file("text.exe"), "no program at all").expect("writable");
    let text = wine::windows_path(&folder.file("text.exe"));
    Inject::run(&folder, &[&x[..], &["--", &text]].concat()).refuses(126, "text.exe");
    assert!(!folder.file("x.stk").exists());
}
