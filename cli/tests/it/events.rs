//! `stk events`, and the stacks of captures in `stk dump`: through the program, on built traces.

use crate::support::{command_in, kept_text, stk};
use serde_json::{Value, json};
use std::io::Write as _;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;
use stk_schema::Ticks;
use stk_schema::event::{Event, Exception, Mark, ModuleFlags, ModuleLoad};
use stk_tests::schema;
use stk_tests::traces;
use stk_tests::traces::{TestImage, in_function};

const BASE: u64 = 0x1_4000_0000;
const PLUGIN: u64 = 0x1_8000_0000;
const STACK: u64 = 0x10_0000;

/// What a command prints that must succeed without a warning.
fn printed(folder: &Path, arguments: &[&str]) -> String {
    let output = stk(folder, arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*error), (Some(0), ""), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The error of a command that must fail.
fn error(folder: &Path, arguments: &[&str]) -> String {
    let output = stk(folder, arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn json(folder: &Path, arguments: &[&str], schema: &str) -> Value {
    let value = serde_json::from_str(&printed(folder, arguments)).unwrap();
    schema::check(&serde_json::from_str(schema).unwrap(), &value).expect("follows its schema");
    value
}

const EVENTS_SCHEMA: &str = include_str!("../../../schema/events.schema.json");
const INFO_SCHEMA: &str = include_str!("../../../schema/info.schema.json");
const DUMP_SCHEMA: &str = include_str!("../../../schema/dump.schema.json");

/// A folder with a.stk: a trace with an event of each kind, whose threads 11 "eins" and 12 "zwei"
/// capture themselves with the tags 7, 9 and the largest one. 10,000 ticks are a millisecond.
fn folder() -> tempfile::TempDir {
    let mut builder = traces::trace();
    TestImage::new(r"C:\app\app.exe", 8).load(&mut builder, 0, BASE);
    let there = ModuleLoad {
        instance: 900,
        time: Ticks(0),
        base: 0x5000_0000,
        size: 0x1000,
        flags: ModuleFlags::AT_START,
        path: br"C:\app\early.dll",
        identities: Vec::new(),
    };
    builder.meta(0, &Event::ModuleLoad(there));
    let eins = builder.thread(0, 11, "eins", STACK);
    let zwei = builder.thread(0, 12, "zwei", 2 * STACK);
    let f = |n| in_function(BASE, n);
    traces::sample(&mut builder, eins, 10_000, STACK, &[f(5)]);
    traces::capture(&mut builder, (zwei, 2 * STACK), 20_000, &[f(1), f(2)], 7);
    // Threads need not be stored in the order of time.
    traces::capture(&mut builder, (eins, STACK), 30_000, &[f(3)], 7);
    traces::capture(&mut builder, (zwei, 2 * STACK), 25_000, &[f(1), f(2)], 9);
    let plugin = TestImage::new(r"C:\app\plugin.dll", 2).load(&mut builder, 35_000, PLUGIN);
    builder.meta(50_000, &Event::Mark(Mark { time: Ticks(50_000), thread: eins, tag: 7, text: b"half" }));
    traces::sample(&mut builder, eins, 54_000, STACK, &[f(5)]);
    builder.push(&Event::Mark(Mark { time: Ticks(55_000), thread: 0, tag: 2, text: b"" }));
    let exception = Exception { thread: zwei, time: Ticks(60_000), code: 0xC000_0005, address: f(2) };
    builder.meta(60_000, &Event::Exception(exception));
    builder.unload(70_000, plugin);
    traces::capture(&mut builder, (zwei, 2 * STACK), 80_000, &[f(4)], u64::MAX);
    builder.exit(90_000, zwei);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.stk"), builder.finish()).unwrap();
    folder
}

/// Number, milliseconds, kind, thread id and tag of each event of `folder`.
fn expected() -> Value {
    json!([
        [1, 0.0, "load", null, null],
        [2, 0.0, "load", null, null],
        [3, 0.0, "load", null, null],
        [4, 0.0, "thread-start", 11, null],
        [5, 0.0, "thread-start", 12, null],
        [6, 2.0, "capture", 12, 7],
        [7, 2.5, "capture", 12, 9],
        [8, 3.0, "capture", 11, 7],
        [9, 3.5, "load", null, null],
        [10, 5.0, "mark", 11, 7],
        [11, 5.5, "mark", null, 2],
        [12, 6.0, "exception", 12, null],
        [13, 7.0, "unload", null, null],
        [14, 8.0, "capture", 12, u64::MAX],
        [15, 9.0, "thread-exit", 12, null],
    ])
}

/// The events of a.stk in the form of [`expected`].
fn listed(folder: &Path, more: &[&str]) -> Value {
    let value = json(folder, &[&["events", "--json", "a.stk"], more].concat(), EVENTS_SCHEMA);
    let events = value["traces"][0]["events"].as_array().unwrap().iter();
    let row = |event: &Value| {
        let ms = event["time_ns"].as_f64().unwrap() / 1e6;
        json!([event["number"], ms, event["kind"], event["tid"], event["tag"]])
    };
    events.map(row).collect()
}

#[test]
fn events_lists_every_event_in_time() {
    let folder = folder();
    assert_eq!(listed(folder.path(), &[]), expected());
    let value = json(folder.path(), &["events", "--json", "a.stk"], EVENTS_SCHEMA);
    let trace = &value["traces"][0];
    assert_eq!((&trace["total"], &trace["modules_at_start"]), (&json!(15), &json!(1)));
    let mut wrong = value.clone();
    wrong["traces"][0]["events"][0]["kind"] = json!("arrival");
    let schema = serde_json::from_str(EVENTS_SCHEMA).unwrap();
    assert!(schema::check(&schema, &wrong).is_err(), "the schema says something");
    let event = |number: usize| trace["events"][number - 1].clone();
    assert_eq!(event(6)["thread_name"], "zwei");
    assert_eq!(event(6)["time_utc"], "2023-11-14T22:13:20.002Z");
    assert_eq!(event(14)["tag_hex"], "0xffffffffffffffff");
    assert_eq!(event(10)["text"], "half");
    assert_eq!((&event(12)["code"], &event(12)["address"]), (&json!("0xc0000005"), &json!("0x140001090")));
    for number in [9, 13] {
        let event = event(number);
        assert_eq!((&event["module"], &event["base"]), (&json!("plugin.dll"), &json!("0x180000000")));
        assert_eq!((&event["path"], &event["size"]), (&json!(r"C:\app\plugin.dll"), &json!(0x10_0000)));
    }
}

#[test]
fn the_table_has_a_line_for_each_event_below_a_heading_for_each_trace() {
    let folder = folder();
    std::fs::copy(folder.path().join("a.stk"), folder.path().join("b.stk")).unwrap();
    let one = printed(folder.path(), &["events", "a.stk"]);
    let lines: Vec<&str> = one.lines().collect();
    assert_eq!(lines.len(), 2 + 15, "{one}");
    let heading = "a.stk: pid 4404 (pid 4404): 15 events; at the start there were 1 module and 0 threads";
    assert_eq!(lines[0], heading);
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(words(lines[1]), "event time by the clock thread kind what");
    assert_eq!(words(lines[7]), "6 0.002 s 2023-11-14T22:13:20.002Z 12 \"zwei\" capture tag 7 (0x7)");
    assert_eq!(
        words(lines[10]),
        "9 0.003 s 2023-11-14T22:13:20.003Z - load C:\\app\\plugin.dll at 0x180000000, 1.0 MiB"
    );
    assert_eq!(words(lines[11]), "10 0.005 s 2023-11-14T22:13:20.005Z 11 \"eins\" mark tag 7 (0x7): half");
    assert!(lines[13].ends_with("exception     0xc0000005 at 0x140001090"), "{}", lines[13]);
    assert!(lines[15].ends_with("tag 18446744073709551615 (0xffffffffffffffff)"), "{}", lines[15]);
    // The columns stand below each other.
    let column =
        |line: &str, text: &str| line.chars().count() - line[line.find(text).unwrap()..].chars().count();
    let kinds = [(1, "kind"), (2, "load"), (7, "capture"), (10, "load"), (16, "thread-exit")];
    let columns: Vec<usize> = kinds.iter().map(|&(n, kind)| column(lines[n], kind)).collect();
    assert!(columns.iter().all(|&column| column == columns[0]), "{columns:?}\n{one}");

    let both = printed(folder.path(), &["events", "a.stk", "b.stk"]);
    assert_eq!(both, format!("{one}\n{}", one.replace("a.stk", "b.stk")));
}

#[test]
fn the_bytes_do_not_depend_on_the_number_of_threads() {
    let folder = folder();
    for more in [&[][..], &["--json"]] {
        let of = |jobs| printed(folder.path(), &[&["events", "a.stk", "-j", jobs], more].concat());
        assert_eq!(of("1"), of("2"));
        assert_eq!(of("1"), of("7"));
    }
}

#[test]
fn filters_choose_events_and_leave_their_numbers() {
    let folder = folder();
    let chosen = |more: &[&str]| -> Vec<u64> {
        let rows = listed(folder.path(), more);
        let all = expected();
        let rows = rows.as_array().unwrap().iter();
        let known = |row: &Value| all.as_array().unwrap().contains(row);
        rows.inspect(|row| assert!(known(row), "{row}")).map(|row| row[0].as_u64().unwrap()).collect()
    };
    assert_eq!(chosen(&["--kind", "capture"]), [6, 7, 8, 14]);
    assert_eq!(chosen(&["--kind", "load,unload"]), [1, 2, 3, 9, 13]);
    assert_eq!(chosen(&["--kind", "exception", "--kind", "mark"]), [10, 11, 12]);
    assert_eq!(chosen(&["--kind", "thread-start,thread-exit"]), [4, 5, 15]);
    assert_eq!(chosen(&["--tag", "7"]), [6, 8, 10], "marks have tags too");
    assert_eq!(chosen(&["--tag", "0x9", "--tag", "2"]), [7, 11]);
    assert_eq!(chosen(&["--thread", "zwei"]), [5, 6, 7, 12, 14, 15]);
    assert_eq!(chosen(&["--thread", "11", "--kind", "capture"]), [8]);
    assert_eq!(chosen(&["--from", "2.5ms", "--until", "5ms"]), [7, 8, 9], "the end is not part of it");
    assert_eq!(chosen(&["--tag", "1"]), [0; 0]);
    let none = printed(folder.path(), &["events", "a.stk", "--tag", "1"]);
    assert!(none.starts_with("a.stk: pid 4404 (pid 4404): 0 of 15 events;"), "{none}");
    for wrong in
        [&["--kind", "sample"][..], &["--tag", "x"], &["--from", "2s", "--until", "1s"], &["-j", "0"]]
    {
        let output = stk(folder.path(), &[&["events", "a.stk"], wrong].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
    assert!(error(folder.path(), &["events", "a.stk", "--thread", "drei"]).contains("drei"));
}

/// Event, thread id, and functions of each stack in the JSON of `stk dump`, innermost first.
fn dumped(folder: &Path, more: &[&str]) -> Vec<(u64, u64, Vec<String>)> {
    let value = json(folder, &[&["dump", "a.stk", "--style", "json"], more].concat(), DUMP_SCHEMA);
    let stack = |thread: &Value| {
        let frames = thread["frames"].as_array().unwrap().iter();
        let names = frames.map(|frame| frame["function"].as_str().unwrap().to_owned()).collect();
        (thread["event"].as_u64().unwrap(), thread["tid"].as_u64().unwrap(), names)
    };
    value["threads"].as_array().unwrap().iter().map(stack).collect()
}

/// The stack of a thread in these functions of app.exe, by the offsets of their starts.
fn of_app(offsets: &[&str]) -> Vec<String> {
    let own = offsets.iter().map(|offset| format!("app.exe!fn_{offset}"));
    own.chain(["BaseThreadInitThunk", "RtlUserThreadStart"].map(str::to_owned)).collect()
}

#[test]
fn dump_prints_the_stacks_of_captures_in_time() {
    let folder = folder();
    // Functions are 40h bytes apart from 1000h on.
    let (six, eight) = ((6, 12, of_app(&["1080", "1040"])), (8, 11, of_app(&["10c0"])));
    let seven = (7, 12, of_app(&["1080", "1040"]));
    assert_eq!(dumped(folder.path(), &["--tag", "7"]), [six.clone(), eight.clone()]);
    assert_eq!(dumped(folder.path(), &["--event", "8", "--event", "6"]), [six.clone(), eight.clone()]);
    assert_eq!(dumped(folder.path(), &["--tag", "7", "--event", "7"]), [six.clone(), seven, eight.clone()]);
    assert_eq!(dumped(folder.path(), &["--tag", "7", "--event", "6"]), [six, eight.clone()], "once each");
    assert_eq!(dumped(folder.path(), &["--tag", "7", "--thread", "eins"]), [eight]);
    let merged =
        printed(folder.path(), &["dump", "a.stk", "--tag", "7", "--event", "7", "--style", "merged"]);
    assert!(
        merged.contains("2 threads, running: 12 \"zwei\" in event 6, 12 \"zwei\" in event 7"),
        "{merged}"
    );
    let last = (14, 12, of_app(&["1100"]));
    assert_eq!(dumped(folder.path(), &["--tag", "0xffffffffffffffff"]), [last]);
    let value = json(folder.path(), &["dump", "a.stk", "--tag", "7", "--style", "json"], DUMP_SCHEMA);
    let (first, last) = (&value["threads"][0], &value["threads"][1]);
    assert_eq!((&first["tag"], &first["tag_hex"]), (&json!(7), &json!("0x7")));
    assert_eq!((&first["sampled_ns"], &last["sampled_ns"]), (&json!(2_000_000), &json!(3_000_000)));
    assert_eq!(value["time_ns"], 3_000_000);
    let moment = json(folder.path(), &["dump", "a.stk", "--style", "json"], DUMP_SCHEMA);
    assert_eq!(moment["threads"][0].get("tag"), None, "only captures have tags");
}

#[test]
fn every_style_of_dump_has_a_heading_for_each_capture() {
    let folder = folder();
    let headings = [
        "2023-11-14T22:13:20.002Z thread 12 \"zwei\", running, captured at 0.002 s, event 6, tag 7 (0x7)",
        "2023-11-14T22:13:20.003Z thread 11 \"eins\", running, captured at 0.003 s, event 8, tag 7 (0x7)",
    ];
    for style in ["k", "plain", "clrstack"] {
        let text = printed(folder.path(), &["dump", "a.stk", "--tag", "7", "--style", style]);
        let found: Vec<&str> = text.lines().filter(|line| line.contains("captured at")).collect();
        assert_eq!(found, headings, "{style}");
        let (first, second) = text.split_once("\n\n").expect("an empty line between two stacks");
        assert!(first.contains("app.exe!fn_1080") && !first.contains("app.exe!fn_10c0"), "{text}");
        assert!(second.contains("app.exe!fn_10c0") && text.ends_with('\n'), "{text}");
    }
    let explained = printed(folder.path(), &["dump", "a.stk", "--event", "6", "--explain"]);
    assert!(explained.contains("UNWIND_INFO v1 at 0xc0000 of function 0x1080..0x10c0"), "{explained}");
}

#[test]
fn an_event_or_a_tag_without_a_stack_is_an_error_that_says_what_there_is() {
    let folder = folder();
    let of = |more: &[&str]| error(folder.path(), &[&["dump", "a.stk"], more].concat());
    for number in ["0", "16", "18446744073709551615"] {
        let text = of(&["--event", number]);
        assert!(text.contains(&format!("event {number} ")) && text.contains("`stk events a.stk`"), "{text}");
    }
    let text = of(&["--event", "9"]);
    assert!(text.contains("event 9 ") && text.contains(" load"), "{text}");
    assert!(text.contains("`stk events a.stk --kind capture`"), "{text}");
    let text = of(&["--tag", "7", "--tag", "8"]);
    let says = "no capture has the tag 8 (0x8): there are 7 (0x7), 9 (0x9), 18446744073709551615 (0xff";
    assert!(text.contains(says), "{text}");
    let text = of(&["--tag", "9", "--thread", "eins"]);
    assert!(text.contains("--thread"), "{text}");
    for (both, code) in [(["--at", "1s"], 2), (["--pid", "1"], 1), (["--from", "1h"], 1)] {
        let output = stk(folder.path(), &[&["dump", "a.stk", "--tag", "7"], &both[..]].concat());
        assert_eq!(output.status.code(), Some(code), "{both:?}");
    }

    let mut builder = traces::trace();
    let thread = builder.thread(0, 11, "eins", STACK);
    traces::sample(&mut builder, thread, 10_000, STACK, &[]);
    std::fs::write(folder.path().join("none.stk"), builder.finish()).unwrap();
    let text = error(folder.path(), &["dump", "none.stk", "--tag", "7"]);
    assert!(text.contains("no captures") && text.contains("stk_capture"), "{text}");
}

#[test]
fn captures_that_do_not_fit_into_memory_at_once_are_printed_in_parts() {
    const COUNT: usize = 2_000;
    let folder = tempfile::tempdir().unwrap();
    let mut builder = traces::trace();
    TestImage::new(r"C:\app\app.exe", 8).load(&mut builder, 0, BASE);
    let thread = builder.thread(0, 11, "eins", STACK);
    for i in 1..=COUNT as u64 {
        traces::capture(&mut builder, (thread, STACK), i * 100, &[in_function(BASE, (i % 8) as u32)], i % 2);
        if i % 100 == 0 {
            builder.cut();
        }
    }
    std::fs::write(folder.path().join("a.stk"), builder.finish()).unwrap();
    for style in ["k", "json"] {
        let line = ["dump", "a.stk", "--tag", "1", "--style", style];
        let whole = printed(folder.path(), &line);
        assert_eq!(whole.matches("app.exe!fn_1").count(), COUNT / 2, "{style}");
        // Stacks may take a quarter of this: less than 200 at a time.
        assert!(whole == printed(folder.path(), &[&line[..], &["--max-memory", "4M"]].concat()), "{style}");
    }
    // The events alone take more than this.
    let output = stk(folder.path(), &["events", "a.stk", "--max-memory", "100K"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{text}");
    assert!(text.contains("events are left out") && text.contains("--max-memory"), "{text}");
    // A capture whose stack takes more than a quarter of this.
    let output = stk(folder.path(), &["dump", "a.stk", "--event", "6", "--max-memory", "16K"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{text}");
    assert!(text.contains("1 stacks are left out"), "{text}");
}

#[test]
fn a_lost_block_loses_its_captures_and_is_reported() {
    let folder = folder();
    let mut file = std::fs::read(folder.path().join("a.stk")).unwrap();
    let offset = {
        let trace = stk_format::Trace::open(&file).unwrap();
        let samples = stk_format::BlockKind::Samples;
        let block = trace.blocks().iter().find(|block| block.header.kind == samples).unwrap();
        block.offset as usize + stk_format::BLOCK_HEADER_LEN + 20
    };
    file[offset] ^= 0x5A;
    std::fs::write(folder.path().join("a.stk"), &file).unwrap();
    let output = stk(folder.path(), &["events", "a.stk", "--kind", "capture"]);
    let (text, reported) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(4), "{reported}");
    assert!(reported.contains("a.stk: block"), "{reported}");
    assert!(text.starts_with("a.stk: pid 4404 (pid 4404): 1 of 12 events;"), "{text}");
    let output = stk(folder.path(), &["dump", "a.stk", "--tag", "0xffffffffffffffff"]);
    assert_eq!(output.status.code(), Some(4), "the stack that is left, and a warning");
    assert!(String::from_utf8_lossy(&output.stdout).contains("app.exe!fn_1100"));
}

#[test]
fn a_renamed_thread_shows_all_its_names() {
    let mut builder = traces::trace();
    let thread = builder.thread(0, 11, "first", STACK);
    for (time, name) in [(20_000, "second"), (30_000, "second"), (40_000, "third")] {
        let name = name.as_bytes();
        builder.meta(time, &Event::ThreadName { instance: thread, time: Ticks(time), name });
    }
    builder.exit(50_000, thread);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.stk"), builder.finish()).unwrap();
    let value = json(folder.path(), &["events", "--json", "a.stk"], EVENTS_SCHEMA);
    let of_thread =
        value["traces"][0]["events"].as_array().unwrap().iter().filter(|event| event["tid"] == 11);
    let rows: Vec<Value> = of_thread
        .map(|event| json!([event["kind"], event["thread_name"], event["earlier_name"], event["name"]]))
        .collect();
    let expected = json!([
        ["thread-start", "first", null, null],
        ["thread-name", "second", "first", "second"],
        ["thread-name", "third", "second", "third"],
        ["thread-exit", "third", null, null],
    ]);
    assert_eq!(json!(rows), expected);
    let named = json(folder.path(), &["events", "--json", "--kind", "thread-name", "a.stk"], EVENTS_SCHEMA);
    assert_eq!(named["traces"][0]["events"].as_array().unwrap().len(), 2);
    let value = json(folder.path(), &["info", "--json", "a.stk"], INFO_SCHEMA);
    let thread = value["traces"][0]["threads"].as_array().unwrap().iter().find(|thread| thread["tid"] == 11);
    let earlier =
        json!([{"name": "first", "until_ns": 2_000_000}, {"name": "second", "until_ns": 4_000_000}]);
    assert_eq!(thread.unwrap()["earlier_names"], earlier);
    let printed = printed(folder.path(), &["info", "--all", "a.stk"]);
    assert!(printed.contains("third  (before: first to 0.002 s, second to 0.004 s)"), "{printed}");
}

/// The frames in which threads start, in the form `plain`. The caller of a captured function is
/// found without its code.
const STARTS: [&str; 2] = [
    "\"kernel32.dll\"! 0x7ff700001010: BaseThreadInitThunk",
    "\"ntdll.dll\"! 0x7ff800001010: RtlUserThreadStart",
];
const UP_TO_EVENT_11: &str = "\
2023-11-14T22:13:20.003Z load at 0.003 s, event 9: C:\\app\\plugin.dll at 0x180000000, 1.0 MiB
2023-11-14T22:13:20.005Z thread 11 \"eins\", mark at 0.005 s, event 10: tag 7 (0x7): half
2023-11-14T22:13:20.005Z mark at 0.005 s, event 11: tag 2 (0x2):
";

/// What `--stacks` prints of `folder` from event 6 on.
fn played() -> String {
    let two = "\"app.exe\"! 0x140001090: app.exe!fn_1080\n\"app.exe\"! 0x140001050: app.exe!fn_1040";
    let stack = |time: &str, thread: &str, number: &str, tag: &str, frames: &str| {
        let clock = format!("2023-11-14T22:13:20.{}Z", &time[2..5]);
        let heading =
            format!("{clock} thread {thread}, running, captured at {time} s, event {number}, tag {tag}");
        let lines = frames.lines().chain(STARTS);
        let doubt = |n: usize| if n == 1 { "  (unwind-info-no-code)" } else { "" };
        let lines: Vec<String> = lines.enumerate().map(|(n, line)| format!("{line}{}\n", doubt(n))).collect();
        format!("{heading}\n{}", lines.concat())
    };
    let pieces = [
        stack("0.002", "12 \"zwei\"", "6", "7 (0x7)", two),
        stack("0.002", "12 \"zwei\"", "7", "9 (0x9)", two),
        stack("0.003", "11 \"eins\"", "8", "7 (0x7)", "\"app.exe\"! 0x1400010d0: app.exe!fn_10c0"),
        format!(
            "{UP_TO_EVENT_11}2023-11-14T22:13:20.006Z thread 12 \"zwei\", exception at 0.006 s, event 12: \
             0xc0000005 at 0x140001090\n2023-11-14T22:13:20.007Z unload at 0.007 s, event 13: \
             C:\\app\\plugin.dll at 0x180000000, 1.0 MiB\n"
        ),
        stack(
            "0.008",
            "12 \"zwei\"",
            "14",
            "18446744073709551615 (0xffffffffffffffff)",
            "\"app.exe\"! 0x140001110: app.exe!fn_1100",
        ),
        "2023-11-14T22:13:20.009Z thread 12 \"zwei\", thread-exit at 0.009 s, event 15\n".to_owned(),
    ];
    pieces.join("\n")
}

#[test]
fn stacks_of_captures_stand_among_the_events_in_time() {
    let folder = folder();
    let of = |more: &[&str]| printed(folder.path(), &[&["events", "a.stk", "--stacks"], more].concat());
    assert_eq!(of(&["--from", "2ms"]), played());
    assert_eq!(of(&["--kind", "load,mark", "--from", "2ms"]), UP_TO_EVENT_11);
    // Each style is that of dump.
    for style in ["k", "clrstack"] {
        let played = printed(folder.path(), &["events", "a.stk", &format!("--stacks={style}"), "--tag", "9"]);
        assert_eq!(
            played,
            printed(folder.path(), &["dump", "a.stk", "--style", style, "--tag", "9"]),
            "{style}"
        );
    }
    std::fs::copy(folder.path().join("a.stk"), folder.path().join("b.stk")).unwrap();
    let both = printed(folder.path(), &["events", "a.stk", "b.stk", "--stacks", "--kind", "unload"]);
    let one = of(&["--kind", "unload"]);
    assert_eq!(both, format!("{one}\n{one}"));
    for wrong in [
        &["--stacks=merged"][..],
        &["--stacks=json"],
        &["--stacks", "--json"],
        &["--follow"],
        &["--stacks", "--follow", "b.stk"],
    ] {
        let output = stk(folder.path(), &[&["events", "a.stk"], wrong].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn an_exception_has_the_stack_of_its_own_capture() {
    let mut builder = traces::trace();
    TestImage::new(r"C:\app\app.exe", 8).load(&mut builder, 0, BASE);
    let eins = builder.thread(0, 11, "eins", STACK);
    let zwei = builder.thread(0, 12, "zwei", 2 * STACK);
    let f = |n| in_function(BASE, n);
    for (thread, stack, function) in [(eins, STACK, 3), (zwei, 2 * STACK, 4)] {
        let exception = Exception { thread, time: Ticks(60_000), code: 0xC000_0005, address: f(function) };
        builder.meta(60_000, &Event::Exception(exception));
        traces::capture(&mut builder, (thread, stack), 60_000, &[f(function)], 0xC000_0005);
    }
    traces::capture(&mut builder, (zwei, 2 * STACK), 70_000, &[f(5)], 0xC000_0005);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.stk"), builder.finish()).unwrap();
    let text = printed(folder.path(), &["events", "a.stk", "--stacks", "--kind", "exception"]);
    let of_start = |line: &str| STARTS.iter().any(|start| line.starts_with(start));
    let lines = text.lines().filter(|line| !of_start(line) && !line.is_empty());
    let lines: Vec<&str> = lines.collect();
    assert_eq!(lines.len(), 6, "{text}");
    for (at, thread, function) in [(0, "11 \"eins\"", "fn_10c0"), (3, "12 \"zwei\"", "fn_1100")] {
        assert!(lines[at].contains(&format!("thread {thread}, exception at 0.006 s")), "{text}");
        assert!(lines[at + 1].contains(&format!("thread {thread}, running, captured at 0.006 s")), "{text}");
        assert!(lines[at + 2].ends_with(function), "{text}");
    }
}

/// The output of `events --follow` on a file that is written in two pieces; `end` is what happens
/// to it last.
fn followed(bytes: &[u8], end: impl FnOnce(&Path)) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("grows.stk");
    let mut file = std::fs::File::create(&path).unwrap();
    let (first, second) = bytes.split_at(bytes.len() * 2 / 3);
    file.write_all(first).unwrap();
    let mut command = command_in(folder.path(), &["events", "grows.stk", "--stacks", "--follow"]);
    let command = command.args(["--from", "2ms"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = command.spawn().unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    file.write_all(second).unwrap();
    end(&path);
    running.wait_with_output().unwrap()
}

#[test]
fn a_trace_that_grows_is_played_to_the_recordings_end() {
    let folder = folder();
    let bytes = std::fs::read(folder.path().join("a.stk")).unwrap();
    let output = followed(&bytes, |_| ());
    assert_eq!((output.status.code(), &*String::from_utf8_lossy(&output.stderr)), (Some(0), ""));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), played());
    // Of a file that goes away, what was in it is printed.
    let cut = &bytes[..bytes.len() - 300];
    let output = followed(cut, |path| std::fs::remove_file(path).unwrap());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("the file was replaced, renamed or removed"), "{said}");
    assert!(String::from_utf8(output.stdout).unwrap().contains("captured at 0.002 s, event 6, "));
}

/// Half a minute of a recording: an event a second, each in a block of its own.
#[test]
fn following_prints_each_event_once_whatever_was_forgotten() {
    let mut builder = traces::trace();
    TestImage::new(r"C:\app\app.exe", 8).load(&mut builder, 0, BASE);
    let thread = builder.thread(0, 11, "eins", STACK);
    for second in 1..=30u64 {
        builder.state();
        traces::capture(&mut builder, (thread, STACK), second * 10_000_000, &[in_function(BASE, 3)], second);
        builder.cut();
    }
    let bytes = builder.finish();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.stk"), &bytes).unwrap();
    let whole = printed(folder.path(), &["events", "a.stk", "--stacks", "--from", "2ms"]);
    let output = followed(&bytes, |_| ());
    assert_eq!((output.status.code(), &*String::from_utf8_lossy(&output.stderr)), (Some(0), ""));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.matches("captured at").count(), 30, "{text}");
    assert_eq!(text, whole);
}

#[test]
fn dump_lists_the_modules_of_the_moment() {
    let folder = folder();
    let at = |time: &str| {
        let line = ["dump", "a.stk", "--at", time, "--modules", "--style", "json"];
        let value = json(folder.path(), &line, DUMP_SCHEMA);
        let row = |module: &Value| {
            json!([module["module"], module["base"], module["load_ns"], module["unload_ns"]])
        };
        value["modules"].as_array().unwrap().iter().map(row).collect::<Vec<_>>()
    };
    let app = json!(["app.exe", "0x140000000", 0, null]);
    let early = json!(["early.dll", "0x50000000", null, null]);
    let plugin = json!(["plugin.dll", "0x180000000", 3_500_000, 7_000_000]);
    let kernel32 = json!(["kernel32.dll", "0x7ff700000000", 0, null]);
    let ntdll = json!(["ntdll.dll", "0x7ff800000000", 0, null]);
    let all = [early, app, plugin, kernel32, ntdll];
    let others: Vec<Value> = [0, 1, 3, 4].map(|n: usize| all[n].clone()).into();
    assert_eq!((at("5ms"), at("2ms"), at("8ms")), (all.to_vec(), others.clone(), others));
    let text = printed(folder.path(), &["dump", "a.stk", "--at", "5ms", "--modules", "--style", "plain"]);
    let list = text.split("\n\n").last().unwrap();
    let lines: Vec<Vec<&str>> = list.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0].join(" "), "2023-11-14T22:13:20.005Z 5 modules loaded at 0.005 s");
    assert_eq!(lines[2].join(" "), r"0x50000000 4.0 KiB at start - C:\app\early.dll");
    assert_eq!(lines[4].join(" "), r"0x180000000 1.0 MiB 0.003 s 0.007 s C:\app\plugin.dll");
    let output = stk(folder.path(), &["dump", "a.stk", "--event", "6", "--modules"]);
    assert_eq!(output.status.code(), Some(2), "captures are of several moments");
}

const AT_SCHEMA: &str = include_str!("../../../schema/symbols-at.schema.json");

#[test]
fn symbols_at_names_each_module_that_an_address_had() {
    let mut builder = traces::trace();
    let first = TestImage::new(r"C:\app\first.dll", 8).load(&mut builder, 10_000, PLUGIN);
    builder.unload(20_000, first);
    let second = TestImage::new(r"C:\app\second.dll", 2).load(&mut builder, 30_000, PLUGIN);
    builder.unload(40_000, second);
    builder.thread(50_000, 11, "eins", STACK);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.stk"), builder.finish()).unwrap();
    let of = |more: &[&str]| printed(folder.path(), &[&["symbols", "at", "a.stk"], more].concat());
    let one = "0x180001090 first.dll+0x1090, loaded from 0.001 s to 0.002 s\n    first.dll!fn_1080+0x10\n";
    // The second image has functions up to 1080h.
    let two = "0x180001090 second.dll+0x1090, loaded from 0.003 s to 0.004 s\n    second.dll+0x1090\n";
    assert_eq!(of(&["0x180001090"]), format!("{one}{two}"));
    assert_eq!(of(&["180001090", "--at", "1.5ms"]), one);
    assert_eq!(of(&["180001090", "--at", "3.5ms"]), two);
    let none = "0x180001090 in no module and in no recorded code\n";
    assert_eq!(of(&["180001090", "--at", "2.5ms"]), none);
    assert_eq!(of(&["1", "180001090", "--at", "1.5ms"]), format!("0x1 {}{one}", &none[12..]));
    let schema = serde_json::from_str(AT_SCHEMA).unwrap();
    let lines = of(&["180001090", "1", "--json"]);
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    lines.iter().for_each(|line| schema::check(&schema, line).expect("follows its schema"));
    let modules: Vec<&Value> = lines.iter().map(|line| &line["module"]).collect();
    assert_eq!(modules, [&json!("first.dll"), &json!("second.dll"), &Value::Null]);
    assert_eq!((&lines[0]["from_ns"], &lines[0]["until_ns"]), (&json!(1_000_000), &json!(2_000_000)));
    assert_eq!((&lines[1]["rva"], &lines[2]["frames"]), (&json!("0x1090"), &json!([])));
    for wrong in ["x", "", "10000000000000000"] {
        let output = stk(folder.path(), &["symbols", "at", "a.stk", wrong]);
        assert_eq!(output.status.code(), Some(2), "{wrong}");
    }
}

/// plugin_a.dll and plugin_ä.dll take turns at one address, each with a PDB of its own.
#[test]
fn plugins_at_one_address_are_named_on_both_sides_of_an_unload() {
    let folder = tempfile::tempdir().unwrap();
    let trace = kept_text("busy.stk");
    let line = ["events", &trace, "--json", "--kind", "unload"];
    let value: Value = serde_json::from_str(&printed(folder.path(), &line)).unwrap();
    let unloads = value["traces"][0]["events"].as_array().unwrap();
    assert!(unloads.len() > 40, "{}", unloads.len());
    for unload in unloads.iter().step_by(8) {
        let (name, ns) = (unload["module"].as_str().unwrap(), unload["time_ns"].as_u64().unwrap());
        let other = if name == "plugin_a.dll" { "plugin_ä.dll" } else { "plugin_a.dll" };
        let base = u64::from_str_radix(&unload["base"].as_str().unwrap()[2..], 16).unwrap();
        let address = format!("{:x}", base + 0x1010);
        for (time, module) in [(ns - 1_000_000, name), (ns + 20_000_000, other)] {
            let at = format!("{}.{:09}s", time / 1_000_000_000, time % 1_000_000_000);
            let text = printed(folder.path(), &["symbols", "at", &trace, &address, "--at", &at]);
            let stem = module.trim_end_matches(".dll");
            assert!(text.contains(&format!(" {module}+0x1010, ")), "{at}: {text}");
            assert!(text.contains(&format!("    {stem}!_CRT_INIT")), "{at}: {text}");
        }
    }
}
