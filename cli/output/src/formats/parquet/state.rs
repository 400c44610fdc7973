//! Of which parts the tables of a dataset are: `_stk/state.json`.
//!
//! A date's parts are in files of many, except for those that were added since: while they are few,
//! each is in a small file of its own, a second name of the part's, so that adding a trace does not
//! cost as much as all that are there.

use super::super::OutputError;
use super::part::{self, OWN, PartDescription};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read};
use stk_base::files::Below;
use xxhash_rust::xxh3::Xxh3;

const STATE: &str = "state.json";
/// Bytes of it that are read at most: some 150 for each part.
const MOST_READ: u64 = 1 << 30;

/// Parts that a date has at least in files of many before others get small files of their own.
const LEAST: usize = 32;
/// The part of a date's parts that may be in small files: one of so many.
const SMALL: usize = 8;

/// Of which parts the tables are.
#[derive(Default, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub(super) struct State {
    /// The version of stk that made them: another one may make other bytes of the same parts.
    #[serde(default)]
    stk: String,
    /// Digest of the names that `stk symbols apply` found; empty without any.
    #[serde(default)]
    names: String,
    /// The parts of each date, and the digests of their tables.
    #[serde(default)]
    parts: BTreeMap<String, BTreeMap<String, String>>,
    /// Those of them that are in small files of their own.
    #[serde(default)]
    small: BTreeMap<String, BTreeSet<String>>,
}

impl State {
    /// The state of a dataset with these parts and these files of names, behind another state.
    /// `whole`: no part is to be in a small file.
    pub(super) fn of(
        parts: &[PartDescription],
        names: &[Below],
        before: &State,
        whole: bool,
    ) -> Result<State, OutputError> {
        let mut state =
            State { stk: env!("CARGO_PKG_VERSION").to_owned(), names: digest(names)?, ..State::default() };
        for part in parts {
            let of_date = state.parts.entry(part.date.clone()).or_default();
            of_date.insert(part.name(), part.digest.clone());
        }
        for (date, of_date) in &state.parts {
            let Some(known) = before.parts.get(date).filter(|_| before.stk == state.stk && !whole) else {
                continue;
            };
            if known.iter().any(|(name, digest)| of_date.get(name) != Some(digest)) {
                continue;
            }
            let mut small = before.small.get(date).cloned().unwrap_or_default();
            small.extend(of_date.keys().filter(|name| !known.contains_key(*name)).cloned());
            let large = of_date.len() - small.len().min(of_date.len());
            if !small.is_empty() && large >= LEAST && small.len() * SMALL <= large {
                state.small.insert(date.clone(), small);
            }
        }
        Ok(state)
    }

    /// The dates, and whether one has parts.
    pub(super) fn dates(&self) -> impl Iterator<Item = &String> {
        self.parts.keys()
    }

    pub(super) fn has(&self, date: &str) -> bool {
        self.parts.contains_key(date)
    }

    /// Whether the tables of a date are of the same parts, in the same files.
    pub(super) fn same_date(&self, other: &State, date: &str) -> bool {
        let of = |state: &State| (state.parts.get(date).cloned(), state.small.get(date).cloned());
        self.stk == other.stk && of(self) == of(other)
    }

    /// Whether `stacks` are of the same parts.
    pub(super) fn same_parts(&self, other: &State) -> bool {
        self.stk == other.stk && self.parts == other.parts
    }

    pub(super) fn same_names(&self, other: &State) -> bool {
        self.names == other.names
    }

    /// Whether a part was in the tables as it is.
    pub(super) fn has_part(&self, part: &PartDescription) -> bool {
        let digest = self.parts.get(&part.date).and_then(|of_date| of_date.get(&part.name()));
        digest == Some(&part.digest)
    }

    /// Whether the tables of `later` have all that these have, so that parts need only be added.
    pub(super) fn grows_to(&self, later: &State) -> bool {
        let is_there = |(date, of_date): (&String, &BTreeMap<String, String>)| {
            let then = later.parts.get(date);
            of_date.iter().all(|(name, digest)| then.and_then(|then| then.get(name)) == Some(digest))
        };
        self.stk == later.stk && !self.parts.is_empty() && self.parts.iter().all(is_there)
    }

