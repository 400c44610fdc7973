//! The names in folders, for lookups that ignore case. Each folder is read once in a run, since
//! many modules are searched in the same folders.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Limit for the entries that are kept, of one folder and of all together.
const MOST: usize = 1 << 20;

static FOLDERS: Mutex<Option<Folders>> = Mutex::new(None);

/// The names in a folder, read or from memory.
pub(super) fn of(folder: &Path) -> Arc<Listing> {
    let mut folders = FOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
    folders.get_or_insert_default().listing(folder, MOST, &Listing::read)
}

/// The names in a folder.
#[derive(Debug)]
pub(super) struct Listing {
    /// Sorted by their lower case, then by the names themselves.
    names: Vec<Box<str>>,
    /// Whether the folder has more names than were read.
    cut: bool,
}

impl Listing {
    /// Reads at most `most` names. A folder that cannot be read counts as empty.
    fn read(folder: &Path, most: usize) -> Listing {
        let entries = std::fs::read_dir(folder).into_iter().flatten();
        let mut entries = entries.map_while(Result::ok);
        let names = entries.by_ref().take(most).filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<Box<str>> = names.map(String::into_boxed_str).collect();
        names.sort_unstable();
        names.sort_by_cached_key(|name| name.to_lowercase());
        Listing { names, cut: entries.next().is_some() }
    }

    /// The first of the names that differ from this one only in case.
    pub(super) fn find(&self, name: &str) -> Option<&str> {
        let wanted = name.to_lowercase();
        let at = self.names.partition_point(|name| name.to_lowercase() < wanted);
        self.names.get(at).map(|found| &**found).filter(|found| found.to_lowercase() == wanted)
    }

    /// Says in one sentence that some names of the folder are not known.
    pub(super) fn lacks(&self, folder: &Path) -> Option<String> {
        let why = format!(
            "{} has more than {MOST} files: of the others only those are found whose names agree in case too",
            folder.display()
        );
        self.cut.then_some(why)
    }
}

/// The folders that were read.
#[derive(Default)]
struct Folders {
    known: HashMap<PathBuf, Arc<Listing>>,
    /// Number of names in all of them.
    names: usize,
}

impl Folders {
    fn listing(
        &mut self,
        folder: &Path,
        most: usize,
        read: &dyn Fn(&Path, usize) -> Listing,
    ) -> Arc<Listing> {
        if let Some(known) = self.known.get(folder) {
            return known.clone();
        }
        let listing = Arc::new(read(folder, most));
        // Empty folders take memory too.
        let names = listing.names.len() + 1;
        if self.names + names > most {
            *self = Folders::default();
        }
        self.names += names;
        self.known.insert(folder.to_path_buf(), listing.clone());
        listing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_name_is_found_whatever_its_case_and_the_first_of_several() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["B.pdb", "Größe.PDB", "b.PDB", "c"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let listing = Listing::read(folder.path(), MOST);
        assert_eq!(listing.find("GRÖSSE.pdb"), None);
        assert_eq!(listing.find("grÖße.pdb"), Some("Größe.PDB"));
        assert_eq!(listing.find("b.pdb"), Some("B.pdb"));
        assert!(listing.lacks(folder.path()).is_none());
        let cut = Listing::read(folder.path(), 2);
        assert!(cut.names.len() == 2 && cut.lacks(folder.path()).is_some());
        assert_eq!(Listing::read(&folder.path().join("none"), MOST).find("b.pdb"), None);
    }

    #[test]
    fn a_folder_is_read_once_until_too_many_names_are_known() {
        let reads = Cell::new(0);
        let read = |_: &Path, _: usize| {
            reads.set(reads.get() + 1);
            Listing { names: vec!["x".into(); 9], cut: false }
        };
        let mut folders = Folders::default();
        let mut listing = |folder: &str, most| {
            folders.listing(Path::new(folder), most, &read);
            reads.get()
        };
        assert_eq!([listing("a", 20), listing("a", 20), listing("b", 20), listing("a", 20)], [1, 1, 2, 2]);
        // A third folder does not fit beside the two.
        assert_eq!([listing("c", 20), listing("c", 20), listing("a", 20)], [3, 3, 4]);
    }
}
