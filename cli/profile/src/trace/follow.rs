//! Follows a trace that is still being written: reads what was appended since the last look, and
//! keeps what the newest samples need.
//!
//! Blocks of modules, threads and tables are kept all, blocks of samples only from the last STATE
//! block before the wanted time on: after a STATE block no sample depends on one before it. What is
//! kept is a trace itself, in which older samples are missing. Where the file is damaged, it is
//! read on from the next sound block.

use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use stk_base::files::{is_file_at, open_input};
use stk_format::{BLOCK_HEADER_LEN, BlockHeader, BlockKind, FILE_HEADER_LEN, FileHeader};
use stk_schema::Ticks;
use stk_schema::limits::MAX_BLOCK_STORED;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes that are read at once.
const PIECE: u64 = 16 << 20;
/// Bytes without a sound block behind which nothing more is looked for.
const MOST_LOST: usize = 4 * (BLOCK_HEADER_LEN + MAX_BLOCK_STORED);
/// Bytes of blocks that are kept.
const MOST_HELD: usize = 128 << 20;

/// What became of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It grows, or may.
    Grows,
    /// The recording has ended.
    Ended,
    /// It has less than was read of it.
    Shortened,
    /// Its name belongs to another file now, or to none.
    Replaced,
    /// Too much of it holds no block.
    Lost,
}

/// What is missing in what was read.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FollowLosses {
    /// Bytes that belong to no block.
    pub bytes: u64,
    /// Blocks that are damaged, or not in the file by their numbers.
    pub blocks: u64,
    /// Blocks that were dropped, since what is kept would be too large.
    pub dropped: u64,
}

impl FollowLosses {
    /// Whether nothing is missing.
    pub fn is_none(&self) -> bool {
        *self == FollowLosses::default()
    }
}

/// A trace that grows.
#[derive(Debug)]
pub struct TraceTail {
    path: PathBuf,
    file: File,
    /// How much time before the newest event is wanted, in nanoseconds.
    span_ns: u64,
    /// From when on all is wanted, in nanoseconds since the trace's start; `u64::MAX`: the span.
    wanted_ns: u64,
    /// Bytes of the file in blocks that were taken, and in what is lost between them.
    taken: u64,
    /// The file header, once it is there, with its bytes.
    header: Option<(FileHeader, Vec<u8>)>,
    blocks: Vec<HeldBlock>,
    held: usize,
    /// Number of the next block.
    next: u64,
    last: Ticks,
    fate: Fate,
    losses: FollowLosses,
}

/// A block as it is stored.
#[derive(Debug)]
struct HeldBlock {
    header: BlockHeader,
    bytes: Vec<u8>,
}

impl TraceTail {
    /// Follows the file at `path`, which may be empty so far. `span_ns`: as of
    /// [`excerpt`](TraceTail::excerpt).
    pub fn open(path: &Path, span_ns: u64) -> io::Result<TraceTail> {
        Ok(TraceTail {
            file: open_input(path)?,
            path: path.to_owned(),
            span_ns,
            wanted_ns: u64::MAX,
            taken: 0,
            header: None,
            blocks: Vec::new(),
            held: 0,
            next: 0,
            last: Ticks::ZERO,
            fate: Fate::Grows,
            losses: FollowLosses::default(),
        })
    }

    /// Reads what was appended, to the end. Returns how many blocks of samples are new.
    ///
    /// # Errors
    ///
    /// When the system refuses, or the file is no trace.
    pub fn look(&mut self) -> io::Result<usize> {
        // Asked before it is read: what was appended until then is still taken.
        let is_there = is_file_at(&self.file, &self.path) && self.has_its_header()?;
        if self.file.metadata()?.len() < self.taken {
            self.fate = Fate::Shortened;
            return Ok(0);
        }
        self.file.seek(SeekFrom::Start(self.taken))?;
        let (mut rest, mut new) = (Vec::new(), 0);
        loop {
            let read = (&mut self.file).take(PIECE).read_to_end(&mut rest)? as u64;
            new += self.take(&mut rest)?;
            if rest.len() > MOST_LOST {
                self.fate = Fate::Lost;
                break;
            }
            if read < PIECE || self.fate != Fate::Grows {
                break;
            }
        }
        if !is_there && self.fate == Fate::Grows {
            self.fate = Fate::Replaced;
        }
        Ok(new)
    }

    /// Whether the file still begins as the trace that was read.
    fn has_its_header(&mut self) -> io::Result<bool> {
        let Some((known, _)) = &self.header else { return Ok(true) };
        let mut bytes = Vec::new();
        self.file.seek(SeekFrom::Start(0))?;
        (&mut self.file).take(FILE_HEADER_LEN as u64).read_to_end(&mut bytes)?;
        Ok(FileHeader::decode(&bytes).is_ok_and(|header| header.salt() == known.salt()))
    }

