//! Blocks of events: a header that states its own length, then event records with compressed
//! headers (flag 1) or plain ones.

use stk_base::model::bytes::Cursor;

/// An event whose payload is not interpreted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record<'a> {
    /// Id of its type in this stream.
    pub metadata: u32,
    /// System id of the thread that it is about.
    pub thread: u64,
    /// Value of the performance counter.
    pub time: u64,
    /// Its fields.
    pub payload: &'a [u8],
}

/// Flags of a compressed header: which fields differ from the event before.
const METADATA_ID: u8 = 1;
const CAPTURE_THREAD_AND_SEQUENCE: u8 = 2;
const THREAD_ID: u8 = 4;
const STACK_ID: u8 = 8;
const ACTIVITY_ID: u8 = 16;
const RELATED_ACTIVITY_ID: u8 = 32;
const PAYLOAD_SIZE: u8 = 128;

/// The highest bit of a plain header's metadata id marks that the events are sorted.
const ID_BITS: u32 = 0x7FFF_FFFF;

/// Calls `visit` with the events of a block. `None`: the block is cut off or invalid; the events
/// before that point were visited.
pub(super) fn events<'a>(block: &'a [u8], visit: impl FnMut(&Record<'a>)) -> Option<()> {
    let mut cursor = Cursor::new(block);
    let header_size = usize::from(cursor.u16()?);
    let compressed = cursor.u16()? & 1 != 0;
    cursor.bytes(header_size.checked_sub(4)?)?;
    if compressed { compressed_events(&mut cursor, visit) } else { plain_events(&mut cursor, visit) }
}

fn compressed_events<'a>(cursor: &mut Cursor<'a>, mut visit: impl FnMut(&Record<'a>)) -> Option<()> {
    let mut record = Record { metadata: 0, thread: 0, time: 0, payload: &[] };
    let mut size = 0;
    while !cursor.is_empty() {
        let flags = cursor.u8()?;
        if flags & METADATA_ID != 0 {
            record.metadata = cursor.varint()? as u32 & ID_BITS;
        }
        if flags & CAPTURE_THREAD_AND_SEQUENCE != 0 {
            // Sequence number, capturing thread, processor.
            (0..3).try_for_each(|_| cursor.varint().map(drop))?;
        }
        if flags & THREAD_ID != 0 {
            record.thread = cursor.varint()?;
        }
        if flags & STACK_ID != 0 {
            cursor.varint()?;
        }
        record.time = record.time.wrapping_add(cursor.varint()?);
        for id in [ACTIVITY_ID, RELATED_ACTIVITY_ID] {
            if flags & id != 0 {
                cursor.bytes(16)?;
            }
        }
        if flags & PAYLOAD_SIZE != 0 {
            size = usize::try_from(cursor.varint()?).ok()?;
        }
        record.payload = cursor.bytes(size)?;
        visit(&record);
    }
    Some(())
}

fn plain_events<'a>(cursor: &mut Cursor<'a>, mut visit: impl FnMut(&Record<'a>)) -> Option<()> {
    while !cursor.is_empty() {
        let size = cursor.u32()? as usize;
        let mut event = Cursor::new(cursor.bytes(size)?);
        let metadata = event.u32()? & ID_BITS;
        let _sequence = event.u32()?;
        let thread = event.u64()?;
        // Capturing thread, processor, stack.
        event.bytes(16)?;
        let time = event.u64()?;
        // Activity and related activity.
        event.bytes(32)?;
        let len = event.u32()? as usize;
        let payload = event.bytes(len)?;
        visit(&Record { metadata, thread, time, payload });
    }
    Some(())
}
