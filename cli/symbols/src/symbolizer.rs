//! Names the distinct addresses of a profile; each module is one task.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::cache::{CacheKey, SymbolCache};
use super::dwarf::image_index;
use super::identity::{Identity, ModuleKey};
use super::image::ImageFile;
use super::index::{IndexError, Origin, SymbolIndex, TextMap};
use super::names::Demangle;
use super::pdb::PdbFile;
use super::reason::{Reason, unreadable};
use super::resolved::{ModuleSymbols, SymbolWriter};
use super::store::{FoundFile, SymbolStore};
use super::trust::places::safe_file_name;
use stk_base::map::MappedFile;
use stk_base::model::{file_name, image_id, pdb_id};

/// Converts addresses to names, files and lines.
#[derive(Debug)]
pub struct Symbolizer {
    store: SymbolStore,
    demangle: Demangle,
    lookups: AtomicU64,
    /// Modules whose names come from the cache alone.
    cached: Mutex<BTreeSet<String>>,
}

impl Symbolizer {
    /// Searches for names in `store` and shows them in the style of `demangle`.
    pub fn new(store: SymbolStore, demangle: Demangle) -> Symbolizer {
        Symbolizer { store, demangle, lookups: AtomicU64::new(0), cached: Mutex::default() }
    }

    /// Number of addresses that were looked up in symbol files so far. This is the cost of
    /// symbolizing beside opening the files.
    pub fn lookups(&self) -> u64 {
        self.lookups.load(Ordering::Relaxed)
    }

    /// File names of the modules whose names so far came from the cache alone: their PDBs were not
    /// found.
    pub fn cached(&self) -> Vec<String> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// The style of the names.
    pub fn demangle(&self) -> Demangle {
        self.demangle
    }

    /// The places to search for symbols.
    pub fn store(&self) -> &SymbolStore {
        &self.store
    }

    /// Names the addresses of one module.
    pub fn resolve(&self, module: &ModuleKey<'_>, rvas: &[u32]) -> ModuleSymbols {
        let symbols = self.resolved(module, rvas);
        let name = file_name(module.path);
        if symbols.mangled != 0 {
            log::info!("{name}: {} mangled names are shown as they are", symbols.mangled);
        }
        match (&symbols.reason, &symbols.file) {
            (Some(reason), _) => log::info!("{name}: no symbols: {reason}"),
            (None, Some(file)) => log::info!("{name}: symbols from {}", file.display()),
            (None, None) => {}
        }
        symbols
    }

    fn resolved(&self, module: &ModuleKey<'_>, rvas: &[u32]) -> ModuleSymbols {
        // A PDB may be stripped, or made of publics alone, while the image has more of its own.
        let own = || {
            let ModuleKey { path, time_date_stamp, size_of_image, .. } = *module;
            let found = self.store.find_image_here(path, time_date_stamp, size_of_image)?;
            let (_, index) = self.image_symbols(module, &found, true, &mut None)?;
            (index.header().origin != Origin::Exports).then_some(index)
        };
        match self.index(module, true) {
            Ok((path, index)) => self.resolve_with(module, rvas, &path, &index, &own).unwrap_or_else(|_| {
                // The cached index was damaged and has been deleted, so this builds another.
                match self.index(module, false) {
                    Ok((path, index)) => self
                        .resolve_with(module, rvas, &path, &index, &own)
                        .unwrap_or_else(|error| self.nameless(module, rvas, unreadable(&path, &error))),
                    Err(reason) => self.nameless(module, rvas, reason),
                }
            }),
            Err(reason) => self.resolve_by_image(module, rvas, reason),
        }
    }

    /// Names addresses by the image file's own symbols, if there is no PDB.
    fn resolve_by_image(&self, module: &ModuleKey<'_>, rvas: &[u32], mut reason: Reason) -> ModuleSymbols {
        for from_cache in [true, false] {
            let mut better = None;
            let symbols = self
                .find_image(module)
                .and_then(|found| self.image_symbols(module, &found, from_cache, &mut better));
            reason = better.unwrap_or(reason);
            let Some((path, index)) = symbols else { break };
            // A PDB would have more names than the exports, so the reason why there is none is
            // kept.
            let certain = index.header().origin != Origin::Exports;
            if let Ok(mut resolved) = self.resolve_in(module, rvas, &path, &index) {
                resolved.reason = (!certain).then_some(reason);
                return resolved;
            }
        }
        self.nameless(module, rvas, reason)
    }

