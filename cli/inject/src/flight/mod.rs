//! `--flight`: a recording in a ring of files, each of which continues the one before without a
//! gap, and the traces that are made of the last of them.
//!
//! A trace takes whole files ([`join`]). What a file restates of the one before, the trace has once
//! ([`Once`]).

mod once;
#[cfg(test)]
mod tests;

use crate::rotate::Rotation;
use once::Once;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use stk_format::{
    BLOCK_HEADER_LEN, BlockHeader, BlockKind, BlockRef, FILE_HEADER_LEN, FileHeader, Scratch, Trace,
    TraceExcerpt, event, rewrite_events,
};
use stk_schema::Ticks;
use stk_schema::event::{End, EndReason, Event, Metadata};
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

/// A file of the ring has this part of the requested time.
const PARTS: u32 = 4;
/// The least milliseconds of a file: each one restates what is known.
const LEAST_MS: u32 = 1_000;
/// Files of the ring: the parts, the one that begins before them, the one that is being written,
/// and two that may wait for their deletion.
const FILES: u32 = PARTS + 4;

/// Event bytes that are written anew for one trace. The program can write to the files, and small
/// blocks can unpack to 16 MiB each.
const MOST_RESTATED: u64 = 1 << 30;

/// The ring for so many milliseconds.
pub(crate) fn ring(window_ms: u32) -> Rotation {
    Rotation { every_ms: (window_ms / PARTS).max(LEAST_MS), bytes: 0, keep: FILES }
}

/// A file of the ring.
pub(crate) struct RingPart<F> {
    pub file: F,
    /// Whether it begins where the one before it ends.
    pub continued: bool,
}

/// Which trace is wanted.
pub(crate) struct JoinPlan {
    /// At least so many milliseconds, as far as the files hold them.
    pub window_ms: u32,
    pub uuid: [u8; 16],
    /// Most bytes that are read of a file.
    pub most_bytes: u64,
}

/// What was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Snapshot {
    /// Bytes of the trace.
    pub bytes: u64,
    /// Milliseconds from its first block to its last.
    pub covered_ms: u64,
    /// Blocks, or whole files, that could not be read.
    pub torn: u64,
}

