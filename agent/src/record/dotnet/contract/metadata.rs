//! Metadata of an assembly, from its image in memory (ECMA-335, partition II, chapters 22 to 25):
//! names and signatures of its methods and types.

use alloc::string::String;
use alloc::vec::Vec;

use stk_schema::bytes::{u16_at, u32_at, u64_at};
use stk_schema::windows::DIRECTORY_COM_DESCRIPTOR;

use super::layout::Contract;
use super::reader::Reader;
use crate::record::image::Memory;

/// Numbers of the tables that are read.
pub(super) const TYPE_REF: usize = 0x01;
pub(super) const TYPE_DEF: usize = 0x02;
pub(super) const METHOD_DEF: usize = 0x06;
pub(super) const TYPE_SPEC: usize = 0x1b;
pub(super) const NESTED_CLASS: usize = 0x29;

/// Tables up to the last one that is read.
const TABLES: usize = NESTED_CLASS + 1;
/// Most sections of an image.
const MOST_SECTIONS: u16 = 96;
/// Most streams of the metadata; compilers write five.
const MOST_STREAMS: u16 = 16;
/// Most bytes of a name.
const MOST_NAME: usize = 1024;
/// Most bytes of a signature.
const MOST_BLOB: usize = 4096;
/// PEImageLayout.Flags: sections lie at their addresses, not as in the file.
const MAPPED: u32 = 1;

/// The kind of a column, which gives its width.
#[derive(Clone, Copy)]
enum Column {
    Bytes(u8),
    Strings,
    Guids,
    Blobs,
    /// Row of a table.
    Row(u8),
    /// Row of one of several tables: bits for which of them, and their numbers.
    Coded(u8, &'static [u8]),
}

use Column::{Blobs as B, Bytes, Coded, Guids as G, Row, Strings as S};

const TYPE_DEF_OR_REF: Column = Coded(2, &[0x02, 0x01, 0x1b]);
const HAS_CUSTOM_ATTRIBUTE: Column = Coded(
    5,
    &[
        0x06, 0x04, 0x01, 0x02, 0x08, 0x09, 0x0a, 0x00, 0x0e, 0x17, 0x14, 0x11, 0x1a, 0x1b, 0x20, 0x23, 0x26,
        0x27, 0x28, 0x2a, 0x2c, 0x2b,
    ],
);
const METHOD_DEF_OR_REF: Column = Coded(1, &[0x06, 0x0a]);
const IMPLEMENTATION: Column = Coded(2, &[0x26, 0x23, 0x27]);
const D: Column = Bytes(4);
const W: Column = Bytes(2);

/// Columns of the tables, by number.
const COLUMNS: [&[Column]; TABLES] = [
    &[W, S, G, G, G],
    &[Coded(2, &[0x00, 0x1a, 0x23, 0x01]), S, S],
    &[D, S, S, TYPE_DEF_OR_REF, Row(0x04), Row(0x06)],
    &[Row(0x04)],
    &[W, S, B],
    &[Row(0x06)],
    &[D, W, W, S, B, Row(0x08)],
    &[Row(0x08)],
    &[W, W, S],
    &[Row(0x02), TYPE_DEF_OR_REF],
    &[Coded(3, &[0x02, 0x01, 0x1a, 0x06, 0x1b]), S, B],
    &[W, Coded(2, &[0x04, 0x08, 0x17]), B],
    &[HAS_CUSTOM_ATTRIBUTE, Coded(3, &[0x06, 0x0a]), B],
    &[Coded(1, &[0x04, 0x08]), B],
    &[W, Coded(2, &[0x02, 0x06, 0x20]), B],
    &[W, D, Row(0x02)],
    &[D, Row(0x04)],
    &[B],
    &[Row(0x02), Row(0x14)],
    &[Row(0x14)],
    &[W, S, TYPE_DEF_OR_REF],
    &[Row(0x02), Row(0x17)],
    &[Row(0x17)],
    &[W, S, B],
    &[W, Row(0x06), Coded(1, &[0x14, 0x17])],
    &[Row(0x02), METHOD_DEF_OR_REF, METHOD_DEF_OR_REF],
    &[S],
    &[B],
    &[W, Coded(1, &[0x04, 0x06]), S, Row(0x1a)],
    &[D, Row(0x04)],
    &[D, D],
    &[D],
    &[D, W, W, W, W, D, B, S, S],
    &[D],
    &[D, D, D],
    &[W, W, W, W, D, B, S, S, B],
    &[D, Row(0x23)],
    &[D, D, D, Row(0x23)],
    &[D, S, B],
    &[D, D, S, S, IMPLEMENTATION],
    &[D, D, S, IMPLEMENTATION],
    &[Row(0x02), Row(0x02)],
];

/// Where a table lies, and how wide its rows are.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct MetadataTable {
    at: u64,
    rows: u32,
    row: u64,
}

