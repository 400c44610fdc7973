//! The names of one module's addresses: collected from an index, and read back by the number of the
//! address.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use stk_schema::Arch;

use super::identity::ModuleKey;
use super::index::{Hit, Origin, Range, RecordKind, SymbolIndex, TextId, TextMap};
use super::names::{Demangle, NameTable, demangle, stays_mangled, undecorate_x86};
use super::reason::Reason;

/// Where a name comes from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    Pdb,
    /// DWARF or the COFF symbol table of the image.
    Dwarf,
    /// No symbol covers the address.
    None,
}

/// One frame of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Location<'a> {
    /// Function in displayed form, demangled.
    pub function: &'a str,
    /// The name in the record.
    pub raw: &'a str,
    /// Source file, under the symbol file's name for it.
    pub file: Option<&'a str>,
    /// Line in `file`, from 1; `None` if no line row covers the address.
    pub line: Option<u32>,
    /// Whether the function is inlined into the next frame.
    pub inline: bool,
}

/// The result for one address.
#[derive(Clone, Copy, Debug)]
pub struct Resolution<'a> {
    symbols: &'a ModuleSymbols,
    at: StoredAddress,
    /// Where the names come from.
    pub source: Source,
    /// Why there is no better name, if there is none.
    pub reason: Option<&'a Reason>,
    /// Bytes from the beginning of the outermost function; without a function, the rva.
    pub displacement: u32,
}

/// The names of one module's addresses, in the order of the look-up.
#[derive(Debug)]
pub struct ModuleSymbols {
    /// The symbol file that was used.
    pub file: Option<PathBuf>,
    /// Why the module has no symbols, if it has none.
    pub reason: Option<Reason>,
    /// Number of mangled names that could not be demangled and are shown as they are.
    pub mangled: u32,
    not_covered: Option<Reason>,
    texts: Vec<Box<str>>,
    frames: Vec<StoredFrame>,
    /// Further names of folded functions.
    aliases: Vec<u32>,
    addresses: Vec<StoredAddress>,
}

/// A [`Location`] with the numbers of its texts.
#[derive(Clone, Copy, Debug)]
pub struct StoredFrame {
    pub function: u32,
    raw: u32,
    pub file: Option<u32>,
    pub line: Option<u32>,
    pub inline: bool,
}

#[derive(Clone, Copy, Debug)]
struct StoredAddress {
    first: u32,
    count: u32,
    first_alias: u32,
    alias_count: u32,
    source: Source,
    displacement: u32,
    /// Whether the record of the outermost function states no size.
    sizeless: bool,
}

impl ModuleSymbols {
    /// Number of addresses that were looked up.
    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Whether no address was looked up.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// Why an address has no better name, if what symbols say of it is not used.
    pub fn why_not(&self) -> Option<&Reason> {
        self.reason.as_ref().or(self.not_covered.as_ref())
    }

    /// The result for the address with this number in the looked-up list.
    pub fn get(&self, n: usize) -> Option<Resolution<'_>> {
        let at = *self.addresses.get(n)?;
        let StoredAddress { source, displacement, .. } = at;
        let reason = match source {
            Source::Pdb | Source::Dwarf => None,
            Source::None => self.why_not(),
        };
        Some(Resolution { symbols: self, at, source, reason, displacement })
    }
}

impl<'a> Resolution<'a> {
    /// How many texts its module's names have. Some may be the same.
    pub fn text_count(&self) -> usize {
        self.symbols.texts.len()
    }

    /// A text by its number.
    pub fn text(&self, id: u32) -> &'a str {
        &self.symbols.texts[id as usize]
    }

    /// Whether the name's record states no size, so that the name is only the nearest one before
    /// the address.
    pub fn is_sizeless(&self) -> bool {
        self.at.sizeless
    }

    /// Why there is no better name, should this one not be used.
    pub fn why_not(&self) -> Option<&'a Reason> {
        self.symbols.why_not()
    }

    /// The frames, innermost first; empty if there is no symbol.
    pub fn frames(&self) -> impl ExactSizeIterator<Item = Location<'a>> + use<'a> {
        let symbols = self.symbols;
        let text = |id: u32| &*symbols.texts[id as usize];
        self.stored().iter().map(move |frame| Location {
            function: text(frame.function),
            raw: text(frame.raw),
            file: frame.file.map(text),
            line: frame.line,
            inline: frame.inline,
        })
    }

    /// Other functions that the linker folded into the outermost one, in displayed form. The
    /// address does not show which of them ran.
    pub fn aliases(&self) -> impl ExactSizeIterator<Item = &'a str> + use<'a> {
        let symbols = self.symbols;
        self.stored_aliases().iter().map(|&id| &*symbols.texts[id as usize])
    }

    /// The frames, with the numbers of their texts.
    pub fn stored(&self) -> &'a [StoredFrame] {
        let StoredAddress { first, count, .. } = self.at;
        &self.symbols.frames[first as usize..(first + count) as usize]
    }

    /// The aliases, as the numbers of their texts.
    pub fn stored_aliases(&self) -> &'a [u32] {
        let StoredAddress { first_alias, alias_count, .. } = self.at;
        &self.symbols.aliases[first_alias as usize..(first_alias + alias_count) as usize]
    }
}

