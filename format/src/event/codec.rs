//! How the fields of events are stored: one type for each of SPEC.md's terms, which both writes and
//! reads.

use crate::bytes::{Counter, Cursor, NoRoom, Sink};
use crate::{DecodeError, LimitError};
use alloc::vec::Vec;
use stk_schema::Ticks;
use stk_schema::event::{ModuleFlags, RunState, ThreadFlags};
use stk_schema::identity::ContentHash;
use stk_schema::limits;

/// The times that a body's times are relative to.
pub(super) struct Times {
    /// The block's first time.
    pub base: Ticks,
    /// The last time that was put or read in this body.
    last: Ticks,
}

impl Times {
    pub(super) fn new(base: Ticks) -> Times {
        Times { base, last: base }
    }
}

/// How a field of type `T` is stored.
pub(super) trait Codec<'a, T> {
    fn put(value: &T, times: &mut Times, out: &mut impl Sink) -> Result<(), NoRoom>;

    fn read(c: &mut Cursor<'a>, times: &mut Times) -> Result<T, DecodeError>;

    /// Whether readers accept `value`; the error names the limit that it breaks.
    fn check(_value: &T) -> Result<(), LimitError> {
        Ok(())
    }

    /// The time that the field states.
    fn time(_value: &T) -> Option<Ticks> {
        None
    }
}

/// An unsigned LEB128 number.
pub(super) struct Varint;

/// A type that a [`Varint`] can hold.
pub(super) trait Number: Sized {
    fn to_u64(&self) -> u64;
    fn from_varint(c: &mut Cursor) -> Result<Self, DecodeError>;
}

impl Number for u64 {
    #[inline]
    fn to_u64(&self) -> u64 {
        *self
    }

    #[inline]
    fn from_varint(c: &mut Cursor) -> Result<u64, DecodeError> {
        c.varint()
    }
}

impl Number for u32 {
    #[inline]
    fn to_u64(&self) -> u64 {
        u64::from(*self)
    }

    #[inline]
    fn from_varint(c: &mut Cursor) -> Result<u32, DecodeError> {
        c.varint32()
    }
}

impl Number for ModuleFlags {
    #[inline]
    fn to_u64(&self) -> u64 {
        self.bits()
    }

    #[inline]
    fn from_varint(c: &mut Cursor) -> Result<ModuleFlags, DecodeError> {
        c.varint().map(ModuleFlags::from_bits_retain)
    }
}

impl Number for ThreadFlags {
    #[inline]
    fn to_u64(&self) -> u64 {
        self.bits()
    }

    #[inline]
    fn from_varint(c: &mut Cursor) -> Result<ThreadFlags, DecodeError> {
        c.varint().map(ThreadFlags::from_bits_retain)
    }
}

impl Number for RunState {
    #[inline]
    fn to_u64(&self) -> u64 {
        *self as u64
    }

    #[inline]
    fn from_varint(c: &mut Cursor) -> Result<RunState, DecodeError> {
        c.varint().map(RunState::from_code)
    }
}

impl<T: Number> Codec<'_, T> for Varint {
    #[inline]
    fn put(value: &T, _: &mut Times, out: &mut impl Sink) -> Result<(), NoRoom> {
        out.varint(value.to_u64())
    }

    #[inline]
    fn read(c: &mut Cursor, _: &mut Times) -> Result<T, DecodeError> {
        T::from_varint(c)
    }
}

/// A signed number, zigzag.
pub(super) struct Signed;

impl Codec<'_, i64> for Signed {
    #[inline]
    fn put(value: &i64, _: &mut Times, out: &mut impl Sink) -> Result<(), NoRoom> {
        out.signed(*value)
    }

    #[inline]
    fn read(c: &mut Cursor, _: &mut Times) -> Result<i64, DecodeError> {
        c.signed()
    }
}

/// A time: `signed`, relative to the block's first time.
pub(super) struct Time;

impl Codec<'_, Ticks> for Time {
    #[inline]
    fn put(value: &Ticks, times: &mut Times, out: &mut impl Sink) -> Result<(), NoRoom> {
        times.last = *value;
        out.signed(value.0.wrapping_sub(times.base.0) as i64)
    }

    #[inline]
    fn read(c: &mut Cursor, times: &mut Times) -> Result<Ticks, DecodeError> {
        times.last = Ticks(times.base.0.wrapping_add(c.signed()? as u64));
        Ok(times.last)
    }

    fn time(value: &Ticks) -> Option<Ticks> {
        Some(*value)
    }
}

/// A time: a varint, ticks after the time before it in the same body.
pub(super) struct Span;

impl Codec<'_, Ticks> for Span {
    #[inline]
    fn put(value: &Ticks, times: &mut Times, out: &mut impl Sink) -> Result<(), NoRoom> {
        let span = value.0.wrapping_sub(times.last.0);
        times.last = *value;
        out.varint(span)
    }

    #[inline]
    fn read(c: &mut Cursor, times: &mut Times) -> Result<Ticks, DecodeError> {
        times.last = Ticks(times.last.0.wrapping_add(c.varint()?));
        Ok(times.last)
    }

    fn time(value: &Ticks) -> Option<Ticks> {
        Some(*value)
    }
}

/// A length of at most `MAX` and that many bytes.
pub(super) struct LengthPrefixed<const MAX: usize>;

/// A path, name or text.
pub(super) type Name = LengthPrefixed<{ limits::MAX_NAME }>;
/// Bytes whose length only the block limits.
pub(super) type Bytes = LengthPrefixed<{ usize::MAX }>;
/// A piece of a BLOB.
pub(super) type Piece = LengthPrefixed<{ limits::MAX_BLOB_CHUNK }>;

