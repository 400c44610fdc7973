//! Truth for symbols: what a PDB's records say of every address of its code, read without the
//! index.
//!
//! Procedures, inline sites and ids are decoded by `pdb2`, C13 lines naively from the raw bytes
//! here. Each rva of each executable section is then looked up in the index, and must agree:
//!
//! - the outermost name is that of a procedure record whose range holds the rva; where there is
//!   none, that of the nearest public at or below, or nothing;
//! - the inline chain is the path through S_INLINESITE records whose rows cover the rva;
//! - every line is that of the row that covers the rva on its level, or none where there is none.
//!
//! Of procedures that were folded into one (several records and several line subsections with one
//! address), the n-th record goes with the n-th subsection: object files bring both in one order.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ::stk::symbols::index::{RecordKind, SymbolIndex};
use anyhow::{Context, Result, anyhow};
use pdb::{FallibleIterator, IdData, ItemIndex, SymbolData, TypeData};
use serde_json::json;

/// One frame as (name, file, line).
pub type TruthFrame = (String, Option<String>, Option<u32>);

/// Everything the records say, by module.
pub struct Truth {
    procedures: Vec<Procedure>,
    /// (rva, name), sorted.
    publics: Vec<(u32, String)>,
    /// Executable sections as rva ranges.
    pub code: Vec<(u32, u32)>,
}

/// Which procedures hold each address of the code: for each section its rva and, by offset,
/// procedures.
pub struct Holders(Vec<(u32, Vec<Vec<u32>>)>);

impl Holders {
    fn at(&self, rva: u32) -> &[u32] {
        let found = self.0.iter().find_map(|(from, holders)| holders.get(rva.checked_sub(*from)? as usize));
        found.map_or(&[], Vec::as_slice)
    }
}

struct Procedure {
    name: String,
    start: u32,
    end: u32,
    module: usize,
    sites: Vec<Site>,
    /// Row of each byte of the procedure.
    lines: Vec<Option<(u32, u32)>>,
    files: std::rc::Rc<BTreeMap<u32, String>>,
}

struct Site {
    parent: Option<usize>,
    name: String,
    file: Option<u32>,
    /// (start, end, file, line)
    rows: Vec<(u32, u32, u32, u32)>,
}

/// The outcome of a comparison.
#[derive(Default, Debug)]
pub struct Agreement {
    /// Addresses looked up.
    pub rvas: u64,
    /// Of these, inside a procedure record.
    pub in_procedures: u64,
    /// Of these, with inline frames by the records.
    pub inlined: u64,
    /// Of these, with a line on the outermost level by the records.
    pub with_line: u64,
    /// Addresses whose outermost name is wrong.
    pub wrong_names: u64,
    /// Addresses whose chain of names is wrong.
    pub wrong_chains: u64,
    /// Addresses with a wrong file or line on some level.
    pub wrong_lines: u64,
    /// Addresses in procedures whose code others share, by the records (identical-code folding).
    pub folded: u64,
    /// Addresses where the index names other sharers than the records do.
    pub wrong_aliases: u64,
    /// The first few that disagree.
    pub examples: Vec<String>,
}

impl Agreement {
    /// Whether every address agrees.
    pub fn complete(&self) -> bool {
        self.rvas != 0 && self.wrong_names + self.wrong_chains + self.wrong_lines + self.wrong_aliases == 0
    }

    /// As JSON, one object.
    pub fn to_json(&self) -> serde_json::Value {
        json!({
            "rvas": self.rvas, "in_procedures": self.in_procedures, "inlined": self.inlined,
            "with_line": self.with_line, "wrong_names": self.wrong_names, "wrong_chains": self.wrong_chains,
            "wrong_lines": self.wrong_lines, "folded": self.folded, "wrong_aliases": self.wrong_aliases, "examples": self.examples,
        })
    }
}

