//! How events are stored: `varint type, varint body length, body`. `format/SPEC.md` describes each body.
//!
//! Times are zigzag varints relative to the block's first time. A body may be longer than this version knows: what
//! follows its known fields is ignored, so that later minor versions can add fields.

use crate::Malformed;
use crate::bytes::{Counter, Cursor, NoRoom, Sink};
use alloc::vec::Vec;
use stk_schema::event::*;
use stk_schema::identity::{CodeView, ContentHash, Identity, PeIdentity};
use stk_schema::limits;

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

/// Appends the stored form of `event`; `base` is its block's first time.
pub(crate) fn put(event: &Event, base: u64, out: &mut impl Sink) -> Result<(), NoRoom> {
    let mut length = Counter(0);
    body(event, base, &mut length)?;
    out.varint(kind_of(event))?;
    out.varint(length.0 as u64)?;
    body(event, base, out)
}

/// The stored form of `event` (type, body length, body) in a block whose first time is `base`.
pub fn encode(event: &Event, base: u64) -> Vec<u8> {
    let mut out = Vec::new();
    // An unbounded sink never runs out of room.
    let _ = put(event, base, &mut crate::bytes::Bounded { buf: &mut out, limit: usize::MAX });
    out
}

fn body(event: &Event, base: u64, out: &mut impl Sink) -> Result<(), NoRoom> {
    let ticks = |time: u64| time.wrapping_sub(base) as i64;
    match event {
        Event::ModuleLoad(e) => {
            out.varint(e.instance)?;
            out.signed(ticks(e.time))?;
            out.varint(e.base)?;
            out.varint(e.size)?;
            out.varint(e.flags.bits())?;
            out.bytes(e.path)?;
            out.varint(e.identities.len() as u64)?;
            e.identities.iter().try_for_each(|identity| put_identity(identity, out))
        }
        Event::ModuleUnload { instance, time }
        | Event::ThreadExit { instance, time }
        | Event::CodeRemove { instance, time } => {
            out.varint(*instance)?;
            out.signed(ticks(*time))
        }
        Event::ModuleTables(e) => {
            out.varint(e.instance)?;
            out.varint(e.tables.len() as u64)?;
            for table in &e.tables {
                out.varint(table.kind)?;
                out.varint(u64::from(table.rva))?;
                out.varint(u64::from(table.len))?;
                out.put(&table.hash.0)?;
            }
            Ok(())
        }
        Event::ThreadStart(e) => {
            out.varint(e.instance)?;
            out.signed(ticks(e.time))?;
            out.varint(u64::from(e.tid))?;
            out.varint(e.flags.bits())?;
            out.varint(e.start_address)?;
            out.varint(e.stack_base)?;
            out.varint(e.created)
        }
        Event::ThreadName { instance, time, name } => {
            out.varint(*instance)?;
            out.signed(ticks(*time))?;
            out.bytes(name)
        }
        Event::Idle(e) => {
            out.varint(e.thread)?;
            out.varint(e.ticks)?;
            out.signed(ticks(e.first))?;
            out.varint(e.last.wrapping_sub(e.first))?;
            out.varint(e.block)?;
            out.varint(e.state as u64)
        }
        Event::SampleIps(e) => {
            out.varint(e.thread)?;
            out.signed(ticks(e.time))?;
            out.varint(e.ips.len() as u64)?;
            let mut last = 0;
            for &ip in &e.ips {
                out.signed(ip.wrapping_sub(last) as i64)?;
                last = ip;
            }
            Ok(())
        }
        Event::CheckWalk(e) => {
            out.varint(e.thread)?;
            out.signed(ticks(e.time))?;
            out.varint(e.flags)?;
            out.varint(e.frames.len() as u64)?;
            let mut last = (0, 0);
            for &(ip, sp) in &e.frames {
                out.signed(ip.wrapping_sub(last.0) as i64)?;
                out.signed(sp.wrapping_sub(last.1) as i64)?;
                last = (ip, sp);
            }
            Ok(())
        }
        Event::CodeAdd(e) => {
            out.varint(e.instance)?;
            out.signed(ticks(e.time))?;
            out.varint(e.kind)?;
            out.varint(e.base)?;
            out.varint(e.size)?;
            out.varint(e.image_base)?;
            out.bytes(e.function)?;
            out.bytes(e.unwind)?;
            out.bytes(e.code)
        }
        Event::MethodName(e) => {
            out.signed(ticks(e.time))?;
            out.varint(e.base)?;
            out.varint(e.size)?;
            out.varint(e.source)?;
            out.bytes(e.name)
        }
        Event::RuntimeInfo(e) => {
            out.varint(e.module)?;
            out.signed(ticks(e.time))?;
            out.varint(e.kind)?;
            out.bytes(e.version)?;
            out.bytes(e.descriptor)?;
            out.bytes(e.pointer_data)?;
            out.bytes(e.note)
        }
        Event::ManagedThread(e) => {
            out.varint(e.thread)?;
            out.signed(ticks(e.time))?;
            out.varint(e.address)?;
            out.varint(e.state)?;
            out.varint(e.preemptive_disabled)?;
            out.varint(e.frame)?;
            out.varint(e.exception)
        }
        Event::Memory(e) => {
            out.varint(e.thread)?;
            out.signed(ticks(e.time))?;
            out.varint(e.address)?;
            out.bytes(e.bytes)
        }
        Event::Nettrace(e) => {
            out.varint(e.session)?;
            out.signed(ticks(e.time))?;
            out.varint(e.offset)?;
            out.bytes(e.bytes)
        }
        Event::Exception(e) => {
            out.varint(e.thread)?;
            out.signed(ticks(e.time))?;
            out.varint(u64::from(e.code))?;
            out.varint(e.address)
        }
        Event::Mark(e) => {
            out.signed(ticks(e.time))?;
            out.varint(e.thread)?;
            out.varint(e.tag)?;
            out.bytes(e.text)
        }
        Event::RateChange(e) => {
            out.signed(ticks(e.time))?;
            out.varint(u64::from(e.rate_mhz))
        }
        Event::Redaction(e) => {
            out.bytes(e.rule)?;
            out.varint(e.words)
        }
        Event::Parent(e) => {
            out.varint(u64::from(e.pid))?;
            out.varint(e.created)?;
            out.put(&e.trace)
        }
        Event::Clock(e) => {
            out.signed(ticks(e.time))?;
            out.varint(e.utc)
        }
        Event::Dropped(e) => {
            out.signed(ticks(e.time))?;
            out.varint(e.reason)?;
            out.varint(e.thread)?;
            out.varint(e.count)
        }
        Event::Metadata(e) => {
            out.bytes(e.key)?;
            out.bytes(e.value)
        }
        Event::Blob(e) => {
            out.put(&e.hash.0)?;
            out.varint(e.total)?;
            out.varint(e.offset)?;
            out.bytes(e.bytes)
        }
        Event::Index(entries) => put_index(entries, base, out),
        Event::End(e) => {
            out.signed(ticks(e.time))?;
            out.varint(e.reason)?;
            out.varint(e.samples)?;
            out.varint(e.dropped)?;
            out.bytes(e.detail)
        }
        Event::Unknown { body, .. } => out.put(body),
        _ => Ok(()),
    }
}

