//! Files of one recording, to a dataset. The dataset has each content once, by its digest and not
//! by a name or a number that two files can share:
//!
//! * Of copies, one is converted.
//! * A beginning of another content, such as a truncated copy or a recording before it was
//!   completed, is not converted, and what an earlier run wrote of it is removed. The longer one
//!   stands for it. So does a recording for a redacted copy of it.
//! * Different recordings of one UUID are all converted.
//!
//! What a dataset then has does not depend on the order of the files, nor on the runs that they
//! were converted in.

use super::one::{Converter, RunningConversion};
use super::tasks::DatasetFolder;
use super::{ConvertOutcome, Converted, Status, guarded};
use crate::batch::Stage;
use crate::commands::Exit;
use crate::commands::replace::REPLACED;
use anyhow::anyhow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use stk_base::files::FileStamp;
use stk_output::formats::{DatasetEntry, Destination};
use stk_profile::trace::{Content, TraceFile, stand_ins};
use stk_schema::identity::ContentHash;
use stk_schema::text::printable;

/// A file on the command line.
struct Member<'a> {
    place: usize,
    path: &'a Path,
    content: Content,
    stamp: Option<FileStamp>,
    /// Kept open if there is only one, or if it cannot be opened again.
    file: Option<TraceFile>,
}

type Outcomes = Vec<(usize, ConvertOutcome)>;

/// Converts the files of a recording.
pub(super) fn convert(
    converter: &Converter<'_>,
    files: &[(usize, &Path)],
    dataset: &DatasetFolder,
) -> Outcomes {
    let mut outcomes = Vec::new();
    let mut by_uuid: BTreeMap<String, Vec<Member<'_>>> = BTreeMap::new();
    for &(place, path) in files {
        let read = || -> anyhow::Result<Member<'_>> {
            converter.begin(path, Stage::Read)?;
            let stamp = converter.stamp(path);
            let file = converter.open(path)?;
            let content = file.content()?;
            let keep = files.len() == 1 || !file.can_be_reopened();
            Ok(Member { place, path, content, stamp, file: keep.then_some(file) })
        };
        match guarded(path, read) {
            Ok(member) => by_uuid.entry(member.content.uuid.clone()).or_default().push(member),
            Err(error) => outcomes.push((place, Err(error))),
        }
    }
    for (uuid, members) in by_uuid {
        let members = without_copies(members, &mut outcomes);
        match dataset.index.entries(&uuid) {
            Ok(entries) => Recording::new(converter, dataset, members, entries).convert(&mut outcomes),
            Err(error) => {
                let error = format!("{:#}", anyhow::Error::from(error));
                outcomes.extend(members.iter().map(|member| (member.place, Err(anyhow!(error.clone())))));
            }
        }
    }
    outcomes
}

/// One member of each content: the first by its file's name.
fn without_copies<'a>(mut members: Vec<Member<'a>>, outcomes: &mut Outcomes) -> Vec<Member<'a>> {
    members.sort_by(|a, b| (a.path.file_name(), a.path).cmp(&(b.path.file_name(), b.path)));
    let mut first: HashMap<ContentHash, &Path> = HashMap::new();
    members.retain(|member| {
        let Some(other) = first.get(&member.content.digest) else {
            first.insert(member.content.digest, member.path);
            return true;
        };
        let (path, other) = (member.path.display(), other.display());
        let reported = format!("{path}: the same content as {other}, which stands for both");
        let reported = passed_over(Status::Copy, &member.content, &reported);
        outcomes.push((member.place, Ok(reported)));
        false
    });
    members
}

/// The outcome of a file that is not converted since the dataset has all of it.
fn passed_over(status: Status, content: &Content, why: &str) -> Converted {
    Converted {
        status,
        exit: Exit::Ok,
        lines: vec![format!("stk: {}", printable(why))],
        empty: None,
        failed: None,
        missing: None,
        trace_id: Some(content.digest.to_string()),
        facts: None,
        seen: None,
    }
}

/// Adds what is reported of a content that is no file of the command line to the outcome of the
/// file at a place, so that each file has one outcome.
fn add_lines(outcomes: &mut Outcomes, place: usize, reported: Converted) {
    match outcomes.iter_mut().find(|(other, _)| *other == place) {
        Some((_, Ok(done))) => done.lines.extend(reported.lines),
        _ => outcomes.push((place, Ok(reported))),
    }
}

/// The contents of one UUID: those of the command line, then others in the dataset.
struct Recording<'a> {
    converter: &'a Converter<'a>,
    dataset: &'a DatasetFolder,
    members: Vec<Member<'a>>,
    /// What the dataset has of others than the members.
    others: Vec<DatasetEntry>,
    /// Members whose rows an earlier run wrote.
    written_before: HashMap<ContentHash, DatasetEntry>,
    /// Members of which an earlier run said that another stands for them.
    superseded_before: HashMap<ContentHash, ContentHash>,
}

