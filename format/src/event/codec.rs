//! How the fields of events are stored: one type for each of SPEC.md's terms, which both writes and
//! reads.

use crate::Malformed;
use crate::bytes::{Counter, Cursor, NoRoom, Sink};
use alloc::vec::Vec;
use stk_schema::event::{ModuleFlags, RunState, ThreadFlags};
use stk_schema::identity::ContentHash;
use stk_schema::limits;

/// The times that a body's times are relative to.
pub struct Ticks {
    /// The block's first time.
    pub base: u64,
    /// The last time that was put or read in this body.
    last: u64,
}

impl Ticks {
    pub fn new(base: u64) -> Ticks {
        Ticks { base, last: base }
    }
}

/// How a field of type `T` is stored.
pub trait Codec<'a, T> {
    fn put(value: &T, ticks: &mut Ticks, out: &mut impl Sink) -> Result<(), NoRoom>;

    fn read(c: &mut Cursor<'a>, ticks: &mut Ticks) -> Result<T, Malformed>;

    /// Whether readers accept `value`; the error names the limit that it breaks.
    fn check(_value: &T) -> Result<(), &'static str> {
        Ok(())
    }

    /// The time that the field states, in ticks.
    fn time(_value: &T) -> Option<u64> {
        None
    }
}

/// An unsigned LEB128 number.
pub struct Varint;

/// A type that a [`Varint`] can hold.
pub trait Number: Sized {
    fn to_u64(&self) -> u64;
    fn from_varint(c: &mut Cursor) -> Result<Self, Malformed>;
}

impl Number for u64 {
    #[inline]
    fn to_u64(&self) -> u64 {
        *self
    }

    #[inline]
    fn from_varint(c: &mut Cursor) -> Result<u64, Malformed> {
        c.varint()
    }
}

impl Number for u32 {
    #[inline]
    fn to_u64(&self) -> u64 {
        u64::from(*self)
    }

    #[inline]
    fn from_varint(c: &mut Cursor) -> Result<u32, Malformed> {
        c.varint32()
    }
}

impl Number for ModuleFlags {
    #[inline]
    fn to_u64(&self) -> u64 {
        self.bits()
    }

    #[inline]
    fn from_varint(c: &mut Cursor) -> Result<ModuleFlags, Malformed> {
        c.varint().map(ModuleFlags::from_bits_retain)
    }
}

impl Number for ThreadFlags {
    #[inline]
    fn to_u64(&self) -> u64 {
        self.bits()
    }

    #[inline]
    fn from_varint(c: &mut Cursor) -> Result<ThreadFlags, Malformed> {
        c.varint().map(ThreadFlags::from_bits_retain)
    }
}

impl Number for RunState {
    #[inline]
    fn to_u64(&self) -> u64 {
        *self as u64
    }

    #[inline]
    fn from_varint(c: &mut Cursor) -> Result<RunState, Malformed> {
        c.varint().map(RunState::from_code)
    }
}

impl<T: Number> Codec<'_, T> for Varint {
    #[inline]
    fn put(value: &T, _: &mut Ticks, out: &mut impl Sink) -> Result<(), NoRoom> {
        out.varint(value.to_u64())
    }

    #[inline]
    fn read(c: &mut Cursor, _: &mut Ticks) -> Result<T, Malformed> {
        T::from_varint(c)
    }
}

/// A time: `signed`, relative to the block's first time.
pub struct Time;

impl Codec<'_, u64> for Time {
    #[inline]
    fn put(value: &u64, ticks: &mut Ticks, out: &mut impl Sink) -> Result<(), NoRoom> {
        ticks.last = *value;
        out.signed(value.wrapping_sub(ticks.base) as i64)
    }

    #[inline]
    fn read(c: &mut Cursor, ticks: &mut Ticks) -> Result<u64, Malformed> {
        ticks.last = ticks.base.wrapping_add(c.signed()? as u64);
        Ok(ticks.last)
    }

    fn time(value: &u64) -> Option<u64> {
        Some(*value)
    }
}

/// A time: a varint, ticks after the time before it in the same body.
pub struct Span;

impl Codec<'_, u64> for Span {
    #[inline]
    fn put(value: &u64, ticks: &mut Ticks, out: &mut impl Sink) -> Result<(), NoRoom> {
        let span = value.wrapping_sub(ticks.last);
        ticks.last = *value;
        out.varint(span)
    }

    #[inline]
    fn read(c: &mut Cursor, ticks: &mut Ticks) -> Result<u64, Malformed> {
        ticks.last = ticks.last.wrapping_add(c.varint()?);
        Ok(ticks.last)
    }

    fn time(value: &u64) -> Option<u64> {
        Some(*value)
    }
}

/// A length of at most `MAX` and that many bytes.
pub struct Counted<const MAX: usize>;

/// A path, name or text.
pub type Name = Counted<{ limits::MAX_NAME }>;
/// Bytes whose length only the block limits.
pub type Bytes = Counted<{ usize::MAX }>;
/// A piece of a BLOB.
pub type Piece = Counted<{ limits::MAX_BLOB_CHUNK }>;

