//! Reads procedures, inline sites and publics through the `pdb` crate.

use super::intervals::Intervals;
use super::lines::C13Lines;
use super::names::InlineNames;
use super::{InlineSiteRecord, PdbRecords, Procedure, RecordsError, SiteRange};
use pdb::{AddressMap, FallibleIterator, ItemIndex, SymbolData};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use stk_base::files::open_input;

/// Limit for the scopes that are open at once.
pub(super) const MOST_SCOPES: usize = 512;

/// Parts of a PDB that all modules need.
struct CommonParts<'s> {
    strings: pdb::StringTable<'s>,
    addresses: AddressMap<'s>,
    sections: Vec<pdb::ImageSectionHeader>,
    names: InlineNames,
    /// The ids that modules lend to others (/GL), by the lender's name.
    exports: HashMap<String, pdb::CrossModuleExports>,
}

/// Reads the records of one module.
struct ModuleReader<'m, 's> {
    number: usize,
    shared: &'m CommonParts<'s>,
    lines: Arc<C13Lines>,
    inlinees: BTreeMap<pdb::IdIndex, pdb::Inlinee<'m>>,
    imports: pdb::CrossModuleImports<'m>,
}

/// A procedure whose end is not read yet.
struct OpenProcedure {
    range: (u32, u32),
    offset: pdb::PdbInternalSectionOffset,
    /// Scopes around it.
    depth: usize,
    procedure: Procedure,
}

impl PdbRecords {
    /// Reads a PDB's records.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened, or the `pdb` crate cannot read the records.
    pub fn read(path: &Path) -> Result<PdbRecords, RecordsError> {
        let io = |error| RecordsError::Io { path: path.to_owned(), error };
        let mut pdb = pdb::PDB::open(open_input(path).map_err(io)?)?;
        let dbi = pdb.debug_information()?;
        let shared = CommonParts {
            addresses: pdb.address_map()?,
            strings: pdb.string_table()?,
            sections: pdb.sections()?.ok_or(RecordsError::NoSections)?,
            names: InlineNames::read(&mut pdb)?,
            exports: exports(&mut pdb, &dbi)?,
        };
        let mut procedures = Vec::new();
        let (mut modules, mut number) = (dbi.modules()?, 0);
        while let Some(module) = modules.next()? {
            number += 1;
            let Some(info) = pdb.module_info(&module)? else { continue };
            let lines = Arc::new(lines(&mut pdb, &module, &shared)?);
            let inlinees = info.inlinees()?.map(|inlinee| Ok((inlinee.index(), inlinee))).collect()?;
            let module = ModuleReader { number, shared: &shared, lines, inlinees, imports: info.imports()? };
            module.read(info.symbols()?, &mut procedures)?;
        }
        let publics = publics(&mut pdb, &shared.addresses)?;
        let executable = shared.sections.iter().filter(|section| section.characteristics.execute());
        let range = |section: &pdb::ImageSectionHeader| {
            let start = section.virtual_address;
            (start, start.saturating_add(section.virtual_size))
        };
        Ok(PdbRecords {
            procedures: Intervals::new(procedures),
            publics,
            code: executable.map(range).collect(),
        })
    }
}

fn exports<'s>(
    pdb: &mut pdb::PDB<'s, File>,
    dbi: &pdb::DebugInformation<'s>,
) -> Result<HashMap<String, pdb::CrossModuleExports>, RecordsError> {
    let mut exports = HashMap::new();
    let mut modules = dbi.modules()?;
    while let Some(module) = modules.next()? {
        if let Some(info) = pdb.module_info(&module)? {
            exports.entry(module.module_name().to_lowercase()).or_insert(info.exports()?);
        }
    }
    Ok(exports)
}

fn lines<'s>(
    pdb: &mut pdb::PDB<'s, File>,
    module: &pdb::Module<'_>,
    shared: &CommonParts<'_>,
) -> Result<C13Lines, RecordsError> {
    let short = || RecordsError::ModuleStream(module.module_name().into_owned());
    let info = module.info();
    let raw = pdb.raw_stream(info.stream)?.ok_or_else(short)?;
    let from = info.symbols_size as usize + info.lines_size as usize;
    let c13 = raw.as_slice().get(from..).and_then(|rest| rest.get(..info.c13_lines_size as usize));
    let rva_of = |section: u16, offset: u32| {
        let section = shared.sections.get(usize::from(section).checked_sub(1)?)?;
        section.virtual_address.checked_add(offset)
    };
    let file_name = |name| Some(shared.strings.get(pdb::StringRef(name)).ok()?.to_string().into_owned());
    Ok(C13Lines::read(c13.ok_or_else(short)?, rva_of, file_name))
}

