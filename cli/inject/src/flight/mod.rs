//! `--flight`: follows the ring that the agent writes ([`stk_schema::flight`]) and makes traces of
//! what it holds.
//!
//! A trace begins with a STATE block, which restates modules and threads. What no STATE block
//! restates (tables, metadata, code, names) is kept beside the ring ([`kept`]) and put behind that
//! block.

mod kept;
mod snapshot;
#[cfg(test)]
mod tests;

pub(crate) use snapshot::Snapshot;

use kept::Kept;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use stk_format::{BLOCK_HEADER_LEN, BlockHeader, BlockKind, FILE_HEADER_LEN, FileHeader, Scratch, Trace};
use stk_schema::event::{End, Event};

/// How far a lost reader looks for a block in one step.
const SEARCH: usize = 64 << 10;

/// The ring as its reader sees it. Positions count bytes from the recording's start.
pub(crate) trait Ring {
    /// Bytes of the ring.
    fn size(&self) -> u64;

    /// The position behind what the agent has begun to copy.
    fn begun(&self) -> u64;

    /// The position behind what is whole.
    fn written(&self) -> u64;

    /// Tells the agent up to where the ring was read.
    fn consume(&self, to: u64);

    /// Copies bytes at a position, whether or not they were overwritten meanwhile.
    fn copy(&self, at: u64, out: &mut [u8]);

    /// Copies `len` bytes at a position; `None` if they may have been overwritten.
    fn bytes(&self, at: u64, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.copy(at, &mut bytes);
        self.holds(at).then_some(bytes)
    }

    /// Whether the bytes from this position on are those that were written there.
    fn holds(&self, at: u64) -> bool {
        at.saturating_add(self.size()) >= self.begun()
    }
}

/// A whole block in the ring.
#[derive(Clone, Copy, Debug)]
struct Place {
    at: u64,
    header: BlockHeader,
}

impl Place {
    fn len(&self) -> usize {
        BLOCK_HEADER_LEN + self.header.stored_len as usize
    }
}

/// How a recording ended.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Ended {
    reason: u64,
    detail: Vec<u8>,
}

/// Follows a ring.
pub(crate) struct RingReader {
    header: Option<FileHeader>,
    /// Position up to which the ring was read.
    at: u64,
    /// The furthest position that the agent said that it has begun to copy to.
    begun: u64,
    places: VecDeque<Place>,
    kept: Kept,
    /// Number of the next block.
    next: u64,
    /// Blocks that were overwritten before they were read.
    missed: u64,
    ended: Option<Ended>,
    scratch: Scratch,
}

impl RingReader {
    pub(crate) fn new() -> RingReader {
        RingReader {
            header: None,
            at: 0,
            begun: 0,
            places: VecDeque::new(),
            kept: Kept::default(),
            next: 0,
            missed: 0,
            ended: None,
            scratch: Scratch::new(),
        }
    }

    /// Reads what is new, until `stop`. Returns the number of marks and exceptions in it, which ask
    /// for a trace.
    ///
    /// The target can write any positions: of one call, what is read of them is at most a ring.
    pub(crate) fn poll(&mut self, ring: &impl Ring, stop: &dyn Fn() -> bool) -> usize {
        let written = ring.written();
        let mut triggers = 0;
        for _ in 0..ring.size() / BLOCK_HEADER_LEN as u64 {
            self.begun = self.begun.max(ring.begun()).max(written);
            if self.at >= written || stop() {
                break;
            }
            let first = self.begun.saturating_sub(ring.size());
            if self.at < first {
                self.at = first;
                self.resume(ring, written);
                continue;
            }
            let Some(header) = self.header else {
                let first = ring.bytes(0, FILE_HEADER_LEN);
                self.header = first.and_then(|bytes| FileHeader::decode(&bytes).ok());
                if self.header.is_none() {
                    // Without it nothing can be read, now or later.
                    self.at = written;
                    break;
                }
                self.at = FILE_HEADER_LEN as u64;
                continue;
            };
            let Some(place) = place_at(ring, self.at, &header, written) else {
                // The tail, or bytes that were overwritten in this moment.
                if ring.holds(self.at) {
                    self.at = written;
                }
                continue;
            };
            self.at += place.len() as u64;
            triggers += self.block(ring, &header, place);
        }
        ring.consume(self.at);
        let first = self.begun.saturating_sub(ring.size());
        while self.places.front().is_some_and(|place| place.at < first) {
            self.places.pop_front();
        }
        triggers
    }

