//! Builds the flat index from the contents of a symbol file.
//!
//! Every function is flattened as it is added: its own line rows and the rows of its inline sites
//! become one list of address rows, each with the whole inline chain. Where code ranges overlap,
//! [`IndexBuilder::finish`] decides once which function an address belongs to, so a lookup has
//! nothing left to decide.

use std::collections::HashMap;

use super::disjoint::disjoint;
use super::flat::{self, FlatParts};
use super::layout::{
    ChainNode, CodeSpan, FunctionRecord, IndexError, IndexHeader, IndexRow, InlineRow, LineRow, NONE,
    RecordKind, StringId,
};
use super::string_table::{MAX_STRINGS, StringTable};
use super::symbol_index::SymbolIndex;

/// Limit for the inline frames at one address. More count as damage and are cut.
const MAX_ACTIVE: usize = 512;
/// Size of the largest image that Windows loads. It also limits the index's table of blocks, which
/// grows with the last address.
const MAX_IMAGE: u32 = 1 << 31;
/// Limit for the length of a name, in bytes.
const MAX_STRING: usize = 1 << 16;
/// Bytes that each stored byte of a symbol file may expand to. Real PDBs expand to less than 0.2,
/// images with DWARF to 1.
const EXPANSION: usize = 16;
/// Bytes that the smallest file may expand to.
const LEAST_ROOM: usize = 4 << 20;

/// Whether one of the ranges of [`IndexBuilder::covered`] holds `rva`.
pub(crate) fn is_covered(covered: &[(u32, u32)], rva: u32) -> bool {
    let after = covered.partition_point(|range| range.0 <= rva);
    covered[..after].last().is_some_and(|range| range.1 > rva)
}

/// Collects the contents of one symbol file.
#[derive(Default)]
pub(crate) struct IndexBuilder {
    strings: StringTable,
    spans: Vec<CodeSpan>,
    rows: Vec<IndexRow>,
    nodes: Vec<ChainNode>,
    omap: Vec<(u32, u32)>,
    scratch: Scratch,
    /// Bytes of the symbol file.
    stored: usize,
    /// Bytes that the file's records may still expand to; `None` once they exceeded the limit.
    room: Option<usize>,
    /// Ranges behind this rva are ignored, since the index's table of blocks counts against the
    /// limit too.
    last_rva: u32,
}

/// Buffers that are reused for each function.
#[derive(Default)]
struct Scratch {
    nodes: HashMap<ChainNode, u32, foldhash::fast::FixedState>,
    inlined: Vec<InlineRow>,
    boundaries: Vec<u32>,
    active: Vec<ActiveSite>,
    chain: Vec<u32>,
    depths: Vec<u32>,
    /// Number of each site's row among the active ones, if it has an active row.
    row_of_site: Vec<u32>,
}

#[derive(Clone, Copy)]
struct ActiveSite {
    depth: u32,
    site: u32,
    row: LineRow,
}

impl IndexBuilder {
    /// A builder for a file of `stored` bytes. That length limits what its records may expand to.
    pub(crate) fn new(stored: usize) -> IndexBuilder {
        let room = stored.saturating_mul(EXPANSION).saturating_add(LEAST_ROOM);
        // Four bytes for each block of 256.
        let last_rva = u32::try_from(room.saturating_mul(64)).unwrap_or(MAX_IMAGE).min(MAX_IMAGE);
        IndexBuilder { stored, room: Some(room), last_rva, ..IndexBuilder::default() }
    }

    /// Counts bytes of memory or of work against what the file may expand to. Once it has returned
    /// false, nothing more is added.
    pub(crate) fn spend(&mut self, bytes: usize) -> bool {
        self.room = self.room.and_then(|room| room.checked_sub(bytes));
        self.room.is_some()
    }

    /// Counts bytes that the file has besides those stored, since it has them compressed.
    pub(crate) fn add_stored(&mut self, bytes: usize) {
        self.stored = self.stored.saturating_add(bytes);
        self.room = self.room.map(|room| room.saturating_add(bytes.saturating_mul(EXPANSION)));
    }

    /// Counts a text without an end: the search for its end may have covered the whole file.
    pub(crate) fn spend_endless(&mut self) {
        self.spend(self.stored);
    }