fn publics<'s>(
    pdb: &mut pdb::PDB<'s, File>,
    addresses: &AddressMap<'_>,
) -> Result<Vec<(u32, String)>, RecordsError> {
    let mut publics = Vec::new();
    let globals = pdb.global_symbols()?;
    let mut symbols = globals.iter();
    while let Some(symbol) = symbols.next()? {
        if let Ok(SymbolData::Public(public)) = symbol.parse()
            && let Some(rva) = public.offset.to_rva(addresses)
        {
            publics.push((rva.0, public.name.to_string().into_owned()));
        }
    }
    publics.sort();
    Ok(publics)
}

impl ModuleReader<'_, '_> {
    fn read(
        &self,
        mut symbols: pdb::SymbolIter<'_>,
        procedures: &mut Vec<(u32, u32, Procedure)>,
    ) -> Result<(), RecordsError> {
        // Open scopes: inline sites have a number, others `None`.
        let mut scopes: Vec<Option<usize>> = Vec::new();
        let mut open: Option<OpenProcedure> = None;
        let mut ordinals: HashMap<u32, usize> = HashMap::new();
        while let Some(symbol) = symbols.next()? {
            if scopes.len() > MOST_SCOPES {
                return Err(RecordsError::TooDeep);
            }
            match symbol.parse() {
                Ok(SymbolData::Procedure(record)) => {
                    open = Some(self.procedure(&record, scopes.len(), &mut ordinals));
                    scopes.push(None);
                }
                Ok(SymbolData::InlineSite(record)) => {
                    let Some(open) = &mut open else { continue };
                    let parent = scopes.iter().rev().find_map(|scope| *scope);
                    scopes.push(Some(open.procedure.sites.len()));
                    let site = self.site(&record, open.offset, parent)?;
                    open.procedure.sites.push(site);
                }
                _ if symbol.starts_scope() => scopes.push(None),
                _ if symbol.ends_scope() => {
                    scopes.pop();
                    if let Some(ended) = open.take_if(|open| open.depth == scopes.len()) {
                        let (start, end) = ended.range;
                        if start < end {
                            procedures.push((start, end, ended.procedure));
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn procedure(
        &self,
        record: &pdb::ProcedureSymbol<'_>,
        depth: usize,
        ordinals: &mut HashMap<u32, usize>,
    ) -> OpenProcedure {
        let start = record.offset.to_rva(&self.shared.addresses).map_or(0, |rva| rva.0);
        let end = if start == 0 { 0 } else { start.saturating_add(record.len) };
        let ordinal = ordinals.entry(start).or_default();
        let subsections = self.lines.of_procedure(start, end, *ordinal);
        *ordinal += 1;
        let procedure = Procedure {
            name: record.name.to_string().into_owned(),
            module: self.number,
            sites: Vec::new(),
            lines: self.lines.clone(),
            subsections,
        };
        OpenProcedure { range: (start, end), offset: record.offset, depth, procedure }
    }

    fn site(
        &self,
        record: &pdb::InlineSiteSymbol<'_>,
        procedure: pdb::PdbInternalSectionOffset,
        parent: Option<usize>,
    ) -> Result<InlineSiteRecord, RecordsError> {
        let mut rows: Vec<SiteRange> = Vec::new();
        if let Some(inlinee) = self.inlinees.get(&record.inlinee) {
            let mut lines = inlinee.lines(procedure, record);
            while let Ok(Some(line)) = lines.next() {
                let start = line.offset.to_rva(&self.shared.addresses).map_or(0, |rva| rva.0);
                let end = start.saturating_add(line.length.unwrap_or(0));
                rows.push(SiteRange { start, end, file: line.file_index.0, line: line.line_start });
            }
        }
        // In the `pdb` crate, the inlinee's own file is private. That of the first row is the same,
        // unless the annotations change it before.
        let file = rows.first().map(|row| row.file);
        let name = self.shared.names.name(self.global_id(record.inlinee)?);
        Ok(InlineSiteRecord { parent, name, file, rows })
    }

    /// The id in the PDB for one that another module lends.
    fn global_id(&self, id: pdb::IdIndex) -> Result<pdb::IdIndex, RecordsError> {
        if !id.is_cross_module() {
            return Ok(id);
        }
        let pdb::CrossModuleRef(lender, local) = self.imports.resolve_import(id)?;
        let lender = self.shared.strings.get(lender.0)?.to_string().to_lowercase();
        let lent =
            self.shared.exports.get(&lender).map(|exports| exports.resolve_import(local)).transpose()?;
        Ok(lent.flatten().unwrap_or(id))
    }
}
