//! Compaction: makes the tables of a dataset of its parts. What it makes depends on the set of the
//! parts alone.
//!
//! New tables are made in `_stk/tmp` and then renamed. `_stk/state.json` says of which parts the
//! tables are; it is removed before and written last, so that what was interrupted is done again.

use super::super::lock::FolderLock;
use super::super::{OutputError, Summary};
use super::files::{Files, file_name, link, read_all};
use super::packs::{self, Pack};
use super::part::{self, DATE, PartDescription};
use super::stacks::{self, PackRows};
use super::state::State;
use super::table::nulls;
use super::{catalog, dimensions};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use stk_base::files::{Below, Kind};
use stk_schema::tables::{self, ParquetTable};

/// Rows of a row group of tables by date, at most.
const ROWS: usize = 1 << 17;
/// Rows of a part that are read at once.
const ROWS_READ: usize = 1 << 16;
/// How often other processes may add parts meanwhile before they are left to the next compaction.
const ROUNDS: usize = 16;

/// Makes the tables of a dataset. Returns the files that were made. Waits for another process that
/// makes them.
pub(super) fn compact(path: &Path) -> Result<Summary, OutputError> {
    let dataset = catalog::prepare(path)?;
    let _lock = FolderLock::of_tables(&dataset)?;
    compact_alone(&dataset)
}

/// [`compact`] for who holds the lock.
pub(super) fn compact_alone(dataset: &Below) -> Result<Summary, OutputError> {
    let mut summary = Summary::default();
    for _ in 0..ROUNDS {
        let parts = part::parts(dataset)?;
        let names = part::name_files(dataset)?;
        let mut before = State::read(dataset)?;
        if !is_whole(dataset, &before)? {
            before = State::default();
        }
        let packs = packs::by_date(&parts);
        let after = State::of(&parts, &packs, &names)?;
        if before == after && is_whole(dataset, &after)? {
            return Ok(summary);
        }
        let tables = Round { dataset, parts: &parts, packs: &packs, names: &names, before, after: &after };
        summary.files.extend(tables.replace()?);
        // Another process may have added parts, and have made its tables before these.
        after.write(dataset)?;
    }
    Ok(summary)
}

/// Whether all folders of the tables are there.
fn is_whole(dataset: &Below, state: &State) -> Result<bool, OutputError> {
    for table in tables::ALL {
        let folder = dataset.join(table.name);
        let folders: Vec<Below> = match table.by_date {
            true => state.dates().map(|date| folder.join(format!("{DATE}{date}"))).collect(),
            false => vec![folder],
        };
        for folder in folders {
            if !is_folder(&folder)? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

fn is_folder(at: &Below) -> Result<bool, OutputError> {
    at.is_folder().map_err(OutputError::at(&at.path(), "cannot be read"))
}

/// A folder that was made, and where it is to go.
struct NewFolder {
    new: Below,
    goal: Below,
}

/// What the tables are made of, and what they were made of before.
struct Round<'a> {
    dataset: &'a Below,
    parts: &'a [PartDescription],
    packs: &'a BTreeMap<&'a str, Vec<Pack<'a>>>,
    /// Files of rows with names.
    names: &'a [Below],
    before: State,
    after: &'a State,
}

impl Round<'_> {
    /// Makes the tables that change, and puts them where the old ones are. Returns their files.
    fn replace(&self) -> Result<Vec<(PathBuf, u64)>, OutputError> {
        let tmp = part::temporary_folder(self.dataset)?;
        // Both are sorting and writing by one thread for the most part.
        let (shared, dated) = rayon::join(|| self.shared_tables(tmp.at()), || self.dated_tables(tmp.at()));
        // Tables that all traces share come first, `traces` last.
        let made: Vec<NewFolder> = shared?.into_iter().chain(dated?).collect();
        State::remove(self.dataset)?;
        let mut files = Vec::new();
        for (number, NewFolder { new, goal }) in made.iter().enumerate() {
            part::make_folder(&goal.parent())?;
            part::replace_folder(new, goal, &tmp.at().join(format!("old{number}")))?;
            for file in part::table_files(goal)? {
                if let Some(Kind::File { len }) =
                    file.kind().map_err(OutputError::at(&file.path(), "cannot be read"))?
                {
                    files.push((file.path(), len));
                }
            }
        }
        remove_old_dates(self.dataset, self.after)?;
        Ok(files)
    }

    /// Makes the tables that all traces share, where they change, in `tmp`.
    fn shared_tables(&self, tmp: &Below) -> Result<Vec<NewFolder>, OutputError> {
        let Round { dataset, before, after, .. } = self;
        let mut made = Vec::new();
        for table in tables::ALL.iter().filter(|table| !table.by_date) {
            let goal = dataset.join(table.name);
            let names = if table.name == tables::FRAMES.name { self.names } else { &[] };
            let same_names = table.name != tables::FRAMES.name || before.same_names(after);
            if before.same_parts(after) && same_names && is_folder(&goal)? {
                continue;
            }
            let new = tmp.join(table.name);
            part::make_folder(&new)?;
            // The best row of an id stays the best when others are added.
            let grows = before.grows_to(after);
            let known = if grows { part::table_files(&goal)? } else { Vec::new() };
            if table.name == tables::STACKS.name {
                let packs = self.packs_of_stacks(&goal, grows);
                stacks::make(dataset, &packs, &new, tmp)?;
                made.push(NewFolder { new, goal });
                continue;
            }
            let parts = self.parts.iter();
            let parts = parts.filter(|part| part.has(table) && !(grows && before.has_part(part)));
            let files = known.into_iter().chain(parts.map(|part| part.file(dataset, table)));
            let files: Vec<Below> = files.chain(names.iter().cloned()).collect();
            match files.as_slice() {
                [file] => link(file, &new, 0)?,
                files => dimensions::merge(table, files, &new, tmp)?,
            }
            made.push(NewFolder { new, goal });
        }
        Ok(made)
    }

    /// All packs, with their files of `stacks` if they have not changed.
    fn packs_of_stacks(&self, goal: &Below, grows: bool) -> Vec<PackRows<'_>> {
        let packs = self.packs.iter().flat_map(|(date, packs)| packs.iter().map(move |pack| (date, pack)));
        let rows = packs.map(|(date, pack)| {
            let known = self.before.file_of_all(self.after, date, pack).filter(|_| grows);
            PackRows { pack, kept: known.and_then(|number| file(goal, number)) }
        });
        rows.collect()
    }

    /// Makes the tables by date, of the dates that change, in `tmp`.
    fn dated_tables(&self, tmp: &Below) -> Result<Vec<NewFolder>, OutputError> {
        let mut made = Vec::new();
        for table in tables::ALL.iter().filter(|table| table.by_date) {
            for (date, packs) in self.packs {
                if self.before.same_date(self.after, date) {
                    continue;
                }
                let folder = Path::new(table.name).join(format!("{DATE}{date}"));
                let (new, goal) = (tmp.join(&folder), self.dataset.join(&folder));
                part::make_folder(&new)?;
                for (number, pack) in packs.iter().enumerate() {
                    let known = self.before.file_of(self.after, date, pack);
                    match known.and_then(|number| file(&goal, number)) {
                        Some(known) => link(&known, &new, number)?,
                        None => pack_file(self.dataset, table, pack, &new, number)?,
                    }
                }
                made.push(NewFolder { new, goal });
            }
        }
        Ok(made)
    }
}