impl Truth {
    /// Reads a PDB's records.
    pub fn read(path: &Path) -> Result<Truth> {
        let file = std::fs::File::open(path).with_context(|| path.display().to_string())?;
        let mut pdb = pdb::PDB::open(file)?;
        let address_map = pdb.address_map()?;
        let strings = pdb.string_table()?;
        let dbi = pdb.debug_information()?;
        let sections = pdb.sections()?.ok_or_else(|| anyhow!("no section headers"))?;
        let rva_of = |section: u16, offset: u32| {
            sections.get(usize::from(section).wrapping_sub(1)).map(|s| s.virtual_address + offset)
        };
        let names = InlineNames::read(&mut pdb)?;
        // What modules lend to others (/GL), by the lender's name.
        let mut exports = BTreeMap::new();
        let mut modules = dbi.modules()?;
        while let Some(module) = modules.next()? {
            if let Some(info) = pdb.module_info(&module)? {
                exports.entry(module.module_name().to_lowercase()).or_insert(info.exports()?);
            }
        }
        let mut procedures = Vec::new();
        let mut modules = dbi.modules()?;
        let mut number = 0;
        while let Some(module) = modules.next()? {
            number += 1;
            let Some(info) = pdb.module_info(&module)? else { continue };
            let raw = pdb.raw_stream(module.info().stream)?.ok_or_else(|| anyhow!("module stream"))?;
            let from = (module.info().symbols_size + module.info().lines_size) as usize;
            let c13 = &raw.as_slice()[from..from + module.info().c13_lines_size as usize];
            let (rows, checksums) = naive_lines(c13, &rva_of);
            let files: BTreeMap<u32, String> = checksums
                .iter()
                .filter_map(|&(at, name)| {
                    Some((at, strings.get(pdb::StringRef(name)).ok()?.to_string().into_owned()))
                })
                .collect();
            let files = std::rc::Rc::new(files);
            let inlinees: BTreeMap<pdb::IdIndex, pdb::Inlinee<'_>> =
                info.inlinees()?.map(|inlinee| Ok((inlinee.index(), inlinee))).collect()?;
            let imports = info.imports()?;
            let global_id = |id: pdb::IdIndex| -> Result<pdb::IdIndex> {
                if !id.is_cross_module() {
                    return Ok(id);
                }
                let pdb::CrossModuleRef(lender, local) = imports.resolve_import(id)?;
                let lender = strings.get(lender.0)?.to_string().to_lowercase();
                let lent = exports.get(&lender).map(|exports| exports.resolve_import(local)).transpose()?;
                Ok(lent.flatten().unwrap_or(id))
            };
            let mut symbols = info.symbols()?;
            // Open scopes: inline sites by number, others not.
            let mut scopes: Vec<Option<usize>> = Vec::new();
            let mut open: Option<(Procedure, pdb::PdbInternalSectionOffset, usize)> = None;
            let mut same_start: BTreeMap<u32, usize> = BTreeMap::new();
            while let Some(symbol) = symbols.next()? {
                match symbol.parse() {
                    Ok(SymbolData::Procedure(procedure)) => {
                        let start = procedure.offset.to_rva(&address_map).map_or(0, |rva| rva.0);
                        let end = if start == 0 { 0 } else { start + procedure.len };
                        let ordinal = same_start.entry(start).or_default();
                        let lines = bytes_of(start, end, &rows, *ordinal);
                        *ordinal += 1;
                        let procedure_out = Procedure {
                            name: procedure.name.to_string().into_owned(),
                            start,
                            end,
                            module: number,
                            sites: Vec::new(),
                            lines,
                            files: files.clone(),
                        };
                        open = Some((procedure_out, procedure.offset, scopes.len()));
                        scopes.push(None);
                    }
                    Ok(SymbolData::InlineSite(site)) => {
                        let Some((procedure, offset, _)) = &mut open else { continue };
                        let parent = scopes.iter().rev().find_map(|scope| *scope);
                        let mut rows = Vec::new();
                        let mut file = None;
                        if let Some(inlinee) = inlinees.get(&site.inlinee) {
                            let mut lines = inlinee.lines(*offset, &site);
                            while let Ok(Some(row)) = lines.next() {
                                let start = row.offset.to_rva(&address_map).map_or(0, |rva| rva.0);
                                rows.push((
                                    start,
                                    start + row.length.unwrap_or(0),
                                    row.file_index.0,
                                    row.line_start,
                                ));
                            }
                            // The inlinee's own file is private to pdb2; the first row's is the
                            // same unless the annotations change it first.
                            file = rows.first().map(|row: &(u32, u32, u32, u32)| row.2);
                        }
                        scopes.push(Some(procedure.sites.len()));
                        let name = names.name(global_id(site.inlinee)?);
                        procedure.sites.push(Site { parent, name, file, rows });
                    }
                    _ if symbol.starts_scope() => scopes.push(None),
                    _ if symbol.ends_scope() => {
                        scopes.pop();
                        if open.as_ref().is_some_and(|open| open.2 == scopes.len()) {
                            procedures.extend(open.take().map(|open| open.0).filter(|p| p.start < p.end));
                        }
                    }
                    _ => {}
                }
            }
        }
        let mut publics = Vec::new();
        let globals = pdb.global_symbols()?;
        let mut symbols = globals.iter();
        while let Some(symbol) = symbols.next()? {
            if let Ok(SymbolData::Public(public)) = symbol.parse()
                && let Some(rva) = public.offset.to_rva(&address_map)
            {
                publics.push((rva.0, public.name.to_string().into_owned()));
            }
        }
        publics.sort();
        let code = sections
            .iter()
            .filter(|section| section.characteristics.execute())
            .map(|section| (section.virtual_address, section.virtual_address + section.virtual_size))
            .collect();
        Ok(Truth { procedures, publics, code })
    }

