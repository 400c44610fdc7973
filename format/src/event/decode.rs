//! Bytes to events.

use super::{IDENTITY_CODEVIEW, IDENTITY_ELF, IDENTITY_HEADER_HASH, IDENTITY_PE, MAX_IDENTITIES};
use crate::Malformed;
use crate::bytes::Cursor;
use stk_schema::event::*;
use stk_schema::identity::{CodeView, ContentHash, Identity, PeIdentity};
use stk_schema::limits;

/// Reads the body of an event of type `kind`; `base` is its block's first time. Types that this
/// version does not know, and SLOT and SAMPLE, which mean nothing outside their block, come back as
/// [`Event::Unknown`].
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
