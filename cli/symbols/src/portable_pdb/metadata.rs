//! Finds the tables and heaps of a portable PDB.

use super::PortablePdbError::{self, Corrupted, NotPortable};
use std::ops::Range;
use stk_base::model::bytes::Cursor;

/// ECMA-335 II.24.2.1.
const SIGNATURE: [u8; 4] = *b"BSJB";

/// Numbers of tables.
const DOCUMENT: usize = 0x30;
const METHOD_DEBUG_INFORMATION: usize = 0x31;

/// Bits of HeapSizes (ECMA-335 II.24.2.6): indices into the heap have 4 bytes.
const WIDE_GUID: u8 = 2;
const WIDE_BLOB: u8 = 4;

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
    documents: MetadataTable,
    pub methods: MetadataTable,
    blobs: Range<usize>,
    wide_blob: bool,
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
        let guid = Cursor::new(&data[pdb]).guid().ok_or(Corrupted("its id ends early"))?;
        let mut layout = MetadataLayout {
            guid,
            documents: MetadataTable::default(),
            methods: MetadataTable::default(),
            blobs,
            wide_blob: false,
        };
        layout.tables(data, tables).ok_or(Corrupted("its tables end early"))?;
        Ok(layout)
    }

    /// ECMA-335 II.24.2.6, "#~ stream".
    fn tables(&mut self, data: &[u8], stream: Range<usize>) -> Option<()> {
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
        let index = |wide: bool| if wide { 4 } else { 2 };
        self.wide_blob = heaps & WIDE_BLOB != 0;
        let (guid, blob) = (index(heaps & WIDE_GUID != 0), index(self.wide_blob));
        let document = index(rows[DOCUMENT] > 0xFFFF);
        let mut table = |rows: u32, row: usize| {
            let start = stream.start + cursor.at();
            cursor.bytes(row.checked_mul(rows as usize)?)?;
            Some(MetadataTable { start, row, rows })
        };
        self.documents = table(rows[DOCUMENT], 2 * blob + 2 * guid)?;
        self.methods = table(rows[METHOD_DEBUG_INFORMATION], document + blob)?;
        Some(())
    }

    /// Document row (0 = several) and sequence points of a method, by the method's row.
    pub(super) fn method<'a>(&self, data: &'a [u8], row: u32) -> Option<(u32, &'a [u8])> {
        let mut row = Cursor::new(self.methods.get(data, row)?);
        let document = if self.documents.rows > 0xFFFF { row.u32()? } else { row.u16()?.into() };
        let points = self.index(&mut row)?;
        Some((document, self.blob(data, points)?))
    }

    /// The name of a document, as a blob.
    pub(super) fn document_name<'a>(&self, data: &'a [u8], row: u32) -> Option<&'a [u8]> {
        let name = self.index(&mut Cursor::new(self.documents.get(data, row)?))?;
        self.blob(data, name)
    }

    /// ECMA-335 II.24.2.4: a blob by its offset in the heap.
    pub(super) fn blob<'a>(&self, data: &'a [u8], at: u32) -> Option<&'a [u8]> {
        let mut cursor = Cursor::new(data.get(self.blobs.clone())?.get(at as usize..)?);
        let len = cursor.compressed()?;
        cursor.bytes(len as usize)
    }

    fn index(&self, cursor: &mut Cursor<'_>) -> Option<u32> {
        if self.wide_blob { cursor.u32() } else { cursor.u16().map(u32::from) }
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

/// The streams that are used. Their ranges are in the file.
#[derive(Default)]
struct Streams {
    pdb: Option<Range<usize>>,
    tables: Option<Range<usize>>,
    blobs: Option<Range<usize>>,
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
