//! Traces of a batch that did not change since they were converted: they are not read.

use super::key::{FoundSymbols, Keys};
use super::one::output_in;
use super::{Converted, Destination, Task};
use crate::batch::{Entry, Record, Recorded, SeenTraces};
use std::path::PathBuf;
use stk_output::formats::ConversionFacts;
use stk_schema::identity::ContentHash;

/// What earlier runs of a batch have read, of the files of this one.
pub(in super::super) struct Finished<'a> {
    keys: &'a Keys,
    seen: &'a SeenTraces,
    /// By their places on the command line; `None` is to be read.
    files: Vec<Option<&'a Entry>>,
    found: FoundSymbols,
}

impl<'a> Finished<'a> {
    /// Of these files, those that did not change since.
    pub(in super::super) fn of(keys: &'a Keys, seen: &'a SeenTraces, files: &[PathBuf]) -> Finished<'a> {
        let files = files.iter().map(|file| seen.of(file)).collect();
        Finished { keys, seen, files, found: FoundSymbols::default() }
    }

    fn entry(&self, place: usize) -> Option<&'a Entry> {
        self.files.get(place).copied().flatten()
    }

    /// The UUID of the recording in a file.
    pub(in super::super) fn uuid(&self, place: usize) -> Option<[u8; 16]> {
        Some(ContentHash::parse(&self.entry(place)?.uuid)?.0)
    }

    /// The place and the outcome of a task's trace whose output is as it would be made now. `None`
    /// if that is not so, cannot be known, or if there are other contents of its recording.
    pub(in super::super) fn outcome(&self, task: &Task<'_>) -> Option<(usize, Converted)> {
        let (place, file) = match task {
            Task::File { place, file, .. } => (*place, *file),
            Task::Recording { files, .. } => *<&[_; 1]>::try_from(files.as_slice()).ok()?.first()?,
        };
        let entry = self.entry(place)?;
        let digest = ContentHash::parse(&entry.trace_id)?;
        let key = || self.keys.of_finished(&digest, file, self.seen.queries(entry), &self.found);
        let facts = match task {
            Task::File { destination, .. } => of_file(destination, &key())?,
            Task::Recording { dataset, .. } => {
                let entries = dataset.index.entries(&entry.uuid).ok()?;
                let [one] = entries.as_slice() else { return None };
                let is_done = one.content.digest == digest
                    && one.superseded_by.is_none()
                    && one.key.as_deref() == Some(key().as_str());
                is_done.then_some(one.facts)?
            }
        };
        Some((place, Converted::skipped(digest, facts)))
    }
}

fn of_file(destination: &Destination, key: &str) -> Option<Option<ConversionFacts>> {
    let Destination::InFolder { folder, name } = destination else { return None };
    match Record::of(&output_in(folder, name).ok()?, key).ok()? {
        Recorded::Done(facts) => Some(Some(facts)),
        Recorded::Own | Recorded::Nothing => None,
    }
}
