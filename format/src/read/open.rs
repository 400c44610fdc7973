//! Finds the blocks of a trace by walking their headers. After damage it continues by the index or
//! by searching.

use super::place::{block_at, is_tail, stored};
use super::samples::Samples;
use super::supplement::{self, Supplement};
use super::{BlockError, Events, Scratch, decompress};
use crate::block::HEADER_KEY;
use crate::event::{self, Split};
use crate::header::{
    BLOCK_FRAME, BLOCK_HEADER_LEN, BLOCK_MAGIC, BlockHeader, BlockKind, FILE_HEADER_LEN, FLAG_SUPPLEMENT,
    FileHeader, HeaderError, TAIL_LEN, Tail,
};
use std::collections::HashSet;
use std::ops::Range;
use stk_schema::Ticks;
use stk_schema::event::{Event, IndexEntry};
use stk_schema::limits;
use xxhash_rust::xxh3::xxh3_64;

/// Why a trace cannot be read at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file header is not readable and no block holds a copy of it.
    #[error(transparent)]
    Header(#[from] HeaderError),
}

/// Damage of a trace, found while opening it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// The file header is damaged; the copy in a block was used.
    #[error("the file header is damaged; its copy in block {seq} was used")]
    FileHeader {
        /// Block that holds the copy.
        seq: u64,
    },
    /// Bytes that belong to no block.
    #[error("bytes {} to {} are damaged", range.start, range.end)]
    Bytes {
        /// Where in the file it lies.
        range: Range<u64>,
    },
    /// Blocks that are not in the file, by the gap in sequence numbers.
    #[error("{count} block(s) lost, from number {first}{}", kinds_text(kinds))]
    Lost {
        /// First missing sequence number.
        first: u64,
        /// Number of consecutive missing blocks.
        count: u64,
        /// Their kinds, as far as the index lists them.
        kinds: Vec<BlockKind>,
    },
    /// A META or STATE block whose stored bytes are damaged.
    #[error("{} block {seq}: the stored bytes are damaged", kind.name())]
    Payload {
        /// Its sequence number.
        seq: u64,
        /// Its kind.
        kind: BlockKind,
    },
    /// A block whose sequence number is not above that of the block before it. Readers ignore it.
    #[error("block at byte {offset} repeats or goes back to number {seq}; it is not used")]
    Order {
        /// Where in the file it lies.
        offset: u64,
        /// Its sequence number.
        seq: u64,
    },
}

fn kinds_text(kinds: &[BlockKind]) -> String {
    if kinds.is_empty() {
        return String::new();
    }
    let names: Vec<_> = kinds.iter().map(|kind| kind.name()).collect();
    format!(" ({})", names.join(", "))
}

/// A block whose header is sound; its payload is checked when it is decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockRef {
    /// Offset of its header from the start of the file.
    pub offset: u64,
    /// Its header.
    pub header: BlockHeader,
    /// Whether every META and STATE block that it depends on was found. If not, modules and threads
    /// are unknown until the next STATE block.
    pub metadata_known: bool,
    /// The time of the MODULE_STATE event by which [`metadata_known`](Self::metadata_known) holds,
    /// where the chain of blocks is broken. Of dynamic code that was there before, a lost block may
    /// have held the end.
    pub confirmed_at: Option<Ticks>,
}

/// A trace in memory.
pub struct Trace<'a> {
    data: &'a [u8],
    header: FileHeader,
    blocks: Vec<BlockRef>,
    damage: Vec<Damage>,
    truncated: bool,
    indexed: bool,
    supplement: Supplement,
    /// Behind the last whole block or the tail of the recording itself.
    recorded_len: u64,
    /// (ordinal, position in `blocks`) of the SAMPLES blocks, ascending.
    samples: Vec<(u64, usize)>,
    /// Offsets of the blocks beyond the limit on the trace's expansion.
    beyond: HashSet<u64>,
}

/// Event bytes to which any trace may expand ...
const EXPANSION: u64 = 64 << 20;
/// ... plus event bytes for each of its stored bytes. Real recorders reach some tens.
const EXPANSION_PER_BYTE: u64 = 1024;

