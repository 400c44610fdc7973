//! The files of a table: reads rows of one, and writes rows to several.

use super::super::OutputError;
use super::super::source::exporter_of;
use super::read::TableFile;
use super::table::TableWriter;
use polars::prelude::*;
use rayon::prelude::*;
use std::fs::File;
use std::io;
use stk_base::files::Below;
use stk_schema::tables::{self, ParquetTable};

/// Bytes behind which a file ends with its row group.
const FILE_BYTES: u64 = 256 << 20;

/// A file of a table.
pub(super) fn open_table(file: &Below, table: &ParquetTable) -> Result<TableFile, OutputError> {
    Ok(TableFile::open(&file.path(), open(file)?, table)?)
}

/// Rows of a file from number `from` on.
pub(super) fn read(file: &TableFile, from: usize, rows: usize) -> Result<DataFrame, OutputError> {
    read_columns(file, None, from, rows)
}

fn read_columns(
    file: &TableFile,
    columns: Option<&[&str]>,
    from: usize,
    rows: usize,
) -> Result<DataFrame, OutputError> {
    Ok(file.read(columns, from, rows, ParallelStrategy::Auto)?)
}

/// Rows of a file that is read whole, beside others.
const FEW_ROWS: usize = 1 << 14;

/// Calls `take` with the rows of files, at most `rows` at a time, and the number of their file.
/// Small files are read several at once, in the caller's rayon pool. `columns`: `None` = all.
pub(super) fn read_all(
    files: &[Below],
    table: &ParquetTable,
    columns: Option<&[&str]>,
    rows: usize,
    mut take: impl FnMut(usize, DataFrame) -> Result<(), OutputError>,
) -> Result<(), OutputError> {
    let open = |file: &Below| {
        let file = open_table(file, table)?;
        let small = (1..=FEW_ROWS).contains(&file.rows());
        let whole = small.then(|| file.read(columns, 0, FEW_ROWS, ParallelStrategy::None)).transpose()?;
        Ok::<_, OutputError>((file, whole))
    };
    let at_once = 2 * rayon::current_num_threads();
    for (chunk, files) in files.chunks(at_once).enumerate() {
        let opened: Vec<_> = files.par_iter().map(open).collect();
        for (at, opened) in opened.into_iter().enumerate() {
            let number = chunk * at_once + at;
            match opened? {
                (_, Some(whole)) => take(number, whole)?,
                (file, None) => {
                    for from in (0..file.rows()).step_by(rows) {
                        take(number, read_columns(&file, columns, from, rows)?)?;
                    }
                }
            }
        }
    }
    Ok(())
}

fn open(file: &Below) -> Result<File, OutputError> {
    file.open().map_err(OutputError::at(&file.path(), "cannot be read"))
}

pub(super) fn file_name(number: usize) -> String {
    format!("{number:04}.parquet")
}

/// Gives a file a second name in `folder`, or copies it where the system cannot do that.
pub(super) fn link(file: &Below, folder: &Below, number: usize) -> Result<(), OutputError> {
    let goal = folder.join(file_name(number));
    if file.link_to(&goal).is_ok() {
        return Ok(());
    }
    let copied = file.open().and_then(|mut from| io::copy(&mut from, &mut goal.create_new()?));
    copied.map(drop).map_err(OutputError::at(&goal.path(), "cannot be written"))
}

/// The files of a table in a folder, one after the other.
pub(super) struct Files<'a> {
    table: &'a ParquetTable,
    more: &'a [tables::TableColumn],
    folder: Below,
    /// Bytes behind which a file ends with its row group.
    file_bytes: u64,
    first: usize,
    /// Number of the next file.
    number: usize,
    writer: Option<TableWriter>,
    held: Option<DataFrame>,
}

impl<'a> Files<'a> {
    pub(super) fn new(table: &'a ParquetTable, more: &'a [tables::TableColumn], folder: &Below) -> Files<'a> {
        Files { file_bytes: FILE_BYTES, ..Files::single(table, more, folder, 0) }
    }

    pub(super) fn table(&self) -> &'a ParquetTable {
        self.table
    }

    /// One file, with this number.
    pub(super) fn single(
        table: &'a ParquetTable,
        more: &'a [tables::TableColumn],
        folder: &Below,
        number: usize,
    ) -> Files<'a> {
        let (folder, file_bytes) = (folder.clone(), u64::MAX);
        Files { table, more, folder, file_bytes, first: number, number, writer: None, held: None }
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
        let Some(frame) = self.held.take().filter(|frame| frame.height() > 0) else { return Ok(()) };
        let writer = match &mut self.writer {
            Some(writer) => writer,
            none => {
                let file = self.folder.join(file_name(self.number));
                self.number += 1;
                none.insert(TableWriter::create(&file, self.table, self.more, exporter_of(None))?)
            }
        };
        writer.write_frame(frame)?;
        if writer.len()? >= self.file_bytes
            && let Some(writer) = self.writer.take()
        {
            writer.finish()?;
        }
        Ok(())
    }

    /// Writes the rest. A table without rows is a file without row groups, which has the columns.
    pub(super) fn finish(mut self) -> Result<(), OutputError> {
        self.flush()?;
        let writer = match self.writer.take() {
            Some(writer) => writer,
            None if self.number > self.first => return Ok(()),
            None => {
                let file = self.folder.join(file_name(self.first));
                TableWriter::create(&file, self.table, self.more, exporter_of(None))?
            }
        };
        writer.finish().map(drop)
    }
}
