//! How events are stored: `varint type, varint body length, body`. `format/SPEC.md` describes each
//! body.
//!
//! Times are zigzag varints relative to the block's first time. A body may be longer than this
//! version knows. Readers ignore the bytes after its known fields, so later minor versions can add
//! fields.
//!
//! `bodies.rs` lists the fields of each event once; everything here follows from that list.

mod bodies;
mod codec;
#[cfg(test)]
mod tests;

use crate::bytes::{Cursor, LimitedBuffer, NoRoom, Sink};
use crate::{DecodeError, LimitError};
use alloc::vec::Vec;
use codec::{Body, put_list};
use stk_schema::Ticks;
use stk_schema::event::*;

/// The stored form of `event` (type, body length, body) in a block whose first time is `base`.
pub fn encode(event: &Event, base: Ticks) -> Vec<u8> {
    let mut out = Vec::new();
    // An unbounded sink never runs out of room.
    let _ = put(event, base, &mut LimitedBuffer { buf: &mut out, limit: usize::MAX });
    out
}

/// Appends the stored form of `event`; `base` is its block's first time.
pub(crate) fn put(event: &Event, base: Ticks, out: &mut impl Sink) -> Result<(), NoRoom> {
    event.put(base, out)
}

/// Reads the body of an event of type `kind`; `base` is its block's first time. Types that this
/// version does not know, and SLOT and SAMPLE, which mean nothing outside their block, come back as
/// [`Event::Unknown`].
pub fn decode(kind: u64, body: &[u8], base: Ticks) -> Result<Event<'_>, DecodeError> {
    Event::read_body(kind, &mut Cursor::new(body), base)
}

/// The numeric type of an event.
pub fn kind_of(event: &Event) -> u64 {
    event.kind()
}

/// The latest time that an event carries.
pub fn time_of(event: &Event) -> Option<Ticks> {
    event.time()
}

/// Whether readers will accept `event`. The error names the limit that it breaks.
pub(crate) fn check(event: &Event) -> Result<(), LimitError> {
    event.check()
}

/// INDEX body: a count, then entries relative to the one before.
pub(crate) fn put_index(entries: &[IndexEntry], base: Ticks, out: &mut impl Sink) -> Result<(), NoRoom> {
    put_list(entries, base, out)
}

/// A whole INDEX event whose body takes `len` bytes.
pub(crate) fn put_index_event(
    entries: &[IndexEntry],
    base: Ticks,
    len: usize,
    out: &mut impl Sink,
) -> Result<(), NoRoom> {
    out.varint(kind::INDEX)?;
    out.varint(len as u64)?;
    put_index(entries, base, out)
}

/// An event's type, its body, and the body's offset in the payload.
#[cfg(feature = "std")]
pub type RawEvent<'a> = (u64, &'a [u8], usize);

/// Splits a payload into events.
#[cfg(feature = "std")]
#[derive(Clone)]
pub struct Split<'a> {
    cursor: Cursor<'a>,
}

#[cfg(feature = "std")]
impl<'a> Split<'a> {
    /// The events of a block's payload.
    pub fn new(payload: &'a [u8]) -> Self {
        Split { cursor: Cursor::new(payload) }
    }

    /// The next event.
    #[inline]
    pub fn next_event(&mut self) -> Result<Option<RawEvent<'a>>, DecodeError> {
        if self.cursor.is_empty() {
            return Ok(None);
        }
        let (kind, len) = self.cursor.varints()?;
        let at = self.cursor.position();
        let len = usize::try_from(len).map_err(|_| DecodeError { at })?;
        Ok(Some((kind, self.cursor.take(len)?, at)))
    }
}