/// Addresses of a heap: first byte, and the byte behind the last.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Heap {
    from: u64,
    to: u64,
}

impl Heap {
    /// The address of what has this index in it.
    fn at(self, index: u32) -> Option<u64> {
        self.from.checked_add(u64::from(index)).filter(|&at| at < self.to)
    }
}

/// The metadata of one assembly.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Metadata {
    /// Name of the assembly's file without its extension.
    pub stem: String,
    tables: [MetadataTable; TABLES],
    rows: [u32; 64],
    /// Bit 0: wide indices of strings; bit 1: of GUIDs; bit 2: of blobs.
    wide: u8,
    strings: Heap,
    blobs: Heap,
}

impl Metadata {
    /// The metadata of the runtime's Module at `module`. `image` reads what stays as it is.
    pub(super) fn of_module<M: Memory>(
        contract: &Contract,
        (reader, image): (&Reader<'_, M>, &Reader<'_, M>),
        module: u64,
        stem: String,
    ) -> Option<Metadata> {
        let at = &contract.modules;
        let assembly = reader.pointer(module.checked_add(at.assembly))?;
        let file = reader.pointer(assembly.checked_add(at.image))?;
        let layout = reader.pointer(file.checked_add(at.layout))?;
        let base = reader.pointer(layout.checked_add(at.base))?;
        let size = u64::from(reader.u32(layout.checked_add(at.size))?);
        let mapped = reader.u32(layout.checked_add(at.flags))? & MAPPED != 0;
        let (root, len) = root(image, base, size, mapped)?;
        Metadata::read(image, root, len, stem)
    }

    /// The metadata in `len` bytes from `root` on.
    fn read<M: Memory>(reader: &Reader<'_, M>, root: u64, len: u64, stem: String) -> Option<Metadata> {
        let head: [u8; 16] = reader.bytes(Some(root))?;
        if head[..4] != *b"BSJB" {
            return None;
        }
        let version = u64::from(u32_at(&head, 12)?);
        if version > 256 {
            return None;
        }
        let inside = |offset: u64, size: u64| {
            let end = offset.checked_add(size)?;
            (end <= len)
                .then(|| Some(Heap { from: root.checked_add(offset)?, to: root.checked_add(end)? }))?
        };
        let mut at = 16 + version;
        let streams = reader.u16(root.checked_add(at + 2))?;
        at += 4;
        let (mut tables, mut strings, mut blobs) = (None, None, None);
        for _ in 0..streams.min(MOST_STREAMS) {
            let stream: [u8; 24] = reader.bytes(root.checked_add(at))?;
            let heap = inside(u64::from(u32_at(&stream, 0)?), u64::from(u32_at(&stream, 4)?));
            let name = stream.get(8..)?;
            let name = name.get(..name.iter().position(|&byte| byte == 0)?)?;
            match name {
                b"#~" => tables = heap,
                b"#Strings" => strings = heap,
                b"#Blob" => blobs = heap,
                _ => {}
            }
            at += 8 + (name.len() as u64 + 1).next_multiple_of(4);
        }
        let tables = tables?;
        let mut metadata = Metadata {
            stem,
            tables: [MetadataTable::default(); TABLES],
            rows: [0; 64],
            wide: 0,
            strings: strings?,
            blobs: blobs?,
        };
        metadata.find_tables(reader, tables)?;
        Some(metadata)
    }

