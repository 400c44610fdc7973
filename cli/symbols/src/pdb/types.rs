//! Names of inlined functions: the IPI stream's function ids and, for members, the TPI stream's
//! class names.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell};

use super::error::PdbError;
use super::msf::{Msf, MsfStream};
use stk_base::model::bytes::{c_str_at, u16_at, u32_at};

const LF_FUNC_ID: u16 = 0x1601;
const LF_MFUNC_ID: u16 = 0x1602;
const LF_SUBSTR_LIST: u16 = 0x1604;
const LF_STRING_ID: u16 = 0x1605;
const LF_CLASS: u16 = 0x1504;
const LF_STRUCTURE: u16 = 0x1505;
const LF_UNION: u16 = 0x1506;
const LF_ENUM: u16 = 0x1507;
const LF_INTERFACE: u16 = 0x1519;
const LF_CLASS2: u16 = 0x1608;
const LF_STRUCTURE2: u16 = 0x1609;
const LF_UNION2: u16 = 0x160a;
/// Limit for the nesting of scopes and substring lists, which a damaged file could make a cycle.
const MAX_DEPTH: u32 = 16;
/// Limit for the records that one name is composed of.
const MAX_PARTS: u32 = 1 << 10;
/// Limit for the records and bytes between two entries of a skip list. Linkers write one for every
/// 8 KiB, and a record has up to 64 KiB.
const MAX_SKIP: (u32, u32) = (1 << 12, 80 << 10);
/// Limit for the length of a composed name.
const MAX_NAME: usize = 1 << 16;

/// A TPI or IPI stream, with its records by index.
struct TypeStream<'m> {
    stream: MsfStream<'m>,
    first_index: u32,
    end_index: u32,
    records: usize,
    records_end: usize,
    /// (index, offset among the records) of the first record of every few kilobytes, sorted.
    skips: Vec<(u32, u32)>,
}

/// The two streams together.
pub(super) struct TypeNames<'m> {
    ids: Option<TypeStream<'m>>,
    types_stream: Option<MsfStream<'m>>,
    msf: &'m Msf<'m>,
    types: OnceCell<Option<TypeStream<'m>>>,
    /// Records that were skipped, and other work in the same unit.
    work: Cell<usize>,
}

impl<'m> TypeNames<'m> {
    /// Opens the two streams. Either may be missing.
    pub(super) fn open(
        msf: &'m Msf<'m>,
        ids: Option<MsfStream<'m>>,
        types: Option<MsfStream<'m>>,
    ) -> TypeNames<'m> {
        TypeNames {
            ids: ids.and_then(|stream| TypeStream::open(msf, stream).ok()),
            types_stream: types,
            msf,
            types: OnceCell::new(),
            work: Cell::new(0),
        }
    }

    /// The work since the last call: records that were skipped, and other work in the same unit.
    pub(super) fn take_work(&self) -> usize {
        self.work.take()
    }

    /// The qualified name of the function with this id, without its parameters.
    pub(super) fn function(&self, id: u32) -> Option<Vec<u8>> {
        let record = self.ids.as_ref()?.record(id, &self.work)?;
        let name = c_str_at(&record, 10)?;
        let scope = u32_at(&record, 2)?;
        let mut out = Vec::with_capacity(name.len() + 32);
        match u16_at(&record, 0)? {
            LF_FUNC_ID if scope != 0 => self.append_string(scope, &mut out, 0, &mut 0)?,
            LF_FUNC_ID => {}
            LF_MFUNC_ID => self.append_class(scope, &mut out)?,
            _ => return None,
        }
        if !out.is_empty() {
            out.extend_from_slice(b"::");
        }
        out.extend_from_slice(name);
        (out.len() <= MAX_NAME).then_some(out)
    }

    fn append_string(&self, id: u32, out: &mut Vec<u8>, depth: u32, parts: &mut u32) -> Option<()> {
        *parts += 1;
        if depth > MAX_DEPTH || *parts > MAX_PARTS || out.len() > MAX_NAME {
            return None;
        }
        let record = self.ids.as_ref()?.record(id, &self.work)?;
        match u16_at(&record, 0)? {
            LF_STRING_ID => {
                let list = u32_at(&record, 2)?;
                if list != 0 {
                    self.append_string(list, out, depth + 1, parts)?;
                }
                out.extend_from_slice(c_str_at(&record, 6)?);
                Some(())
            }
            LF_SUBSTR_LIST => {
                let count = u32_at(&record, 2)? as usize;
                for part in record.get(6..)?.chunks_exact(4).take(count) {
                    self.append_string(u32_at(part, 0)?, out, depth + 1, parts)?;
                }
                Some(())
            }
            _ => None,
        }
    }

    fn append_class(&self, index: u32, out: &mut Vec<u8>) -> Option<()> {
        let types = self
            .types
            .get_or_init(|| self.types_stream.and_then(|stream| TypeStream::open(self.msf, stream).ok()))
            .as_ref()?;
        let record = types.record(index, &self.work)?;
        // Offset of the numeric leaf in front of the name. Enumerations have none.
        let at = match u16_at(&record, 0)? {
            LF_CLASS | LF_STRUCTURE | LF_INTERFACE => after_number(&record, 18)?,
            LF_UNION => after_number(&record, 10)?,
            LF_CLASS2 | LF_STRUCTURE2 => after_number(&record, 20)?,
            LF_UNION2 => after_number(&record, 12)?,
            LF_ENUM => 14,
            _ => return None,
        };
        out.extend_from_slice(c_str_at(&record, at)?);
        Some(())
    }
}

