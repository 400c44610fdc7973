//! What inject asks of recordings that run: marks, pauses.

use serde_json::Value;
use stk_tests::recorded::Recorded;
use stk_tests::stk;
use stk_tests::wine::{self, Finished, Folder, Inject, Program};

fn wait_for_samples(folder: &Folder, pid: &str, more_than: u64) -> u64 {
    wine::wait_for("samples", || {
        Inject::status(folder, pid)["samples"].as_u64().filter(|&all| all > more_than)
    })
}

/// The marks of a trace, as `stk events` has them: time in nanoseconds since the start, and text.
fn marks(folder: &Folder, trace: &str) -> Vec<(u64, String)> {
    let events = stk::json(folder.path(), &["events", trace, "--kind", "mark", "--json"]);
    let events = events["traces"][0]["events"].as_array().expect("a list").clone();
    let mark = |event: &Value| {
        let text = event["text"].as_str().expect("a text").to_owned();
        (event["time_ns"].as_u64().expect("a time"), text)
    };
    events.iter().map(mark).collect()
}

#[test]
fn a_paused_recording_samples_nothing_and_counts_none_of_that_time() {
    let folder = Folder::new("pauses");
    let busy = Program::busy(&folder, 0);
    let pid = busy.pid();
    let mut inject = Inject::start(&folder, &["--pid", &pid, "-o", "a.stk", "--paused"]);
    inject.wait_until_recording();
    let ask = |request: &str, says: &str| {
        Inject::run(&folder, &[request, "--pid", &pid]).expect(0).says(says);
    };
    wine::wait_for("the first pause", || (Inject::status(&folder, &pid)["paused"] == true).then_some(()));
    ask("pause", "was paused already");
    Inject::run(&folder, &["mark", "--pid", &pid, "größe: before"]).expect(0).says("marked busy.exe");
    assert_eq!(Inject::status(&folder, &pid)["samples"], 0);
    ask("resume", "continues");
    let first = wait_for_samples(&folder, &pid, 100);
    Inject::run(&folder, &["mark", "--pid", &pid, "--", "-between"]).expect(0);
    ask("pause", "paused the recording of busy.exe");
    let at_pause = Inject::status(&folder, &pid)["samples"].as_u64().expect("a number");
    Inject::run(&folder, &["mark", "--pid", &pid, "in the pause"]).expect(0);
    let reported = Inject::status(&folder, &pid);
    assert_eq!(
        (&reported["paused"], &reported["samples"]),
        (&Value::Bool(true), &Value::from(at_pause)),
        "{reported}"
    );
    assert!(at_pause >= first);
    ask("resume", "continues");
    ask("resume", "was not paused");
    wait_for_samples(&folder, &pid, at_pause);
    Inject::run(&folder, &["stop", "--pid", &pid]).expect(0);
    inject.finish().expect(0);

    let recorded = Recorded::open_sound(&folder.file("a.stk"));
    let info = stk::json(folder.path(), &["info", "a.stk", "--json"])["traces"][0].clone();
    let pauses = info["pauses"].as_array().expect("a list").clone();
    let span = |pause: &Value| (pause["from_ns"].as_u64().unwrap_or(0), pause["to_ns"].as_u64().unwrap_or(0));
    let spans: Vec<(u64, u64)> = pauses.iter().map(span).collect();
    let [before, within] = spans[..] else { panic!("two pauses: {pauses:?}") };
    assert_eq!(info["rates"], Value::from(Vec::<Value>::new()), "pauses are no limits of the rate");

    let header = &recorded.header;
    let ns = |ticks: u64| {
        let since = u128::from(ticks - header.clock_start.0);
        (since * 1_000_000_000 / u128::from(header.clock_frequency)) as u64
    };
    let times: Vec<u64> = recorded.samples.iter().map(|sample| ns(sample.time.0)).collect();
    for (from, to) in spans {
        assert!(from < to && !times.iter().any(|time| (from + 1..to).contains(time)), "{from} to {to}");
    }
    let marks = marks(&folder, "a.stk");
    let texts: Vec<&str> = marks.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(texts, ["größe: before", "-between", "in the pause"]);
    let inside = |at: u64, (from, to): (u64, u64)| (from..to).contains(&at);
    let found: Vec<(bool, bool)> =
        marks.iter().map(|&(at, _)| (inside(at, before), inside(at, within))).collect();
    assert_eq!(found, [(true, false), (false, false), (false, true)], "{marks:?} {pauses:?}");

    // Each sample stands for the time to the next, and for none of a pause. A thread's last sample
    // stands for one interval.
    let stats = stk::json(folder.path(), &["stats", "a.stk", "--json"])["traces"][0].clone();
    let duration = info["duration_ns"].as_u64().expect("a number");
    let paused: u64 = pauses.iter().map(span).map(|(from, to)| to - from).sum();
    let most = duration - paused + 2 * info["interval_ns"].as_u64().expect("a number");
    let threads = stats["threads"].as_array().expect("a list");
    let mut all = 0;
    for thread in threads {
        let counted = thread["all"]["weight_ns"].as_u64().expect("a number");
        assert!(counted <= most, "{counted} of {most}: {thread}");
        all += counted;
    }
    assert!(all > 0, "{stats}");
}