    /// The procedures by address, for [`Truth::chains`].
    pub fn holders(&self) -> Holders {
        let mut sections: Vec<(u32, Vec<Vec<u32>>)> =
            self.code.iter().map(|&(from, to)| (from, vec![Vec::new(); (to - from) as usize])).collect();
        for (n, procedure) in self.procedures.iter().enumerate() {
            for (from, holders) in &mut sections {
                let to = *from + holders.len() as u32;
                for rva in procedure.start.max(*from)..procedure.end.min(to) {
                    holders[(rva - *from) as usize].push(n as u32);
                }
            }
        }
        Holders(sections)
    }

    /// The chains that the records allow at an address, innermost first: one of each procedure that
    /// holds it; of those that begin last, if some lie within others.
    pub fn chains(&self, holders: &Holders, rva: u32) -> Vec<Vec<TruthFrame>> {
        let procedures = holders.at(rva).iter().map(|&n| &self.procedures[n as usize]);
        let last = procedures.clone().map(|procedure| procedure.start).max();
        procedures.filter(|p| Some(p.start) == last).map(|procedure| procedure.chain(rva)).collect()
    }

    /// Looks every address up in `index` and compares.
    pub fn compare(&self, index: &SymbolIndex) -> Result<Agreement> {
        let mut agreement = Agreement::default();
        let holders = self.holders();
        for &(from, to) in &self.code {
            for rva in from..to {
                self.compare_one(rva, &holders, index, &mut agreement)?;
            }
        }
        Ok(agreement)
    }

