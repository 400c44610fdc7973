//! Where symbol files are found: folders, symbol stores, the places near the trace and the image.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use stk_schema::identity::GuidText;

use super::path::{PathElement, Store, SymbolPath};
use super::pdb::{PdbFile, PdbIdentity};
use crate::map::MappedFile;

/// The places to look for symbols.
#[derive(Clone, Debug, Default)]
pub struct SymbolStore {
    path: SymbolPath,
    folders: Vec<PathBuf>,
}

/// The result of looking for one file.
#[derive(Debug, Default)]
pub struct Search {
    /// The file, if one of the right identity was found.
    pub found: Option<FoundPdb>,
    /// Places that hold no such file.
    pub tried: Vec<PathBuf>,
    /// Files of the right name that belong to another build, with what they say they are. Never used.
    pub mismatched: Vec<(PathBuf, PdbIdentity)>,
    /// Files of the right name that cannot be read, and why.
    pub unreadable: Vec<(PathBuf, String)>,
}

/// A PDB of the right identity.
#[derive(Debug)]
pub struct FoundPdb {
    /// Where it is.
    pub path: PathBuf,
    /// Its bytes.
    pub file: MappedFile,
}

impl SymbolStore {
    /// Looks along a symbol path first, then in the default folders of [`SymbolStore::add_folder`].
    pub fn new(path: SymbolPath) -> SymbolStore {
        SymbolStore { path, folders: Vec::new() }
    }

    /// The usual places: the path, the current folder, the folder of each trace, `C:\symbols` on Windows.
    pub fn with_defaults<'t>(path: SymbolPath, traces: impl IntoIterator<Item = &'t Path>) -> SymbolStore {
        let mut store = SymbolStore::new(path);
        store.add_folder(PathBuf::from("."));
        for trace in traces {
            if let Some(folder) = trace.parent().filter(|folder| !folder.as_os_str().is_empty()) {
                store.add_folder(folder.to_path_buf());
            }
        }
        if cfg!(windows) {
            store.add_folder(PathBuf::from(r"C:\symbols"));
        }
        store
    }

    /// Adds a folder that is looked into after the symbol path.
    pub fn add_folder(&mut self, folder: PathBuf) {
        if !self.folders.contains(&folder) {
            self.folders.push(folder);
        }
    }

    /// The parsed symbol path.
    pub fn path(&self) -> &SymbolPath {
        &self.path
    }

    /// Looks for the PDB of an image. `pdb_name` is what the image's CodeView record says (any path), `image_path` where
    /// the image was when it was recorded (Windows syntax).
    pub fn find_pdb(&self, pdb_name: &str, guid: &[u8; 16], age: u32, image_path: &str) -> Search {
        let mut search = Search::default();
        let Some(name) = safe_file_name(pdb_name) else {
            search.unreadable.push((PathBuf::from(pdb_name), "is no usable file name".to_owned()));
            return search;
        };
        let id = pdb_id(guid, age);
        for folder in self.all_folders(image_path) {
            for candidate in candidates(&folder, name, &id) {
                if try_pdb(candidate, guid, age, &mut search) {
                    return search;
                }
            }
        }
        search
    }

    /// Every folder to look into, in order: path, defaults, the image's own.
    fn all_folders(&self, image_path: &str) -> Vec<PathBuf> {
        let mut folders: Vec<PathBuf> = Vec::new();
        let mut add = |folder: &Path| {
            if !folders.iter().any(|known| known == folder) {
                folders.push(folder.to_path_buf());
            }
        };
        for element in &self.path.elements {
            match element {
                PathElement::Folder(folder) | PathElement::Cache(Store::Folder(folder)) => add(folder),
                PathElement::Server { stores, .. } => {
                    for store in stores {
                        if let Store::Folder(folder) = store {
                            add(folder);
                        }
                    }
                }
                PathElement::Cache(Store::Default) => {}
            }
        }
        self.folders.iter().for_each(|folder| add(folder));
        if let Some(folder) = image_folder(image_path) {
            add(&folder);
        }
        folders
    }
}

