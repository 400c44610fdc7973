//! Where symbol files are found: folders, symbol stores, the places near the trace and the image.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use stk_schema::identity::GuidText;

use super::bundle::{Bundle, is_bundle};
use super::bytes::u32_at;
use super::cab;
use super::cache::{SymbolCache, write_atomically};
use super::path::{PathElement, Store, SymbolPath};
use super::pdb::{PdbFile, PdbIdentity};
use super::server::{Client, ClientOptions, OnBytes, packed_name, pointer_path};
use crate::map::MappedFile;
use crate::runtimes::dotnet::portable_pdb::{PortablePdb, assembly_debug};

/// The places to look for symbols.
#[derive(Clone, Debug, Default)]
pub struct SymbolStore {
    path: SymbolPath,
    folders: Vec<PathBuf>,
    /// Whether to look beside an image, where it was when it was recorded.
    beside_images: bool,
    cache: Option<SymbolCache>,
    client: Option<Client>,
    /// Bundles that were opened, or why they cannot be.
    bundles: Arc<Mutex<HashMap<PathBuf, OpenBundle>>>,
}

/// A bundle, or what is wrong with it.
type OpenBundle = Result<Arc<Bundle>, Arc<str>>;

/// Largest file that is unpacked from a cabinet or a bundle, in bytes.
const MAX_UNPACKED: u64 = u32::MAX as u64;

/// A file that is looked for: a symbol file or image of exactly one build.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// File name without folders.
    pub name: &'a str,
    /// Which build.
    pub identity: Identity,
}

/// What identifies a build.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Identity {
    /// A PDB, by the image's CodeView record.
    Pdb {
        /// GUID as stored.
        guid: [u8; 16],
        /// Age.
        age: u32,
    },
    /// A portable PDB, by the CodeView record of its assembly.
    PortablePdb {
        /// GUID as stored.
        guid: [u8; 16],
    },
    /// An image, by its headers.
    Image {
        /// TimeDateStamp.
        time_date_stamp: u32,
        /// SizeOfImage, in bytes.
        size_of_image: u32,
    },
}

/// The result of looking for one file.
#[derive(Debug, Default)]
pub struct Search {
    /// The file, if one of the right identity was found.
    pub found: Option<FoundFile>,
    /// Places that hold no such file.
    pub tried: Vec<PathBuf>,
    /// Files of the right name that belong to another build, with what they say they are. Never used.
    pub mismatched: Vec<(PathBuf, Identity)>,
    /// Files of the right name that cannot be read, and why.
    pub unreadable: Vec<(PathBuf, String)>,
    /// What the servers said that have no such file.
    pub servers: Vec<String>,
}

/// A file of the right identity.
#[derive(Debug)]
pub struct FoundFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its bytes.
    pub file: MappedFile,
}

/// Why a file is not the one that is wanted.
enum Unfit {
    OtherBuild(Identity),
    Unreadable(String),
}

impl SymbolStore {
    /// Looks along a symbol path, then in the folders of [`SymbolStore::add_folder`]. Contacts no server.
    pub fn new(path: SymbolPath) -> SymbolStore {
        SymbolStore { path, ..SymbolStore::default() }
    }