    /// Looks for the next block from `at` on.
    fn resume(&mut self, ring: &impl Ring, written: u64) {
        let Some(header) = self.header else {
            self.at = written;
            return;
        };
        while self.at < written {
            let len = SEARCH.min((written - self.at) as usize);
            let Some(bytes) = ring.bytes(self.at, len) else { return };
            let found = (0..len).find(|&at| {
                BlockHeader::decode(&bytes[at..]).is_some_and(|block| block.salt == header.salt())
            });
            match found {
                Some(at) => {
                    self.at += at as u64;
                    return;
                }
                None => self.at += (len.saturating_sub(BLOCK_HEADER_LEN - 1)).max(1) as u64,
            }
        }
    }

    /// Takes note of a block. Returns its marks and exceptions.
    fn block(&mut self, ring: &impl Ring, header: &FileHeader, place: Place) -> usize {
        self.missed = self.missed.saturating_add(place.header.seq.saturating_sub(self.next));
        self.next = place.header.seq.saturating_add(1);
        let mut triggers = 0;
        if !matches!(place.header.kind, BlockKind::Samples | BlockKind::Index) {
            let Some(bytes) = ring.bytes(place.at, place.len()) else {
                self.missed = self.missed.saturating_add(1);
                return 0;
            };
            match place.header.kind {
                BlockKind::Blob => self.kept.blob(&place.header, bytes),
                BlockKind::End => self.ended = end_in(header, &bytes, &mut self.scratch),
                _ => triggers = self.kept.events(header, &place.header, &bytes, &mut self.scratch),
            }
        }
        if !matches!(place.header.kind, BlockKind::End | BlockKind::Index) {
            self.places.push_back(place);
        }
        triggers
    }
}

/// The block at a position, if there is a whole one.
fn place_at(ring: &impl Ring, at: u64, header: &FileHeader, written: u64) -> Option<Place> {
    if written.saturating_sub(at) < BLOCK_HEADER_LEN as u64 {
        return None;
    }
    let block = BlockHeader::decode_of(&ring.bytes(at, BLOCK_HEADER_LEN)?, header.salt())?;
    let place = Place { at, header: block };
    (place.len() as u64 <= written - at).then_some(place)
}

/// Calls `work` for each event of a block, header and payload.
fn each_event(header: &FileHeader, block: &[u8], scratch: &mut Scratch, mut work: impl FnMut(&Event)) {
    let mut file = header.encode().to_vec();
    file.extend_from_slice(block);
    let Ok(trace) = Trace::open(&file) else { return };
    let Some(block) = trace.blocks().first() else { return };
    if let Ok(events) = trace.events(block, scratch) {
        events.map_while(Result::ok).for_each(|event| work(&event));
    }
}

fn end_in(header: &FileHeader, block: &[u8], scratch: &mut Scratch) -> Option<Ended> {
    let mut ended = None;
    each_event(header, block, scratch, |event| {
        if let Event::End(End { reason, detail, .. }) = event {
            ended = Some(Ended { reason: *reason, detail: detail.to_vec() });
        }
    });
    ended
}

/// The name of the trace with this number: `a-1.stk` of `a.stk`.
pub(crate) fn numbered(path: &Path, number: u32) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let name = match path.extension() {
        Some(extension) => format!("{stem}-{number}.{}", extension.to_string_lossy()),
        None => format!("{stem}-{number}"),
    };
    path.with_file_name(name)
}