    fn find_image(&self, module: &ModuleKey<'_>) -> Option<FoundFile> {
        if module.size_of_image == 0 {
            return None;
        }
        self.store.find_image(module.path, module.time_date_stamp, module.size_of_image).found
    }

    /// The index of an image's own symbols, if it has any: in the image itself, or in the file that
    /// has its debug information. `reason` becomes what is known from the image about missing ones.
    fn image_symbols(
        &self,
        module: &ModuleKey<'_>,
        image: &FoundFile,
        from_cache: bool,
        reason: &mut Option<Reason>,
    ) -> Option<(PathBuf, SymbolIndex)> {
        let own = self.image_index(module, image, from_cache);
        if own.as_ref().is_some_and(|(_, index)| index.header().origin == Origin::Dwarf) {
            return own;
        }
        let facts = ImageFile::parse(&image.file).ok()?;
        let by_id = facts.code_view.and_then(|(guid, ..)| self.store.find_by_build_id(&guid, module.path));
        let debug = by_id.or_else(|| {
            let (name, crc) = facts.debug_file?;
            let search = self.store.find_debug_file(&name, crc, module.path);
            if search.found.is_none() {
                *reason = Some(search.reason(&name, Identity::DebugFile { crc }));
            }
            search.found
        });
        if facts.has_old_code_view {
            reason.get_or_insert(Reason::OldCodeView);
        }
        debug.and_then(|debug| self.image_index(module, &debug, from_cache)).or(own)
    }

    /// The index of the symbols in an image or in the file with its debug information.
    fn image_index(
        &self,
        module: &ModuleKey<'_>,
        found: &FoundFile,
        from_cache: bool,
    ) -> Option<(PathBuf, SymbolIndex)> {
        let id = image_id(module.time_date_stamp, module.size_of_image);
        let name = found.path.file_name().and_then(|name| name.to_str()).and_then(safe_file_name);
        let fingerprint = image_fingerprint(&found.file);
        let key = |name| CacheKey { name, id: &id, fingerprint };
        let cache = name.zip(self.store.cache());
        if let Some((name, cache)) = cache {
            if !from_cache {
                cache.remove(&key(name));
            } else if let Some(index) = cache.get(&key(name)) {
                return Some((found.path.clone(), index));
            }
        }
        let index = match image_index(&found.file) {
            Ok(index) => index?,
            Err(error) => {
                log::warn!("{}: {error}", found.path.display());
                return None;
            }
        };
        if let Some((name, cache)) = cache {
            keep(cache, &key(name), &index);
        }
        Some((found.path.clone(), index))
    }

    /// Names addresses by an open index.
    ///
    /// # Errors
    ///
    /// [`IndexError::Damaged`] if a part of the index that an address needs is damaged.
    pub fn resolve_in(
        &self,
        module: &ModuleKey<'_>,
        rvas: &[u32],
        path: &Path,
        index: &SymbolIndex,
    ) -> Result<ModuleSymbols, IndexError> {
        self.resolve_with(module, rvas, path, index, &|| None)
    }

    /// Like [`Symbolizer::resolve_in`]. Where the index has no name, or only a nearest one, that of
    /// the image's own index may be better.
    fn resolve_with(
        &self,
        module: &ModuleKey<'_>,
        rvas: &[u32],
        path: &Path,
        index: &SymbolIndex,
        own: &dyn Fn() -> Option<SymbolIndex>,
    ) -> Result<ModuleSymbols, IndexError> {
        self.lookups.fetch_add(rvas.len() as u64, Ordering::Relaxed);
        let mut writer = SymbolWriter::new(self.demangle, module);
        let mut known = TextMap::new(index);
        let mut weak = Vec::new();
        index.lookup_all(rvas, |n, hit| {
            weak.extend(writer.address(rvas[n], hit, index, &mut known).map(|name| (n, name)));
        })?;
        if !weak.is_empty()
            && let Some(own) = own()
        {
            let mut known = TextMap::new(&own);
            let weak_rvas: Vec<u32> = weak.iter().map(|&(n, _)| rvas[n]).collect();
            own.lookup_all(&weak_rvas, |at, hit| {
                writer.improve(weak[at].0, weak[at].1, weak_rvas[at], hit, &own, &mut known);
            })?;
        }
        Ok(writer.finish(
            Some(path.to_path_buf()),
            None,
            Some(Reason::NotCovered { path: path.to_path_buf() }),
        ))
    }

