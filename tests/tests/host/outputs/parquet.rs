//! The Parquet dataset, read back by polars and, where the tools are there, by DuckDB and pyarrow
//! (`parquet_readers.py`).

use super::profiles::{AWKWARD, Builder, busy};
use polars::prelude::*;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use stk_output::formats::{self, Destination, Format, Options};
use stk_profile::profile::{
    EventInfo, FrameFacts, FrameKind, GapInfo, MethodPlace, Placement, Run, RunFlags, ThreadOfEvent,
};
use stk_schema::event::RunState;
use stk_schema::tables::{self, ColumnType};
use stk_unwind::Trust;
use xxhash_rust::xxh3::xxh3_64;

/// The files of a table, those of a date in the order of the dates.
pub(crate) fn files(dataset: &Path, table: &str) -> Vec<PathBuf> {
    let names = |folder: &Path| {
        let entries = std::fs::read_dir(folder).expect("a folder");
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
        paths.sort();
        paths
    };
    let of_date = |path: &PathBuf| path.is_dir().then(|| names(path)).unwrap_or(vec![path.clone()]);
    names(&dataset.join(table)).iter().flat_map(of_date).collect()
}

/// A table, all its files together.
pub(crate) fn read(dataset: &Path, table: &str) -> DataFrame {
    let read = |path: &PathBuf| {
        ParquetReader::new(File::open(path).expect("open")).finish().expect("polars reads it")
    };
    let files = files(dataset, table);
    let mut all = read(&files[0]);
    for file in &files[1..] {
        all.vstack_mut(&read(file)).expect("the same columns");
    }
    all
}

fn i64s(frame: &DataFrame, column: &str) -> Vec<Option<i64>> {
    frame.column(column).expect("column").i64().expect("Int64").into_iter().collect()
}

fn bools(frame: &DataFrame, column: &str) -> Vec<Option<bool>> {
    frame.column(column).expect("column").bool().expect("Boolean").into_iter().collect()
}

fn floats(frame: &DataFrame, column: &str) -> Vec<Option<f64>> {
    frame.column(column).expect("column").f64().expect("Float64").into_iter().collect()
}

fn texts(frame: &DataFrame, column: &str) -> Vec<Option<String>> {
    frame
        .column(column)
        .expect("column")
        .str()
        .expect("text")
        .into_iter()
        .map(|t| t.map(str::to_owned))
        .collect()
}

fn dtype(kind: ColumnType) -> DataType {
    let list = |inner| DataType::List(Box::new(inner));
    let fields = |all: &[(&str, DataType)]| {
        DataType::Struct(all.iter().map(|(name, dtype)| Field::new((*name).into(), dtype.clone())).collect())
    };
    use DataType::{Boolean, Float64, Int64, String};
    match kind {
        ColumnType::Int64 => Int64,
        ColumnType::Float64 => Float64,
        ColumnType::Boolean => Boolean,
        ColumnType::Text => String,
        ColumnType::TimestampMicrosUtc => DataType::Datetime(TimeUnit::Microseconds, Some("UTC".into())),
        ColumnType::ListInt64 => list(Int64),
        ColumnType::ListText => list(String),
        ColumnType::NamedFrames => list(fields(&[
            ("function", String),
            ("file", String),
            ("line", Int64),
            ("module", String),
            ("rva", Int64),
            ("address", Int64),
            ("trust", String),
            ("inline", Boolean),
        ])),
        ColumnType::KeyValues => list(fields(&[("key", String), ("value", String)])),
    }
}

/// The rule of `stk_schema::tables` for a location.
fn location_id(image: u64, rva: u64) -> i64 {
    xxh3_64(&[image.to_le_bytes(), rva.to_le_bytes()].concat()) as i64
}

/// The rule of `stk_schema::tables` for a stack.
fn stack_id(frames: &[i64]) -> i64 {
    let bytes: Vec<u8> = frames.iter().flat_map(|location| location.to_le_bytes()).collect();
    xxh3_64(&bytes) as i64
}

