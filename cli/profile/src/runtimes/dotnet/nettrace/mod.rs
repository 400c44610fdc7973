//! NetTrace version 4, the stream that a .NET runtime's EventPipe sends (dotnet/diagnostics and
//! microsoft/perfview, "NetTraceFormat"). .NET Core 3.0 to .NET 10 send version 4.
//!
//! Takes the received bytes, which may be cut off anywhere. Returns the events in stream order,
//! with their types' names, and the stream's clock. Skips and counts what it cannot read, so the
//! stream of a process that was killed can be used up to where it ends.
//!
//! ```text
//! "Nettrace"  u32 20  "!FastSerialization.1"
//! object*     5 (begin)  5 1 (begin type, null type)  u32 version  u32 oldest reader
//!             u32 length  name  6 (end type)  fields  6 (end)
//! 1 (null)    the end
//! ```
//!
//! The fields of `Trace` are its header. The fields of the other objects are a block: its length as
//! u32, zeros up to a multiple of 4 from the beginning of the stream, and the bytes. [`blocks`]
//! reads blocks of events.

mod blocks;

use std::collections::HashMap;
use stk_base::model::bytes::Cursor;

pub(crate) use blocks::Record;

/// The header of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Value of the performance counter at the session's start.
    pub clock_start: u64,
    /// Ticks of the performance counter a second.
    pub clock_frequency: u64,
    /// 4 or 8.
    pub pointer_size: u32,
    pub pid: u32,
}

/// The type of an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct EventType {
    /// Provider's name, such as `Microsoft-Windows-DotNETRuntimeRundown`.
    pub provider: String,
    /// Number of the event, unique in its provider.
    pub id: u32,
    /// Version of its payload.
    pub version: u32,
}

/// The result of reading a stream.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Outcome {
    /// The stream's header; `None` if the stream ends before it.
    pub header: Option<Header>,
    /// Number of events that were visited.
    pub events: u64,
    /// Number of events whose type the stream does not define.
    pub unknown: u64,
    /// Blocks that could not be read to their end.
    pub damaged_blocks: u64,
    /// Why the stream was not read to its end marker; `None` if it was.
    pub error: Option<NettraceError>,
}

/// Why a stream could not be read to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NettraceError {
    /// The bytes are not a NetTrace stream.
    #[error("is no NetTrace stream")]
    NotNettrace,
    /// It has a version that this reader does not support.
    #[error("has version {0}; version 4 is read")]
    Version(u32),
    /// It ends within an object.
    #[error("ends within an object at byte {0}")]
    Truncated(usize),
    /// The bytes do not follow the format.
    #[error("is damaged at byte {0}")]
    Corrupted(usize),
}

/// The supported version of `Trace`.
const VERSION: u32 = 4;

const MAGIC: &[u8] = b"Nettrace\x14\0\0\0!FastSerialization.1";

/// Tags of the serialization format.
const NULL: u8 = 1;
const BEGIN: u8 = 5;
const END: u8 = 6;

/// Limit for the length of an object's name.
const LONGEST_NAME: usize = 64;

/// Reads a stream up to its end or the first error, and calls `visit` with every event of a known
/// type.
pub(crate) fn read<'a>(stream: &'a [u8], mut visit: impl FnMut(&EventType, &Record<'a>)) -> Outcome {
    let mut reader = NettraceReader { outcome: Outcome::default(), types: HashMap::new(), visit: &mut visit };
    let mut cursor = Cursor::new(stream);
    reader.outcome.error = reader.objects(&mut cursor).err();
    reader.outcome
}

/// The header of a stream, if the stream begins with it, as all do.
pub(crate) fn read_header(stream: &[u8]) -> Option<Header> {
    let mut cursor = Cursor::new(stream);
    cursor.bytes(MAGIC.len()).filter(|magic| *magic == MAGIC)?;
    cursor.u8().filter(|tag| *tag == BEGIN)?;
    let (_, name) = object_type(&mut cursor, MAGIC.len()).ok()??;
    if name == b"Trace" { trace_header(&mut cursor) } else { None }
}

struct NettraceReader<'v, 'a> {
    outcome: Outcome,
    /// Event types by the id that the stream gives them.
    types: HashMap<u32, EventType>,
    visit: &'v mut dyn FnMut(&EventType, &Record<'a>),
}

