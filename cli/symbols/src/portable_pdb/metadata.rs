//! Finds the tables and heaps of a portable PDB.

use super::PortablePdbError::{self, Corrupted, NotPortable};
use std::ops::Range;
use stk_base::model::bytes::Cursor;

/// ECMA-335 II.24.2.1.
const SIGNATURE: [u8; 4] = *b"BSJB";

/// Numbers of tables.
const DOCUMENT: usize = 0x30;
const METHOD_DEBUG_INFORMATION: usize = 0x31;

const CUSTOM_DEBUG_INFORMATION: usize = 0x37;
const METHOD_DEF: usize = 0x06;

/// Tables that HasCustomDebugInformation leads to, by its tag; and the bits of the tag.
const PARENTS: [usize; 27] = [
    METHOD_DEF, 0x04, 0x01, 0x02, 0x08, 0x09, 0x0A, 0x00, 0x0E, 0x17, 0x14, 0x11, 0x1A, 0x1B, 0x20, 0x23,
    0x26, 0x27, 0x28, 0x2A, 0x2C, 0x2B, DOCUMENT, 0x32, 0x33, 0x34, 0x35,
];
const DOCUMENT_TAG: u32 = 22;
const MODULE_TAG: u32 = 7;
const TAG_BITS: u32 = 5;
/// The one row of the table of modules.
pub(super) const MODULE: u32 = 1 << TAG_BITS | MODULE_TAG;

/// Bits of HeapSizes (ECMA-335 II.24.2.6): indices into the heap have 4 bytes.
const WIDE_STRING: u8 = 1;
const WIDE_GUID: u8 = 2;
const WIDE_BLOB: u8 = 4;

/// What a compiler wrote beside a document, a method or another thing.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct CustomTable {
    table: MetadataTable,
    /// Whether the index of what it belongs to has 4 bytes.
    wide_parent: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct MetadataTable {
    start: usize,
    row: usize,
    pub rows: u32,
}

/// Offsets of the tables and heaps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct MetadataLayout {
    pub guid: [u8; 16],
    pub documents: MetadataTable,
    pub methods: MetadataTable,
    custom: CustomTable,
    blobs: Range<usize>,
    guids: Range<usize>,
    wide_blob: bool,
    wide_guid: bool,
}

impl MetadataLayout {
    pub(super) fn parse(data: &[u8]) -> Result<MetadataLayout, PortablePdbError> {
        if !data.starts_with(&SIGNATURE) {
            return Err(NotPortable);
        }
        let streams = Streams::parse(data).ok_or(Corrupted("the list of streams ends early"))?;
        let pdb = streams.pdb.ok_or(NotPortable)?;
        let tables = streams.tables.ok_or(Corrupted("it has no tables"))?;
        let blobs = streams.blobs.ok_or(Corrupted("it has no blobs"))?;
        let pdb = &data[pdb];
        let guid = Cursor::new(pdb).guid().ok_or(Corrupted("its id ends early"))?;
        let mut layout = MetadataLayout {
            guid,
            documents: MetadataTable::default(),
            methods: MetadataTable::default(),
            custom: CustomTable::default(),
            blobs,
            guids: streams.guids.unwrap_or_default(),
            wide_blob: false,
            wide_guid: false,
        };
        layout.tables(data, pdb, tables).ok_or(Corrupted("its tables end early"))?;
        Ok(layout)
    }

    /// ECMA-335 II.24.2.6, "#~ stream".
    fn tables(&mut self, data: &[u8], pdb: &[u8], stream: Range<usize>) -> Option<()> {
        let mut cursor = Cursor::new(&data[stream.clone()]);
        cursor.bytes(6)?;
        let heaps = cursor.u8()?;
        cursor.u8()?;
        let present = cursor.u64()?;
        let _sorted = cursor.u64()?;
        let mut rows = [0; 64];
        for table in (0..64).filter(|table| present >> table & 1 != 0) {
            rows[table] = cursor.u32()?;
        }
        // The tables of an assembly come before these. No compiler writes a file with both.
        if rows[..DOCUMENT].iter().any(|&rows| rows != 0) {
            return None;
        }
        let width = |wide: bool| if wide { 4 } else { 2 };
        (self.wide_blob, self.wide_guid) = (heaps & WIDE_BLOB != 0, heaps & WIDE_GUID != 0);
        let (guid, blob, string) =
            (width(self.wide_guid), width(self.wide_blob), width(heaps & WIDE_STRING != 0));
        let document = width(rows[DOCUMENT] > 0xFFFF);
        let mut table = |rows: u32, row: usize| {
            let start = stream.start + cursor.at();
            cursor.bytes(row.checked_mul(rows as usize)?)?;
            Some(MetadataTable { start, row, rows })
        };
        self.documents = table(rows[DOCUMENT], 2 * blob + 2 * guid)?;
        self.methods = table(rows[METHOD_DEBUG_INFORMATION], document + blob)?;
        // Lines do without the tables behind these.
        let mut custom = || {
            let mut all = rows;
            assembly_rows(pdb, &mut all)?;
            let row_of = |table: usize| width(all[table] > 0xFFFF);
            let method = row_of(METHOD_DEF);
            table(rows[0x32], method + row_of(0x35) + row_of(0x33) + row_of(0x34) + 8)?;
            table(rows[0x33], 4 + string)?;
            table(rows[0x34], string + blob)?;
            table(rows[0x35], row_of(0x35) + blob)?;
            table(rows[0x36], 2 * method)?;
            let wide_parent = PARENTS.iter().any(|&table| all[table] >= 1 << (16 - TAG_BITS));
            let table = table(rows[CUSTOM_DEBUG_INFORMATION], width(wide_parent) + guid + blob)?;
            Some(CustomTable { table, wide_parent })
        };
        self.custom = custom().unwrap_or_default();
        Some(())
    }

