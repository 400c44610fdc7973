//! What a trace file holds, whatever its name is.

use super::{TraceError, TraceFile};
use std::collections::HashMap;
use std::ops::Range;
use stk_format::{BLOCK_HEADER_LEN, BlockKind, BlockRef, OpenError, Scratch, Supplement};
use stk_schema::event::Event;
use stk_schema::identity::ContentHash;
use stk_schema::text::hex;
use xxhash_rust::xxh3::Xxh3;

/// Bytes that are hashed at once. Pages behind them are given back to the system.
const WINDOW: usize = 8 << 20;

/// The content of a trace file: its bytes up to the end of its last whole block. What follows there
/// was never completed, and nothing is read from it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Content {
    /// UUID of the recording, 32 hex digits. Different contents can have the same one.
    pub uuid: String,
    /// Time of day of its start, nanoseconds since the Unix epoch.
    pub start_utc_ns: u64,
    /// Hash of the content.
    pub digest: ContentHash,
    /// Length in bytes.
    pub len: u64,
    /// The first 8 bytes, as a little-endian number, of the hash of each beginning of the content
    /// that ends with a block or with the recording (before a supplement), shortest first.
    pub beginnings: Vec<u64>,
    /// If `stk redact` made it: the first 8 bytes of the digest of the content that it is of.
    pub redacted_from: Option<u64>,
}

/// The METADATA key by which a redacted copy states the digest of the content that it is of.
pub const REDACTED_FROM: &str = "redacted.from";

impl Content {
    /// Whether the content of `len` bytes with this digest is this one or a beginning of it.
    pub fn begins_with(&self, len: u64, digest: &ContentHash) -> bool {
        match len.cmp(&self.len) {
            std::cmp::Ordering::Equal => *digest == self.digest,
            std::cmp::Ordering::Less => self.beginnings.contains(&short(digest)),
            std::cmp::Ordering::Greater => false,
        }
    }

    /// Whether a content is a redacted copy of this one or of a beginning of it.
    pub fn is_origin_of(&self, copy: &Content) -> bool {
        let is_it = |from| short(&self.digest) == from || self.beginnings.contains(&from);
        self.redacted_from.is_none() && copy.redacted_from.is_some_and(is_it)
    }
}

impl TraceFile {
    /// What the file holds. Reads all of it.
    ///
    /// # Errors
    ///
    /// When the file is not a trace that this version reads.
    pub fn content(&self) -> Result<Content, TraceError> {
        content(&self.bytes, |range| self.bytes.release(range))
            .map_err(|cause| TraceError::Open { path: self.path.clone(), cause })
    }
}

/// For each content, the index of the longest of the others that it is a beginning of, or a
/// redacted copy of. That one stands for it. Of equally long ones, it is the one with the smallest
/// digest; of several redacted copies of one content that is not there, it is the same.
///
/// The contents differ and are of one recording. The result depends on the set alone.
pub fn stand_ins(contents: &[Content]) -> Vec<Option<usize>> {
    let mut by_digest: HashMap<u64, Vec<usize>> = HashMap::new();
    for (i, content) in contents.iter().enumerate() {
        by_digest.entry(short(&content.digest)).or_default().push(i);
    }
    let mut found: Vec<Option<usize>> = vec![None; contents.len()];
    let rank = |i: usize| (contents[i].len, std::cmp::Reverse(contents[i].digest));
    for (long, content) in contents.iter().enumerate() {
        let shorter = content.beginnings.iter().filter_map(|digest| by_digest.get(digest)).flatten();
        for &short in shorter.filter(|&&short| contents[short].len < content.len) {
            if found[short].is_none_or(|other| rank(other) < rank(long)) {
                found[short] = Some(long);
            }
        }
    }
    let mut redacted: HashMap<u64, Vec<usize>> = HashMap::new();
    for (i, from) in contents.iter().enumerate().filter_map(|(i, content)| Some((i, content.redacted_from?)))
    {
        redacted.entry(from).or_default().push(i);
    }
    let mut origins: HashMap<u64, usize> = HashMap::new();
    for (i, content) in contents.iter().enumerate().filter(|(_, content)| content.redacted_from.is_none()) {
        let beginnings = content.beginnings.iter().copied().chain([short(&content.digest)]);
        for from in beginnings.filter(|from| redacted.contains_key(from)) {
            let best = origins.entry(from).or_insert(i);
            *best = std::cmp::max_by_key(*best, i, |&i| rank(i));
        }
    }
    for (from, copies) in &redacted {
        let Some(best) = origins.get(from).or(copies.iter().max_by_key(|&&i| rank(i))) else { continue };
        copies.iter().filter(|&copy| copy != best).for_each(|&copy| found[copy] = Some(*best));
    }
    let last = |mut at: usize| {
        // A chain has no circle, unless hashes are forged.
        for _ in 0..contents.len() {
            let Some(next) = found[at] else { break };
            at = next;
        }
        at
    };
    (0..contents.len()).map(|i| found[i].map(|_| last(i)).filter(|&copy| copy != i)).collect()
}

