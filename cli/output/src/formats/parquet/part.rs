//! The parts of a dataset: the tables of one trace each, in a folder of their own, as a conversion
//! wrote them. `part.json` beside the tables says what the part is.
//!
//! A part is made in `_stk/tmp` and gets its name when it is complete, so a reader never meets half
//! of one. A dataset is a folder below which no link is followed ([`Below`]).

use super::super::left_behind::TEMPORARY_FOLDER;
use super::super::sink::temporary;
use super::super::{ConversionFacts, OutputError};
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use stk_base::files::{Below, MayReplace};
use stk_base::interrupt::{self, TemporaryFolder};
use stk_base::text::utc_date;
use stk_profile::trace::Content;
use stk_schema::identity::ContentHash;
use stk_schema::tables::{self, ParquetTable};
use xxhash_rust::xxh3::Xxh3;

/// Stk's own folder in a dataset.
pub(super) const OWN: &str = "_stk";
/// The folder of the parts in it.
const PARTS: &str = "parts";
/// The folder of what is being made in it.
const TMP: &str = "tmp";
/// The folder of the rows with names, in stk's own.
pub(super) const NAMES: &str = "names";
/// Name of the file that describes a part.
const DESCRIPTION: &str = "part.json";
/// Bytes of it that are read at most: 8 bytes for each block of a trace, written as decimals.
const MOST_READ: u64 = 256 << 20;
/// Ends the names of files of tables.
const PARQUET: &str = ".parquet";
/// Begins the name of the folder of a date.
pub(super) const DATE: &str = "date=";

/// A part, as `part.json` describes it.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub(super) struct PartDescription {
    pub tables_version: i64,
    pub trace_id: String,
    pub uuid: String,
    /// UTC date of the trace's start.
    pub date: String,
    /// What rows of a date are sorted by, before the trace.
    pub process: String,
    pub host: String,
    /// Name of the trace's file; `None` if another trace stands for it.
    pub source: Option<String>,
    /// The trace that stands for it. Then the part has only its row of `traces`.
    pub superseded_by: Option<String>,
    /// The trace's content; `None` for a profile of no file.
    pub content: Option<PartContent>,
    /// Whether `samples` has the column with names.
    pub denormalized: bool,
    /// Hash of the bytes of its tables.
    pub digest: String,
    /// What the conversion depends on, if `stk batch` made it.
    #[serde(default)]
    pub key: Option<String>,
    /// What the conversion came to.
    pub facts: Option<ConversionFacts>,
}

/// A trace's content, except for what [`PartDescription`] says itself.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub(super) struct PartContent {
    pub start_utc_ns: u64,
    pub bytes: u64,
    pub beginnings: Vec<u64>,
    /// Absent in parts of traces that are no redacted copies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redacted_from: Option<u64>,
}

impl PartDescription {
    /// The part's name: the folder of its date, and its own.
    pub(super) fn name(&self) -> String {
        format!("{DATE}{}/{}", self.date, folder_name(&self.uuid, &self.trace_id, self.content.is_some()))
    }

    /// The content of its trace, if it is known.
    pub(super) fn trace_content(&self) -> Option<Content> {
        let content = self.content.as_ref()?;
        Some(Content {
            uuid: self.uuid.clone(),
            start_utc_ns: content.start_utc_ns,
            digest: ContentHash::parse(&self.trace_id)?,
            len: content.bytes,
            beginnings: content.beginnings.clone(),
            redacted_from: content.redacted_from,
        })
    }

    /// Where its file of a table is.
    pub(super) fn file(&self, dataset: &Below, table: &ParquetTable) -> Below {
        parts_folder(dataset).join(self.name()).join(table_file(table))
    }

    /// Whether it has a file of a table.
    pub(super) fn has(&self, table: &ParquetTable) -> bool {
        self.superseded_by.is_none() || table.name == tables::TRACES.name
    }
}

