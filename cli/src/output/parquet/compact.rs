//! Compaction: makes the tables of a dataset of its parts. What it makes depends on the set of the
//! parts alone.
//!
//! New tables are made in `_stk/tmp` and then renamed. `_stk/state.json` says of which parts the
//! tables are; it is written last, so that what was interrupted is done again.

use super::super::lock::FolderLock;
use super::super::source::exporter_of;
use super::super::{OutputError, Summary};
use super::part::{self, DATE, Part};
use super::read::{self, Wanted};
use super::state::State;
use super::table::{TableWriter, nulls};
use super::{apply, catalog, dimensions};
use polars::prelude::*;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use stk_schema::tables::{self, ParquetTable};

/// Bytes behind which a file ends with its row group.
const FILE_BYTES: u64 = 256 << 20;
/// Rows of a row group of tables by date, at most.
const ROWS: usize = 1 << 19;
/// Rows of a part that are read at once.
const ROWS_READ: usize = 1 << 18;
/// How often other processes may add parts meanwhile before they are left to the next compaction.
const ROUNDS: usize = 16;

/// Makes the tables of a dataset. Returns the files that were made. Waits for another process that
/// makes them. `whole`: no part is left in small files, and the bytes depend on the set of parts
/// alone.
pub(super) fn compact(dataset: &Path, whole: bool) -> Result<Summary, OutputError> {
    catalog::prepare(dataset)?;
    let _lock = FolderLock::of_tables(dataset)?;
    compact_alone(dataset, whole)
}

/// [`compact`] for who holds the lock.
pub(super) fn compact_alone(dataset: &Path, whole: bool) -> Result<Summary, OutputError> {
    let mut summary = Summary::default();
    for _ in 0..ROUNDS {
        let parts = part::parts(dataset)?;
        let names = apply::name_files(dataset)?;
        let mut before = State::read(dataset);
        if !is_whole(dataset, &before) {
            before = State::default();
        }
        let after = State::of(&parts, &names, &before, whole)?;
        if before == after && is_whole(dataset, &after) {
            return Ok(summary);
        }
        summary.files.extend(round(dataset, &parts, &names, &before, &after)?);
        // Another process may have added parts, and have made its tables before these.
        after.write(dataset)?;
    }
    Ok(summary)
}

/// Whether all folders of the tables are there.
fn is_whole(dataset: &Path, state: &State) -> bool {
    tables::ALL.iter().all(|table| {
        let folder = dataset.join(table.name);
        match table.by_date {
            true => state.dates().all(|date| folder.join(format!("{DATE}{date}")).is_dir()),
            false => folder.is_dir(),
        }
    })
}

fn round(
    dataset: &Path,
    parts: &[Part],
    names: &[PathBuf],
    before: &State,
    after: &State,
) -> Result<Vec<(PathBuf, u64)>, OutputError> {
    let tmp = part::temporary_folder(dataset)?;
    let dates: Vec<&String> = after.dates().filter(|date| !before.same_date(after, date)).collect();
    // Both are sorting and writing by one thread for the most part.
    let (shared, dated) = rayon::join(
        || shared_tables(dataset, parts, names, before, after, tmp.path()),
        || dated_tables(dataset, parts, &dates, before, after, tmp.path()),
    );
    // Tables that all traces share come first, `traces` last.
    let made: Vec<NewFolder> = shared?.into_iter().chain(dated?).collect();
    let mut files = Vec::new();
    for (number, NewFolder { new, goal }) in made.iter().enumerate() {
        part::make_folder(goal.parent().unwrap_or(goal))?;
        part::replace_folder(new, goal, &tmp.path().join(format!("old{number}")))?;
        for name in part::names(goal)? {
            let path = goal.join(name);
            let size = std::fs::metadata(&path).map_err(OutputError::at(&path, "cannot be read"))?.len();
            files.push((path, size));
        }
    }
    remove_old_dates(dataset, after)?;
    Ok(files)
}

/// A folder that was made, and where it is to go.
struct NewFolder {
    new: PathBuf,
    goal: PathBuf,
}