/// Offsets of the blocks whose events, with those of the blocks before, are more than the stored
/// bytes can stand for.
fn beyond_expansion(blocks: &[BlockRef]) -> HashSet<u64> {
    let (mut left, mut beyond) = (EXPANSION, HashSet::new());
    for block in blocks {
        let stored = BLOCK_HEADER_LEN as u64 + u64::from(block.header.stored_len);
        left = left.saturating_add(stored * EXPANSION_PER_BYTE);
        // A block that states more than a block's limit is refused separately.
        let raw = (block.header.raw_len as usize).min(limits::MAX_BLOCK_RAW) as u64;
        match left.checked_sub(raw) {
            Some(rest) => left = rest,
            None => {
                beyond.insert(block.offset);
            }
        }
    }
    beyond
}

impl<'a> Trace<'a> {
    /// Finds the blocks of the trace in `data`. Damage is not an error as long as any block can be
    /// read: see [`Trace::damage`]. Touches the headers and the META and STATE blocks only.
    pub fn open(data: &'a [u8]) -> Result<Trace<'a>, OpenError> {
        match FileHeader::decode(data) {
            Ok(header) => {
                let found = find_blocks(data, FILE_HEADER_LEN, header.salt());
                Ok(Trace::assemble(data, header, found))
            }
            Err(error @ (HeaderError::Damaged | HeaderError::NotATrace)) => {
                Trace::open_by_copy(data).ok_or(OpenError::Header(error))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The file header.
    pub fn header(&self) -> &FileHeader {
        &self.header
    }

    /// The blocks that were found, in file order.
    pub fn blocks(&self) -> &[BlockRef] {
        &self.blocks
    }

    /// The damage that opening the file found. A missing end is not damage: see
    /// [`Trace::is_complete`].
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// Whether the recording was finished, that is, has its END block.
    pub fn is_complete(&self) -> bool {
        self.blocks.iter().rev().any(|block| block.header.kind == BlockKind::End)
    }

    /// Whether the file ends within a block, which the recorder then never completed.
    pub fn is_cut(&self) -> bool {
        self.truncated
    }

    /// Whether the file has a valid index and tail. Nothing depends on them.
    pub fn is_indexed(&self) -> bool {
        self.indexed
    }

    /// The supplement that was added after the recording had ended.
    pub fn supplement(&self) -> &Supplement {
        &self.supplement
    }

    /// Bytes of the recording itself: up to the end of its last whole block or of its tail.
    pub fn recorded_len(&self) -> u64 {
        self.recorded_len
    }

    /// The SAMPLES block with this ordinal, which is how an IDLE cites it; `None` if it is lost.
    pub fn samples_block(&self, ordinal: u64) -> Option<&BlockRef> {
        let at = self.samples.binary_search_by_key(&ordinal, |&(ordinal, _)| ordinal).ok()?;
        self.blocks.get(self.samples[at].1)
    }

    /// The event bytes of a block, checked and decompressed.
    pub fn payload<'s>(&self, block: &BlockRef, scratch: &'s mut Scratch) -> Result<&'s [u8], BlockError> {
        decompress(&mut scratch.zstd, &mut scratch.raw, &block.header, self.stored(block)?)?;
        Ok(&scratch.raw)
    }

    /// The events of a block.
    pub fn events<'s>(&self, block: &BlockRef, scratch: &'s mut Scratch) -> Result<Events<'s>, BlockError> {
        Ok(Events::new(self.payload(block, scratch)?, &block.header))
    }