/// Name of the folder of a trace's part.
fn folder_name(uuid: &str, trace_id: &str, of_file: bool) -> String {
    if of_file { format!("{uuid}-{trace_id}") } else { uuid.to_owned() }
}

/// The name of the folder of a trace's date.
pub(super) fn date_of(start_utc_ns: u64) -> String {
    utc_date(start_utc_ns)
}

/// Name of the file of a table in a part.
pub(super) fn table_file(table: &ParquetTable) -> String {
    format!("{}{PARQUET}", table.name)
}

fn parts_folder(dataset: &Below) -> Below {
    dataset.join(OWN).join(PARTS)
}

/// The folder of a dataset that is there.
pub(super) fn dataset(path: &Path) -> Result<Below, OutputError> {
    Below::folder(path).map_err(OutputError::at(path, "cannot be opened"))
}

/// Makes a folder for what is not yet complete.
pub(super) fn temporary_folder(dataset: &Below) -> Result<TemporaryFolder, OutputError> {
    let folder = dataset.join(OWN).join(TMP);
    make_folder(&folder)?;
    interrupt::folder_in(&folder, &interrupt::owned(TEMPORARY_FOLDER))
        .map_err(OutputError::at(&folder.path(), "cannot be written"))
}

pub(super) fn make_folder(folder: &Below) -> Result<(), OutputError> {
    folder.make_folder().map_err(OutputError::at(&folder.path(), "cannot be made"))
}

/// A part that is being made.
pub(super) struct NewPart {
    dataset: Below,
    folder: TemporaryFolder,
}

impl NewPart {
    pub(super) fn begin(dataset: &Below) -> Result<NewPart, OutputError> {
        let folder = temporary_folder(dataset)?;
        let part = NewPart { dataset: dataset.clone(), folder };
        make_folder(&part.folder())?;
        Ok(part)
    }

    /// Where its tables are to be written.
    pub(super) fn folder(&self) -> Below {
        self.folder.at().join("new")
    }

    /// Gives the part its name. It replaces another one of that name. Returns where it is.
    pub(super) fn finish(self, mut part: PartDescription) -> Result<PathBuf, OutputError> {
        let new = self.folder();
        part.digest = digest(&new, &part)?;
        let text = serde_json::to_string(&part).unwrap_or_default();
        write_file(&new.join(DESCRIPTION), &format!("{text}\n"))?;
        let goal = parts_folder(&self.dataset).join(part.name());
        make_folder(&goal.parent())?;
        replace_folder(&new, &goal, &self.folder.at().join("old"))?;
        Ok(goal.path())
    }
}

/// Writes a small file, which appears whole.
pub(super) fn write_file(at: &Below, text: &str) -> Result<(), OutputError> {
    let written = temporary(&at.parent()).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.persist(at, MayReplace::NoTrace)
    });
    written.map(drop).map_err(OutputError::at(&at.path(), "cannot be written"))
}

/// Renames `new` to `goal`. What was there goes to `old`, except files that stk did not make.
pub(super) fn replace_folder(new: &Below, goal: &Below, old: &Below) -> Result<(), OutputError> {
    let path = goal.path();
    let cannot = |step| OutputError::at(&path, step);
    let is_there = goal.is_folder().map_err(cannot("cannot be replaced"))?;
    if is_there {
        goal.rename(old).map_err(cannot("cannot be replaced"))?;
    }
    new.rename(goal).map_err(cannot("cannot be made"))?;
    if is_there {
        for name in old.list().map_err(cannot("cannot be replaced"))? {
            if !is_own_file(&name) {
                old.join(&name).rename(&goal.join(&name)).map_err(cannot("cannot be replaced"))?;
            }
        }
    }
    Ok(())
}

/// Whether a file in the folder of a table or of a part has a name that stk gives.
fn is_own_file(name: &str) -> bool {
    let is_table = |stem: &str| tables::ALL.iter().any(|table| table.name == stem);
    let is_own = |stem: &str| is_number(stem) || is_table(stem);
    name == DESCRIPTION || name.strip_suffix(PARQUET).is_some_and(is_own)
}