    /// Whether a date's tables become those of `later` when small files are added to them; and then
    /// whether a part is in one of these.
    pub(super) fn is_added(&self, later: &State, part: &PartDescription) -> bool {
        let small = later.small.get(&part.date);
        small.is_some_and(|small| small.contains(&part.name())) && !self.has_part(part)
    }

    /// Whether a date keeps its files in `later`, and only small ones are added.
    pub(super) fn keeps_files(&self, later: &State, date: &str) -> bool {
        later.small.contains_key(date) && self.parts.contains_key(date)
    }

    /// That of a dataset; of none if there is none, or if it is not as stk writes it.
    pub(super) fn read(dataset: &Below) -> Result<State, OutputError> {
        let at = dataset.join(OWN).join(STATE);
        match at.read(MOST_READ) {
            Ok(text) => Ok(serde_json::from_slice(&text).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(State::default()),
            Err(error) => Err(OutputError::at(&at.path(), "cannot be read")(error)),
        }
    }

    pub(super) fn write(&self, dataset: &Below) -> Result<(), OutputError> {
        let text = serde_json::to_string(self).unwrap_or_default();
        part::write_file(&dataset.join(OWN).join(STATE), &format!("{text}\n"))
    }
}

/// The digest of files; empty of none.
fn digest(files: &[Below]) -> Result<String, OutputError> {
    let mut hash = Xxh3::new();
    let mut bytes = vec![0; 1 << 16];
    for at in files {
        let cannot = |error| OutputError::at(&at.path(), "cannot be read")(error);
        let mut file = at.open().map_err(cannot)?;
        loop {
            match file.read(&mut bytes).map_err(cannot)? {
                0 => break,
                read => hash.update(&bytes[..read]),
            }
        }
    }
    Ok(if files.is_empty() { String::new() } else { format!("{:032x}", hash.digest128()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(number: usize, digest: &str) -> PartDescription {
        PartDescription {
            tables_version: 3,
            trace_id: format!("{number:032x}"),
            uuid: format!("{number:032x}"),
            date: "2026-11-24".to_owned(),
            process: String::new(),
            host: String::new(),
            source: None,
            superseded_by: None,
            content: None,
            denormalized: false,
            digest: digest.to_owned(),
            key: None,
            facts: None,
        }
    }

    fn small(state: &State) -> usize {
        state.small.values().map(BTreeSet::len).sum()
    }

    #[test]
    fn parts_are_in_small_files_while_they_are_few() {
        let of =
            |parts: &[PartDescription], before: &State, whole| State::of(parts, &[], before, whole).unwrap();
        let mut parts: Vec<PartDescription> = (0..64).map(|number| part(number, "a")).collect();
        let first = of(&parts, &State::default(), false);
        assert_eq!(small(&first), 0, "the first are all together");
        let mut state = first;
        let mut rewritten = 0;
        for number in 64..128 {
            parts.push(part(number, "a"));
            let next = of(&parts, &state, false);
            assert!(state.grows_to(&next));
            assert_eq!(state.keeps_files(&next, "2026-11-24"), small(&next) > 0);
            rewritten += usize::from(small(&next) == 0);
            assert!(small(&next) * SMALL <= parts.len());
            state = next;
        }
        assert!((1..=8).contains(&rewritten), "{rewritten} of 64 times");
        assert_eq!(small(&of(&parts, &state, true)), 0, "all together again");
        // A part that is another than before has the date made again.
        parts[3].digest = "b".to_owned();
        let changed = of(&parts, &state, false);
        assert_eq!(small(&changed), 0);
        assert!(!state.grows_to(&changed));
        let few = of(&parts[..4], &State::default(), false);
        assert_eq!(small(&of(&parts[..5], &few, false)), 0, "few are cheap to make again");
    }
}
