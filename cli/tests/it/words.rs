//! What a user meets first: the names of outputs, patterns and folders, selections that leave
//! nothing, several traces at once, times by the clock, notes and silence, help.

use crate::support::{Ran, command_in, kept, kept_text, ran_in};
use std::io::Read;
#[cfg(target_os = "linux")]
use std::process::Stdio;
use stk_format::{BlockKind, Trace};
use stk_tests::traces;
use stk_tests::traces::{TestImage, in_function};

const BASE: u64 = 0x1_4000_0000;
const STACK: u64 = 0x10_0000;

/// A trace of 200 ms from 2023-11-14T22:13:20Z on, of the threads `main` and `名前`. Both call
/// functions without names.
fn trace() -> Vec<u8> {
    named_trace("main")
}

/// The same with another name of `main`.
fn named_trace(name: &str) -> Vec<u8> {
    let mut builder = traces::trace();
    TestImage::new(r"C:\app\app.exe", 16).load(&mut builder, 0, BASE);
    let threads = [builder.thread(0, 11, name, STACK), builder.thread(0, 12, "名前", 2 * STACK)];
    for i in 1..=200u64 {
        for (t, &thread) in threads.iter().enumerate() {
            let calls = [in_function(BASE, 3), in_function(BASE, 5 + t as u32) + i % 2];
            traces::sample(&mut builder, thread, i * 10_000, (t as u64 + 1) * STACK, &calls);
        }
        if i % 20 == 0 {
            builder.cut();
        }
    }
    builder.finish()
}

/// A trace in whose blocks of tables the first byte is another.
fn damaged(mut file: Vec<u8>) -> Vec<u8> {
    let payloads: Vec<usize> = {
        let trace = Trace::open(&file).unwrap();
        let blocks = trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Blob);
        blocks.map(|block| block.offset as usize + stk_format::BLOCK_HEADER_LEN).collect()
    };
    assert!(!payloads.is_empty());
    payloads.into_iter().for_each(|at| file[at] ^= 0x5A);
    file
}

/// A folder with these files.
fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    folder
}

#[test]
fn outputs_are_named_after_their_traces() {
    let dir = folder(&[("a.stk", &trace()), ("b.stk", &trace())]);
    for name in ["a", "b"] {
        let ran = ran_in(dir.path(), &["convert", &format!("{name}.stk")]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.error.contains(&format!("stk: wrote {name}.speedscope.json (")), "{ran:?}");
    }
    assert!(dir.path().join("a.speedscope.json").exists() && dir.path().join("b.speedscope.json").exists());
}

