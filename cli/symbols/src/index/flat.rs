//! The flat, relocatable, little-endian form of the index, in memory and in the cache file.
//!
//! ```text
//! 0    magic "STKSYMIX", version u32, header length u32 (256), total length u64
//! 24   GUID [16], age u32, machine u32, time stamp u32, image size u32, origin u32,
//!      damaged parts u32
//! 64   ten sections (offset u64, length u64): buckets, row low bytes, rows, nodes, ranges,
//!      aliases, omap, string ends, strings, chunk hashes
//! 248  xxh3-64 of the bytes before
//! 256  the sections, each at a multiple of 8
//! ```
//!
//! - buckets: `u32` per 256-byte block of rvas: number of the first row that begins in it or later;
//!   one more at the end
//! - row low bytes: `u8` per row: low byte of the rva where it begins
//! - rows: node `u32`, line `u32`: valid up to the next row; line 0 means none, node `u32::MAX` no
//!   code known
//! - nodes: name, file, parent node, call line or range (all `u32`): a frame and the one that it is
//!   inlined into
//! - ranges: start, end, name, record kind (all `u32`), sorted by the first address that they won
//! - aliases: range, name, record kind (all `u32`), sorted
//! - omap: rva in the image, rva as linked (`u32`), sorted
//! - string ends: `u32` per string: where it ends among the strings; it begins where the one before
//!   ends. Strings are referred to by their number here
//! - strings: UTF-8 bytes
//! - chunk hashes: `u64` xxh3-64 of each 64 KiB of the file from byte 256 up to this section
//!
//! A lookup reads one bucket, the low bytes of one block, one row and the chain's nodes. It does
//! not search the whole index. Nodes and strings are numbered in the order of their first use, so
//! that those of one function lie together. A reader of many addresses needs each string once, by
//! its number (see `TextMap`).

use xxhash_rust::xxh3::xxh3_64;

use super::layout::{ChainNode, CodeSpan, IndexError, IndexHeader, NONE, Origin, RecordKind};
use super::string_table::StringTable;
use stk_base::model::bytes::{u32_at, u64_at};

pub(super) const MAGIC: &[u8; 8] = b"STKSYMIX";
/// Raised whenever the layout or the meaning of the contents changes. Older cache files are then
/// rebuilt.
pub const VERSION: u32 = 3;
pub(super) const HEADER: usize = 256;
pub(super) const CHUNK: usize = 1 << 16;
pub(super) const SECTIONS: usize = 10;
const SECTION_TABLE: usize = 64;
const HEADER_HASH: usize = HEADER - 8;

/// Sections in the order of the table.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(super) enum IndexSection {
    Buckets,
    RowLows,
    Rows,
    Nodes,
    Ranges,
    Aliases,
    Omap,
    StringEnds,
    Strings,
    Chunks,
}

/// The columns, filled in address order.
#[derive(Default)]
pub(super) struct FlatParts {
    buckets: Vec<u32>,
    lows: Vec<u8>,
    rows: Vec<(u32, u32)>,
    nodes: Vec<ChainNode>,
    ranges: Vec<[u32; 4]>,
    aliases: Vec<[u32; 3]>,
}

impl FlatParts {
    /// Appends a row. `start` must not be lower than before. A row at the same address replaces
    /// the one before.
    pub(super) fn push_row(&mut self, start: u32, node: u32, line: u32) {
        if self.rows.last() == Some(&(node, line)) {
            return;
        }
        while self.buckets.len() <= (start >> 8) as usize {
            self.buckets.push(self.rows.len() as u32);
        }
        self.lows.push(start as u8);
        self.rows.push((node, line));
    }

    pub(super) fn push_span(&mut self, span: &CodeSpan) -> u32 {
        self.ranges.push([span.start, span.end, span.name, span.kind as u32]);
        (self.ranges.len() - 1) as u32
    }

    /// Copies a node and its ancestors, and numbers nodes in the order of their first use.
    pub(super) fn copy_node(
        &mut self,
        old: u32,
        nodes: &[ChainNode],
        new_nodes: &mut [u32],
        new_spans: &[u32],
    ) -> u32 {
        if new_nodes[old as usize] != NONE {
            return new_nodes[old as usize];
        }
        let mut node = nodes[old as usize];
        // A chain is at most a few hundred nodes deep: see the builder's limit.
        match node.parent {
            NONE => node.extra = new_spans[node.extra as usize],
            parent => node.parent = self.copy_node(parent, nodes, new_nodes, new_spans),
        }
        let new = self.nodes.len() as u32;
        self.nodes.push(node);
        new_nodes[old as usize] = new;
        new
    }

    pub(super) fn push_alias(&mut self, range: u32, name: u32, kind: RecordKind) {
        self.aliases.push([range, name, kind as u32]);
    }

    pub(super) fn sort_aliases(&mut self) {
        self.aliases.sort_unstable();
        self.aliases.dedup();
        let ranges = &self.ranges;
        self.aliases.retain(|alias| alias[1] != ranges[alias[0] as usize][2]);
    }
}

