//! Datasets of many files: what they hold does not depend on names, order, threads or earlier runs.

use polars::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use stk::commands::{Exit, answer};
use stk_format::{
    BLOCK_HEADER_LEN, BlockKind, FLAG_SUPPLEMENT, SampleStep, Scratch, SupplementWriter, Trace,
};
use stk_schema::event::{Event, Metadata};
use stk_tests::synth::Parts;

/// A recording that is kept in the repository, without what was added after its end.
pub(super) fn kept(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/traces").join(name);
    let mut parts = Parts::take_apart(&std::fs::read(path).expect("the kept recording")).expect("a trace");
    parts.blocks.retain(|block| block.header.flags & FLAG_SUPPLEMENT == 0);
    parts.to_file()
}

/// Where the SAMPLES block with this number ends.
fn end_of_samples(file: &[u8], number: usize) -> usize {
    let trace = Trace::open(file).expect("a trace");
    let mut samples = trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Samples);
    let block = samples.nth(number).expect("the block");
    block.offset as usize + BLOCK_HEADER_LEN + block.header.stored_len as usize
}

/// Another recording with the UUID of this one: it lacks the last block of samples.
fn other_recording(file: &[u8]) -> Vec<u8> {
    let mut parts = Parts::take_apart(file).expect("a trace");
    let at = parts.blocks.iter().rposition(|block| block.header.kind == BlockKind::Samples).expect("samples");
    parts.blocks.remove(at);
    parts.renumber();
    parts.to_file()
}

/// The same recording under another UUID.
fn with_uuid(file: &[u8], byte: u8) -> Vec<u8> {
    let mut parts = Parts::take_apart(file).expect("a trace");
    parts.header.uuid = [byte; 16];
    parts.to_file()
}

fn completed(file: &[u8]) -> Vec<u8> {
    let trace = Trace::open(file).expect("a trace");
    let mut writer = SupplementWriter::new(&trace).expect("it can be completed");
    let fact = Event::Metadata(Metadata { key: b"supplement.modules", value: b"0" });
    writer.event(BlockKind::Meta, &fact).expect("a fact");
    let added = writer.finish().expect("a supplement");
    [&file[..added.keep as usize], &added.bytes].concat()
}

/// A folder with trace files, where datasets are made.
struct Lab(tempfile::TempDir);

impl Lab {
    fn new(files: &[(&str, &[u8])]) -> Lab {
        let lab = Lab(tempfile::tempdir().expect("a folder"));
        for (name, bytes) in files {
            let path = lab.path(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, bytes).expect("written");
        }
        lab
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Converts files to a dataset.
    fn convert(&self, files: &[&str], dataset: &str, jobs: &str) -> Exit {
        let options = ["--to", "parquet", "--no-default-symbols", "-j", jobs, "-o"].map(Into::into);
        let files = files.iter().map(|name| self.path(name).into_os_string());
        let dataset = self.path(dataset).into_os_string();
        let line = std::iter::once("convert".into()).chain(files).chain(options).chain([dataset]);
        answer(line).expect("converted").1
    }

    /// Every file of a dataset by its path, with its bytes.
    fn files(&self, dataset: &str) -> BTreeMap<String, Vec<u8>> {
        let root = self.path(dataset);
        let mut found = BTreeMap::new();
        let mut folders = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    let name = path.strip_prefix(&root).expect("within").display().to_string();
                    found.insert(name, std::fs::read(&path).expect("read"));
                }
            }
        }
        found
    }

    /// A table, all its files together.
    fn table(&self, dataset: &str, table: &str) -> DataFrame {
        super::parquet::read(&self.path(dataset), table)
    }

    /// Source and stand-in of each trace of a dataset.
    fn traces(&self, dataset: &str) -> BTreeSet<(Option<String>, bool)> {
        let traces = self.table(dataset, "traces");
        let text = |name: &str| traces.column(name).expect("the column").str().expect("text").clone();
        let (sources, stand_ins) = (text("source"), text("superseded_by"));
        let stands = stand_ins.iter().map(|other| other.is_none());
        sources.iter().map(|source| source.map(str::to_owned)).zip(stands).collect()
    }
}

fn stands(name: &str) -> (Option<String>, bool) {
    (Some(name.to_owned()), true)
}

/// A trace that another stands for.
const SUPERSEDED: (Option<String>, bool) = (None, false);