#[test]
fn a_mark_reaches_every_recording_or_the_ones_that_are_named() {
    let (folder, other) = (Folder::new("marks"), Folder::new("marks-other"));
    let (one, two) = (Program::busy(&folder, 0), Program::busy(&other, 0));
    Inject::run(&folder, &["mark", "--pid", &one.pid(), "x"]).refuses(1, "is not being recorded");
    Inject::run(&folder, &["mark", "--all", "x"]).refuses(1, "no process is being recorded");
    let start = |pid: &str, trace: &str| {
        let mut inject = Inject::start(&folder, &["--pid", pid, "-o", trace]);
        inject.wait_until_recording();
        inject
    };
    let injects = [start(&one.pid(), "1.stk"), start(&two.pid(), "2.stk")];
    Inject::run(&folder, &["mark", "--all", "all"]).expect(0);
    Inject::run(&folder, &["mark", "--pid", &two.pid(), "second"]).expect(0);
    Inject::run(&folder, &["mark", "--name", "b[u]sy.exe", "pattern"]).expect(0);
    let both = ["mark", "--pid", &one.pid(), "--pid", "999999", "--pid", &two.pid(), "last"];
    Inject::run(&folder, &both).expect(3).says("no process with pid 999999");
    Inject::run(&folder, &["stop", "--all"]).expect(0);
    for inject in injects {
        inject.finish().expect(0);
    }
    let texts = |trace: &str| marks(&folder, trace).into_iter().map(|(_, text)| text).collect::<Vec<_>>();
    assert_eq!(texts("1.stk"), ["all", "pattern", "last"]);
    assert_eq!(texts("2.stk"), ["all", "second", "pattern", "last"]);
}

/// `cmd.exe`, which starts another program and waits for it.
const SHELL: &str = r"C:\windows\system32\cmd.exe";

/// The only trace in the folder whose name begins so.
fn only_trace(folder: &Folder, begins: &str) -> Recorded {
    let files = std::fs::read_dir(folder.path()).expect("a folder").flatten();
    let names: Vec<String> = files
        .map(|file| file.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with(begins) && name.ends_with(".stk"))
        .collect();
    let [name] = &names[..] else { panic!("a trace of {begins}: {names:?}") };
    Recorded::open_sound(&folder.file(name))
}

/// Checks the trace of a child and returns the id of its parent.
fn parent_of(child: &Recorded) -> u32 {
    let fact = |key: &str| child.metadata.get(key).and_then(|value| value.parse::<u64>().ok());
    assert!(fact("inject.process_age_ms").is_some(), "{:?}", child.metadata);
    fact("process.parent_pid").and_then(|pid| pid.try_into().ok()).expect("a parent")
}

