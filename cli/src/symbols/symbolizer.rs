//! Names for the distinct addresses of a profile, a module a task.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;
use stk_schema::Arch;
use stk_schema::identity::CodeView;

use super::cache::{CacheKey, SymbolCache};
use super::dwarf::image_index;
use super::index::{Hit, IndexError, Origin, RecordKind, SymbolIndex, TextId, TextMap};
use super::names::{Demangle, demangle, undecorate_x86};
use super::pdb::PdbFile;
use super::store::{Identity, Search, SymbolStore, file_name, image_id, pdb_id, safe_file_name};
use crate::map::MappedFile;

/// Turns addresses into names, files and lines.
#[derive(Debug)]
pub struct Symbolizer {
    store: SymbolStore,
    demangle: Demangle,
    lookups: AtomicU64,
}

/// What is known of a module whose addresses are to be named.
#[derive(Clone, Copy, Debug)]
pub struct ModuleKey<'a> {
    /// Path as recorded (Windows syntax).
    pub path: &'a str,
    /// CodeView record, if the image has one.
    pub code_view: Option<CodeView<'a>>,
    /// TimeDateStamp of the image.
    pub time_date_stamp: u32,
    /// SizeOfImage of the image, in bytes.
    pub size_of_image: u32,
    /// Exported names by rva, sorted, from the trace.
    pub exports: Option<&'a [(u32, Box<str>)]>,
    /// Architecture.
    pub arch: Arch,
}

/// Where a name comes from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// A PDB.
    Pdb,
    /// DWARF or the COFF symbol table of the image.
    Dwarf,
    /// The nearest exported name at or below the address: not certain.
    Export,
    /// Module name and offset.
    None,
}

/// Why an address has no better name.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// The image does not say which PDB is its own.
    NoCodeView,
    /// No place holds a PDB of that name.
    PdbNotFound {
        /// The PDB's file name.
        name: String,
        /// GUID and age as symbol servers write them.
        id: String,
        /// How many places were looked into.
        tried: usize,
        /// What the servers said that were asked.
        servers: Vec<String>,
    },
    /// There is a PDB of that name, but of another build.
    PdbMismatch {
        /// Where it is.
        path: PathBuf,
        /// What it is.
        found: Identity,
        /// What the image wants.
        wanted: Identity,
    },
    /// The PDB, or the only one of that name, cannot be read.
    PdbUnreadable {
        /// Where it is.
        path: PathBuf,
        /// What is wrong with it.
        error: String,
    },
    /// The PDB refers to object files for its private symbols.
    FastLink {
        /// Where it is.
        path: PathBuf,
    },
    /// The symbols were read, but no record covers the address.
    NotCovered {
        /// Where the symbols are.
        path: PathBuf,
    },
}

/// One frame of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Location<'a> {
    /// Function as displayed: demangled; `name+0x12` for an export, `module.dll+0x1234` without any name.
    pub function: &'a str,
    /// The record's own name; empty without any.
    pub raw: &'a str,
    /// Source file, as the symbol file names it.
    pub file: Option<&'a str>,
    /// Line in `file`, from 1; none where no line row covers the address.
    pub line: Option<u32>,
    /// Whether the function is inlined into the next frame.
    pub inline: bool,
}

/// What was found for one address.
#[derive(Clone, Copy, Debug)]
pub struct Resolved<'a> {
    symbols: &'a ModuleSymbols,
    at: StoredAddress,
    /// Where the names come from.
    pub source: Source,
    /// Why there is no better name, if there is none.
    pub reason: Option<&'a Reason>,
    /// Bytes from the beginning of the outermost function, or from the export; the rva without any.
    pub displacement: u32,
}

/// The names of one module's addresses, in the order in which they were asked for.
#[derive(Debug)]
pub struct ModuleSymbols {
    /// The symbol file that was used.
    pub file: Option<PathBuf>,
    /// Why the module has no symbols, if it has none.
    pub reason: Option<Reason>,
    not_covered: Option<Reason>,
    texts: Vec<Box<str>>,
    frames: Vec<StoredFrame>,
    /// Further names of folded functions.
    aliases: Vec<u32>,
    addresses: Vec<StoredAddress>,
}