    fn compare_one(&self, rva: u32, all: &Holders, index: &SymbolIndex, out: &mut Agreement) -> Result<()> {
        out.rvas += 1;
        let holders = all.at(rva);
        let hit = index.lookup(rva)?;
        let frames: Vec<TruthFrame> = hit
            .iter()
            .flat_map(|hit| hit.frames())
            .map(|frame| (frame.name.to_owned(), frame.file.map(str::to_owned), frame.line))
            .collect();
        let range = hit.and_then(|hit| hit.range());
        let mut note = |counter: fn(&mut Agreement) -> &mut u64, expected: String| {
            *counter(out) += 1;
            if out.examples.len() < 12 {
                out.examples.push(format!("{rva:#x}: {frames:?} instead of {expected}"));
            }
        };
        if holders.is_empty() {
            let nearest = self.publics[..self.publics.partition_point(|public| public.0 <= rva)].last();
            let allowed = |name: &str| {
                nearest.is_some_and(|nearest| {
                    self.publics.iter().any(|public| public.0 == nearest.0 && public.1 == name)
                })
            };
            let right = match (frames.as_slice(), range) {
                ([], _) => true,
                ([frame], Some(range)) if range.kind == RecordKind::Public => allowed(&frame.0),
                // Thunk records name themselves and have no row.
                ([_], Some(range)) => range.kind == RecordKind::Thunk,
                _ => false,
            };
            if !right {
                note(|out| &mut out.wrong_names, format!("{nearest:?}"));
            }
            return Ok(());
        }
        out.in_procedures += 1;
        let start = range.map(|range| range.start);
        let named: Vec<&Procedure> = holders
            .iter()
            .map(|&n| &self.procedures[n as usize])
            .filter(|p| frames.last().is_some_and(|frame| frame.0 == p.name) && Some(p.start) == start)
            .collect();
        let mut note = |counter: fn(&mut Agreement) -> &mut u64, expected: String| {
            *counter(out) += 1;
            if out.examples.len() < 12 {
                out.examples.push(format!("{rva:#x}: {frames:?} instead of {expected}"));
            }
        };
        if named.is_empty() {
            let names: Vec<&str> =
                holders.iter().map(|&n| self.procedures[n as usize].name.as_str()).collect();
            note(|out| &mut out.wrong_names, format!("one of {names:?}"));
            return Ok(());
        }
        // Whatever begins where the winner begins lies on the same code.
        let winner = &named[0].name;
        let sharers: BTreeSet<&str> = all
            .at(named[0].start)
            .iter()
            .map(|&n| &self.procedures[n as usize])
            .filter(|p| p.start == named[0].start && p.name != *winner)
            .map(|p| &*p.name)
            .collect();
        let aliases: BTreeSet<&str> = range
            .iter()
            .flat_map(|range| range.aliases(index))
            .filter(|alias| alias.1 == RecordKind::Procedure)
            .map(|alias| alias.0)
            .collect();
        if aliases != sharers {
            note(|out| &mut out.wrong_aliases, format!("aliases {sharers:?}, not {aliases:?}"));
            return Ok(());
        }
        let expected: Vec<Vec<TruthFrame>> = named.iter().map(|procedure| procedure.chain(rva)).collect();
        if expected.contains(&frames) {
            out.folded += u64::from(!sharers.is_empty());
            out.inlined += u64::from(frames.len() > 1);
            out.with_line += u64::from(frames.last().is_some_and(|frame| frame.2.is_some()));
        } else if expected.iter().any(|chain| chain.iter().map(|f| &f.0).eq(frames.iter().map(|f| &f.0))) {
            note(|out| &mut out.wrong_lines, format!("{expected:?} (module {})", named[0].module));
        } else {
            note(|out| &mut out.wrong_chains, format!("{expected:?} (module {})", named[0].module));
        }
        Ok(())
    }
}

impl Procedure {
    /// The frames of an rva, innermost first.
    fn chain(&self, rva: u32) -> Vec<TruthFrame> {
        let file = |file: u32| self.files.get(&file).cloned();
        let own = self.lines[(rva - self.start) as usize];
        let mut frames = vec![(self.name.clone(), own.and_then(|own| file(own.0)), own.map(|own| own.1))];
        let mut at = None;
        while let Some(next) = self.child_at(at, rva) {
            let site = &self.sites[next];
            // Of rows that cover the address the one that begins last holds.
            let row = site.rows.iter().filter(|row| (row.0..row.1).contains(&rva)).max_by_key(|row| row.0);
            frames.push(match row {
                Some(row) => (site.name.clone(), file(row.2), Some(row.3).filter(|&line| line != 0)),
                None => (site.name.clone(), site.file.and_then(file), None),
            });
            at = Some(next);
        }
        frames.reverse();
        frames
    }

    /// The site below `parent` that covers the address, itself or through the sites inlined into
    /// it.
    fn child_at(&self, parent: Option<usize>, rva: u32) -> Option<usize> {
        (0..self.sites.len()).filter(|&n| self.sites[n].parent == parent).find(|&n| self.covers(n, rva))
    }

    fn covers(&self, site: usize, rva: u32) -> bool {
        self.sites[site].rows.iter().any(|row| (row.0..row.1).contains(&rva))
            || self.child_at(Some(site), rva).is_some()
    }
}

/// Qualified names of inlined functions.
struct InlineNames(BTreeMap<u32, String>);