    /// Whether the file's records have expanded to more than those of any real file. The rest of it
    /// then counts as damage.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.room.is_none()
    }

    /// The id of a string. Bytes that are not UTF-8 are replaced.
    pub(crate) fn string(&mut self, bytes: &[u8]) -> StringId {
        if !self.spend(bytes.len()) && !self.strings.ends.is_empty() {
            return 0;
        }
        let bytes = &bytes[..bytes.len().min(MAX_STRING)];
        match std::str::from_utf8(bytes) {
            Ok(text) => self.strings.intern(text),
            Err(_) => self.strings.intern(&String::from_utf8_lossy(bytes)),
        }
    }

    /// The string with this id.
    pub(crate) fn text(&self, id: StringId) -> &str {
        self.strings.get(id)
    }

    /// Sets the map from the image's addresses to the addresses of all ranges, sorted by the
    /// image's.
    pub(crate) fn set_omap(&mut self, omap: Vec<(u32, u32)>) {
        self.omap = omap;
    }

    /// Ranges added so far, in the order in which they were added: start, end, name, kind.
    pub(crate) fn ranges(&self) -> impl ExactSizeIterator<Item = (u32, u32, StringId, RecordKind)> + '_ {
        self.ranges_from(0)
    }

    /// Ranges from the one with this number on.
    pub(crate) fn ranges_from(
        &self,
        first: usize,
    ) -> impl ExactSizeIterator<Item = (u32, u32, StringId, RecordKind)> + '_ {
        let spans = self.spans.get(first..).unwrap_or_default();
        spans.iter().map(|span| (span.start, span.end, span.name, span.kind))
    }

    /// The ranges from number `first` on, sorted by start. Each end is the farthest of all ranges
    /// up to that one, since ranges can contain others.
    pub(crate) fn covered(&self, first: usize) -> Vec<(u32, u32)> {
        let mut covered: Vec<(u32, u32)> = self.ranges_from(first).map(|range| (range.0, range.1)).collect();
        covered.sort_unstable();
        let mut farthest = 0;
        for range in &mut covered {
            farthest = farthest.max(range.1);
            range.1 = farthest;
        }
        covered
    }

    /// The rows that begin outside the ranges that were added from number `first` on.
    pub(crate) fn loose_rows(&self, rows: &[LineRow], first: usize) -> Vec<LineRow> {
        let covered = self.covered(first);
        let is_loose = |row: &&LineRow| !is_covered(&covered, row.start);
        rows.iter().filter(is_loose).copied().collect()
    }

    /// Adds a function. A function without a range, or behind the end of any image, is ignored.
    pub(crate) fn add(&mut self, function: &FunctionRecord<'_>) {
        if function.start >= function.end
            || function.end > self.last_rva
            || !self.spend(size_of::<CodeSpan>())
        {
            return;
        }
        let first_row = self.rows.len();
        let span = self.spans.len() as u32;
        self.scratch.nodes.clear();
        let from = function.lines.partition_point(|line| line.end <= function.start);
        let to = function.lines.partition_point(|line| line.start < function.end);
        let lines = function.lines.get(from..to).unwrap_or(&[]);
        self.spend(lines.len() + function.sites.len() + function.inlined.len());
        if function.inlined.is_empty() {
            self.add_plain_rows(function, lines, span);
        } else {
            self.add_inlined_rows(function, lines, span);
        }
        self.spans.push(CodeSpan {
            start: function.start,
            end: function.end,
            name: function.name,
            kind: function.kind,
            first_row: first_row as u32,
            row_count: (self.rows.len() - first_row) as u32,
        });
    }

    fn add_plain_rows(&mut self, function: &FunctionRecord<'_>, lines: &[LineRow], span: u32) {
        let first = self.rows.len();
        let mut at = function.start;
        for line in lines {
            let (start, end) = (line.start.max(at), line.end.min(function.end));
            if start >= end {
                continue;
            }
            if self.is_exhausted() {
                return;
            }
            if start > at {
                self.push_root(first, at, function, span, NONE, 0);
            }
            self.push_root(first, start, function, span, line.file, line.line);
            at = end;
        }
        if at < function.end {
            self.push_root(first, at, function, span, NONE, 0);
        }
    }

    fn push_root(
        &mut self,
        first: usize,
        at: u32,
        function: &FunctionRecord<'_>,
        span: u32,
        file: StringId,
        line: u32,
    ) {
        let file = if line == 0 { NONE } else { file };
        let node = self.node(ChainNode { name: function.name, file, parent: NONE, extra: span });
        self.push_row(first, IndexRow { start: at, node, line });
    }

    fn push_row(&mut self, first: usize, row: IndexRow) {
        if let Some(last) = self.rows[first..].last()
            && (last.node, last.line) == (row.node, row.line)
        {
            return;
        }
        if self.spend(size_of::<IndexRow>()) {
            self.rows.push(row);
        }
    }

    fn node(&mut self, node: ChainNode) -> u32 {
        if let Some(&known) = self.scratch.nodes.get(&node) {
            return known;
        }
        // It takes memory twice: in the list of nodes, and in the function's map of nodes.
        self.spend(2 * size_of::<ChainNode>());
        self.nodes.push(node);
        let number = (self.nodes.len() - 1) as u32;
        self.scratch.nodes.insert(node, number);
        number
    }

    /// Makes the rows of a function with inline sites: sweeps over the addresses at which a row of
    /// any level begins or ends.
    fn add_inlined_rows(&mut self, function: &FunctionRecord<'_>, lines: &[LineRow], span: u32) {
        let first = self.rows.len();
        let mut scratch = std::mem::take(&mut self.scratch);
        self.scratch.nodes = std::mem::take(&mut scratch.nodes);

        scratch.depths.clear();
        for site in function.sites {
            let depth = scratch.depths.get(site.parent as usize).map_or(1, |depth| depth + 1);
            scratch.depths.push(depth);
        }
        scratch.row_of_site.clear();
        scratch.row_of_site.resize(function.sites.len(), NONE);
        scratch.inlined.clear();
        scratch.inlined.extend(function.inlined.iter().filter_map(|inlined| {
            let (start, end) = (inlined.row.start.max(function.start), inlined.row.end.min(function.end));
            let row = LineRow { start, end, ..inlined.row };
            (start < end).then_some(InlineRow { row, ..*inlined })
        }));
        scratch.inlined.sort_by_key(|inlined| inlined.row.start);
        scratch.boundaries.clear();
        scratch.boundaries.push(function.start);
        for row in lines.iter().chain(scratch.inlined.iter().map(|inlined| &inlined.row)) {
            scratch.boundaries.extend([row.start.max(function.start), row.end.min(function.end)]);
        }
        scratch.boundaries.sort_unstable();
        scratch.boundaries.dedup();

        scratch.active.clear();
        let (mut next_line, mut next_inlined) = (0, 0);
        for &at in &scratch.boundaries {
            if at >= function.end || self.is_exhausted() {
                break;
            }
            while lines.get(next_line).is_some_and(|line| line.end <= at) {
                next_line += 1;
            }
            let own = lines.get(next_line).filter(|line| line.start <= at);
            scratch.active.retain(|active| active.row.end > at);
            while let Some(inlined) = scratch.inlined.get(next_inlined).filter(|i| i.row.start <= at) {
                next_inlined += 1;
                let depth = scratch.depths.get(inlined.site as usize).copied().unwrap_or(0);
                if depth != 0 && scratch.active.len() < MAX_ACTIVE {
                    scratch.active.push(ActiveSite { depth, site: inlined.site, row: inlined.row });
                }
            }
            // The deepest site determines the chain. Its ancestors are in the chain even if they
            // have no row at this address, since code of the inner site cannot run without them.
            let innermost = scratch.active.iter().max_by_key(|a| (a.depth, std::cmp::Reverse(a.site)));
            for (n, active) in scratch.active.iter().enumerate() {
                scratch.row_of_site[active.site as usize] = n as u32;
            }
            scratch.chain.clear();
            let mut site = innermost.map_or(NONE, |active| active.site);
            while let Some(record) = function.sites.get(site as usize) {
                scratch.chain.push(site);
                site = if record.parent < site { record.parent } else { NONE };
                if scratch.chain.len() > MAX_ACTIVE {
                    break;
                }
            }

            // The cost of finding the innermost site and of making its chain.
            self.spend(scratch.active.len() / 8 + scratch.chain.len());
            let row = self.chain_row(at, function, span, own, &scratch);
            self.push_row(first, row);
            for active in &scratch.active {
                scratch.row_of_site[active.site as usize] = NONE;
            }
        }
        std::mem::swap(&mut self.scratch.nodes, &mut scratch.nodes);
        self.scratch = scratch;
    }

    /// The row of one address, with a node for every frame of its chain.
    fn chain_row(
        &mut self,
        at: u32,
        function: &FunctionRecord<'_>,
        span: u32,
        own: Option<&LineRow>,
        scratch: &Scratch,
    ) -> IndexRow {
        let sites = function.sites;
        let (mut file, mut line) =
            own.filter(|own| own.line != 0).map_or((NONE, 0), |own| (own.file, own.line));
        let call = |inner: Option<&u32>, file: &mut StringId, line: &mut u32| {
            // DWARF states the file and line of the call. With a PDB they are those of the caller's
            // own row.
            if let Some(site) = inner.and_then(|&site| sites.get(site as usize)).filter(|s| s.call_line != 0)
            {
                (*file, *line) = (site.call_file, site.call_line);
            }
        };
        let mut inner = scratch.chain.iter().rev();
        call(inner.clone().next(), &mut file, &mut line);
        let mut node = self.node(ChainNode { name: function.name, file, parent: NONE, extra: span });
        while let Some(&site) = inner.next() {
            let record = sites[site as usize];
            let row =
                scratch.active.get(scratch.row_of_site[site as usize] as usize).map(|active| active.row);
            let call_line = line;
            (file, line) = row.map_or((record.file, 0), |row| (row.file, row.line));
            call(inner.clone().next(), &mut file, &mut line);
            node = self.node(ChainNode { name: record.name, file, parent: node, extra: call_line });
        }
        IndexRow { start: at, node, line }
    }

    /// Decides which range each address belongs to, and writes the index.
    ///
    /// # Errors
    ///
    /// [`IndexError::TooLarge`] if the contents do not fit the format's 32-bit references.
    pub(crate) fn finish(self, header: IndexHeader) -> Result<SymbolIndex, IndexError> {
        if self.strings.bytes.len() >= MAX_STRINGS || self.rows.len() >= NONE as usize {
            return Err(IndexError::TooLarge);
        }
        let pieces = disjoint(&self.spans);
        let mut flat = FlatParts::default();
        let mut new_nodes = vec![NONE; self.nodes.len()];
        let mut new_spans = vec![NONE; self.spans.len()];
        let mut end = 0;
        for &(start, piece_end, span_index) in &pieces {
            let span = self.spans[span_index as usize];
            if start > end {
                flat.push_row(end, NONE, 0);
            }
            end = piece_end;
            if new_spans[span_index as usize] == NONE {
                new_spans[span_index as usize] = flat.push_span(&span);
            }
            let rows = &self.rows[span.first_row as usize..(span.first_row + span.row_count) as usize];
            let from = rows.partition_point(|row| row.start <= start).saturating_sub(1);
            for row in rows[from..].iter().take_while(|row| row.start < piece_end) {
                let node = flat.copy_node(row.node, &self.nodes, &mut new_nodes, &new_spans);
                flat.push_row(row.start.max(start), node, row.line);
            }
        }
        flat.push_row(end, NONE, 0);
        self.add_aliases(&pieces, &new_spans, &mut flat);
        // Free what is no longer needed, since the memory of a conversion may be at its peak here.
        let IndexBuilder { mut strings, spans, rows, nodes, omap, scratch, .. } = self;
        strings.table = Default::default();
        drop((pieces, new_nodes, new_spans, spans, rows, nodes, scratch));
        let bytes = flat::write(&header, flat, strings, &omap)?;
        SymbolIndex::from_bytes(bytes)
    }

    /// Keeps the names of ranges that lost to another one at the very same address (identical code
    /// folding, several public names) as further names of that range.
    fn add_aliases(&self, pieces: &[(u32, u32, u32)], new_spans: &[u32], flat: &mut FlatParts) {
        let mut winners: HashMap<u32, u32, foldhash::fast::FixedState> = HashMap::default();
        for &(start, _, span) in pieces {
            if self.spans[span as usize].start == start {
                winners.insert(start, new_spans[span as usize]);
            }
        }
        for (span, &new) in self.spans.iter().zip(new_spans) {
            if span.kind != RecordKind::SeparatedCode
                && let Some(&winner) = winners.get(&span.start)
                && winner != new
            {
                flat.push_alias(winner, span.name, span.kind);
            }
        }
        flat.sort_aliases();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Origin;

    #[test]
    fn a_name_that_loses_its_own_address_is_an_alias() {
        let mut builder = IndexBuilder::new(1 << 10);
        let ranges = [
            (0x1000, 0x1010, "a", RecordKind::Procedure),
            (0x1000, 0x1020, "b", RecordKind::CoffSymbol),
            (0x1020, 0x1030, "c", RecordKind::CoffSymbol),
        ];
        for (start, end, name, kind) in ranges {
            let name = builder.string(name.as_bytes());
            builder.add(&FunctionRecord { start, end, name, kind, lines: &[], sites: &[], inlined: &[] });
        }
        let header = IndexHeader {
            guid: [0; 16],
            age: 0,
            machine: 0,
            time_date_stamp: 0,
            size_of_image: 0,
            origin: Origin::Dwarf,
            damaged_parts: 0,
        };
        let index = builder.finish(header).unwrap();
        let name = |rva| index.lookup(rva).unwrap().unwrap().range().unwrap().name.to_owned();
        assert_eq!([name(0x1000), name(0x1018), name(0x1020)], ["a", "b", "c"]);
        let aliases = |rva| index.lookup(rva).unwrap().unwrap().range().unwrap().aliases(&index).len();
        assert_eq!([aliases(0x1000), aliases(0x1018), aliases(0x1020)], [1, 0, 0]);
    }
}
