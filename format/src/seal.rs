//! Turns a filled block into the bytes to append to the file.

use crate::block::BlockBuffer;
use crate::bytes::{Counter, LimitedBuffer};
use crate::compressor::{Compressor, SealError};
use crate::event;
use crate::header::{BLOCK_HEADER_LEN, BlockHeader, BlockKind, CODEC_ZSTD, FileHeader, TAIL_LEN, Tail};
use alloc::vec::Vec;
use stk_schema::Ticks;
use stk_schema::event::IndexEntry;
use xxhash_rust::xxh3::xxh3_64;

/// Entries per INDEX block: under a megabyte of events.
const INDEX_ENTRIES: usize = 16_384;
/// Initial capacity of the index, in entries: an hour of recording.
const INDEX_FIRST: usize = 16_384;
/// Bytes that sealing a block of `raw` event bytes may need.
pub fn sealed_bound(raw: usize) -> usize {
    BLOCK_HEADER_LEN + zstd_safe::compress_bound(raw)
}

/// Compresses, numbers and checksums blocks in file order, and remembers them for the index. One
/// per trace, owned by the thread that writes. After [`Sealer::new`], sealing a block allocates
/// only for the index, about once an hour (40 bytes a block). Without memory for it, the sealer
/// gives up the index.
pub struct Sealer {
    zstd: Compressor,
    salt: u32,
    /// Flags of all blocks.
    flags: u16,
    next_seq: u64,
    /// Offset at which the next block will be written.
    offset: u64,
    last_meta: u64,
    ordinals: [u64; BlockKind::KNOWN],
    index: Vec<IndexEntry>,
    /// Whether the index still lists every block.
    index_whole: bool,
    index_raw: Vec<u8>,
    index_done: usize,
    index_blocks: u32,
    index_offset: u64,
}

impl Sealer {
    /// A sealer for a new trace: the file so far is `header` alone.
    pub fn new(header: &FileHeader) -> Result<Sealer, SealError> {
        let mut sealer = Sealer {
            zstd: Compressor::new()?,
            salt: header.salt(),
            flags: 0,
            next_seq: 0,
            offset: crate::header::FILE_HEADER_LEN as u64,
            last_meta: u64::MAX,
            ordinals: [0; BlockKind::KNOWN],
            index: Vec::new(),
            index_whole: true,
            index_raw: Vec::new(),
            index_done: 0,
            index_blocks: 0,
            index_offset: 0,
        };
        sealer.index.try_reserve(INDEX_FIRST).map_err(|_| SealError::NoMemory)?;
        Ok(sealer)
    }

    /// A sealer for a supplement: it continues after `blocks`, all blocks of a trace that ends at
    /// `end` bytes, and its index lists them too.
    #[cfg(feature = "std")]
    pub(crate) fn resume(
        header: &FileHeader,
        blocks: impl Iterator<Item = (u64, BlockHeader)>,
        end: u64,
    ) -> Result<Sealer, SealError> {
        let mut sealer = Sealer::new(header)?;
        sealer.flags = crate::header::FLAG_SUPPLEMENT;
        sealer.offset = end;
        for (offset, block) in blocks {
            sealer.next_seq = block.seq.saturating_add(1);
            if let Some(next) = sealer.ordinals.get_mut(usize::from(block.kind.code())) {
                *next = block.ordinal.saturating_add(1).max(*next);
            }
            if matches!(block.kind, BlockKind::Meta | BlockKind::State) {
                sealer.last_meta = block.seq;
            }
            if block.kind != BlockKind::Index {
                let (kind, BlockHeader { seq, first, last, .. }) = (block.kind.code(), block);
                sealer.index.push(IndexEntry { offset, seq, kind, first, last });
            }
        }
        Ok(sealer)
    }