    /// Takes the blocks at the start of `rest`, which begins behind what was taken, out of it.
    fn take(&mut self, rest: &mut Vec<u8>) -> io::Result<usize> {
        let mut at = 0;
        if self.header.is_none() {
            let Some(bytes) = rest.get(..FILE_HEADER_LEN) else { return Ok(0) };
            let header = FileHeader::decode(bytes).map_err(|error| io::Error::other(error.to_string()))?;
            self.last = header.clock_start;
            self.header = Some((header, bytes.to_vec()));
            at = FILE_HEADER_LEN;
        }
        let salt = self.header.as_ref().map_or(0, |(header, _)| header.salt());
        let mut new = 0;
        while let Some((lost, header)) = next_block(&rest[at..], salt) {
            let start = at + lost;
            let end = start + BLOCK_HEADER_LEN + header.stored_len as usize;
            let Some(bytes) = rest.get(start..end) else { break };
            // Behind the end are the tail of the recording and a supplement.
            if self.fate == Fate::Grows {
                self.losses.bytes += lost as u64;
            }
            new += self.add(&header, bytes);
            at = end;
        }
        rest.drain(..at);
        self.taken += at as u64;
        Ok(new)
    }

    /// Takes note of a block. Returns 1 if it has samples.
    fn add(&mut self, header: &BlockHeader, bytes: &[u8]) -> usize {
        let missing = header.seq.saturating_sub(self.next);
        self.losses.blocks = self.losses.blocks.saturating_add(missing);
        self.next = header.seq.saturating_add(1);
        if header.payload_hash != xxh3_64(&bytes[BLOCK_HEADER_LEN..]) {
            self.losses.blocks = self.losses.blocks.saturating_add(1);
            return 0;
        }
        self.last = self.last.max(header.last);
        match header.kind {
            BlockKind::End => self.fate = Fate::Ended,
            BlockKind::Index => {}
            _ => {
                self.held += bytes.len();
                self.blocks.push(HeldBlock { header: *header, bytes: bytes.to_vec() });
                if self.held > MOST_HELD {
                    self.forget();
                    self.drop_oldest();
                }
            }
        }
        usize::from(header.kind == BlockKind::Samples)
    }

    /// Drops the oldest samples until what is kept is half as much as it may be; and the oldest of
    /// all if that leaves it too large still.
    fn drop_oldest(&mut self) {
        for samples in [true, false] {
            if !samples && self.held <= MOST_HELD / 4 * 3 {
                return;
            }
            for block in std::mem::take(&mut self.blocks) {
                let is_chosen = !samples || block.header.kind == BlockKind::Samples;
                if is_chosen && self.held > MOST_HELD / 2 {
                    self.held -= block.bytes.len();
                    self.losses.dropped += 1;
                } else {
                    self.blocks.push(block);
                }
            }
        }
    }

    /// What became of the file.
    pub fn fate(&self) -> Fate {
        self.fate
    }

    /// What is missing in what was read.
    pub fn losses(&self) -> FollowLosses {
        self.losses
    }

    /// How long it has been recorded, in nanoseconds: to the latest event that was read.
    pub fn duration_ns(&self) -> u64 {
        self.header.as_ref().map_or(0, |(header, _)| super::Clock::new(header).ns(self.last))
    }

    /// Keeps all samples from this time on, in nanoseconds since the trace's start, beside those of
    /// the newest `span_ns`.
    pub fn keep_from(&mut self, ns: u64) {
        self.wanted_ns = ns;
    }

    /// A trace of what is needed for the newest `span_ns`; empty before there is a header. Forgets
    /// older samples.
    pub fn excerpt(&mut self) -> Vec<u8> {
        self.forget();
        let Some((_, head)) = &self.header else { return Vec::new() };
        let blocks = self.blocks.iter().flat_map(|block| &block.bytes);
        head.iter().chain(blocks).copied().collect()
    }

    /// Forgets samples that are not needed for the wanted time.
    fn forget(&mut self) {
        let Some((header, _)) = &self.header else { return };
        let clock = super::Clock::new(header);
        let from_ns = clock.ns(self.last).saturating_sub(self.span_ns).min(self.wanted_ns);
        let is_old = |block: &&HeldBlock| {
            block.header.kind == BlockKind::State && clock.ns(block.header.last) < from_ns
        };
        let needed = self.blocks.iter().filter(is_old).map(|block| block.header.seq).max().unwrap_or(0);
        self.blocks.retain(|block| block.header.kind != BlockKind::Samples || block.header.seq >= needed);
        self.held = self.blocks.iter().map(|block| block.bytes.len()).sum();
    }