#[test]
fn tables_have_the_documented_columns_and_no_unexpected_nulls() {
    let written = busy().write(Format::Parquet, &Options { denormalized: true, ..Options::default() });
    for table in tables::ALL {
        let frame = read(&written.path, table.name);
        let more = if table.name == "samples" { vec![tables::SAMPLES_FRAMES] } else { vec![] };
        let columns: Vec<tables::TableColumn> = table.columns.iter().copied().chain(more).collect();
        let names: Vec<&str> = columns.iter().map(|c| c.name).collect();
        let found: Vec<&str> = frame.get_column_names().into_iter().map(|n| n.as_str()).collect();
        assert_eq!(found, names, "{}", table.name);
        for column in columns {
            let series = frame.column(column.name).expect("column");
            assert_eq!(series.dtype(), &dtype(column.kind), "{}.{}", table.name, column.name);
            assert!(
                column.nullable || series.null_count() == 0,
                "{}.{} holds nulls",
                table.name,
                column.name
            );
        }
    }
}

#[test]
fn frames_name_the_functions_that_share_their_code() {
    let written = busy().write(Format::Parquet, &Options::default());
    let frames = read(&written.path, "frames");
    let lists = frames.column("aliases").expect("aliases").list().expect("list").clone();
    let aliases: Vec<(Option<String>, Vec<Option<String>>)> = texts(&frames, "module")
        .into_iter()
        .zip(&lists)
        .filter_map(|(module, list)| {
            let list = list.expect("not null");
            let names: Vec<_> =
                list.str().expect("texts").iter().map(|name| name.map(str::to_owned)).collect();
            (!names.is_empty()).then_some((module, names))
        })
        .collect();
    let twins = ["plugin_stop", AWKWARD].map(|name| Some(name.to_owned()));
    assert_eq!(aliases, [(Some("plugin_a.dll".to_owned()), twins.to_vec())]);
}

#[test]
fn samples_hold_every_run_with_its_thread_time_and_stop() {
    let written = busy().write(Format::Parquet, &Options::default());
    let samples = read(&written.path, "samples");
    assert_eq!(samples.height(), 9);
    let name = Some(AWKWARD.to_owned());
    let none = Some(String::new());
    assert_eq!(texts(&samples, "thread_name")[..3], [name.clone(), name, none]);
    let ms = |values: &[i64]| values.iter().map(|v| Some(v * 1_000_000)).collect::<Vec<_>>();
    assert_eq!(i64s(&samples, "ts_ns"), ms(&[0, 5, 0, 2, 3, 5, 6, 7, 8]));
    assert_eq!(i64s(&samples, "duration_ns"), ms(&[2, 1, 2, 1, 2, 1, 1, 1, 1]));
    assert_eq!(i64s(&samples, "tid"), [8, 8, 4, 4, 4, 4, 4, 4, 4].map(Some));
    assert_eq!(i64s(&samples, "depth"), [2, 2, 3, 2, 2, 2, 1, 0, 3].map(Some));
    let states =
        ["waiting", "waiting", "running", "running", "running", "running", "unknown", "unknown", "running"];
    assert_eq!(texts(&samples, "state"), states.map(|state| Some(state.to_owned())));
    let of_waits = |text: &str| states.map(|state| (state == "waiting").then(|| text.to_owned()));
    assert_eq!(texts(&samples, "wait_reason"), of_waits("sleep"));
    assert_eq!(texts(&samples, "wait_class"), of_waits("idle"));
    // 900 µs of each millisecond in which a thread ran.
    let us = |values: &[i64]| values.iter().map(|v| Some(v * 1000)).collect::<Vec<_>>();
    assert_eq!(i64s(&samples, "cpu_ns"), us(&[0, 0, 1800, 900, 1800, 900, 0, 0, 900]));
    assert_eq!(texts(&samples, "cpu_source"), vec![Some("thread-times".to_owned()); 9]);
    assert_eq!(i64s(&samples, "tag"), [None; 9]);
    let stops = texts(&samples, "stop_reason");
    assert_eq!(stops[5..8], ["thread-start", "no-unwind-data", "stack-lost"].map(|t| Some(t.to_owned())));
    assert_eq!(texts(&samples, "stop_module")[6].as_deref(), Some("plugin_ä.dll"));
    // 1 700 000 000.123 456 789 s + 5 ms, in whole microseconds.
    let utc = samples.column("ts_utc").expect("ts_utc").datetime().expect("datetime");
    assert_eq!(utc.get(1), Some(1_700_000_000_128_456));
    assert_eq!(i64s(&samples, "stack_id")[7], None);
}

