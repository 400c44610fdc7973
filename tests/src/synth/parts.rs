//! A trace as blocks of events that can be changed freely. Writing it again corrects checksums,
//! lengths and sizes, whatever its contents. It can hold what an attacker would write;
//! [`super::TraceBuilder`] refuses what the format does not allow.

use super::damage::compressed;
use stk_format::event::{self, Split};
use stk_format::{BLOCK_HEADER_LEN, BlockHeader, BlockKind, CODEC_ZSTD, FileHeader, Trace};
use stk_schema::Ticks;
use stk_schema::bytes::{leb128, leb128_at};
use stk_schema::event::Event;
use xxhash_rust::xxh3::xxh3_64;

/// A trace taken apart. Index and tail are left out: nothing depends on them, and a changed trace
/// would contradict them.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The file header.
    pub header: FileHeader,
    /// Its blocks, in file order.
    pub blocks: Vec<StoredBlock>,
}

/// A block: its header and its events.
#[derive(Clone, Debug)]
pub struct StoredBlock {
    /// Written unchanged, except for the lengths, the codec and the checksums.
    pub header: BlockHeader,
    /// Its events in stored order.
    pub events: Vec<StoredEvent>,
    /// How many times it is written, under consecutive sequence numbers.
    pub times: u32,
    /// Replaces its events: see [`StoredBlock::seal`].
    sealed: Option<StoredEvents>,
}

/// Events as a block stores them.
#[derive(Clone, Debug)]
struct StoredEvents {
    stored: Vec<u8>,
    raw_len: u32,
    events: u32,
}

/// An event as it is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredEvent {
    /// Its type: see [`stk_schema::event::kind`].
    pub kind: u64,
    /// Its body.
    pub body: Vec<u8>,
}

impl Parts {
    /// A trace without blocks.
    pub fn new(header: FileHeader) -> Parts {
        Parts { header, blocks: Vec::new() }
    }

    /// Takes a trace apart. Blocks that cannot be read, and events after a malformed one in its
    /// block, are left out. `None` if `file` is not a trace.
    pub fn take_apart(file: &[u8]) -> Option<Parts> {
        let trace = Trace::open(file).ok()?;
        let parts = trace.blocks().iter().filter(|block| block.header.kind != BlockKind::Index);
        let parts = parts.filter_map(|block| StoredBlock::read(&block.header, file, block.offset));
        Some(Parts { header: *trace.header(), blocks: parts.collect() })
    }

    /// Appends a block of `kind` whose events begin at `time`, numbered as a recorder would number
    /// it.
    pub fn block(&mut self, kind: BlockKind, time: Ticks) -> &mut StoredBlock {
        let like = self.blocks.iter().rev().find(|block| block.header.kind == kind);
        let ordinal = like.map_or(0, |block| block.header.ordinal.wrapping_add(block.times.into()));
        let reported = |block: &&StoredBlock| matches!(block.header.kind, BlockKind::Meta | BlockKind::State);
        let last_meta = self.blocks.iter().rev().find(reported).map_or(u64::MAX, |block| block.header.seq);
        let last = self.blocks.last();
        let seq = last.map_or(0, |block| block.header.seq.wrapping_add(block.times.into()));
        let header = BlockHeader { kind, seq, ordinal, last_meta, first: time, last: time, ..self.empty() };
        self.blocks.push(StoredBlock { header, events: Vec::new(), times: 1, sealed: None });
        let last = self.blocks.len() - 1;
        &mut self.blocks[last]
    }

    /// Renumbers the blocks, so that none of them seems to be missing.
    pub fn renumber(&mut self) {
        let mut next = 0;
        for block in &mut self.blocks {
            block.header.seq = next;
            next += u64::from(block.times);
        }
    }

    /// The trace as a file with correct checksums and sizes, but without index and tail. Without an
    /// END block it is a trace that was cut off.
    pub fn to_file(&self) -> Vec<u8> {
        let mut file = self.header.encode().to_vec();
        self.blocks.iter().for_each(|block| block.write(self.header.salt(), &mut file));
        file
    }