    /// What was written beside a thing ([`MODULE`], [`beside`]): the first of that kind.
    pub(super) fn custom<'a>(&self, data: &'a [u8], parent: u32, kind: &[u8; 16]) -> Option<&'a [u8]> {
        let CustomTable { table, wide_parent } = self.custom;
        let value = |of: u32| {
            let mut row = Cursor::new(table.get(data, of)?);
            let of_parent = index(&mut row, wide_parent)? == parent;
            let guid = index(&mut row, self.wide_guid)?;
            (of_parent && self.guid(data, guid)? == kind).then(|| index(&mut row, self.wide_blob)).flatten()
        };
        self.blob(data, (1..=table.rows).find_map(value)?)
    }

    /// A GUID by its number in the heap, from 1.
    fn guid<'a>(&self, data: &'a [u8], number: u32) -> Option<&'a [u8]> {
        let start = (number as usize).checked_sub(1)?.checked_mul(16)?;
        data.get(self.guids.clone())?.get(start..start.checked_add(16)?)
    }

    /// Document row (0 = several) and sequence points of a method, by the method's row.
    pub(super) fn method<'a>(&self, data: &'a [u8], row: u32) -> Option<(u32, &'a [u8])> {
        let mut row = Cursor::new(self.methods.get(data, row)?);
        let document = index(&mut row, self.documents.rows > 0xFFFF)?;
        let points = index(&mut row, self.wide_blob)?;
        Some((document, self.blob(data, points)?))
    }

    /// The name of a document, as a blob.
    pub(super) fn document_name<'a>(&self, data: &'a [u8], row: u32) -> Option<&'a [u8]> {
        let name = index(&mut Cursor::new(self.documents.get(data, row)?), self.wide_blob)?;
        self.blob(data, name)
    }

    /// The algorithm and the hash of a document's text.
    pub(super) fn document_hash<'a>(&self, data: &'a [u8], row: u32) -> Option<(&'a [u8], &'a [u8])> {
        let mut row = Cursor::new(self.documents.get(data, row)?);
        let _name = index(&mut row, self.wide_blob)?;
        let algorithm = index(&mut row, self.wide_guid)?;
        let hash = index(&mut row, self.wide_blob)?;
        Some((self.guid(data, algorithm)?, self.blob(data, hash)?))
    }

    /// ECMA-335 II.24.2.4: a blob by its offset in the heap.
    pub(super) fn blob<'a>(&self, data: &'a [u8], at: u32) -> Option<&'a [u8]> {
        let mut cursor = Cursor::new(data.get(self.blobs.clone())?.get(at as usize..)?);
        let len = cursor.compressed()?;
        cursor.bytes(len as usize)
    }
}

impl MetadataTable {
    /// The bytes of a row, counted from 1.
    fn get<'a>(&self, data: &'a [u8], row: u32) -> Option<&'a [u8]> {
        if row == 0 || row > self.rows {
            return None;
        }
        let start = self.start + self.row * (row as usize - 1);
        data.get(start..start + self.row)
    }
}

/// A document, by its row, as that beside which something is written.
pub(super) fn beside(document: u32) -> Option<u32> {
    Some(document.checked_mul(1 << TAG_BITS)? | DOCUMENT_TAG)
}

/// An index of 2 or 4 bytes.
fn index(cursor: &mut Cursor<'_>, wide: bool) -> Option<u32> {
    if wide { cursor.u32() } else { cursor.u16().map(u32::from) }
}

/// Adds how many rows the tables of the assembly have, which the stream #Pdb states.
fn assembly_rows(pdb: &[u8], rows: &mut [u32; 64]) -> Option<()> {
    let mut cursor = Cursor::new(pdb);
    cursor.bytes(24)?; // id and entry point
    let present = cursor.u64()?;
    for table in (0..DOCUMENT).filter(|table| present >> table & 1 != 0) {
        rows[table] = cursor.u32()?;
    }
    Some(())
}

/// The streams that are used. Their ranges are in the file.
#[derive(Default)]
struct Streams {
    pdb: Option<Range<usize>>,
    tables: Option<Range<usize>>,
    blobs: Option<Range<usize>>,
    guids: Option<Range<usize>>,
}

impl Streams {
    /// ECMA-335 II.24.2.1, "metadata root".
    fn parse(data: &[u8]) -> Option<Streams> {
        let mut cursor = Cursor::new(data);
        cursor.bytes(12)?;
        let version = cursor.u32()? as usize;
        cursor.bytes(version.checked_next_multiple_of(4)?)?;
        let _flags = cursor.u16()?;
        let mut streams = Streams::default();
        for _ in 0..cursor.u16()? {
            let start = cursor.u32()? as usize;
            let end = start.checked_add(cursor.u32()? as usize)?;
            let name = stream_name(&mut cursor)?;
            let slot = match name {
                b"#Pdb" => &mut streams.pdb,
                b"#~" => &mut streams.tables,
                b"#Blob" => &mut streams.blobs,
                b"#GUID" => &mut streams.guids,
                _ => continue,
            };
            data.get(start..end)?;
            *slot = Some(start..end);
        }
        Some(streams)
    }
}

/// A name that ends in zeros up to a multiple of 4 bytes.
fn stream_name<'a>(cursor: &mut Cursor<'a>) -> Option<&'a [u8]> {
    let mut rest = *cursor;
    let mut len = 0;
    while rest.u8()? != 0 {
        len += 1;
        if len > 32 {
            return None;
        }
    }
    let name = cursor.bytes((len + 1usize).next_multiple_of(4))?;
    Some(&name[..len])
}
