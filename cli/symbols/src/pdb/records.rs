//! Symbol records: procedures, inline sites, separated code and thunks of the modules, and public
//! symbols.

use std::collections::HashMap;

use super::cross_scope::{CrossScope, Imports};
use super::dbi::{Dbi, DbiModule};
use super::file_names::FileNames;
use super::lines::{ModuleLines, SiteRow, site_rows};
use super::msf::Msf;
use super::types::TypeNames;
use crate::index::build::IndexBuilder;
use crate::index::layout::{FunctionRecord, InlineRow, InlineSite, LineRow, NONE, RecordKind, StringId};
use stk_base::model::bytes::{c_str_at, slice_at, u16_at, u32_at};

const S_END: u16 = 0x0006;
const S_THUNK32: u16 = 0x1102;
const S_BLOCK32: u16 = 0x1103;
const S_WITH32: u16 = 0x1104;
const S_PUB32: u16 = 0x110e;
const S_LPROC32: u16 = 0x110f;
const S_GPROC32: u16 = 0x1110;
const S_TRAMPOLINE: u16 = 0x112c;
const S_SEPCODE: u16 = 0x1132;
const S_LPROC32_ID: u16 = 0x1146;
const S_GPROC32_ID: u16 = 0x1147;
const S_INLINESITE: u16 = 0x114d;
const S_INLINESITE_END: u16 = 0x114e;
const S_PROC_ID_END: u16 = 0x114f;
const S_LPROC32_DPC: u16 = 0x1155;
const S_LPROC32_DPC_ID: u16 = 0x1156;
const S_INLINESITE2: u16 = 0x115d;
/// Signature of a module's symbol stream (C13).
const CV_SIGNATURE_C13: u32 = 4;
/// S_PUB32: the public is a function.
const PUBLIC_FUNCTION: u32 = 2;

/// Bytes of modules after which their pages are released. Reading parts of the types and names
/// again costs less than keeping them in memory.
const LET_GO: u64 = 1 << 19;

/// Shown for an inlined function whose id is invalid.
const NAMELESS: &[u8] = b"<inline function>";

/// Reads every module and the publics into the builder, and returns the number of damaged parts
/// that were left out. Calls `let_go` after every [`LET_GO`] bytes of modules.
pub(super) fn read<'m>(
    msf: &'m Msf<'m>,
    dbi: &Dbi,
    function_names: &TypeNames<'m>,
    files: &FileNames<'_>,
    builder: &mut IndexBuilder,
    let_go: &dyn Fn(),
) -> u32 {
    let mut reader = RecordReader {
        dbi,
        function_names,
        files,
        builder,
        inlinee_names: HashMap::default(),
        cross_scope: CrossScope::new(msf, dbi),
        scopes: Vec::new(),
        sites: Vec::new(),
        site_rows: Vec::new(),
        inlined: Vec::new(),
        loose_lines: Vec::new(),
        trampolines: Vec::new(),
        chunks: HashMap::default(),
        damaged: dbi.damaged,
    };
    let mut read = 0;
    for module in &dbi.modules {
        if reader.builder.is_exhausted() {
            break;
        }
        reader.module(msf, module);
        read += module.bytes();
        if read >= LET_GO {
            let_go();
            read = 0;
        }
    }
    reader.add_trampolines();
    if let Some(stream) = dbi.symbol_records.and_then(|number| msf.stream(number)) {
        match stream.read_all() {
            Ok(records) => reader.publics(&records),
            Err(_) => reader.damaged += 1,
        }
    }
    reader.damaged + u32::from(reader.builder.is_exhausted())
}

struct RecordReader<'a, 'm> {
    dbi: &'a Dbi,
    function_names: &'a TypeNames<'m>,
    files: &'a FileNames<'a>,
    builder: &'a mut IndexBuilder,
    /// By the id in the PDB.
    inlinee_names: HashMap<u32, StringId, foldhash::fast::FixedState>,
    cross_scope: CrossScope<'a, 'm>,
    scopes: Vec<Scope>,
    sites: Vec<InlineSite>,
    /// Rows of the sites, each with its site's number.
    site_rows: Vec<(u32, SiteRow)>,
    inlined: Vec<InlineRow>,
    /// Rows for code that no procedure of their module covers (assembler).
    loose_lines: Vec<LineRow>,
    trampolines: Vec<Trampoline>,
    /// First addresses of the separated chunks of the module's procedures, by the procedure's
    /// record. Filled when first needed.
    chunks: HashMap<u32, Vec<u32>, foldhash::fast::FixedState>,
    damaged: u32,
}

