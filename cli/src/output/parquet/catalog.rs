//! What a dataset has: its version in `_stk.json`, and its traces by content.
//!
//! The files of a trace are named by its UUID, which says whose they are, and by the digest of its
//! content, which alone identifies it: `samples/<uuid>-<digest>.parquet`.

use super::super::OutputError;
use super::super::sink::temporary;
use super::super::source::exporter_of;
use super::DatasetEntry;
use super::table::{TableWriter, column, list, nulls};
use crate::trace::Content;
use polars::prelude::*;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use stk_schema::identity::ContentHash;
use stk_schema::tables::{self, ParquetTable};

/// Name of the file with the version of a dataset's tables.
const VERSION_FILE: &str = "_stk.json";
/// Bytes of it that are read at most.
const MOST_READ: u64 = 4096;

/// A dataset as it was when it was listed.
#[derive(Debug)]
pub(super) struct Catalog {
    folder: PathBuf,
    /// Names of the files of `traces`, sorted.
    names: Vec<String>,
}

impl Catalog {
    pub(super) fn open(folder: &Path) -> Result<Catalog, OutputError> {
        if folder.is_file() {
            return Err(OutputError::IsFile(folder.to_owned()));
        }
        check_version(folder)?;
        let traces = folder.join(tables::TRACES.name);
        let cannot = |error| OutputError::at(&traces, "cannot be listed")(error);
        let mut names = Vec::new();
        match std::fs::read_dir(&traces) {
            Ok(found) => {
                for entry in found {
                    names.push(entry.map_err(cannot)?.file_name().to_string_lossy().into_owned());
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(cannot(error)),
        }
        names.sort_unstable();
        Ok(Catalog { folder: folder.to_owned(), names })
    }

    pub(super) fn entries(&self, uuid: &str) -> Result<Vec<DatasetEntry>, OutputError> {
        let prefix = format!("{uuid}-");
        let first = self.names.partition_point(|name| *name < prefix);
        let names = self.names[first..].iter().take_while(|name| name.starts_with(&prefix));
        names
            .filter(|name| name.ends_with(".parquet"))
            .map(|name| {
                let path = self.folder.join(tables::TRACES.name).join(name);
                read_entry(&path, uuid).map_err(|error| OutputError::Table { path, error })
            })
            .collect()
    }

    pub(super) fn supersede(&self, shorter: &Content, longer: &Content) -> Result<(), OutputError> {
        prepare(&self.folder)?;
        // The row that names the longer one comes first: from then on, the trace is not listed as
        // one with rows in the other tables.
        let path = path(&self.folder, &tables::TRACES, &file_name(shorter))?;
        let mut table = TableWriter::create(&path, &tables::TRACES, &[], exporter_of(Some(shorter)))?;
        table.write(superseded(shorter, longer)?)?;
        table.finish()?;
        for table in tables::ALL.iter().filter(|table| table.name != tables::TRACES.name) {
            let path = self.folder.join(table.name).join(file_name(shorter));
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(OutputError::at(&path, "cannot be removed")(error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Name of the files of a trace.
pub(super) fn file_name(content: &Content) -> String {
    format!("{}-{}.parquet", content.uuid, content.digest)
}

/// Path of a file of a table, whose folder is made.
pub(super) fn path(folder: &Path, table: &ParquetTable, name: &str) -> Result<PathBuf, OutputError> {
    let folder = folder.join(table.name);
    std::fs::create_dir_all(&folder).map_err(OutputError::at(&folder, "cannot be made"))?;
    Ok(folder.join(name))
}

/// Makes the folder of a dataset, with the version of its tables.
pub(super) fn prepare(folder: &Path) -> Result<(), OutputError> {
    check_version(folder)?;
    let path = folder.join(VERSION_FILE);
    if path.exists() {
        return Ok(());
    }
    let make = || {
        std::fs::create_dir_all(folder)?;
        let mut file = temporary(folder)?;
        writeln!(file, "{{\"dataset\":\"stk\",\"tables_version\":{}}}", tables::VERSION)?;
        file.persist(&path)
    };
    match make() {
        // Another thread was faster.
        Err(_) if path.exists() => Ok(()),
        made => made.map_err(OutputError::at(&path, "cannot be made")),
    }
}

/// Refuses a dataset whose tables are of another version: its columns mean something else.
fn check_version(folder: &Path) -> Result<(), OutputError> {
    let path = folder.join(VERSION_FILE);
    let other = |found: String| Err(OutputError::TablesVersion { path: folder.to_owned(), found });
    let mut text = String::new();
    match File::open(&path).and_then(|file| file.take(MOST_READ).read_to_string(&mut text)) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {
            // Version 1 had no such file.
            let is_dataset = folder.join(tables::TRACES.name).is_dir();
            return if is_dataset { other("1".to_owned()) } else { Ok(()) };
        }
        Err(error) => return Err(OutputError::at(&path, "cannot be read")(error)),
    }
    let version = serde_json::from_str::<serde_json::Value>(&text).ok();
    match version.as_ref().and_then(|file| file.get("tables_version")) {
        Some(version) if version.as_i64() == Some(tables::VERSION) => Ok(()),
        Some(version) => other(version.to_string()),
        None => other("unknown".to_owned()),
    }
}

/// The row of a trace that another stands for.
fn superseded(shorter: &Content, longer: &Content) -> Result<Vec<Column>, OutputError> {
    let known = [
        column("trace_id", vec![shorter.digest.to_string()]),
        column("uuid", vec![shorter.uuid.as_str()]),
        column("content_digest", vec![shorter.digest.to_string()]),
        column("content_bytes", vec![shorter.len as i64]),
        column("superseded_by", vec![longer.digest.to_string()]),
        column("tables_version", vec![tables::VERSION]),
    ];
    let of_table = tables::TRACES.columns.iter().map(|wanted| {
        let known = known.iter().find(|column| column.name().as_str() == wanted.name);
        known.cloned().unwrap_or_else(|| nulls(wanted, 1))
    });
    Ok(of_table.collect())
}

/// The columns of a trace's content.
pub(super) fn content_columns(content: Option<&Content>) -> Result<Vec<Column>, OutputError> {
    let beginnings: Vec<i64> =
        content.map_or(Vec::new(), |content| content.beginnings.iter().map(|&hash| hash as i64).collect());
    let offsets = vec![0, beginnings.len() as i64];
    let beginnings = column("", beginnings).take_materialized_series();
    Ok(vec![
        column("content_digest", vec![content.map(|content| content.digest.to_string())]),
        column("content_bytes", vec![content.map(|content| content.len as i64)]),
        list("content_beginnings", offsets, beginnings)?,
        column("superseded_by", vec![None::<&str>]),
    ])
}

/// Reads the file of `traces` of one trace.
fn read_entry(path: &Path, uuid: &str) -> PolarsResult<DatasetEntry> {
    const COLUMNS: [&str; 5] =
        ["content_digest", "content_bytes", "content_beginnings", "superseded_by", "source"];
    let columns = COLUMNS.iter().map(|&name| name.to_owned()).collect();
    let frame = ParquetReader::new(File::open(path)?).with_columns(Some(columns)).finish()?;
    let text = |name: &str| Ok::<_, PolarsError>(frame.column(name)?.str()?.get(0).map(str::to_owned));
    let bad = |name: &str| PolarsError::ComputeError(format!("{name}: not as stk writes it").into());
    let digest =
        text("content_digest")?.as_deref().and_then(ContentHash::parse).ok_or(bad("content_digest"))?;
    let len = frame.column("content_bytes")?.i64()?.get(0).ok_or(bad("content_bytes"))?;
    let beginnings = frame.column("content_beginnings")?.list()?.get_as_series(0);
    let beginnings = match &beginnings {
        Some(hashes) => hashes.i64()?.iter().flatten().map(|hash| hash as u64).collect(),
        None => Vec::new(),
    };
    let superseded_by = text("superseded_by")?;
    Ok(DatasetEntry {
        content: Content {
            uuid: uuid.to_owned(),
            digest,
            len: u64::try_from(len).map_err(|_| bad("content_bytes"))?,
            beginnings,
        },
        source: text("source")?,
        superseded_by: superseded_by.as_deref().and_then(ContentHash::parse),
    })
}
