//! Searches for symbol files: in folders, symbol stores, and near the trace and the image.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::bundle::{Bundle, is_bundle};
use super::cab;
use super::cache::{SymbolCache, write_atomically};
use super::identity::{Identity, IdentityMismatch, WantedFile, fits};
use super::path::{PathElement, Store, SymbolPath};
use super::portable_pdb::assembly_debug;
use super::server::{Client, ClientOptions, OnBytes, WrongFile, packed_name};
use super::trust::places::{first_tier, image_folder, safe_file_name};
use super::trust::pointer;
use super::trust::search_dir::{OpenError, SearchDir, Trust};
use stk_base::map::MappedFile;
use stk_base::model::file_name;

/// The places to search for symbols.
#[derive(Clone, Debug, Default)]
pub struct SymbolStore {
    path: SymbolPath,
    folders: Vec<PathBuf>,
    /// Whether to search an image's recorded folder.
    beside_images: bool,
    /// Default places that no search uses, and why.
    passed_over: Vec<String>,
    cache: Option<SymbolCache>,
    client: Option<Client>,
    /// Opened bundles, or why they cannot be opened.
    bundles: Arc<Mutex<HashMap<PathBuf, OpenBundle>>>,
}

/// A bundle, or what is wrong with it.
type OpenBundle = Result<Arc<Bundle>, Arc<io::Error>>;

/// A common folder for symbols on Windows. On a stock system everybody may create and fill it.
#[cfg(windows)]
const COMMON: &str = r"C:\symbols";

/// Limit for a file that is unpacked from a cabinet or a bundle, in bytes.
const MAX_UNPACKED: u64 = u32::MAX as u64;

/// The result of the search for one file.
#[derive(Debug, Default)]
pub struct Search {
    /// The file, if one of the right identity was found.
    pub found: Option<FoundFile>,
    /// Places that have no such file.
    pub tried: Vec<PathBuf>,
    /// Files of the right name but of another build, with their identities. Never used.
    pub mismatched: Vec<(PathBuf, Identity)>,
    /// Files of the right name that cannot be read, and why.
    pub unreadable: Vec<(PathBuf, String)>,
    /// Places that were not searched and pointers that were not followed, why, and what to do.
    pub skipped: Vec<String>,
    /// The errors of the servers that have no such file.
    pub servers: Vec<String>,
    /// Whether a server could not state whether it has the file, or sent a file that was refused.
    pub server_failed: bool,
}

/// A file of the right identity.
#[derive(Debug)]
pub struct FoundFile {
    pub path: PathBuf,
    pub file: MappedFile,
}

impl SymbolStore {
    /// A store that searches the symbol path, then the folders of [`SymbolStore::add_folder`].
    /// Contacts no server.
    pub fn new(path: SymbolPath) -> SymbolStore {
        SymbolStore { path, ..SymbolStore::default() }
    }