#[test]
fn samples_that_the_program_asked_for_have_its_tag() {
    let mut b = Builder::new();
    let stop = b.stop(stk_profile::stack::StopReason::COMPLETE, "");
    let thread = b.thread(4, "main");
    let exe = b.image("app.exe", 0x1001);
    let frame = b.frame(Placement::Image(exe, 0x1010), Trust::Context, &[("main", None, None)]);
    let stack = b.stack(&[frame]);
    b.run(thread, Some(stack), stop, 0, 1, RunState::Running);
    let mut captured = stk_profile::profile::Runs::default();
    b.runs
        .for_each(|batch| {
            for (run, flags) in
                batch.runs.iter().flat_map(|run| [(run, RunFlags::empty()), (run, RunFlags::TRIGGERED)])
            {
                captured.push(thread, Run { flags, capture_tag: 7, ..*run })?;
            }
            Ok::<(), std::io::Error>(())
        })
        .expect("runs");
    b.runs = captured;
    let written = b.write(Format::Parquet, &Options::default());
    assert_eq!(i64s(&read(&written.path, "samples"), "tag"), [None, Some(7)]);
}

#[test]
fn ids_follow_the_documented_rule() {
    let written = busy().write(Format::Parquet, &Options::default());
    let samples = read(&written.path, "samples");
    // main at the return address 0x1010, fib at 0x1210, fib at the instruction 0x1200.
    let (main, fib, leaf) =
        (location_id(0x1001, 0x100f), location_id(0x1001, 0x120f), location_id(0x1001, 0x1200));
    let deep = stack_id(&[main, fib, leaf]);
    assert_eq!(i64s(&samples, "stack_id")[2], Some(deep));

    let stacks = read(&written.path, "stacks");
    let row = i64s(&stacks, "stack_id").iter().position(|id| *id == Some(deep)).expect("the stack is listed");
    let locations =
        stacks.column("location_ids").expect("list").list().expect("list").get_as_series(row).expect("row");
    assert_eq!(locations.i64().expect("Int64").to_vec(), [main, fib, leaf].map(Some));
    let trusts =
        stacks.column("trusts").expect("list").list().expect("list").get_as_series(row).expect("row");
    assert_eq!(
        trusts.str().expect("text").iter().flatten().collect::<Vec<_>>(),
        ["unwind-info", "unwind-info", "context"]
    );
    assert_eq!(stacks.height(), 7, "each distinct stack once");

    let frames = read(&written.path, "frames");
    let names: HashMap<(i64, i64), (String, Option<i64>)> = i64s(&frames, "location_id")
        .into_iter()
        .zip(i64s(&frames, "inline_index"))
        .zip(texts(&frames, "function").into_iter().zip(i64s(&frames, "line")))
        .map(|((location, inline), (name, line))| {
            ((location.unwrap(), inline.unwrap()), (name.unwrap(), line))
        })
        .collect();
    assert_eq!(names.len(), frames.height(), "each name once");
    let mixed = location_id(0x1001, 0x1208);
    assert_eq!(names[&(mixed, 0)], ("mix".into(), Some(3)));
    assert_eq!(names[&(mixed, 1)], ("fib".into(), Some(33)));
    assert_eq!(names[&(leaf, 0)], ("fib".into(), None), "no line is invented");
}

#[test]
fn ids_do_not_depend_on_symbols_or_on_what_else_is_in_the_trace() {
    let one_stack = |name: &str, others: u32| {
        let mut b = Builder::new();
        for i in 0..others {
            let image = b.image("other.dll", 50 + u64::from(i));
            b.frame(Placement::Image(image, 7), Trust::Context, &[("other", None, None)]);
        }
        let image = b.image("app.exe", 0x77);
        let stop = b.stop(stk_profile::stack::StopReason::COMPLETE, "");
        let thread = b.thread(4, "main");
        let frame = b.frame(Placement::Image(image, 0x1000), Trust::Context, &[(name, None, None)]);
        let stack = b.stack(&[frame]);
        b.run(thread, Some(stack), stop, 0, 1, RunState::Running);
        let written = b.write(Format::Parquet, &Options::default());
        i64s(&read(&written.path, "samples"), "stack_id")
    };
    assert_eq!(one_stack("app.exe+0x1000", 0), one_stack("main", 3));
}

