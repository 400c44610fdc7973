//! Copies a trace block by block with other words and other events in it. The blocks keep their
//! numbers, so what the trace had lost stays lost in the copy, and what the copy leaves out shows
//! as lost too.

use crate::DecodeError;
use crate::bytes::{Cursor, LimitedBuffer};
use crate::compressor::SealError;
use crate::event::{self, Split};
use crate::header::{BlockHeader, FileHeader};
use crate::read::BlockError;
use crate::sample::flag;
use crate::seal::{Sealer, sealed_bound};
use alloc::vec::Vec;
use core::ops::Range;
use stk_schema::event::{Event, kind};
use stk_schema::limits;

/// What a copy of a trace has instead of what it read.
pub trait Rewriter {
    /// The word to write instead of a register (but instruction and stack pointer, which stay) or a
    /// word of a stack. The result depends on the word
    /// alone: samples state only the words that changed, so the words that did not must come out as
    /// before.
    fn word(&mut self, word: u64) -> u64;

    /// Passes on the events to write instead of `event`: itself, another, several or none.
    fn event(&mut self, event: &Event<'_>, put: &mut dyn FnMut(&Event<'_>));
}

/// Rewrites the events of a block into `out`, which it empties first. Returns their number. Bytes
/// that this version does not know (behind the known fields of a body) are not copied; those of a
/// sample become zero.
///
/// # Errors
///
/// When an event is malformed or the result exceeds a limit of the format. `out` is then useless.
pub fn rewrite_events(
    raw: &[u8],
    header: &BlockHeader,
    word: usize,
    rewriter: &mut impl Rewriter,
    out: &mut Vec<u8>,
) -> Result<u32, BlockError> {
    let failed = |malformed| BlockError::event(header, malformed);
    out.clear();
    let mut split = Split::new(raw);
    let mut depths = Depths::default();
    let (mut before, mut events, mut fits) = (0, 0u32, true);
    while let Some((kind, body, at)) = split.next_event().map_err(failed)? {
        let within = |malformed: DecodeError| failed(DecodeError { at: at + malformed.at });
        let start = core::mem::replace(&mut before, at + body.len());
        match kind {
            kind::SLOT | kind::SAMPLE => {
                let copy = out.len() + (at - start);
                out.extend_from_slice(&raw[start..before]);
                if kind == kind::SLOT {
                    depths.begin_slot().map_err(within)?;
                } else {
                    let places = depths.places(body, word).map_err(within)?;
                    places.rewrite(&mut out[copy..], word, rewriter);
                }
                events += 1;
            }
            _ => {
                let event = event::decode(kind, body, header.first).map_err(within)?;
                rewriter.event(&event, &mut |event| {
                    let mut sink = LimitedBuffer { buf: out, limit: limits::MAX_BLOCK_RAW };
                    fits &= event::check(event).is_ok() && event::put(event, header.first, &mut sink).is_ok();
                    events += 1;
                });
            }
        }
    }
    if !fits || out.len() > limits::MAX_BLOCK_RAW {
        return Err(BlockError::Limit { seq: header.seq, what: "event bytes" });
    }
    Ok(events)
}

/// Rewrites `bytes`, which lie at `address`: whole words as `change` has them, and zero for the
/// bytes of words that are there in part only.
pub fn rewrite_memory(bytes: &mut [u8], address: u64, word: usize, mut change: impl FnMut(u64) -> u64) {
    let lead = (address.wrapping_neg() as usize % word).min(bytes.len());
    let (lead, rest) = bytes.split_at_mut(lead);
    lead.fill(0);
    let mut words = rest.chunks_exact_mut(word);
    for bytes in &mut words {
        replace(bytes, &mut change);
    }
    words.into_remainder().fill(0);
}

fn replace(bytes: &mut [u8], change: &mut impl FnMut(u64) -> u64) {
    let mut value = [0; 8];
    value[..bytes.len()].copy_from_slice(bytes);
    let value = change(u64::from_le_bytes(value)).to_le_bytes();
    bytes.copy_from_slice(&value[..bytes.len()]);
}

/// The depths of the slots of a block, in words, as far as they are known: without it nobody knows
/// how many runs a sample has.
#[derive(Default)]
struct Depths(Vec<Option<i64>>);

impl Depths {
    fn begin_slot(&mut self) -> Result<(), DecodeError> {
        if self.0.len() == limits::MAX_SLOTS {
            return Err(DecodeError { at: 0 });
        }
        self.0.push(None);
        Ok(())
    }