    fn find_tables<M: Memory>(&mut self, reader: &Reader<'_, M>, stream: Heap) -> Option<()> {
        let head: [u8; 24] = reader.bytes(Some(stream.from))?;
        self.wide = *head.get(6)?;
        let valid = u64_at(&head, 8)?;
        let mut counts = [0; 4 * 64];
        let bytes = 4 * valid.count_ones() as usize;
        reader.fill(stream.from.checked_add(24)?, counts.get_mut(..bytes)?)?;
        let present = (0..64).filter(|table| valid >> table & 1 != 0);
        for (number, table) in present.enumerate() {
            *self.rows.get_mut(table)? = u32_at(&counts, 4 * number)?;
        }
        let mut at = stream.from.checked_add(24 + bytes as u64)?;
        // More data of the compiler's own.
        if self.wide & 0x40 != 0 {
            at = at.checked_add(4)?;
        }
        for table in 0..TABLES {
            let (columns, rows) = (*COLUMNS.get(table)?, *self.rows.get(table)?);
            let row = columns.iter().map(|&column| self.width(column)).sum();
            *self.tables.get_mut(table)? = MetadataTable { at, rows, row };
            at = at.checked_add(u64::from(rows).checked_mul(row)?)?;
        }
        (at <= stream.to).then_some(())
    }

    fn width(&self, column: Column) -> u64 {
        let rows = |table: u8| self.rows.get(usize::from(table)).copied().unwrap_or(0);
        let heap = |bit: u8| if self.wide & bit == 0 { 2 } else { 4 };
        match column {
            Bytes(count) => u64::from(count),
            S => heap(1),
            G => heap(2),
            B => heap(4),
            Row(table) => {
                if rows(table) < 1 << 16 {
                    2
                } else {
                    4
                }
            }
            Coded(bits, tables) => {
                let most = tables.iter().map(|&table| rows(table)).max().unwrap_or(0);
                if most < 1 << (16 - bits) { 2 } else { 4 }
            }
        }
    }

    /// Number of rows of a table.
    pub(super) fn rows(&self, table: usize) -> u32 {
        self.tables.get(table).map_or(0, |table| table.rows)
    }

    /// The value in a column of a row. Rows count from 1.
    pub(super) fn cell<M: Memory>(
        &self,
        reader: &Reader<'_, M>,
        (table, row): (usize, u32),
        column: usize,
    ) -> Option<u32> {
        let columns = COLUMNS.get(table)?;
        let MetadataTable { at, rows, row: width } = *self.tables.get(table)?;
        if row == 0 || row > rows {
            return None;
        }
        let before: u64 = columns.get(..column)?.iter().map(|&column| self.width(column)).sum();
        let size = self.width(*columns.get(column)?) as usize;
        let mut bytes = [0; 4];
        let address = at.checked_add(u64::from(row - 1) * width)?.checked_add(before)?;
        reader.fill(address, bytes.get_mut(..size)?)?;
        Some(u32::from_le_bytes(bytes))
    }

    /// The text of the name in a column of a row.
    pub(super) fn name<M: Memory>(
        &self,
        reader: &Reader<'_, M>,
        row: (usize, u32),
        column: usize,
    ) -> Option<Vec<u8>> {
        let index = self.cell(reader, row, column)?;
        let at = self.strings.at(index)?;
        reader.text(at, MOST_NAME.min((self.strings.to - at) as usize))
    }