#[test]
fn an_address_in_no_module_has_an_id_that_only_its_trace_uses() {
    let of_trace = |id: &str| {
        let mut b = Builder::new();
        b.profile.trace.trace_id = id.into();
        let stop = b.stop(stk_profile::stack::StopReason::Walk(stk_unwind::StopKind::NoModule), "");
        let thread = b.thread(4, "main");
        let frame =
            b.frame(Placement::Unknown(0xfff0_0000_1234_5678), Trust::Context, &[("0x1234", None, None)]);
        let stack = b.stack(&[frame]);
        b.run(thread, Some(stack), stop, 0, 1, RunState::Running);
        let written = b.write(Format::Parquet, &Options::default());
        let frames = read(&written.path, "frames");
        assert_eq!(texts(&frames, "kind"), [Some("unknown".to_owned())]);
        assert_eq!(texts(&frames, "module"), [None]);
        assert_eq!(bools(&frames, "portable"), [Some(false)]);
        assert_eq!(i64s(&frames, "rva"), [None]);
        assert_eq!(i64s(&frames, "address"), [Some(0xfff0_0000_1234_5678_u64 as i64)]);
        i64s(&frames, "location_id")
    };
    assert_ne!(of_trace("00"), of_trace("01"));
}

/// Writes a profile as a part of a dataset.
fn write_part(b: &Builder, into: &Path, options: &Options) -> formats::Summary {
    let mut writer =
        formats::create(Format::Parquet, Destination::Dir(into.to_owned()), options).expect("create");
    formats::write(&mut *writer, &b.profile, &b.runs).expect("write")
}

/// `busy` as three traces: of two days, and of two hosts.
fn three() -> [Builder; 3] {
    let of = |id: &str, host: &str, days: u64| {
        let mut b = busy();
        b.profile.trace.trace_id = id.into();
        b.profile.trace.host = host.into();
        b.profile.trace.start_utc_ns += days * 86_400_000_000_000;
        b
    };
    [of("ff", "lab-1", 0), of("aa", "lab-2", 0), of("bb", "lab-1", 1)]
}

#[test]
fn many_traces_share_a_folder_whatever_order_they_come_in() {
    let folder = tempfile::tempdir().expect("folder");
    let [forth, back, one_by_one] = ["forth", "back", "one"].map(|name| folder.path().join(name));
    let traces = three();
    for b in &traces {
        let summary = write_part(b, &forth, &Options::default());
        assert!(summary.files.iter().all(|(path, bytes)| path.metadata().expect("a file").len() == *bytes));
        write_part(b, &one_by_one, &Options::default());
        formats::compact(&one_by_one).expect("compacted");
    }
    for b in traces.iter().rev() {
        write_part(b, &back, &Options::default());
    }
    formats::compact(&forth).expect("compacted");
    formats::compact(&back).expect("compacted");
    for table in tables::ALL {
        let names = |dataset: &Path| -> Vec<PathBuf> {
            let files = files(dataset, table.name).into_iter();
            files.map(|path| path.strip_prefix(dataset).expect("within").to_owned()).collect()
        };
        // A pack of each date.
        let has_packs = table.by_date || table.name == tables::STACKS.name;
        assert_eq!(names(&forth).len(), if has_packs { 2 } else { 1 }, "{}", table.name);
        for other in [&back, &one_by_one] {
            assert_eq!(names(&forth), names(other), "{}", table.name);
            for name in names(&forth) {
                let (a, b) = (std::fs::read(forth.join(&name)), std::fs::read(other.join(&name)));
                assert!(a.expect("read") == b.expect("read"), "{} differs", name.display());
            }
        }
    }
    assert_eq!(
        std::fs::read_to_string(forth.join("_stk.json")).expect("read").trim(),
        r#"{"dataset":"stk","tables_version":3}"#
    );
    let samples = read(&forth, "samples");
    assert_eq!(samples.height(), 27);
    // Of one day by host, the other day behind.
    let mut ids: Vec<_> = texts(&samples, "trace_id").into_iter().flatten().collect();
    ids.dedup();
    assert_eq!(ids, ["ff", "aa", "bb"]);
    // Nothing is left of the making, and a second compaction has nothing to do.
    assert_eq!(std::fs::read_dir(forth.join("_stk/tmp")).expect("a folder").count(), 0);
    assert!(formats::compact(&forth).expect("compacted").files.is_empty());
}

