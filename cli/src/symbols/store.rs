//! Where symbol files are found: folders, symbol stores, the places near the trace and the image.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::bundle::{Bundle, is_bundle};
use super::cab;
use super::cache::{SymbolCache, write_atomically};
use super::identity::{Identity, Unfit, Wanted, fits};
use super::path::{PathElement, Store, SymbolPath};
use super::places::{below, file_name, ignoring_case, image_folder, safe_file_name};
use super::server::{Client, ClientOptions, OnBytes, packed_name, pointer_path};
use crate::map::MappedFile;
use crate::runtimes::dotnet::portable_pdb::assembly_debug;

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