impl<'a> NettraceReader<'_, 'a> {
    fn objects(&mut self, cursor: &mut Cursor<'a>) -> Result<(), NettraceError> {
        if cursor.left() < MAGIC.len() {
            return Err(NettraceError::Truncated(0));
        }
        if cursor.bytes(MAGIC.len()) != Some(MAGIC) {
            return Err(NettraceError::NotNettrace);
        }
        loop {
            let start = cursor.at();
            match cursor.u8() {
                Some(NULL) => return Ok(()),
                Some(BEGIN) => {}
                Some(_) => return Err(NettraceError::Corrupted(start)),
                None => return Err(NettraceError::Truncated(start)),
            }
            if !self.object(cursor, start)? {
                return Err(NettraceError::Truncated(start));
            }
        }
    }

    /// Reads an object whose first tag has been read. False: the object is cut off.
    fn object(&mut self, cursor: &mut Cursor<'a>, start: usize) -> Result<bool, NettraceError> {
        let Some((version, name)) = object_type(cursor, start)? else { return Ok(false) };
        if name == b"Trace" {
            if version != VERSION {
                return Err(NettraceError::Version(version));
            }
            let Some(header) = trace_header(cursor) else { return Ok(false) };
            self.outcome.header = Some(header);
        } else {
            let Some(len) = cursor.u32() else { return Ok(false) };
            let padding = cursor.at().next_multiple_of(4) - cursor.at();
            if cursor.bytes(padding).is_none() {
                return Ok(false);
            }
            // In a block that is cut off, the events before the cut are valid.
            let whole = cursor.left() >= len as usize;
            let block = cursor.bytes(cursor.left().min(len as usize)).unwrap_or_default();
            self.block(name, block);
            if !whole {
                return Ok(false);
            }
        }
        match cursor.u8() {
            Some(END) => Ok(true),
            Some(_) => Err(NettraceError::Corrupted(cursor.at() - 1)),
            None => Ok(false),
        }
    }

    /// Reads a block. Skips unknown kinds and those that are not needed (stacks, sequence points).
    fn block(&mut self, name: &[u8], block: &'a [u8]) {
        let NettraceReader { outcome, types, visit } = self;
        let read = match name {
            b"MetadataBlock" => blocks::events(block, |record| {
                if let Some((id, known)) = event_type(record.payload) {
                    types.insert(id, known);
                }
            }),
            b"EventBlock" => blocks::events(block, |record| match types.get(&record.metadata) {
                Some(known) => {
                    outcome.events += 1;
                    visit(known, record);
                }
                None => outcome.unknown += 1,
            }),
            _ => Some(()),
        };
        outcome.damaged_blocks += u64::from(read.is_none());
    }
}

/// Version and name of an object. `None`: it is cut off.
fn object_type<'a>(cursor: &mut Cursor<'a>, start: usize) -> Result<Option<(u32, &'a [u8])>, NettraceError> {
    let mut read = || {
        let tags = cursor.bytes(2)?;
        let version = cursor.u32()?;
        let _oldest_reader = cursor.u32()?;
        let len = cursor.u32()? as usize;
        Some((tags, version, len))
    };
    let Some((tags, version, len)) = read() else { return Ok(None) };
    if tags != [BEGIN, NULL] || len > LONGEST_NAME {
        return Err(NettraceError::Corrupted(start));
    }
    let Some(name) = cursor.bytes(len) else { return Ok(None) };
    match cursor.u8() {
        Some(END) => Ok(Some((version, name))),
        Some(_) => Err(NettraceError::Corrupted(cursor.at() - 1)),
        None => Ok(None),
    }
}

/// The fields of the `Trace` object: the session's start as a date (eight u16), then on the clock.
fn trace_header(cursor: &mut Cursor<'_>) -> Option<Header> {
    cursor.bytes(16)?;
    let header = Header {
        clock_start: cursor.u64()?,
        clock_frequency: cursor.u64()?,
        pointer_size: cursor.u32()?,
        pid: cursor.u32()?,
    };
    // Number of processors, sampling rate.
    cursor.bytes(8)?;
    Some(header)
}

/// The payload of an event in a metadata block: the id that it defines, and the event type of that
/// id.
fn event_type(payload: &[u8]) -> Option<(u32, EventType)> {
    let mut cursor = Cursor::new(payload);
    let id = cursor.u32()?;
    let provider = cursor.utf16z()?;
    let event = cursor.u32()?;
    let _name = cursor.utf16z()?;
    let _keywords = cursor.u64()?;
    let version = cursor.u32()?;
    Some((id, EventType { provider, id: event, version }))
}

#[cfg(test)]
mod tests;