#[test]
fn stacks_and_frames_are_there_once_with_the_best_name() {
    let folder = tempfile::tempdir().expect("folder");
    let lab = folder.path().join("lab");
    let [mut nameless, named, other] = three();
    let source = &mut nameless.profile.symbols.source;
    source.iter_mut().for_each(|source| *source = stk_profile::profile::NameSource::None);
    for b in [&nameless, &named, &other] {
        write_part(b, &lab, &Options::default());
    }
    formats::compact(&lab).expect("compacted");
    let alone = busy().write(Format::Parquet, &Options::default());
    let (frames, alone_frames) = (read(&lab, "frames"), read(&alone.path, "frames"));
    for column in ["location_id", "inline_index"] {
        assert_eq!(i64s(&frames, column), i64s(&alone_frames, column), "{column}");
    }
    for column in ["function", "file", "module", "name_source"] {
        assert_eq!(texts(&frames, column), texts(&alone_frames, column), "{column}");
    }
    // Both of the others have the names; the smallest id stands.
    let by: Vec<_> = texts(&frames, "resolved_by").into_iter().flatten().collect();
    let portable = bools(&frames, "portable");
    for (by, portable) in by.iter().zip(portable) {
        assert!(by == "trace aa" || portable == Some(false), "{by}");
    }
    assert_eq!(i64s(&read(&lab, "stacks"), "stack_id"), i64s(&read(&alone.path, "stacks"), "stack_id"));
    // Every sample's stack, and every location of a stack, is there.
    let known: std::collections::BTreeSet<_> = i64s(&read(&lab, "stacks"), "stack_id").into_iter().collect();
    assert!(i64s(&read(&lab, "samples"), "stack_id").iter().all(|id| id.is_none() || known.contains(id)));
}

#[test]
fn a_part_that_is_written_again_replaces_its_rows() {
    let folder = tempfile::tempdir().expect("folder");
    let lab = folder.path().join("lab");
    let [first, second, _] = three();
    for options in [Options::default(), Options { denormalized: true, ..Options::default() }] {
        write_part(&first, &lab, &options);
        write_part(&second, &lab, &Options::default());
        formats::compact(&lab).expect("compacted");
        assert_eq!(read(&lab, "samples").height(), 18);
    }
    // Names in place of one trace alone: the other has nulls there.
    let frames = read(&lab, "samples");
    assert_eq!(frames.column("frames").expect("names").null_count(), 9);
}

#[test]
fn events_and_gaps_belong_to_threads_and_captures_to_samples() {
    let mut b = Builder::new();
    let stop = b.stop(stk_profile::stack::StopReason::COMPLETE, "");
    let thread = b.thread(4, "main");
    let instance = b.profile.threads[thread as usize].instance;
    b.run(thread, None, stop, 5_000, 1, RunState::Running);
    let of = ThreadOfEvent { instance, tid: Some(4) };
    let event = |number, kind, time_ns, thread, tag| EventInfo {
        number,
        kind,
        time_ns,
        thread,
        tag,
        text: None,
        module: None,
        exception: None,
    };
    let mut first = 0;
    let mut runs = stk_profile::profile::Runs::default();
    b.runs
        .for_each(|batch| {
            for run in batch.runs {
                first = run.first_ns;
                let flags = RunFlags::TRIGGERED;
                runs.push(batch.thread, Run { flags, capture_tag: 7, ..*run })?;
            }
            Ok::<(), std::io::Error>(())
        })
        .expect("runs");
    b.runs = runs;
    b.profile.events = vec![
        EventInfo { text: Some("C:\\a.dll".into()), module: Some(3), ..event(1, "load", 1, None, None) },
        event(2, "capture", first, Some(of), Some(8)),
        event(3, "capture", first, Some(of), Some(7)),
        EventInfo {
            exception: Some((0xC000_0005, u64::MAX)),
            ..event(4, "exception", 9_000, Some(of), None)
        },
    ];
    let gap = |reason, thread| GapInfo { reason, thread, start_ns: 2_000, end_ns: 3_000, count: 5 };
    b.profile.gaps = vec![gap("block lost", None), gap("sampler woke late", Some(of))];
    let written = b.write(Format::Parquet, &Options::default());
    let samples = read(&written.path, "samples");
    assert_eq!((i64s(&samples, "event_id"), i64s(&samples, "tag")), (vec![Some(3)], vec![Some(7)]));
    let events = read(&written.path, "events");
    assert_eq!(i64s(&events, "event_id"), [1, 2, 3, 4].map(Some));
    assert_eq!(i64s(&events, "tid"), [None, Some(4), Some(4), Some(4)]);
    assert_eq!(i64s(&events, "tag"), [None, Some(8), Some(7), None]);
    assert_eq!(i64s(&events, "module"), [Some(3), None, None, None]);
    assert_eq!(texts(&events, "text"), [Some("C:\\a.dll".to_owned()), None, None, None]);
    assert_eq!(i64s(&events, "code"), [None, None, None, Some(0xC000_0005)]);
    assert_eq!(i64s(&events, "address"), [None, None, None, Some(-1)]);
    let gaps = read(&written.path, "gaps");
    assert_eq!(i64s(&gaps, "thread"), [None, Some(instance as i64)]);
    assert_eq!((i64s(&gaps, "start_ns"), i64s(&gaps, "count")), (vec![Some(2_000); 2], vec![Some(5); 2]));
}