/// Why there is no trace.
#[derive(Debug, Error)]
pub(crate) enum SnapError {
    /// No file has begun.
    #[error("nothing is recorded yet: try again")]
    Nothing,
    /// A file cannot be read, or the trace not be written.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// Writes one trace of the last files, the oldest of which come first.
///
/// # Errors
/// Why there is none.
pub(crate) fn join<F: Read + Seek, W: Write>(
    files: &mut [RingPart<F>],
    plan: &JoinPlan,
    out: &mut W,
) -> Result<Snapshot, SnapError> {
    let mut scratch = Scratch::new();
    let (newest, now) = newest(files, plan)?;
    let first = first(files, newest, now, plan.window_ms);
    let mut joined: Option<Joined<'_, W>> = None;
    let mut torn = 0;
    for part in files.iter_mut().take(newest + 1).skip(first) {
        let bytes = read(&mut part.file, plan.most_bytes)?;
        let Some(trace) = recorded(&bytes) else {
            torn += 1;
            continue;
        };
        let continues = match &mut joined {
            Some(joined) => {
                joined.excerpt.next_file();
                true
            }
            None => {
                let header = FileHeader { uuid: plan.uuid, ..*trace.header() };
                joined = Some(Joined::new(&header, out)?);
                false
            }
        };
        if let Some(joined) = &mut joined {
            joined.add(&trace, &bytes, continues, &mut scratch)?;
        }
    }
    let mut joined = joined.ok_or(SnapError::Nothing)?;
    joined.torn += torn;
    joined.finish()
}

/// The last file in which something is recorded, and the time of that.
fn newest<F: Read + Seek>(files: &mut [RingPart<F>], plan: &JoinPlan) -> Result<(usize, Ticks), SnapError> {
    for (index, part) in files.iter_mut().enumerate().rev() {
        let bytes = read(&mut part.file, plan.most_bytes)?;
        if let Some(trace) = recorded(&bytes) {
            let last = trace.blocks().iter().map(|block| block.header.last).max();
            return Ok((index, last.unwrap_or(trace.header().clock_start)));
        }
    }
    Err(SnapError::Nothing)
}

/// The file with which the trace begins: it, or what it continues, must hold what is wanted.
fn first<F: Read + Seek>(files: &mut [RingPart<F>], newest: usize, now: Ticks, window_ms: u32) -> usize {
    let mut first = newest;
    while first > 0 && files.get(first).is_some_and(|part| part.continued) {
        let Some(header) = files.get_mut(first).and_then(|part| header(&mut part.file)) else { break };
        let span = u128::from(window_ms) * u128::from(header.clock_frequency) / 1000;
        if header.clock_start <= now.saturating_sub(Ticks(u64::try_from(span).unwrap_or(u64::MAX))) {
            break;
        }
        first -= 1;
    }
    first
}

/// A file's own header.
fn header(file: &mut (impl Read + Seek)) -> Option<FileHeader> {
    let mut bytes = [0; FILE_HEADER_LEN];
    file.seek(SeekFrom::Start(0)).ok()?;
    file.read_exact(&mut bytes).ok()?;
    FileHeader::decode(&bytes).ok()
}

/// What a file holds now.
fn read(file: &mut (impl Read + Seek), most: u64) -> io::Result<Vec<u8>> {
    let len = file.seek(SeekFrom::End(0))?.min(most);
    file.seek(SeekFrom::Start(0))?;
    let mut bytes = Vec::new();
    let room = usize::try_from(len).map_err(io::Error::other)?;
    bytes.try_reserve_exact(room).map_err(io::Error::other)?;
    file.take(len).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A file in which a recording has begun.
fn recorded(bytes: &[u8]) -> Option<Trace<'_>> {
    let trace = Trace::open(bytes).ok()?;
    let begins = trace.blocks().first().is_some_and(|block| block.header.kind == BlockKind::State);
    begins.then_some(trace)
}

/// The stored bytes of a block, if they are those that were written.
fn stored<'a>(bytes: &'a [u8], block: &BlockRef) -> Option<&'a [u8]> {
    let at = usize::try_from(block.offset).ok()?.checked_add(BLOCK_HEADER_LEN)?;
    let payload = bytes.get(at..at.checked_add(block.header.stored_len as usize)?)?;
    (xxh3_64(payload) == block.header.payload_hash).then_some(payload)
}

/// The trace that is being written.
struct Joined<'a, W> {
    excerpt: TraceExcerpt,
    header: FileHeader,
    once: Once,
    out: &'a mut W,
    bytes: u64,
    restated: u64,
    torn: u64,
    last: Ticks,
    /// The header of the last block.
    like: Option<BlockHeader>,
    /// Reason and detail of the end.
    ended: Option<(u64, Vec<u8>)>,
}