    /// The usual places: the path, the current folder, the folder of each trace, `C:\symbols` on Windows, an image's folder.
    pub fn with_defaults<'t>(path: SymbolPath, traces: impl IntoIterator<Item = &'t Path>) -> SymbolStore {
        let mut store = SymbolStore { beside_images: true, ..SymbolStore::new(path) };
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

    /// Keeps indexes, unpacked files and downloads in this cache.
    pub fn set_cache(&mut self, cache: SymbolCache) {
        self.cache = Some(cache);
    }

    /// Lets the store ask the servers that the symbol path names.
    pub fn go_online(&mut self, options: ClientOptions) {
        let missing = self.cache.as_ref().map(SymbolCache::missing);
        if self.path.urls().next().is_some() {
            self.client = Some(Client::new(options, missing));
        }
    }

    /// The parsed symbol path.
    pub fn path(&self) -> &SymbolPath {
        &self.path
    }

    /// The cache, if there is one.
    pub fn cache(&self) -> Option<&SymbolCache> {
        self.cache.as_ref()
    }

    /// Looks for the PDB of an image. `pdb_name` is what the image's CodeView record says (any path), `image_path` where
    /// the image was when it was recorded (Windows syntax).
    pub fn find_pdb(&self, pdb_name: &str, guid: &[u8; 16], age: u32, image_path: &str) -> Search {
        self.find(file_name(pdb_name), Identity::Pdb { guid: *guid, age }, image_path, &|_, _, _| {})
    }

    /// Looks for the portable PDB of a managed assembly. `assembly_path` is where the assembly was when it was recorded.
    pub fn find_portable_pdb(&self, pdb_name: &str, guid: &[u8; 16], assembly_path: &str) -> Search {
        let identity = Identity::PortablePdb { guid: *guid };
        self.find(file_name(pdb_name), identity, assembly_path, &|_, _, _| {})
    }

    /// Looks for a managed assembly on this machine, by the GUID of its PDB: its file name in every folder, and where it was
    /// when it was recorded.
    pub fn find_assembly(&self, assembly_path: &str, guid: &[u8; 16]) -> Option<FoundFile> {
        let name = safe_file_name(assembly_path)?;
        self.all_folders(assembly_path).into_iter().find_map(|folder| {
            let exact = folder.join(name);
            let path = if exact.is_file() { exact } else { ignoring_case(&folder, name)? };
            let file = MappedFile::open(&path).ok()?;
            let debug = assembly_debug(&file)?;
            (debug.guid == Some(*guid)).then_some(FoundFile { path, file })
        })
    }

    /// Looks for an image file: in the same places, and where it was when it was recorded.
    pub fn find_image(&self, image_path: &str, time_date_stamp: u32, size_of_image: u32) -> Search {
        let identity = Identity::Image { time_date_stamp, size_of_image };
        self.find(file_name(image_path), identity, image_path, &|_, _, _| {})
    }

    /// An image file in a place on this machine; no server is asked.
    pub fn find_image_here(
        &self,
        image_path: &str,
        time_date_stamp: u32,
        size_of_image: u32,
    ) -> Option<PathBuf> {
        let wanted = Wanted {
            name: safe_file_name(file_name(image_path))?,
            identity: Identity::Image { time_date_stamp, size_of_image },
        };
        let mut search = Search::default();
        self.all_folders(image_path).iter().find(|folder| self.look_in(folder, &wanted, &mut search))?;
        search.found.map(|found| found.path)
    }

    /// Looks for a file: first in every place on this machine, then on the servers, in the order of the path.
    pub fn find(&self, name: &str, identity: Identity, image_path: &str, on_bytes: OnBytes<'_>) -> Search {
        let mut search = Search::default();
        let Some(name) = safe_file_name(name) else {
            search.unreadable.push((PathBuf::from(name), "is no usable file name".to_owned()));
            return search;
        };
        let wanted = Wanted { name, identity };
        for folder in self.all_folders(image_path) {
            if self.look_in(&folder, &wanted, &mut search) {
                return search;
            }
        }
        self.ask_servers(&wanted, &mut search, on_bytes);
        search
    }

    /// Every folder to look into, in order: path, defaults, the image's own, the cache.
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
        if let Some(folder) = image_folder(image_path).filter(|_| self.beside_images) {
            add(&folder);
        }
        if let Some(cache) = &self.cache {
            add(&cache.store());
        }
        folders
    }

    /// Looks into one folder (flat, two-tier store, three-tier store) or bundle.
    fn look_in(&self, folder: &Path, wanted: &Wanted<'_>, search: &mut Search) -> bool {
        if is_bundle(folder) && folder.is_file() {
            return self.look_in_bundle(folder, wanted, search);
        }
        let (name, id) = (wanted.name, wanted.identity.to_string());
        let prefix: String = name.chars().take(2).collect();
        if try_file(folder.join(name), wanted, search) {
            return true;
        }
        // Stores are case-insensitive where they come from, and this file system may not be.
        if let Some(path) =
            ignoring_case(folder, name).filter(|path| path.is_file() && *path != folder.join(name))
            && try_file(path, wanted, search)
        {
            return true;
        }
        [below(folder, &[name, &id]), below(folder, &[&prefix, name, &id])]
            .into_iter()
            .flatten()
            .any(|folder| self.look_in_store(&folder, wanted, search))
    }

    /// Looks into the folder of one identity in a store: the file, the packed file, a pointer to it.
    fn look_in_store(&self, folder: &Path, wanted: &Wanted<'_>, search: &mut Search) -> bool {
        let file = |name: &str| {
            let exact = folder.join(name);
            if exact.is_file() {
                Some(exact)
            } else {
                ignoring_case(folder, name).filter(|path| path.is_file())
            }
        };
        if let Some(path) = file(wanted.name) {
            return try_file(path, wanted, search);
        }
        if let Some(path) = packed_name(wanted.name).and_then(|packed| file(&packed)) {
            return match self.unpack(&path, wanted) {
                Ok(path) => try_file(path, wanted, search),
                Err(error) => {
                    search.unreadable.push((path, error));
                    false
                }
            };
        }
        // The user has named this store, so its pointers are followed.
        let pointer = file("file.ptr").and_then(|path| std::fs::read_to_string(path).ok());
        match pointer.as_deref().and_then(pointer_path) {
            Some(path) => try_file(PathBuf::from(path), wanted, search),
            None => {
                search.tried.push(folder.join(wanted.name));
                false
            }
        }
    }

    /// Looks into a bundle. What it holds is unpacked into the cache's store, once, or into a temporary file.
    fn look_in_bundle(&self, path: &Path, wanted: &Wanted<'_>, search: &mut Search) -> bool {
        let id = wanted.identity.to_string();
        let bundle = match self.open_bundle(path) {
            Ok(bundle) => bundle,
            Err(error) => {
                search.unreadable.push((path.to_path_buf(), error.to_string()));
                return false;
            }
        };
        let member = path.join(wanted.name).join(&id).join(wanted.name);
        if !bundle.holds(wanted.name, &id) {
            search.tried.push(member);
            return false;
        }
        let unpack = |file: &mut std::fs::File| bundle.unpack(wanted.name, &id, MAX_UNPACKED, file).map(drop);
        let place = self.cache.as_ref().map(|cache| self.place_in(&cache.store(), wanted));
        let kept = place.as_ref().and_then(|place| MappedFile::open(place).ok());
        let file = match (kept.filter(|file| fits(file, &wanted.identity).is_ok()), &place) {
            (Some(kept), _) => Ok(kept),
            (None, Some(place)) => write_atomically(place, unpack).and_then(|()| MappedFile::open(place)),
            (None, None) => tempfile::tempfile().and_then(|mut file| {
                unpack(&mut file)?;
                MappedFile::from_file(file)
            }),
        };
        match file {
            Ok(file) => accept(place.unwrap_or(member), file, wanted, search),
            Err(error) => {
                search.unreadable.push((member, error.to_string()));
                false
            }
        }
    }

    /// Opens a bundle, or gives the one that is open.
    fn open_bundle(&self, path: &Path) -> OpenBundle {
        let mut bundles = self.bundles.lock().unwrap_or_else(PoisonError::into_inner);
        let open = || Bundle::open(path).map(Arc::new).map_err(|error: io::Error| error.to_string().into());
        bundles.entry(path.to_path_buf()).or_insert_with(open).clone()
    }

    /// Where a two-tier store keeps a file.
    fn place_in(&self, store: &Path, wanted: &Wanted<'_>) -> PathBuf {
        store.join(wanted.name).join(wanted.identity.to_string()).join(wanted.name)
    }

    /// Unpacks a cabinet into the cache's store.
    fn unpack(&self, packed: &Path, wanted: &Wanted<'_>) -> Result<PathBuf, String> {
        let cache = self.cache.as_ref().ok_or("is packed, and there is no cache folder to unpack it to")?;
        let target = self.place_in(&cache.store(), wanted);
        let file = MappedFile::open(packed).map_err(|error| error.to_string())?;
        write_atomically(&target, |out| cab::expand(&file, MAX_UNPACKED, out).map(drop))
            .map_err(|error| error.to_string())?;
        Ok(target)
    }

    fn ask_servers(&self, wanted: &Wanted<'_>, search: &mut Search, on_bytes: OnBytes<'_>) {
        let Some(client) = &self.client else { return };
        let default = self.cache.as_ref().map(SymbolCache::store);
        let place = |store: &Store| match store {
            Store::Default => default.clone(),
            Store::Folder(folder) => Some(folder.clone()),
        };
        let mut nearest: Option<PathBuf> = None;
        let id = wanted.identity.to_string();
        let check = |data: &[u8]| match fits(data, &wanted.identity) {
            Ok(()) => Ok(()),
            Err(Unfit::OtherBuild(found)) => Err(format!("sent another build ({found} instead of {id})")),
            Err(Unfit::Unreadable(error)) => Err(format!("what came {error}")),
        };
        for element in &self.path.elements {
            match element {
                PathElement::Cache(store) => nearest = nearest.or_else(|| place(store)),
                PathElement::Server { stores, url: Some(url) } => {
                    let Some(store) = nearest.clone().or_else(|| stores.iter().find_map(place)) else {
                        search
                            .servers
                            .push(format!("{url}: there is no cache folder: name one with --symbol-cache"));
                        continue;
                    };
                    match client.fetch(url, wanted.name, &id, &store, &check, on_bytes) {
                        Ok(path) => {
                            if try_file(path, wanted, search) {
                                return;
                            }
                        }
                        Err(error) => search.servers.push(error.to_string()),
                    }
                }
                _ => {}
            }
        }
    }
}