impl<'a, const MAX: usize> Codec<'a, &'a [u8]> for LengthPrefixed<MAX> {
    #[inline]
    fn put(value: &&'a [u8], _: &mut Times, out: &mut impl Sink) -> Result<(), NoRoom> {
        out.bytes(value)
    }

    #[inline]
    fn read(c: &mut Cursor<'a>, _: &mut Times) -> Result<&'a [u8], DecodeError> {
        c.bytes(MAX)
    }

    fn check(value: &&'a [u8]) -> Result<(), LimitError> {
        if value.len() > MAX { Err(LimitError::NameTooLong) } else { Ok(()) }
    }
}

/// The body's remaining bytes.
pub(super) struct Remainder;

impl<'a> Codec<'a, &'a [u8]> for Remainder {
    #[inline]
    fn put(value: &&'a [u8], _: &mut Times, out: &mut impl Sink) -> Result<(), NoRoom> {
        out.put(value)
    }

    #[inline]
    fn read(c: &mut Cursor<'a>, _: &mut Times) -> Result<&'a [u8], DecodeError> {
        c.take(c.remaining())
    }
}

/// The 16 bytes of a content hash.
pub(super) struct Hash;

impl Codec<'_, ContentHash> for Hash {
    #[inline]
    fn put(value: &ContentHash, _: &mut Times, out: &mut impl Sink) -> Result<(), NoRoom> {
        out.put(&value.0)
    }

    #[inline]
    fn read(c: &mut Cursor, _: &mut Times) -> Result<ContentHash, DecodeError> {
        c.array().map(ContentHash)
    }
}

/// The 16 bytes of a UUID or GUID.
pub(super) struct Uuid;

impl Codec<'_, [u8; 16]> for Uuid {
    #[inline]
    fn put(value: &[u8; 16], _: &mut Times, out: &mut impl Sink) -> Result<(), NoRoom> {
        out.put(value)
    }

    #[inline]
    fn read(c: &mut Cursor, _: &mut Times) -> Result<[u8; 16], DecodeError> {
        c.array()
    }
}

/// Four bytes, little-endian.
pub(super) struct U32;

impl Codec<'_, u32> for U32 {
    #[inline]
    fn put(value: &u32, _: &mut Times, out: &mut impl Sink) -> Result<(), NoRoom> {
        out.put(&value.to_le_bytes())
    }

    #[inline]
    fn read(c: &mut Cursor, _: &mut Times) -> Result<u32, DecodeError> {
        c.array().map(u32::from_le_bytes)
    }
}

/// A count, then as many elements.
pub(super) struct List;

/// A type that a [`List`] can hold. `before` is the element before, `None` for the first.
pub(super) trait Element<'a>: Sized {
    /// Most elements of one list, and the error for more. `None`: as many as the block holds.
    const MOST: Option<(usize, LimitError)> = None;
    /// Fewest bytes that an element takes.
    const LEAST: usize;

    fn put(&self, before: Option<&Self>, base: Ticks, out: &mut impl Sink) -> Result<(), NoRoom>;

    fn read(c: &mut Cursor<'a>, before: Option<&Self>, base: Ticks) -> Result<Self, DecodeError>;
}

impl<'a, T: Element<'a>> Codec<'a, Vec<T>> for List {
    #[inline]
    fn put(value: &Vec<T>, times: &mut Times, out: &mut impl Sink) -> Result<(), NoRoom> {
        put_list(value, times.base, out)
    }

    #[inline]
    fn read(c: &mut Cursor<'a>, times: &mut Times) -> Result<Vec<T>, DecodeError> {
        let count = c.count(T::MOST.map_or(usize::MAX, |(most, _)| most), T::LEAST)?;
        let mut list = Vec::new();
        for _ in 0..count {
            let element = T::read(c, list.last(), times.base)?;
            list.push(element);
        }
        Ok(list)
    }

    fn check(value: &Vec<T>) -> Result<(), LimitError> {
        match T::MOST {
            Some((most, error)) if value.len() > most => Err(error),
            _ => Ok(()),
        }
    }
}

/// The stored form of a [`List`].
pub(super) fn put_list<'a, T: Element<'a>>(
    list: &[T],
    base: Ticks,
    out: &mut impl Sink,
) -> Result<(), NoRoom> {
    out.varint(list.len() as u64)?;
    let mut before = None;
    for element in list {
        element.put(before, base, out)?;
        before = Some(element);
    }
    Ok(())
}

/// A value that is stored as its type's number, its body's length and its body.
pub(super) trait Body<'a>: Sized {
    /// The number of its type.
    fn kind(&self) -> u64;

    /// The body's stored form.
    fn put_body(&self, base: Ticks, out: &mut impl Sink) -> Result<(), NoRoom>;

    /// Reads the body of type `kind`. What follows the known fields stays unread.
    fn read_body(kind: u64, c: &mut Cursor<'a>, base: Ticks) -> Result<Self, DecodeError>;

    /// Whether readers accept the body; the error names the limit that it breaks.
    fn check(&self) -> Result<(), LimitError>;

    /// The last time among the fields.
    fn time(&self) -> Option<Ticks>;

    /// Type, length and body.
    #[inline]
    fn put(&self, base: Ticks, out: &mut impl Sink) -> Result<(), NoRoom> {
        let mut length = Counter(0);
        self.put_body(base, &mut length)?;
        out.varint(self.kind())?;
        out.varint(length.0 as u64)?;
        self.put_body(base, out)
    }
}