impl<'a> Recording<'a> {
    fn new(
        converter: &'a Converter<'a>,
        dataset: &'a DatasetFolder,
        members: Vec<Member<'a>>,
        entries: Vec<DatasetEntry>,
    ) -> Recording<'a> {
        let digests: HashSet<ContentHash> = members.iter().map(|member| member.content.digest).collect();
        let (ours, mut others): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|entry| digests.contains(&entry.content.digest));
        others.sort_by_key(|entry| entry.content.digest);
        let superseded = |entry: &DatasetEntry| Some((entry.content.digest, entry.superseded_by?));
        let superseded_before = ours.iter().filter_map(superseded).collect();
        let written = ours.into_iter().filter(|entry| entry.superseded_by.is_none());
        let written_before = written.map(|entry| (entry.content.digest, entry)).collect();
        Recording { converter, dataset, members, others, written_before, superseded_before }
    }

    fn convert(mut self, outcomes: &mut Outcomes) {
        let contents = self.members.iter().map(|member| &member.content);
        let contents: Vec<Content> =
            contents.chain(self.others.iter().map(|entry| &entry.content)).cloned().collect();
        let mut beginnings: Vec<Vec<usize>> = vec![Vec::new(); contents.len()];
        let stand_ins = stand_ins(&contents);
        for (short, long) in stand_ins.iter().enumerate() {
            if let Some(long) = long {
                beginnings[*long].push(short);
            }
        }
        for long in (0..contents.len()).filter(|&at| stand_ins[at].is_none()) {
            let mut place = self.members[0].place;
            if let Some(member) = self.members.get_mut(long) {
                place = member.place;
                let outcome = member.convert(self.converter, self.dataset, &self.written_before);
                let failed = outcome.is_err();
                outcomes.push((place, outcome));
                if failed {
                    self.not_converted(&beginnings[long], long, outcomes);
                    continue;
                }
            }
            for &short in &beginnings[long] {
                let place = self.members.get(short).map_or(place, |member| member.place);
                let Some(outcome) = self.pass_over(&contents, short, long).transpose() else { continue };
                match outcome {
                    Ok(reported) if short >= self.members.len() => add_lines(outcomes, place, reported),
                    outcome => outcomes.push((place, outcome)),
                }
            }
        }
    }

    /// The outcomes of members that are beginnings of a member that could not be converted.
    fn not_converted(&self, beginnings: &[usize], long: usize, outcomes: &mut Outcomes) {
        for member in beginnings.iter().filter_map(|&short| self.members.get(short)) {
            let (path, long) = (member.path.display(), self.name(long));
            let why = anyhow!("{path}: a prefix of {long}, which could not be converted: not converted");
            outcomes.push((member.place, Err(why)));
        }
    }

    /// Has the dataset say that a content stands for a beginning of it, and removes the rows that
    /// an earlier run wrote of the beginning. The result is `None` if the dataset had it so.
    fn pass_over(
        &self,
        contents: &[Content],
        short: usize,
        long: usize,
    ) -> anyhow::Result<Option<Converted>> {
        let by = &contents[long];
        let other = short.checked_sub(self.members.len()).map(|at| &self.others[at]);
        if other.is_some_and(|entry| entry.superseded_by == Some(by.digest)) {
            return Ok(None);
        }
        let reported_before = self.superseded_before.get(&contents[short].digest) == Some(&by.digest);
        if !reported_before {
            self.dataset.index.supersede(&contents[short], by)?;
        }
        let (shorter, longer, dataset) = (self.name(short), self.name(long), self.dataset.path.display());
        let reported = |text: String| passed_over(Status::Prefix, &contents[short], &text);
        let what = if contents[short].redacted_from.is_some() { "redacted copy" } else { "prefix" };
        Ok(match other {
            None if long < self.members.len() => {
                Some(reported(format!("{shorter}: a {what} of {longer}, which is converted")))
            }
            None => Some(reported(format!("{shorter}: a {what} of {longer}, which is in {dataset}"))),
            Some(entry) if entry.superseded_by.is_none() => Some(reported(format!(
                "{longer}: replaces its {what} {shorter}, which an earlier run had written to {dataset}"
            ))),
            // Its rows were removed before.
            Some(_) => None,
        })
    }

    /// What the user calls a content.
    fn name(&self, at: usize) -> String {
        let of_entry = |entry: &DatasetEntry| {
            entry.source.clone().unwrap_or_else(|| format!("trace {}", entry.content.digest))
        };
        match at.checked_sub(self.members.len()) {
            None => self.members[at].path.display().to_string(),
            Some(at) => of_entry(&self.others[at]),
        }
    }
}

impl Member<'_> {
    fn convert(
        &mut self,
        converter: &Converter<'_>,
        dataset: &DatasetFolder,
        written_before: &HashMap<ContentHash, DatasetEntry>,
    ) -> ConvertOutcome {
        let before = written_before.get(&self.content.digest);
        let verb = if before.is_some() { REPLACED } else { "wrote" };
        let kept = self.file.take();
        guarded(self.path, || {
            converter.begin(self.path, Stage::Convert)?;
            let deadline = converter.deadline();
            let (file, content, stamp) = match kept {
                Some(file) => (file, self.content.clone(), self.stamp),
                // It may have grown since.
                None => {
                    let stamp = converter.stamp(self.path);
                    let file = converter.open(self.path)?;
                    let content = file.content()?;
                    (file, content, stamp)
                }
            };
            let begun =
                RunningConversion { path: file.path(), trace: file.read()?, content, deadline, stamp };
            let (key, seen) = converter.key(&begun).unzip();
            let seen = seen.flatten();
            if let (Some(key), Some(before)) = (&key, before)
                && before.key.as_ref() == Some(key)
                && before.content.digest == begun.content.digest
            {
                return Ok(Converted::skipped(begun.content.digest, before.facts).seen(seen));
            }
            let done = converter.convert(begun, &Destination::Dir(dataset.path.clone()), verb, key)?;
            Ok(done.seen(seen))
        })
    }
}