#[derive(Clone, Copy, Debug)]
struct StoredFrame {
    function: u32,
    raw: u32,
    file: Option<u32>,
    line: Option<u32>,
    inline: bool,
}

#[derive(Clone, Copy, Debug)]
struct StoredAddress {
    first: u32,
    count: u32,
    first_alias: u32,
    alias_count: u32,
    source: Source,
    displacement: u32,
}

impl Symbolizer {
    /// Names are looked for in `store` and shown in the style of `demangle`.
    pub fn new(store: SymbolStore, demangle: Demangle) -> Symbolizer {
        Symbolizer { store, demangle, lookups: AtomicU64::new(0) }
    }

    /// How many addresses were looked up in symbol files so far: what symbolizing costs beside opening the files.
    pub fn lookups(&self) -> u64 {
        self.lookups.load(Ordering::Relaxed)
    }

    /// Where symbols are looked for.
    pub fn store(&self) -> &SymbolStore {
        &self.store
    }

    /// Names the addresses of many modules, in parallel; results in the order of the modules. The rvas of a module
    /// are those to be looked up: of a caller, its return address − 1.
    pub fn resolve_all(&self, modules: &[(ModuleKey<'_>, &[u32])]) -> Vec<ModuleSymbols> {
        modules.par_iter().map(|(module, rvas)| self.resolve(module, rvas)).collect()
    }

    /// Names the addresses of one module.
    pub fn resolve(&self, module: &ModuleKey<'_>, rvas: &[u32]) -> ModuleSymbols {
        match self.index(module, true) {
            Ok((path, index)) => self.resolve_in(module, rvas, &path, &index).unwrap_or_else(|_| {
                // An index of the cache that is damaged inside: it has been thrown away, so this builds another.
                match self.index(module, false) {
                    Ok((path, index)) => self
                        .resolve_in(module, rvas, &path, &index)
                        .unwrap_or_else(|error| self.nameless(module, rvas, unreadable(&path, &error))),
                    Err(reason) => self.nameless(module, rvas, reason),
                }
            }),
            Err(reason) => self.resolve_by_image(module, rvas, reason),
        }
    }

    /// Names addresses by what the image file says of itself, where there is no PDB.
    fn resolve_by_image(&self, module: &ModuleKey<'_>, rvas: &[u32], reason: Reason) -> ModuleSymbols {
        for from_cache in [true, false] {
            let Some((path, index)) = self.image_symbols(module, from_cache) else { break };
            // A PDB would say more than exports do: the reason for its absence stays.
            let certain = index.header().origin != Origin::Exports;
            if let Ok(mut resolved) = self.resolve_in(module, rvas, &path, &index) {
                resolved.reason = (!certain).then_some(reason);
                return resolved;
            }
        }
        self.nameless(module, rvas, reason)
    }

    /// The index of an image's own symbols, if the image is at hand and has any.
    fn image_symbols(&self, module: &ModuleKey<'_>, from_cache: bool) -> Option<(PathBuf, SymbolIndex)> {
        if module.size_of_image == 0 {
            return None;
        }
        let search = self.store.find_image(module.path, module.time_date_stamp, module.size_of_image);
        let found = search.found?;
        let id = image_id(module.time_date_stamp, module.size_of_image);
        let name = found.path.file_name().and_then(|name| name.to_str()).and_then(safe_file_name);
        let fingerprint = image_fingerprint(&found.file);
        let key = |name| CacheKey { name, id: &id, fingerprint };
        let cache = name.zip(self.store.cache());
        if let Some((name, cache)) = cache {
            if !from_cache {
                cache.remove(&key(name));
            } else if let Some(index) = cache.get(&key(name)) {
                return Some((found.path, index));
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
        Some((found.path, index))
    }

    /// Names addresses by an index that is at hand.
    ///
    /// # Errors
    ///
    /// [`IndexError::Damaged`] if the index is damaged where an address needs it.
    pub fn resolve_in(
        &self,
        module: &ModuleKey<'_>,
        rvas: &[u32],
        path: &Path,
        index: &SymbolIndex,
    ) -> Result<ModuleSymbols, IndexError> {
        self.lookups.fetch_add(rvas.len() as u64, Ordering::Relaxed);
        let mut writer = Writer::new(self.demangle, module);
        let mut known = TextMap::new(index);
        index.lookup_all(rvas, |n, hit| writer.address(rvas[n], hit, index, &mut known))?;
        Ok(writer.finish(
            Some(path.to_path_buf()),
            None,
            Some(Reason::NotCovered { path: path.to_path_buf() }),
        ))
    }

    fn nameless(&self, module: &ModuleKey<'_>, rvas: &[u32], reason: Reason) -> ModuleSymbols {
        let mut writer = Writer::new(self.demangle, module);
        rvas.iter().for_each(|&rva| writer.without_symbols(rva));
        writer.finish(None, Some(reason), None)
    }

    /// The symbols of a module, from the cache or read and put there.
    ///
    /// # Errors
    ///
    /// Says why there are none.
    pub fn index(&self, module: &ModuleKey<'_>, from_cache: bool) -> Result<(PathBuf, SymbolIndex), Reason> {
        let code_view = module.code_view.ok_or(Reason::NoCodeView)?;
        let name = String::from_utf8_lossy(code_view.pdb_name);
        let search = self.store.find_pdb(&name, &code_view.guid, code_view.age, module.path);
        let Some(found) = &search.found else {
            // The PDB is gone, but what it said may be known.
            let id = pdb_id(&code_view.guid, code_view.age);
            let cached = safe_file_name(&name)
                .zip(self.store.cache())
                .filter(|_| from_cache)
                .and_then(|(name, cache)| cache.get_any(name, &id));
            let wanted = Identity::Pdb { guid: code_view.guid, age: code_view.age };
            return cached.ok_or_else(|| search.reason(&name, wanted));
        };
        self.pdb_index(&found.path, &found.file, from_cache).map(|index| (found.path.clone(), index))
    }

    /// The index of a PDB that is at hand, from the cache or built and put there.
    ///
    /// # Errors
    ///
    /// Says why the PDB cannot be used.
    pub fn pdb_index(&self, path: &Path, file: &MappedFile, from_cache: bool) -> Result<SymbolIndex, Reason> {
        pdb_index(&self.store, path, file, from_cache)
    }
}

/// As [`Symbolizer::pdb_index`], with the cache of `store`.
///
/// # Errors
///
/// Says why the PDB cannot be used.
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
    let index = pdb.index_after(|| file.release(0..file.len())).map_err(|error| unreadable(path, &error))?;
    if let Some((name, cache)) = cache {
        keep(cache, &key(name), &index);
    }
    Ok(index)
}

/// Puts an index into the cache. That it cannot be kept costs time later, nothing else.
fn keep(cache: &SymbolCache, key: &CacheKey<'_>, index: &SymbolIndex) {
    if let Err(error) = cache.put(key, index) {
        log::warn!("{}: {error}: the symbol index is not kept", cache.root().display());
    }
}

/// Tells copies of one image apart (stripped or not): a hash over the headers and the length.
fn image_fingerprint(data: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(&data[..data.len().min(4096)], data.len() as u64)
}

fn unreadable(path: &Path, error: &dyn fmt::Display) -> Reason {
    Reason::PdbUnreadable { path: path.to_path_buf(), error: error.to_string() }
}

impl Search {
    /// The most telling reason why nothing was found.
    pub fn reason(&self, name: &str, wanted: Identity) -> Reason {
        if let Some((path, found)) = self.mismatched.first() {
            return Reason::PdbMismatch { path: path.clone(), found: *found, wanted };
        }
        if let Some((path, error)) = self.unreadable.first() {
            return Reason::PdbUnreadable { path: path.clone(), error: error.clone() };
        }
        Reason::PdbNotFound {
            name: file_name(name).to_owned(),
            id: wanted.to_string(),
            tried: self.tried.len(),
            servers: self.servers.clone(),
        }
    }
}

/// Collects the results of one module.
struct Writer<'a> {
    demangle: Demangle,
    module: &'a ModuleKey<'a>,
    name: &'a str,
    texts: Vec<Box<str>>,
    ids: HashMap<Box<str>, u32>,
    /// Demangled name of each raw one.
    functions: HashMap<u32, u32>,
    frames: Vec<StoredFrame>,
    aliases: Vec<u32>,
    addresses: Vec<StoredAddress>,
}

impl<'a> Writer<'a> {
    fn new(demangle: Demangle, module: &'a ModuleKey<'a>) -> Writer<'a> {
        let name = match file_name(module.path) {
            "" => "unknown module",
            name => name,
        };
        Writer {
            demangle,
            module,
            name,
            texts: Vec::new(),
            ids: HashMap::new(),
            functions: HashMap::new(),
            frames: Vec::new(),
            aliases: Vec::new(),
            addresses: Vec::new(),
        }
    }

    /// Adds what the index has found for an address; `known` holds the numbers of those of its strings that were met.
    fn address(&mut self, rva: u32, hit: Option<Hit<'_>>, index: &SymbolIndex, known: &mut TextMap<u32>) {
        let Some(hit) = hit else { return self.without_symbols(rva) };
        let range = hit.range();
        if let Some(range) = range.filter(|range| range.kind == RecordKind::Export) {
            return self.by_export(rva, range.start, range.name);
        }
        let decorated = range.is_some_and(|range| range.kind >= RecordKind::Public);
        let first = self.frames.len() as u32;
        for frame in hit.raw_frames() {
            let mut text = |writer: &mut Self, id: TextId| {
                known.get_or_insert_with(id, || writer.text(index.text(id).unwrap_or_default()))
            };
            let raw = text(self, frame.name);
            let function = self.function(raw, decorated && !frame.inline);
            let file = frame.file.map(|file| text(self, file));
            self.frames.push(StoredFrame { function, raw, file, line: frame.line, inline: frame.inline });
        }
        let first_alias = self.aliases.len();
        for (name, kind) in range.map_or_else(Vec::new, |range| range.aliases(index)) {
            let raw = self.text(name);
            let function = self.function(raw, kind >= RecordKind::Public);
            // A public repeats the name of its procedure, decorated; shown, it may differ from it in spaces.
            let text = |id: u32| self.texts[id as usize].bytes().filter(|&byte| byte != b' ');
            let outermost = self.frames.last().map(|frame| frame.function);
            let mut known = outermost.iter().chain(&self.aliases[first_alias..]);
            if !known.any(|&other| text(other).eq(text(function))) {
                self.aliases.push(function);
            }
        }
        let source = if hit.origin() == Origin::Pdb { Source::Pdb } else { Source::Dwarf };
        self.end(first, source, range.map_or(0, |range| hit.linked_rva().wrapping_sub(range.start)));
    }

    /// Adds an address that no symbols cover: by the nearest export, else by its offset in the module.
    fn without_symbols(&mut self, rva: u32) {
        if let Some((start, name)) = self.export(rva) {
            return self.by_export(rva, start, name);
        }
        let first = self.frames.len() as u32;
        let function = self.text(&format!("{}+{rva:#x}", self.name));
        let raw = self.text("");
        self.frames.push(StoredFrame { function, raw, file: None, line: None, inline: false });
        self.end(first, Source::None, rva);
    }

    fn by_export(&mut self, rva: u32, start: u32, name: &str) {
        let first = self.frames.len() as u32;
        let raw = self.text(name);
        let function = self.function(raw, true);
        let text = format!("{}+{:#x}", self.texts[function as usize], rva - start);
        let function = if rva == start { function } else { self.text(&text) };
        self.frames.push(StoredFrame { function, raw, file: None, line: None, inline: false });
        self.end(first, Source::Export, rva - start);
    }

    fn end(&mut self, first: u32, source: Source, displacement: u32) {
        let count = self.frames.len() as u32 - first;
        let first_alias = self.addresses.last().map_or(0, |last| last.first_alias + last.alias_count);
        let alias_count = self.aliases.len() as u32 - first_alias;
        self.addresses.push(StoredAddress { first, count, first_alias, alias_count, source, displacement });
    }

    /// The nearest export at or below an address.
    fn export(&self, rva: u32) -> Option<(u32, &'a str)> {
        let exports = self.module.exports?;
        let after = exports.partition_point(|export| export.0 <= rva);
        let start = exports[..after].last()?.0;
        // Of several names for one address the first in the alphabet, so that all traces agree.
        let same = exports[..after].iter().rev().take_while(|export| export.0 == start);
        same.map(|export| &*export.1).filter(|name| !name.is_empty()).min().map(|name| (start, name))
    }

    fn function(&mut self, raw: u32, decorated: bool) -> u32 {
        if let Some(&function) = self.functions.get(&raw) {
            return function;
        }
        let text = std::mem::take(&mut self.texts[raw as usize]);
        let mut shown = demangle(&text, self.demangle);
        if decorated && self.module.arch == Arch::X86 && self.demangle != Demangle::None && *shown == *text {
            shown = undecorate_x86(&text).into();
        }
        let function = if *shown == *text { raw } else { self.text(&shown) };
        drop(shown);
        self.texts[raw as usize] = text;
        self.functions.insert(raw, function);
        function
    }

    fn text(&mut self, text: &str) -> u32 {
        if let Some(&id) = self.ids.get(text) {
            return id;
        }
        let id = self.texts.len() as u32;
        self.texts.push(text.into());
        self.ids.insert(text.into(), id);
        id
    }

    fn finish(
        self,
        file: Option<PathBuf>,
        reason: Option<Reason>,
        not_covered: Option<Reason>,
    ) -> ModuleSymbols {
        let Writer { texts, frames, aliases, addresses, .. } = self;
        ModuleSymbols { file, reason, not_covered, texts, frames, aliases, addresses }
    }
}

impl ModuleSymbols {
    /// How many addresses were asked for.
    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Whether no address was asked for.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// What was found for the address with this number in the list that was asked for.
    pub fn get(&self, n: usize) -> Option<Resolved<'_>> {
        let at = *self.addresses.get(n)?;
        let StoredAddress { source, displacement, .. } = at;
        let reason = match source {
            Source::Pdb | Source::Dwarf => None,
            Source::Export | Source::None => self.reason.as_ref().or(self.not_covered.as_ref()),
        };
        Some(Resolved { symbols: self, at, source, reason, displacement })
    }
}