#[derive(Clone, Copy)]
enum Scope {
    /// A procedure or a piece of separated code.
    Code(CodeRecord),
    /// An inline site by its number, and the number of the one around it.
    Site {
        outer: u32,
    },
    Other,
}

#[derive(Clone, Copy)]
struct CodeRecord {
    start: u32,
    end: u32,
    name: StringId,
    kind: RecordKind,
    /// Offset of the record, which the separated chunks refer to as their parent.
    record: u32,
}

struct Trampoline {
    start: u32,
    end: u32,
    target: u32,
}

impl<'a, 'm> RecordReader<'a, 'm> {
    fn module(&mut self, msf: &'m Msf<'m>, module: &DbiModule) {
        let Some(stream) = module.stream.and_then(|number| msf.stream(number)) else { return };
        let (Some(symbols), Some(c13)) = (stream.read(0, module.symbol_bytes as usize), module.c13(msf))
        else {
            self.damaged += 1;
            return;
        };
        if u32_at(&symbols, 0) != Some(CV_SIGNATURE_C13) {
            self.damaged += u32::from(!symbols.is_empty());
            return;
        }
        let mut lines = ModuleLines::read(&c13, self.dbi, self.files, self.builder);
        let imports = Imports::read(&c13);
        let first = self.builder.ranges().len();
        if self.symbols(&symbols, &mut lines, &imports).is_none() {
            self.damaged += 1;
        }
        self.damaged += lines.damaged;
        self.loose_lines.extend(self.builder.loose_rows(&lines.rows, first));
    }

    /// Reads the symbol records of a module.
    fn symbols(&mut self, symbols: &[u8], lines: &mut ModuleLines<'_>, imports: &Imports<'_>) -> Option<()> {
        self.scopes.clear();
        self.chunks.clear();
        let mut site = NONE;
        for (at, kind, body) in (Records { data: symbols, at: 4 }) {
            if self.builder.is_exhausted() {
                return None;
            }
            match kind {
                S_GPROC32 | S_LPROC32 | S_GPROC32_ID | S_LPROC32_ID | S_LPROC32_DPC | S_LPROC32_DPC_ID => {
                    self.clear_function();
                    site = NONE;
                    let name = self.builder.string(c_str_at(body, 35)?);
                    let start = self.dbi.rva(u16_at(body, 32)?, u32_at(body, 28)?);
                    self.push_code(start, u32_at(body, 12)?, name, RecordKind::Procedure, at);
                }
                S_SEPCODE => {
                    self.clear_function();
                    site = NONE;
                    let name = self.parent_name(symbols, u32_at(body, 0)?);
                    let start = self.dbi.rva(u16_at(body, 20)?, u32_at(body, 12)?);
                    self.push_code(start, u32_at(body, 8)?, name, RecordKind::SeparatedCode, at);
                }
                S_THUNK32 => {
                    let name = self.builder.string(c_str_at(body, 21)?);
                    let start = self.dbi.rva(u16_at(body, 16)?, u32_at(body, 12)?);
                    self.clear_function();
                    site = NONE;
                    self.push_code(start, u32::from(u16_at(body, 18)?), name, RecordKind::Thunk, at);
                }
                S_TRAMPOLINE => self.trampoline(body)?,
                S_INLINESITE | S_INLINESITE2 => {
                    let annotations = body.get(if kind == S_INLINESITE { 12 } else { 16 }..)?;
                    self.scopes.push(Scope::Site { outer: site });
                    let inlinee = u32_at(body, 8)?;
                    let name = self.inlinee_name(inlinee, imports);
                    site = self.inline_site(inlinee, name, site, annotations, lines);
                }
                S_BLOCK32 | S_WITH32 => self.scopes.push(Scope::Other),
                S_END | S_INLINESITE_END | S_PROC_ID_END => match self.scopes.pop()? {
                    Scope::Code(code) => self.end_code(&code, symbols, lines),
                    Scope::Site { outer } => site = outer,
                    Scope::Other => {}
                },
                _ => {}
            }
        }
        // A procedure without its end is left out.
        self.scopes.is_empty().then_some(())
    }

    fn clear_function(&mut self) {
        self.sites.clear();
        self.site_rows.clear();
    }