#[test]
fn a_trace_id_cannot_name_a_path() {
    for id in ["../../evil", "C:evil", "", "a/b", "\\\\server\\share"] {
        let mut b = busy();
        b.profile.trace.trace_id = id.into();
        let folder = tempfile::tempdir().expect("folder");
        let goal = folder.path().join("x.parquet");
        let mut writer =
            formats::create(Format::Parquet, Destination::Dir(goal), &Options::default()).expect("create");
        let error = writer.begin(&b.profile).expect_err("refused").to_string();
        assert!(error.contains("trace id"), "{error}");
    }
}

#[test]
fn denormalized_samples_need_no_other_table() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("one.parquet");
    let b = busy();
    let options = Options { denormalized: true, ..Options::default() };
    let mut writer =
        formats::create(Format::Parquet, Destination::File(path.clone()), &options).expect("create");
    formats::write(&mut *writer, &b.profile, &b.runs).expect("write");
    let frame = ParquetReader::new(File::open(&path).expect("open")).finish().expect("read");
    let frames = frame.column("frames").expect("frames").list().expect("list");
    let row = frames.get_as_series(3).expect("row");
    let row = row.struct_().expect("struct");
    let field = |name: &str| row.field_by_name(name).expect("field");
    let names = field("function");
    assert_eq!(names.str().expect("text").iter().flatten().collect::<Vec<_>>(), ["main", "fib", "mix"]);
    assert_eq!(
        field("inline").bool().expect("bool").iter().collect::<Vec<_>>(),
        [false, false, true].map(Some)
    );
    assert_eq!(field("line").i64().expect("Int64").to_vec(), [10, 33, 3].map(Some));
    assert_eq!(frames.get_as_series(7).map(|s| s.len()), Some(0), "a lost stack is an empty list");
}

#[test]
fn a_dataset_is_refused_on_stdout_and_in_a_file() {
    let refuse = |destination| {
        formats::create(Format::Parquet, destination, &Options::default()).err().map(|e| e.to_string())
    };
    assert!(refuse(Destination::Stdout).is_some_and(|e| e.contains("standard output")));
    assert!(refuse(Destination::File("x.parquet".into())).is_some_and(|e| e.contains("--denormalized")));
}

/// A profile with one sample whose stack is a method that was compiled to `address`, of this IL
/// offset, behind main.
fn managed(trace: &str, address: u64, il_offset: Option<i32>, name: &str) -> Builder {
    let mut b = Builder::new();
    b.profile.trace.trace_id = trace.into();
    let exe = b.image("app.exe", 0x1001);
    let main = b.frame(Placement::Image(exe, 0x1010), Trust::UnwindInfo, &[("main", None, None)]);
    let jitted = b.frame(Placement::Unknown(address), Trust::Context, &[(name, None, None)]);
    let method = MethodPlace { module: [7; 16], token: 0x0600_0003, il_offset };
    let kind = FrameKind::Managed;
    let displacement = Some(0x10);
    b.profile.symbols.facts = vec![
        FrameFacts { displacement, ..FrameFacts::default() },
        FrameFacts { kind, method: Some(method), displacement, ..FrameFacts::default() },
    ];
    let stop = b.stop(stk_profile::stack::StopReason::COMPLETE, "");
    let thread = b.thread(4, "main");
    let stack = b.stack(&[main, jitted]);
    b.run(thread, Some(stack), stop, 0, 1, RunState::Running);
    b
}

/// The location, function and portability of the two frames of [`managed`], main first, and the
/// stack's id.
type ManagedIds = (Vec<Option<i64>>, Vec<Option<i64>>, Vec<Option<bool>>, Vec<Option<i64>>);

fn ids_of(b: &Builder) -> ManagedIds {
    let written = b.write(Format::Parquet, &Options::default());
    let frames = read(&written.path, "frames");
    let frames =
        frames.sort(["kind"], SortMultipleOptions::default().with_order_descending(true)).expect("sorted");
    let samples = read(&written.path, "samples");
    let [locations, functions] = ["location_id", "function_id"].map(|column| i64s(&frames, column));
    (locations, functions, bools(&frames, "portable"), i64s(&samples, "stack_id"))
}

