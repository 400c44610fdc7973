//! Rows that many traces share, each once: the tables `stacks` and `frames`.
//!
//! The rows of several parts go together until they take too much memory. Then each is kept once;
//! if that is still much, they go to a temporary file, sorted. At the end those files are merged
//! bucket by bucket: ids are hashes, so that a part of their range has as large a part of the rows.

use super::super::OutputError;
use super::files::{Files, open_table, read, read_all};
use super::groups::rows_of_group;
use super::table::{TableWriter, in_own_memory};
use polars::prelude::*;
use std::cmp::Reverse;
use std::ops::Range;
use stk_base::files::Below;
use stk_schema::tables::{self, ParquetTable};

/// Bytes that rows may take in memory before each is kept once.
const HELD: usize = 16 << 20;
/// Rows of a part that are read at once.
const ROWS_READ: usize = 1 << 13;
/// Rows of a row group, at most.
const ROWS: usize = 1 << 17;
/// Bytes of a row group of a temporary file. One of each file is in memory at a time.
const RUN_BYTES: usize = 256 << 10;
/// Buckets of ids, for the temporary files.
const BUCKETS: usize = 4096;

/// Merges the files of a table, one of each part, into files in `folder`. Temporary files go to
/// `tmp`.
pub(super) fn merge(
    table: &ParquetTable,
    files: &[Below],
    folder: &Below,
    tmp: &Below,
) -> Result<(), OutputError> {
    merge_within(files, &|_| true, Files::new(table, &[], folder), tmp, HELD)
}

/// Merges files of `stacks` into the file with a number in a folder, without the stacks that do not
/// belong there.
pub(super) fn merge_stacks(
    files: &[Below],
    belongs: &dyn Fn(i64) -> bool,
    (folder, number): (&Below, usize),
    tmp: &Below,
) -> Result<(), OutputError> {
    merge_within(files, belongs, Files::single(&tables::STACKS, &[], folder, number), tmp, HELD)
}

fn merge_within(
    files: &[Below],
    belongs: &dyn Fn(i64) -> bool,
    out: Files<'_>,
    tmp: &Below,
    most: usize,
) -> Result<(), OutputError> {
    let table = out.table();
    let mut runs: Vec<SortedRun> = Vec::new();
    let mut held: Option<DataFrame> = None;
    // Counted up, since the size of all rows takes longer with each file.
    let mut bytes = 0;
    read_all(files, table, None, ROWS_READ, |_, frame| {
        let Some(frame) = those_of(table, frame, belongs)? else { return Ok(()) };
        bytes += frame.estimated_size();
        match &mut held {
            Some(held) => {
                held.vstack_mut(&frame)?;
            }
            none => *none = Some(frame),
        }
        if let Some(frame) = held.take_if(|_| bytes > most) {
            let once = each_once(table, &frame)?;
            drop(frame);
            bytes = once.estimated_size();
            if bytes > most / 2 {
                runs.push(SortedRun::write(table, once, tmp, runs.len())?);
                bytes = 0;
            } else {
                held = Some(once);
            }
        }
        Ok(())
    })?;
    let mut out = Sorted { files: out, held: None };
    let rest = held.map(|held| each_once(table, &held)).transpose()?;
    if runs.is_empty() {
        if let Some(rest) = rest {
            out.add(rest)?;
        }
        return out.finish();
    }
    if let Some(rest) = rest {
        runs.push(SortedRun::write(table, rest, tmp, runs.len())?);
    }
    let mut from = 0;
    while from < BUCKETS {
        let bytes = |until: usize| runs.iter().map(|run| run.bytes(&(from..until))).sum::<usize>();
        let mut until = from + 1;
        while until < BUCKETS && bytes(until + 1) <= most {
            until += 1;
        }
        let mut all: Option<DataFrame> = None;
        for run in &runs {
            let frame = run.read(table, &(from..until))?;
            match &mut all {
                Some(all) => {
                    all.vstack_mut(&frame)?;
                }
                none => *none = Some(frame),
            }
        }
        if let Some(all) = all {
            out.add(each_once(table, &all)?)?;
        }
        from = until;
    }
    for run in &runs {
        run.file.remove_file().map_err(OutputError::at(&run.file.path(), "cannot be removed"))?;
    }
    out.finish()
}