#[test]
fn the_ending_of_the_name_compresses() {
    let dir = folder(&[("a.stk", &trace())]);
    let plain = command_in(dir.path(), &["convert", "a.stk", "--to", "folded", "-o", "-"]).output().unwrap();
    for name in ["x.folded.gz", "x.folded.zst"] {
        let ran = ran_in(dir.path(), &["convert", "a.stk", "-o", name]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let packed = std::fs::read(dir.path().join(name)).unwrap();
        let mut unpacked = Vec::new();
        if name.ends_with(".gz") {
            flate2::read::GzDecoder::new(&*packed).read_to_end(&mut unpacked).unwrap();
        } else {
            unpacked = zstd::decode_all(&*packed).unwrap();
        }
        assert_eq!(unpacked, plain.stdout, "{name}");
        // The reported size is that of the file.
        assert!(ran.error.contains(&format!("wrote {name} ({} B)", packed.len())), "{ran:?}");
    }
    let refused = ran_in(dir.path(), &["convert", "a.stk", "-o", "x.parquet.gz"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.error.contains("Parquet compresses by itself"), "{refused:?}");
}

#[test]
fn a_folder_that_does_not_exist_is_named() {
    let dir = folder(&[("a.stk", &trace())]);
    let ran = ran_in(dir.path(), &["convert", "a.stk", "-o", "none/x.folded"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.error.contains("none/x.folded: the folder none does not exist"), "{ran:?}");
    assert!(!ran.error.contains(".partial"), "{ran:?}");
}

#[test]
fn patterns_and_folders_name_traces() {
    let dir = folder(&[
        ("lab/a.stk", &trace()),
        ("lab/b.stk", &trace()),
        ("lab/notes.txt", b"no trace"),
        ("empty/notes.txt", b"no trace"),
    ]);
    for named in ["lab", "lab/*.stk", "l?b"] {
        for command in ["info", "verify"] {
            let ran = ran_in(dir.path(), &[command, named]);
            assert_eq!(ran.code, Some(0), "{ran:?}");
            let (a, b) = (ran.out.find("a.stk").unwrap(), ran.out.find("b.stk").unwrap());
            assert!(a < b && ran.out.contains("2 traces"), "{ran:?}");
        }
    }
    let ran = ran_in(dir.path(), &["convert", "lab", "-o", "out/", "--no-default-symbols"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(dir.path().join("out/a.speedscope.json").exists(), "{ran:?}");
    assert!(dir.path().join("out/b.speedscope.json").exists(), "{ran:?}");
    for (named, says) in [("empty", "empty: the folder holds no .stk file"), ("x*", "x*: no file matches")] {
        let ran = ran_in(dir.path(), &["convert", named]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.error.contains(says), "{ran:?}");
    }
    let ran = ran_in(dir.path(), &["dump", "lab"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.error.contains("2 traces: name one of them"), "{ran:?}");
}

#[test]
fn a_selection_that_leaves_nothing_says_why() {
    let dir = folder(&[("a.stk", &trace())]);
    for (arguments, says) in [
        (&["--from", "5s"][..], "no samples are left: --from is 5.000 s, and the trace ends at 0.200 s"),
        (&["--until", "22:13:10Z"], "no samples are left: --until is not after the trace's start"),
        (&["--from", "100.2ms", "--until", "100.3ms"], "no thread was sampled in that time"),
        (
            &["--thread", "main", "--from", "100.2ms", "--until", "100.3ms"],
            "no samples are left: no thread was sampled in that time",
        ),
    ] {
        for command in [&["stats", "a.stk"][..], &["convert", "a.stk", "-o", "-"]] {
            let ran = ran_in(dir.path(), &[command, arguments].concat());
            assert_eq!(ran.code, Some(1), "{ran:?}");
            assert!(ran.error.contains(says), "{ran:?}");
        }
    }
    let whole = ran_in(dir.path(), &["stats", "a.stk"]);
    assert!(!whole.error.contains("no samples"), "{whole:?}");
    let late = ran_in(dir.path(), &["dump", "a.stk", "--at", "100s"]);
    assert!(late.error.contains("the trace ends before --at: shown is its end at 0.200 s"), "{late:?}");
    assert_eq!(late.code, Some(0));
    let early = ran_in(dir.path(), &["dump", "a.stk", "--at", "2023-11-14T22:13:19Z"]);
    assert!(early.error.contains("--at is before the trace's start"), "{early:?}");
    assert_eq!(early.code, Some(1), "{early:?}");
}

#[test]
fn nothing_chosen_of_any_trace_has_one_exit_code() {
    let nothing = [
        &["--thread", "nobody"][..],
        &["--tid", "99"],
        &["--function", "no such function"],
        &["--state", "system-call"],
        &["--from", "5s"],
        &["--pid", "99"],
        &["--label", "build=7"],
    ];
    let commands = [
        &["stats", "lab"][..],
        &["stats", "lab/a.stk", "--format", "csv"],
        &["stats", "lab.parquet"],
        &["convert", "lab", "-o", "out/"],
        &["convert", "lab/a.stk", "-o", "-"],
        &["convert", "lab", "--to", "parquet", "-o", "empty.parquet"],
        &["diff", "lab/a.stk", "lab/b.stk"],
        &["diff", "lab.parquet", "lab.parquet"],
        &["report", "lab", "-o", "lab.html", "--force"],
        &["merge", "lab", "-o", "lab.chrome.json", "--force"],
        &["events", "lab"],
        &["dump", "lab/a.stk"],
    ];
    let of_samples = ["--function", "--state"];
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("lab")).unwrap();
    std::fs::write(dir.path().join("lab/a.stk"), trace()).unwrap();
    std::fs::write(dir.path().join("lab/b.stk"), named_trace("other")).unwrap();
    let made = ran_in(dir.path(), &["convert", "lab", "--to", "parquet", "-o", "lab.parquet"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    for command in commands {
        for options in nothing {
            let is_moment = command[0] == "dump" && options[0] == "--from";
            let is_table = command.contains(&"lab.parquet") && options[0] == "--from";
            let has_no_samples = command[0] == "events" && of_samples.contains(&options[0]);
            if is_moment || is_table || has_no_samples {
                continue;
            }
            let ran = ran_in(dir.path(), &[command, options].concat());
            assert_eq!(ran.code, Some(1), "{command:?} {options:?}: {ran:?}");
            assert!(!ran.error.is_empty(), "{command:?} {options:?}");
        }
    }
}

#[test]
fn traces_with_nothing_chosen_beside_others_are_named() {
    let dir = folder(&[("a.stk", &trace())]);
    for name in ["b.stk", "c.stk", "d.stk", "e.stk"] {
        std::fs::write(dir.path().join(name), named_trace("other")).unwrap();
    }
    let line = "nothing of 4 of 5 traces: b.stk, c.stk, d.stk and 1 more";
    for command in [&["stats", "*.stk"][..], &["convert", "*.stk", "-o", "out/"], &["events", "*.stk"]] {
        let ran = ran_in(dir.path(), &[command, &["--thread", "^main$"]].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert_eq!(ran.error.matches(line).count(), 1, "{ran:?}");
        assert!(!ran.error.contains("no thread has"), "{ran:?}");
    }
}

#[test]
fn times_by_the_clock_choose_the_same_as_those_since_the_start() {
    let dir = folder(&[("a.stk", &trace())]);
    let of = |arguments: &[&str]| {
        let ran =
            ran_in(dir.path(), &[&["convert", "a.stk", "--to", "folded", "-o", "-"], arguments].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.out
    };
    let since_start = of(&["--from", "50ms", "--until", "100ms"]);
    assert!(!since_start.is_empty() && since_start != of(&[]));
    for (from, until) in [
        ("22:13:20.05", "22:13:20.1Z"),
        ("2023-11-14T22:13:20.05Z", "2023-11-14 22:13:20.1"),
        ("23:13:20.05+01:00", "100ms"),
    ] {
        assert_eq!(of(&["--from", from, "--until", until]), since_start, "{from}");
    }
    let at = |at: &str| ran_in(dir.path(), &["dump", "a.stk", "--at", at]).out;
    assert_eq!(at("22:13:20.1Z"), at("100ms"));
    assert_ne!(at("22:13:20.1Z"), at("50ms"));
    let wrong = ran_in(dir.path(), &["dump", "a.stk", "--at", "25:00"]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
}

#[cfg(unix)]
#[test]
fn local_times_are_shown_and_taken_on_request() {
    let dir = folder(&[("a.stk", &trace())]);
    let of = |arguments: &[&str]| {
        // POSIX 8.3: this zone is two hours ahead of UTC.
        let ran = Ran::of(command_in(dir.path(), arguments).env("TZ", "XYZ-2"));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.out
    };
    for command in ["info", "verify", "stats", "dump"] {
        assert!(of(&[command, "a.stk", "--tz", "local"]).contains("2023-11-15T00:13:20."), "{command}");
        assert!(of(&[command, "a.stk", "--tz", "local"]).contains("+02:00"), "{command}");
        assert!(of(&[command, "a.stk"]).contains("2023-11-14T22:13:20."), "{command}");
    }
    assert_eq!(
        of(&["dump", "a.stk", "--tz", "local", "--at", "00:13:20.1"]),
        of(&["dump", "a.stk", "--tz", "local", "--at", "100ms"])
    );
}

#[test]
fn several_traces_get_a_line_each_and_a_sum() {
    let dir =
        folder(&[("a.stk", &trace()), ("b.stk", &trace()), ("c.stk", &damaged(trace())), ("d.stk", b"none")]);
    let files = ["a.stk", "b.stk", "c.stk", "d.stk"];
    let of = |command: &[&str]| ran_in(dir.path(), &[command, &files].concat());
    for command in [&["info"][..], &["stats", "--no-default-symbols"], &["verify"]] {
        let ran = of(command);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        for name in ["a.stk", "b.stk", "c.stk"] {
            let lines: Vec<&str> = ran.out.lines().filter(|line| line.starts_with(name)).collect();
            assert_eq!(lines.len(), 1, "{command:?} {name}: {ran:?}");
            assert_eq!(lines[0].contains("damaged"), name == "c.stk", "{ran:?}");
        }
        assert!(ran.error.contains("d.stk"), "{ran:?}");
    }
    assert!(
        of(&["verify"]).out.contains("4 traces: 2 whole, 1 damaged, 1 not readable; "),
        "{:?}",
        of(&["verify"])
    );
    assert!(of(&["info"]).out.lines().last().unwrap().starts_with("3 traces"));
    let stats = ran_in(dir.path(), &["stats", "--no-default-symbols", "a.stk", "b.stk"]).out;
    let total = stats.lines().find(|line| line.starts_with("2 traces")).unwrap();
    assert!(total.contains(" 800 ") && total.contains("400 ms"), "{stats}");
    // Each of the two functions has half of the samples of each trace.
    let rows: Vec<&str> = stats.lines().filter(|line| line.contains("app.exe!fn_1")).collect();
    assert!(rows.len() >= 2 && rows[..2].iter().all(|row| row.contains(" 50.0 %")), "{stats}");
    let each = ran_in(dir.path(), &["stats", "--no-default-symbols", "--each", "a.stk", "b.stk"]).out;
    assert!(each.contains("a.stk: ") && each.contains("b.stk: ") && !each.contains("2 traces"), "{each}");
}

#[test]
fn what_several_traces_lack_is_reported_once_at_the_end() {
    let dir = folder(&[("a.stk", &trace()), ("b.stk", &trace())]);
    let arguments = ["convert", "--no-default-symbols", "a.stk", "b.stk", "-o", "out/"];
    let ran = ran_in(dir.path(), &arguments);
    // ntdll.dll and kernel32.dll of the test have no CodeView record, as Wine's have none: nothing
    // helps there.
    let line = "stk: 2 traces: 0.0 % of the frames have names from symbols; app.exe: the image names no PDB \
                (no CodeView record): build it with debug information";
    assert_eq!(ran.error.lines().filter(|shown| *shown == line).count(), 1, "{ran:?}");
    assert!(!ran.error.contains("ntdll.dll") && !ran.error.contains("nothing to do"), "{ran:?}");
    let quiet = ran_in(dir.path(), &[&arguments[..], &["-q"]].concat());
    assert_eq!((quiet.code, quiet.error.as_str()), (Some(0), ""));
    let failing = ran_in(dir.path(), &[&arguments[..], &["-q", "--require-symbols", "10"]].concat());
    assert_eq!(failing.code, Some(5));
    assert!(failing.error.contains("10 % are required") && failing.error.lines().count() == 2, "{failing:?}");
}

#[test]
fn verbose_explains_decisions() {
    let dir = folder(&[("a.stk", &trace())]);
    let convert = ["convert", "a.stk", "-o", "x.folded", "--force", "--no-default-symbols"];
    let silent = ran_in(dir.path(), &convert).error;
    let reported = ran_in(dir.path(), &[&convert[..], &["-v"]].concat()).error;
    for part in [
        "stk: format folded, by the output's name",
        "stk: a.stk: 400 samples recorded; taken from 0.000 s to 0.200 s",
        "stk: app.exe: no symbols: ",
    ] {
        assert!(reported.contains(part) && !silent.contains(part), "{part}: {reported}");
    }
    let stats = ran_in(dir.path(), &["-v", "stats", "a.stk", "--no-default-symbols"]).error;
    assert!(stats.contains("no thread used CPU time"), "{stats}");
    // The variable goes before the option.
    let off = Ran::of(command_in(dir.path(), &[&convert[..], &["-v"]].concat()).env("RUST_LOG", "off"));
    assert!(!off.error.contains("by the output's name"), "{off:?}");
}

#[test]
fn damage_is_blamed_for_what_went_with_it() {
    let convert = |file: &[u8]| {
        let dir = folder(&[("a.stk", file)]);
        ran_in(dir.path(), &["convert", "a.stk", "-o", "-", "--no-default-symbols"]).error
    };
    let whole = convert(&without_tables());
    assert!(whole.contains("of images are not in the trace") && whole.contains("--tables"), "{whole}");
    let damaged = convert(&damaged(trace()));
    assert!(damaged.contains("of images went with the damaged blocks"), "{damaged}");
    assert!(!damaged.contains("--tables"), "{damaged}");
}

/// A trace whose tables of app.exe are not in it.
fn without_tables() -> Vec<u8> {
    let mut builder = traces::trace();
    let app = TestImage::new(r"C:\app\app.exe", 16);
    let instance = app.load_without_tables(&mut builder, 0, BASE);
    app.with_tables(|parts| builder.tables_elsewhere(0, instance, parts));
    let thread = builder.thread(0, 11, "main", STACK);
    for i in 1..=100 {
        traces::sample(&mut builder, thread, i * 10_000, STACK, &[in_function(BASE, 3)]);
    }
    builder.finish()
}

#[test]
fn an_address_without_a_name_is_charged_to_its_function_everywhere() {
    let dir = folder(&[("a.stk", &trace())]);
    let names = "--no-default-symbols";
    // Two addresses of each leaf function; functions are 40h bytes apart from 1000h on.
    let stats = ran_in(dir.path(), &["stats", "a.stk", names, "--full"]).out;
    assert!(stats.contains("app.exe!fn_1140") && stats.contains("app.exe!fn_1180"), "{stats}");
    assert!(!stats.contains("app.exe+0x"), "{stats}");
    let flame = ran_in(dir.path(), &["convert", "a.stk", names, "--to", "folded", "-o", "-"]).out;
    assert!(flame.contains(";app.exe!fn_10c0;app.exe!fn_1140 "), "{flame}");
    let dump = ran_in(dir.path(), &["dump", "a.stk", names, "--at", "101ms"]).out;
    assert!(dump.contains(" app.exe!fn_1140+0x11") && dump.contains(" app.exe!fn_10c0+0x10"), "{dump}");
}

#[test]
fn equal_stacks_of_several_threads_are_shown_once() {
    let mut builder = traces::trace();
    TestImage::new(r"C:\app\app.exe", 16).load(&mut builder, 0, BASE);
    for tid in 1..=4u64 {
        let thread = builder.thread(0, 10 + tid as u32, "worker", tid * STACK);
        // The fourth is elsewhere; the others are at different addresses of one function.
        let call = if tid == 4 { in_function(BASE, 7) } else { in_function(BASE, 2) + tid };
        traces::sample(&mut builder, thread, 10_000, tid * STACK, &[call]);
    }
    let dir = folder(&[("a.stk", &builder.finish())]);
    let text = ran_in(dir.path(), &["dump", "a.stk", "--style", "merged"]).out;
    assert!(text.contains("4 threads in 2 different stacks, at 0.001 s"), "{text}");
    assert!(
        text.contains("3 threads, ") && text.contains(": 11 \"worker\", 12 \"worker\", 13 \"worker\""),
        "{text}"
    );
    assert_eq!(text.matches("app.exe!fn_1080").count(), 1, "{text}");
    assert!(text.find("3 threads").unwrap() < text.find("1 thread,").unwrap(), "{text}");
}

#[test]
fn info_is_a_summary_with_lists_on_request() {
    let dir = folder(&[("a.stk", &trace())]);
    let short = ran_in(dir.path(), &["info", "a.stk"]).out;
    assert!(short.contains("threads    2: main, 名前 (--all lists them)"), "{short}");
    assert!(!short.contains(r"C:\app\app.exe"), "{short}");
    assert!(short.lines().all(|line| line.chars().count() < 160), "{short}");
    let all = ran_in(dir.path(), &["info", "a.stk", "--all"]).out;
    assert!(all.contains(r"C:\app\app.exe") && all.lines().count() > short.lines().count() + 5, "{all}");
}

#[test]
fn help_is_a_command_and_completions_are_printed() {
    let dir = folder(&[]);
    let by_command = ran_in(dir.path(), &["help", "convert"]);
    assert_eq!(by_command.code, Some(0), "{by_command:?}");
    assert_eq!(by_command.out, ran_in(dir.path(), &["convert", "--help"]).out);
    assert!(ran_in(dir.path(), &["help", "symbols", "lookup"]).out.contains("RVA"));
    let info = ran_in(dir.path(), &["info", "--help"]).out;
    assert!(!info.contains('\\'), "no escapes in the help:\n{info}");
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let script = ran_in(dir.path(), &["completions", shell]);
        assert_eq!(script.code, Some(0), "{script:?}");
        assert!(script.out.contains("speedscope") && script.out.contains("require-symbols"), "{shell}");
    }
    let nothing = ran_in(dir.path(), &["symbols", "lookup", "app.pdb"]);
    assert_eq!(nothing.code, Some(2), "{nothing:?}");
    assert!(nothing.error.contains("RVA"), "{nothing:?}");
}

#[test]
fn manual_pages_are_written_for_every_command() {
    let dir = folder(&[]);
    let ran = ran_in(dir.path(), &["man", "share/man1"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), ""), "{ran:?}");
    let read = |name: &str| std::fs::read_to_string(dir.path().join("share/man1").join(name)).unwrap();
    let page = read("stk.1");
    assert!(page.contains("\n.SH NAME\n") && page.contains("stk\\-stats(1)"), "{page}");
    assert!(read("stk-stats.1").contains("\\-\\-weight"), "{}", read("stk-stats.1"));
    assert!(read("stk-symbols-lookup.1").contains("RVA"), "pages of commands of commands");
    assert_eq!(ran_in(dir.path(), &["man"]).out, page);
    let refused = ran_in(dir.path(), &["man", "share/man1/stk.1"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.error.contains("share/man1/stk.1: "), "{refused:?}");
}

#[test]
fn schemas_are_listed_and_printed() {
    let dir = folder(&[]);
    let list = ran_in(dir.path(), &["schema"]).out;
    assert!(list.contains("\nstats           stk stats --json, version 2\n"), "{list}");
    let stats = ran_in(dir.path(), &["schema", "stats"]);
    assert_eq!(
        (stats.code, stats.out.as_str()),
        (Some(0), include_str!("../../../schema/stats.schema.json"))
    );
    let none = ran_in(dir.path(), &["schema", "state"]);
    assert_eq!(none.code, Some(2), "{none:?}");
    assert!(none.error.contains("no schema is named `state`: stk schema lists them"), "{none:?}");
}

#[test]
fn a_fetch_without_servers_fails_and_says_so() {
    let kept = kept("busy.stk");
    let dir = folder(&[("busy.stk", &std::fs::read(kept).unwrap())]);
    // Port 9 takes no connections; it is not asked either.
    let server = "srv*http://127.0.0.1:9/symbols";
    let arguments = ["symbols", "fetch", "busy.stk", "--no-default-symbols", "--offline", "-y", server];
    let ran = ran_in(dir.path(), &arguments);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.error.contains("symbols of 0 of 3 modules are available; --offline: no server was contacted"),
        "{ran:?}"
    );
}

#[test]
fn top_alone_sets_only_how_many_rows_there_are() {
    let (trace, symbols) = (kept_text("busy.stk"), kept_text(""));
    let dir = tempfile::tempdir().unwrap();
    let of = |more: &[&str]| ran_in(dir.path(), &[&["stats", &trace, "-y", &symbols], more].concat()).out;
    // What stands between the heading of the functions and the empty line behind them.
    let rows = |text: &str| {
        let begin = text.find("Functions by their own").unwrap();
        text[begin..].lines().skip(2).take_while(|line| !line.is_empty()).count()
    };
    let short = of(&[]);
    assert_eq!(rows(&short), 13, "twelve and the others: {short}");
    let three = of(&["--top", "3"]);
    assert_eq!(rows(&three), 4, "{three}");
    assert!(three.contains("  others\n") && !three.contains("\nThreads") && !three.contains("\nModules"));
}

#[test]
fn few_samples_have_their_uncertainty_in_each_row() {
    let (trace, symbols) = (kept_text("busy.stk"), kept_text(""));
    let dir = tempfile::tempdir().unwrap();
    let of = |more: &[&str]| ran_in(dir.path(), &[&["stats", &trace, "-y", &symbols], more].concat()).out;
    let json: serde_json::Value = serde_json::from_str(&of(&["--json"])).unwrap();
    let stats = &json["traces"][0];
    let active = ["running", "system_call", "unknown"].map(|state| &stats["states"][state]["samples"]);
    let active: f64 = active.iter().map(|samples| samples.as_f64().unwrap()).sum();
    assert!((1.0..1000.0).contains(&active), "{active}");
    let first = &stats["functions_by_self"][0];
    let share = first["self"]["weight_ns"].as_f64().unwrap() / stats["counted_ns"].as_f64().unwrap();
    // The 95 % interval of a binomial share: two successes and two failures more (Agresti and
    // Coull, 1998), which differs from their exact form in the second digit behind the point.
    let adjusted = (share * active + 2.0) / (active + 4.0);
    let points = 100.0 * 1.96 * (adjusted * (1.0 - adjusted) / (active + 4.0)).sqrt();
    let text = of(&[]);
    let row = text.lines().find(|line| line.contains(first["function"].as_str().unwrap())).unwrap();
    let figures: Vec<&str> = row.split_whitespace().skip(2).take(3).collect();
    assert_eq!(figures, [&format!("{:.1}", 100.0 * share), "%", &format!("±{points:.1}")], "{row}");
    // Ten seconds of two threads at 100 Hz would be enough: 2,000 samples.
    let many = folder(&[("a.stk", &steady(2_000))]);
    let text = ran_in(many.path(), &["stats", "a.stk"]).out;
    assert!(!text.contains('±'), "{text}");
}

/// A trace of a thread that was seen so many times, each millisecond, in one function.
fn steady(samples: u64) -> Vec<u8> {
    let mut builder = traces::trace();
    TestImage::new(r"C:\app\app.exe", 16).load(&mut builder, 0, BASE);
    let thread = builder.thread(0, 11, "main", STACK);
    for i in 1..=samples {
        traces::sample(&mut builder, thread, i * 10_000, STACK, &[in_function(BASE, 3)]);
        if i % 50 == 0 {
            builder.cut();
        }
    }
    builder.finish()
}

#[test]
fn a_dataset_among_traces_names_the_commands_that_read_it() {
    let dir = folder(&[("a.stk", &trace())]);
    let made = ran_in(dir.path(), &["convert", "a.stk", "--to", "parquet", "-o", "lab.parquet"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    for named in ["lab.parquet", "lab.parquet?build=1"] {
        for command in [
            &["info"][..],
            &["events"],
            &["dump"],
            &["top"],
            &["verify"],
            &["report", "-o", "x.html"],
            &["convert", "-o", "x.folded"],
            &["merge", "-o", "x.chrome.json"],
            &["redact", "-o", "x.stk"],
        ] {
            let ran = ran_in(dir.path(), &[command, &[named]].concat());
            assert_eq!(ran.code, Some(1), "{command:?} {ran:?}");
            assert!(ran.error.contains("is a Parquet dataset: stk stats, stk diff"), "{command:?} {ran:?}");
        }
    }
}

#[test]
fn three_files_of_diff_show_how_to_take_sides() {
    let dir = folder(&[("a.stk", &trace()), ("b.stk", &trace()), ("c.stk", &trace())]);
    let ran = ran_in(dir.path(), &["diff", "a.stk", "b.stk", "c.stk"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.error.contains("--base FILE… --new FILE…"), "{ran:?}");
}

#[test]
fn several_traces_make_a_folder_of_any_name() {
    let dir = folder(&[("a.stk", &trace()), ("b.stk", &named_trace("other"))]);
    let ran = ran_in(dir.path(), &["convert", "a.stk", "b.stk", "-o", "out"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(dir.path().join("out/a.speedscope.json").is_file(), "{ran:?}");
    assert!(dir.path().join("out/b.speedscope.json").is_file(), "{ran:?}");
    let one = ran_in(dir.path(), &["convert", "a.stk", "-o", "one"]);
    assert_eq!(one.code, Some(2), "{one:?}");
}

#[test]
fn no_output_is_named_like_a_device_of_windows() {
    let dir = folder(&[("con.stk", &trace()), ("Aux.stk", &named_trace("other"))]);
    let ran = ran_in(dir.path(), &["convert", "con.stk", "Aux.stk", "-o", "out/"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(dir.path().join("out/con_.speedscope.json").is_file(), "{ran:?}");
    assert!(dir.path().join("out/Aux_.speedscope.json").is_file(), "{ran:?}");
}

#[test]
fn the_selection_of_a_dataset_is_one_line_with_its_name() {
    let dir = folder(&[("a.stk", &trace()), ("b.stk", &without_tables())]);
    let made = ran_in(dir.path(), &["convert", "a.stk", "b.stk", "--to", "parquet", "-o", "lab.parquet"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    let ran = ran_in(dir.path(), &["stats", "lab.parquet", "--thread", "main"]);
    let lines: Vec<&str> = ran.error.lines().filter(|line| line.contains("selection: ")).collect();
    // 200 of the 400 samples of the one and all 100 of the other.
    let [line] = lines[..] else { panic!("{ran:?}") };
    assert!(line.starts_with("stk: lab.parquet: selection: ") && line.ends_with("(300 of 500)"), "{line}");
}

#[test]
fn a_batch_of_nothing_says_so_in_whole_words() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    let ran = ran_in(dir.path(), &["batch", "empty", "--to", "parquet", "-o", "o"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert_eq!(ran.error, "stk: empty: the folder holds no .stk file\nstk: o: 0 traces\n");
}

#[test]
fn names_from_the_cache_alone_are_a_note() {
    let dir = tempfile::tempdir().unwrap();
    let symbols = kept_text("");
    std::fs::copy(kept("busy.stk"), dir.path().join("a.stk")).unwrap();
    let note = "stk: names of busy.exe and of 2 other modules come from the symbol cache";
    let stats = |more: &[&str]| ran_in(dir.path(), &[&["stats", "a.stk"], more].concat()).error;
    let found = stats(&["-y", &symbols]);
    assert!(!found.contains("symbol cache"), "{found}");
    let cached = stats(&[]);
    assert_eq!(cached.matches(note).count(), 1, "{cached}");
    assert_eq!(stats(&["-q"]), "");
}

#[cfg(target_os = "linux")]
#[test]
fn messages_that_nobody_can_read_are_no_failure() {
    let dir = folder(&[("a.stk", &trace()), ("b.stk", &named_trace("other"))]);
    for arguments in [
        &["convert", "a.stk", "b.stk", "-o", "out/"][..],
        &["convert", "a.stk", "-o", "-", "-v"],
        &["stats", "a.stk", "--state", "system-call"],
        &["report", "a.stk"],
        &["diff", "a.stk", "b.stk"],
    ] {
        let expected = ran_in(dir.path(), arguments).code;
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let status = command_in(dir.path(), arguments).stdout(Stdio::null()).stderr(full).status().unwrap();
        assert_eq!(status.code(), expected, "{arguments:?}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let status = command_in(dir.path(), arguments).stdout(Stdio::null()).stderr(writer).status().unwrap();
        assert_eq!(status.code(), expected, "{arguments:?}");
    }
}

#[test]
fn a_symbol_path_that_is_not_there_is_a_warning() {
    let dir = folder(&[("a.stk", &trace()), ("b.stk", &named_trace("other"))]);
    let ran = ran_in(dir.path(), &["stats", "a.stk", "b.stk", "-y", "no/such;."]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let line = "stk: warning: -y no/such: there is no such folder or file\n";
    assert_eq!(ran.error.matches(line).count(), 1, "{ran:?}");
    assert_eq!(ran.error.matches("no such folder").count(), 1, "{ran:?}");
}

#[test]
fn a_thread_is_named_first_in_its_row() {
    let dir = folder(&[("a.stk", &trace())]);
    let text = ran_in(dir.path(), &["stats", "a.stk", "--full"]).out;
    let rows: Vec<&str> =
        text.lines().skip_while(|line| !line.starts_with("Threads")).skip(1).take(3).collect();
    assert!(rows[0].trim_start().starts_with("tid  name "), "{text}");
    assert!(rows[1].trim_start().starts_with("11  main ") && rows[2].trim_start().starts_with("12  名前 "));
}
