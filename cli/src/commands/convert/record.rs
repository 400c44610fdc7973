//! What an output that is one file was made of: a small file beside it, since not every format
//! says it.

use crate::output::ConversionFacts;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// What is known of an output.
#[derive(PartialEq, Eq, Serialize, Deserialize, Debug)]
pub(super) struct Record {
    /// What its conversion depended on.
    pub key: String,
    /// Its length.
    pub bytes: u64,
    /// What the conversion came to.
    pub facts: ConversionFacts,
}

/// Folder of the records in that of the outputs.
const DONE: &str = "done";
/// Folder of records that are being written. Each batch removes what is left behind there.
const UNFINISHED: &str = "tmp";

fn path_of(output: &Path, folder: &str) -> Option<PathBuf> {
    let folder = output.parent()?.join("_stk").join(folder);
    let mut name = output.file_name()?.to_owned();
    name.push(".json");
    Some(folder.join(name))
}

impl Record {
    /// The record of an output, if the output is as it was.
    pub(super) fn of(output: &Path) -> Option<Record> {
        let text = std::fs::read(path_of(output, DONE)?).ok()?;
        let record: Record = serde_json::from_slice(&text).ok()?;
        let found = std::fs::metadata(output).ok()?;
        (found.is_file() && found.len() == record.bytes).then_some(record)
    }

    /// Whether stk batch wrote an output, whatever is there now.
    pub(super) fn exists(output: &Path) -> bool {
        path_of(output, DONE).is_some_and(|path| path.is_file())
    }

    /// Says that an output is about to be written: should the batch be stopped before
    /// [`write`](Record::write), the next one knows the output as its own. It has no key, so the
    /// output is made again.
    ///
    /// # Errors
    ///
    /// The error of the system.
    pub(super) fn begin(output: &Path) -> anyhow::Result<()> {
        Record { key: String::new(), bytes: 0, facts: ConversionFacts::default() }.save(output)
    }

    /// Writes the record of an output.
    ///
    /// # Errors
    ///
    /// The error of the system.
    pub(super) fn write(key: String, facts: ConversionFacts, output: &Path) -> anyhow::Result<()> {
        let bytes = std::fs::metadata(output).with_context(|| output.display().to_string())?.len();
        Record { key, bytes, facts }.save(output)
    }

    fn save(&self, output: &Path) -> anyhow::Result<()> {
        let shown = || output.display().to_string();
        let path = path_of(output, DONE).with_context(shown)?;
        let beside = path_of(output, UNFINISHED).with_context(shown)?;
        let shown = || path.display().to_string();
        for folder in [&path, &beside].into_iter().filter_map(|path| path.parent()) {
            std::fs::create_dir_all(folder).with_context(shown)?;
        }
        std::fs::write(&beside, serde_json::to_string(self)? + "\n").with_context(shown)?;
        std::fs::rename(&beside, &path).with_context(shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_of_an_output_that_is_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("a.folded");
        assert_eq!(Record::of(&output), None);
        std::fs::write(&output, "12345").unwrap();
        assert!(!Record::exists(&output));
        Record::begin(&output).unwrap();
        assert!(Record::exists(&output), "a batch that was stopped now wrote it");
        assert_eq!(Record::of(&output), None, "and did not finish it");
        let facts = ConversionFacts { samples: 7, ..ConversionFacts::default() };
        Record::write("key".to_owned(), facts, &output).unwrap();
        assert_eq!(Record::of(&output), Some(Record { key: "key".to_owned(), bytes: 5, facts }));
        std::fs::write(&output, "1234").unwrap();
        assert_eq!(Record::of(&output), None);
        assert!(Record::exists(&output));
    }
}