/// The rows whose ids belong to a file; `None` if there are none.
fn those_of(
    table: &ParquetTable,
    frame: DataFrame,
    belongs: &dyn Fn(i64) -> bool,
) -> Result<Option<DataFrame>, OutputError> {
    let ids = ids(&frame, table)?.into_iter().zip(0..);
    let rows: Vec<IdxSize> = ids.filter_map(|(id, row)| belongs(id).then_some(row)).collect();
    Ok(match rows.len() {
        0 => None,
        all if all == frame.height() => Some(frame),
        _ => Some(taken(&frame, &rows)?),
    })
}

/// These rows, in memory of their own.
fn taken(frame: &DataFrame, rows: &[IdxSize]) -> Result<DataFrame, OutputError> {
    let column =
        |column: &Column| in_own_memory(&column.as_materialized_series().take_slice(rows)?.into_column());
    Ok(DataFrame::new(frame.get_columns().iter().map(column).collect::<Result<_, _>>()?)?)
}

/// Rows that come sorted, written in row groups of one size.
struct Sorted<'a> {
    files: Files<'a>,
    held: Option<DataFrame>,
}

impl Sorted<'_> {
    fn add(&mut self, frame: DataFrame) -> Result<(), OutputError> {
        let mut all = match self.held.take() {
            Some(mut held) => {
                held.vstack_mut(&frame)?;
                held
            }
            None => frame,
        };
        while let Some(rows) = first_group(&all)? {
            self.files.add(all.slice(0, rows), rows)?;
            self.files.flush()?;
            all = all.slice(rows as i64, all.height() - rows);
        }
        self.held = Some(all);
        Ok(())
    }

    fn finish(mut self) -> Result<(), OutputError> {
        if let Some(held) = self.held.take() {
            self.files.add(held, ROWS)?;
        }
        self.files.finish()
    }
}

/// So many first of some rows are a row group; `None` if rows that come later may be part of it.
fn first_group(frame: &DataFrame) -> Result<Option<usize>, OutputError> {
    let mut rows = frame.height().min(ROWS);
    if let Some(lists) = frame.get_columns().iter().find(|column| matches!(column.dtype(), DataType::List(_)))
    {
        let lists = lists.list()?;
        let lengths = lists.downcast_iter().flat_map(|lists| lists.offsets().lengths());
        rows = rows.min(rows_of_group(lengths));
    }
    Ok((rows < frame.height() || rows == ROWS).then_some(rows))
}

/// A temporary file of sorted rows, each once.
struct SortedRun {
    file: Below,
    /// Where the rows of each bucket begin; at the end their number.
    starts: Vec<usize>,
    bytes_per_row: usize,
}

impl SortedRun {
    fn write(
        table: &ParquetTable,
        frame: DataFrame,
        tmp: &Below,
        number: usize,
    ) -> Result<SortedRun, OutputError> {
        let file = tmp.join(format!("{}-{number}.parquet", table.name));
        let ids = ids(&frame, table)?;
        let starts = (0..=BUCKETS).map(|at| ids.partition_point(|&id| bucket(id) < at)).collect();
        let bytes_per_row = frame.estimated_size() / frame.height().max(1) + 1;
        let mut writer = TableWriter::create(&file, table, &[], String::new())?;
        let rows = (RUN_BYTES / bytes_per_row).max(1);
        for from in (0..frame.height()).step_by(rows) {
            writer.write_frame(frame.slice(from as i64, rows))?;
        }
        writer.finish()?;
        Ok(SortedRun { file, starts, bytes_per_row })
    }

    fn bytes(&self, buckets: &Range<usize>) -> usize {
        (self.starts[buckets.end] - self.starts[buckets.start]) * self.bytes_per_row
    }

    fn read(&self, table: &ParquetTable, buckets: &Range<usize>) -> Result<DataFrame, OutputError> {
        let (from, until) = (self.starts[buckets.start], self.starts[buckets.end]);
        read(&open_table(&self.file, table)?, from, until - from)
    }
}

/// The bucket of an id: ids of one bucket are one range of all ids.
fn bucket(id: i64) -> usize {
    (order(id) >> 52) as usize
}

/// A number whose order is that of ids.
pub(super) fn order(id: i64) -> u64 {
    id as u64 ^ (1 << 63)
}

fn numbers(frame: &DataFrame, name: &str) -> Result<Vec<i64>, OutputError> {
    Ok(frame.column(name)?.i64()?.iter().map(Option::unwrap_or_default).collect())
}