/// The file of a table's folder with a number, if it is there.
fn file(folder: &Below, number: usize) -> Option<Below> {
    let file = folder.join(file_name(number));
    matches!(file.kind(), Ok(Some(Kind::File { .. }))).then_some(file)
}

/// Removes the folders of dates that no part has any more.
fn remove_old_dates(dataset: &Below, state: &State) -> Result<(), OutputError> {
    for table in tables::ALL.iter().filter(|table| table.by_date) {
        let folder = dataset.join(table.name);
        for name in part::names(&folder)?.into_iter().filter(|name| name.starts_with(DATE)) {
            if !name.strip_prefix(DATE).is_some_and(|date| state.has(date)) {
                let old = folder.join(name);
                remove_table(&old).map_err(OutputError::at(&old.path(), "cannot be removed"))?;
            }
        }
    }
    Ok(())
}

/// Removes the files of a table in a folder, and the folder if no others are in it.
fn remove_table(folder: &Below) -> io::Result<()> {
    if !folder.is_folder()? {
        return Ok(());
    }
    for name in folder.list()?.into_iter().filter(|name| part::is_table_file(name)) {
        folder.join(name).remove_file()?;
    }
    match folder.remove_empty_folder() {
        Err(error) if error.kind() != ErrorKind::DirectoryNotEmpty => Err(error),
        _ => Ok(()),
    }
}

/// The file of a table for a pack.
fn pack_file(
    dataset: &Below,
    table: &ParquetTable,
    pack: &Pack<'_>,
    folder: &Below,
    number: usize,
) -> Result<(), OutputError> {
    let parts: Vec<&&PartDescription> = pack.parts.iter().filter(|part| part.has(table)).collect();
    if let [part] = parts.as_slice() {
        return link(&part.file(dataset, table), folder, number);
    }
    let is_samples = table.name == tables::SAMPLES.name;
    let more: &[tables::TableColumn] = match is_samples && parts.iter().any(|part| part.denormalized) {
        true => &[tables::SAMPLES_FRAMES],
        false => &[],
    };
    let mut file = Files::single(table, more, folder, number);
    let paths: Vec<Below> = parts.iter().map(|part| part.file(dataset, table)).collect();
    read_all(&paths, table, None, ROWS_READ, |number, mut frame| {
        for missing in more.iter().filter(|_| !parts[number].denormalized) {
            let nulls = nulls(missing, frame.height());
            let added = frame.with_column(nulls);
            added.map_err(|error| OutputError::Table { path: paths[number].path(), error })?;
        }
        file.add(frame, ROWS)
    })?;
    file.finish()
}