/// Makes the tables that all traces share, where they change, in `tmp`.
fn shared_tables(
    dataset: &Path,
    parts: &[Part],
    names: &[PathBuf],
    before: &State,
    after: &State,
    tmp: &Path,
) -> Result<Vec<NewFolder>, OutputError> {
    let mut made = Vec::new();
    for table in tables::ALL.iter().filter(|table| !table.by_date) {
        let goal = dataset.join(table.name);
        let names = if table.name == tables::FRAMES.name { names } else { &[] };
        let same_names = table.name != tables::FRAMES.name || before.same_names(after);
        if before.same_parts(after) && same_names && goal.is_dir() {
            continue;
        }
        let new = tmp.join(table.name);
        part::make_folder(&new)?;
        // The best row of an id stays the best when others are added.
        let grows = before.grows_to(after);
        let known = if grows { part::names(&goal)? } else { Vec::new() };
        let of_parts = parts.iter().filter(|part| part.has(table) && !(grows && before.has_part(part)));
        let files = known.into_iter().map(|name| goal.join(name));
        let files = files.chain(of_parts.map(|part| part.file(dataset, table)));
        let files: Vec<PathBuf> = files.chain(names.iter().cloned()).collect();
        match files.as_slice() {
            [file] => link(file, &new, 0)?,
            files => dimensions::merge(table, files, &new, tmp)?,
        }
        made.push(NewFolder { new, goal });
    }
    Ok(made)
}

/// Makes the tables by date of these dates, in `tmp`.
fn dated_tables(
    dataset: &Path,
    parts: &[Part],
    dates: &[&String],
    before: &State,
    after: &State,
    tmp: &Path,
) -> Result<Vec<NewFolder>, OutputError> {
    let mut made = Vec::new();
    for table in tables::ALL.iter().filter(|table| table.by_date) {
        for &date in dates {
            let of_date: Vec<&Part> = parts.iter().filter(|part| part.date == *date).collect();
            let new = tmp.join(table.name).join(format!("{DATE}{date}"));
            part::make_folder(&new)?;
            let goal = dataset.join(table.name).join(format!("{DATE}{date}"));
            if before.keeps_files(after, date) {
                let added = of_date.iter().filter(|part| part.has(table) && before.is_added(after, part));
                add_small(&goal, added.map(|part| part.file(dataset, table)), &new)?;
            } else {
                by_date(dataset, table, &of_date, &new)?;
            }
            made.push(NewFolder { new, goal });
        }
    }
    Ok(made)
}

/// Removes the folders of dates that no part has any more.
fn remove_old_dates(dataset: &Path, state: &State) -> Result<(), OutputError> {
    for table in tables::ALL.iter().filter(|table| table.by_date) {
        let folder = dataset.join(table.name);
        for name in part::names(&folder)?.into_iter().filter(|name| name.starts_with(DATE)) {
            if !name.strip_prefix(DATE).is_some_and(|date| state.has(date)) {
                let path = folder.join(name);
                match std::fs::remove_dir_all(&path) {
                    Err(error) if error.kind() != ErrorKind::NotFound => {
                        return Err(OutputError::at(&path, "cannot be removed")(error));
                    }
                    _ => {}
                }
            }
        }
    }
    Ok(())
}

/// Gives a file a second name in `folder`, or copies it where the system cannot do that.
fn link(file: &Path, folder: &Path, number: usize) -> Result<(), OutputError> {
    let goal = folder.join(file_name(number));
    if std::fs::hard_link(file, &goal).is_ok() {
        return Ok(());
    }
    std::fs::copy(file, &goal).map(drop).map_err(OutputError::at(&goal, "cannot be written"))
}

/// The files of a table that has some already for one date, and small files that are added.
fn add_small(known: &Path, small: impl Iterator<Item = PathBuf>, folder: &Path) -> Result<(), OutputError> {
    let files = part::names(known)?.into_iter().map(|name| known.join(name));
    files.chain(small).enumerate().try_for_each(|(number, file)| link(&file, folder, number))
}