#[test]
fn a_dataset_is_the_same_for_any_order_and_any_number_of_threads() {
    let whole = kept("busy.stk");
    let end = end_of_samples(&whole, 2);
    let other = other_recording(&whole);
    let elsewhere = with_uuid(&whole, 9);
    let lab = Lab::new(&[
        ("whole.stk", &whole),
        ("cut.stk", &whole[..end + 100]),
        ("cut-shorter.stk", &whole[..end_of_samples(&whole, 1)]),
        ("copy.stk", &whole),
        ("sub/whole.stk", &whole),
        ("other.stk", &other),
        ("elsewhere.stk", &elsewhere),
    ]);
    let names = [
        "whole.stk",
        "cut.stk",
        "cut-shorter.stk",
        "copy.stk",
        "sub/whole.stk",
        "other.stk",
        "elsewhere.stk",
    ];
    assert_eq!(lab.convert(&names, "ds1", "1"), Exit::Ok);
    let expected = lab.files("ds1");
    let mut order = names.to_vec();
    for (i, jobs) in ["2", "3", "7", "1"].iter().enumerate() {
        order.rotate_left(2);
        order.swap(0, 1);
        let dataset = format!("again{i}");
        assert_eq!(lab.convert(&order, &dataset, jobs), Exit::Ok);
        assert!(lab.files(&dataset) == expected, "{order:?} with {jobs} threads");
    }
    // One after the other, in both directions: the same again.
    for (dataset, names) in [("forth", names.to_vec()), ("back", names.iter().rev().copied().collect())] {
        for name in names.iter().filter(|name| !name.contains("whole.stk") || **name == "whole.stk") {
            lab.convert(&[name], dataset, "2");
        }
        // The first by name of the copies is the one that is reported.
        lab.convert(&["copy.stk"], dataset, "2");
        let found = lab.files(dataset);
        assert!(found.keys().eq(expected.keys()), "{dataset}: {:?}", found.keys());
        assert!(found == expected, "{dataset}");
    }
    let traces = ["copy.stk", "other.stk", "elsewhere.stk"].map(stands);
    assert_eq!(lab.traces("ds1"), traces.into_iter().chain([SUPERSEDED]).collect());
    // Each of the three has its samples once.
    let samples = lab.table("ds1", "samples");
    let ids: BTreeSet<_> = samples
        .column("trace_id")
        .expect("ids")
        .str()
        .expect("text")
        .iter()
        .flatten()
        .map(str::to_owned)
        .collect();
    assert_eq!(ids.len(), 3);
    // Its stacks have the samples' ids, and each is there once.
    let numbers = |table: &str, column: &str| {
        let table = lab.table("ds1", table);
        table.column(column).expect("ids").i64().expect("Int64").iter().flatten().collect::<Vec<i64>>()
    };
    let (stacks, used) = (numbers("stacks", "stack_id"), numbers("samples", "stack_id"));
    let distinct: BTreeSet<i64> = stacks.iter().copied().collect();
    assert_eq!(distinct.len(), stacks.len());
    assert_eq!(distinct, used.into_iter().collect());
}

#[test]
fn a_longer_file_of_a_later_run_replaces_its_beginning() {
    let whole = kept("busy.stk");
    let longer = completed(&whole);
    let cut = &whole[..end_of_samples(&whole, 2)];
    let lab = Lab::new(&[("cut.stk", cut), ("whole.stk", &whole), ("completed.stk", &longer)]);
    let samples = |dataset: &str| lab.table(dataset, "samples").height();
    lab.convert(&["cut.stk"], "ds", "2");
    let of_cut = samples("ds");
    lab.convert(&["whole.stk"], "ds", "2");
    assert_eq!(lab.traces("ds"), [stands("whole.stk"), SUPERSEDED].into());
    lab.convert(&["whole.stk"], "alone", "2");
    assert_eq!(samples("ds"), samples("alone"));
    assert!(of_cut < samples("ds"), "{of_cut}");
    // A shorter one changes nothing.
    let before = lab.files("ds");
    lab.convert(&["cut.stk"], "ds", "2");
    assert!(lab.files("ds") == before);
    lab.convert(&["completed.stk"], "ds", "2");
    assert_eq!(lab.traces("ds"), [stands("completed.stk"), SUPERSEDED].into());
    assert_eq!(lab.table("ds", "traces").height(), 3, "the cut and the whole one are both reported");
    let traces = lab.table("ds", "traces");
    let by = traces.column("superseded_by").expect("the column").str().expect("text").clone();
    let by: BTreeSet<_> = by.iter().flatten().collect();
    assert_eq!(by.len(), 1, "both by the longest");
    lab.convert(&["completed.stk", "cut.stk", "whole.stk"], "at-once", "2");
    assert!(lab.files("ds") == lab.files("at-once"));
}

