//! The Firefox Profiler's JSON: its documented schema, and that its weights are the counts of
//! folded stacks.

use super::folded::counts;
use super::profiles::{AWKWARD, Builder, busy};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use stk_output::formats::{Format, Options};
use stk_profile::profile::{CpuSource, Weight};

fn write(builder: &Builder, weight: Weight) -> Value {
    let options = Options { weights: vec![weight], ..Options::default() };
    builder.write(Format::Firefox, &options).json()
}

fn list<'a>(value: &'a Value, path: &str) -> &'a Vec<Value> {
    value.pointer(path).and_then(Value::as_array).unwrap_or_else(|| panic!("{path} is no list"))
}

/// The number at an index of a column; `None` = null.
fn at(file: &Value, path: &str, index: u64) -> Option<u64> {
    list(file, path)[index as usize].as_u64()
}

fn text(file: &Value, index: u64) -> &str {
    list(file, "/shared/stringArray")[index as usize].as_str().expect("a string")
}

/// A stack's frames, root first.
fn frames(file: &Value, stack: Option<u64>) -> Vec<u64> {
    let mut frames = Vec::new();
    let mut next = stack;
    while let Some(stack) = next {
        frames.push(at(file, "/shared/stackTable/frame", stack).expect("a frame"));
        next = at(file, "/shared/stackTable/prefix", stack);
        assert!(next < Some(stack), "callers come first");
    }
    frames.reverse();
    frames
}

fn names(file: &Value, stack: Option<u64>) -> Vec<String> {
    let name = |&frame: &u64| {
        let func = at(file, "/shared/frameTable/func", frame).expect("a function");
        text(file, at(file, "/shared/funcTable/name", func).expect("a name")).to_owned()
    };
    frames(file, stack).iter().map(name).collect()
}

/// Milliseconds as nanoseconds.
fn ns(value: &Value) -> u64 {
    (value.as_f64().expect("a number") * 1e6).round() as u64
}

/// A row of a thread: time and weight in nanoseconds, stack, CPU time since the row before.
type Row = (u64, u64, Option<u64>, Option<u64>);

fn rows(thread: &Value) -> Vec<Row> {
    let column = |name: &str| list(thread, &format!("/samples/{name}"));
    let (times, weights, stacks) = (column("time"), column("weight"), column("stack"));
    let cpu = thread.pointer("/samples/threadCPUDelta").and_then(Value::as_array);
    let row = |i: usize| {
        (
            ns(&times[i]),
            ns(&weights[i]),
            stacks[i].as_u64(),
            cpu.map(|cpu| cpu[i].as_u64().expect("CPU time")),
        )
    };
    (0..times.len()).map(row).collect()
}

#[test]
fn the_file_follows_the_documented_schema() {
    let schema: Value = serde_json::from_str(include_str!("firefox.schema.json")).expect("JSON");
    let mut without_cpu = busy();
    without_cpu.profile.trace.cpu_source = CpuSource::None;
    for builder in [busy(), without_cpu, Builder::new()] {
        let file = write(&builder, Weight::Wall);
        stk_tests::schema::check(&schema, &file).unwrap_or_else(|wrong| panic!("{wrong}"));
    }
    let mut other = write(&busy(), Weight::Wall);
    other["shared"]["stackTable"]["prefixOffset"] = json!([]);
    assert!(stk_tests::schema::check(&schema, &other).is_err());
}

/// Columns that hold indices: where the column is, and what they count.
const INDICES: [(&str, &str); 12] = [
    ("/shared/stackTable/frame", "/shared/frameTable/func"),
    ("/shared/frameTable/func", "/shared/funcTable/name"),
    ("/shared/frameTable/category", "/meta/categories"),
    ("/shared/frameTable/nativeSymbol", "/shared/nativeSymbols/name"),
    ("/shared/funcTable/name", "/shared/stringArray"),
    ("/shared/funcTable/source", "/shared/sources/filename"),
    ("/shared/sources/filename", "/shared/stringArray"),
    ("/shared/resourceTable/lib", "/libs"),
    ("/shared/resourceTable/name", "/shared/stringArray"),
    ("/shared/nativeSymbols/libIndex", "/libs"),
    ("/shared/nativeSymbols/name", "/shared/stringArray"),
    ("/threads/0/markers/name", "/shared/stringArray"),
];