impl<'m> TypeStream<'m> {
    fn open(msf: &'m Msf<'m>, stream: MsfStream<'m>) -> Result<TypeStream<'m>, PdbError> {
        let bad = || PdbError::corrupt("type stream header", 0);
        let header = stream.read(0, 56).ok_or_else(bad)?;
        let word = |at: usize| u32_at(&header, at).unwrap_or(0);
        let (records, bytes) = (word(4) as usize, word(16) as usize);
        let records_end = records.checked_add(bytes).filter(|&end| end <= stream.len()).ok_or_else(bad)?;
        let mut types = TypeStream {
            stream,
            first_index: word(8),
            end_index: word(12),
            records,
            records_end,
            skips: Vec::new(),
        };
        let hash_stream =
            u16_at(&header, 20).filter(|&n| n != u16::MAX).and_then(|n| msf.stream(u32::from(n)));
        let (skip_at, skip_bytes) = (word(40) as usize, word(44) as usize);
        types.skips = hash_stream
            .and_then(|hash| hash.read(skip_at, skip_bytes))
            .map(|data| {
                data.chunks_exact(8).filter_map(|s| Some((u32_at(s, 0)?, u32_at(s, 4)?))).collect::<Vec<_>>()
            })
            .filter(|skips| types.is_usable(skips))
            .unwrap_or_else(|| types.make_skips());
        Ok(types)
    }

    /// The record with this index, from its kind on.
    fn record(&self, index: u32, work: &Cell<usize>) -> Option<Cow<'m, [u8]>> {
        if index < self.first_index || index >= self.end_index {
            return None;
        }
        let after = self.skips.partition_point(|skip| skip.0 <= index);
        let &(first, offset) = self.skips[..after].last()?;
        let start = self.records.checked_add(offset as usize)?;
        let end = match self.skips.get(after) {
            Some(&(_, next)) => self.records.checked_add(next as usize)?.min(self.records_end),
            None => self.records_end,
        };
        let run = self.stream.read(start, end.checked_sub(start)?)?;
        let copied = if matches!(run, Cow::Owned(_)) { run.len() / 64 } else { 0 };
        work.set(work.get() + (index - first) as usize + copied + 1);
        let mut at = 0usize;
        for _ in first..index {
            at += 2 + usize::from(u16_at(&run, at)?);
        }
        let range = at + 2..at + 2 + usize::from(u16_at(&run, at)?);
        match run {
            Cow::Borrowed(bytes) => bytes.get(range).map(Cow::Borrowed),
            Cow::Owned(bytes) => bytes.get(range).map(|record| Cow::Owned(record.to_vec())),
        }
    }

    /// Whether a skip list reaches each record in a few steps.
    fn is_usable(&self, skips: &[(u32, u32)]) -> bool {
        let near = |from: (u32, u32), to: (u32, u32)| {
            let steps = to.0.checked_sub(from.0).zip(to.1.checked_sub(from.1));
            steps.is_some_and(|(records, bytes)| records <= MAX_SKIP.0 && bytes <= MAX_SKIP.1)
        };
        let end = (self.end_index, (self.records_end - self.records) as u32);
        skips.first() == Some(&(self.first_index, 0))
            && skips.windows(2).all(|pair| near(pair[0], pair[1]))
            && skips.last().is_some_and(|&last| near(last, end))
    }

    /// Makes the skip list of a stream that has none.
    fn make_skips(&self) -> Vec<(u32, u32)> {
        let Some(data) = self.stream.read(self.records, self.records_end - self.records) else {
            return Vec::new();
        };
        let mut skips = Vec::new();
        let (mut at, mut index) = (0usize, self.first_index);
        while let Some(len) = u16_at(&data, at) {
            let near = |&(first, offset): &(u32, u32)| index - first < 64 && at - (offset as usize) < 8 << 10;
            if !skips.last().is_some_and(near) {
                skips.push((index, at as u32));
            }
            at += 2 + usize::from(len);
            index = index.saturating_add(1);
        }
        skips
    }
}

/// Where the numeric leaf at `at` ends.
fn after_number(record: &[u8], at: usize) -> Option<usize> {
    let size = match u16_at(record, at)? {
        0..0x8000 => 0,
        0x8000 => 1,                   // LF_CHAR
        0x8001 | 0x8002 => 2,          // LF_SHORT, LF_USHORT
        0x8003..=0x8005 => 4,          // LF_LONG, LF_ULONG, LF_REAL32
        0x8006 | 0x8009 | 0x800a => 8, // LF_REAL64, LF_QUADWORD, LF_UQUADWORD
        _ => return None,
    };
    Some(at + 2 + size)
}
