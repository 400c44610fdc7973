//! Packs: the parts of a date whose rows are one file of each table.
//!
//! A date's parts are sorted by their start and cut into packs, where the hash of a part's name
//! says so. So the packs depend on the set of parts alone, and a part that is added changes the
//! pack that it comes into, or cuts it in two; the files of the others stay as they are.

use super::part::PartDescription;
use std::collections::BTreeMap;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// One part of so many begins a pack.
const MEAN: u64 = 32;
/// Parts of a pack, at most.
const MOST: usize = 128;
/// Bytes of the traces behind which a pack ends: they become some tens of MiB of rows.
const MOST_BYTES: u64 = 1 << 30;

/// Parts of one date whose rows are one file of each table.
pub(super) struct Pack<'a> {
    /// In the order of their rows: by process, host and trace.
    pub parts: Vec<&'a PartDescription>,
    /// The hash of their names and of their tables.
    pub digest: String,
}

/// The packs of each date.
pub(super) fn by_date(parts: &[PartDescription]) -> BTreeMap<&str, Vec<Pack<'_>>> {
    let mut dates: BTreeMap<&str, Vec<&PartDescription>> = BTreeMap::new();
    for part in parts {
        dates.entry(&part.date).or_default().push(part);
    }
    dates.into_iter().map(|(date, parts)| (date, cut(parts))).collect()
}

fn cut(mut parts: Vec<&PartDescription>) -> Vec<Pack<'_>> {
    let start = |part: &PartDescription| part.content.as_ref().map_or(0, |content| content.start_utc_ns);
    let bytes = |part: &PartDescription| part.content.as_ref().map_or(0, |content| content.bytes);
    parts.sort_by(|a, b| (start(a), &a.trace_id, &a.uuid).cmp(&(start(b), &b.trace_id, &b.uuid)));
    let mut packs: Vec<Vec<&PartDescription>> = Vec::new();
    let mut of_pack = 0u64;
    for part in parts {
        let begins = xxh3_64(part.name().as_bytes()).is_multiple_of(MEAN);
        match packs.last_mut().filter(|pack| !begins && pack.len() < MOST && of_pack < MOST_BYTES) {
            Some(pack) => {
                pack.push(part);
                of_pack = of_pack.saturating_add(bytes(part));
            }
            None => {
                packs.push(vec![part]);
                of_pack = bytes(part);
            }
        }
    }
    packs.into_iter().map(Pack::of).collect()
}

impl Pack<'_> {
    fn of(mut parts: Vec<&PartDescription>) -> Pack<'_> {
        parts.sort_by_key(|part| (&part.process, &part.host, &part.trace_id, &part.uuid));
        let mut hash = Xxh3::new();
        for part in &parts {
            hash.update(format!("{}\n{}\n", part.name(), part.digest).as_bytes());
        }
        let digest = format!("{:032x}", hash.digest128());
        Pack { parts, digest }
    }
}

#[cfg(test)]
mod tests {
    use super::super::part::PartContent;
    use super::*;
    use std::collections::HashSet;

    fn part(number: u64) -> PartDescription {
        let start_utc_ns = 1_000 * number;
        let content = PartContent { start_utc_ns, bytes: 1 << 20, beginnings: vec![], redacted_from: None };
        let id = format!("{number:032x}");
        PartDescription {
            trace_id: id.clone(),
            uuid: id,
            date: "2026-11-24".to_owned(),
            process: format!("{}.exe", number % 3),
            content: Some(content),
            digest: "a".to_owned(),
            ..PartDescription::default()
        }
    }

    fn digests(parts: &[PartDescription]) -> Vec<String> {
        by_date(parts).into_values().flatten().map(|pack| pack.digest).collect()
    }

    #[test]
    fn parts_are_in_the_same_packs_in_any_order() {
        let mut parts: Vec<PartDescription> = (0..2_000).map(part).collect();
        let packs = digests(&parts);
        assert!((30..=120).contains(&packs.len()), "{} packs of some {MEAN} parts", packs.len());
        parts.reverse();
        assert_eq!(digests(&parts), packs);
        let all = by_date(&parts);
        let of_packs = all.values().flatten().flat_map(|pack| pack.parts.iter().map(|part| &part.uuid));
        assert_eq!(of_packs.clone().count(), 2_000);
        assert_eq!(of_packs.collect::<HashSet<_>>().len(), 2_000, "each part once");
        for pack in all.values().flatten() {
            assert!((1..=MOST).contains(&pack.parts.len()));
            let keys = pack.parts.iter().map(|part| (&part.process, &part.host, &part.trace_id));
            assert!(keys.is_sorted());
        }
    }

    #[test]
    fn parts_that_are_added_change_few_packs() {
        let all: Vec<PartDescription> = (0..3_000).map(part).collect();
        let changed = |before: &[PartDescription]| {
            let known: HashSet<String> = digests(before).into_iter().collect();
            digests(&all).into_iter().filter(|digest| !known.contains(digest)).count()
        };
        assert!(changed(&all[..2_990]) <= 11, "ten at the end: {}", changed(&all[..2_990]));
        for added in (0..3_000).step_by(100) {
            let without = [&all[..added], &all[added + 1..]].concat();
            // Cuts by length alone are found again at the next that a name makes.
            assert!((1..=6).contains(&changed(&without)), "part {added}: {}", changed(&without));
        }
    }

    #[test]
    fn a_part_that_is_written_again_changes_its_pack() {
        let mut parts: Vec<PartDescription> = (0..500).map(part).collect();
        let before = digests(&parts);
        parts[77].digest = "b".to_owned();
        let after = digests(&parts);
        assert_eq!(before.len(), after.len());
        assert_eq!(before.iter().zip(&after).filter(|(before, after)| before != after).count(), 1);
    }

    #[test]
    fn long_traces_are_in_packs_of_their_own() {
        let mut parts: Vec<PartDescription> = (0..40).map(part).collect();
        for part in &mut parts {
            part.content.as_mut().unwrap().bytes = u64::MAX;
        }
        assert_eq!(digests(&parts).len(), 40);
    }
}