#[test]
fn columns_have_equal_lengths_and_their_indices_lead_somewhere() {
    let file = write(&busy(), Weight::Waiting);
    let shared = file["shared"].as_object().expect("shared").values();
    let threads = list(&file, "/threads").iter().flat_map(|t| [&t["samples"], &t["markers"]]);
    for table in shared.filter(|table| table.is_object()).chain(threads) {
        let columns = table.as_object().expect("table").values().filter_map(Value::as_array);
        for column in columns {
            assert_eq!(Some(column.len() as u64), table["length"].as_u64(), "{table}");
        }
    }
    for (column, target) in INDICES {
        let len = list(&file, target).len() as u64;
        assert!(list(&file, column).iter().all(|i| i.is_null() || i.as_u64() < Some(len)), "{column}");
    }
    for resource in list(&file, "/shared/funcTable/resource") {
        assert!(*resource == json!(-1) || resource.as_u64() < Some(list(&file, "/libs").len() as u64));
    }
}

#[test]
fn weights_are_the_counts_of_the_folded_stacks() {
    for weight in [Weight::Wall, Weight::Cpu, Weight::Waiting, Weight::Samples] {
        let file = write(&busy(), weight);
        let mut sums: BTreeMap<Vec<String>, u64> = BTreeMap::new();
        for (_, ns, stack, _) in list(&file, "/threads").iter().flat_map(rows) {
            *sums.entry(names(&file, stack)).or_default() += ns;
        }
        sums.retain(|_, sum| *sum > 0);
        assert_eq!(sums, counts(&busy(), weight), "{weight:?}");
    }
}

#[test]
fn samples_stand_at_their_times_and_gaps_have_no_stack() {
    let file = write(&busy(), Weight::Wall);
    let threads = list(&file, "/threads");
    let names: Vec<&str> = threads.iter().map(|thread| thread["name"].as_str().expect("name")).collect();
    assert_eq!(names, ["thread 4", &format!("{AWKWARD} (8)")]);
    let of = |thread: &Value| -> Vec<(u64, u64, bool)> {
        rows(thread)
            .iter()
            .map(|(at, weight, stack, _)| (at / 1_000_000, weight / 1_000_000, stack.is_some()))
            .collect()
    };
    // A run of two samples has a row at each of them.
    let waiter = [(0, 2, true), (1, 0, true), (2, 0, false), (5, 1, true), (6, 0, false)];
    assert_eq!(of(&threads[1]), waiter);
    let cpu = rows(&threads[0]).iter().map(|row| row.3.expect("CPU time")).collect::<Vec<_>>();
    // 0.9 of each millisecond in which it ran: of the first two, one before the second sample.
    let ms = 900_000;
    assert_eq!(cpu, [0, ms, ms, ms, ms, ms, ms, 0, 0, ms]);
    assert_eq!(threads[0]["samples"]["weightType"], "tracing-ms");
}

#[test]
fn the_innermost_frame_of_a_stack_that_waits_is_of_the_category_for_that() {
    let file = write(&busy(), Weight::Wall);
    let category = |stack: Option<u64>| -> Vec<String> {
        let name = |&frame: &u64| {
            let category = at(&file, "/shared/frameTable/category", frame).expect("a category");
            file["meta"]["categories"][category as usize]["name"].as_str().expect("a name").to_owned()
        };
        frames(&file, stack).iter().map(name).collect()
    };
    let threads = list(&file, "/threads");
    assert_eq!(category(rows(&threads[1])[0].2), ["User", "Waiting"]);
    assert_eq!(category(rows(&threads[0])[0].2), ["User"; 3]);
    let grey: BTreeSet<&str> = list(&file, "/meta/categories")
        .iter()
        .filter(|category| category["color"] == "grey")
        .map(|category| category["name"].as_str().expect("name"))
        .collect();
    assert_eq!(grey, BTreeSet::from(["Other"]), "the viewer takes the first grey one for the rest");
}

#[test]
fn libraries_frames_and_markers_are_described() {
    let file = write(&busy(), Weight::Wall);
    let lib = &list(&file, "/libs")[0];
    assert_eq!((&lib["name"], &lib["path"]), (&json!("busy.exe"), &json!(r"C:\lab\busy.exe")));
    assert_eq!(lib["breakpadId"], json!(format!("{:032X}1", 0x1001)));
    assert_eq!(list(&file, "/shared/frameTable/address")[0], json!(0x100f), "inside the call");
    let markers = &list(&file, "/threads")[0]["markers"];
    let found: Vec<(u64, &str)> = list(markers, "/startTime")
        .iter()
        .zip(list(markers, "/name"))
        .map(|(time, name)| (ns(time), text(&file, name.as_u64().expect("a name"))))
        .collect();
    let expected = [
        (1_000_001, "mark"),
        (2_500_000, "load plugin_a.dll"),
        (4_900_000, "unload plugin_a.dll"),
        (4_950_500, "load plugin_ä.dll"),
    ];
    assert_eq!(found, expected);
    assert_eq!(list(markers, "/data")[0], json!({ "type": "Mark", "text": AWKWARD, "tag": "7" }));
    assert!(file["meta"]["importedFrom"].as_str().expect("source").starts_with("stk "));
}