#[test]
fn children_of_a_launched_program_and_theirs_are_recorded_too() {
    let folder = Folder::new("children-launched");
    let busy = wine::windows_path(&wine::path("STK_BUSY_DIR").join("busy.exe"));
    Inject::run(&folder, &["--children", "-o", "x.stk", "--", SHELL, "/c", "exit"]).refuses(2, "%p");
    // A shell that starts a shell that starts busy. On a loaded machine it takes seconds until all
    // are recorded.
    let line = ["--children", "-o", "%n-%p.stk", "--", SHELL, "/c", SHELL, "/c", &busy, "90"];
    let inject = Inject::start(&folder, &line);
    let pid = wine::wait_for("samples of two shells and busy", || {
        let reported = Inject::run(&folder, &["status", "--json"]);
        let reported: Value = serde_json::from_str(&reported.expect(0).stdout).expect("JSON");
        let of = |name: &str| -> Vec<&Value> {
            let all = reported["recordings"].as_array().expect("a list").iter();
            all.filter(|row| row["name"] == name && row["samples"].as_u64() > Some(0)).collect()
        };
        (of("cmd.exe").len() == 2).then(|| of("busy.exe").first().map(|row| row["pid"].to_string())).flatten()
    });
    Inject::run(&folder, &["stop", "--all"]).expect(0);
    // inject waits for the program that it launched.
    wine::terminate(&pid, &folder.file("busy"));
    inject.finish().says("child processes recorded");
    let busy = only_trace(&folder, "busy-");
    assert!(!busy.samples.is_empty());
    let files = std::fs::read_dir(folder.path()).expect("a folder").flatten();
    let shells: Vec<Recorded> = files
        .filter(|file| file.file_name().to_string_lossy().starts_with("cmd-"))
        .map(|file| Recorded::open(&file.path()))
        .collect();
    let [one, two] = &shells[..] else { panic!("{} shells", shells.len()) };
    let (outer, inner) = if parent_of(two) == one.header.pid { (one, two) } else { (two, one) };
    assert_eq!(parent_of(inner), outer.header.pid);
    assert_eq!(parent_of(&busy), inner.header.pid);
}

#[test]
fn children_of_an_attached_program_are_recorded_until_its_duration_is_over() {
    let folder = Folder::new("children-attached");
    let busy = wine::path("STK_BUSY_DIR").join("busy.exe");
    // The child runs before inject comes: it is recorded too.
    let mut shell =
        Program::start(&folder, folder.path(), SHELL.as_ref(), &["/c", &wine::windows_path(&busy), "30"]);
    let child = wine::wait_for("busy to be ready", || {
        let text = shell.output();
        let pid = text.lines().find_map(|line| line.strip_prefix("pid "))?.trim().to_owned();
        text.contains("ready\n").then_some(pid)
    });
    let name = ["--name", "cmd.exe", "--children", "-o", "%n-%p.stk", "-d", "3s"];
    Inject::run(&folder, &name).expect(0).says("child processes recorded");
    let (parent, busy) = (only_trace(&folder, "cmd-"), only_trace(&folder, "busy-"));
    assert_eq!((parent_of(&busy), busy.header.pid.to_string()), (parent.header.pid, child));
    assert!(!busy.samples.is_empty());
    shell.kill();
}

/// A program that starts so many processes, some at once, each of which lives for so long.
fn brood(count: usize, more: &[&str]) -> (Folder, Finished) {
    let folder = Folder::new("brood");
    let exe = wine::windows_path(&wine::compiled(env!("CARGO_TARGET_TMPDIR"), "brood"));
    let count = count.to_string();
    let line =
        [&["--children", "--allow-missed-children", "-o", "%n-%p.stk", "--", &exe, &count], more].concat();
    let finished = Inject::run(&folder, &line);
    (folder, finished)
}

/// Every process that a build starts is reported, and its trace is whole.
#[test]
fn each_child_of_a_build_is_recorded() {
    // They live long: on a loaded machine it takes seconds until an inject has come to each.
    let count = 8;
    let (folder, finished) = brood(count, &["4", "15000"]);
    finished.expect(0).says(&format!("{count} of {count} child processes recorded"));
    let files = std::fs::read_dir(folder.path()).expect("a folder").flatten();
    let traces =
        files.map(|file| file.path()).filter(|path| path.extension().is_some_and(|end| end == "stk"));
    let mut ages: Vec<u64> = traces
        .map(|path| {
            let recorded = Recorded::open_sound(&path);
            assert!(!recorded.samples.is_empty(), "{}", path.display());
            recorded.metadata["inject.process_age_ms"].parse().expect("a number")
        })
        .collect();
    assert_eq!(ages.len(), count + 1, "the program and its children");
    ages.sort_unstable();
    wine::measured(&format!(
        "{count} children, 4 at once: inject came {} ms (median), {} ms at most after the start",
        ages[ages.len() / 2],
        ages[ages.len() - 1]
    ));
}