/// Whether a file of a table has a name that stk gives it: `0000.parquet`.
pub(super) fn is_table_file(name: &str) -> bool {
    name.strip_suffix(PARQUET).is_some_and(is_number)
}

fn is_number(stem: &str) -> bool {
    stem.len() >= 4 && stem.bytes().all(|byte| byte.is_ascii_digit())
}

/// The hash of a part's tables.
fn digest(folder: &Below, part: &PartDescription) -> Result<String, OutputError> {
    let mut hash = Xxh3::new();
    let mut bytes = vec![0; 1 << 20];
    for table in tables::ALL.iter().filter(|table| part.has(table)) {
        let at = folder.join(table_file(table));
        let cannot = |error| OutputError::at(&at.path(), "cannot be read")(error);
        let mut file = at.open().map_err(cannot)?;
        loop {
            let read = file.read(&mut bytes).map_err(cannot)?;
            if read == 0 {
                break;
            }
            hash.update(&bytes[..read]);
        }
    }
    Ok(format!("{:032x}", hash.digest128()))
}

/// The parts of a dataset. Those of one date are sorted as its rows: by process, host and trace.
pub(super) fn parts(dataset: &Below) -> Result<Vec<PartDescription>, OutputError> {
    let mut parts = Vec::new();
    for date in names(&parts_folder(dataset))?.into_iter().filter(|name| name.starts_with(DATE)) {
        for name in names(&parts_folder(dataset).join(&date))? {
            parts.extend(read(dataset, &date, &name)?);
        }
    }
    parts.sort_by(|a, b| {
        let key = |part: &PartDescription| {
            (part.date.clone(), part.process.clone(), part.host.clone(), part.trace_id.clone())
        };
        key(a).cmp(&key(b))
    });
    Ok(parts)
}

/// The names of the parts of a dataset: their dates and their own, sorted.
pub(super) fn part_names(dataset: &Below) -> Result<Vec<(String, String)>, OutputError> {
    let mut found = Vec::new();
    for date in names(&parts_folder(dataset))?.into_iter().filter(|name| name.starts_with(DATE)) {
        let of_date = names(&parts_folder(dataset).join(&date))?;
        found.extend(of_date.into_iter().map(|name| (name, date.clone())));
    }
    found.sort();
    Ok(found)
}

/// Reads the description of a part. `None` if it is gone.
pub(super) fn read(dataset: &Below, date: &str, name: &str) -> Result<Option<PartDescription>, OutputError> {
    let at = parts_folder(dataset).join(date).join(name).join(DESCRIPTION);
    let path = at.path();
    let text = match at.read(MOST_READ) {
        Ok(text) => text,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(OutputError::at(&path, "cannot be read")(error)),
    };
    let part: Option<PartDescription> = serde_json::from_slice(&text).ok();
    // Its fields become parts of paths: they must be those of the folder that it is in.
    let part = part.filter(|part| part.name() == format!("{date}/{name}"));
    part.map(Some).ok_or(OutputError::BadPart(path))
}

/// The names in a folder, sorted; none if there is no such folder.
pub(super) fn names(folder: &Below) -> Result<Vec<String>, OutputError> {
    folder.list().map_err(OutputError::at(&folder.path(), "cannot be listed"))
}

/// The files of the rows with names.
pub(super) fn name_files(dataset: &Below) -> Result<Vec<Below>, OutputError> {
    table_files(&dataset.join(OWN).join(NAMES))
}

/// The files of a table in a folder, sorted.
pub(super) fn table_files(folder: &Below) -> Result<Vec<Below>, OutputError> {
    let own = names(folder)?.into_iter().filter(|name| is_table_file(name));
    Ok(own.map(|name| folder.join(name)).collect())
}
