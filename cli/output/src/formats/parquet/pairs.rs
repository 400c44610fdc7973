//! Pairs of numbers, sorted and each once, in bounded memory: more than fit go to temporary files.

use super::super::OutputError;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, Write};
use stk_base::files::Below;

pub(super) type Pair = (u64, u64);

/// Pairs in memory, at most: 16 MiB.
const HELD: usize = 1 << 20;
/// Bytes of a temporary file that are read at once.
const BUFFER: usize = 1 << 16;

/// Pairs that are collected.
pub(super) struct Pairs {
    held: Vec<Pair>,
    most: usize,
    runs: Vec<File>,
    /// Begins the names of the temporary files.
    at: Below,
}

impl Pairs {
    /// Temporary files go to `tmp` and begin with `name`, which no others there do.
    pub(super) fn new(tmp: &Below, name: &str) -> Pairs {
        Pairs { held: Vec::new(), most: HELD, runs: Vec::new(), at: tmp.join(name) }
    }

    pub(super) fn push(&mut self, pair: Pair) -> Result<(), OutputError> {
        self.held.push(pair);
        if self.held.len() >= self.most {
            self.once();
            // Pairs that were there already make room.
            if self.held.len() > self.most / 2 {
                self.spill().map_err(OutputError::at(&self.at.path(), "cannot be written"))?;
            }
        }
        Ok(())
    }

    fn once(&mut self) {
        self.held.sort_unstable();
        self.held.dedup();
    }

    fn spill(&mut self) -> io::Result<()> {
        let name = format!("{}-{}", self.at.name()?.to_string_lossy(), self.runs.len());
        let mut file = self.at.with_name(name).create_new()?;
        let bytes = |pair: &Pair| [pair.0.to_le_bytes(), pair.1.to_le_bytes()].concat();
        for pairs in self.held.chunks(BUFFER / size_of::<Pair>()) {
            file.write_all(&pairs.iter().flat_map(bytes).collect::<Vec<u8>>())?;
        }
        file.rewind()?;
        self.runs.push(file);
        self.held.clear();
        Ok(())
    }

    /// All pairs, sorted, each once.
    pub(super) fn sorted(mut self) -> Result<SortedPairs, OutputError> {
        self.once();
        let mut sources = vec![Source::Memory(std::mem::take(&mut self.held).into_iter())];
        sources
            .extend(self.runs.into_iter().map(|file| Source::File(BufReader::with_capacity(BUFFER, file))));
        let mut next = BinaryHeap::new();
        let path = self.at.path();
        let cannot = OutputError::at(&path, "cannot be read");
        for (number, source) in sources.iter_mut().enumerate() {
            match source.next() {
                Ok(first) => next.extend(first.map(|pair| Reverse((pair, number)))),
                Err(error) => return Err(cannot(error)),
            }
        }
        Ok(SortedPairs { sources, next, at: self.at })
    }
}

enum Source {
    Memory(std::vec::IntoIter<Pair>),
    File(BufReader<File>),
}

impl Source {
    fn next(&mut self) -> io::Result<Option<Pair>> {
        match self {
            Source::Memory(pairs) => Ok(pairs.next()),
            Source::File(file) => {
                let mut bytes = [[0; 8]; 2];
                match file.read_exact(bytes.as_flattened_mut()) {
                    Ok(()) => Ok(Some((u64::from_le_bytes(bytes[0]), u64::from_le_bytes(bytes[1])))),
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
                    Err(error) => Err(error),
                }
            }
        }
    }
}

/// Sorted pairs.
pub(super) struct SortedPairs {
    sources: Vec<Source>,
    /// The next pair of each source, the least first.
    next: BinaryHeap<Reverse<(Pair, usize)>>,
    at: Below,
}

impl SortedPairs {
    pub(super) fn peek(&self) -> Option<Pair> {
        self.next.peek().map(|Reverse((pair, _))| *pair)
    }

    pub(super) fn next(&mut self) -> Result<Option<Pair>, OutputError> {
        let Some(pair) = self.peek() else { return Ok(None) };
        while self.peek() == Some(pair) {
            let Some(Reverse((_, number))) = self.next.pop() else { break };
            let following = self.sources[number].next();
            let following = following.map_err(OutputError::at(&self.at.path(), "cannot be read"))?;
            self.next.extend(following.map(|pair| Reverse((pair, number))));
        }
        Ok(Some(pair))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_come_sorted_and_once_in_any_memory() {
        let folder = tempfile::tempdir().unwrap();
        let tmp = Below::folder(folder.path()).unwrap();
        let number = |i: u64| i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 50;
        let all: Vec<Pair> = (0..20_000).map(|i| (number(i), number(i / 3) % 5)).collect();
        let mut expected = all.clone();
        expected.sort_unstable();
        expected.dedup();
        assert!(expected.len() < all.len());
        for most in [HELD, 5_000, 64] {
            let mut pairs = Pairs { most, ..Pairs::new(&tmp, &format!("of-{most}")) };
            all.iter().for_each(|&pair| pairs.push(pair).unwrap());
            assert_eq!(pairs.runs.is_empty(), most == HELD);
            let mut sorted = pairs.sorted().unwrap();
            let mut found = Vec::new();
            while let Some(pair) = sorted.next().unwrap() {
                found.push(pair);
            }
            assert!(found == expected, "{most}");
        }
    }
}