#[test]
fn managed_locations_are_shared_between_recordings() {
    let mixed = kept("mixed.stk");
    let names = ["a.stk", "b.stk", "c.stk"];
    let lab = Lab::new(&[
        ("a.stk", &mixed),
        ("b.stk", &with_uuid(&mixed, 1)),
        ("c.stk", &with_uuid(&other_recording(&mixed), 2)),
    ]);
    let managed = |name: &str| {
        let dataset = format!("{name}.parquet");
        lab.convert(&[name], &dataset, "2");
        let frames = lab.table(&dataset, "frames");
        let kind = frames.column("kind").expect("kinds").str().expect("text").clone();
        let portable = frames.column("portable").expect("portable").bool().expect("Boolean").clone();
        let ids = frames.column("location_id").expect("ids").i64().expect("Int64").clone();
        let rows = kind.iter().zip(&portable).zip(&ids).filter(|((kind, _), _)| *kind == Some("managed"));
        let (shared, own): (Vec<_>, Vec<_>) = rows.partition(|((_, portable), _)| *portable == Some(true));
        let ids = |rows: Vec<((_, _), Option<i64>)>| {
            rows.into_iter().filter_map(|row| row.1).collect::<BTreeSet<i64>>()
        };
        (ids(shared), ids(own))
    };
    let [(a, own_a), (b, own_b), (c, _)] = names.map(managed);
    assert!(a.len() > 50, "{}", a.len());
    assert!(a.len() > 10 * own_a.len(), "{} and {}", a.len(), own_a.len());
    assert_eq!(a, b);
    assert!(own_a.is_disjoint(&own_b));
    assert!(c.len() > 20 && c.is_subset(&a), "{} of {}", c.len(), a.len());
}

#[test]
fn the_rows_of_a_thread_add_up_to_the_cpu_time_of_its_clock() {
    let busy = kept("busy.stk");
    // What the samples say, read by the format's own reader.
    let trace = Trace::open(&busy).expect("a trace");
    let mut expected: BTreeMap<i64, i64> = BTreeMap::new();
    let mut scratch = Scratch::new();
    for block in trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Samples) {
        let mut samples = trace.samples(block, &mut scratch).expect("samples");
        while let Some(step) = samples.next().expect("a step") {
            let (thread, delta) = match step {
                SampleStep::Sample(sample) => (sample.thread, sample.cpu_delta),
                SampleStep::Same(same) => (same.thread, same.cpu_delta),
                SampleStep::Other(Event::ThreadCpu(more)) => (more.thread, Some(more.cpu)),
                SampleStep::Idle(_) | SampleStep::Other(_) => continue,
            };
            *expected.entry(thread as i64).or_default() += 100 * delta.unwrap_or(0);
        }
    }
    let lab = Lab::new(&[("busy.stk", &busy)]);
    lab.convert(&["busy.stk"], "ds", "2");
    let samples = lab.table("ds", "samples");
    let column = |name: &str| samples.column(name).expect("the column").i64().expect("Int64").clone();
    let mut found: BTreeMap<i64, i64> = BTreeMap::new();
    for (thread, cpu) in column("thread").iter().zip(&column("cpu_ns")) {
        *found.entry(thread.expect("a thread")).or_default() += cpu.expect("a CPU time");
    }
    // What being sampled cost a thread is no time of its own.
    let stats = stk_tests::stk::json(lab.0.path(), &["stats", "--json", "busy.stk"]);
    let mut sampling = 0;
    for thread in stats["traces"][0]["threads"].as_array().expect("threads") {
        let cost = thread["sampling_cpu_ns"].as_i64().expect("a CPU time");
        *found.entry(thread["instance"].as_i64().expect("an instance")).or_default() += cost;
        sampling += cost;
    }
    assert!(sampling > 0 && sampling < found.values().sum::<i64>() / 50, "{sampling}");
    expected.retain(|thread, _| found.contains_key(thread));
    assert_eq!(found, expected);
    assert!(found.values().sum::<i64>() > 1_000_000_000, "{found:?}");
}