fn ids(frame: &DataFrame, table: &ParquetTable) -> Result<Vec<i64>, OutputError> {
    let is_stacks = table.name == tables::STACKS.name;
    numbers(frame, if is_stacks { "stack_id" } else { "location_id" })
}

/// The rows sorted by id, each once: the best of those with the same id.
fn each_once(table: &ParquetTable, frame: &DataFrame) -> Result<DataFrame, OutputError> {
    let ids = ids(frame, table)?;
    // A value of a column of many pieces is found by walking over these.
    let resolved_by: Vec<&str> =
        frame.column("resolved_by")?.str()?.iter().map(Option::unwrap_or_default).collect();
    let by = |row: usize| resolved_by[row];
    let mut rows: Vec<usize> = (0..ids.len()).collect();
    let chosen: Vec<IdxSize> = if table.name == tables::STACKS.name {
        let version = numbers(frame, "walk_version")?;
        rows.sort_by_key(|&row| (ids[row], Reverse(version[row]), by(row), row));
        rows.dedup_by_key(|row| ids[*row]);
        rows.into_iter().map(|row| row as IdxSize).collect()
    } else {
        let index = numbers(frame, "inline_index")?;
        let lines: Vec<bool> =
            frame.column("line")?.is_not_null().iter().map(Option::unwrap_or_default).collect();
        let sources: Vec<Option<&str>> = frame.column("name_source")?.str()?.iter().collect();
        rows.sort_by_key(|&row| (ids[row], by(row), index[row], row));
        let mut chosen = Vec::with_capacity(rows.len());
        for location in rows.chunk_by(|a, b| ids[*a] == ids[*b]) {
            let rank = |part: &&[usize]| {
                let source = sources[part[0]].unwrap_or_default();
                let has_line = part.iter().any(|&row| lines[row]);
                (source_rank(source), !has_line, Reverse(part.len()), by(part[0]).to_owned())
            };
            let best = location.chunk_by(|a, b| by(*a) == by(*b)).min_by_key(rank);
            chosen.extend(best.into_iter().flatten().map(|&row| row as IdxSize));
        }
        chosen
    };
    taken(frame, &chosen)
}

/// Sources of names, the best first.
const SOURCES: [&str; 5] = ["pdb", "dwarf", "runtime", "export", "none"];

fn source_rank(source: &str) -> usize {
    SOURCES.iter().position(|known| *known == source).unwrap_or(SOURCES.len())
}

#[cfg(test)]
mod tests {
    use super::super::table::{column, list};
    use super::*;
    use std::collections::HashMap;