    /// Opens a procedure. One that the linker dropped has no address and gets an empty range.
    fn push_code(&mut self, start: Option<u32>, len: u32, name: StringId, kind: RecordKind, record: u32) {
        let range = start.and_then(|start| Some((start, start.checked_add(len)?)));
        let (start, end) = range.unwrap_or((0, 0));
        self.scopes.push(Scope::Code(CodeRecord { start, end, name, kind, record }));
    }

    /// The name of an inlined function by its id in the module that `imports` belongs to.
    fn inlinee_name(&mut self, inlinee: u32, imports: &Imports<'_>) -> StringId {
        let Some(id) = self.cross_scope.resolve(inlinee, imports, self.files) else {
            return self.builder.string(NAMELESS);
        };
        if let Some(&name) = self.inlinee_names.get(&id) {
            return name;
        }
        let text = self.function_names.function(id);
        self.builder.spend(self.function_names.take_work());
        let name = self.builder.string(text.as_deref().unwrap_or(NAMELESS));
        self.inlinee_names.insert(id, name);
        name
    }

    fn inline_site(
        &mut self,
        inlinee: u32,
        name: StringId,
        outer: u32,
        annotations: &[u8],
        lines: &mut ModuleLines<'_>,
    ) -> u32 {
        let number = self.sites.len() as u32;
        let mut file = NONE;
        if let Some((checksum, line)) = lines.inlinee(inlinee) {
            file = lines.file(checksum, self.files, self.builder);
            let mut rows = Vec::new();
            site_rows(annotations, checksum, line, &mut rows);
            self.site_rows.extend(rows.into_iter().map(|row| (number, row)));
        } else {
            // Without its line record, the ranges still show which code is inlined.
            let mut rows = Vec::new();
            site_rows(annotations, NONE, 0, &mut rows);
            self.site_rows.extend(rows.into_iter().map(|row| (number, SiteRow { line: 0, ..row })));
        }
        self.sites.push(InlineSite { parent: outer, name, file, call_line: 0, call_file: NONE });
        number
    }

    fn end_code(&mut self, code: &CodeRecord, symbols: &[u8], lines: &mut ModuleLines<'_>) {
        self.inlined.clear();
        let site_rows = std::mem::take(&mut self.site_rows);
        for &(site, row) in &site_rows {
            let base = match row.chunk {
                0 => Some(code.start),
                chunk => {
                    if self.chunks.is_empty() {
                        self.chunks = self.chunk_starts(symbols);
                    }
                    self.chunks.get(&code.record).and_then(|chunks| chunks.get(chunk as usize - 1)).copied()
                }
            };
            let range =
                base.and_then(|base| Some((base.checked_add(row.start)?, base.checked_add(row.end)?)));
            let Some((start, end)) = range.filter(|(start, end)| start < end) else { continue };
            let file = lines.file(row.file, self.files, self.builder);
            self.inlined.push(InlineRow { site, row: LineRow { start, end, file, line: row.line } });
        }
        self.site_rows = site_rows;
        self.builder.add(&FunctionRecord {
            start: code.start,
            end: code.end,
            name: code.name,
            kind: code.kind,
            lines: &lines.rows,
            sites: &self.sites,
            inlined: &self.inlined,
        });
    }

    /// The procedure that a piece of separated code belongs to.
    fn parent_name(&mut self, symbols: &[u8], parent: u32) -> StringId {
        let record = Records { data: symbols, at: parent as usize }.next();
        let name = record.filter(|record| is_procedure(record.1)).and_then(|record| c_str_at(record.2, 35));
        self.builder.string(name.unwrap_or(b"<separated code>"))
    }

    /// The first addresses of each procedure's separated chunks, in their order, by the offset of
    /// the procedure's record.
    fn chunk_starts(&self, symbols: &[u8]) -> HashMap<u32, Vec<u32>, foldhash::fast::FixedState> {
        // One entry without a procedure, so that the map is not empty once it is filled.
        let mut chunks = HashMap::from_iter([(0, Vec::new())]);
        for (_, _, body) in (Records { data: symbols, at: 4 }).filter(|(_, kind, _)| *kind == S_SEPCODE) {
            let start = u16_at(body, 20).zip(u32_at(body, 12));
            let start = start.and_then(|(section, offset)| self.dbi.rva(section, offset));
            if let (Some(procedure), Some(start)) = (u32_at(body, 0), start) {
                chunks.entry(procedure).or_insert_with(Vec::new).push(start);
            }
        }
        chunks
    }