    /// Blocks of samples that are held.
    #[cfg(test)]
    fn held_samples(&self) -> usize {
        self.blocks.iter().filter(|block| block.header.kind == BlockKind::Samples).count()
    }
}

/// The next sound header in `bytes`, and how many bytes are before it.
fn next_block(bytes: &[u8], salt: u32) -> Option<(usize, BlockHeader)> {
    let last = bytes.len().checked_sub(BLOCK_HEADER_LEN)?;
    (0..=last).find_map(|at| Some((at, BlockHeader::decode_of(&bytes[at..], salt)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Trace;
    use std::io::Write as _;
    use stk_tests::traces;

    const STACK: u64 = 0x10_0000;
    const SPAN: u64 = 5_000_000;

    /// A trace with a sample a millisecond, each in a block of its own, and a STATE block before
    /// each tenth.
    fn recorded() -> Vec<u8> {
        let mut builder = traces::trace();
        let thread = builder.thread(0, 11, "main", STACK);
        for i in 1..=30 {
            if i % 10 == 0 {
                builder.state();
            }
            traces::sample(&mut builder, thread, i * 10_000, STACK, &[i]);
            builder.cut();
        }
        builder.finish()
    }

    #[test]
    fn blocks_are_taken_when_they_are_whole_and_nothing_is_read_twice() {
        let bytes = recorded();
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.stk");
        let mut file = File::create(&path).expect("writable");
        let mut follower = TraceTail::open(&path, u64::MAX).expect("there");
        assert_eq!(follower.look().expect("empty"), 0);
        assert!(follower.excerpt().is_empty());
        let mut samples = 0;
        for piece in bytes.chunks(37) {
            file.write_all(piece).expect("writable");
            samples += follower.look().expect("a trace");
        }
        assert_eq!((samples, follower.fate()), (30, Fate::Ended));
        assert_eq!(follower.look().expect("nothing new"), 0);
        let whole = follower.excerpt();
        let trace = Trace::read(&whole, "a.stk").expect("a trace");
        assert_eq!((trace.samples(), trace.timeline.threads.len()), (30, 1));
    }

    #[test]
    fn samples_before_the_last_state_block_of_the_wanted_time_are_forgotten() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.stk");
        std::fs::write(&path, recorded()).expect("writable");
        let mut follower = TraceTail::open(&path, SPAN).expect("there");
        follower.look().expect("a trace");
        assert_eq!(follower.duration_ns(), 30_000_000);
        // The STATE block before the twentieth sample is the last one before 25 ms.
        let part = follower.excerpt();
        assert_eq!(follower.held_samples(), 11);
        let trace = Trace::read(&part, "a.stk").expect("a trace");
        assert_eq!((trace.samples(), trace.timeline.threads.len()), (11, 1));
    }

    #[test]
    fn a_file_that_is_no_trace_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.stk");
        std::fs::write(&path, [b'x'; 200]).expect("writable");
        assert!(TraceTail::open(&path, SPAN).expect("there").look().is_err());
    }

    /// What a follower of a file with these bytes has read: samples, what is missing, and the fate.
    fn followed(bytes: &[u8]) -> (u64, FollowLosses, Fate) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.stk");
        std::fs::write(&path, bytes).expect("writable");
        let mut follower = TraceTail::open(&path, u64::MAX).expect("there");
        follower.look().expect("a trace");
        let whole = follower.excerpt();
        let samples = Trace::read(&whole, "a.stk").map_or(0, |trace| trace.samples());
        (samples, follower.losses(), follower.fate())
    }

    /// Where the blocks of a trace begin.
    fn blocks(bytes: &[u8]) -> Vec<usize> {
        let trace = stk_format::Trace::open(bytes).expect("a trace");
        trace.blocks().iter().map(|block| block.offset as usize).collect()
    }

    #[test]
    fn damaged_header_or_payload_costs_that_block_and_is_counted() {
        let sound = recorded();
        assert_eq!(followed(&sound), (30, FollowLosses::default(), Fate::Ended));
        let starts = blocks(&sound);
        let middle = starts[starts.len() / 2];
        for (at, bytes) in [(middle + 20, true), (middle + BLOCK_HEADER_LEN, false)] {
            let mut damaged = sound.clone();
            damaged[at] ^= 1;
            let (samples, losses, fate) = followed(&damaged);
            assert!((28..30).contains(&samples) && fate == Fate::Ended, "{samples} {fate:?}");
            assert_eq!((losses.bytes > 0, losses.blocks, losses.dropped), (bytes, 1, 0), "{losses:?}");
        }
    }

    #[test]
    fn blocks_that_are_not_in_the_file_are_counted() {
        let sound = recorded();
        let starts = blocks(&sound);
        let cut = [&sound[..starts[10]], &sound[starts[13]..]].concat();
        assert_eq!(followed(&cut).1, FollowLosses { blocks: 3, ..FollowLosses::default() });
    }

    #[test]
    fn zeros_without_end_end_the_following() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.stk");
        let file = File::create(&path).expect("writable");
        (&file).write_all(&recorded()[..FILE_HEADER_LEN]).expect("writable");
        file.set_len(1 << 36).expect("a sparse file");
        let mut follower = TraceTail::open(&path, SPAN).expect("there");
        assert_eq!(follower.look().expect("read"), 0);
        assert_eq!(follower.fate(), Fate::Lost);
    }

    #[test]
    fn file_that_shrinks_or_changes_its_place_is_noticed() {
        let bytes = recorded();
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.stk");
        let half = &bytes[..blocks(&bytes)[20]];
        let other = {
            let (header, os) = (b"another trace's\0", stk_schema::Os::Windows);
            let header = FileHeader::new(stk_schema::Arch::X64, os, *header, 10_000_000);
            let mut builder = stk_tests::synth::TraceBuilder::with_header(header);
            builder.thread(0, 11, "main", STACK);
            builder.finish()
        };
        let fate_after = |change: &dyn Fn()| {
            std::fs::write(&path, half).expect("writable");
            let mut follower = TraceTail::open(&path, SPAN).expect("there");
            assert!(follower.look().expect("a trace") > 0 && follower.fate() == Fate::Grows);
            change();
            follower.look().expect("read");
            follower.fate()
        };
        assert_eq!(fate_after(&|| std::fs::write(&path, &half[..200]).unwrap()), Fate::Shortened);
        assert_eq!(fate_after(&|| std::fs::rename(&path, folder.path().join("b")).unwrap()), Fate::Replaced);
        assert_eq!(fate_after(&|| std::fs::remove_file(&path).unwrap()), Fate::Replaced);
        assert_eq!(
            fate_after(&|| std::fs::write(&path, [&other[..], half].concat()).unwrap()),
            Fate::Replaced
        );
        assert_eq!(fate_after(&|| ()), Fate::Grows);
    }

    #[test]
    fn more_blocks_than_fit_into_memory_are_dropped_oldest_first() {
        let recorded = recorded();
        let like = BlockHeader::decode(&recorded[blocks(&recorded)[0]..]).expect("a header");
        let file = tempfile::NamedTempFile::new().expect("a file");
        let mut follower = TraceTail::open(file.path(), SPAN).expect("there");
        let bytes = vec![0; 1 << 20];
        let hash = xxh3_64(&bytes[BLOCK_HEADER_LEN..]);
        for seq in 0..300 {
            let kind = if seq % 6 == 0 { BlockKind::Meta } else { BlockKind::Samples };
            follower.add(&BlockHeader { payload_hash: hash, seq, kind, ..like }, &bytes);
            assert!(follower.held <= MOST_HELD && follower.held == follower.blocks.len() << 20);
        }
        assert!(follower.losses().dropped > 100, "{:?}", follower.losses());
        assert_eq!(follower.blocks.iter().filter(|block| block.header.kind == BlockKind::Meta).count(), 50);
    }

    /// This variable says how many files: each comes in pieces, with some changes. tests/fuzz makes
    /// the same ones.
    #[test]
    fn wrong_files_are_followed_to_an_end() {
        let runs = std::env::var("STK_WRONG_TRACES").ok().and_then(|runs| runs.parse().ok()).unwrap_or(300);
        let mut random = stk_tests::synth::Random::new(5);
        let sound = recorded();
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.stk");
        for _ in 0..runs {
            let mut bytes = sound.clone();
            for _ in 0..random.below(6) {
                stk_tests::wrong::stored(&mut bytes, FILE_HEADER_LEN, &mut random);
            }
            let mut file = File::create(&path).expect("writable");
            let mut follower = TraceTail::open(&path, SPAN).expect("there");
            let mut samples = 0;
            for piece in bytes.chunks(1 + random.below(4000)) {
                file.write_all(piece).expect("writable");
                samples += follower.look().expect("a trace");
            }
            assert!(samples <= bytes.len() / BLOCK_HEADER_LEN, "{samples}");
            let excerpt = follower.excerpt();
            assert!(excerpt.len() <= bytes.len() && Trace::read(&excerpt, "a.stk").is_ok());
            assert!(samples >= 30 || !follower.losses().is_none() || follower.fate() == Fate::Grows);
        }
    }
}