/// The job lets a child go that wants to leave it; such a child is found in the list of processes.
#[test]
fn a_child_that_leaves_the_job_is_recorded_too() {
    let (_folder, finished) = brood(1, &["1", "4000", "leaves"]);
    finished.expect(0).says("1 of 1 child processes recorded");
}

/// A scanner has the copy open as inject renames it, and the local file as inject deletes it.
#[test]
fn a_trace_that_a_scanner_has_open_is_moved() {
    let folder = Folder::new("scanned");
    let scanner = wine::compiled(env!("CARGO_TARGET_TMPDIR"), "scanner");
    let busy = Program::busy(&folder, 0);
    let goal = folder.file("goal");
    std::fs::create_dir(&goal).expect("writable");
    let moved = wine::windows_path(&goal.join("a.stk"));
    let copies = wine::windows_path(&goal).trim_end_matches('\\').to_owned() + r"\*.part";
    let local = wine::windows_path(&folder.file("a.stk"));
    let of_copy = Program::start(&folder, folder.path(), &scanner, &[&copies, "300"]);
    let of_local = Program::start(&folder, folder.path(), &scanner, &[&local, "300", &moved]);
    for program in [&of_copy, &of_local] {
        wine::wait_for("the scanner", || program.output().contains("ready\n").then_some(()));
    }
    let line = ["--pid", &busy.pid(), "-o", "a.stk", "--move-to", "goal", "-d", "1s"];
    let finished = Inject::run(&folder, &line);
    for program in [&of_copy, &of_local] {
        let said = program.output();
        assert!(said.contains("opened\n"), "{said}");
    }
    finished.expect(0);
    assert!(!finished.stderr.contains("could not be deleted"), "{}", finished.stderr);
    assert!(!folder.file("a.stk").exists(), "{}", finished.stderr);
    Recorded::open_sound(&goal.join("a.stk"));
}

