//! The parts of a dataset: the tables of one trace each, in a folder of their own, as a conversion
//! wrote them. `part.json` beside the tables says what the part is.
//!
//! A part is made in `_stk/tmp` and gets its name when it is complete, so a reader never meets half
//! of one.

use super::super::sink::temporary;
use super::super::{ConversionFacts, OutputError};
use crate::interrupt::{self, TemporaryFolder};
use crate::text::utc_date;
use crate::trace::Content;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use stk_schema::identity::ContentHash;
use stk_schema::tables::{self, ParquetTable};
use xxhash_rust::xxh3::Xxh3;

/// Stk's own folder in a dataset.
pub(super) const OWN: &str = "_stk";
/// The folder of the parts in it.
const PARTS: &str = "parts";
/// The folder of what is being made in it.
const TMP: &str = "tmp";
/// Name of the file that describes a part.
const DESCRIPTION: &str = "part.json";
/// Bytes of it that are read at most: 8 bytes for each block of a trace, written as decimals.
const MOST_READ: u64 = 256 << 20;
/// Begins the name of the folder of a date.
pub(super) const DATE: &str = "date=";

/// A part, as `part.json` describes it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub(super) struct Part {
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

/// A trace's content, but for what [`Part`] says itself.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub(super) struct PartContent {
    pub start_utc_ns: u64,
    pub bytes: u64,
    pub beginnings: Vec<u64>,
}

impl Part {
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
        })
    }

    /// Where its file of a table is.
    pub(super) fn file(&self, dataset: &Path, table: &ParquetTable) -> PathBuf {
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
    format!("{}.parquet", table.name)
}

fn parts_folder(dataset: &Path) -> PathBuf {
    dataset.join(OWN).join(PARTS)
}

/// Makes a folder for what is not yet complete.
pub(super) fn temporary_folder(dataset: &Path) -> Result<TemporaryFolder, OutputError> {
    let folder = dataset.join(OWN).join(TMP);
    make_folder(&folder)?;
    interrupt::folder_in(&folder, &interrupt::owned(""))
        .map_err(OutputError::at(&folder, "cannot be written"))
}

pub(super) fn make_folder(folder: &Path) -> Result<(), OutputError> {
    std::fs::create_dir_all(folder).map_err(OutputError::at(folder, "cannot be made"))
}

/// A part that is being made.
pub(super) struct NewPart {
    dataset: PathBuf,
    folder: TemporaryFolder,
}

impl NewPart {
    pub(super) fn begin(dataset: &Path) -> Result<NewPart, OutputError> {
        let folder = temporary_folder(dataset)?;
        let part = NewPart { dataset: dataset.to_owned(), folder };
        make_folder(&part.folder())?;
        Ok(part)
    }

    /// Where its tables are to be written.
    pub(super) fn folder(&self) -> PathBuf {
        self.folder.path().join("new")
    }

    /// Gives the part its name. It replaces another one of that name. Returns where it is.
    pub(super) fn finish(self, mut part: Part) -> Result<PathBuf, OutputError> {
        let new = self.folder();
        part.digest = digest(&new, &part)?;
        let path = new.join(DESCRIPTION);
        let text = serde_json::to_string(&part).unwrap_or_default();
        let written = temporary(&new).and_then(|mut file| {
            writeln!(file, "{text}")?;
            file.persist(&path)
        });
        written.map_err(OutputError::at(&path, "cannot be written"))?;
        let goal = parts_folder(&self.dataset).join(part.name());
        make_folder(goal.parent().unwrap_or(&goal))?;
        replace_folder(&new, &goal, &self.folder.path().join("old"))?;
        Ok(goal)
    }
}

/// Renames `new` to `goal`. What was there goes to `old`.
pub(super) fn replace_folder(new: &Path, goal: &Path, old: &Path) -> Result<(), OutputError> {
    match std::fs::rename(goal, old) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(OutputError::at(goal, "cannot be replaced")(error));
        }
        _ => {}
    }
    std::fs::rename(new, goal).map_err(OutputError::at(goal, "cannot be made"))
}

/// The hash of a part's tables.
fn digest(folder: &Path, part: &Part) -> Result<String, OutputError> {
    let mut hash = Xxh3::new();
    let mut bytes = vec![0; 1 << 20];
    for table in tables::ALL.iter().filter(|table| part.has(table)) {
        let path = folder.join(table_file(table));
        let cannot = |error| OutputError::at(&path, "cannot be read")(error);
        let mut file = File::open(&path).map_err(cannot)?;
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
pub(super) fn parts(dataset: &Path) -> Result<Vec<Part>, OutputError> {
    let mut parts = Vec::new();
    for date in names(&parts_folder(dataset))?.into_iter().filter(|name| name.starts_with(DATE)) {
        for name in names(&parts_folder(dataset).join(&date))? {
            parts.extend(read(dataset, &date, &name)?);
        }
    }
    parts.sort_by(|a, b| {
        let key =
            |part: &Part| (part.date.clone(), part.process.clone(), part.host.clone(), part.trace_id.clone());
        key(a).cmp(&key(b))
    });
    Ok(parts)
}

/// The names of the parts of a dataset: their dates and their own, sorted.
pub(super) fn part_names(dataset: &Path) -> Result<Vec<(String, String)>, OutputError> {
    let mut found = Vec::new();
    for date in names(&parts_folder(dataset))?.into_iter().filter(|name| name.starts_with(DATE)) {
        let of_date = names(&parts_folder(dataset).join(&date))?;
        found.extend(of_date.into_iter().map(|name| (name, date.clone())));
    }
    found.sort();
    Ok(found)
}

/// Reads the description of a part. `None` if it is gone.
pub(super) fn read(dataset: &Path, date: &str, name: &str) -> Result<Option<Part>, OutputError> {
    let path = parts_folder(dataset).join(date).join(name).join(DESCRIPTION);
    let mut text = String::new();
    match File::open(&path).and_then(|file| file.take(MOST_READ).read_to_string(&mut text)) {
        Ok(_) => {}
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(OutputError::at(&path, "cannot be read")(error)),
    }
    let part: Option<Part> = serde_json::from_str(&text).ok();
    // Its fields become parts of paths: they must be those of the folder that it is in.
    let part = part.filter(|part| part.name() == format!("{date}/{name}"));
    part.map(Some).ok_or(OutputError::BadPart(path))
}

/// The names in a folder, sorted; none if there is no such folder.
pub(super) fn names(folder: &Path) -> Result<Vec<String>, OutputError> {
    let cannot = |error| OutputError::at(folder, "cannot be listed")(error);
    let mut names = Vec::new();
    match std::fs::read_dir(folder) {
        Ok(found) => {
            for entry in found {
                names.push(entry.map_err(cannot)?.file_name().to_string_lossy().into_owned());
            }
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(cannot(error)),
    }
    names.sort_unstable();
    Ok(names)
}
