//! A trace of what the ring holds.

use super::kept::Piece;
use super::{Place, Ring, RingReader};
use std::io::{self, Write};
use stk_format::{
    BLOCK_HEADER_LEN, BlockHeader, BlockKind, FileHeader, HEADER_KEY, Rewriter, SampleStep, Scratch, Trace,
    TraceExcerpt, event, rewrite_events,
};
use stk_schema::Ticks;
use stk_schema::event::{EndReason, Event, Metadata};
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

/// How often a trace is begun anew because its first block was overwritten.
const TRIES: usize = 4;

/// SAMPLES blocks after a STATE block of which one may still cite blocks before it.
const SETTLED: usize = 4;

/// Bytes of META and STATE blocks that are compressed anew for one trace. The ring can hold small
/// blocks that unpack to 16 MiB each.
pub(super) const MOST_RESTATED: u64 = 1 << 30;

/// What was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Snapshot {
    /// Bytes of the trace.
    pub bytes: u64,
    /// Milliseconds from its first block to its last.
    pub covered_ms: u64,
    /// Blocks that were overwritten while they were read.
    pub torn: u64,
    /// Blocks with tables or names for which there was no room.
    pub left_out: u64,
}

/// Why there is no trace.
#[derive(Debug, Error)]
pub(crate) enum SnapError {
    /// Nothing to begin with is there.
    #[error("the ring holds no whole second yet: try again")]
    Nothing,
    /// The ring runs round faster than it can be read.
    #[error("the ring was overwritten while it was read: take a lower rate (-r)")]
    Overwritten,
    /// The file cannot be written.
    #[error(transparent)]
    Write(#[from] io::Error),
}

impl RingReader {
    /// Writes a trace of at least the last `window_ms` milliseconds, as far as the ring holds them,
    /// by calling `open` for its file.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn snapshot<W: Write>(
        &mut self,
        ring: &impl Ring,
        window_ms: u32,
        uuid: [u8; 16],
        out: &mut W,
    ) -> Result<Snapshot, SnapError> {
        let header = self.header.ok_or(SnapError::Nothing)?;
        for _ in 0..TRIES {
            let (first, start) = self.first(ring, &header, window_ms)?;
            if let Some(bytes) = ring.bytes(first.at, first.len()) {
                return self.write(ring, &header, (first, &bytes, start), uuid, out);
            }
            // It was overwritten in this moment; a later one will do.
        }
        Err(SnapError::Overwritten)
    }

    /// The STATE block with which a trace begins, and its index.
    fn first(
        &self,
        ring: &impl Ring,
        header: &FileHeader,
        window_ms: u32,
    ) -> Result<(Place, usize), SnapError> {
        let now = self.places.back().ok_or(SnapError::Nothing)?.header.last;
        let span = u128::from(window_ms) * u128::from(header.clock_frequency) / 1000;
        let wanted = now.saturating_sub(Ticks(u64::try_from(span).unwrap_or(u64::MAX)));
        let states = self
            .places
            .iter()
            .enumerate()
            .filter(|(_, place)| place.header.kind == BlockKind::State && ring.holds(place.at));
        let mut found = None;
        for (index, place) in states {
            if found.is_none() || place.header.first <= wanted {
                found = Some((*place, index));
            }
        }
        found.ok_or(SnapError::Nothing)
    }

    /// The first SAMPLES block, by its ordinal, from which on none cites a block before it. The
    /// sampler restates its threads a moment after the STATE block with which the trace begins.
    fn first_samples(&mut self, ring: &impl Ring, header: &FileHeader, first: (&Place, usize)) -> u64 {
        let (state, index) = first;
        if state.header.seq == 0 {
            return 0;
        }
        let samples = self.places.iter().skip(index + 1);
        let samples = samples.filter(|place| place.header.kind == BlockKind::Samples);
        let mut known = None;
        for place in samples.take(SETTLED) {
            let known = known.get_or_insert(place.header.ordinal);
            let oldest = ring
                .bytes(place.at, place.len())
                .and_then(|block| oldest_cited(header, &block, &mut self.scratch));
            if oldest.is_some_and(|cited| cited < *known) {
                *known = place.header.ordinal.saturating_add(1);
            }
        }
        known.unwrap_or(0)
    }

    fn write<W: Write>(
        &mut self,
        ring: &impl Ring,
        recorded: &FileHeader,
        (first, state, index): (Place, &[u8], usize),
        uuid: [u8; 16],
        out: &mut W,
    ) -> Result<Snapshot, SnapError> {
        let start = first.header.first;
        let mut header = FileHeader { clock_start: start, uuid, ..*recorded };
        header.utc_start = recorded.utc_start.saturating_add_signed(recorded.nanoseconds(start));
        // Blocks repeat the salt.
        header.uuid[..4].copy_from_slice(&recorded.uuid[..4]);
        let mut file = Excerpt::new(&header, first.header.dropped, out)?;
        file.restated(&first.header, state, &mut self.scratch)?;
        for piece in self.kept.pieces.iter().take_while(|piece| piece.header().seq <= first.header.seq) {
            match piece {
                Piece::Stored(like, bytes) => file.stored(like, &bytes[BLOCK_HEADER_LEN..])?,
                Piece::Events(like, raw, events) => file.events(like, raw, *events)?,
            }
        }
        let known = self.first_samples(ring, recorded, (&first, index));
        let (mut torn, mut last, mut restated) = (0, first.header.last, 0);
        for place in self.places.iter().skip(index + 1) {
            if place.header.kind == BlockKind::Samples && place.header.ordinal < known {
                continue;
            }
            let Some(bytes) = ring.bytes(place.at, place.len()).filter(|bytes| is_whole(bytes)) else {
                torn += 1;
                continue;
            };
            match place.header.kind {
                BlockKind::Meta | BlockKind::State => {
                    restated += u64::from(place.header.raw_len);
                    if restated > MOST_RESTATED {
                        torn += 1;
                        continue;
                    }
                    file.restated(&place.header, &bytes, &mut self.scratch)?;
                }
                _ => file.stored(&place.header, &bytes[BLOCK_HEADER_LEN..])?,
            }
            last = last.max(place.header.last);
        }
        let ticks = u128::from(last.saturating_sub(start).0);
        let mut snapshot = Snapshot {
            bytes: 0,
            covered_ms: u64::try_from(ticks * 1000 / u128::from(header.clock_frequency.max(1)))
                .unwrap_or(u64::MAX),
            torn,
            left_out: self.kept.left_out,
        };
        file.facts(&first.header, &snapshot, self.missed)?;
        let (reason, detail) = match &self.ended {
            Some(ended) => (ended.reason, &ended.detail[..]),
            None => (EndReason::Stopped as u64, &b"written from memory; the recording had no end yet"[..]),
        };
        file.end(last, reason, detail)?;
        snapshot.bytes = file.bytes;
        Ok(snapshot)
    }
}

