//! Of which parts the tables of a dataset are: `_stk/state.json`.

use super::super::OutputError;
use super::packs::Pack;
use super::part::{self, OWN, PartDescription};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use stk_base::files::Below;
use xxhash_rust::xxh3::Xxh3;

const STATE: &str = "state.json";
/// Bytes of it that are read at most: some 150 for each part.
const MOST_READ: u64 = 1 << 30;

/// The version of stk, and the number of the way in which it cuts tables into files.
const MADE_BY: &str = concat!(env!("CARGO_PKG_VERSION"), "/2");

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
    /// The digests of each date's packs, in the order of their files.
    #[serde(default)]
    packs: BTreeMap<String, Vec<String>>,
}

impl State {
    /// The state of a dataset with these parts, in these packs, and these files of names.
    pub(super) fn of(
        parts: &[PartDescription],
        packs: &BTreeMap<&str, Vec<Pack<'_>>>,
        names: &[Below],
    ) -> Result<State, OutputError> {
        let digests = |packs: &Vec<Pack<'_>>| packs.iter().map(|pack| pack.digest.clone()).collect();
        let packs = packs.iter().map(|(date, packs)| ((*date).to_owned(), digests(packs))).collect();
        let (stk, names) = (MADE_BY.to_owned(), digest(names)?);
        let mut state = State { stk, names, parts: BTreeMap::new(), packs };
        for part in parts {
            let of_date = state.parts.entry(part.date.clone()).or_default();
            of_date.insert(part.name(), part.digest.clone());
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

    /// Whether the tables of a date are of the same packs.
    pub(super) fn same_date(&self, other: &State, date: &str) -> bool {
        self.stk == other.stk && self.packs.get(date) == other.packs.get(date)
    }

    /// The number of a pack's files, if the tables of a date have it and `later` has it as well.
    pub(super) fn file_of(&self, later: &State, date: &str, pack: &Pack<'_>) -> Option<usize> {
        let packs = self.packs.get(date).filter(|_| self.stk == later.stk)?;
        packs.iter().position(|digest| *digest == pack.digest)
    }

    /// The number of a pack's file among those of all dates, likewise.
    pub(super) fn file_of_all(&self, later: &State, date: &str, pack: &Pack<'_>) -> Option<usize> {
        let earlier = self.packs.range(..date.to_owned()).map(|(_, packs)| packs.len());
        Some(earlier.sum::<usize>() + self.file_of(later, date, pack)?)
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

    /// That of a dataset; of none if there is none, or if it is not as stk writes it.
    pub(super) fn read(dataset: &Below) -> Result<State, OutputError> {
        let at = dataset.join(OWN).join(STATE);
        match at.read(MOST_READ) {
            Ok(text) => Ok(serde_json::from_slice(&text).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(State::default()),
            Err(error) => Err(OutputError::at(&at.path(), "cannot be read")(error)),
        }
    }

    /// Has a dataset without one: its tables are being replaced.
    pub(super) fn remove(dataset: &Below) -> Result<(), OutputError> {
        let at = dataset.join(OWN).join(STATE);
        match at.remove_file() {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(OutputError::at(&at.path(), "cannot be removed")(error))
            }
            _ => Ok(()),
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
    use super::super::packs;
    use super::*;

    fn part(number: usize, digest: &str) -> PartDescription {
        PartDescription {
            trace_id: format!("{number:032x}"),
            uuid: format!("{number:032x}"),
            date: "2026-11-24".to_owned(),
            digest: digest.to_owned(),
            ..PartDescription::default()
        }
    }

    fn of(parts: &[PartDescription]) -> State {
        State::of(parts, &packs::by_date(parts), &[]).unwrap()
    }

    #[test]
    fn packs_keep_their_files_where_parts_are_added() {
        let parts: Vec<PartDescription> = (0..400).map(|number| part(number, "a")).collect();
        let (before, after) = (of(&parts[..390]), of(&parts));
        assert!(before.grows_to(&after) && !after.grows_to(&before));
        assert!(!before.same_date(&after, "2026-11-24") && before.same_date(&before, "2026-11-24"));
        let known = before.packs["2026-11-24"].clone();
        let packs = packs::by_date(&parts);
        let mut kept = 0;
        for pack in &packs["2026-11-24"] {
            let file = before.file_of(&after, "2026-11-24", pack);
            assert_eq!(file.map(|file| &known[file]), file.map(|_| &pack.digest));
            assert_eq!(file.is_some(), known.contains(&pack.digest));
            kept += usize::from(file.is_some());
        }
        assert!(kept + 11 >= packs["2026-11-24"].len() && kept > 0, "{kept}");
        let of_another_stk = State { stk: "0.0.0".to_owned(), ..of(&parts[..390]) };
        let mut packs = packs["2026-11-24"].iter();
        assert!(packs.all(|pack| of_another_stk.file_of(&after, "2026-11-24", pack).is_none()));
    }

    #[test]
    fn a_part_that_changed_is_no_growth() {
        let mut parts: Vec<PartDescription> = (0..64).map(|number| part(number, "a")).collect();
        let before = of(&parts);
        parts[3].digest = "b".to_owned();
        let changed = of(&parts);
        assert!(!before.grows_to(&changed) && !before.same_parts(&changed));
        assert!(before.has_part(&parts[2]) && !before.has_part(&parts[3]));
    }
}
