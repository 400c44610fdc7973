//! Sequence points: the source lines that begin at IL offsets ("Portable PDB Format Specification",
//! "Sequence Points Blob").

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use stk_base::model::bytes::Cursor;

/// Bytes of sequence points that may be read for each stored byte. Methods could share the same
/// points, and each reads them separately.
const EXPANSION: usize = 16;
/// The same for the smallest file.
const LEAST_ROOM: usize = 1 << 20;
/// Limit for the [`VisiblePoint`]s that are kept.
const MAX_KEPT: usize = 4 << 20;

/// A sequence point that is not hidden.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct VisiblePoint {
    /// Bytes from the beginning of the IL.
    pub offset: u32,
    /// Row of the document.
    pub document: u32,
    /// First line, from 1.
    pub line: u32,
}

/// The points of the methods that were looked up, in the order of their offsets.
#[derive(Debug)]
pub(super) struct MethodPoints(Mutex<PointCache>);

#[derive(Debug)]
struct PointCache {
    /// By their offset in the file, and the document that the method's record states.
    points: HashMap<(usize, u32), Arc<[VisiblePoint]>>,
    /// The number of these points.
    kept: usize,
    /// Bytes that may still be read.
    room: usize,
}

impl MethodPoints {
    /// For a file of `stored` bytes.
    pub(super) fn new(stored: usize) -> MethodPoints {
        let room = stored.saturating_mul(EXPANSION).saturating_add(LEAST_ROOM);
        MethodPoints(Mutex::new(PointCache { points: HashMap::new(), kept: 0, room }))
    }

    /// The points in `blob`, which is in `data`. `None`: it is invalid, or the methods together
    /// are far longer than the file.
    pub(super) fn decode(&self, data: &[u8], blob: &[u8], document: u32) -> Option<Arc<[VisiblePoint]>> {
        let key = ((blob.as_ptr() as usize).wrapping_sub(data.as_ptr() as usize), document);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(points) = known.points.get(&key) {
            return Some(points.clone());
        }
        known.room = known.room.checked_sub(blob.len() + 1)?;
        let points = SequencePoints::new(blob, document)?;
        let points: Arc<[VisiblePoint]> = points
            .filter_map(|point| {
                Some(VisiblePoint { offset: point.offset, document: point.document, line: point.line? })
            })
            .collect();
        known.kept += points.len();
        if known.kept > MAX_KEPT {
            known.points.clear();
            known.kept = points.len();
        }
        known.points.insert(key, points.clone());
        Some(points)
    }
}

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

/// Reads the points of one method, in the order of their offsets. Ends at the first invalid byte.
pub(super) struct SequencePoints<'a> {
    cursor: Cursor<'a>,
    document: u32,
    /// The last point's offset.
    offset: Option<u32>,
    /// The last line and column that were not hidden.
    last: Option<(u32, u32)>,
}

impl<'a> SequencePoints<'a> {
    /// `document` is the row that the method's record states. If it is 0, the blob states the row.
    pub(super) fn new(blob: &'a [u8], document: u32) -> Option<SequencePoints<'a>> {
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
                // This record changes the document.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_points_are_read_up_to_a_limit_and_each_method_once() {
        // Every 2 is a number, and each of them can begin a list of points up to the end.
        let data = vec![2; 1 << 20];
        let methods = MethodPoints::new(data.len());
        let decode = |n: usize| methods.decode(&data, &data[n..], 1);
        let whole = decode(0).unwrap();
        assert!(whole.len() > data.len() / 8);
        let read = (0..200).filter(|&n| decode(n).is_some()).count();
        assert!((2..=EXPANSION + 1).contains(&read), "{read}");
        let methods = MethodPoints::new(data.len());
        assert!((0..200).all(|_| methods.decode(&data, &data, 1).is_some_and(|points| points == whole)));
    }
}