    /// The usual places: the path, the current folder, the folder of each trace, `C:\symbols` on
    /// Windows if no other user may write there, an image's folder. All but the path are used only
    /// if they lie on this machine.
    pub fn with_defaults<'t>(path: SymbolPath, traces: impl IntoIterator<Item = &'t Path>) -> SymbolStore {
        let mut store = SymbolStore { beside_images: true, ..SymbolStore::new(path) };
        store.add_folder(PathBuf::from("."));
        for trace in traces {
            if let Some(folder) = trace.parent().filter(|folder| !folder.as_os_str().is_empty()) {
                store.add_folder(folder.to_path_buf());
            }
        }
        #[cfg(windows)]
        store.add_common(Path::new(COMMON), super::trust::owner::others_may_write);
        store
    }

    /// Adds a folder of this machine where everybody keeps symbols, unless others may write there.
    /// No query before its path is known to stay on this machine.
    #[cfg(any(windows, test))]
    fn add_common(&mut self, folder: &Path, others_may_write: impl Fn(&Path) -> Option<String>) {
        let place = SearchDir { folder: folder.to_path_buf(), trust: Trust::Unnamed };
        match place.is_there() {
            Ok(false) => {}
            Ok(true) => match others_may_write(folder) {
                None => self.add_folder(place.folder),
                Some(why) => {
                    let shown = folder.display();
                    let why = format!("{shown} is not looked into, because {why}: name it with -y");
                    self.passed_over.push(why);
                }
            },
            Err(elsewhere) => self.passed_over.push(elsewhere.to_string()),
        }
    }

    /// Adds a folder that is looked into after the symbol path.
    pub fn add_folder(&mut self, folder: PathBuf) {
        if !self.folders.contains(&folder) {
            self.folders.push(folder);
        }
    }

    /// Stores indexes, unpacked files and downloads in this cache.
    pub fn set_cache(&mut self, cache: SymbolCache) {
        self.cache = Some(cache);
    }

    /// Allows requests to the servers in the symbol path.
    pub fn go_online(&mut self, options: ClientOptions) {
        let missing = self.cache.as_ref().map(SymbolCache::missing);
        if self.path.urls().next().is_some() {
            self.client = Some(Client::new(options, missing));
        }
    }

    /// Servers that redirected, and the servers that they redirected to (scheme, host and port).
    pub fn redirects(&self) -> Vec<(String, String)> {
        self.client.as_ref().map(Client::redirects).unwrap_or_default()
    }

    /// The parsed symbol path.
    pub fn path(&self) -> &SymbolPath {
        &self.path
    }

    /// The cache, if there is one.
    pub fn cache(&self) -> Option<&SymbolCache> {
        self.cache.as_ref()
    }

    /// Searches for the PDB of an image. `pdb_name` is the name in the image's CodeView record (any
    /// path). `image_path` is the image's recorded path (Windows syntax).
    pub fn find_pdb(&self, pdb_name: &str, guid: &[u8; 16], age: u32, image_path: &str) -> Search {
        self.find(file_name(pdb_name), Identity::Pdb { guid: *guid, age }, image_path, &|_, _, _| {})
    }

    /// Searches for the portable PDB of a managed assembly. `assembly_path` is the assembly's
    /// recorded path.
    pub fn find_portable_pdb(&self, pdb_name: &str, guid: &[u8; 16], assembly_path: &str) -> Search {
        let identity = Identity::PortablePdb { guid: *guid };
        self.find(file_name(pdb_name), identity, assembly_path, &|_, _, _| {})
    }

    /// Searches this machine for a managed assembly, by the GUID of its PDB: its file name in every
    /// folder, and its recorded path.
    pub fn find_assembly(&self, assembly_path: &str, guid: &[u8; 16]) -> Option<FoundFile> {
        let name = safe_file_name(assembly_path)?;
        self.all_places(assembly_path).into_iter().find_map(|place| {
            let path = place.file(&place.folder, name)?;
            let file = place.open(&path).ok()?;
            let debug = assembly_debug(&file)?;
            (debug.guid == Some(*guid)).then_some(FoundFile { path, file })
        })
    }

    /// Searches for an image file: in the same places, and at its recorded path.
    pub fn find_image(&self, image_path: &str, time_date_stamp: u32, size_of_image: u32) -> Search {
        let identity = Identity::Image { time_date_stamp, size_of_image };
        self.find(file_name(image_path), identity, image_path, &|_, _, _| {})
    }

    /// Searches for an image file on this machine only. Asks no server.
    pub fn find_image_here(
        &self,
        image_path: &str,
        time_date_stamp: u32,
        size_of_image: u32,
    ) -> Option<FoundFile> {
        let identity = Identity::Image { time_date_stamp, size_of_image };
        self.find_here(file_name(image_path), identity, image_path).found
    }

    /// Searches this machine for the file with an image's debug information: for the one that the
    /// image names, also in the folders `.debug`.
    pub fn find_debug_file(&self, name: &str, crc: u32, image_path: &str) -> Search {
        let identity = Identity::DebugFile { crc };
        let mut search = self.find_here(name, identity, image_path);
        let Some(name) = safe_file_name(name).filter(|_| search.found.is_none()) else { return search };
        let wanted = WantedFile { name, identity };
        self.all_places(image_path).iter().any(|place| {
            let folder = place.below(&[".debug"]);
            folder.is_some_and(|folder| try_file(place, folder.join(name), &wanted, &mut search))
        });
        search
    }

    /// Searches the folders `.build-id` of this machine for the file with an image's debug
    /// information.
    pub fn find_by_build_id(&self, guid: &[u8; 16], image_path: &str) -> Option<FoundFile> {
        let identity = Identity::BuildId { guid: *guid };
        let id = identity.to_string();
        let name = format!("{}.debug", id.get(2..)?);
        let wanted = WantedFile { name: &name, identity };
        let mut search = Search::default();
        self.all_places(image_path).iter().find(|place| {
            let folder = place.below(&[".build-id", &id[..2]]);
            folder.is_some_and(|folder| try_file(place, folder.join(&name), &wanted, &mut search))
        })?;
        search.found
    }

    /// Searches for a file: first in every place on this machine, then on the servers, in the order
    /// of the path.
    pub fn find(&self, name: &str, identity: Identity, image_path: &str, on_bytes: OnBytes<'_>) -> Search {
        let mut search = self.find_here(name, identity, image_path);
        if let Some(name) = safe_file_name(name).filter(|_| search.found.is_none()) {
            self.ask_servers(&WantedFile { name, identity }, &mut search, on_bytes);
        }
        search
    }

    /// Searches every place on this machine.
    fn find_here(&self, name: &str, identity: Identity, image_path: &str) -> Search {
        let mut search = Search { skipped: self.passed_over.clone(), ..Search::default() };
        match safe_file_name(name) {
            Some(name) => {
                let wanted = WantedFile { name, identity };
                self.all_places(image_path).iter().any(|place| self.look_in(place, &wanted, &mut search));
            }
            None => search.unreadable.push((PathBuf::from(name), "is no usable file name".to_owned())),
        }
        search
    }

    /// Every folder to search, in order: path, defaults, the image's own, the cache.
    fn all_places(&self, image_path: &str) -> Vec<SearchDir> {
        let mut places: Vec<SearchDir> = Vec::new();
        let mut known = HashSet::new();
        let mut add = |folder: &Path, trust: Trust| {
            if known.insert(folder.to_path_buf()) {
                places.push(SearchDir { folder: folder.to_path_buf(), trust });
            }
        };
        self.path.folders().for_each(|folder| add(folder, Trust::Named));
        self.folders.iter().for_each(|folder| add(folder, Trust::Unnamed));
        if let Some(folder) = image_folder(image_path).filter(|_| self.beside_images) {
            add(&folder, Trust::Unnamed);
        }
        if let Some(cache) = &self.cache {
            add(&cache.store(), Trust::Cache);
        }
        places
    }

    /// Searches one folder (flat, two-tier store, three-tier store) or bundle.
    fn look_in(&self, place: &SearchDir, wanted: &WantedFile<'_>, search: &mut Search) -> bool {
        if place.trust == Trust::Named && is_bundle(&place.folder) && place.folder.is_file() {
            return self.look_in_bundle(&place.folder, wanted, search);
        }
        let here = match place.is_there() {
            Ok(here) => here,
            Err(elsewhere) => {
                search.skipped.push(elsewhere.to_string());
                return false;
            }
        };
        // An image's folder that does not exist is not reported.
        if !here && !self.folders.contains(&place.folder) && place.trust == Trust::Unnamed {
            return false;
        }
        let (name, id) = (wanted.name, wanted.identity.to_string());
        // Stores are made for case-insensitive file systems, but this one may be case-sensitive.
        let exact = place.folder.join(name);
        if try_file(place, exact.clone(), wanted, search) {
            return true;
        }
        let other = place.ignoring_case(&place.folder, name).filter(|path| *path != exact);
        if other.is_some_and(|path| place.is_file(&path) && try_file(place, path, wanted, search)) {
            return true;
        }
        search.skipped.extend(place.lacks());
        let tiers =
            [place.below(&[name, &id]), first_tier(name).and_then(|tier| place.below(&[tier, name, &id]))];
        tiers.into_iter().flatten().any(|folder| self.look_in_store(place, &folder, wanted, search))
    }

    /// Searches the folder of one identity in a store: for the file, the packed file, or a pointer
    /// to it.
    fn look_in_store(
        &self,
        place: &SearchDir,
        folder: &Path,
        wanted: &WantedFile<'_>,
        search: &mut Search,
    ) -> bool {
        if let Some(path) = place.file(folder, wanted.name) {
            return try_file(place, path, wanted, search);
        }
        if let Some(path) = packed_name(wanted.name).and_then(|packed| place.file(folder, &packed)) {
            return match self.unpack(place, &path, wanted) {
                Ok(path) => try_file(&SearchDir::cache(), path, wanted, search),
                Err(unfit) => note(path, unfit, search),
            };
        }
        let Some(pointer) = place.file(folder, "file.ptr") else {
            search.tried.push(folder.join(wanted.name));
            return false;
        };
        match pointer::target(place, &pointer, &self.path) {
            Ok(Some(target)) => try_file(&SearchDir::pointed_at(), target, wanted, search),
            Ok(None) => {
                search.tried.push(folder.join(wanted.name));
                false
            }
            Err(refusal) => {
                search.skipped.push(refusal.to_string());
                false
            }
        }
    }

    /// Searches a bundle. A file that it has is unpacked once into the cache's store, or into a
    /// temporary file.
    fn look_in_bundle(&self, path: &Path, wanted: &WantedFile<'_>, search: &mut Search) -> bool {
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
        let unpack = |file: &mut File| bundle.unpack(wanted.name, &id, MAX_UNPACKED, file).map(drop);
        let place = self.cache.as_ref().map(|cache| self.place_in(&cache.store(), wanted));
        let kept = place.as_ref().and_then(|place| MappedFile::open_plain(place).ok());
        let file = match (kept.filter(|file| fits(file, &wanted.identity).is_ok()), &place) {
            (Some(kept), _) => Ok(kept),
            (None, Some(place)) => keep(place, wanted, unpack).and_then(|()| {
                MappedFile::open_plain(place).map_err(|error| IdentityMismatch::Unreadable(error.to_string()))
            }),
            (None, None) => {
                temporary(unpack).map_err(|error| IdentityMismatch::Unreadable(error.to_string()))
            }
        };
        match file {
            Ok(file) => accept(place.unwrap_or(member), file, wanted, search),
            Err(unfit) => note(member, unfit, search),
        }
    }

    /// Returns a bundle, which is opened if it is not open yet.
    fn open_bundle(&self, path: &Path) -> OpenBundle {
        let mut bundles = self.bundles.lock().unwrap_or_else(PoisonError::into_inner);
        let open = || Bundle::open(path).map(Arc::new).map_err(Arc::new);
        bundles.entry(path.to_path_buf()).or_insert_with(open).clone()
    }

    /// The path of a file in a two-tier store.
    fn place_in(&self, store: &Path, wanted: &WantedFile<'_>) -> PathBuf {
        store.join(wanted.name).join(wanted.identity.to_string()).join(wanted.name)
    }

    /// Unpacks a cabinet into the cache's store, if it contains the wanted file.
    fn unpack(
        &self,
        place: &SearchDir,
        packed: &Path,
        wanted: &WantedFile<'_>,
    ) -> Result<PathBuf, IdentityMismatch> {
        let none = "is packed, and there is no cache folder to unpack it to";
        let cache = self.cache.as_ref().ok_or_else(|| IdentityMismatch::Unreadable(none.to_owned()))?;
        let target = self.place_in(&cache.store(), wanted);
        let file = place.open(packed).map_err(|error| IdentityMismatch::Unreadable(error.to_string()))?;
        keep(&target, wanted, |out| cab::expand(&file, MAX_UNPACKED, out).map(drop))?;
        Ok(target)
    }

    fn ask_servers(&self, wanted: &WantedFile<'_>, search: &mut Search, on_bytes: OnBytes<'_>) {
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
            Err(IdentityMismatch::OtherBuild(found)) => {
                Err(WrongFile::OtherBuild { found, wanted: wanted.identity })
            }
            Err(IdentityMismatch::Unreadable(error)) => Err(WrongFile::Unreadable(error)),
        };
        for element in &self.path.elements {
            match element {
                PathElement::Cache(store) => nearest = nearest.or_else(|| place(store)),
                PathElement::Server { stores, url: Some(url) } => {
                    let Some(store) = nearest.clone().or_else(|| stores.iter().find_map(place)) else {
                        search.server_failed = true;
                        search
                            .servers
                            .push(format!("{url}: there is no cache folder: name one with --symbol-cache"));
                        continue;
                    };
                    match client.fetch(url, wanted.name, &id, &store, &check, on_bytes) {
                        Ok(path) => {
                            if try_file(&SearchDir::cache(), path, wanted, search) {
                                return;
                            }
                        }
                        Err(error) => {
                            search.server_failed |= !error.is_missing();
                            search.servers.push(error.to_string());
                        }
                    }
                }
                _ => {}
            }
        }
    }
}