impl<'a> Resolved<'a> {
    /// The frames, innermost first; there is always one.
    pub fn frames(&self) -> impl ExactSizeIterator<Item = Location<'a>> + use<'a> {
        let symbols = self.symbols;
        let text = |id: u32| &*symbols.texts[id as usize];
        let StoredAddress { first, count, .. } = self.at;
        symbols.frames[first as usize..(first + count) as usize].iter().map(move |frame| Location {
            function: text(frame.function),
            raw: text(frame.raw),
            file: frame.file.map(text),
            line: frame.line,
            inline: frame.inline,
        })
    }

    /// Other functions that the linker folded into the outermost one, as displayed: which of them ran cannot be told.
    pub fn aliases(&self) -> impl ExactSizeIterator<Item = &'a str> + use<'a> {
        let StoredAddress { first_alias, alias_count, .. } = self.at;
        let symbols = self.symbols;
        let aliases = &symbols.aliases[first_alias as usize..(first_alias + alias_count) as usize];
        aliases.iter().map(move |&id| &*symbols.texts[id as usize])
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NoCodeView => {
                write!(f, "the image names no PDB (no CodeView record): build it with debug information")
            }
            Reason::PdbNotFound { name, id, tried, servers } => {
                write!(f, "{name} ({id}) is in none of {tried} places")?;
                servers.iter().try_for_each(|server| write!(f, "; {server}"))?;
                write!(f, ": put it beside the trace, or name its folder or server with -y")
            }
            Reason::PdbMismatch { path, found, wanted } => write!(
                f,
                "{}: identity {found} does not match the image's {wanted}: get the PDB of that very build",
                path.display(),
            ),
            Reason::PdbUnreadable { path, error } => {
                write!(f, "{}: {error}: replace it by an intact copy", path.display())
            }
            Reason::FastLink { path } => write!(
                f,
                "{}: was linked with /DEBUG:FASTLINK and refers to object files: link with /DEBUG:FULL, or run mspdbcmf on it",
                path.display()
            ),
            Reason::NotCovered { path } => {
                write!(f, "{}: no record covers the address: the PDB may be a stripped one", path.display())
            }
        }
    }
}
