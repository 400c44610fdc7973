//! Follows a trace that is still being written: reads what was appended since the last look, and
//! keeps what the newest samples need.
//!
//! Blocks of modules, threads and tables are kept all, blocks of samples only from the last STATE
//! block before the wanted time on: after a STATE block no sample depends on one before it. What is
//! kept is a trace itself, in which older samples are missing.

use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::path::Path;
use stk_base::files::open_input;
use stk_format::{BLOCK_HEADER_LEN, BlockHeader, BlockKind, FILE_HEADER_LEN, FileHeader};
use stk_schema::Ticks;

/// Most bytes that one look reads.
const MOST_READ: u64 = 256 << 20;

/// A trace that grows.
#[derive(Debug)]
pub struct Follower {
    file: File,
    /// Bytes of the file that were read.
    read: u64,
    /// The last of them, which are no whole block yet.
    rest: Vec<u8>,
    /// The file header, once it is there, with its bytes.
    header: Option<(FileHeader, Vec<u8>)>,
    blocks: Vec<HeldBlock>,
    last: Ticks,
    ended: bool,
}

/// A block as it is stored.
#[derive(Debug)]
struct HeldBlock {
    header: BlockHeader,
    bytes: Vec<u8>,
}

impl Follower {
    /// Follows the file at `path`, which may be empty so far.
    pub fn open(path: &Path) -> io::Result<Follower> {
        Ok(Follower {
            file: open_input(path)?,
            read: 0,
            rest: Vec::new(),
            header: None,
            blocks: Vec::new(),
            last: Ticks::ZERO,
            ended: false,
        })
    }

    /// Reads what was appended. Returns how many blocks of samples are new.
    ///
    /// # Errors
    ///
    /// When the system refuses, or the file is no trace.
    pub fn look(&mut self) -> io::Result<usize> {
        self.file.seek(SeekFrom::Start(self.read))?;
        self.read += (&mut self.file).take(MOST_READ).read_to_end(&mut self.rest)? as u64;
        let mut at = 0;
        if self.header.is_none() {
            let Some(bytes) = self.rest.get(..FILE_HEADER_LEN) else { return Ok(0) };
            let header = FileHeader::decode(bytes).map_err(|error| io::Error::other(error.to_string()))?;
            self.last = header.clock_start;
            self.header = Some((header, bytes.to_vec()));
            at = FILE_HEADER_LEN;
        }
        let mut new = 0;
        while let Some(block) = self.block_at(at) {
            at += block.bytes.len();
            self.last = self.last.max(block.header.last);
            self.ended |= block.header.kind == BlockKind::End;
            new += usize::from(block.header.kind == BlockKind::Samples);
            if !matches!(block.header.kind, BlockKind::Index | BlockKind::End) {
                self.blocks.push(block);
            }
        }
        self.rest.drain(..at);
        Ok(new)
    }

    /// The block that begins at this byte of the rest, if all of it is there.
    fn block_at(&self, at: usize) -> Option<HeldBlock> {
        let rest = self.rest.get(at..)?;
        let header = BlockHeader::decode(rest)?;
        let len = BLOCK_HEADER_LEN + header.stored_len as usize;
        Some(HeldBlock { header, bytes: rest.get(..len)?.to_vec() })
    }

    /// Whether the recording has ended.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// How long it has been recorded, in nanoseconds: to the latest event that was read.
    pub fn duration_ns(&self) -> u64 {
        self.header.as_ref().map_or(0, |(header, _)| super::Clock::new(header).ns(self.last))
    }

    /// A trace of what is needed for samples from `from_ns` on; empty before there is a header.
    /// Forgets older samples.
    pub fn excerpt(&mut self, from_ns: u64) -> Vec<u8> {
        let Some((header, head)) = &self.header else { return Vec::new() };
        let clock = super::Clock::new(header);
        let is_old = |block: &&HeldBlock| {
            block.header.kind == BlockKind::State && clock.ns(block.header.last) <= from_ns
        };
        let needed = self.blocks.iter().filter(is_old).map(|block| block.header.seq).max().unwrap_or(0);
        self.blocks.retain(|block| block.header.kind != BlockKind::Samples || block.header.seq >= needed);
        let blocks = self.blocks.iter().flat_map(|block| &block.bytes);
        head.iter().chain(blocks).copied().collect()
    }

    /// Blocks of samples that are held.
    #[cfg(test)]
    fn held_samples(&self) -> usize {
        self.blocks.iter().filter(|block| block.header.kind == BlockKind::Samples).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Trace;
    use std::io::Write as _;
    use stk_tests::traces;

    const STACK: u64 = 0x10_0000;

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
        let mut follower = Follower::open(&path).expect("there");
        assert_eq!(follower.look().expect("empty"), 0);
        assert!(follower.excerpt(0).is_empty());
        let mut samples = 0;
        for piece in bytes.chunks(37) {
            file.write_all(piece).expect("writable");
            samples += follower.look().expect("a trace");
        }
        assert_eq!((samples, follower.has_ended()), (30, true));
        assert_eq!(follower.look().expect("nothing new"), 0);
        let whole = follower.excerpt(0);
        let trace = Trace::read(&whole, "a.stk").expect("a trace");
        assert_eq!((trace.samples(), trace.timeline.threads.len()), (30, 1));
    }

    #[test]
    fn samples_before_the_last_state_block_of_the_wanted_time_are_forgotten() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.stk");
        std::fs::write(&path, recorded()).expect("writable");
        let mut follower = Follower::open(&path).expect("there");
        follower.look().expect("a trace");
        assert_eq!(follower.duration_ns(), 30_000_000);
        // The STATE block before the twentieth sample is the last one before 25 ms.
        let part = follower.excerpt(25_000_000);
        assert_eq!(follower.held_samples(), 11);
        let trace = Trace::read(&part, "a.stk").expect("a trace");
        assert_eq!((trace.samples(), trace.timeline.threads.len()), (11, 1));
    }

    #[test]
    fn a_file_that_is_no_trace_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.stk");
        std::fs::write(&path, [b'x'; 200]).expect("writable");
        assert!(Follower::open(&path).expect("there").look().is_err());
    }
}
