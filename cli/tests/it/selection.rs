//! Selections on kept traces, through the program: what `--focus` takes and what `--ignore` takes
//! are the whole, hidden frames cost no time, and what is wrong is named.

use crate::support::{Ran, command, kept_text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use stk_schema::event::{Event, Metadata};
use stk_tests::traces;
use stk_tests::traces::{TestImage, in_function};

fn stk(arguments: &[&str]) -> Ran {
    Ran::of(&mut command(arguments))
}

/// Nanoseconds of wall time by folded stack.
fn folded(trace: &str, options: &[&str]) -> BTreeMap<String, u64> {
    let convert = ["convert", trace, "--to", "folded", "-o", "-", "--weight", "wall"];
    let ran = stk(&[&convert[..], options].concat());
    assert_eq!(ran.code, Some(i32::from(ran.out.is_empty())), "{options:?}: {ran:?}");
    let line = |line: &str| {
        let (stack, ns) = line.rsplit_once(' ').unwrap();
        (stack.to_owned(), ns.parse().unwrap())
    };
    ran.out.lines().map(line).collect()
}

fn stats(trace: &str, options: &[&str]) -> Value {
    let ran = stk(&[&["stats", "--json", trace], options].concat());
    let mut document: Value = serde_json::from_str(&ran.out).unwrap();
    let stats = document["traces"][0].take();
    // 1: nothing is chosen.
    let nothing = stats["totals"]["samples"] == 0;
    assert_eq!(ran.code, Some(i32::from(nothing)), "{options:?}: {ran:?}");
    stats
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// Samples, CPU time and wall time.
fn totals(stats: &Value) -> [u64; 3] {
    ["samples", "cpu_ns", "weight_ns"].map(|field| number(&stats["totals"][field]))
}

#[test]
fn what_is_focused_on_and_what_is_ignored_are_the_whole() {
    for (trace, patterns) in
        [("busy.stk", ["^mix$", "ntdll!"]), ("mixed.stk", ["Mixed\\.Work\\.Down", "^no such function$"])]
    {
        let trace = kept_text(trace);
        let (whole, stacks) = (stats(&trace, &[]), folded(&trace, &[]));
        for pattern in patterns {
            let [focus, ignore] = ["--focus", "--ignore"].map(|option| [option, pattern]);
            let [focused, ignored] = [focus, ignore].map(|options| stats(&trace, &options));
            for (i, all) in totals(&whole).into_iter().enumerate() {
                assert_eq!(totals(&focused)[i] + totals(&ignored)[i], all, "{trace} {pattern} {i}");
            }
            for selected in [&focused, &ignored] {
                assert_eq!(number(&selected["selection"]["whole"]["samples"]), totals(&whole)[0]);
                assert_eq!(number(&selected["selection"]["chosen"]["cpu_ns"]), totals(selected)[1]);
            }
            // A run's time is cut where the next one of its thread begins too early, so the runs
            // that are left may each gain a little.
            let sum = |stacks: &BTreeMap<String, u64>| stacks.values().sum::<u64>();
            let [focused, ignored] = [focus, ignore].map(|options| folded(&trace, &options));
            let both = sum(&focused) + sum(&ignored);
            assert!(both.abs_diff(sum(&stacks)) * 1000 <= sum(&stacks), "{trace} {pattern}");
        }
    }
}

#[test]
fn frames_that_are_left_out_change_no_total() {
    for (trace, hidden) in [("busy.stk", "^mix$|_work$"), ("mixed.stk", "Mixed\\.Work")] {
        let trace = kept_text(trace);
        let (whole, stacks) = (stats(&trace, &[]), folded(&trace, &[]));
        for options in [&["--hide", hidden][..], &["--my-code"], &["--skip-thread-start"], &["--hide", ""]] {
            let cut = stats(&trace, options);
            assert_eq!(totals(&cut), totals(&whole), "{trace} {options:?}");
            assert!(cut["selection"].is_null(), "all samples are there");
            let cut = folded(&trace, options);
            assert_eq!(cut.values().sum::<u64>(), stacks.values().sum::<u64>(), "{trace} {options:?}");
            assert_ne!(cut, stacks, "{trace} {options:?}");
        }
    }
}

/// A file of rules in a folder of its own.
fn rules(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("names.rules");
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

#[test]
fn rules_rename_frames_fold_neighbours_and_change_no_sum() {
    let trace = kept_text("busy.stk");
    let (_folder, file) = rules("# Two groups\n^plugin_|^use_plugins$ -> plugins\n\n^leaf_ -> leaves\n");
    let group = |name: &str| {
        let is_plugin = name.starts_with("plugin_") || name == "use_plugins";
        let other = if is_plugin { "plugins" } else { name };
        if name.starts_with("leaf_") { "leaves".to_owned() } else { other.to_owned() }
    };
    let mut expected: BTreeMap<String, u64> = BTreeMap::new();
    for (stack, ns) in folded(&trace, &[]) {
        let mut names: Vec<String> = Vec::new();
        for name in stack.split(';').map(group) {
            let is_group = ["plugins", "leaves"].contains(&name.as_str());
            if !(is_group && names.last() == Some(&name)) {
                names.push(name);
            }
        }
        *expected.entry(names.join(";")).or_default() += ns;
    }
    assert_eq!(folded(&trace, &["--rules", &file]), expected);
    let [plain, named] =
        [&["--top", "0"][..], &["--top", "0", "--rules", &file]].map(|options| stats(&trace, options));
    assert_eq!(totals(&named), totals(&plain));
    let own = |stats: &Value, is_it: &dyn Fn(&str) -> bool| -> u64 {
        let rows = stats["functions_by_self"].as_array().unwrap().iter();
        let rows = rows.filter(|row| is_it(row["function"].as_str().unwrap()));
        rows.map(|row| number(&row["self"]["weight_ns"])).sum()
    };
    for name in ["plugins", "leaves"] {
        let sum = own(&plain, &|function| group(function) == name);
        assert!(sum > 0 && own(&named, &|function| function == name) == sum, "{name}: {sum}");
        assert_eq!(own(&named, &|function| function != name && group(function) == name), 0);
    }
}

#[test]
fn wrong_rules_are_a_usage_error_with_file_and_line() {
    let trace = kept_text("busy.stk");
    for (text, says) in [
        ("a -> b\n\na(b -> c", "line 3: the pattern is not a regular expression: unclosed group"),
        ("malloc", "line 1: has no arrow; write PATTERN -> NAME"),
        (&"#".repeat((1 << 20) + 1), "has more than 1024 KiB"),
    ] {
        let (_folder, file) = rules(text);
        let ran = stk(&["stats", &trace, "--rules", &file]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(
            ran.error.contains("--rules") && ran.error.contains(&file) && ran.error.contains(says),
            "{ran:?}"
        );
    }
    let ran = stk(&["stats", &trace, "--rules", "no such file"]);
    assert!(ran.code == Some(2) && ran.error.contains("no such file"), "{ran:?}");
}

#[test]
fn the_programs_own_code_is_shown_without_the_systems() {
    let busy = folded(&kept_text("busy.stk"), &["--my-code"]);
    let names: Vec<&str> = busy.keys().flat_map(|stack| stack.split(';')).collect();
    assert!(
        names.iter().any(|name| name.starts_with("mix"))
            && names.iter().any(|name| name.contains("spawner_main")),
        "{names:?}"
    );
    for gone in ["RtlUserThreadStart", "NtWaitForSingleObject", "WaitForSingleObject"] {
        assert!(!names.contains(&gone), "{gone}");
    }
    let mixed = folded(&kept_text("mixed.stk"), &["--my-code"]);
    assert!(mixed.keys().any(|stack| stack.contains("Mixed.Work.Down") && stack.contains("native_work")));
    let mut names = mixed.keys().flat_map(|stack| stack.split(';'));
    assert!(!names.any(|name| name.starts_with("System.Private.CoreLib!") || name.contains("IL_STUB")));
}

#[test]
fn stacks_begin_where_root_says() {
    let trace = kept_text("busy.stk");
    let rooted = folded(&trace, &["--root", "spawner_main"]);
    assert!(!rooted.is_empty());
    for stack in rooted.keys() {
        assert!(stack.starts_with("`anonymous namespace'::spawner_main"), "{stack}");
    }
    let stats = stats(&trace, &["--root", "spawner_main"]);
    let [chosen, whole] = ["chosen", "whole"].map(|part| number(&stats["selection"][part]["samples"]));
    assert_eq!(chosen + number(&stats["selection"]["without_root"]), whole);
    let skipped = folded(&trace, &["--skip-thread-start"]);
    assert!(skipped.keys().any(|stack| stack.starts_with("`anonymous namespace'::spawner_main")));
    assert!(!skipped.keys().any(|stack| stack.starts_with("RtlUserThreadStart")));
}

#[test]
fn states_add_up_to_the_whole_and_threads_are_the_same_alone() {
    let trace = kept_text("mixed.stk");
    let whole = totals(&stats(&trace, &[]));
    let states = ["running", "waiting", "system-call", "unknown"];
    let sum = states.iter().fold([0; 3], |sum: [u64; 3], state| {
        let part = totals(&stats(&trace, &["--state", state]));
        [0, 1, 2].map(|i| sum[i] + part[i])
    });
    assert_eq!(sum, whole);
    assert_eq!(totals(&stats(&trace, &["--state", "running,waiting,system-call,unknown"])), whole);
    let all = stats(&trace, &["--top", "0"]);
    let threads = all["threads"].as_array().unwrap();
    for thread in [&threads[0], &threads[threads.len() - 1]] {
        // What a thread did and its CPU time are the same, whichever threads are chosen beside it.
        let alone = stats(&trace, &["--tid", &thread["tid"].to_string(), "--top", "0"]);
        assert_eq!(alone["threads"][0]["cpu_ns"], thread["cpu_ns"], "{thread}");
        assert_eq!(alone["threads"][0]["states"], thread["states"], "{thread}");
    }
    let tid = &all["threads"][0]["tid"];
    let hexadecimal = format!("{:#x}", number(tid));
    for option in ["--tid", "--thread"] {
        let named = stats(&trace, &[option, &hexadecimal]);
        assert_eq!(&named["threads"][0]["tid"], tid, "{option}");
    }
}

#[test]
fn the_order_of_options_and_the_number_of_workers_change_nothing() {
    let trace = kept_text("busy.stk");
    let convert = |options: &[&str]| {
        let ran = stk(&[&["convert", &trace, "--to", "speedscope", "-o", "-"], options].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.out
    };
    let one = convert(&["--focus", "work", "--hide", "^mix$", "--my-code", "-j", "1"]);
    assert_eq!(one, convert(&["-j", "4", "--my-code", "--hide", "^mix$", "--focus", "work"]));
}

#[test]
fn the_selection_is_reported() {
    let trace = kept_text("busy.stk");
    let ran = stk(&["stats", &trace, "--focus", "^mix$"]);
    let line = ran.out.lines().find(|line| line.starts_with("  selection: ")).unwrap();
    assert!(line.contains(" % of the CPU time (") && line.contains(" of 3,172)"), "{line}");
    let ran = stk(&["convert", &trace, "-o", "-", "--focus", "^mix$"]);
    assert!(ran.error.contains(&line[2..]), "{ran:?}");
    let ran = stk(&["stats", &trace, "--focus", "no such function", "--my-code"]);
    assert_eq!(ran.code, Some(1));
    let why = "no samples are left: none of the 3,172 samples has a frame that --focus names";
    assert!(ran.error.contains(why), "{ran:?}");
}

#[test]
fn a_bad_pattern_is_a_usage_error_that_names_its_option() {
    let trace = kept_text("busy.stk");
    let options = ["--thread", "--module", "--function", "--focus", "--ignore", "--hide", "--root"];
    for option in options {
        let ran = stk(&["stats", &trace, option, "a(b"]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.error.contains(option) && ran.error.contains("unclosed group"), "{ran:?}");
    }
    for (option, value) in [("--state", "asleep"), ("--tid", "x"), ("--pid", "x"), ("--label", "build")] {
        let ran = stk(&["stats", &trace, option, value]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.error.contains(option), "{ran:?}");
    }
}

/// A folder with a trace, which has a label or not.
fn labelled(name: &str, label: Option<&[u8]>) -> (tempfile::TempDir, PathBuf) {
    const BASE: u64 = 0x1_4000_0000;
    let mut builder = traces::trace();
    if let Some(value) = label {
        builder.meta(0, &Event::Metadata(Metadata { key: b"label.build", value }));
    }
    TestImage::new(r"C:\app\app.exe", 4).load(&mut builder, 0, BASE);
    let thread = builder.thread(0, 11, "main", 0x10_0000);
    traces::sample(&mut builder, thread, 10_000, 0x10_0000, &[in_function(BASE, 1)]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, builder.finish()).unwrap();
    (folder, path)
}

#[test]
fn traces_of_other_processes_and_labels_are_passed_over_with_a_note() {
    let (_a, old) = labelled("old.stk", Some(b"1233"));
    let (_b, new) = labelled("new.stk", Some(b"1234"));
    let (_c, none) = labelled("none.stk", None);
    let files = [&old, &new, &none].map(|path| path.to_str().unwrap());
    let of = |command: &[&str], options: &[&str]| stk(&[command, &files[..], options].concat());
    for command in [&["stats", "--each"][..], &["events"]] {
        let ran = of(command, &["--label", "build=1234"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.out.contains("new.stk") && !ran.out.contains("old.stk"), "{ran:?}");
        assert!(ran.error.contains("old.stk: passed over: its label build is 1233, not 1234"), "{ran:?}");
        assert!(ran.error.contains("none.stk: passed over: it has no label build"), "{ran:?}");
    }
    let of_process = of(&["stats", "--each"], &["--pid", "4404"]);
    assert!(files.iter().all(|file| of_process.out.contains(file)), "{of_process:?}");
    let others = of(&["stats"], &["--pid", "4405", "--pid", "1"]);
    assert_eq!(others.code, Some(1), "{others:?}");
    assert!(others.error.contains("new.stk: passed over: it is of process 4404"), "{others:?}");
    assert!(others.error.contains("none of 3 traces is one that --pid and --label choose"), "{others:?}");
}

/// The profiles of a speedscope document: name, and the sum of its weights in nanoseconds.
fn profiles(document: &str) -> Vec<(String, f64)> {
    let document: Value = serde_json::from_str(document).unwrap();
    let sum = |profile: &Value| {
        let weights = profile["weights"].as_array().unwrap().iter();
        (profile["name"].as_str().unwrap().to_owned(), weights.map(|weight| weight.as_f64().unwrap()).sum())
    };
    document["profiles"].as_array().unwrap().iter().map(sum).collect()
}

#[test]
fn threads_become_one_and_keep_their_time() {
    let trace = kept_text("busy.stk");
    let convert = |options: &[&str]| {
        let convert = ["convert", &trace, "--to", "speedscope", "--weight", "wall", "-o", "-"];
        let ran = stk(&[&convert[..], options].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        profiles(&ran.out)
    };
    let apart = convert(&[]);
    let merged = convert(&["--merge-threads"]);
    assert_eq!(merged.len(), 2, "the sum, and the one thread");
    assert_eq!(merged[1].0, "47 threads: time, waits included");
    assert!((merged[1].1 - apart[0].1).abs() < 1.0, "{merged:?}");
    let named = convert(&["--merge-threads=name"]);
    assert!(named.len() < apart.len(), "{named:?}");
    assert!(named.iter().any(|(name, _)| name.contains(" threads: ")), "{named:?}");
    let sum: f64 = named[1..].iter().map(|(_, ns)| ns).sum();
    assert!((sum - apart[0].1).abs() < 1.0, "{sum} {apart:?}");
    assert_eq!(folded(&trace, &["--merge-threads"]).values().sum::<u64>() as f64, apart[0].1);
}

#[test]
fn split_files_add_up_to_the_whole() {
    let trace = kept_text("busy.stk");
    let whole = totals(&stats(&trace, &[]))[2];
    for (split, ending, fewest) in [("thread", ".speedscope.json", 40), ("time=1s", ".speedscope.json.gz", 4)]
    {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join(format!("a{ending}"));
        let output = output.to_str().unwrap();
        let convert = ["convert", &trace, "-o", output, "--weight", "wall", "--split", split];
        let ran = stk(&convert);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let files: Vec<PathBuf> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(files.len() >= fewest, "{files:?}");
        assert!(ran.error.contains(&format!("wrote {} files", files.len())), "{ran:?}");
        let mut sum = 0.0;
        for file in &files {
            let name = file.file_name().unwrap().to_str().unwrap();
            assert!(
                name.starts_with("a.") && name.ends_with(ending) && name.len() > 2 + ending.len(),
                "{name}"
            );
            let bytes = std::fs::read(file).unwrap();
            let mut text = String::new();
            match ending.ends_with("gz") {
                true => {
                    let mut gunzip = flate2::read::GzDecoder::new(&bytes[..]);
                    std::io::Read::read_to_string(&mut gunzip, &mut text).unwrap();
                }
                false => text = String::from_utf8(bytes).unwrap(),
            }
            sum += profiles(&text)[0].1;
        }
        assert!((sum - whole as f64).abs() < 1.0, "{split}: {sum} of {whole}");
        // What is there is stk's own output of the same recording, so it is replaced; nothing is if
        // one file is another's.
        assert_eq!(stk(&convert).code, Some(0));
        std::fs::write(&files[0], "mine").unwrap();
        let refused = stk(&convert);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert_eq!(std::fs::read(&files[0]).unwrap(), b"mine");
    }
}

#[test]
fn outputs_that_cannot_be_split_or_merged_say_so() {
    let trace = kept_text("busy.stk");
    for (options, says) in [
        (&["--to", "chrome", "--merge-threads"][..], "--merge-threads is for flame graphs"),
        (&["--to", "parquet", "--split", "thread"], "--split makes files"),
        (&["-o", "-", "--split", "thread"], "standard output"),
        (&["-o", "x.folded", "--split", "time=1us"], "--split"),
        (&["--split", "thread", "--merge-threads"], "--merge-threads gives up"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_stk"));
        let output =
            command.args(["convert", &trace]).args(options).current_dir(folder.path()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code().is_some_and(|code| code != 0), "{options:?} {error}");
        assert!(error.contains(says), "{options:?} {error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{options:?}");
    }
}

#[test]
fn lines_of_one_function_are_apart_on_request() {
    let trace = kept_text("busy.stk");
    let lines = folded(&trace, &["--lines"]);
    assert_eq!(lines.values().sum::<u64>(), folded(&trace, &[]).values().sum::<u64>());
    let mut names = lines.keys().flat_map(|stack| stack.split(';'));
    assert!(names.any(|name| name.starts_with("spawn_worker:")), "{:?}", lines.keys().next());
    let chrome = stk(&["convert", &trace, "--to", "chrome", "-o", "-", "--lines"]);
    assert!(chrome.out.contains("\"spawn_worker:"), "{}", chrome.error);
}

/// The threads of a moment in `stk dump`: id, state, and the functions of each frame, innermost
/// first, each with its module.
type Dumped = Vec<DumpedThread>;
type DumpedThread = (u64, String, Vec<DumpedFrame>);
type DumpedFrame = (String, String);

fn dumped(trace: &str, options: &[&str]) -> (Dumped, String) {
    let ran = stk(&[&["dump", trace, "--at", "2s", "--style", "json"], options].concat());
    let document: Value = serde_json::from_str(&ran.out).unwrap();
    let nothing = document["threads"].as_array().unwrap().is_empty();
    assert_eq!(ran.code, Some(i32::from(nothing)), "{options:?}: {ran:?}");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let threads = document["threads"].as_array().unwrap().iter().map(|thread| {
        let frames = thread["frames"].as_array().unwrap().iter().flat_map(|frame| {
            let inline = frame["inline"].as_array().unwrap().iter().map(|name| text(&name["function"]));
            let names = inline.chain([text(&frame["function"])]);
            names.map(|name| (text(&frame["module"]), name)).collect::<Vec<_>>()
        });
        (number(&thread["tid"]), text(&thread["state"]), frames.collect())
    });
    (threads.collect(), ran.error)
}

#[test]
fn dump_chooses_stacks_and_frames_as_stats_does() {
    let trace = kept_text("busy.stk");
    let (all, reported) = dumped(&trace, &[]);
    assert!(all.len() > 5 && !reported.contains("selection"), "{reported}");
    let has = |stack: &DumpedThread, name: &str| stack.2.iter().any(|(_, function)| function == name);
    let with: Dumped = all.iter().filter(|stack| has(stack, "spawn_worker")).cloned().collect();
    assert!(!with.is_empty() && with.len() < all.len());
    for option in ["--function", "--focus"] {
        let (found, reported) = dumped(&trace, &[option, "^spawn_worker$"]);
        assert_eq!(found, with, "{option}");
        let share = format!("selection: {} of {} stacks", with.len(), all.len());
        assert!(reported.contains(&share), "{reported}");
    }
    let without: Dumped = all.iter().filter(|stack| !has(stack, "spawn_worker")).cloned().collect();
    assert_eq!(dumped(&trace, &["--ignore", "^spawn_worker$"]).0, without);
    let waiting: Dumped = all.iter().filter(|stack| stack.1 == "waiting").cloned().collect();
    assert_eq!(dumped(&trace, &["--state", "waiting"]).0, waiting);
    let in_busy = |stack: &&DumpedThread| stack.2.iter().any(|name| name.0 == "busy.exe");
    let busy: Dumped = all.iter().filter(in_busy).cloned().collect();
    assert_eq!(dumped(&trace, &["--module", "^BUSY"]).0, busy);
    // Frames: those of all threads stay, except for what is left out.
    let cut = |keep: &dyn Fn(usize, &[DumpedFrame]) -> bool| -> Dumped {
        let frames = |names: &[DumpedFrame]| {
            let kept = (0..names.len()).filter(|&at| keep(at, names));
            kept.map(|at| names[at].clone()).collect()
        };
        all.iter().map(|(tid, state, names)| (*tid, state.clone(), frames(names))).collect()
    };
    let hidden = cut(&|at, names| names[at].1 != "spawn_worker");
    assert_eq!(dumped(&trace, &["--hide", "^spawn_worker$"]).0, hidden);
    let mine = dumped(&trace, &["--my-code"]).0;
    let modules: std::collections::BTreeSet<&str> =
        mine.iter().flat_map(|stack| &stack.2).map(|(module, _)| module.as_str()).collect();
    assert!(modules.contains("busy.exe") && !modules.contains("ntdll.dll"), "{modules:?}");
    let rooted = dumped(&trace, &["--root", "^spawn_worker$"]).0;
    assert_eq!(rooted.len(), with.len());
    assert!(rooted.iter().all(|stack| stack.2.last().unwrap().1 == "spawn_worker"), "{rooted:?}");
    let skipped = dumped(&trace, &["--skip-thread-start"]).0;
    assert!(skipped.iter().all(|stack| !has(stack, "RtlUserThreadStart")), "{skipped:?}");
}

#[test]
fn dump_says_what_is_left_and_which_options_do_not_fit() {
    let trace = kept_text("busy.stk");
    let (none, reported) = dumped(&trace, &["--focus", "^no such function$"]);
    assert!(none.is_empty() && reported.contains("none of "), "{reported}");
    let error = |options: &[&str]| {
        let ran = stk(&[&["dump"], options].concat());
        assert_ne!(ran.code, Some(0), "{options:?}");
        ran.error
    };
    assert!(error(&[&trace, "--from", "1s"]).contains("--at"));
    assert!(error(&["--pid", "4", "--label", "a=b"]).contains("name a FILE"));
    assert!(error(&[&trace, "--label", "build=none"]).contains("passed over"));
    assert!(error(&[&trace, "--pid", "1"]).contains("passed over: it is of process "));
}

#[test]
fn events_are_chosen_by_their_modules() {
    let trace = kept_text("busy.stk");
    let modules = |options: &[&str]| -> Vec<String> {
        let ran = stk(&[&["events", "--json", &trace], options].concat());
        let document: Value = serde_json::from_str(&ran.out).unwrap();
        let events = document["traces"][0]["events"].as_array().unwrap();
        events.iter().map(|event| event["module"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let plugin_a = modules(&["--module", "^PLUGIN_A"]);
    let expected: Vec<String> =
        modules(&[]).into_iter().filter(|module| module.starts_with("plugin_a")).collect();
    assert!(!expected.is_empty());
    assert_eq!(plugin_a, expected);
}
