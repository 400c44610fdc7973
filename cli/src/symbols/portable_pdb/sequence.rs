//! Sequence points: which source line an IL offset begins ("Portable PDB Format Specification",
//! "Sequence Points Blob").

use crate::model::bytes::Cursor;

/// The beginning of a source line in a method's IL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SequencePoint {
    /// Bytes from the beginning of the IL.
    pub offset: u32,
    /// Row of the document.
    pub document: u32,
    /// First line, from 1; `None` if the point is hidden.
    pub line: Option<u32>,
}

/// Reads the points of one method, in the order of their offsets. Ends where the bytes make no
/// sense.
pub(super) struct SequencePoints<'a> {
    cursor: Cursor<'a>,
    document: u32,
    /// The last point's offset.
    offset: Option<u32>,
    /// The last line and column that were not hidden.
    last: Option<(u32, u32)>,
}

impl<'a> SequencePoints<'a> {
    /// `document`: the row that the method's record gives; 0: the blob tells.
    pub fn new(blob: &'a [u8], document: u32) -> Option<SequencePoints<'a>> {
        let mut cursor = Cursor::new(blob);
        if blob.is_empty() {
            return Some(SequencePoints { cursor, document, offset: None, last: None });
        }
        let _local_signature = cursor.compressed()?;
        let document = if document == 0 { cursor.compressed()? } else { document };
        Some(SequencePoints { cursor, document, offset: None, last: None })
    }

    fn read(&mut self) -> Option<SequencePoint> {
        let cursor = &mut self.cursor;
        let offset = loop {
            let delta = cursor.compressed()?;
            match self.offset {
                None => break delta,
                // A record that changes the document.
                Some(_) if delta == 0 => self.document = cursor.compressed()?,
                Some(last) => break last.checked_add(delta)?,
            }
        };
        self.offset = Some(offset);
        let lines = cursor.compressed()?;
        let columns =
            if lines == 0 { i64::from(cursor.compressed()?) } else { i64::from(cursor.compressed_signed()?) };
        if lines == 0 && columns == 0 {
            return Some(SequencePoint { offset, document: self.document, line: None });
        }
        let (line, column) = match self.last {
            None => (cursor.compressed()?, cursor.compressed()?),
            Some((line, column)) => (
                line.checked_add_signed(cursor.compressed_signed()?)?,
                column.checked_add_signed(cursor.compressed_signed()?)?,
            ),
        };
        self.last = Some((line, column));
        Some(SequencePoint { offset, document: self.document, line: Some(line) })
    }
}

impl Iterator for SequencePoints<'_> {
    type Item = SequencePoint;

    fn next(&mut self) -> Option<SequencePoint> {
        if self.cursor.is_empty() { None } else { self.read() }
    }
}