    /// A SAMPLES block, decoded step by step.
    pub fn samples<'s>(&self, block: &BlockRef, scratch: &'s mut Scratch) -> Result<Samples<'s>, BlockError> {
        let stored = self.stored(block)?;
        let Scratch { zstd, raw, slots } = scratch;
        decompress(zstd, raw, &block.header, stored)?;
        Ok(Samples::new(raw, &block.header, self.header.word(), slots))
    }

    /// Decodes every block to its end and returns the errors.
    pub fn verify(&self, scratch: &mut Scratch) -> Vec<BlockError> {
        self.blocks.iter().filter_map(|block| self.verify_block(block, scratch).err()).collect()
    }

    /// Decodes one block to its end.
    pub fn verify_block(&self, block: &BlockRef, scratch: &mut Scratch) -> Result<(), BlockError> {
        if block.header.kind == BlockKind::Samples {
            let mut samples = self.samples(block, scratch)?;
            while samples.next()?.is_some() {}
            Ok(())
        } else {
            self.events(block, scratch)?.try_for_each(|event| event.map(|_| ()))
        }
    }

    /// The stored payload of a block of this trace, as it is.
    pub fn stored(&self, block: &BlockRef) -> Result<&'a [u8], BlockError> {
        if self.beyond.contains(&block.offset) {
            return Err(BlockError::Limit { seq: block.header.seq, what: "events for its stored bytes" });
        }
        stored(self.data, block.offset as usize, &block.header)
            .ok_or(BlockError::Payload { seq: block.header.seq, what: "beyond the end of the file" })
    }

    /// Opens a trace whose file header is damaged, by the copy in one of its blocks.
    fn open_by_copy(data: &'a [u8]) -> Option<Trace<'a>> {
        let (at, first) = search(data, 0, None)?;
        let found = find_blocks(data, at, first.salt);
        let mut scratch = Scratch::new();
        let copy = found.blocks.iter().find_map(|block| {
            if !matches!(block.header.kind, BlockKind::Meta | BlockKind::State | BlockKind::End) {
                return None;
            }
            let stored = stored(data, block.offset as usize, &block.header)?;
            decompress(&mut scratch.zstd, &mut scratch.raw, &block.header, stored).ok()?;
            let (kind, body, _) = Split::new(&scratch.raw).next_event().ok()??;
            match event::decode(kind, body, Ticks::ZERO).ok()? {
                Event::Metadata(fact) if fact.key == HEADER_KEY => {
                    let header = FileHeader::decode(fact.value).ok()?;
                    (header.salt() == first.salt).then_some((header, block.header.seq))
                }
                _ => None,
            }
        });
        let (header, seq) = copy?;
        let mut trace = Trace::assemble(data, header, found);
        trace.damage.insert(0, Damage::FileHeader { seq });
        if at > FILE_HEADER_LEN {
            trace.damage.insert(1, Damage::Bytes { range: FILE_HEADER_LEN as u64..at as u64 });
        }
        Some(trace)
    }

    /// Takes the META and STATE blocks of these sequence numbers as known, where the block begins
    /// at `time` or later: a MODULE_STATE event behind a lost block showed that nothing is missing
    /// then. Ends before the next STATE block, from which they are known anyway.
    pub fn confirm_metadata(&mut self, seqs: Range<u64>, time: Ticks) {
        let from = self.blocks.partition_point(|block| block.header.seq < seqs.start);
        let blocks = self.blocks[from..].iter_mut().take_while(|block| {
            seqs.contains(&block.header.seq)
                && !(block.metadata_known && block.header.kind == BlockKind::State)
        });
        for block in blocks.filter(|block| block.header.first >= time && !block.metadata_known) {
            block.metadata_known = true;
            block.confirmed_at = Some(time);
        }
    }

    /// Assembles the trace: finds sequence gaps, and for each block whether its META and STATE
    /// blocks are known.
    fn assemble(data: &'a [u8], header: FileHeader, found: HeaderScan) -> Trace<'a> {
        let HeaderScan { blocks: all, mut damage, truncated, index, end: recorded_len, supplement, .. } =
            found;
        let mut blocks = Vec::with_capacity(all.len());
        let mut samples: Vec<(u64, usize)> = Vec::new();
        let mut next = 0;
        // The last META or STATE block found, and whether all before it, back to a STATE block,
        // were found.
        let (mut last_meta, mut known) = (u64::MAX, true);
        for mut block in all {
            let BlockHeader { seq, kind, ordinal, .. } = block.header;
            if seq < next {
                damage.push(Damage::Order { offset: block.offset, seq });
                continue;
            }
            if seq > next {
                damage.push(lost(next, seq, index.as_deref()));
            }
            next = seq.saturating_add(1);
            known &= block.header.last_meta == last_meta;
            if matches!(kind, BlockKind::Meta | BlockKind::State) {
                let sound = stored(data, block.offset as usize, &block.header)
                    .is_some_and(|stored| xxh3_64(stored) == block.header.payload_hash);
                if sound {
                    known |= kind == BlockKind::State;
                } else {
                    damage.push(Damage::Payload { seq, kind });
                    known = false;
                }
                last_meta = seq;
            } else {
                last_meta = block.header.last_meta;
            }
            block.metadata_known = known;
            if kind == BlockKind::Samples && samples.last().is_none_or(|&(last, _)| last < ordinal) {
                samples.push((ordinal, blocks.len()));
            }
            blocks.push(block);
        }
        // Blocks that the index lists after the last one found.
        if let Some(end) =
            index.as_deref().and_then(|index| index.last()).map(|entry| entry.seq.saturating_add(1))
            && end > next
        {
            damage.push(lost(next, end, index.as_deref()));
        }
        let (indexed, recorded_len) = (index.is_some(), recorded_len as u64);
        let beyond = beyond_expansion(&blocks);
        Trace { data, header, blocks, damage, truncated, indexed, supplement, recorded_len, samples, beyond }
    }
}

/// The result of walking the headers.
struct HeaderScan {
    blocks: Vec<BlockRef>,
    damage: Vec<Damage>,
    truncated: bool,
    index: Option<Vec<IndexEntry>>,
    /// Behind the last whole block of the recording, or its tail.
    end: usize,
    /// Where bytes that do not belong to the recording begin.
    more: Option<usize>,
    supplement: Supplement,
}

/// Walks the headers from `from` on, and those of a supplement. Ignores a supplement that is not
/// whole.
fn find_blocks(data: &[u8], from: usize, salt: u32) -> HeaderScan {
    let mut found = walk(data, from, salt);
    let Some(at) = found.more else { return found };
    let range = at as u64..data.len() as u64;
    let last = found.blocks.last().map(|block| block.header.seq);
    match supplement::whole(data, at, salt, last).filter(|_| found.index.is_some()) {
        Some(blocks) => {
            found.blocks.extend(blocks);
            found.supplement = Supplement::Whole { range };
        }
        None => {
            found = walk(&data[..at], from, salt);
            found.supplement = Supplement::Torn { range };
        }
    }
    found
}

/// Walks the headers of the recording itself from `from` on.
fn walk(data: &[u8], from: usize, salt: u32) -> HeaderScan {
    let index = read_index(data, salt);
    let (blocks, damage, supplement) = (Vec::new(), Vec::new(), Supplement::None);
    let mut found = HeaderScan { blocks, damage, truncated: false, index, end: from, more: None, supplement };
    let mut at = from;
    while at < data.len() {
        if let Some(header) = block_at(data, at, salt) {
            if header.flags & FLAG_SUPPLEMENT != 0 {
                found.more = Some(at);
                break;
            }
            at += BLOCK_HEADER_LEN + header.stored_len as usize;
            found.blocks.push(BlockRef {
                offset: (at - BLOCK_HEADER_LEN - header.stored_len as usize) as u64,
                header,
                metadata_known: false,
                confirmed_at: None,
            });
            found.end = at;
            continue;
        }
        if is_tail(data, at, salt) {
            found.end = at + TAIL_LEN;
            found.more = Some(found.end).filter(|&end| end < data.len());
            break;
        }
        let next = next_block(data, at, salt, found.index.as_deref());
        let ended = found.blocks.iter().rev().take(64).any(|block| block.header.kind == BlockKind::End);
        if next == data.len() && !ended && looks_cut(data, at, salt) {
            found.truncated = true;
        } else {
            found.damage.push(Damage::Bytes { range: at as u64..next as u64 });
        }
        at = next;
    }
    found
}

/// Where reading continues after damage at `at`: the next sound block, the tail or the file's end.
fn next_block(data: &[u8], at: usize, salt: u32, index: Option<&[IndexEntry]>) -> usize {
    if let Some(index) = index {
        let next = index.partition_point(|entry| entry.offset <= at as u64);
        let next = index[next..].iter().map(|entry| entry.offset as usize);
        if let Some(next) = next.take(16).find(|&next| block_at(data, next, salt).is_some()) {
            return next;
        }
    }
    if let Some((next, _)) = search(data, at + 1, Some(salt)) {
        return next;
    }
    let tail = data.len().saturating_sub(TAIL_LEN);
    if tail > at && is_tail(data, tail, salt) { tail } else { data.len() }
}

/// The first sound block at or after `from`; of any trace if no salt is given.
fn search(data: &[u8], from: usize, salt: Option<u32>) -> Option<(usize, BlockHeader)> {
    let mut opening = [0; 12];
    opening[..4].copy_from_slice(&BLOCK_FRAME.to_le_bytes());
    opening[4..8].copy_from_slice(&(BLOCK_HEADER_LEN as u32 - 8).to_le_bytes());
    opening[8..].copy_from_slice(&BLOCK_MAGIC);
    let mut from = from;
    while let Some(rest) = data.get(from..) {
        let at = from + rest.windows(opening.len()).position(|window| window == opening)?;
        if let Some(header) = BlockHeader::decode(&data[at..])
            && block_at(data, at, salt.unwrap_or(header.salt)).is_some()
        {
            return Some((at, header));
        }
        from = at + 1;
    }
    None
}

/// Whether the bytes from `at` to the file's end are a write that never completed: the beginning of
/// a block or of a tail, or space that was never written.
fn looks_cut(data: &[u8], at: usize, salt: u32) -> bool {
    let rest = &data[at..];
    if rest.iter().all(|&byte| byte == 0) {
        return true;
    }
    rest.len() < BLOCK_HEADER_LEN || BlockHeader::decode_of(rest, salt).is_some()
}

/// The index, if tail and INDEX blocks are sound and its offsets ascend within the file.
fn read_index(data: &[u8], salt: u32) -> Option<Vec<IndexEntry>> {
    let tail_at = data.len().checked_sub(TAIL_LEN)?;
    let tail = Tail::decode(&data[tail_at..]).ok().filter(|tail| tail.salt == salt)?;
    let mut at = usize::try_from(tail.index_offset).ok()?;
    let mut entries: Vec<IndexEntry> = Vec::new();
    let mut scratch = Scratch::new();
    for _ in 0..tail.index_blocks {
        let header = block_at(data, at, salt).filter(|header| header.kind == BlockKind::Index)?;
        let stored = stored(data, at, &header)?;
        decompress(&mut scratch.zstd, &mut scratch.raw, &header, stored).ok()?;
        for event in Events::new(&scratch.raw, &header) {
            if let Ok(Event::Index(more)) = event {
                entries.extend(more);
            }
            // There cannot be more blocks than headers that fit the file.
            if entries.len() > data.len() / BLOCK_HEADER_LEN {
                return None;
            }
        }
        at += BLOCK_HEADER_LEN + header.stored_len as usize;
    }
    let ascend = entries.windows(2).all(|pair| pair[0].offset < pair[1].offset && pair[0].seq < pair[1].seq);
    let within = entries.last().is_none_or(|last| last.offset < data.len() as u64);
    (at == tail_at && ascend && within).then_some(entries)
}

/// The damage that the sequence numbers from `first` to before `end` are missing.
fn lost(first: u64, end: u64, index: Option<&[IndexEntry]>) -> Damage {
    let listed = index.unwrap_or_default().iter().filter(|entry| (first..end).contains(&entry.seq));
    let kinds = listed.map(|entry| BlockKind::from_code(entry.kind)).take(16).collect();
    Damage::Lost { first, count: end - first, kinds }
}