    /// A file of `stacks` with these ids, and another id that is made of the trace's.
    fn stacks(folder: &Below, trace: u64, ids: impl Iterator<Item = i64>) -> Below {
        let mut ids: Vec<i64> = ids.map(|id| id.wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64)).collect();
        ids.sort_unstable();
        let file = folder.join(format!("{trace}.parquet"));
        let offsets = (0..=ids.len() as i64).map(|i| 2 * i).collect::<Vec<i64>>();
        let locations: Vec<i64> = ids.iter().flat_map(|&id| [id, id + 1]).collect();
        let trusts: Vec<String> = locations.iter().map(|_| format!("of {trace}")).collect();
        let mut writer = TableWriter::create(&file, &tables::STACKS, &[], String::new()).unwrap();
        writer
            .write(vec![
                column("stack_id", ids.clone()),
                column("walk_version", vec![1i64; ids.len()]),
                list("location_ids", offsets.clone(), column("", locations).take_materialized_series())
                    .unwrap(),
                list("trusts", offsets, column("", trusts).take_materialized_series()).unwrap(),
                column("depth", vec![2i64; ids.len()]),
                column("resolved_by", vec![format!("trace {trace}"); ids.len()]),
            ])
            .unwrap();
        writer.finish().unwrap();
        file
    }

    fn merged(files: &[Below], most: usize) -> Vec<(String, Vec<u8>)> {
        let folder = tempfile::tempdir().unwrap();
        let folder = Below::folder(folder.path()).unwrap();
        let (out, tmp) = (folder.join("out"), folder.join("tmp"));
        out.create_folder().unwrap();
        tmp.create_folder().unwrap();
        merge_within(files, &|_| true, Files::new(&tables::STACKS, &[], &out), &tmp, most).unwrap();
        assert_eq!(tmp.list().unwrap(), [""; 0], "temporary files are removed");
        let read = |name: String| (name.clone(), out.join(name).read(1 << 30).unwrap());
        out.list().unwrap().into_iter().map(read).collect()
    }

    #[test]
    fn rows_are_the_same_in_any_memory_and_order() {
        let folder = tempfile::tempdir().unwrap();
        let folder = Below::folder(folder.path()).unwrap();
        let files: Vec<Below> =
            (0..8).map(|trace| stacks(&folder, trace, (0..3000).map(|i| 700 * trace as i64 + i))).collect();
        let all = merged(&files, usize::MAX);
        let whole = folder.join("all.parquet");
        std::fs::write(whole.path(), &all[0].1).unwrap();
        let frame = read(&open_table(&whole, &tables::STACKS).unwrap(), 0, usize::MAX).unwrap();
        // 7 times 700 new ones each, and 3000 of the last.
        assert_eq!(frame.height(), 7 * 700 + 3000);
        let ids = numbers(&frame, "stack_id").unwrap();
        assert!(ids.windows(2).all(|two| two[0] < two[1]), "sorted, each once");
        // The one of the smallest trace stands.
        let by = frame.column("resolved_by").unwrap().str().unwrap().clone();
        let first = by.iter().filter(|by| *by == Some("trace 0")).count();
        assert_eq!(first, 3000);
        let turned: Vec<Below> = files.iter().rev().cloned().collect();
        for most in [200_000, 20_000, 1_000] {
            assert!(merged(&files, most) == all, "{most}");
            assert!(merged(&turned, most) == all, "{most}, the other way round");
        }
    }

    /// Bytes of the buffers that a column of texts, or of lists of texts, keeps in memory.
    fn kept_bytes(column: &Column) -> usize {
        let texts = match column.list() {
            Ok(list) => list.explode().unwrap(),
            Err(_) => column.as_materialized_series().clone(),
        };
        let buffers = texts.str().unwrap().downcast_iter().flat_map(|texts| texts.data_buffers().iter());
        let each: HashMap<_, _> = buffers.map(|buffer| (buffer.as_ptr(), buffer.len())).collect();
        each.values().sum()
    }

    #[test]
    fn rows_that_are_kept_do_not_keep_the_files_in_memory_from_which_they_come() {
        let folder = tempfile::tempdir().unwrap();
        let trust = "a text that does not fit into a view";
        let mut frames = (0..20).map(|trace| {
            let file = Below::folder(folder.path()).unwrap().join(format!("{trace}.parquet"));
            let mut writer = TableWriter::create(&file, &tables::STACKS, &[], String::new()).unwrap();
            let trusts: Vec<String> = (0..500).map(|row| format!("{trust} {row} of {trace}")).collect();
            let offsets: Vec<i64> = (0..=500).collect();
            let ids: Vec<i64> = (0..500).collect();
            writer
                .write(vec![
                    column("stack_id", ids.clone()),
                    column("walk_version", vec![1i64; 500]),
                    list("location_ids", offsets.clone(), column("", ids).take_materialized_series())
                        .unwrap(),
                    list("trusts", offsets, column("", trusts.clone()).take_materialized_series()).unwrap(),
                    column("depth", vec![1i64; 500]),
                    column("resolved_by", trusts),
                ])
                .unwrap();
            writer.finish().unwrap();
            read(&open_table(&file, &tables::STACKS).unwrap(), 0, usize::MAX).unwrap()
        });
        let mut all = frames.next().unwrap();
        for frame in frames {
            all.vstack_mut(&frame).unwrap();
        }
        let texts =
            |frame: &DataFrame| ["trusts", "resolved_by"].map(|name| frame.column(name).unwrap().clone());
        let before = texts(&all).each_ref().map(kept_bytes);
        let once = each_once(&tables::STACKS, &all).unwrap();
        assert_eq!(once.height(), 500);
        for (column, before) in texts(&once).iter().zip(before) {
            let kept = kept_bytes(column);
            assert!(kept * 10 < before, "{}: {kept} of {before} bytes", column.name());
        }
    }

    #[test]
    fn buckets_are_ranges_of_ids() {
        let ids = [i64::MIN, -(1 << 52) - 1, -1, 0, 1 << 52, i64::MAX];
        let buckets = ids.map(bucket);
        assert!(buckets.is_sorted(), "{buckets:?}");
        assert_eq!((buckets[0], buckets[5]), (0, BUCKETS - 1));
    }
}
