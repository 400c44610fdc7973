//! The traces of a dataset.

use super::tables::{Columns, RowGroups, files};
use super::{DatasetError, DatasetTrace};
use polars::prelude::*;
use std::path::Path;
use stk_schema::tables;

/// Begins the name of the folder of a date.
const DATE: &str = "date=";

const COLUMNS: [&str; 15] = [
    "trace_id",
    "superseded_by",
    "source",
    "host",
    "process",
    "pid",
    "start_utc",
    "duration_ns",
    "interval_ns",
    "complete",
    "samples",
    "dropped",
    "damaged_blocks",
    "content_bytes",
    "labels",
];

/// The traces that no other stands for.
pub(super) fn read(dataset: &Path) -> Result<Vec<DatasetTrace>, DatasetError> {
    let folder = dataset.join(tables::TRACES.name);
    let cannot = |error| DatasetError::File { path: folder.clone(), error };
    if !folder.is_dir() {
        return Err(DatasetError::NoTables(dataset.to_owned()));
    }
    let mut dates = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(cannot)? {
        let name = entry.map_err(cannot)?.file_name().to_string_lossy().into_owned();
        dates.extend(name.strip_prefix(DATE).map(str::to_owned));
    }
    dates.sort();
    let mut traces = Vec::new();
    for date in dates {
        let groups = RowGroups::of_files(files(&folder.join(format!("{DATE}{date}")))?, &tables::TRACES)?;
        for group in 0..groups.len() {
            add(&groups.read(group, &COLUMNS)?, &date, &mut traces)?;
        }
    }
    Ok(traces)
}

/// The folder of the rows of `samples` of a date.
pub(super) fn samples_of(dataset: &Path, date: &str) -> std::path::PathBuf {
    dataset.join(tables::SAMPLES.name).join(format!("{DATE}{date}"))
}

fn add(rows: &Columns, date: &str, traces: &mut Vec<DatasetTrace>) -> Result<(), DatasetError> {
    let text = |name| rows.texts(name);
    let (ids, others, sources) = (text("trace_id")?, text("superseded_by")?, text("source")?);
    let (hosts, processes) = (text("host")?, text("process")?);
    let number = |name| rows.numbers(name);
    let (pids, starts) = (number("pid")?, rows.times("start_utc")?);
    let (durations, intervals) = (number("duration_ns")?, number("interval_ns")?);
    let (dropped, damaged, bytes) = (number("dropped")?, number("damaged_blocks")?, number("content_bytes")?);
    let complete = rows.flags("complete")?;
    let labels = labels(rows)?;
    for (at, labels) in (0..rows.rows()).zip(labels) {
        if others.get(at).is_some() {
            continue;
        }
        let text = |texts: &StringChunked| texts.get(at).unwrap_or_default().to_owned();
        let positive = |number: i64| number.max(0) as u64;
        traces.push(DatasetTrace {
            trace_id: text(ids),
            date: date.to_owned(),
            source: text(sources),
            host: text(hosts),
            process: text(processes),
            pid: pids[at] as u32,
            start_utc_ns: positive(starts[at]).saturating_mul(1000),
            duration_ns: positive(durations[at]),
            interval_ns: positive(intervals[at]),
            complete: complete.get(at).unwrap_or_default(),
            dropped: positive(dropped[at]),
            damaged_blocks: positive(damaged[at]),
            bytes: positive(bytes[at]),
            labels,
            from_ns: None,
            until_ns: None,
        });
    }
    Ok(())
}

/// The labels of each trace.
fn labels(rows: &Columns) -> Result<Vec<Vec<(String, String)>>, DatasetError> {
    let (starts, pairs) = rows.lists("labels")?;
    let pairs = pairs.struct_().map_err(|error| rows.error(error))?;
    let field = |name| pairs.field_by_name(name).map_err(|error| rows.error(error));
    let (keys, values) = (field("key")?, field("value")?);
    let texts = |series: &Series| -> Result<Vec<String>, DatasetError> {
        let texts = series.str().map_err(|error| rows.error(error))?;
        Ok(texts.iter().map(|text| text.unwrap_or_default().to_owned()).collect())
    };
    let (keys, values) = (texts(&keys)?, texts(&values)?);
    let of_trace = |range: &[usize]| {
        let range = range[0]..range[1];
        range.map(|at| (keys[at].clone(), values[at].clone())).collect()
    };
    Ok(starts.windows(2).map(of_trace).collect())
}
