//! C13 line information of one module, and the binary annotations of inline sites.

use std::collections::{HashMap, HashSet};

use super::dbi::Dbi;
use super::file_names::FileNames;
use crate::index::build::IndexBuilder;
use crate::index::layout::{LineRow, NONE, StringId};
use stk_base::model::bytes::{slice_at, u32_at};

const DEBUG_S_IGNORE: u32 = 0x8000_0000;
const DEBUG_S_LINES: u32 = 0xf2;
const DEBUG_S_FILECHKSMS: u32 = 0xf4;
const DEBUG_S_INLINEELINES: u32 = 0xf6;
/// Line numbers that make a debugger step into or over: not lines of the source.
const HIDDEN_LINES: [u32; 2] = [0xfe_efee, 0xf0_0f00];

/// Lines of one object file.
pub(super) struct ModuleLines<'d> {
    /// Rows of all functions, sorted by address.
    pub(super) rows: Vec<LineRow>,
    /// (function id, file checksum offset, first line) of every function that is inlined somewhere,
    /// sorted.
    inlinees: Vec<(u32, u32, u32)>,
    checksums: &'d [u8],
    files: HashMap<u32, StringId, foldhash::fast::FixedState>,
    /// Blocks that were damaged and left out.
    pub(super) damaged: u32,
}

impl<'d> ModuleLines<'d> {
    /// Decodes the C13 bytes of a module.
    pub(super) fn read(data: &'d [u8], dbi: &Dbi, names: &FileNames<'_>, builder: &mut IndexBuilder) -> Self {
        let mut lines = ModuleLines {
            rows: Vec::new(),
            inlinees: Vec::new(),
            checksums: &[],
            files: HashMap::default(),
            damaged: 0,
        };
        // The table of files may come after the lines that refer to it.
        for (kind, body) in subsections(data) {
            if kind == DEBUG_S_FILECHKSMS {
                lines.checksums = body;
            }
        }
        let mut bases = HashSet::default();
        for (kind, body) in subsections(data) {
            let read = match kind {
                DEBUG_S_LINES => lines.read_lines(body, dbi, names, builder, &mut bases),
                DEBUG_S_INLINEELINES => lines.read_inlinees(body),
                _ => Some(()),
            };
            lines.damaged += u32::from(read.is_none());
        }
        lines.rows.sort_by_key(|row| row.start);
        lines.inlinees.sort_unstable();
        lines
    }

    /// File and first line of an inlined function.
    pub(super) fn inlinee(&self, id: u32) -> Option<(u32, u32)> {
        let at = self.inlinees.partition_point(|inlinee| inlinee.0 < id);
        self.inlinees.get(at).filter(|inlinee| inlinee.0 == id).map(|inlinee| (inlinee.1, inlinee.2))
    }

    /// The name of the file whose checksum entry is at `offset`.
    pub(super) fn file(
        &mut self,
        offset: u32,
        names: &FileNames<'_>,
        builder: &mut IndexBuilder,
    ) -> StringId {
        if let Some(&file) = self.files.get(&offset) {
            return file;
        }
        let file = u32_at(self.checksums, offset as usize)
            .and_then(|name| names.get(name))
            .map_or(NONE, |name| builder.string(name));
        self.files.insert(offset, file);
        file
    }

    fn read_lines(
        &mut self,
        body: &[u8],
        dbi: &Dbi,
        names: &FileNames<'_>,
        builder: &mut IndexBuilder,
        bases: &mut HashSet<u32, foldhash::fast::FixedState>,
    ) -> Option<()> {
        let (offset, size) = (u32_at(body, 0)?, u32_at(body, 8)?);
        let section = stk_base::model::bytes::u16_at(body, 4)?;
        // A function that the linker dropped has no section.
        let Some(base) = dbi.rva(section, offset) else { return Some(()) };
        // Functions that were folded into one each have their own lines, in the order of their
        // procedure records. The index keeps the first procedure, so only the first lines are used.
        // A mixture would be wrong for all of them.
        if !bases.insert(base) {
            return Some(());
        }
        let end = base.checked_add(size)?;
        let first = self.rows.len();
        let mut at = 12usize;
        while at + 12 <= body.len() {
            let (file, count) = (u32_at(body, at)?, u32_at(body, at + 4)? as usize);
            let block = u32_at(body, at + 8)? as usize;
            let entries = slice_at(body, at + 12, count.checked_mul(8)?)?;
            if builder.is_exhausted() {
                return None;
            }
            let file = self.file(file, names, builder);
            self.rows.extend(entries.chunks_exact(8).filter_map(|entry| {
                let start = base.checked_add(u32_at(entry, 0)?)?;
                let line = u32_at(entry, 4)? & 0xff_ffff;
                let line = if HIDDEN_LINES.contains(&line) { 0 } else { line };
                (start < end).then_some(LineRow { start, end, file, line })
            }));
            // Blocks that overlap would give the same rows repeatedly.
            if block < 12 + entries.len() {
                return None;
            }
            at = at.checked_add(block)?;
        }
        // Blocks of several files can interleave, so a row ends where the next one of any file
        // begins.
        let rows = &mut self.rows[first..];
        rows.sort_by_key(|row| row.start);
        for n in 1..rows.len() {
            rows[n - 1].end = rows[n].start;
        }
        Some(())
    }