impl std::fmt::Display for Identity {
    /// As symbol stores and servers write it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Identity::Pdb { guid, age } => f.write_str(&pdb_id(guid, *age)),
            // "SSQP Key Conventions", "Portable-Pdb-Signature".
            Identity::PortablePdb { guid } => f.write_str(&pdb_id(guid, u32::MAX)),
            Identity::Image { time_date_stamp, size_of_image } => {
                f.write_str(&image_id(*time_date_stamp, *size_of_image))
            }
        }
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

/// A path below a folder, if it is there, whatever the case of its parts.
fn below(folder: &Path, parts: &[&str]) -> Option<PathBuf> {
    parts.iter().try_fold(folder.to_path_buf(), |at, part| {
        let exact = at.join(part);
        if exact.exists() { Some(exact) } else { ignoring_case(&at, part) }
    })
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

/// Takes a file if it is the one that is wanted; else notes why not.
fn try_file(path: PathBuf, wanted: &Wanted<'_>, search: &mut Search) -> bool {
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
    accept(path, file, wanted, search)
}

/// Takes an open file if it is the one that is wanted; else notes why not.
fn accept(path: PathBuf, file: MappedFile, wanted: &Wanted<'_>, search: &mut Search) -> bool {
    match fits(&file, &wanted.identity) {
        Ok(()) => {
            search.found = Some(FoundFile { path, file });
            return true;
        }
        Err(Unfit::OtherBuild(found)) => search.mismatched.push((path, found)),
        Err(Unfit::Unreadable(error)) => search.unreadable.push((path, error)),
    }
    false
}

fn fits(data: &[u8], wanted: &Identity) -> Result<(), Unfit> {
    match wanted {
        Identity::Pdb { guid, age } => {
            let pdb = PdbFile::open(data).map_err(|error| Unfit::Unreadable(error.to_string()))?;
            let found = pdb.identity();
            let other = Identity::Pdb { guid: found.guid, age: found.age };
            if found.matches(guid, *age) { Ok(()) } else { Err(Unfit::OtherBuild(other)) }
        }
        Identity::PortablePdb { guid } => {
            if data.starts_with(b"Microsoft C/C++ MSF") {
                return Err(Unfit::Unreadable(
                    "is a Windows PDB: lines of managed code are read from portable ones only".to_owned(),
                ));
            }
            let pdb = PortablePdb::parse(data.to_vec());
            let found = pdb.map_err(|error| Unfit::Unreadable(error.to_string()))?.guid();
            let other = Identity::PortablePdb { guid: found };
            if found == *guid { Ok(()) } else { Err(Unfit::OtherBuild(other)) }
        }
        Identity::Image { .. } => {
            let (time_date_stamp, size_of_image) =
                image_identity(data).ok_or_else(|| Unfit::Unreadable("is not a PE image".to_owned()))?;
            let found = Identity::Image { time_date_stamp, size_of_image };
            if found == *wanted { Ok(()) } else { Err(Unfit::OtherBuild(found)) }
        }
    }
}

/// TimeDateStamp and SizeOfImage of an image file (PE format, "COFF file header", "Optional header").
pub fn image_identity(data: &[u8]) -> Option<(u32, u32)> {
    let headers = data.get(u32_at(data, 0x3c)? as usize..)?;
    (data.starts_with(b"MZ") && headers.starts_with(b"PE\0\0"))
        .then(|| Some((u32_at(headers, 8)?, u32_at(headers, 24 + 56)?)))?
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