    /// Seals a block into `out` (at least [`sealed_bound`] of its [`BlockBuffer::len`] bytes) and
    /// returns the bytes to append to the file in one write. A sealed block must be written,
    /// because the next block's offset assumes it.
    pub fn seal<'o>(&mut self, block: &BlockBuffer, out: &'o mut [u8]) -> Result<&'o [u8], SealError> {
        let ordinal = block.ordinal.unwrap_or_else(|| self.ordinal(block.kind));
        let header = BlockHeader {
            salt: self.salt,
            seq: self.next_seq,
            stored_len: 0,
            raw_len: block.buf.len() as u32,
            first: block.first,
            last: block.last,
            kind: block.kind,
            codec: CODEC_ZSTD,
            flags: self.flags,
            events: block.events,
            dropped: block.dropped,
            last_meta: self.last_meta,
            ordinal,
            samples: block.samples,
            stack_bytes: block.stack_bytes,
            payload_hash: 0,
        };
        let sealed = self.frame(header, &block.buf, out)?;
        self.list(&header);
        self.advance(sealed);
        Ok(&out[..sealed])
    }

    /// Seals a block that keeps the numbers, times and counts of another trace's block: only its
    /// events are others.
    #[cfg(feature = "std")]
    pub(crate) fn reseal<'o>(
        &mut self,
        like: &BlockHeader,
        raw: &[u8],
        events: u32,
        out: &'o mut [u8],
    ) -> Result<&'o [u8], SealError> {
        let header = BlockHeader {
            salt: self.salt,
            raw_len: raw.len() as u32,
            codec: CODEC_ZSTD,
            flags: self.flags,
            events,
            ..*like
        };
        let sealed = self.frame(header, raw, out)?;
        self.next_seq = header.seq;
        self.list(&header);
        self.advance(sealed);
        Ok(&out[..sealed])
    }

    /// The header of a block like another trace's that is the next here. SAMPLES blocks keep their
    /// ordinals.
    #[cfg(feature = "std")]
    pub(crate) fn next_like(&self, like: &BlockHeader) -> BlockHeader {
        let ordinal = if like.kind == BlockKind::Samples { like.ordinal } else { self.ordinal(like.kind) };
        BlockHeader {
            salt: self.salt,
            seq: self.next_seq,
            flags: self.flags,
            last_meta: self.last_meta,
            ordinal,
            ..*like
        }
    }

    /// The bytes of a block header from [`Sealer::next_like`]; its payload must follow in the file.
    #[cfg(feature = "std")]
    pub(crate) fn number(&mut self, header: BlockHeader) -> [u8; BLOCK_HEADER_LEN] {
        self.list(&header);
        self.advance(BLOCK_HEADER_LEN + header.stored_len as usize);
        header.encode()
    }

    /// Remembers a sealed block for the numbers of the next ones and for the index.
    fn list(&mut self, header: &BlockHeader) {
        if let Some(next) = self.ordinals.get_mut(usize::from(header.kind.code())) {
            *next = header.ordinal.saturating_add(1);
        }
        if matches!(header.kind, BlockKind::Meta | BlockKind::State) {
            self.last_meta = header.seq;
        }
        let entry = IndexEntry {
            offset: self.offset,
            seq: header.seq,
            kind: header.kind.code(),
            first: header.first,
            last: header.last,
        };
        self.index_whole = self.index_whole && self.index.try_reserve(1).is_ok();
        if self.index_whole {
            self.index.push(entry);
        }
    }

    /// The next piece of a finished trace's end, after its END block: INDEX blocks, then the tail,
    /// then `None`. The caller must append each piece in one write. `out` needs [`sealed_bound`] of
    /// a megabyte. Allocates once. Without an index (no memory for it) there is no tail either;
    /// readers do not need it.
    pub fn finish<'o>(&mut self, out: &'o mut [u8]) -> Result<Option<&'o [u8]>, SealError> {
        if !self.index_whole || self.index_done > self.index.len() {
            return Ok(None);
        }
        if self.index_done == self.index.len() && self.index_blocks > 0 {
            self.index_done += 1;
            let tail =
                Tail { salt: self.salt, index_blocks: self.index_blocks, index_offset: self.index_offset };
            let bytes = out.get_mut(..TAIL_LEN).ok_or(SealError::OutTooSmall)?;
            bytes.copy_from_slice(&tail.encode());
            return Ok(Some(bytes));
        }
        let end = (self.index_done + INDEX_ENTRIES).min(self.index.len());
        let (first, last) = self.put_index(end)?;
        let header = BlockHeader {
            salt: self.salt,
            seq: self.next_seq,
            stored_len: 0,
            raw_len: self.index_raw.len() as u32,
            first,
            last,
            kind: BlockKind::Index,
            codec: CODEC_ZSTD,
            flags: self.flags,
            events: 1,
            dropped: 0,
            last_meta: self.last_meta,
            ordinal: u64::from(self.index_blocks),
            samples: 0,
            stack_bytes: 0,
            payload_hash: 0,
        };
        let raw = core::mem::take(&mut self.index_raw);
        let sealed = self.frame(header, &raw, out);
        self.index_raw = raw;
        let sealed = sealed?;
        if self.index_blocks == 0 {
            self.index_offset = self.offset;
        }
        self.index_blocks += 1;
        self.index_done = end;
        self.advance(sealed);
        Ok(Some(&out[..sealed]))
    }

    /// Bytes of the file so far, the last sealed block included.
    pub fn file_len(&self) -> u64 {
        self.offset
    }

    /// Blocks sealed so far.
    pub fn blocks(&self) -> u64 {
        self.next_seq
    }

    /// Ordinal of the next block of `kind`.
    fn ordinal(&self, kind: BlockKind) -> u64 {
        self.ordinals.get(usize::from(kind.code())).copied().unwrap_or(0)
    }

    fn advance(&mut self, sealed: usize) {
        self.offset += sealed as u64;
        self.next_seq = self.next_seq.saturating_add(1);
    }

    /// Encodes one INDEX event with the entries up to `end`; gives their time span.
    fn put_index(&mut self, end: usize) -> Result<(Ticks, Ticks), SealError> {
        let entries = &self.index[self.index_done..end];
        let first = entries.first().map_or(Ticks::ZERO, |entry| entry.first);
        let last = entries.iter().map(|entry| entry.last).max().unwrap_or(first);
        let mut body = Counter(0);
        let _ = event::put_index(entries, first, &mut body);
        self.index_raw.clear();
        self.index_raw.try_reserve(body.0 + 16).map_err(|_| SealError::NoMemory)?;
        let mut out = LimitedBuffer { buf: &mut self.index_raw, limit: body.0 + 16 };
        let written = event::put_index_event(entries, first, body.0, &mut out);
        written.map_err(|_| SealError::NoMemory)?;
        Ok((first, last))
    }

    /// Compresses `raw` behind `header` and completes the header. Returns the length of both.
    fn frame(&mut self, mut header: BlockHeader, raw: &[u8], out: &mut [u8]) -> Result<usize, SealError> {
        if out.len() < sealed_bound(raw.len()) {
            return Err(SealError::OutTooSmall);
        }
        let (head, payload) = out.split_at_mut(BLOCK_HEADER_LEN);
        let stored = self.zstd.compress(payload, raw)?;
        header.stored_len = stored as u32;
        header.payload_hash = xxh3_64(&payload[..stored]);
        head.copy_from_slice(&header.encode());
        Ok(BLOCK_HEADER_LEN + stored)
    }
}