    fn read_inlinees(&mut self, body: &[u8]) -> Option<()> {
        let extended = match u32_at(body, 0)? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let mut at = 4usize;
        while at + 12 <= body.len() {
            self.inlinees.push((u32_at(body, at)?, u32_at(body, at + 4)?, u32_at(body, at + 8)?));
            at += 12;
            if extended {
                at = (u32_at(body, at)? as usize).checked_mul(4)?.checked_add(at + 4)?;
            }
        }
        Some(())
    }
}

/// The subsections of C13 data: kind and body.
pub(super) fn subsections(data: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    let mut at = 0usize;
    std::iter::from_fn(move || {
        let (kind, len) = (u32_at(data, at)?, u32_at(data, at + 4)? as usize);
        let body = slice_at(data, at + 8, len)?;
        at = (at + 8 + len).next_multiple_of(4);
        Some((kind, body))
    })
    .filter(|&(kind, _)| kind & DEBUG_S_IGNORE == 0)
}

/// A row of an inline site, with code offsets relative to a chunk of its function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SiteRow {
    /// Number of the separated code chunk; 0 is the function itself.
    pub(super) chunk: u32,
    pub(super) start: u32,
    pub(super) end: u32,
    /// Checksum offset of the file.
    pub(super) file: u32,
    pub(super) line: u32,
}

/// Decodes the annotations of an inline site whose function begins at `line` of `file` (CVInfo.h,
/// BA_OP_…). A row without a stated end is empty.
pub(super) fn site_rows(annotations: &[u8], file: u32, line: u32, out: &mut Vec<SiteRow>) {
    let first = out.len();
    let mut state = SiteRow { chunk: 0, start: 0, end: 0, file, line };
    let mut open = false;
    let mut at = 0usize;
    while let Some(op) = number(annotations, &mut at) {
        let mut operand = || number(annotations, &mut at);
        let mut length = None;
        // Whether the operation begins a row; `None` if its operands are cut off or it is unknown.
        let emits = match op {
            1 => operand().map(|v| {
                state.start = v;
                false
            }),
            2 => operand().map(|v| {
                (state.chunk, state.start) = (v, 0);
                false
            }),
            3 => operand().map(|v| {
                state.start = state.start.wrapping_add(v);
                true
            }),
            4 => operand().map(|len| {
                if open && let Some(last) = out[first..].last_mut() {
                    last.end = last.start.saturating_add(len);
                }
                open = false;
                state.start = state.start.wrapping_add(len);
                false
            }),
            5 => operand().map(|v| {
                state.file = v;
                false
            }),
            6 => operand().map(|v| {
                state.line = state.line.wrapping_add_signed(signed(v));
                false
            }),
            7..=10 | 13 => operand().map(|_| false), // line ends, range kinds and columns
            11 => operand().map(|v| {
                state.line = state.line.wrapping_add_signed(signed(v >> 4));
                state.start = state.start.wrapping_add(v & 15);
                true
            }),
            12 => operand().zip(operand()).map(|(len, delta)| {
                length = Some(len);
                state.start = state.start.wrapping_add(delta);
                true
            }),
            _ => None, // 0 pads the record
        };
        let Some(emits) = emits else { break };
        if emits {
            if open && let Some(last) = out[first..].last_mut() {
                last.end = state.start.max(last.start);
            }
            let end = length.map_or(state.start, |len| state.start.saturating_add(len));
            out.push(SiteRow { end, ..state });
            open = length.is_none();
        }
    }
}

/// A compressed number: one, two or four bytes, by the top bits of the first.
fn number(data: &[u8], at: &mut usize) -> Option<u32> {
    let byte = |n: usize| data.get(*at + n).map(|&byte| u32::from(byte));
    let first = byte(0)?;
    let (value, len) = match first {
        0..0x80 => (first, 1),
        0x80..0xc0 => ((first & 0x3f) << 8 | byte(1)?, 2),
        0xc0..0xe0 => ((first & 0x1f) << 24 | byte(1)? << 16 | byte(2)? << 8 | byte(3)?, 4),
        _ => return None,
    };
    *at += len;
    Some(value)
}

/// The sign is the lowest bit.
fn signed(value: u32) -> i32 {
    let magnitude = (value >> 1) as i32;
    if value & 1 == 0 { magnitude } else { -magnitude }
}