/// Collects the results of one module.
pub(super) struct SymbolWriter {
    demangle: Demangle,
    arch: Arch,
    texts: Vec<Box<str>>,
    /// Displayed name by raw name and the table that has it.
    functions: HashMap<(u32, Option<NameTable>), u32>,
    /// Number of names that stay mangled.
    mangled: u32,
    frames: Vec<StoredFrame>,
    aliases: Vec<u32>,
    /// By a range's bounds: the index of its first alias in `aliases`, and their number.
    alias_lists: HashMap<(u32, u32), (u32, u32)>,
    addresses: Vec<StoredAddress>,
}

impl SymbolWriter {
    /// A writer without results, for this module.
    pub(super) fn new(demangle: Demangle, module: &ModuleKey<'_>) -> SymbolWriter {
        SymbolWriter {
            demangle,
            arch: module.arch,
            texts: Vec::new(),
            functions: HashMap::new(),
            mangled: 0,
            frames: Vec::new(),
            aliases: Vec::new(),
            alias_lists: HashMap::new(),
            addresses: Vec::new(),
        }
    }

    /// Adds the result of the index for an address. `known` holds the numbers of those of its
    /// strings that were already used. Returns what another symbol file would have to better, if
    /// the name is only the nearest one before the address, or there is none.
    pub(super) fn address(
        &mut self,
        rva: u32,
        hit: Option<Hit<'_>>,
        index: &SymbolIndex,
        known: &mut TextMap<u32>,
    ) -> Option<WeakName> {
        let range = hit.as_ref().and_then(Hit::range);
        let (Some(hit), false) = (hit, range.is_some_and(|range| range.kind == RecordKind::Export)) else {
            // It is not known here whether an export's function reaches this address.
            self.without_symbols(rva);
            return Some(WeakName { start: None });
        };
        let kind = range.map_or(RecordKind::Procedure, |range| range.kind);
        let first = self.frames.len() as u32;
        for frame in hit.raw_frames() {
            let mut text = |writer: &mut Self, id: TextId| {
                known.get_or_insert_with(id, || writer.text(index.text(id).unwrap_or_default()))
            };
            let raw = text(self, frame.name);
            let table = name_table(hit.origin(), if frame.inline { RecordKind::Procedure } else { kind });
            let function = self.function(raw, table);
            let file = frame.file.map(|file| text(self, file));
            self.frames.push(StoredFrame { function, raw, file, line: frame.line, inline: frame.inline });
        }
        let (first_alias, alias_count) = range.map_or((0, 0), |range| self.aliases_of(&range, index));
        self.addresses.push(StoredAddress {
            first,
            count: self.frames.len() as u32 - first,
            first_alias,
            alias_count,
            source: if hit.origin() == Origin::Pdb { Source::Pdb } else { Source::Dwarf },
            displacement: range.map_or(0, |range| hit.linked_rva().wrapping_sub(range.start)),
            sizeless: kind >= RecordKind::Public,
        });
        let has_line = self.frames.last().is_some_and(|frame| frame.line.is_some());
        let start = range.map(|range| range.start);
        (kind >= RecordKind::Public && !has_line).then_some(WeakName { start })
    }