/// Writes a file to its path in a store. It gets that name only if it has the wanted identity.
fn keep(
    place: &Path,
    wanted: &WantedFile<'_>,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> Result<(), IdentityMismatch> {
    let mut unfit = None;
    let written = write_atomically(place, |out| {
        write(out)?;
        let written = MappedFile::from_file(out.try_clone()?)?;
        fits(&written, &wanted.identity).map_err(|why| {
            unfit = Some(why);
            io::Error::other("is another file")
        })
    });
    if written.is_err() {
        // Remove the folders of the file that was not stored.
        let folders = place.ancestors().skip(1).take(2);
        folders.for_each(|folder| drop(std::fs::remove_dir(folder)));
    }
    written.map_err(|error| unfit.unwrap_or_else(|| IdentityMismatch::Unreadable(error.to_string())))
}

/// A file without a name, which is deleted when it is closed.
fn temporary(write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<MappedFile> {
    let mut file = tempfile::tempfile()?;
    write(&mut file)?;
    MappedFile::from_file(file)
}

/// Takes a file if it is the wanted one. Otherwise notes why not, and deletes it if it is in the
/// cache.
fn try_file(place: &SearchDir, path: PathBuf, wanted: &WantedFile<'_>, search: &mut Search) -> bool {
    let file = match place.open(&path) {
        Ok(file) => file,
        Err(OpenError::Io(error)) if error.kind() == std::io::ErrorKind::NotFound => {
            search.tried.push(path);
            return false;
        }
        Err(OpenError::Io(error)) => {
            search.unreadable.push((path, error.to_string()));
            return false;
        }
        Err(OpenError::Elsewhere(why)) => {
            search.skipped.push(why.to_string());
            return false;
        }
    };
    let taken = accept(path.clone(), file, wanted, search);
    if !taken && place.trust == Trust::Cache {
        #[expect(clippy::disallowed_methods, reason = "nobody else writes to the cache")]
        let _ = std::fs::remove_file(path);
    }
    taken
}

/// Takes an open file if it is the wanted one. Otherwise notes why not.
fn accept(path: PathBuf, file: MappedFile, wanted: &WantedFile<'_>, search: &mut Search) -> bool {
    match fits(&file, &wanted.identity) {
        Ok(()) => {
            search.found = Some(FoundFile { path, file });
            true
        }
        Err(unfit) => note(path, unfit, search),
    }
}

/// Notes why a file is not the wanted one.
fn note(path: PathBuf, unfit: IdentityMismatch, search: &mut Search) -> bool {
    match unfit {
        IdentityMismatch::OtherBuild(found) => search.mismatched.push((path, found)),
        IdentityMismatch::Unreadable(error) => search.unreadable.push((path, error)),
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_common_folder_elsewhere_gets_no_query() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = SymbolStore::default();
        store.add_common(folder.path(), |_| None);
        assert_eq!(store.folders, [folder.path()]);
        let mut store = SymbolStore::default();
        store.add_common(folder.path(), |_| Some("others may write there".to_owned()));
        assert!(store.folders.is_empty() && store.passed_over[0].contains("others may write there"));
        store.add_common(&folder.path().join("none"), |_| panic!("it is not there"));
        assert_eq!(store.passed_over.len(), 1);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_common_folder_behind_a_link_off_the_disks_gets_no_query() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("symbols");
        std::os::unix::fs::symlink("/proc/self", &link).unwrap();
        let mut store = SymbolStore::default();
        store.add_common(&link, |_| panic!("it is not on this machine"));
        assert!(store.folders.is_empty());
        assert!(store.passed_over[0].contains("passed over"), "{:?}", store.passed_over);
    }
}
