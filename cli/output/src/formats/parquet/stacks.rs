//! The table `stacks`: each stack once, in the file of one pack.
//!
//! A stack's home is the pack with its greatest `walk_version`, and of several the first. Packs
//! that did not change keep their files, unless an added part became the home of a stack of theirs:
//! then that row goes. So what is read of them are ids alone.
//!
//! ```text
//! ids        of packs that did not change: of their files; of the others: of their parts
//!            sorted by id, then by version and pack: the first of each id is its home
//! changes    by pack: the ids of a pack that is made, those that a kept file loses
//! files      made of the parts, linked, or made of the former file
//! ```

use super::super::OutputError;
use super::dimensions::{self, order};
use super::files::{link, open_table, read_all};
use super::packs::Pack;
use super::pairs::{Pairs, SortedPairs};
use stk_base::files::Below;
use stk_schema::tables;

/// Rows of a file that are read at once.
const ROWS_READ: usize = 1 << 17;

/// A pack, and where its rows come from.
pub(super) struct PackRows<'a> {
    pub pack: &'a Pack<'a>,
    /// Its file, if the pack did not change since it was made, and all parts of then are there.
    pub kept: Option<Below>,
}

/// Makes the files of the table in `folder`, one of each pack, in their order.
pub(super) fn make(
    dataset: &Below,
    packs: &[PackRows<'_>],
    folder: &Below,
    tmp: &Below,
) -> Result<(), OutputError> {
    let parts: Vec<Vec<Below>> = packs.iter().map(|rows| part_files(dataset, rows.pack)).collect();
    let mut changes = changes(packs, &parts, tmp)?;
    for (number, (rows, parts)) in packs.iter().zip(&parts).enumerate() {
        let mut ids = Vec::new();
        while changes.peek().is_some_and(|(pack, _)| pack == number as u64) {
            ids.extend(changes.next()?.map(|(_, id)| id));
        }
        match &rows.kept {
            Some(file) if ids.is_empty() => link(file, folder, number)?,
            Some(file) => {
                let stays = |id| ids.binary_search(&order(id)).is_err();
                dimensions::merge_stacks(std::slice::from_ref(file), &stays, (folder, number), tmp)?;
            }
            None => match parts.as_slice() {
                [part] if open_table(part, &tables::STACKS)?.rows() == ids.len() => {
                    link(part, folder, number)?;
                }
                parts => {
                    let is_home = |id| ids.binary_search(&order(id)).is_ok();
                    dimensions::merge_stacks(parts, &is_home, (folder, number), tmp)?;
                }
            },
        }
    }
    Ok(())
}

fn part_files(dataset: &Below, pack: &Pack<'_>) -> Vec<Below> {
    let parts = pack.parts.iter().filter(|part| part.has(&tables::STACKS));
    parts.map(|part| part.file(dataset, &tables::STACKS)).collect()
}

/// By the number of a pack: the ids whose home it is, or which its kept file loses.
fn changes(packs: &[PackRows<'_>], parts: &[Vec<Below>], tmp: &Below) -> Result<SortedPairs, OutputError> {
    let (mut files, mut pack_of_file) = (Vec::new(), Vec::new());
    for (number, (rows, parts)) in packs.iter().zip(parts).enumerate() {
        let of_pack = rows.kept.as_ref().map_or(parts.as_slice(), std::slice::from_ref);
        files.extend_from_slice(of_pack);
        pack_of_file.resize(files.len(), number as u32);
    }
    let mut ids = Pairs::new(tmp, "ids");
    read_all(&files, &tables::STACKS, Some(&["stack_id", "walk_version"]), ROWS_READ, |file, frame| {
        let versions = frame.column("walk_version")?.i64()?;
        for (id, version) in frame.column("stack_id")?.i64()?.iter().zip(versions) {
            let version = u32::try_from(version.unwrap_or_default()).unwrap_or_default();
            let rank = u64::from(!version) << 32 | u64::from(pack_of_file[file]);
            ids.push((order(id.unwrap_or_default()), rank))?;
        }
        Ok(())
    })?;
    let mut ids = ids.sorted()?;
    let mut changes = Pairs::new(tmp, "changes");
    let mut home = None;
    while let Some((id, rank)) = ids.next()? {
        let pack = rank & u64::from(u32::MAX);
        let is_made = packs[pack as usize].kept.is_none();
        let changes_pack = match home {
            Some((known, home)) if known == id => !is_made && home != pack,
            _ => {
                home = Some((id, pack));
                is_made
            }
        };
        if changes_pack {
            changes.push((pack, id))?;
        }
    }
    changes.sorted()
}

#[cfg(test)]
mod tests {
    use super::super::files::{file_name, read};
    use super::super::packs;
    use super::super::part::{PartContent, PartDescription};
    use super::super::table::{TableWriter, column, list};
    use super::*;
    use std::collections::{BTreeMap, HashMap};
    use stk_tests::synth::Random;

    const DATE: &str = "2026-11-24";

    /// What a part has of a stack.
    type PartStacks = BTreeMap<i64, i64>;

    /// A part of a number, which gives its start and its name.
    fn part(number: u64) -> PartDescription {
        let id = format!("{number:032x}");
        let start_utc_ns = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 8;
        PartDescription {
            trace_id: id.clone(),
            uuid: id,
            date: DATE.to_owned(),
            content: Some(PartContent { start_utc_ns, bytes: 1, beginnings: vec![], redacted_from: None }),
            ..PartDescription::default()
        }
    }

    /// Writes a part's stacks, by their ids and versions.
    fn write(dataset: &Below, part: &PartDescription, stacks: &PartStacks) {
        let file = part.file(dataset, &tables::STACKS);
        file.parent().make_folder().unwrap();
        let mut writer = TableWriter::create(&file, &tables::STACKS, &[], String::new()).unwrap();
        let rows = stacks.len();
        let lists = || (0..=rows as i64).collect::<Vec<i64>>();
        let ids: Vec<i64> = stacks.keys().copied().collect();
        let trusts = column("", vec![part.trace_id.as_str(); rows]).take_materialized_series();
        let locations = column("", ids.clone()).take_materialized_series();
        writer
            .write(vec![
                column("stack_id", ids),
                column("walk_version", stacks.values().copied().collect::<Vec<_>>()),
                list("location_ids", lists(), locations).unwrap(),
                list("trusts", lists(), trusts).unwrap(),
                column("depth", vec![1i64; rows]),
                column("resolved_by", vec![part.trace_id.as_str(); rows]),
            ])
            .unwrap();
        writer.finish().unwrap();
    }

    struct Lab {
        folder: tempfile::TempDir,
        made: usize,
    }

    impl Lab {
        fn at(&self, name: &str) -> Below {
            Below::folder(self.folder.path()).unwrap().join(name)
        }

        /// The files of the table of some parts, with those of before.
        fn make(&mut self, parts: &[PartDescription], before: &HashMap<String, Below>) -> Vec<Below> {
            let [out, tmp] = ["out", "tmp"].map(|name| self.at(&format!("{name}{}", self.made)));
            self.made += 1;
            out.make_folder().unwrap();
            tmp.make_folder().unwrap();
            let by_date = packs::by_date(parts);
            let of_date = by_date[DATE].iter();
            let rows: Vec<PackRows<'_>> =
                of_date.map(|pack| PackRows { pack, kept: before.get(&pack.digest).cloned() }).collect();
            make(&self.at("dataset"), &rows, &out, &tmp).unwrap();
            (0..rows.len()).map(|number| out.join(file_name(number))).collect()
        }
    }

    fn by_digest(parts: &[PartDescription], files: &[Below]) -> HashMap<String, Below> {
        let by_date = packs::by_date(parts);
        by_date[DATE].iter().map(|pack| pack.digest.clone()).zip(files.iter().cloned()).collect()
    }

    fn bytes(files: &[Below]) -> Vec<Vec<u8>> {
        files.iter().map(|file| file.read(1 << 30).unwrap()).collect()
    }

    #[test]
    fn stacks_are_in_one_file_whatever_was_there_before() {
        let mut lab = Lab { folder: tempfile::tempdir().unwrap(), made: 0 };
        lab.at("dataset").make_folder().unwrap();
        let mut random = Random::new(1);
        let parts: Vec<PartDescription> = (0..300).map(part).collect();
        let mut best: HashMap<i64, i64> = HashMap::new();
        for part in &parts {
            // Some are in many parts, some in one.
            let mut stacks = PartStacks::new();
            for _ in 0..60 {
                let most = 1 << random.below(14);
                let id = random.below(most) as i64 - 700;
                stacks.insert(id, 1 + random.below(2) as i64);
            }
            for (&id, &version) in &stacks {
                let best = best.entry(id).or_default();
                *best = version.max(*best);
            }
            write(&lab.at("dataset"), part, &stacks);
        }
        let none = HashMap::new();
        let whole = lab.make(&parts, &none);
        assert!(whole.len() > 3, "{} packs", whole.len());
        let mut found: HashMap<i64, i64> = HashMap::new();
        for file in &whole {
            let frame = read(&open_table(file, &tables::STACKS).unwrap(), 0, usize::MAX).unwrap();
            let numbers = |name| frame.column(name).unwrap().i64().unwrap().clone();
            for (id, version) in numbers("stack_id").iter().zip(&numbers("walk_version")) {
                assert_eq!(found.insert(id.unwrap(), version.unwrap()), None, "each once");
            }
        }
        assert_eq!(found, best, "all, of the greatest version");
        // Parts of any start come later, one or many.
        for earlier in [299, 290, 150, 1] {
            let first = lab.make(&parts[..earlier], &none);
            let before = by_digest(&parts[..earlier], &first);
            let grown = lab.make(&parts, &before);
            assert!(bytes(&grown) == bytes(&whole), "{earlier} parts before");
        }
    }

    #[cfg(unix)]
    #[test]
    fn files_of_packs_that_lose_nothing_are_kept() {
        use std::os::unix::fs::MetadataExt;
        let mut lab = Lab { folder: tempfile::tempdir().unwrap(), made: 0 };
        lab.at("dataset").make_folder().unwrap();
        let mut parts: Vec<PartDescription> = (0..300).map(part).collect();
        parts.sort_by_key(|part| part.content.as_ref().unwrap().start_utc_ns);
        for (number, part) in (0..).zip(&parts) {
            write(&lab.at("dataset"), part, &(number..number + 50).map(|id| (id, 1)).collect());
        }
        let first = lab.make(&parts[..299], &HashMap::new());
        let before = by_digest(&parts[..299], &first);
        let grown = lab.make(&parts, &before);
        let numbers = |files: &[Below]| -> Vec<u64> {
            files.iter().map(|file| file.path().metadata().unwrap().ino()).collect()
        };
        let (first, grown) = (numbers(&first), numbers(&grown));
        assert!(grown.iter().filter(|number| !first.contains(number)).count() <= 2, "{first:?} {grown:?}");
        assert!(grown.len() > 3);
    }
}