#[test]
fn a_managed_location_is_the_same_wherever_a_process_compiles_it() {
    let one = ids_of(&managed("00", 0x7ff0_0000_1000, Some(0x15), "app!Main()"));
    let other = ids_of(&managed("01", 0x7aa0_0000_2000, Some(0x15), "app!Main()"));
    assert_eq!(one, other);
    assert_eq!(one.2, [Some(true), Some(true)]);
    // By the rules of `stk_schema::tables`: module, token, IL offset; image and beginning.
    let method = [&b"method:"[..], &[7; 16], &[3, 0, 0, 6]].concat();
    let location = [&b"il:"[..], &[7; 16], &[3, 0, 0, 6], &[0x15, 0, 0, 0]].concat();
    let main = [&b"function:"[..], &0x1001u64.to_le_bytes(), &0x1000u64.to_le_bytes()].concat();
    let id = |bytes: &[u8]| Some(xxh3_64(bytes) as i64);
    assert_eq!(one.0, [Some(location_id(0x1001, 0x100f)), id(&location)]);
    assert_eq!(one.1, [id(&main), id(&method)]);

    let elsewhere = ids_of(&managed("01", 0x7aa0_0000_2000, Some(0x16), "app!Main()"));
    assert_ne!(one.0[1], elsewhere.0[1]);
    assert_eq!(one.1, elsewhere.1, "another place in the same function");
    let [ints, texts] = ["Int32", "String"]
        .map(|of| ids_of(&managed("00", 0x7000, Some(0x15), &format!("app!Box`1[{of}].Get()"))));
    assert_ne!(ints.0[1], texts.0[1], "instances of a generic method have the same token");
    let unknown = ids_of(&managed("00", 0x7ff0_0000_1000, None, "app!Main()"));
    assert_eq!(unknown.2, [Some(true), Some(false)]);
    assert_ne!(unknown.0[1], ids_of(&managed("01", 0x7ff0_0000_1000, None, "app!Main()")).0[1]);
}

#[test]
fn a_stack_has_the_same_id_however_its_frames_were_found() {
    let found_by = |trust: Trust| {
        let mut b = Builder::new();
        let exe = b.image("app.exe", 0x1001);
        let main = b.frame(Placement::Image(exe, 0x1010), trust, &[("main", None, None)]);
        let leaf = b.frame(Placement::Image(exe, 0x1100), Trust::Context, &[("leaf", None, None)]);
        let stop = b.stop(stk_profile::stack::StopReason::COMPLETE, "");
        let thread = b.thread(4, "main");
        let stack = b.stack(&[main, leaf]);
        b.run(thread, Some(stack), stop, 0, 1, RunState::Running);
        let written = b.write(Format::Parquet, &Options::default());
        let samples = read(&written.path, "samples");
        let stacks = read(&written.path, "stacks");
        assert_eq!(i64s(&stacks, "walk_version"), [Some(tables::WALK_VERSION)]);
        (i64s(&samples, "stack_id"), bools(&samples, "proved"))
    };
    let (proved, guessed) = (found_by(Trust::UnwindInfo), found_by(Trust::FramePointer));
    assert_eq!(proved.0, guessed.0);
    assert_eq!((proved.1, guessed.1), (vec![Some(true)], vec![Some(false)]));
}

#[test]
fn functions_have_a_key_that_other_builds_share_and_a_category() {
    let key = |identity: u64, name: &str| {
        let mut b = Builder::new();
        let exe = b.image("App.exe", identity);
        let src = Some("C:\\src\\app.cpp");
        let frame = b.frame(Placement::Image(exe, 0x1010), Trust::Context, &[(name, src, None)]);
        let nameless =
            b.frame(Placement::Image(exe, 0x2010), Trust::UnwindInfo, &[("App.exe+0x2010", None, None)]);
        let stop = b.stop(stk_profile::stack::StopReason::COMPLETE, "");
        let thread = b.thread(4, "main");
        let stack = b.stack(&[nameless, frame]);
        b.run(thread, Some(stack), stop, 0, 1, RunState::Running);
        let written = b.write(Format::Parquet, &Options::default());
        let frames = read(&written.path, "frames");
        assert_eq!(texts(&frames, "category"), vec![Some("user".to_owned()); 2]);
        let named = texts(&frames, "function").iter().position(|function| function.as_deref() == Some(name));
        let keys = i64s(&frames, "function_key");
        let named = named.expect("the function");
        assert_eq!(keys[1 - named], None, "a function without a name has no key");
        keys[named].expect("a key")
    };
    assert_eq!(key(0x1001, "app::run::h0123456789abcdef"), key(0x1002, "app::run::h9999999999abcdef"));
    assert_ne!(key(0x1001, "app::run"), key(0x1001, "app::stop"));
}

