//! The fields of every event, in the order in which they are stored. Writing, reading, limits and
//! times all follow from these tables; a test compares them with the rows of `format/SPEC.md`.

use super::codec::*;
use crate::bytes::{Cursor, NoRoom, Sink};
use crate::{DecodeError, LimitError};
use stk_schema::Ticks;
use stk_schema::event::kind::*;
use stk_schema::event::*;
use stk_schema::identity::{CodeView, Identity, PeIdentity};
use stk_schema::limits;

/// The variant `$variant`, both as a pattern and as an expression: with named fields, with a single
/// field `(_)`, or with a struct of fields.
macro_rules! variant {
    ($enum:ident $variant:ident { $($field:ident)* }) => { $enum::$variant { $($field),* } };
    ($enum:ident $variant:ident (_) { $field:ident }) => { $enum::$variant($field) };
    ($enum:ident $variant:ident ($body:ident) { $($field:ident)* }) => {
        $enum::$variant($body { $($field),* })
    };
}

/// Implements [`Body`] for an enum from one table: `TYPE Variant { field: Codec, … } check;` is a
/// row; the check, if there is one, looks at all fields together. `else` names the variant for
/// types that are not in the table.
macro_rules! bodies {
    (
        $enum:ident, $rows:ident, else ($unknown:ident, $rest:ident) [$($else:tt)*]
        $($kind:ident $variant:ident $(($inner:tt))? { $($field:ident: $codec:ident),* } $($sound:path)?;)*
    ) => {
        impl<'a> Body<'a> for $enum<'a> {
            fn kind(&self) -> u64 {
                match self {
                    $($enum::$variant { .. } => $kind,)*
                    #[allow(unused_variables)]
                    $($else)* => *$unknown,
                    // Unreachable: `Event` is non_exhaustive for other crates, but schema and
                    // format change together.
                    #[allow(unreachable_patterns)]
                    _ => u64::MAX,
                }
            }

            fn put_body(&self, base: Ticks, out: &mut impl Sink) -> Result<(), NoRoom> {
                let times = &mut Times::new(base);
                match self {
                    $(variant!($enum $variant $(($inner))? { $($field)* }) => {
                        $(<$codec as Codec<_>>::put($field, times, out)?;)*
                        Ok(())
                    })*
                    #[allow(unused_variables)]
                    $($else)* => out.put($rest),
                    #[allow(unreachable_patterns)]
                    _ => Ok(()),
                }
            }

            #[inline]
            fn read_body($unknown: u64, c: &mut Cursor<'a>, base: Ticks) -> Result<Self, DecodeError> {
                let times = &mut Times::new(base);
                Ok(match $unknown {
                    $($kind => {
                        $(let $field = <$codec as Codec<_>>::read(c, times)?;)*
                        let body = variant!($enum $variant $(($inner))? { $($field)* });
                        $($sound(&body).map_err(|_| c.malformed())?;)?
                        body
                    })*
                    _ => {
                        let $rest = c.take(c.remaining())?;
                        $($else)*
                    }
                })
            }

            fn check(&self) -> Result<(), LimitError> {
                match self {
                    $(variant!($enum $variant $(($inner))? { $($field)* }) => {
                        $($sound(self)?;)?
                        $(<$codec as Codec<_>>::check($field)?;)*
                        Ok(())
                    })*
                    _ => Ok(()),
                }
            }

            fn time(&self) -> Option<Ticks> {
                match self {
                    $(variant!($enum $variant $(($inner))? { $($field)* }) => {
                        let time = None;
                        $(let time = <$codec as Codec<_>>::time($field).or(time);)*
                        time
                    })*
                    _ => None,
                }
            }
        }

        #[cfg(test)]
        pub(crate) const $rows: &[(u64, &str, &[(&str, &str)])] =
            &[$(($kind, stringify!($kind), &[$((stringify!($field), stringify!($codec))),*])),*];
    };
}