impl<'a, W: Write> Joined<'a, W> {
    fn new(header: &FileHeader, out: &'a mut W) -> io::Result<Joined<'a, W>> {
        let excerpt = TraceExcerpt::new(header, 0).map_err(io::Error::other)?;
        let head = header.encode();
        out.write_all(&head)?;
        Ok(Joined {
            excerpt,
            header: *header,
            once: Once::new(head),
            out,
            bytes: head.len() as u64,
            restated: 0,
            torn: 0,
            last: header.clock_start,
            like: None,
            ended: None,
        })
    }

    /// Adds a file. `continues`: it is not the first one.
    fn add(
        &mut self,
        trace: &Trace<'_>,
        bytes: &[u8],
        continues: bool,
        scratch: &mut Scratch,
    ) -> io::Result<()> {
        self.ended = None;
        let turned = if continues { turned(trace, scratch) } else { None };
        for block in trace.blocks() {
            let header = &block.header;
            match header.kind {
                BlockKind::Index => continue,
                BlockKind::End => {
                    self.ended = end_in(trace, block, scratch);
                    continue;
                }
                // The file before has the same events.
                BlockKind::Meta if continues && turned.is_none_or(|turned| header.first <= turned) => {
                    continue;
                }
                BlockKind::Meta | BlockKind::State | BlockKind::Blob => {
                    self.restated += u64::from(header.raw_len);
                    let room = self.restated <= MOST_RESTATED;
                    let raw = trace.payload(block, scratch).ok().filter(|_| room);
                    match (raw, stored(bytes, block)) {
                        (Some(raw), Some(stored)) => self.events(header, raw, stored, continues)?,
                        _ => self.torn += 1,
                    }
                }
                _ => match stored(bytes, block) {
                    Some(payload) => self.stored(header, payload)?,
                    None => self.torn += 1,
                },
            }
            self.last = self.last.max(header.last);
        }
        Ok(())
    }

    /// Adds a block of events, but not those that the trace has.
    fn events(&mut self, header: &BlockHeader, raw: &[u8], stored: &[u8], continues: bool) -> io::Result<()> {
        let mut out = Vec::new();
        self.once.begin_block(header.kind, continues);
        let Ok(events) = rewrite_events(raw, header, self.header.word(), &mut self.once, &mut out) else {
            self.torn += 1;
            return Ok(());
        };
        if header.kind == BlockKind::Blob && events == header.events {
            self.stored(header, stored)
        } else if events != 0 {
            self.rewritten(header, &out, events)
        } else {
            Ok(())
        }
    }

    fn stored(&mut self, header: &BlockHeader, payload: &[u8]) -> io::Result<()> {
        self.like = Some(*header);
        let bytes = self.excerpt.stored(header, payload);
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn rewritten(&mut self, header: &BlockHeader, raw: &[u8], events: u32) -> io::Result<()> {
        self.like = Some(*header);
        let bytes = self.excerpt.events(header, raw, events).map_err(io::Error::other)?;
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    /// Writes the end.
    fn finish(mut self) -> Result<Snapshot, SnapError> {
        let ticks = u128::from(self.last.saturating_sub(self.header.clock_start).0);
        let covered = ticks * 1000 / u128::from(self.header.clock_frequency.max(1));
        let covered_ms = u64::try_from(covered).unwrap_or(u64::MAX);
        self.facts(&[("flight.covered_ms", covered_ms), ("flight.torn_blocks", self.torn)])?;
        let (reason, detail) = self.ended.take().unwrap_or_else(|| {
            (EndReason::Stopped as u64, b"written from the ring; the recording had no end yet".to_vec())
        });
        let end = self.excerpt.end(self.last, reason, &detail).map_err(io::Error::other)?;
        self.bytes += end.len() as u64;
        self.out.write_all(end)?;
        while let Some(piece) = self.excerpt.index().map_err(io::Error::other)? {
            self.bytes += piece.len() as u64;
            self.out.write_all(piece)?;
        }
        self.out.flush()?;
        Ok(Snapshot { bytes: self.bytes, covered_ms, torn: self.torn })
    }

    /// Says what the trace holds, as metadata.
    fn facts(&mut self, facts: &[(&str, u64)]) -> io::Result<()> {
        let Some(like) = self.like else { return Ok(()) };
        let like = BlockHeader { kind: BlockKind::Meta, samples: 0, stack_bytes: 0, ..like };
        let mut raw = Vec::new();
        let facts = facts.iter().filter(|(_, count)| *count != 0);
        let mut events = 0;
        for (key, count) in facts {
            let value = count.to_string();
            let fact = Metadata { key: key.as_bytes(), value: value.as_bytes() };
            raw.extend(event::encode(&Event::Metadata(fact), like.first));
            events += 1;
        }
        if events == 0 { Ok(()) } else { self.rewritten(&like, &raw, events) }
    }
}

/// When the recorder turned to this file; up to then its META blocks have what the file before has.
/// `None`: it did not.
fn turned(trace: &Trace<'_>, scratch: &mut Scratch) -> Option<Ticks> {
    let blocks = trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Meta);
    for block in blocks {
        let Ok(events) = trace.events(block, scratch) else { continue };
        let found = events.map_while(Result::ok).find_map(|event| match event {
            Event::Metadata(fact) if fact.key == b"rotation.turned" => {
                std::str::from_utf8(fact.value).ok()?.parse().ok()
            }
            _ => None,
        });
        if let Some(ticks) = found {
            return Some(Ticks(ticks));
        }
    }
    None
}

fn end_in(trace: &Trace<'_>, block: &BlockRef, scratch: &mut Scratch) -> Option<(u64, Vec<u8>)> {
    let events = trace.events(block, scratch).ok()?;
    events.map_while(Result::ok).find_map(|event| match event {
        Event::End(End { reason, detail, .. }) => Some((reason, detail.to_vec())),
        _ => None,
    })
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