    /// The bytes of the blob in a column of a row.
    pub(super) fn blob<M: Memory>(
        &self,
        reader: &Reader<'_, M>,
        row: (usize, u32),
        column: usize,
    ) -> Option<Vec<u8>> {
        let index = self.cell(reader, row, column)?;
        let at = self.blobs.at(index)?;
        let mut head = [0; 4];
        let most = ((self.blobs.to - at) as usize).min(4);
        reader.fill(at, head.get_mut(..most)?)?;
        let (len, used) = compressed(head.get(..most)?)?;
        let len = len as usize;
        let from = at.checked_add(used as u64)?;
        if len > MOST_BLOB || from.checked_add(len as u64)? > self.blobs.to {
            return None;
        }
        let mut blob = alloc::vec![0; len];
        reader.fill(from, &mut blob)?;
        Some(blob)
    }

    /// The row of TypeDef that encloses the nested type in `row`: NestedClass is sorted by its
    /// first column.
    pub(super) fn encloser<M: Memory>(&self, reader: &Reader<'_, M>, row: u32) -> Option<u32> {
        let (mut low, mut high) = (1, self.rows(NESTED_CLASS).checked_add(1)?);
        while low < high {
            let middle = low + (high - low) / 2;
            let nested = self.cell(reader, (NESTED_CLASS, middle), 0)?;
            if nested == row {
                return self.cell(reader, (NESTED_CLASS, middle), 1);
            }
            if nested < row {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        None
    }
}

/// Address and length of the metadata of the image with `size` bytes at `base`.
fn root<M: Memory>(reader: &Reader<'_, M>, base: u64, size: u64, mapped: bool) -> Option<(u64, u64)> {
    let within = |at: u64, len: u64| at.checked_add(len).is_some_and(|end| end <= size);
    let new_header = u64::from(reader.u32(base.checked_add(0x3c))?);
    let mut header = [0; 24 + 0x70 + 16 * 8];
    if !within(new_header, header.len() as u64) {
        return None;
    }
    reader.fill(base.checked_add(new_header)?, &mut header)?;
    let (sections, optional) = (u16_at(&header, 6)?, u64::from(u16_at(&header, 20)?));
    let directories = match u16_at(&header, 24)? {
        0x10b => 24 + 0x60,
        0x20b => 24 + 0x70,
        _ => return None,
    };
    if header[..4] != *b"PE\0\0" || sections > MOST_SECTIONS {
        return None;
    }
    let table = new_header + 24 + optional;
    // RVA -> offset from `base`.
    let offset = |rva: u64, len: u64| {
        if mapped {
            return within(rva, len).then_some(rva);
        }
        for number in 0..u64::from(sections) {
            let at = table + 40 * number;
            if !within(at, 40) {
                return None;
            }
            let section: [u8; 40] = reader.bytes(base.checked_add(at))?;
            let start = u64::from(u32_at(&section, 12)?);
            let (raw, from) = (u64::from(u32_at(&section, 16)?), u64::from(u32_at(&section, 20)?));
            if rva.checked_sub(start).is_some_and(|at| at.saturating_add(len) <= raw) {
                let at = from.checked_add(rva - start)?;
                return within(at, len).then_some(at);
            }
        }
        None
    };
    let com = u64::from(u32_at(&header, directories + 8 * DIRECTORY_COM_DESCRIPTOR)?);
    let com: [u8; 16] = reader.bytes(base.checked_add(offset(com, 16)?))?;
    let (rva, len) = (u64::from(u32_at(&com, 8)?), u64::from(u32_at(&com, 12)?));
    Some((base.checked_add(offset(rva, len)?)?, len))
}

/// A compressed number (II.23.2), and how many bytes it takes.
pub(super) fn compressed(bytes: &[u8]) -> Option<(u32, usize)> {
    let first = u32::from(*bytes.first()?);
    let byte = |at: usize| bytes.get(at).map(|&byte| u32::from(byte));
    match first {
        0..0x80 => Some((first, 1)),
        0x80..0xc0 => Some(((first & 0x3f) << 8 | byte(1)?, 2)),
        0xc0..0xe0 => Some(((first & 0x1f) << 24 | byte(1)? << 16 | byte(2)? << 8 | byte(3)?, 4)),
        _ => None,
    }
}