/// The last component of a path in Windows or Unix syntax.
pub fn file_name(path: &str) -> &str {
    path.rsplit(['\\', '/']).next().unwrap_or(path)
}

/// The last component of a path, if it can be the name of a file in a store and nothing else: traces and servers
/// must not be able to name a place outside.
pub fn safe_file_name(path: &str) -> Option<&str> {
    let name = file_name(path);
    let stem = name.split('.').next().unwrap_or("").trim_end().to_ascii_uppercase();
    let device = matches!(stem.as_str(), "CON" | "PRN" | "AUX" | "NUL" | "CONIN$" | "CONOUT$" | "CLOCK$")
        || (["COM", "LPT"].iter().any(|prefix| stem.starts_with(prefix)) && stem.chars().count() == 4);
    let bad = |c: char| c.is_control() || matches!(c, '<' | '>' | ':' | '"' | '|' | '?' | '*');
    let dots = name.chars().all(|c| c == '.' || c == ' ');
    // Windows drops dots and spaces at the end of a name.
    let trailing = name.ends_with(['.', ' ']);
    (!name.is_empty() && name.len() <= 255 && !dots && !trailing && !device && !name.contains(bad))
        .then_some(name)
}

/// The identity of a PDB as stores and servers write it: GUID as 32 hex digits, then the age in hex.
pub fn pdb_id(guid: &[u8; 16], age: u32) -> String {
    let mut id: String = GuidText(guid).to_string().chars().filter(|&c| c != '-').collect();
    let _ = write!(id, "{age:x}");
    id
}

/// The identity of an image as stores and servers write it: TimeDateStamp (8 hex digits), then SizeOfImage in hex.
pub fn image_id(time_date_stamp: u32, size_of_image: u32) -> String {
    format!("{time_date_stamp:08X}{size_of_image:x}")
}

/// Where a file can be in a folder: flat, in a two-tier store, in a three-tier store.
fn candidates(folder: &Path, name: &str, id: &str) -> Vec<PathBuf> {
    let mut places = vec![folder.join(name)];
    let below = |parts: &[&str]| {
        parts.iter().try_fold(folder.to_path_buf(), |at, part| {
            let exact = at.join(part);
            if exact.exists() { Some(exact) } else { ignoring_case(&at, part) }
        })
    };
    let prefix: String = name.chars().take(2).collect();
    // Stores are case-insensitive where they come from, and this file system may not be.
    places.extend(ignoring_case(folder, name).filter(|path| path.is_file() && *path != places[0]));
    places.extend(below(&[name, id, name]));
    places.extend(below(&[&prefix, name, id, name]));
    places
}

/// The entry of a folder whose name differs in case only.
fn ignoring_case(folder: &Path, name: &str) -> Option<PathBuf> {
    if cfg!(windows) {
        return None;
    }
    let wanted = name.to_lowercase();
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.to_lowercase() == wanted))
        .collect();
    found.sort();
    found.into_iter().next()
}

/// Takes the candidate if it is the PDB that is wanted; else notes why not.
fn try_pdb(path: PathBuf, guid: &[u8; 16], age: u32, search: &mut Search) -> bool {
    let file = match MappedFile::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            search.tried.push(path);
            return false;
        }
        Err(error) => {
            search.unreadable.push((path, error.to_string()));
            return false;
        }
    };
    let identity = PdbFile::open(&file).map(|pdb| *pdb.identity());
    match identity {
        Ok(identity) if identity.matches(guid, age) => {
            search.found = Some(FoundPdb { path, file });
            true
        }
        Ok(identity) => {
            search.mismatched.push((path, identity));
            false
        }
        Err(error) => {
            search.unreadable.push((path, error.to_string()));
            false
        }
    }
}