    fn trampoline(&mut self, body: &[u8]) -> Option<()> {
        let start = self.dbi.rva(u16_at(body, 12)?, u32_at(body, 4)?);
        let target = self.dbi.rva(u16_at(body, 14)?, u32_at(body, 8)?);
        if let (Some(start), Some(target)) = (start, target) {
            let end = start.saturating_add(u32::from(u16_at(body, 2)?));
            self.trampolines.push(Trampoline { start, end, target });
        }
        Some(())
    }

    /// Names each incremental-link thunk after the function that it jumps to.
    fn add_trampolines(&mut self) {
        if self.trampolines.is_empty() {
            return;
        }
        let mut targets: HashMap<u32, StringId> = HashMap::new();
        for (start, _, name, kind) in self.builder.ranges() {
            if kind == RecordKind::Procedure {
                targets.entry(start).or_insert(name);
            }
        }
        for trampoline in std::mem::take(&mut self.trampolines) {
            let target = targets.get(&trampoline.target).map_or("?", |&name| self.builder.text(name));
            let name = format!("ILT({target})");
            let name = self.builder.string(name.as_bytes());
            self.add_range(trampoline.start, trampoline.end, name, RecordKind::Thunk);
        }
    }

    /// Adds publics. Each names the code up to the next symbol, but never beyond its object file's
    /// contribution.
    fn publics(&mut self, records: &[u8]) {
        let covered = self.builder.covered(0);
        let mut publics: Vec<(u32, bool, &[u8])> = Records { data: records, at: 0 }
            .filter(|&(_, kind, _)| kind == S_PUB32)
            .filter_map(|(_, _, body)| {
                let start = self.dbi.rva(u16_at(body, 8)?, u32_at(body, 4)?)?;
                self.dbi.code_end(start)?;
                let before = covered.partition_point(|range| range.0 <= start);
                if before != 0 && covered[before - 1].1 > start && covered[before - 1].0 != start {
                    return None;
                }
                Some((start, u32_at(body, 0)? & PUBLIC_FUNCTION == 0, c_str_at(body, 10)?))
            })
            .collect();
        // Of several names for one address the first wins: functions before labels, then by name.
        publics.sort_unstable();
        self.loose_lines.sort_by_key(|row| row.start);
        let mut ends = vec![u32::MAX; publics.len()];
        for n in (1..publics.len()).rev() {
            ends[n - 1] = if publics[n].0 > publics[n - 1].0 { publics[n].0 } else { ends[n] };
        }
        for (&(start, _, name), &next) in publics.iter().zip(&ends) {
            let after = covered.partition_point(|range| range.0 <= start);
            let limit = match self.dbi.contribution(start) {
                Some(contribution) => contribution.end,
                None => self.dbi.code_end(start).unwrap_or(start),
            };
            let end = covered.get(after).map_or(limit, |range| range.0.min(limit)).min(next);
            // At a procedure's own address, a public is only a further name, so it gets the
            // procedure's range.
            let end = match covered[..after].last() {
                Some(&(from, to)) if from == start => end.min(to),
                _ => end,
            };
            let name = self.builder.string(name);
            self.add_range(start, end, name, RecordKind::Public);
        }
    }

    fn add_range(&mut self, start: u32, end: u32, name: StringId, kind: RecordKind) {
        let lines = &self.loose_lines;
        self.builder.add(&FunctionRecord { start, end, name, kind, lines, sites: &[], inlined: &[] });
    }
}

fn is_procedure(kind: u16) -> bool {
    matches!(kind, S_GPROC32 | S_LPROC32 | S_GPROC32_ID | S_LPROC32_ID | S_LPROC32_DPC | S_LPROC32_DPC_ID)
}

/// Symbol records from an offset on: offset, kind, bytes behind the kind. Ends at the first record
/// that is cut off.
struct Records<'d> {
    data: &'d [u8],
    at: usize,
}

impl<'d> Iterator for Records<'d> {
    type Item = (u32, u16, &'d [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let len = usize::from(u16_at(self.data, self.at)?);
        let kind = u16_at(self.data, self.at + 2)?;
        let body = slice_at(self.data, self.at + 4, len.checked_sub(2)?)?;
        let at = self.at as u32;
        self.at += 2 + len;
        Some((at, kind, body))
    }
}