    /// Replaces the weak name of the address with this number by that of another index, if it is
    /// better: that of a function with its extent, or of a symbol that is nearer or has a line.
    pub(super) fn improve(
        &mut self,
        n: usize,
        weak: WeakName,
        rva: u32,
        hit: Option<Hit<'_>>,
        index: &SymbolIndex,
        known: &mut TextMap<u32>,
    ) {
        let Some((hit, range)) = hit.and_then(|hit| Some((hit, hit.range()?))) else { return };
        let nearer = weak.start.is_none_or(|start| {
            start < range.start || start == range.start && hit.raw_frames().any(|frame| frame.line.is_some())
        });
        if range.kind < RecordKind::Public || range.kind == RecordKind::CoffSymbol && nearer {
            self.alias_lists.clear();
            self.address(rva, Some(hit), index, known);
            self.addresses.swap_remove(n);
        }
    }

    /// The other names of a range. Its outermost function must be the frame that was added last.
    fn aliases_of(&mut self, range: &Range<'_>, index: &SymbolIndex) -> (u32, u32) {
        if let Some(&list) = self.alias_lists.get(&(range.start, range.end)) {
            return list;
        }
        let first = self.aliases.len();
        // A public repeats the decorated name of its procedure. In displayed form, the two may
        // differ in spaces, and in what a compiler adds to the symbol of a function that it has
        // changed. A set, because a file can have any number of names for one address.
        let without_spaces = |text: &str| {
            let added = [" [clone", ".isra.", ".constprop.", ".part.", ".cold", ".llvm.", ".lto_priv."];
            let end = added.iter().filter_map(|added| text.find(added)).min().unwrap_or(text.len());
            text[..end].replace(' ', "")
        };
        let mut known: HashSet<String> = HashSet::new();
        for (name, kind) in range.aliases(index) {
            if known.is_empty() {
                let outermost = self.frames.last().map(|frame| frame.function);
                known.extend(outermost.map(|id| without_spaces(&self.texts[id as usize])));
            }
            let raw = self.text(name);
            let function = self.function(raw, name_table(index.header().origin, kind));
            if known.insert(without_spaces(&self.texts[function as usize])) {
                self.aliases.push(function);
            }
        }
        let list = (first as u32, (self.aliases.len() - first) as u32);
        self.alias_lists.insert((range.start, range.end), list);
        list
    }

    /// Adds an address that no symbols cover.
    pub(super) fn without_symbols(&mut self, rva: u32) {
        self.addresses.push(StoredAddress {
            first: 0,
            count: 0,
            first_alias: 0,
            alias_count: 0,
            source: Source::None,
            displacement: rva,
            sizeless: false,
        });
    }

    fn function(&mut self, raw: u32, table: Option<NameTable>) -> u32 {
        let table = table.filter(|_| self.arch == Arch::X86);
        if let Some(&function) = self.functions.get(&(raw, table)) {
            return function;
        }
        let text = std::mem::take(&mut self.texts[raw as usize]);
        let mut shown = demangle(&text, self.demangle);
        if self.demangle != Demangle::None {
            self.mangled += u32::from(stays_mangled(&text, &shown));
            if let Some(table) = table.filter(|_| *shown == *text) {
                shown = undecorate_x86(&text, table).into();
            }
        }
        let function = if *shown == *text { raw } else { self.text(&shown) };
        drop(shown);
        self.texts[raw as usize] = text;
        self.functions.insert((raw, table), function);
        function
    }

    fn text(&mut self, text: &str) -> u32 {
        self.texts.push(text.into());
        self.texts.len() as u32 - 1
    }

    /// The results. `file`, `reason` and `not_covered` apply to all addresses.
    pub(super) fn finish(
        self,
        file: Option<PathBuf>,
        reason: Option<Reason>,
        not_covered: Option<Reason>,
    ) -> ModuleSymbols {
        let SymbolWriter { texts, frames, aliases, addresses, mangled, .. } = self;
        ModuleSymbols { file, reason, mangled, not_covered, texts, frames, aliases, addresses }
    }
}

/// The name of an address that another symbol file may better.
#[derive(Clone, Copy, Debug)]
pub(super) struct WeakName {
    /// Where its symbol lies; `None` without a name.
    start: Option<u32>,
}

/// The table that has a record's name, if the names of x86 functions are decorated there.
fn name_table(origin: Origin, kind: RecordKind) -> Option<NameTable> {
    match kind {
        RecordKind::Public | RecordKind::CoffSymbol => Some(NameTable::Symbols),
        RecordKind::Export => Some(NameTable::Others),
        // Procedure records have the names of the source.
        _ => (origin != Origin::Pdb).then_some(NameTable::Others),
    }
}