impl PdbIdentity {
    /// Whether the PDB belongs to an image with this CodeView record.
    pub fn matches(&self, guid: &[u8; 16], age: u32) -> bool {
        self.guid == *guid && (self.age == age || self.info_age == age)
    }
}

/// The folder of an image, if its recorded path means something on this machine. Network and device paths of a
/// trace are never opened: that alone would send credentials to whoever wrote it.
pub(crate) fn image_folder(image_path: &str) -> Option<PathBuf> {
    let path = local_path(image_path)?;
    let folder = path.parent()?.to_path_buf();
    folder.is_dir().then_some(folder)
}

/// A recorded path as this machine would open it: a drive path on Windows; elsewhere Wine's `Z:` drive, which is
/// the root, or a Unix path.
pub(crate) fn local_path(recorded: &str) -> Option<PathBuf> {
    let bytes = recorded.as_bytes();
    let drive = bytes.len() > 3
        && bytes[0].is_ascii_alphabetic()
        && bytes[1] == b':'
        && matches!(bytes[2], b'\\' | b'/');
    if recorded.split(['\\', '/']).any(|part| part == "..") {
        return None;
    }
    if cfg!(windows) {
        return drive.then(|| PathBuf::from(recorded));
    }
    if drive && bytes[0].eq_ignore_ascii_case(&b'z') {
        return Some(PathBuf::from(recorded[2..].replace('\\', "/")));
    }
    (bytes.first() == Some(&b'/')).then(|| PathBuf::from(recorded))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_separators_end_a_folder() {
        assert_eq!(file_name(r"D:\a\_work\1\s\winpty.pdb"), "winpty.pdb");
        assert_eq!(file_name("/build/x.pdb"), "x.pdb");
        assert_eq!(file_name(r"C:\Übung/дерево.pdb"), "дерево.pdb");
    }

    #[test]
    fn a_name_that_leaves_the_store_is_refused() {
        for name in [
            "",
            ".",
            "..",
            "...",
            "a/..",
            r"a\..",
            "C:",
            "C:x.pdb",
            "x.pdb:stream",
            "NUL",
            "nul.pdb",
            "com1.pdb",
            "LPT9",
            "x.pdb.",
            "x.pdb ",
            "a\0b",
            "a*b",
            "CONIN$",
        ] {
            assert_eq!(safe_file_name(name), None, "{name:?}");
        }
        for name in ["x.pdb", "common.pdb", "ntkrnlmp.pdb", "Ü.pdb", ".hidden.pdb", "com.pdb", "a b.pdb"] {
            assert_eq!(safe_file_name(name), Some(name));
        }
    }

    // The example of Microsoft's "Using SymStore": the first three GUID fields are little-endian in the record.
    #[test]
    fn identities_are_written_as_symbol_servers_do() {
        let guid =
            [0xcb, 0xfa, 0xb9, 0x1e, 0xc7, 0x04, 0x3c, 0x41, 0x96, 0xba, 0xb6, 0x69, 0xdb, 0x5a, 0x2c, 0x3f];
        assert_eq!(pdb_id(&guid, 10), "1EB9FACB04C7413C96BAB669DB5A2C3Fa");
        assert_eq!(image_id(0x0a1b_2c3d, 0x1_f000), "0A1B2C3D1f000");
    }

    #[test]
    fn network_and_device_paths_of_a_trace_are_never_opened() {
        for path in [r"\\server\share\x.dll", r"\\?\C:\x.dll", r"\\.\pipe\x", r"\Device\x", "x.dll"] {
            assert_eq!(local_path(path), None);
        }
        assert_eq!(local_path(r"C:\a\..\b.dll"), None);
    }

    #[cfg(not(windows))]
    #[test]
    fn wines_root_drive_is_the_root() {
        assert_eq!(local_path(r"Z:\tmp\a b.dll"), Some(PathBuf::from("/tmp/a b.dll")));
        assert_eq!(local_path(r"C:\windows\a.dll"), None);
    }
}
