//! Writes row groups while the next one is filled.

use super::super::OutputError;
use super::table::TableWriter;
use polars::prelude::Column;
use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

/// A table whose row groups are encoded by a thread of its own, one behind the one that is filled.
pub(super) enum WriterBehind {
    Here(Box<TableWriter>),
    Behind(SyncSender<Vec<Column>>, JoinHandle<Result<TableWriter, OutputError>>),
    /// An error ended it.
    Ended,
}

impl WriterBehind {
    /// Without a thread if the caller's rayon pool has one alone.
    pub(super) fn new(mut table: TableWriter) -> WriterBehind {
        if rayon::current_num_threads() == 1 {
            return WriterBehind::Here(Box::new(table));
        }
        // The one that is encoded and the one that is filled: none waits between.
        let (sender, groups) = sync_channel::<Vec<Column>>(0);
        let work = move || {
            groups.into_iter().try_for_each(|group| table.write(group))?;
            Ok(table)
        };
        WriterBehind::Behind(sender, std::thread::spawn(work))
    }

    /// Writes a row group. An error may be that of one before.
    pub(super) fn write(&mut self, group: Vec<Column>) -> Result<(), OutputError> {
        match self {
            WriterBehind::Here(table) => return table.write(group),
            WriterBehind::Behind(sender, _) if sender.send(group).is_ok() => return Ok(()),
            _ => {}
        }
        std::mem::replace(self, WriterBehind::Ended).end().map(drop)
    }

    /// Completes the file. Returns its path and size.
    pub(super) fn finish(self) -> Result<(PathBuf, u64), OutputError> {
        self.end()?.finish()
    }

    /// Waits for the row groups.
    fn end(self) -> Result<TableWriter, OutputError> {
        match self {
            WriterBehind::Here(table) => Ok(*table),
            WriterBehind::Behind(sender, thread) => {
                drop(sender);
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            }
            WriterBehind::Ended => Err(OutputError::Order("written after an error")),
        }
    }
}