impl<'a, const MAX: usize> Codec<'a, &'a [u8]> for Counted<MAX> {
    #[inline]
    fn put(value: &&'a [u8], _: &mut Ticks, out: &mut impl Sink) -> Result<(), NoRoom> {
        out.bytes(value)
    }

    #[inline]
    fn read(c: &mut Cursor<'a>, _: &mut Ticks) -> Result<&'a [u8], Malformed> {
        c.bytes(MAX)
    }

    fn check(value: &&'a [u8]) -> Result<(), &'static str> {
        if value.len() > MAX { Err("name too long") } else { Ok(()) }
    }
}

/// The body's remaining bytes.
pub struct Rest;

impl<'a> Codec<'a, &'a [u8]> for Rest {
    #[inline]
    fn put(value: &&'a [u8], _: &mut Ticks, out: &mut impl Sink) -> Result<(), NoRoom> {
        out.put(value)
    }

    #[inline]
    fn read(c: &mut Cursor<'a>, _: &mut Ticks) -> Result<&'a [u8], Malformed> {
        c.take(c.remaining())
    }
}

/// The 16 bytes of a content hash.
pub struct Hash;

impl Codec<'_, ContentHash> for Hash {
    #[inline]
    fn put(value: &ContentHash, _: &mut Ticks, out: &mut impl Sink) -> Result<(), NoRoom> {
        out.put(&value.0)
    }

    #[inline]
    fn read(c: &mut Cursor, _: &mut Ticks) -> Result<ContentHash, Malformed> {
        c.array().map(ContentHash)
    }
}

/// The 16 bytes of a UUID or GUID.
pub struct Uuid;

impl Codec<'_, [u8; 16]> for Uuid {
    #[inline]
    fn put(value: &[u8; 16], _: &mut Ticks, out: &mut impl Sink) -> Result<(), NoRoom> {
        out.put(value)
    }

    #[inline]
    fn read(c: &mut Cursor, _: &mut Ticks) -> Result<[u8; 16], Malformed> {
        c.array()
    }
}

/// Four bytes, little-endian.
pub struct U32;

impl Codec<'_, u32> for U32 {
    #[inline]
    fn put(value: &u32, _: &mut Ticks, out: &mut impl Sink) -> Result<(), NoRoom> {
        out.put(&value.to_le_bytes())
    }

    #[inline]
    fn read(c: &mut Cursor, _: &mut Ticks) -> Result<u32, Malformed> {
        c.array().map(u32::from_le_bytes)
    }
}

/// A count, then as many elements.
pub struct List;

/// A type that a [`List`] can hold. `before` is the element before, `None` for the first.
pub trait Element<'a>: Sized {
    /// Most elements of one list.
    const MOST: usize = usize::MAX;
    /// The error for a list with more elements.
    const TOO_MANY: &'static str = "";
    /// Fewest bytes that an element takes.
    const LEAST: usize;

    fn put(&self, before: Option<&Self>, base: u64, out: &mut impl Sink) -> Result<(), NoRoom>;

    fn read(c: &mut Cursor<'a>, before: Option<&Self>, base: u64) -> Result<Self, Malformed>;
}

impl<'a, T: Element<'a>> Codec<'a, Vec<T>> for List {
    #[inline]
    fn put(value: &Vec<T>, ticks: &mut Ticks, out: &mut impl Sink) -> Result<(), NoRoom> {
        put_list(value, ticks.base, out)
    }

    #[inline]
    fn read(c: &mut Cursor<'a>, ticks: &mut Ticks) -> Result<Vec<T>, Malformed> {
        let count = c.count(T::MOST, T::LEAST)?;
        let mut list = Vec::new();
        for _ in 0..count {
            let element = T::read(c, list.last(), ticks.base)?;
            list.push(element);
        }
        Ok(list)
    }

    fn check(value: &Vec<T>) -> Result<(), &'static str> {
        if value.len() > T::MOST { Err(T::TOO_MANY) } else { Ok(()) }
    }
}

/// The stored form of a [`List`].
pub fn put_list<'a, T: Element<'a>>(list: &[T], base: u64, out: &mut impl Sink) -> Result<(), NoRoom> {
    out.varint(list.len() as u64)?;
    let mut before = None;
    for element in list {
        element.put(before, base, out)?;
        before = Some(element);
    }
    Ok(())
}

/// A value that is stored as its type's number, its body's length and its body.
pub trait Body<'a>: Sized {
    /// The number of its type.
    fn kind(&self) -> u64;

    /// The body's stored form.
    fn put_body(&self, base: u64, out: &mut impl Sink) -> Result<(), NoRoom>;

    /// Reads the body of type `kind`. Bytes after the known fields stay unread.
    fn read_body(kind: u64, c: &mut Cursor<'a>, base: u64) -> Result<Self, Malformed>;

    /// Whether readers accept the body; the error names the limit that it breaks.
    fn check(&self) -> Result<(), &'static str>;

    /// The last time among the fields, in ticks.
    fn time(&self) -> Option<u64>;

    /// Type, length and body.
    #[inline]
    fn put(&self, base: u64, out: &mut impl Sink) -> Result<(), NoRoom> {
        let mut length = Counter(0);
        self.put_body(base, &mut length)?;
        out.varint(self.kind())?;
        out.varint(length.0 as u64)?;
        self.put_body(base, out)
    }
}