/// The oldest SAMPLES block that an IDLE of this one cites.
fn oldest_cited(header: &FileHeader, block: &[u8], scratch: &mut Scratch) -> Option<u64> {
    let mut file = header.encode().to_vec();
    file.extend_from_slice(block);
    let trace = Trace::open(&file).ok()?;
    let mut samples = trace.samples(trace.blocks().first()?, scratch).ok()?;
    let mut oldest = None;
    while let Ok(Some(step)) = samples.next() {
        if let SampleStep::Idle(idle) = step {
            oldest = Some(oldest.map_or(idle.block, |oldest: u64| oldest.min(idle.block)));
        }
    }
    oldest
}

/// Whether the stored bytes of a block are those that were written.
fn is_whole(block: &[u8]) -> bool {
    let (header, payload) = block.split_at(BLOCK_HEADER_LEN);
    BlockHeader::decode(header).is_some_and(|header| header.payload_hash == xxh3_64(payload))
}

/// The trace that is being written.
struct Excerpt<'a, W> {
    header: FileHeader,
    excerpt: TraceExcerpt,
    out: &'a mut W,
    bytes: u64,
}

impl<'a, W: Write> Excerpt<'a, W> {
    fn new(header: &FileHeader, dropped: u64, out: &'a mut W) -> io::Result<Excerpt<'a, W>> {
        let excerpt = TraceExcerpt::new(header, dropped).map_err(io::Error::other)?;
        out.write_all(&header.encode())?;
        Ok(Excerpt { header: *header, excerpt, out, bytes: header.encode().len() as u64 })
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn stored(&mut self, like: &BlockHeader, payload: &[u8]) -> io::Result<()> {
        let bytes = self.excerpt.stored(like, payload);
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn events(&mut self, like: &BlockHeader, raw: &[u8], events: u32) -> io::Result<()> {
        let bytes = self.excerpt.events(like, raw, events).map_err(io::Error::other)?;
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    /// A META or STATE block, whose copy of the file header becomes this file's.
    fn restated(&mut self, like: &BlockHeader, block: &[u8], scratch: &mut Scratch) -> io::Result<()> {
        let mut file = self.header.encode().to_vec();
        file.extend_from_slice(block);
        let trace = Trace::open(&file).map_err(io::Error::other)?;
        let found = trace.blocks().first().ok_or_else(|| io::Error::other("a block without header"))?;
        let raw = trace.payload(found, scratch).map_err(io::Error::other)?;
        let mut out = Vec::new();
        let mut header = OwnHeader(self.header.encode());
        let events = rewrite_events(raw, like, self.header.word(), &mut header, &mut out);
        self.events(like, &out, events.map_err(io::Error::other)?)
    }

    /// What the trace lacks, as metadata.
    fn facts(&mut self, like: &BlockHeader, snapshot: &Snapshot, missed: u64) -> io::Result<()> {
        let mut raw = Vec::new();
        let mut events = 0;
        for (key, count) in [
            ("flight.covered_ms", snapshot.covered_ms),
            ("flight.torn_blocks", snapshot.torn),
            ("flight.missed_blocks", missed),
            ("flight.left_out_blocks", snapshot.left_out),
        ] {
            if count != 0 {
                let value = count.to_string();
                let fact = Metadata { key: key.as_bytes(), value: value.as_bytes() };
                raw.extend(event::encode(&Event::Metadata(fact), like.first));
                events += 1;
            }
        }
        let like = BlockHeader { kind: BlockKind::Meta, samples: 0, stack_bytes: 0, ..*like };
        if events == 0 { Ok(()) } else { self.events(&like, &raw, events) }
    }

    fn end(&mut self, time: Ticks, reason: u64, detail: &[u8]) -> io::Result<()> {
        let bytes = self.excerpt.end(time, reason, detail).map_err(io::Error::other)?.to_vec();
        self.put(&bytes)?;
        while let Some(piece) = self.excerpt.index().map_err(io::Error::other)? {
            self.bytes += piece.len() as u64;
            self.out.write_all(piece)?;
        }
        self.out.flush()
    }
}

/// Replaces the copy of the file header.
struct OwnHeader([u8; stk_format::FILE_HEADER_LEN]);

impl Rewriter for OwnHeader {
    fn word(&mut self, word: u64) -> u64 {
        word
    }

    fn event(&mut self, event: &Event<'_>, put: &mut dyn FnMut(&Event<'_>)) {
        match event {
            Event::Metadata(fact) if fact.key == HEADER_KEY => {
                put(&Event::Metadata(Metadata { key: HEADER_KEY, value: &self.0 }));
            }
            _ => put(event),
        }
    }
}