impl InlineNames {
    fn read(pdb: &mut pdb::PDB<'_, std::fs::File>) -> Result<InlineNames> {
        let types = pdb.type_information()?;
        let mut type_finder = types.finder();
        let mut iter = types.iter();
        while iter.next()?.is_some() {
            type_finder.update(&iter);
        }
        let ids = pdb.id_information()?;
        let mut names = BTreeMap::new();
        let mut strings: BTreeMap<u32, String> = BTreeMap::new();
        let mut iter = ids.iter();
        while let Some(id) = iter.next()? {
            match id.parse() {
                Ok(IdData::String(string)) => {
                    strings.insert(id.index().0, string.name.to_string().into_owned());
                }
                Ok(IdData::Function(function)) => {
                    let scope = function.scope.and_then(|scope| strings.get(&scope.0));
                    let name = function.name.to_string();
                    names.insert(
                        id.index().0,
                        scope.map_or(name.to_string(), |scope| format!("{scope}::{name}")),
                    );
                }
                Ok(IdData::MemberFunction(function)) => {
                    let class = match type_finder.find(function.parent)?.parse() {
                        Ok(TypeData::Class(class)) => class.name.to_string().into_owned(),
                        Ok(TypeData::Union(union)) => union.name.to_string().into_owned(),
                        Ok(TypeData::Enumeration(enumeration)) => enumeration.name.to_string().into_owned(),
                        other => return Err(anyhow!("parent of {} is {other:?}", function.name)),
                    };
                    names.insert(id.index().0, format!("{class}::{}", function.name));
                }
                _ => {}
            }
        }
        Ok(InlineNames(names))
    }

    fn name(&self, id: pdb::IdIndex) -> String {
        self.0.get(&id.0).cloned().unwrap_or_else(|| "<inline function>".to_owned())
    }
}

/// One DEBUG_S_LINES subsection.
struct Subsection {
    base: u32,
    end: u32,
    /// (rva, file, line) in record order.
    rows: Vec<(u32, u32, u32)>,
}

/// All line subsections, and (checksum offset, name offset) of the files.
type NaiveLines = (Vec<Subsection>, Vec<(u32, u32)>);

fn naive_lines(c13: &[u8], rva_of: &dyn Fn(u16, u32) -> Option<u32>) -> NaiveLines {
    let word = |at: usize| u32::from_le_bytes(c13[at..at + 4].try_into().unwrap());
    let (mut subsections, mut files) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at + 8 <= c13.len() {
        let (kind, size) = (word(at), word(at + 4) as usize);
        let body = at + 8;
        if kind == 0xf2 {
            let section = u16::from_le_bytes(c13[body + 4..body + 6].try_into().unwrap());
            if let Some(base) = rva_of(section, word(body)) {
                let end = base + word(body + 8);
                let mut rows = Vec::new();
                let mut block = body + 12;
                while block < body + size {
                    let (file, count) = (word(block), word(block + 4) as usize);
                    for n in 0..count {
                        let entry = block + 12 + n * 8;
                        rows.push((base + word(entry), file, word(entry + 4) & 0xff_ffff));
                    }
                    block += word(block + 8) as usize;
                }
                subsections.push(Subsection { base, end, rows });
            }
        } else if kind == 0xf4 {
            let mut entry = body;
            while entry + 6 <= body + size {
                files.push(((entry - body) as u32, word(entry)));
                entry = (entry + 6 + usize::from(c13[entry + 4])).next_multiple_of(4);
            }
        }
        at = (body + size).next_multiple_of(4);
    }
    (subsections, files)
}

/// File and line of each byte of a procedure that is the n-th of its module at its address: of the
/// rows at or below the byte in a subsection that covers it, the one that begins last.
fn bytes_of(start: u32, end: u32, subsections: &[Subsection], ordinal: usize) -> Vec<Option<(u32, u32)>> {
    let own: Vec<&Subsection> = subsections.iter().filter(|s| s.base == start).collect();
    let others = subsections.iter().filter(|s| s.base != start && s.base < end && s.end > start);
    let own = own.get(ordinal).or(own.first()).copied();
    let mut best: Vec<Option<(u32, u32, u32)>> = vec![None; (end - start) as usize];
    for subsection in own.into_iter().chain(others) {
        for &(from, file, line) in &subsection.rows {
            for rva in from.max(start)..subsection.end.min(end) {
                let slot = &mut best[(rva - start) as usize];
                if slot.is_none_or(|slot| slot.0 <= from) {
                    *slot = Some((from, file, line));
                }
            }
        }
    }
    // 0 and the two "hidden" numbers are no lines.
    best.into_iter()
        .map(|slot| {
            slot.filter(|slot| ![0, 0xfe_efee, 0xf0_0f00].contains(&slot.2)).map(|slot| (slot.1, slot.2))
        })
        .collect()
}