    fn empty(&self) -> BlockHeader {
        BlockHeader {
            salt: self.header.salt(),
            seq: 0,
            stored_len: 0,
            raw_len: 0,
            first: Ticks::ZERO,
            last: Ticks::ZERO,
            kind: BlockKind::Meta,
            codec: CODEC_ZSTD,
            flags: 0,
            events: 0,
            dropped: 0,
            last_meta: u64::MAX,
            ordinal: 0,
            samples: 0,
            stack_bytes: 0,
            payload_hash: 0,
        }
    }
}

impl StoredBlock {
    fn read(header: &BlockHeader, file: &[u8], offset: u64) -> Option<StoredBlock> {
        let at = usize::try_from(offset).ok()? + BLOCK_HEADER_LEN;
        let stored = file.get(at..)?.get(..header.stored_len as usize)?;
        let mut raw = vec![0; header.raw_len as usize];
        let len = zstd_safe::decompress(&mut raw[..], stored).ok()?;
        let mut split = Split::new(&raw[..len]);
        let mut events = Vec::new();
        while let Ok(Some((kind, body, _))) = split.next_event() {
            events.push(StoredEvent { kind, body: body.to_vec() });
        }
        Some(StoredBlock { header: *header, events, times: 1, sealed: None })
    }

    /// Appends an event, whatever its contents.
    pub fn push(&mut self, event: &Event) -> &mut StoredBlock {
        self.events.extend(StoredEvent::of(event, self.header.first));
        self
    }

    /// The stored bytes of its events, not compressed.
    pub fn raw(&self) -> Vec<u8> {
        let mut raw = Vec::new();
        for event in &self.events {
            put(&mut raw, event.kind);
            put(&mut raw, event.body.len() as u64);
            raw.extend_from_slice(&event.body);
        }
        raw
    }

    /// Compresses its events and drops the originals, which takes less memory. They can no longer
    /// be changed.
    pub fn seal(&mut self) {
        self.sealed = Some(self.stored());
        self.events = Vec::new();
    }

    fn stored(&self) -> StoredEvents {
        let raw = self.raw();
        StoredEvents { stored: compressed(&raw), raw_len: raw.len() as u32, events: self.events.len() as u32 }
    }

    fn write(&self, salt: u32, file: &mut Vec<u8>) {
        let StoredEvents { stored, raw_len, events } = self.sealed.clone().unwrap_or_else(|| self.stored());
        let header = BlockHeader {
            salt,
            stored_len: stored.len() as u32,
            raw_len,
            codec: CODEC_ZSTD,
            events,
            payload_hash: xxh3_64(&stored),
            ..self.header
        };
        for i in 0..u64::from(self.times) {
            let (seq, ordinal) = (header.seq.wrapping_add(i), header.ordinal.wrapping_add(i));
            file.extend_from_slice(&BlockHeader { seq, ordinal, ..header }.encode());
            file.extend_from_slice(&stored);
        }
    }
}

impl StoredEvent {
    /// `event` as a block stores it whose first time is `first`. `None` never happens for an event
    /// that can be encoded.
    pub fn of(event: &Event, first: Ticks) -> Option<StoredEvent> {
        let stored = event::encode(event, first);
        let (kind, body, _) = Split::new(&stored).next_event().ok()??;
        Some(StoredEvent { kind, body: body.to_vec() })
    }

    /// An event of numbers alone, as most are.
    pub fn of_numbers(kind: u64, numbers: &[u64]) -> StoredEvent {
        let mut body = Vec::new();
        numbers.iter().for_each(|&number| put(&mut body, number));
        StoredEvent { kind, body }
    }

    /// Its body read as consecutive numbers, as far as they are valid: the range and the value of
    /// each.
    pub fn numbers(&self) -> Vec<(std::ops::Range<usize>, u64)> {
        let mut found = Vec::new();
        let mut at = 0;
        while let Some((value, end)) = leb128_at(&self.body, at) {
            found.push((at..end, value));
            at = end;
        }
        found
    }

    /// Replaces the bytes at `range` with `value`.
    pub fn set_number(&mut self, range: std::ops::Range<usize>, value: u64) {
        let (bytes, len) = leb128(value);
        self.body.splice(range, bytes[..len].iter().copied());
    }
}

/// Appends a number as the format stores it.
fn put(out: &mut Vec<u8>, value: u64) {
    let (bytes, len) = leb128(value);
    out.extend_from_slice(&bytes[..len]);
}