    /// Where in a SAMPLE's body registers and memory lie. Checks no more than that takes.
    fn places(&mut self, body: &[u8], word: usize) -> Result<SamplePlaces, DecodeError> {
        let mut places = SamplePlaces::default();
        let mut c = Cursor::new(body);
        let slot = usize::try_from(c.varint()?).map_err(|_| c.malformed())?;
        let known = self.0.get_mut(slot).ok_or(c.malformed())?;
        c.signed()?;
        let flags = c.varint()?;
        let has = |bit| flags & bit != 0;
        for bit in [flag::TRIGGERED, flag::CPU, flag::CONTEXT_REPLY] {
            if has(bit) {
                c.varint()?;
            }
        }
        if has(flag::SAME) {
            c.varint()?;
            c.varint()?;
            places.end = c.position();
            return Ok(places);
        }
        // Instruction and stack pointer, the lowest two of every set, are addresses whatever they
        // point to.
        let mask = c.varint()?;
        c.take((mask & 3).count_ones() as usize * word)?;
        places.registers = take(&mut c, (mask & !3).count_ones() as usize * word)?;
        if has(flag::KEYFRAME) {
            c.varint()?;
            c.varint()?;
            *known = Some(0);
        }
        let depth = known.and_then(|before| before.checked_add(c.signed().ok()?)).ok_or(c.malformed())?;
        *known = Some(depth);
        let captured = if has(flag::TRUNCATED) { c.varint()? } else { depth as u64 };
        if captured > limits::MAX_SAMPLE_WORDS as u64 {
            return Err(c.malformed());
        }
        let (mut at, mut words) = (0, 0);
        while at < captured {
            let (changed, same) = (c.varint()?, c.varint()?);
            if changed > captured - at || same > captured - at - changed || changed + same == 0 {
                return Err(c.malformed());
            }
            at += changed + same;
            words += changed as usize;
        }
        places.words = take(&mut c, words * word)?;
        if has(flag::CODE) {
            c.bytes(limits::MAX_CODE_BYTES)?;
        }
        if has(flag::EXTRA) {
            for _ in 0..c.count(limits::MAX_EXTRA_RANGES, 2)? {
                let address = c.varint()?;
                let len = c.bytes(usize::MAX)?.len();
                places.extra.push((address, c.position() - len..c.position()));
            }
        }
        if has(flag::CPU_STATED) {
            c.varint()?;
        }
        places.end = c.position();
        Ok(places)
    }
}

/// Where in a SAMPLE's body registers and memory lie.
#[derive(Default)]
struct SamplePlaces {
    registers: Range<usize>,
    words: Range<usize>,
    /// Address and bytes of each range beside the stack.
    extra: Vec<(u64, Range<usize>)>,
    /// Behind the last field that is known.
    end: usize,
}

impl SamplePlaces {
    fn rewrite(self, body: &mut [u8], word: usize, rewriter: &mut impl Rewriter) {
        for words in [self.registers, self.words] {
            for bytes in body[words].chunks_exact_mut(word) {
                replace(bytes, &mut |word| rewriter.word(word));
            }
        }
        for (address, range) in self.extra {
            rewrite_memory(&mut body[range], address, word, |word| rewriter.word(word));
        }
        body[self.end..].fill(0);
    }
}

fn take(c: &mut Cursor<'_>, len: usize) -> Result<Range<usize>, DecodeError> {
    let start = c.position();
    c.take(len)?;
    Ok(start..c.position())
}

/// Writes blocks like those of another trace, with the numbers that they had there.
pub struct TraceCopy {
    sealer: Sealer,
    sealed: Vec<u8>,
}

impl TraceCopy {
    /// A copy of a trace with this header, whose bytes come first.
    pub fn new(header: &FileHeader) -> Result<TraceCopy, SealError> {
        Ok(TraceCopy { sealer: Sealer::new(header)?, sealed: Vec::new() })
    }

    /// The bytes of a block like `header`'s with other events: `raw`, `events` in number.
    pub fn block(&mut self, header: &BlockHeader, raw: &[u8], events: u32) -> Result<&[u8], SealError> {
        self.room(raw.len());
        self.sealer.reseal(header, raw, events, &mut self.sealed)
    }

    /// The next piece of the end: index and tail; then `None`.
    pub fn end(&mut self) -> Result<Option<&[u8]>, SealError> {
        self.room(limits::CUT_RAW);
        self.sealer.finish(&mut self.sealed)
    }

    fn room(&mut self, raw: usize) {
        let bound = sealed_bound(raw);
        if self.sealed.len() < bound {
            self.sealed.resize(bound, 0);
        }
    }
}