/// Writes the columns behind a header. Each column is freed as soon as it is written.
pub(super) fn write(
    header: &IndexHeader,
    parts: FlatParts,
    strings: StringTable,
    omap: &[(u32, u32)],
) -> Result<Vec<u8>, IndexError> {
    let row_count = u32::try_from(parts.rows.len()).map_err(|_| IndexError::TooLarge)?;
    let sizes = [
        (parts.buckets.len() + 1) * 4,
        parts.lows.len(),
        parts.rows.len() * 8,
        parts.nodes.len() * 16,
        parts.ranges.len() * 16,
        parts.aliases.len() * 12,
        omap.len() * 8,
        strings.ends.len() * 4,
        strings.bytes.len(),
    ];
    let body: usize = sizes.iter().map(|size| size.next_multiple_of(8)).sum();
    let mut out = Output {
        bytes: Vec::with_capacity(HEADER + body + body.div_ceil(CHUNK) * 8),
        table: [(0, 0); SECTIONS],
    };
    out.bytes.resize(HEADER, 0);
    out.words(IndexSection::Buckets, parts.buckets.into_iter().chain([row_count]).map(|bucket| [bucket]));
    out.section(IndexSection::RowLows, |bytes| bytes.extend_from_slice(&parts.lows));
    drop(parts.lows);
    out.words(IndexSection::Rows, parts.rows.into_iter().map(|(node, line)| [node, line]));
    out.words(
        IndexSection::Nodes,
        parts.nodes.into_iter().map(|node| [node.name, node.file, node.parent, node.extra]),
    );
    out.words(IndexSection::Ranges, parts.ranges);
    out.words(IndexSection::Aliases, parts.aliases);
    out.words(IndexSection::Omap, omap.iter().map(|&(from, to)| [from, to]));
    out.words(IndexSection::StringEnds, strings.ends.into_iter().map(|end| [end]));
    out.section(IndexSection::Strings, |bytes| bytes.extend_from_slice(&strings.bytes));
    drop(strings.bytes);
    out.bytes.resize(out.bytes.len().next_multiple_of(8), 0);
    let hashes: Vec<u64> = out.bytes[HEADER..].chunks(CHUNK).map(xxh3_64).collect();
    out.section(IndexSection::Chunks, |bytes| {
        hashes.iter().for_each(|hash| bytes.extend_from_slice(&hash.to_le_bytes()));
    });
    write_header(&mut out.bytes, header, &out.table);
    Ok(out.bytes)
}

/// The part of the file that is written so far.
struct Output {
    bytes: Vec<u8>,
    table: [(u64, u64); SECTIONS],
}

impl Output {
    fn section(&mut self, section: IndexSection, write: impl FnOnce(&mut Vec<u8>)) {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        let start = self.bytes.len();
        write(&mut self.bytes);
        self.table[section as usize] = (start as u64, (self.bytes.len() - start) as u64);
    }

    fn words<const N: usize>(&mut self, section: IndexSection, records: impl IntoIterator<Item = [u32; N]>) {
        self.section(section, |bytes| {
            for record in records {
                record.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
            }
        });
    }
}

fn write_header(out: &mut [u8], header: &IndexHeader, table: &[(u64, u64); SECTIONS]) {
    let total = out.len() as u64;
    let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, MAGIC);
    put(8, &VERSION.to_le_bytes());
    put(12, &(HEADER as u32).to_le_bytes());
    put(16, &total.to_le_bytes());
    put(24, &header.guid);
    put(40, &header.age.to_le_bytes());
    put(44, &u32::from(header.machine).to_le_bytes());
    put(48, &header.time_date_stamp.to_le_bytes());
    put(52, &header.size_of_image.to_le_bytes());
    put(56, &(header.origin as u32).to_le_bytes());
    put(60, &header.damaged_parts.to_le_bytes());
    for (n, (offset, len)) in table.iter().enumerate() {
        put(SECTION_TABLE + n * 16, &offset.to_le_bytes());
        put(SECTION_TABLE + n * 16 + 8, &len.to_le_bytes());
    }
    let hash = xxh3_64(&out[..HEADER_HASH]);
    out[HEADER_HASH..HEADER].copy_from_slice(&hash.to_le_bytes());
}

/// Checks a header and the bounds of its sections.
pub(super) fn read_header(data: &[u8]) -> Result<(IndexHeader, [(usize, usize); SECTIONS]), IndexError> {
    if !data.starts_with(MAGIC) {
        return Err(IndexError::NotAnIndex);
    }
    let word = |at| u32_at(data, at).ok_or(IndexError::Damaged("header"));
    if word(8)? != VERSION {
        return Err(IndexError::OtherVersion);
    }
    let header_bytes = data.get(..HEADER_HASH).ok_or(IndexError::Damaged("header"))?;
    if u64_at(data, HEADER_HASH) != Some(xxh3_64(header_bytes)) || u64_at(data, 16) != Some(data.len() as u64)
    {
        return Err(IndexError::Damaged("header"));
    }
    let mut sections = [(0usize, 0usize); SECTIONS];
    for (n, section) in sections.iter_mut().enumerate() {
        let at = SECTION_TABLE + n * 16;
        let place = |at| u64_at(data, at).and_then(|value| usize::try_from(value).ok());
        *section = place(at)
            .zip(place(at + 8))
            .filter(|&(offset, len)| {
                offset >= HEADER && offset.checked_add(len).is_some_and(|end| end <= data.len())
            })
            .ok_or(IndexError::Damaged("section table"))?;
    }
    let body = sections[IndexSection::Chunks as usize].0 - HEADER;
    if sections[IndexSection::Chunks as usize].1 != body.div_ceil(CHUNK) * 8 {
        return Err(IndexError::Damaged("chunk hashes"));
    }
    let header = IndexHeader {
        guid: *data[24..].first_chunk().ok_or(IndexError::Damaged("header"))?,
        age: word(40)?,
        machine: word(44)? as u16,
        time_date_stamp: word(48)?,
        size_of_image: word(52)?,
        origin: Origin::from_u32(word(56)?).ok_or(IndexError::Damaged("header"))?,
        damaged_parts: word(60)?,
    };
    Ok((header, sections))
}