#[test]
fn a_whole_trace_is_moved_and_stays_where_it_is_if_it_cannot_be_moved() {
    let folder = Folder::new("moved");
    let busy = Program::busy(&folder, 0);
    let (goal, pid) = (folder.file("goal"), busy.pid());
    let run = |arguments: &[&str]| {
        let line = [&["--pid", &pid, "-o", "a.stk", "--move-to", "goal", "-d", "500ms"], arguments].concat();
        Inject::run(&folder, &line)
    };
    run(&[]).refuses(1, "there is no such folder");
    std::fs::create_dir(&goal).expect("writable");
    run(&[]).expect(0).says("goal");
    assert!(!folder.file("a.stk").exists(), "the local file was not deleted");
    Recorded::open_sound(&goal.join("a.stk"));
    let names = || {
        let files = std::fs::read_dir(&goal).expect("a folder").flatten();
        files.map(|file| file.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(), ["a.stk"]);

    let before = std::fs::read(goal.join("a.stk")).expect("there");
    run(&[]).refuses(1, "use --force");
    assert_eq!(std::fs::read(goal.join("a.stk")).expect("there"), before);
    run(&["--force"]).expect(0).says("a.stk.old");
    assert_ne!(std::fs::read(goal.join("a.stk")).expect("there"), before);
    assert_eq!(std::fs::read(goal.join("a.stk.old")).expect("there"), before);
    assert_eq!(names().len(), 2);

    // The folder goes while the recording runs, as a share may.
    let mut inject = Inject::start(&folder, &["--pid", &busy.pid(), "-o", "b.stk", "--move-to", "goal"]);
    inject.wait_until_recording();
    std::fs::remove_dir_all(&goal).expect("ours");
    Inject::run(&folder, &["stop", "--pid", &busy.pid()]).expect(0);
    inject.finish().expect(1).says("could not be moved to").says("it is kept at").says("b.stk");
    Recorded::open_sound(&folder.file("b.stk"));
}

#[test]
fn top_shows_what_a_recording_that_runs_shows_now() {
    let folder = Folder::new("top");
    let busy = Program::busy(&folder, 0);
    let pid = busy.pid();
    let mut inject = Inject::start(&folder, &["--pid", &pid, "-o", "a.stk"]);
    inject.wait_until_recording();
    // A block is written each second or so.
    let screen = || {
        let shown = stk::run(folder.path(), &["top", "a.stk", "--once", "--top", "40", "--span", "30s"]);
        assert_eq!(shown.code, Some(0), "{}{}", shown.stdout, shown.stderr);
        shown.stdout
    };
    wait_for_samples(&folder, &pid, 2_000);
    let shown =
        wine::wait_for("threads on the screen", || Some(screen()).filter(|text| text.contains(" waiter ")));
    assert!(shown.starts_with(&format!("busy.exe (pid {pid}), ")) && !shown.contains("has ended"), "{shown}");
    let waiter = shown.lines().find(|line| line.contains(" waiter ")).expect("a row");
    assert!(waiter.contains("waiting ("), "{shown}");
    Inject::run(&folder, &["stop", "--pid", &pid]).expect(0);
    inject.finish().expect(0);
    assert!(screen().contains("the recording has ended"));
}

#[test]
fn inject_top_prints_a_screen_of_a_process_or_says_what_it_needs() {
    let folder = Folder::new("inject-top");
    let busy = Program::busy(&folder, 0);
    let pid = busy.pid();
    if !wine::path("STK_WINDOWS_BIN").join("stk.exe").exists() {
        Inject::run(&folder, &["top", "--pid", &pid, "--once"]).refuses(1, "needs stk.exe beside inject.exe");
        return;
    }
    let shown = Inject::run(&folder, &["top", "--pid", &pid, "--once", "--", "--top", "40"]);
    assert!(shown.expect(0).stdout.starts_with(&format!("busy.exe (pid {pid}), ")), "{}", shown.stdout);
    Inject::run(&folder, &["status", "--pid", &pid]).refuses(1, "is not being recorded");
    Inject::run(&folder, &["top", "--pid", "999999", "--once"]).expect(3).says("no process with pid 999999");
}

#[test]
fn trace_is_shown_by_the_stk_beside_inject() {
    let folder = Folder::new("inject-open");
    let busy = Program::busy(&folder, 0);
    let bin = folder.file("bin");
    std::fs::create_dir(&bin).expect("a new folder");
    for name in ["inject.exe", "agent.dll"] {
        std::fs::copy(wine::path("STK_WINDOWS_BIN").join(name), bin.join(name)).expect("the recorder");
    }
    let inject = bin.join("inject.exe");
    let line = ["--pid", &busy.pid(), "-d", "1s", "--open", "-o", "shown.stk"];
    Inject::run_exe(&inject, &folder, &line).refuses(1, "--open needs stk.exe beside inject.exe");
    // Where inject starts the program, codes below 125 are the program's.
    let launch = ["--open", "-o", "shown.stk", "--", "cmd.exe", "/c", "exit 1"];
    Inject::run_exe(&inject, &folder, &launch).refuses(125, "--open needs stk.exe beside inject.exe");
    assert!(!folder.file("shown.stk").exists(), "nothing is recorded that cannot be shown");

    let fake = wine::compiled(env!("CARGO_TARGET_TMPDIR"), "shows");
    std::fs::copy(fake, bin.join("stk.exe")).expect("the program that stk.exe is here");
    Inject::run_exe(&inject, &folder, &line).expect(0);
    // The folder's name is in the system's code page.
    let shown = std::fs::read(bin.join("shown.txt")).expect("what stk.exe was called with");
    let shown = String::from_utf8_lossy(&shown).replace('\r', "");
    let (command, trace) = shown.split_once('\n').expect("two arguments");
    assert!(command == "open" && trace.ends_with("shown.stk\n"), "{shown}");
    assert!(Recorded::open(&folder.file("shown.stk")).complete);
}