fn put_identity(identity: &Identity, out: &mut impl Sink) -> Result<(), NoRoom> {
    match identity {
        Identity::Pe(pe) => {
            out.varint(IDENTITY_PE)?;
            out.varint(12)?;
            out.put(&pe.time_date_stamp.to_le_bytes())?;
            out.put(&pe.size_of_image.to_le_bytes())?;
            out.put(&pe.check_sum.to_le_bytes())
        }
        Identity::CodeView(cv) => {
            out.varint(IDENTITY_CODEVIEW)?;
            out.varint(20 + cv.pdb_name.len() as u64)?;
            out.put(&cv.guid)?;
            out.put(&cv.age.to_le_bytes())?;
            out.put(cv.pdb_name)
        }
        Identity::ElfBuildId(id) => {
            out.varint(IDENTITY_ELF)?;
            out.bytes(id)
        }
        Identity::HeaderHash(hash) => {
            out.varint(IDENTITY_HEADER_HASH)?;
            out.bytes(&hash.0)
        }
        Identity::Unknown(tag, bytes) => {
            out.varint(*tag)?;
            out.bytes(bytes)
        }
    }
}

/// INDEX body: a count, then entries relative to the one before.
pub(crate) fn put_index(entries: &[IndexEntry], base: u64, out: &mut impl Sink) -> Result<(), NoRoom> {
    out.varint(entries.len() as u64)?;
    let mut last = IndexEntry { offset: 0, seq: 0, kind: 0, first: base, last: base };
    for entry in entries {
        out.varint(entry.offset.wrapping_sub(last.offset))?;
        out.varint(entry.seq.wrapping_sub(last.seq))?;
        out.put(&[entry.kind])?;
        out.signed(entry.first.wrapping_sub(last.first) as i64)?;
        out.varint(entry.last.wrapping_sub(entry.first))?;
        last = *entry;
    }
    Ok(())
}

/// A whole INDEX event whose body takes `len` bytes.
pub(crate) fn put_index_event(
    entries: &[IndexEntry],
    base: u64,
    len: usize,
    out: &mut impl Sink,
) -> Result<(), NoRoom> {
    out.varint(kind::INDEX)?;
    out.varint(len as u64)?;
    put_index(entries, base, out)
}