/// The files of a table for one date.
fn by_date(dataset: &Path, table: &ParquetTable, parts: &[&Part], folder: &Path) -> Result<(), OutputError> {
    let parts: Vec<&&Part> = parts.iter().filter(|part| part.has(table)).collect();
    if let [part] = parts.as_slice() {
        return link(&part.file(dataset, table), folder, 0);
    }
    let is_samples = table.name == tables::SAMPLES.name;
    let more: &[tables::Column] = match is_samples && parts.iter().any(|part| part.denormalized) {
        true => &[tables::SAMPLES_FRAMES],
        false => &[],
    };
    let mut files = Files::new(table, more, folder);
    for part in parts {
        let path = part.file(dataset, table);
        let mut at = 0;
        let rows = rows_of(&path)?;
        while at < rows {
            let mut frame = read(&path, at, ROWS_READ)?;
            for missing in more.iter().filter(|_| !part.denormalized) {
                let nulls = nulls(missing, frame.height());
                frame.with_column(nulls).map_err(|error| OutputError::Table { path: path.clone(), error })?;
            }
            at += ROWS_READ;
            files.add(frame, ROWS)?;
        }
    }
    files.finish()
}

/// Rows of a file.
pub(super) fn rows_of(path: &Path) -> Result<usize, OutputError> {
    let file = File::open(path).map_err(OutputError::at(path, "cannot be read"))?;
    Ok(read::stated_rows(&read::facts(path, file)?))
}

/// Rows of a file from number `from` on.
pub(super) fn read(path: &Path, from: usize, rows: usize) -> Result<DataFrame, OutputError> {
    let file = File::open(path).map_err(OutputError::at(path, "cannot be read"))?;
    let handle = file.try_clone().map_err(OutputError::at(path, "cannot be read"))?;
    let facts = read::facts(path, handle)?;
    let parallel = ParallelStrategy::Auto;
    Ok(read::read(path, file, Wanted { columns: None, from, rows, facts, parallel })?)
}

fn file_name(number: usize) -> String {
    format!("{number:04}.parquet")
}

/// The files of a table in a folder, one after the other.
pub(super) struct Files<'a> {
    table: &'a ParquetTable,
    more: &'a [tables::Column],
    folder: PathBuf,
    number: usize,
    writer: Option<TableWriter>,
    held: Option<DataFrame>,
}

impl<'a> Files<'a> {
    pub(super) fn new(table: &'a ParquetTable, more: &'a [tables::Column], folder: &Path) -> Files<'a> {
        Files { table, more, folder: folder.to_owned(), number: 0, writer: None, held: None }
    }

    /// Adds rows. What is held and would be more than `most` rows with them is written as a row
    /// group before.
    pub(super) fn add(&mut self, frame: DataFrame, most: usize) -> Result<(), OutputError> {
        if self.held.as_ref().is_some_and(|held| held.height() + frame.height() > most) {
            self.flush()?;
        }
        match &mut self.held {
            Some(held) => {
                held.vstack_mut(&frame)?;
            }
            none => *none = Some(frame),
        }
        Ok(())
    }

    /// Writes what is held as a row group.
    pub(super) fn flush(&mut self) -> Result<(), OutputError> {
        let Some(mut frame) = self.held.take().filter(|frame| frame.height() > 0) else { return Ok(()) };
        let writer = match &mut self.writer {
            Some(writer) => writer,
            none => {
                let path = self.folder.join(file_name(self.number));
                self.number += 1;
                none.insert(TableWriter::create(&path, self.table, self.more, exporter_of(None))?)
            }
        };
        // A row group is made of each piece of a frame.
        frame.as_single_chunk_par();
        writer.write_frame(frame)?;
        if writer.len()? >= FILE_BYTES
            && let Some(writer) = self.writer.take()
        {
            writer.finish()?;
        }
        Ok(())
    }

    /// Writes the rest. A table without rows is a file without row groups, which tells its columns.
    pub(super) fn finish(mut self) -> Result<(), OutputError> {
        self.flush()?;
        let writer = match self.writer.take() {
            Some(writer) => writer,
            None if self.number > 0 => return Ok(()),
            None => {
                let path = self.folder.join(file_name(0));
                TableWriter::create(&path, self.table, self.more, exporter_of(None))?
            }
        };
        writer.finish().map(drop)
    }
}
