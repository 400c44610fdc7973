//! How events are stored: `varint type, varint body length, body`. `format/SPEC.md` describes each
//! body.
//!
//! Times are zigzag varints relative to the block's first time. A body may be longer than this
//! version knows: what follows its known fields is ignored, so that later minor versions can add
//! fields.
//!
//! [`encode()`] and [`decode()`] are each a match over all types: a new event is added to both, and to [`kind_of`] and [`time_of`].

mod decode;
mod encode;

pub use decode::decode;
pub use encode::encode;
pub(crate) use encode::{put, put_index, put_index_event};

#[cfg(feature = "std")]
use crate::Malformed;
#[cfg(feature = "std")]
use crate::bytes::Cursor;
use stk_schema::event::*;
use stk_schema::limits;

/// How identities of modules are told apart.
const IDENTITY_PE: u64 = 1;
const IDENTITY_CODEVIEW: u64 = 2;
const IDENTITY_ELF: u64 = 3;
const IDENTITY_HEADER_HASH: u64 = 4;

/// Most identities of one module: more are refused.
const MAX_IDENTITIES: usize = 64;

/// The numeric type of an event.
pub fn kind_of(event: &Event) -> u64 {
    match event {
        Event::ModuleLoad(_) => kind::MODULE_LOAD,
        Event::ModuleUnload { .. } => kind::MODULE_UNLOAD,
        Event::ModuleTables(_) => kind::MODULE_TABLES,
        Event::ThreadStart(_) => kind::THREAD_START,
        Event::ThreadExit { .. } => kind::THREAD_EXIT,
        Event::ThreadName { .. } => kind::THREAD_NAME,
        Event::Idle(_) => kind::IDLE,
        Event::SampleIps(_) => kind::SAMPLE_IPS,
        Event::CheckWalk(_) => kind::CHECK_WALK,
        Event::CodeAdd(_) => kind::CODE_ADD,
        Event::CodeRemove { .. } => kind::CODE_REMOVE,
        Event::MethodName(_) => kind::METHOD_NAME,
        Event::RuntimeInfo(_) => kind::RUNTIME_INFO,
        Event::ManagedThread(_) => kind::MANAGED_THREAD,
        Event::Memory(_) => kind::MEMORY,
        Event::Nettrace(_) => kind::NETTRACE,
        Event::Exception(_) => kind::EXCEPTION,
        Event::Mark(_) => kind::MARK,
        Event::RateChange(_) => kind::RATE_CHANGE,
        Event::Redaction(_) => kind::REDACTION,
        Event::Parent(_) => kind::PARENT,
        Event::Clock(_) => kind::CLOCK,
        Event::Dropped(_) => kind::DROPPED,
        Event::Metadata(_) => kind::METADATA,
        Event::Blob(_) => kind::BLOB,
        Event::Index(_) => kind::INDEX,
        Event::End(_) => kind::END,
        Event::Unknown { kind, .. } => *kind,
        // `Event` is non_exhaustive for other crates' sake; schema and format change together.
        _ => u64::MAX,
    }
}

/// The latest time that an event carries, in ticks.
pub fn time_of(event: &Event) -> Option<u64> {
    Some(match event {
        Event::ModuleLoad(e) => e.time,
        Event::ModuleUnload { time, .. }
        | Event::ThreadExit { time, .. }
        | Event::ThreadName { time, .. }
        | Event::CodeRemove { time, .. } => *time,
        Event::ThreadStart(e) => e.time,
        Event::Idle(e) => e.last,
        Event::SampleIps(e) => e.time,
        Event::CheckWalk(e) => e.time,
        Event::CodeAdd(e) => e.time,
        Event::MethodName(e) => e.time,
        Event::RuntimeInfo(e) => e.time,
        Event::ManagedThread(e) => e.time,
        Event::Memory(e) => e.time,
        Event::Nettrace(e) => e.time,
        Event::Exception(e) => e.time,
        Event::Mark(e) => e.time,
        Event::RateChange(e) => e.time,
        Event::Clock(e) => e.time,
        Event::Dropped(e) => e.time,
        Event::End(e) => e.time,
        _ => return None,
    })
}

/// Whether readers will accept `event`; says what breaks a limit.
pub(crate) fn check(event: &Event) -> Result<(), &'static str> {
    let name = |bytes: &[u8]| if bytes.len() > limits::MAX_NAME { Err("name too long") } else { Ok(()) };
    let frames = |count: usize| if count > limits::MAX_WALK_FRAMES { Err("too many frames") } else { Ok(()) };
    match event {
        Event::ModuleLoad(e) if e.identities.len() > MAX_IDENTITIES => Err("too many identities"),
        Event::ModuleLoad(e) => name(e.path),
        Event::ThreadName { name: text, .. } => name(text),
        Event::MethodName(e) => name(e.name),
        Event::RuntimeInfo(e) => name(e.version).and(name(e.note)),
        Event::Mark(e) => name(e.text),
        Event::Redaction(e) => name(e.rule),
        Event::Metadata(e) => name(e.key),
        Event::End(e) => name(e.detail),
        Event::SampleIps(e) => frames(e.ips.len()),
        Event::CheckWalk(e) => frames(e.frames.len()),
        Event::Blob(e) if e.total > limits::MAX_BLOB || e.bytes.len() > limits::MAX_BLOB_CHUNK => {
            Err("BLOB too large")
        }
        Event::Blob(e) if e.offset.checked_add(e.bytes.len() as u64).is_none_or(|end| end > e.total) => {
            Err("BLOB piece beyond its end")
        }
        _ => Ok(()),
    }
}

/// An event's type, its body, and the body's offset in the payload.
#[cfg(feature = "std")]
pub(crate) type Stored<'a> = (u64, &'a [u8], usize);

/// Splits a payload into events.
#[cfg(feature = "std")]
#[derive(Clone)]
pub(crate) struct Split<'a> {
    cursor: Cursor<'a>,
}

#[cfg(feature = "std")]
impl<'a> Split<'a> {
    pub fn new(payload: &'a [u8]) -> Self {
        Split { cursor: Cursor::new(payload) }
    }

    /// The next event.
    #[inline]
    pub fn next(&mut self) -> Result<Option<Stored<'a>>, Malformed> {
        if self.cursor.is_empty() {
            return Ok(None);
        }
        let kind = self.cursor.varint()?;
        let len = self.cursor.varint()?;
        let at = self.cursor.position();
        let len = usize::try_from(len).map_err(|_| Malformed { at })?;
        Ok(Some((kind, self.cursor.take(len)?, at)))
    }
}