/// Reads the body of an event of type `kind`; `base` is its block's first time. Types that this version does not know,
/// and SLOT and SAMPLE, which mean nothing outside their block, come back as [`Event::Unknown`].
pub fn decode(kind: u64, body: &[u8], base: u64) -> Result<Event<'_>, Malformed> {
    let c = &mut Cursor::new(body);
    let ticks = |delta: i64| base.wrapping_add(delta as u64);
    Ok(match kind {
        kind::MODULE_LOAD => Event::ModuleLoad(ModuleLoad {
            instance: c.varint()?,
            time: ticks(c.signed()?),
            base: c.varint()?,
            size: c.varint()?,
            flags: ModuleFlags::from_bits_retain(c.varint()?),
            path: c.bytes(limits::MAX_NAME)?,
            identities: {
                let count = c.count(MAX_IDENTITIES, 2)?;
                (0..count).map(|_| identity(c)).collect::<Result<_, _>>()?
            },
        }),
        kind::MODULE_UNLOAD => Event::ModuleUnload { instance: c.varint()?, time: ticks(c.signed()?) },
        kind::MODULE_TABLES => Event::ModuleTables(ModuleTables {
            instance: c.varint()?,
            tables: {
                let count = c.count(usize::MAX, 19)?;
                (0..count)
                    .map(|_| {
                        Ok(Table {
                            kind: c.varint()?,
                            rva: c.varint32()?,
                            len: c.varint32()?,
                            hash: ContentHash(c.array()?),
                        })
                    })
                    .collect::<Result<_, Malformed>>()?
            },
        }),
        kind::THREAD_START => Event::ThreadStart(ThreadStart {
            instance: c.varint()?,
            time: ticks(c.signed()?),
            tid: c.varint32()?,
            flags: ThreadFlags::from_bits_retain(c.varint()?),
            start_address: c.varint()?,
            stack_base: c.varint()?,
            created: c.varint()?,
        }),
        kind::THREAD_EXIT => Event::ThreadExit { instance: c.varint()?, time: ticks(c.signed()?) },
        kind::THREAD_NAME => Event::ThreadName {
            instance: c.varint()?,
            time: ticks(c.signed()?),
            name: c.bytes(limits::MAX_NAME)?,
        },
        kind::IDLE => {
            let (thread, ticks_, first) = (c.varint()?, c.varint()?, ticks(c.signed()?));
            Event::Idle(Idle {
                thread,
                ticks: ticks_,
                first,
                last: first.wrapping_add(c.varint()?),
                block: c.varint()?,
                state: RunState::from_code(c.varint()?),
            })
        }
        kind::SAMPLE_IPS => Event::SampleIps(SampleIps {
            thread: c.varint()?,
            time: ticks(c.signed()?),
            ips: {
                let count = c.count(limits::MAX_WALK_FRAMES, 1)?;
                let mut last = 0u64;
                (0..count)
                    .map(|_| {
                        last = last.wrapping_add(c.signed()? as u64);
                        Ok(last)
                    })
                    .collect::<Result<_, Malformed>>()?
            },
        }),
        kind::CHECK_WALK => Event::CheckWalk(CheckWalk {
            thread: c.varint()?,
            time: ticks(c.signed()?),
            flags: c.varint()?,
            frames: {
                let count = c.count(limits::MAX_WALK_FRAMES, 2)?;
                let mut last = (0u64, 0u64);
                (0..count)
                    .map(|_| {
                        last.0 = last.0.wrapping_add(c.signed()? as u64);
                        last.1 = last.1.wrapping_add(c.signed()? as u64);
                        Ok(last)
                    })
                    .collect::<Result<_, Malformed>>()?
            },
        }),
        kind::CODE_ADD => Event::CodeAdd(CodeAdd {
            instance: c.varint()?,
            time: ticks(c.signed()?),
            kind: c.varint()?,
            base: c.varint()?,
            size: c.varint()?,
            image_base: c.varint()?,
            function: c.bytes(usize::MAX)?,
            unwind: c.bytes(usize::MAX)?,
            code: c.bytes(usize::MAX)?,
        }),
        kind::CODE_REMOVE => Event::CodeRemove { instance: c.varint()?, time: ticks(c.signed()?) },
        kind::METHOD_NAME => Event::MethodName(MethodName {
            time: ticks(c.signed()?),
            base: c.varint()?,
            size: c.varint()?,
            source: c.varint()?,
            name: c.bytes(limits::MAX_NAME)?,
        }),
        kind::RUNTIME_INFO => Event::RuntimeInfo(RuntimeInfo {
            module: c.varint()?,
            time: ticks(c.signed()?),
            kind: c.varint()?,
            version: c.bytes(limits::MAX_NAME)?,
            descriptor: c.bytes(usize::MAX)?,
            pointer_data: c.bytes(usize::MAX)?,
            note: c.bytes(limits::MAX_NAME)?,
        }),
        kind::MANAGED_THREAD => Event::ManagedThread(ManagedThread {
            thread: c.varint()?,
            time: ticks(c.signed()?),
            address: c.varint()?,
            state: c.varint()?,
            preemptive_disabled: c.varint()?,
            frame: c.varint()?,
            exception: c.varint()?,
        }),
        kind::MEMORY => Event::Memory(Memory {
            thread: c.varint()?,
            time: ticks(c.signed()?),
            address: c.varint()?,
            bytes: c.bytes(usize::MAX)?,
        }),
        kind::NETTRACE => Event::Nettrace(Nettrace {
            session: c.varint()?,
            time: ticks(c.signed()?),
            offset: c.varint()?,
            bytes: c.bytes(usize::MAX)?,
        }),
        kind::EXCEPTION => Event::Exception(Exception {
            thread: c.varint()?,
            time: ticks(c.signed()?),
            code: c.varint32()?,
            address: c.varint()?,
        }),
        kind::MARK => Event::Mark(Mark {
            time: ticks(c.signed()?),
            thread: c.varint()?,
            tag: c.varint()?,
            text: c.bytes(limits::MAX_NAME)?,
        }),
        kind::RATE_CHANGE => {
            Event::RateChange(RateChange { time: ticks(c.signed()?), rate_mhz: c.varint32()? })
        }
        kind::REDACTION => {
            Event::Redaction(Redaction { rule: c.bytes(limits::MAX_NAME)?, words: c.varint()? })
        }
        kind::PARENT => Event::Parent(Parent { pid: c.varint32()?, created: c.varint()?, trace: c.array()? }),
        kind::CLOCK => Event::Clock(Clock { time: ticks(c.signed()?), utc: c.varint()? }),
        kind::DROPPED => Event::Dropped(Dropped {
            time: ticks(c.signed()?),
            reason: c.varint()?,
            thread: c.varint()?,
            count: c.varint()?,
        }),
        kind::METADATA => {
            Event::Metadata(Metadata { key: c.bytes(limits::MAX_NAME)?, value: c.bytes(usize::MAX)? })
        }
        kind::BLOB => {
            let blob = Blob {
                hash: ContentHash(c.array()?),
                total: c.varint()?,
                offset: c.varint()?,
                bytes: c.bytes(limits::MAX_BLOB_CHUNK)?,
            };
            let end = blob.offset.checked_add(blob.bytes.len() as u64);
            if blob.total > limits::MAX_BLOB || end.is_none_or(|end| end > blob.total) {
                return Err(c.malformed());
            }
            Event::Blob(blob)
        }
        kind::INDEX => {
            let count = c.count(usize::MAX, 5)?;
            let mut last = IndexEntry { offset: 0, seq: 0, kind: 0, first: base, last: base };
            let entries = (0..count).map(|_| {
                last.offset = last.offset.wrapping_add(c.varint()?);
                last.seq = last.seq.wrapping_add(c.varint()?);
                last.kind = c.take(1)?[0];
                last.first = last.first.wrapping_add(c.signed()? as u64);
                last.last = last.first.wrapping_add(c.varint()?);
                Ok(last)
            });
            Event::Index(entries.collect::<Result<_, Malformed>>()?)
        }
        kind::END => Event::End(End {
            time: ticks(c.signed()?),
            reason: c.varint()?,
            samples: c.varint()?,
            dropped: c.varint()?,
            detail: c.bytes(limits::MAX_NAME)?,
        }),
        kind => Event::Unknown { kind, body },
    })
}

fn identity<'a>(c: &mut Cursor<'a>) -> Result<Identity<'a>, Malformed> {
    let tag = c.varint()?;
    let body = c.bytes(limits::MAX_NAME + 20)?;
    let b = &mut Cursor::new(body);
    Ok(match tag {
        IDENTITY_PE => Identity::Pe(PeIdentity {
            time_date_stamp: u32::from_le_bytes(b.array()?),
            size_of_image: u32::from_le_bytes(b.array()?),
            check_sum: u32::from_le_bytes(b.array()?),
        }),
        IDENTITY_CODEVIEW => Identity::CodeView(CodeView {
            guid: b.array()?,
            age: u32::from_le_bytes(b.array()?),
            pdb_name: b.take(b.remaining())?,
        }),
        IDENTITY_ELF => Identity::ElfBuildId(body),
        IDENTITY_HEADER_HASH => Identity::HeaderHash(ContentHash(b.array()?)),
        tag => Identity::Unknown(tag, body),
    })
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
