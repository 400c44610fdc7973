//! What a dataset has: its version in `_stk.json`, and its traces by content.

use super::super::OutputError;
use super::super::source::exporter_of;
use super::DatasetEntry;
use super::part::{self, NewPart, PartContent, PartDescription};
use super::table::{TableWriter, column, list, nulls};
use polars::prelude::*;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use stk_base::files::Below;
use stk_profile::trace::Content;
use stk_schema::identity::ContentHash;
use stk_schema::tables;

/// Name of the file with the version of a dataset's tables.
const VERSION_FILE: &str = "_stk.json";
/// Bytes of it that are read at most.
const MOST_READ: u64 = 4096;

/// A dataset as it was when it was listed.
#[derive(Debug)]
pub(super) struct Catalog {
    path: PathBuf,
    /// Names of the parts with the folders of their dates, sorted.
    names: Vec<(String, String)>,
}

impl Catalog {
    pub(super) fn open(folder: &Path) -> Result<Catalog, OutputError> {
        if folder.is_file() {
            return Err(OutputError::IsFile(folder.to_owned()));
        }
        let names = match Below::folder(folder) {
            Ok(dataset) => {
                check_version(&dataset)?;
                part::part_names(&dataset)?
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(OutputError::at(folder, "cannot be opened")(error)),
        };
        Ok(Catalog { path: folder.to_owned(), names })
    }

    pub(super) fn entries(&self, uuid: &str) -> Result<Vec<DatasetEntry>, OutputError> {
        let prefix = format!("{uuid}-");
        let first = self.names.partition_point(|(name, _)| *name < prefix);
        let names = self.names[first..].iter().take_while(|(name, _)| name.starts_with(&prefix));
        let mut entries = Vec::new();
        let mut dataset: Option<Below> = None;
        for (name, date) in names {
            let dataset = match &mut dataset {
                Some(dataset) => dataset,
                none => none.insert(part::dataset(&self.path)?),
            };
            let part = part::read(dataset, date, name)?;
            entries.extend(part.and_then(|part| {
                Some(DatasetEntry {
                    content: part.trace_content()?,
                    superseded_by: part.superseded_by.as_deref().and_then(ContentHash::parse),
                    source: part.source,
                    key: part.key,
                    facts: part.facts,
                })
            }));
        }
        Ok(entries)
    }

    pub(super) fn supersede(&self, shorter: &Content, longer: &Content) -> Result<(), OutputError> {
        let dataset = prepare(&self.path)?;
        let part = NewPart::begin(&dataset)?;
        let file = part.folder().join(part::table_file(&tables::TRACES));
        let mut table = TableWriter::create(&file, &tables::TRACES, &[], exporter_of(Some(shorter)))?;
        table.write(superseded(shorter, longer)?)?;
        table.finish()?;
        let digest = shorter.digest.to_string();
        part.finish(PartDescription {
            superseded_by: Some(longer.digest.to_string()),
            ..describe(digest, shorter.uuid.clone(), shorter.start_utc_ns, Some(shorter))
        })?;
        Ok(())
    }
}

/// The description of a part, without what only its conversion knows.
pub(super) fn describe(
    trace_id: String,
    uuid: String,
    start_utc_ns: u64,
    content: Option<&Content>,
) -> PartDescription {
    PartDescription {
        tables_version: tables::VERSION,
        trace_id,
        uuid,
        date: part::date_of(start_utc_ns),
        content: content.map(|content| PartContent {
            start_utc_ns: content.start_utc_ns,
            bytes: content.len,
            beginnings: content.beginnings.clone(),
            redacted_from: content.redacted_from,
        }),
        ..PartDescription::default()
    }
}

/// Makes the folder of a dataset, with the version of its tables.
pub(super) fn prepare(path: &Path) -> Result<Below, OutputError> {
    let dataset = Below::make(path).map_err(OutputError::at(path, "cannot be made"))?;
    check_version(&dataset)?;
    let version = dataset.join(VERSION_FILE);
    let is_there = || version.kind().is_ok_and(|kind| kind.is_some());
    if !is_there() {
        let text = format!("{{\"dataset\":\"stk\",\"tables_version\":{}}}\n", tables::VERSION);
        match part::write_file(&version, &text) {
            // Another thread was faster.
            Err(_) if is_there() => {}
            made => made?,
        }
    }
    Ok(dataset)
}

/// Refuses a dataset whose tables are of another version: its columns mean something else.
fn check_version(dataset: &Below) -> Result<(), OutputError> {
    let at = dataset.join(VERSION_FILE);
    let other = |found: String| Err(OutputError::TablesVersion { path: dataset.path(), found });
    let text = match at.read(MOST_READ) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            // Version 1 had no such file.
            let traces = dataset.join(tables::TRACES.name);
            let is_dataset = traces.is_folder().map_err(OutputError::at(&traces.path(), "cannot be read"))?;
            return if is_dataset { other("1".to_owned()) } else { Ok(()) };
        }
        Err(error) => return Err(OutputError::at(&at.path(), "cannot be read")(error)),
    };
    let version = serde_json::from_slice::<serde_json::Value>(&text).ok();
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