#[test]
fn facts_of_a_trace_have_columns_and_the_users_labels_are_apart() {
    let mut b = busy();
    let noted = [
        ("label.branch", "main"),
        ("cpu.count", "2"),
        ("recorder.passes", "5"),
        ("recorder.name", "stk agent"),
        ("exe.version", "1.2.3"),
    ];
    b.profile.trace.metadata = noted.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
    b.profile.trace.boot_id = 0xab;
    b.profile.trace.executable = Some(stk_base::model::ImageId(0));
    b.profile.losses.dropped = vec![("sampler woke late".into(), 3), ("buffers full".into(), 9)];
    let written = b.write(Format::Parquet, &Options::default());
    let traces = read(&written.path, "traces");
    let pairs = |column: &str| -> Vec<(String, String)> {
        let list =
            traces.column(column).expect("column").list().expect("list").get_as_series(0).expect("row");
        let field = |name: &str| list.struct_().expect("struct").field_by_name(name).expect("field");
        let (keys, values) = (field("key"), field("value"));
        let texts = |series: &Series| -> Vec<String> {
            series.str().expect("text").iter().flatten().map(str::to_owned).collect()
        };
        texts(&keys).into_iter().zip(texts(&values)).collect()
    };
    let pair = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    assert_eq!(pairs("labels"), [pair(("branch", "main"))]);
    assert_eq!(pairs("facts"), [pair(("recorder.passes", "5")), pair(("recorder.name", "stk agent"))]);
    assert_eq!(i64s(&traces, "cpu_count"), [Some(2)]);
    assert_eq!(texts(&traces, "exe_version"), [Some("1.2.3".to_owned())]);
    assert_eq!(texts(&traces, "boot_id"), [Some("00000000000000ab".to_owned())]);
    assert_eq!(texts(&traces, "exe_debug_id"), [Some(format!("{:032X}1", 0x1001))]);
    assert_eq!(texts(&traces, "machine_id"), [None]);
    assert_eq!(i64s(&traces, "missed_ticks"), [Some(3)]);
    // 5 passes in 10 ms.
    assert_eq!(floats(&traces, "achieved_hz"), [Some(500.0)]);
    // Frames of all samples, row by row: 2*2 + 2 + 2*3 + 2 + 2*2 + 2 + 1 + 3. Only the leaf of the
    // last row has no name.
    let named = floats(&traces, "named_pct")[0].expect("a percentage");
    assert!((named - 100.0 * 23.0 / 24.0).abs() < 1e-9, "{named}");
}

#[test]
fn every_file_says_the_version_of_its_tables_and_who_made_it() {
    let written = busy().write(Format::Parquet, &Options::default());
    for table in tables::ALL {
        let path = &files(&written.path, table.name)[0];
        let mut reader = ParquetReader::new(File::open(path).expect("open"));
        let facts = reader.get_metadata().expect("a footer").key_value_metadata().clone().expect("facts");
        let of = |key: &str| facts.iter().find(|fact| fact.key == key).and_then(|fact| fact.value.clone());
        assert_eq!(of("stk.tables_version"), Some(tables::VERSION.to_string()), "{}", table.name);
        assert!(of("stk.exporter").is_some_and(|text| text.starts_with("stk ")), "{}", table.name);
    }
}

#[test]
fn a_dataset_of_another_version_is_refused() {
    let folder = tempfile::tempdir().expect("folder");
    let old = folder.path().join("old.parquet");
    std::fs::create_dir_all(old.join("traces")).expect("folder");
    let second = folder.path().join("second.parquet");
    std::fs::create_dir_all(&second).expect("folder");
    std::fs::write(second.join("_stk.json"), r#"{"dataset":"stk","tables_version":2}"#).expect("write");
    let newer = folder.path().join("newer.parquet");
    std::fs::create_dir_all(&newer).expect("folder");
    std::fs::write(newer.join("_stk.json"), r#"{"dataset":"stk","tables_version":99}"#).expect("write");
    for (path, version) in [(old, "version 1"), (second, "version 2"), (newer, "version 99")] {
        let mut writer =
            formats::create(Format::Parquet, Destination::Dir(path), &Options::default()).expect("create");
        let error = writer.begin(&busy().profile).expect_err("refused").to_string();
        assert!(error.contains(version) && error.contains("convert its traces again"), "{error}");
    }
}
