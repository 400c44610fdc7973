//! Readers of traces in memory (`&[u8]`), which trust nothing in them.
//!
//! [`Trace::open`] (`open`, with `place`) finds the blocks of a file and skips damage; this file
//! checks a block, decompresses it into a [`Scratch`] and decodes its events; [`Samples`]
//! (`samples`) rebuilds the stacks of a SAMPLES block, within a budget of memory that all of them
//! share (`budget`). Blocks added after the recording's end form a [`Supplement`] (`supplement`).

mod budget;
mod open;
mod place;
mod samples;
mod supplement;

pub use budget::ImageBudget;
pub use open::{BlockRef, Damage, OpenError, Trace};
pub use samples::{Extra, Same, Sample, SampleStep, Samples};
pub use supplement::Supplement;

use crate::DecodeError;
use crate::event::{self, Split};
use crate::header::{BlockHeader, CODEC_ZSTD};
use stk_schema::event::Event;
use stk_schema::limits;
use xxhash_rust::xxh3::xxh3_64;
use zstd_safe::DCtx;

/// Why a block cannot be read. Events decoded before the error are valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// The stored bytes are not those that were written.
    #[error("block {seq}: the stored bytes are damaged")]
    Hash {
        /// Sequence number of the block.
        seq: u64,
    },
    /// The payload does not decompress to the bytes that its header states.
    #[error("block {seq}: the payload does not decompress: {what}")]
    Payload {
        /// Sequence number of the block.
        seq: u64,
        /// What is wrong with the payload.
        what: &'static str,
    },
    /// The block exceeds a limit of the format.
    #[error("block {seq}: over a limit of the format: {what}")]
    Limit {
        /// Sequence number of the block.
        seq: u64,
        /// The limit that the block exceeds.
        what: &'static str,
    },
    /// The shared image budget is used up. The block may be valid: decode it again when other
    /// workers are done.
    #[error("block {seq}: no image memory left for it; decode fewer blocks at a time")]
    Budget {
        /// Sequence number of the block.
        seq: u64,
    },
    /// An event's body is not valid.
    #[error("block {seq}: malformed event at byte {at} of its events")]
    Event {
        /// Sequence number of the block.
        seq: u64,
        /// Offset in the decompressed payload.
        at: usize,
    },
    /// The block's codec is not known.
    #[error("block {seq}: codec {codec} is not known; use a newer stk")]
    Codec {
        /// Sequence number of the block.
        seq: u64,
        /// Number of the codec.
        codec: u8,
    },
}

impl BlockError {
    pub(crate) fn event(header: &BlockHeader, malformed: DecodeError) -> BlockError {
        BlockError::Event { seq: header.seq, at: malformed.at }
    }
}

/// Memory that decoding uses and reuses. Each worker thread has one.
pub struct Scratch {
    zstd: DCtx<'static>,
    raw: Vec<u8>,
    slots: samples::Slots,
}

impl Default for Scratch {
    fn default() -> Self {
        Scratch::new()
    }
}

impl Scratch {
    /// A scratch with an image budget of its own.
    pub fn new() -> Scratch {
        Scratch::with_budget(&ImageBudget::default())
    }

    /// A scratch whose stack images count against a budget that other workers share.
    pub fn with_budget(budget: &ImageBudget) -> Scratch {
        Scratch { zstd: DCtx::create(), raw: Vec::new(), slots: samples::Slots::new(budget.clone()) }
    }
}

/// Checks and decompresses the stored payload of a block into `raw`.
fn decompress(
    zstd: &mut DCtx<'static>,
    raw: &mut Vec<u8>,
    header: &BlockHeader,
    stored: &[u8],
) -> Result<(), BlockError> {
    let seq = header.seq;
    let payload = |what| BlockError::Payload { seq, what };
    let limit = |what| BlockError::Limit { seq, what };
    if header.codec != CODEC_ZSTD {
        return Err(BlockError::Codec { seq, codec: header.codec });
    }
    if header.raw_len as usize > limits::MAX_BLOCK_RAW {
        return Err(limit("event bytes"));
    }
    if stored.len() > limits::MAX_BLOCK_STORED {
        return Err(limit("stored bytes"));
    }
    if u64::from(header.stack_bytes) > limits::MAX_BLOCK_STACK {
        return Err(limit("stack bytes"));
    }
    if xxh3_64(stored) != header.payload_hash {
        return Err(BlockError::Hash { seq });
    }
    let frame = Frame::parse(stored).ok_or(payload("not a zstd frame with a content size"))?;
    if frame.window > 1 << limits::MAX_WINDOW_LOG {
        return Err(limit("zstd window"));
    }
    if frame.content != u64::from(header.raw_len) {
        return Err(payload("its length is not the promised one"));
    }
    if zstd_safe::find_frame_compressed_size(stored) != Ok(stored.len()) {
        return Err(payload("not exactly one zstd frame"));
    }
    // Zeroes only the bytes added: zstd overwrites all of it.
    raw.resize(header.raw_len as usize, 0);
    match zstd.decompress(&mut raw[..], stored) {
        Ok(len) if len == header.raw_len as usize => Ok(()),
        Ok(_) => Err(payload("its length is not the promised one")),
        Err(_) => Err(payload("zstd reports an error")),
    }
}

/// The parts of a zstd frame header (RFC 8878, section 3.1.1.1) that limits apply to.
struct Frame {
    window: u64,
    content: u64,
}

impl Frame {
    fn parse(bytes: &[u8]) -> Option<Frame> {
        if *bytes.first_chunk::<4>()? != 0xFD2F_B528u32.to_le_bytes() {
            return None;
        }
        let descriptor = *bytes.get(4)?;
        let single = descriptor & 0x20 != 0;
        // Dictionaries are not used, so a dictionary id makes the frame unreadable here.
        if descriptor & 3 != 0 || descriptor & 8 != 0 {
            return None;
        }
        let mut at = 5;
        let mut window = 0;
        if !single {
            let byte = u64::from(*bytes.get(at)?);
            at += 1;
            let base = 1u64 << (10 + (byte >> 3));
            window = base + base / 8 * (byte & 7);
        }
        let le = |len: usize| {
            let field = bytes.get(at..at + len)?;
            Some(field.iter().rev().fold(0u64, |value, &byte| value << 8 | u64::from(byte)))
        };
        let content = match descriptor >> 6 {
            0 if single => le(1)?,
            0 => return None,
            1 => le(2)? + 256,
            2 => le(4)?,
            _ => le(8)?,
        };
        Some(Frame { window: if single { content } else { window }, content })
    }
}

/// The events of a block, one by one. SLOT and SAMPLE come as [`Event::Unknown`]: use
/// [`Trace::samples`] for them.
pub struct Events<'s> {
    split: Split<'s>,
    header: BlockHeader,
    failed: bool,
}

impl<'s> Events<'s> {
    fn new(raw: &'s [u8], header: &BlockHeader) -> Events<'s> {
        Events { split: Split::new(raw), header: *header, failed: false }
    }
}

impl<'s> Iterator for Events<'s> {
    type Item = Result<Event<'s>, BlockError>;

    /// The next event; after an error there is no more.
    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let next = match self.split.next_event() {
            Ok(None) => return None,
            Ok(Some((kind, body, at))) => event::decode(kind, body, self.header.first)
                .map_err(|malformed| BlockError::event(&self.header, DecodeError { at: at + malformed.at })),
            Err(malformed) => Err(BlockError::event(&self.header, malformed)),
        };
        self.failed = next.is_err();
        Some(next)
    }
}