/// The first 8 bytes of a digest.
fn short(digest: &ContentHash) -> u64 {
    digest.0.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn content(data: &[u8], release: impl Fn(Range<usize>)) -> Result<Content, OpenError> {
    let trace = stk_format::Trace::open(data)?;
    let recorded = trace.recorded_len();
    let len = match trace.supplement() {
        Supplement::Whole { range } => range.end,
        Supplement::None | Supplement::Torn { .. } => recorded,
    };
    let end = |block: &stk_format::BlockRef| {
        block.offset + BLOCK_HEADER_LEN as u64 + u64::from(block.header.stored_len)
    };
    let mut ends: Vec<u64> = trace.blocks().iter().map(end).chain([recorded]).collect();
    ends.retain(|&end| end < len);
    ends.sort_unstable();
    ends.dedup();
    let mut hash = Xxh3::new();
    let mut at = 0;
    let mut hash_until = |end: u64| {
        // What was opened lies within the file.
        let end = usize::try_from(end).unwrap_or(usize::MAX).min(data.len());
        while at < end {
            let next = end.min((at / WINDOW + 1) * WINDOW);
            hash.update(&data[at..next]);
            if next % WINDOW == 0 {
                release(next - WINDOW..next);
            }
            at = next;
        }
        ContentHash(hash.digest128().to_le_bytes())
    };
    let beginnings = ends.into_iter().map(|end| short(&hash_until(end))).collect();
    let digest = hash_until(len);
    release(0..data.len());
    let uuid = hex(&trace.header().uuid);
    let redacted_from = redacted_from(&trace);
    Ok(Content { uuid, start_utc_ns: trace.header().utc_start, digest, len, beginnings, redacted_from })
}

/// What a redacted copy states in its first META or STATE block.
fn redacted_from(trace: &stk_format::Trace<'_>) -> Option<u64> {
    let mut blocks = trace.blocks().iter();
    let is_place = |block: &&BlockRef| matches!(block.header.kind, BlockKind::Meta | BlockKind::State);
    let mut scratch = Scratch::new();
    let events = trace.events(blocks.find(is_place)?, &mut scratch).ok()?;
    let facts = events.map_while(Result::ok).filter_map(|event| match event {
        Event::Metadata(fact) if fact.key == REDACTED_FROM.as_bytes() => Some(fact.value),
        _ => None,
    });
    let digest = facts.last()?;
    Some(short(&ContentHash::parse(std::str::from_utf8(digest).ok()?)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use stk_format::SupplementWriter;
    use stk_format::blob::content_hash;
    use stk_schema::event::Metadata;

    fn of(file: &[u8]) -> Content {
        content(file, |_| ()).expect("a trace")
    }

    /// A finished trace of several blocks.
    fn whole(samples: u64) -> Vec<u8> {
        let mut builder = stk_tests::traces::trace();
        let thread = builder.thread(0, 11, "main", 0x10_0000);
        for i in 1..=samples {
            stk_tests::traces::sample(&mut builder, thread, i * 1000, 0x10_0000, &[]);
            builder.cut();
        }
        builder.finish()
    }

    /// Where the SAMPLES block with this number ends.
    fn end_of(file: &[u8], number: usize) -> usize {
        let trace = stk_format::Trace::open(file).expect("a trace");
        let mut samples = trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Samples);
        let block = samples.nth(number).expect("the block");
        block.offset as usize + BLOCK_HEADER_LEN + block.header.stored_len as usize
    }

    #[test]
    fn a_content_is_hashed_up_to_the_end_of_its_last_whole_block() {
        let file = whole(5);
        assert_eq!(of(&file).digest, content_hash(&file));
        assert_eq!(of(&file).len, file.len() as u64);
        let end = end_of(&file, 2);
        let cut = of(&file[..end + 50]);
        assert_eq!((cut.digest, cut.len), (content_hash(&file[..end]), end as u64));
        assert_eq!(cut, of(&file[..end]));
    }

    #[test]
    fn a_file_begins_with_what_it_was_before_it_grew() {
        let file = whole(5);
        let all = of(&file);
        for number in 0..5 {
            let cut = of(&file[..end_of(&file, number) + 7]);
            assert!(all.begins_with(cut.len, &cut.digest), "{number}");
            assert!(!cut.begins_with(all.len, &all.digest), "{number}");
        }
        assert!(all.begins_with(all.len, &all.digest));
        let other = of(&whole(4));
        assert!(!all.begins_with(other.len, &other.digest), "it ends differently");
    }

    #[test]
    fn the_longest_content_stands_for_its_beginnings_in_any_order() {
        let file = whole(5);
        let [short, middle, all] = [&file[..end_of(&file, 1)], &file[..end_of(&file, 3)], &file].map(of);
        let mut other = file.clone();
        let changed = end_of(&file, 2) - 10;
        other[changed] ^= 1;
        let other = of(&other);
        let contents = [short, all.clone(), other, middle];
        // `other` has the beginning `short` too; of two that are equally long the digest decides.
        let of_short = if contents[1].digest < contents[2].digest { 1 } else { 2 };
        assert_eq!(stand_ins(&contents), [Some(of_short), None, None, Some(1)]);
        let turned: Vec<Content> = contents.iter().rev().cloned().collect();
        let turned: Vec<_> = stand_ins(&turned).into_iter().rev().map(|at| at.map(|at| 3 - at)).collect();
        assert_eq!(turned, stand_ins(&contents));
    }

    #[test]
    fn the_origin_stands_for_its_redacted_copies_in_any_order() {
        let file = whole(5);
        let [short, all] = [&file[..end_of(&file, 1)], &file].map(of);
        let copy = |name: u8, len, of: &Content| Content {
            digest: content_hash(&[name]),
            len,
            beginnings: Vec::new(),
            redacted_from: Some(super::short(&of.digest)),
            ..all.clone()
        };
        let copies = [copy(1, 10, &all), copy(2, 1 << 40, &all), copy(3, 10, &short)];
        let [one, two, of_short] = copies;
        let contents = [one.clone(), short.clone(), two.clone(), of_short.clone(), all.clone()];
        assert_eq!(stand_ins(&contents), [Some(4), Some(4), Some(4), Some(4), None]);
        assert!(all.is_origin_of(&of_short) && short.is_origin_of(&of_short) && !short.is_origin_of(&one));
        // Without the origin, the longest copy stands for the others of the same.
        assert_eq!(stand_ins(&[one, of_short, two]), [Some(2), None, None]);
    }

    #[test]
    fn what_a_supplement_was_added_to_is_a_beginning() {
        let recording = whole(3);
        let added = {
            let trace = stk_format::Trace::open(&recording).expect("a trace");
            let mut writer = SupplementWriter::new(&trace).expect("it can be completed");
            let fact = Event::Metadata(Metadata { key: b"supplement.modules", value: b"1" });
            writer.event(BlockKind::Meta, &fact).expect("a fact");
            writer.finish().expect("a supplement")
        };
        assert_eq!(added.keep, recording.len() as u64);
        let completed = [recording.clone(), added.bytes].concat();
        let before = of(&recording);
        let after = of(&completed);
        assert_eq!((after.len, after.uuid.as_str()), (completed.len() as u64, before.uuid.as_str()));
        assert!(after.begins_with(before.len, &before.digest));
    }
}
