//! Events to bytes.

use super::{IDENTITY_CODEVIEW, IDENTITY_ELF, IDENTITY_HEADER_HASH, IDENTITY_PE, kind_of};
use crate::bytes::{Bounded, Counter, NoRoom, Sink};
use alloc::vec::Vec;
use stk_schema::event::*;
use stk_schema::identity::Identity;

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
    let _ = put(event, base, &mut Bounded { buf: &mut out, limit: usize::MAX });
    out
}

/// The body of `event`.
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