bodies! {
    Event, EVENTS, else (kind, body) [Event::Unknown { kind, body }]
    MODULE_LOAD ModuleLoad(ModuleLoad) {
        instance: Varint, time: Time, base: Varint, size: Varint, flags: Varint, path: Name, identities: List
    };
    MODULE_UNLOAD ModuleUnload { instance: Varint, time: Time };
    MODULE_TABLES ModuleTables(ModuleTables) { instance: Varint, tables: List };
    THREAD_START ThreadStart(ThreadStart) {
        instance: Varint, time: Time, tid: Varint, flags: Varint, start_address: Varint, stack_base: Varint,
        created: Varint
    };
    THREAD_EXIT ThreadExit { instance: Varint, time: Time };
    THREAD_NAME ThreadName { instance: Varint, time: Time, name: Name };
    IDLE Idle(Idle) { thread: Varint, ticks: Varint, first: Time, last: Span, block: Varint, state: Varint };
    CHECK_WALK CheckWalk(CheckWalk) { thread: Varint, time: Time, flags: Varint, frames: List };
    CODE_ADD CodeAdd(CodeAdd) {
        instance: Varint, time: Time, kind: Varint, base: Varint, size: Varint, image_base: Varint,
        function: Bytes, unwind: Bytes, code: Bytes
    };
    CODE_REMOVE CodeRemove { instance: Varint, time: Time };
    METHOD_NAME MethodName(MethodName) { time: Time, base: Varint, size: Varint, source: Varint, name: Name };
    RUNTIME_INFO RuntimeInfo(RuntimeInfo) {
        module: Varint, time: Time, kind: Varint, version: Name, descriptor: Bytes, pointer_data: Bytes, note: Name
    };
    MANAGED_THREAD ManagedThread(ManagedThread) {
        thread: Varint, time: Time, address: Varint, state: Varint, preemptive_disabled: Varint, frame: Varint,
        exception: Varint
    };
    MEMORY Memory(Memory) { thread: Varint, time: Time, address: Varint, bytes: Bytes };
    NETTRACE Nettrace(Nettrace) { session: Varint, time: Time, offset: Varint, bytes: Bytes };
    EXCEPTION Exception(Exception) { thread: Varint, time: Time, code: Varint, address: Varint };
    MARK Mark(Mark) { time: Time, thread: Varint, tag: Varint, text: Name };
    RATE_CHANGE RateChange(RateChange) { time: Time, rate_mhz: Varint };
    REDACTION Redaction(Redaction) { rule: Name, words: Varint };
    PARENT Parent(Parent) { pid: Varint, created: Varint, trace: Uuid };
    CLOCK Clock(Clock) { time: Time, utc: Varint };
    DROPPED Dropped(Dropped) { time: Time, reason: Varint, thread: Varint, count: Varint };
    METADATA Metadata(Metadata) { key: Name, value: Bytes };
    BLOB Blob(Blob) { hash: Hash, total: Varint, offset: Varint, bytes: Piece } check_piece;
    INDEX Index(_) { entries: List };
    END End(End) { time: Time, reason: Varint, samples: Varint, dropped: Varint, detail: Name };
    THREAD_CPU ThreadCpu(ThreadCpu) { thread: Varint, time: Time, cpu: Signed };
    MODULE_STATE ModuleState(ModuleState) {
        time: Time, modules: Varint, modules_hash: Hash, ranges: Varint, ranges_hash: Hash
    };
    METHOD_BODY MethodBody(MethodBody) {
        time: Time, instance: Varint, base: Varint, size: Varint, flags: Varint, source: Varint, code: Bytes,
        gc_info: Bytes
    };
    FRAME_METHOD FrameMethod(FrameMethod) {
        module: Varint, time: Time, kind: Varint, address: Varint, slot: Varint, source: Varint, name: Name
    };
}

/// Whether the piece of a BLOB is within the limits and within its BLOB.
fn check_piece(event: &Event) -> Result<(), LimitError> {
    let Event::Blob(blob) = event else { return Ok(()) };
    if blob.total > limits::MAX_BLOB || blob.bytes.len() > limits::MAX_BLOB_CHUNK {
        return Err(LimitError::BlobTooLarge);
    }
    let end = blob.offset.checked_add(blob.bytes.len() as u64);
    if end.is_none_or(|end| end > blob.total) { Err(LimitError::BlobPieceBeyondEnd) } else { Ok(()) }
}

/// Tags of identities.
const IDENTITY_PE: u64 = 1;
const IDENTITY_CODEVIEW: u64 = 2;
const IDENTITY_ELF: u64 = 3;
const IDENTITY_HEADER_HASH: u64 = 4;

bodies! {
    Identity, IDENTITIES, else (tag, body) [Identity::Unknown(tag, body)]
    IDENTITY_PE Pe(PeIdentity) { time_date_stamp: U32, size_of_image: U32, check_sum: U32 };
    IDENTITY_CODEVIEW CodeView(CodeView) { guid: Uuid, age: U32, pdb_name: Remainder };
    IDENTITY_ELF ElfBuildId(_) { id: Remainder };
    IDENTITY_HEADER_HASH HeaderHash(_) { hash: Hash };
}