    fn nameless(&self, module: &ModuleKey<'_>, rvas: &[u32], reason: Reason) -> ModuleSymbols {
        let mut writer = SymbolWriter::new(self.demangle, module);
        rvas.iter().for_each(|&rva| writer.without_symbols(rva));
        writer.finish(None, Some(reason), None)
    }

    /// The symbols of a module, from the cache or read and added to it.
    ///
    /// # Errors
    ///
    /// Why there are none.
    pub fn index(&self, module: &ModuleKey<'_>, from_cache: bool) -> Result<(PathBuf, SymbolIndex), Reason> {
        let code_view = module.code_view.ok_or(match module.size_of_image {
            0 => Reason::NoIdentity,
            _ => Reason::no_code_view(module.path),
        })?;
        let name = String::from_utf8_lossy(code_view.pdb_name);
        let search = self.store.find_pdb(&name, &code_view.guid, code_view.age, module.path);
        let Some(found) = &search.found else {
            // The PDB is gone, but its index may be in the cache.
            let cached = from_cache.then(|| cached_index(&self.store, &name, &code_view.guid, code_view.age));
            let cached = cached.flatten().inspect(|_| {
                let mut modules = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
                modules.insert(file_name(module.path).to_owned());
            });
            let wanted = Identity::Pdb { guid: code_view.guid, age: code_view.age };
            return cached.ok_or_else(|| search.reason(&name, wanted));
        };
        self.pdb_index(&found.path, &found.file, from_cache).map(|index| (found.path.clone(), index))
    }

    /// The index of an open PDB, from the cache or built and added to it.
    pub fn pdb_index(&self, path: &Path, file: &MappedFile, from_cache: bool) -> Result<SymbolIndex, Reason> {
        pdb_index(&self.store, path, file, from_cache)
    }
}

/// The index of a PDB that is in the cache, though the PDB may be gone: its path, and itself.
pub fn cached_index(
    store: &SymbolStore,
    pdb_name: &str,
    guid: &[u8; 16],
    age: u32,
) -> Option<(PathBuf, SymbolIndex)> {
    let (name, cache) = safe_file_name(pdb_name).zip(store.cache())?;
    cache.get_any(name, &pdb_id(guid, age)).filter(|(_, index)| index.header().guid == *guid)
}

/// Like [`Symbolizer::pdb_index`], with the cache of `store`.
pub fn pdb_index(
    store: &SymbolStore,
    path: &Path,
    file: &MappedFile,
    from_cache: bool,
) -> Result<SymbolIndex, Reason> {
    let pdb = PdbFile::open(file).map_err(|error| unreadable(path, &error))?;
    if pdb.identity().fastlink {
        return Err(Reason::FastLink { path: path.to_path_buf() });
    }
    let id = pdb_id(&pdb.identity().guid, pdb.identity().age);
    let name = path.file_name().and_then(|name| name.to_str()).and_then(safe_file_name);
    let cache = name.zip(store.cache());
    let key = |name| CacheKey { name, id: &id, fingerprint: pdb.fingerprint() };
    if let Some((name, cache)) = cache {
        if !from_cache {
            cache.remove(&key(name));
        } else if let Some(index) = cache.get(&key(name)).filter(|i| i.header().guid == pdb.identity().guid) {
            return Ok(index);
        }
    }
    let index =
        pdb.index_letting_go(|| file.release(0..file.len())).map_err(|error| unreadable(path, &error))?;
    if let Some((name, cache)) = cache {
        keep(cache, &key(name), &index);
    }
    Ok(index)
}

/// Adds an index to the cache. If that fails, the index has to be built again later.
fn keep(cache: &SymbolCache, key: &CacheKey<'_>, index: &SymbolIndex) {
    if let Err(error) = cache.put(key, index) {
        log::warn!("{}: {error}: the symbol index is not kept", cache.root().display());
    }
}

/// Distinguishes copies of one image (stripped or not): a hash over the headers and the length.
fn image_fingerprint(data: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(&data[..data.len().min(4096)], data.len() as u64)
}
