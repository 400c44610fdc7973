//! The names of one module's addresses: collected as an index gives them, each text once, and read back by the number of the
//! address.

use std::collections::HashMap;
use std::path::PathBuf;

use stk_schema::Arch;

use super::index::{Hit, Origin, RecordKind, SymbolIndex, TextId, TextMap};
use super::names::{Demangle, demangle, undecorate_x86};
use super::reason::Reason;
use super::symbolizer::ModuleKey;
use crate::model::file_name;

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

/// Collects the results of one module.
pub(super) struct Writer<'a> {
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
    /// Nothing yet of this module.
    pub(super) fn new(demangle: Demangle, module: &'a ModuleKey<'a>) -> Writer<'a> {
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
    pub(super) fn address(
        &mut self,
        rva: u32,
        hit: Option<Hit<'_>>,
        index: &SymbolIndex,
        known: &mut TextMap<u32>,
    ) {
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
    pub(super) fn without_symbols(&mut self, rva: u32) {
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

    /// What was collected; `file`, `reason` and `not_covered` are said of all addresses.
    pub(super) fn finish(
        self,
        file: Option<PathBuf>,
        reason: Option<Reason>,
        not_covered: Option<Reason>,
    ) -> ModuleSymbols {
        let Writer { texts, frames, aliases, addresses, .. } = self;
        ModuleSymbols { file, reason, not_covered, texts, frames, aliases, addresses }
    }
}