impl<'a> Element<'a> for Identity<'a> {
    const MOST: Option<(usize, LimitError)> = Some((64, LimitError::TooManyIdentities));
    const LEAST: usize = 2;

    fn put(&self, _: Option<&Self>, base: Ticks, out: &mut impl Sink) -> Result<(), NoRoom> {
        Body::put(self, base, out)
    }

    fn read(c: &mut Cursor<'a>, _: Option<&Self>, base: Ticks) -> Result<Self, DecodeError> {
        let tag = c.varint()?;
        let body = c.bytes(limits::MAX_NAME + 20)?;
        Self::read_body(tag, &mut Cursor::new(body), base)
    }
}

/// Implements [`Element`] for a struct whose elements do not depend on each other.
macro_rules! record {
    ($struct:ident, $row:ident, $least:literal { $($field:ident: $codec:ident),* }) => {
        impl Element<'_> for $struct {
            const LEAST: usize = $least;

            fn put(&self, _: Option<&Self>, base: Ticks, out: &mut impl Sink) -> Result<(), NoRoom> {
                let times = &mut Times::new(base);
                $(<$codec as Codec<_>>::put(&self.$field, times, out)?;)*
                Ok(())
            }

            fn read(c: &mut Cursor, _: Option<&Self>, base: Ticks) -> Result<Self, DecodeError> {
                let times = &mut Times::new(base);
                $(let $field = <$codec as Codec<_>>::read(c, times)?;)*
                Ok($struct { $($field),* })
            }
        }

        #[cfg(test)]
        pub(crate) const $row: &[(&str, &str)] = &[$((stringify!($field), stringify!($codec))),*];
    };
}

record! { ImageTable, TABLE, 19 { kind: Varint, rva: Varint, len: Varint, hash: Hash } }

/// An address of a list: its difference to the address before; for the first one, to 0.
impl Element<'_> for u64 {
    const MOST: Option<(usize, LimitError)> = Some((limits::MAX_WALK_FRAMES, LimitError::TooManyFrames));
    const LEAST: usize = 1;

    fn put(&self, before: Option<&u64>, _: Ticks, out: &mut impl Sink) -> Result<(), NoRoom> {
        out.signed(self.wrapping_sub(before.copied().unwrap_or(0)) as i64)
    }

    fn read(c: &mut Cursor, before: Option<&u64>, _: Ticks) -> Result<u64, DecodeError> {
        Ok(before.copied().unwrap_or(0).wrapping_add(c.signed()? as u64))
    }
}

/// A frame of CHECK_WALK: each of both addresses is stored as in a list of its own.
impl Element<'_> for (u64, u64) {
    const MOST: Option<(usize, LimitError)> = Some((limits::MAX_WALK_FRAMES, LimitError::TooManyFrames));
    const LEAST: usize = 2;

    fn put(&self, before: Option<&Self>, base: Ticks, out: &mut impl Sink) -> Result<(), NoRoom> {
        self.0.put(before.map(|(ip, _)| ip), base, out)?;
        self.1.put(before.map(|(_, sp)| sp), base, out)
    }

    fn read(c: &mut Cursor, before: Option<&Self>, base: Ticks) -> Result<Self, DecodeError> {
        let ip = u64::read(c, before.map(|(ip, _)| ip), base)?;
        Ok((ip, u64::read(c, before.map(|(_, sp)| sp), base)?))
    }
}

/// An entry of INDEX, as SPEC.md's section 7 specifies it.
impl Element<'_> for IndexEntry {
    const LEAST: usize = 5;

    fn put(&self, before: Option<&Self>, base: Ticks, out: &mut impl Sink) -> Result<(), NoRoom> {
        let (offset, seq, first) = before.map_or((0, 0, base), |e| (e.offset, e.seq, e.first));
        out.varint(self.offset.wrapping_sub(offset))?;
        out.varint(self.seq.wrapping_sub(seq))?;
        out.put(&[self.kind])?;
        out.signed(self.first.0.wrapping_sub(first.0) as i64)?;
        out.varint(self.last.0.wrapping_sub(self.first.0))
    }

    fn read(c: &mut Cursor, before: Option<&Self>, base: Ticks) -> Result<Self, DecodeError> {
        let (offset, seq, first) = before.map_or((0, 0, base), |e| (e.offset, e.seq, e.first));
        let offset = offset.wrapping_add(c.varint()?);
        let seq = seq.wrapping_add(c.varint()?);
        let [kind] = c.array()?;
        let first = Ticks(first.0.wrapping_add(c.signed()? as u64));
        let last = Ticks(first.0.wrapping_add(c.varint()?));
        Ok(IndexEntry { offset, seq, kind, first, last })
    }
}
