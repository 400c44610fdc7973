//! An index, in memory or mapped, and what its look-ups return.

use std::sync::atomic::{AtomicU8, Ordering};

use xxhash_rust::xxh3::xxh3_64;

use super::flat::{self, CHUNK, HEADER, IndexSection, SECTIONS};
use super::layout::{IndexError, IndexHeader, NONE, Origin, RecordKind};
use stk_base::map::MappedFile;
use stk_base::model::bytes::{u32_at, u64_at};

/// An index, in memory or mapped from a cache file. Opening reads only the header. Every 64 KiB of
/// the rest is checked against its hash when it is first read.
pub struct SymbolIndex {
    bytes: Storage,
    header: IndexHeader,
    pub(super) sections: [(usize, usize); SECTIONS],
    /// One flag per chunk: 1 once its hash was found correct. Empty for an index that was built in
    /// this process.
    pub(super) checked: Box<[AtomicU8]>,
    /// One bit per node: set once everything that its chain needs was checked. Empty if `checked`
    /// is.
    pub(super) chains: Box<[AtomicU8]>,
}

enum Storage {
    Owned(Vec<u8>),
    Mapped(MappedFile),
}

/// The entry of an index for one address.
#[derive(Clone, Copy, Debug)]
pub struct Hit<'i> {
    pub(super) index: &'i SymbolIndex,
    pub(super) node: u32,
    pub(super) line: u32,
    pub(super) rva: u32,
}

/// One frame of an address: the function that the code belongs to, or one that is inlined into it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'i> {
    /// The name in the record, not demangled.
    pub name: &'i str,
    /// Source file, under the symbol file's name for it.
    pub file: Option<&'i str>,
    /// Line in `file`, from 1; `None` if no line row covers the address.
    pub line: Option<u32>,
    /// Whether the function is inlined into the next frame.
    pub inline: bool,
}

/// The range of code that an address is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range<'i> {
    /// First rva.
    pub start: u32,
    /// First rva behind the range.
    pub end: u32,
    /// The name in the record.
    pub name: &'i str,
    /// The kind of the record.
    pub kind: RecordKind,
    number: u32,
}

/// A string of an index, by its number: equal numbers are equal strings. See [`SymbolIndex::text`]
/// and [`TextMap`](super::TextMap).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TextId(pub(super) u32);

/// A [`Frame`] with numbers in place of its strings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawFrame {
    /// The name in the record.
    pub name: TextId,
    /// Source file, under the symbol file's name for it.
    pub file: Option<TextId>,
    /// Line in `file`, from 1; `None` if no line row covers the address.
    pub line: Option<u32>,
    /// Whether the function is inlined into the next frame.
    pub inline: bool,
}

/// Frames of one address, innermost first.
pub struct Frames<'i> {
    index: &'i SymbolIndex,
    raw: RawFrames<'i>,
}

/// Frames of one address, innermost first, without their strings.
pub struct RawFrames<'i> {
    nodes: &'i [u8],
    node: u32,
    line: u32,
}

impl std::fmt::Debug for SymbolIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SymbolIndex")
            .field("header", &self.header)
            .field("bytes", &self.data().len())
            .finish()
    }
}

impl SymbolIndex {
    /// Makes an index of bytes that this process has built.
    pub(crate) fn from_bytes(bytes: Vec<u8>) -> Result<SymbolIndex, IndexError> {
        let (header, sections) = flat::read_header(&bytes)?;
        let (checked, chains) = (Box::default(), Box::default());
        Ok(SymbolIndex { bytes: Storage::Owned(bytes), header, sections, checked, chains })
    }

    /// Opens an index from a file.
    ///
    /// # Errors
    ///
    /// Why the file is not an index of this version, or that its header is damaged.
    pub fn open(file: MappedFile) -> Result<SymbolIndex, IndexError> {
        let (header, sections) = flat::read_header(&file)?;
        let flags = |count: usize| (0..count).map(|_| AtomicU8::new(0)).collect();
        let checked = flags(sections[IndexSection::Chunks as usize].1 / 8);
        let chains = flags(sections[IndexSection::Nodes as usize].1.div_ceil(16 * 8));
        Ok(SymbolIndex { bytes: Storage::Mapped(file), header, sections, checked, chains })
    }

    /// The index as it is stored in a file.
    pub fn as_bytes(&self) -> &[u8] {
        self.data()
    }

    /// Identity of the file that the index was built from.
    pub fn header(&self) -> &IndexHeader {
        &self.header
    }

    /// Every range of code in the index, by address.
    pub fn ranges(&self) -> impl Iterator<Item = Range<'_>> + '_ {
        (0..(self.len(IndexSection::Ranges) / 16) as u32).filter_map(|number| self.range(number))
    }

    /// Checks every part of a mapped index.
    ///
    /// # Errors
    ///
    /// [`IndexError::Damaged`] if any part does not match its hash.
    pub fn verify(&self) -> Result<(), IndexError> {
        (0..self.checked.len()).try_for_each(|chunk| self.check_chunk(chunk))
    }

    pub(super) fn check_string(&self, id: u32) -> Result<(), IndexError> {
        let (start, end) = self.string_bounds(id)?;
        let len = end.checked_sub(start).ok_or(IndexError::Damaged("string ends"))?;
        self.bytes(IndexSection::Strings, start, len).map(drop)
    }

    /// The range of a string's bytes.
    fn string_bounds(&self, id: u32) -> Result<(usize, usize), IndexError> {
        let at = id as usize * 4;
        Ok(match at.checked_sub(4) {
            Some(before) => {
                let bounds = self.bytes(IndexSection::StringEnds, before, 8)?;
                (word(bounds, 0) as usize, word(bounds, 4) as usize)
            }
            None => (0, word(self.bytes(IndexSection::StringEnds, 0, 4)?, 0) as usize),
        })
    }

    /// The string with this number; `None` if the number is of another index, or the string is
    /// damaged.
    pub fn text(&self, id: TextId) -> Option<&str> {
        self.string(id.0)
    }

    /// The number of strings: every [`TextId`] is below it.
    pub(super) fn text_count(&self) -> usize {
        self.len(IndexSection::StringEnds) / 4
    }

    fn string(&self, id: u32) -> Option<&str> {
        let (start, end) = self.string_bounds(id).ok()?;
        let bytes = self.bytes(IndexSection::Strings, start, end.checked_sub(start)?).ok()?;
        std::str::from_utf8(bytes).ok()
    }

    fn range(&self, number: u32) -> Option<Range<'_>> {
        let bytes = self.bytes(IndexSection::Ranges, number as usize * 16, 16).ok()?;
        Some(Range {
            start: word(bytes, 0),
            end: word(bytes, 4),
            name: self.string(word(bytes, 8))?,
            kind: RecordKind::from_u8(word(bytes, 12) as u8)?,
            number,
        })
    }

    #[inline]
    pub(super) fn len(&self, section: IndexSection) -> usize {
        self.sections[section as usize].1
    }

    /// Bytes of a section. Their chunks are checked.
    #[inline]
    pub(super) fn bytes(&self, section: IndexSection, at: usize, len: usize) -> Result<&[u8], IndexError> {
        let (start, size) = self.sections[section as usize];
        let end = at.checked_add(len).filter(|&end| end <= size).ok_or(IndexError::Damaged("reference"))?;
        let (from, to) = (start + at, start + end);
        if !self.checked.is_empty() && len != 0 {
            let (first, last) = ((from - HEADER) / CHUNK, (to - 1 - HEADER) / CHUNK);
            if first != last || !self.is_checked(first) {
                self.check_chunks(first, last)?;
            }
        }
        Ok(&self.data()[from..to])
    }

    #[inline]
    fn is_checked(&self, chunk: usize) -> bool {
        self.checked.get(chunk).is_some_and(|flag| flag.load(Ordering::Relaxed) != 0)
    }

    #[cold]
    fn check_chunks(&self, first: usize, last: usize) -> Result<(), IndexError> {
        (first..=last).filter(|&chunk| !self.is_checked(chunk)).try_for_each(|chunk| self.check_chunk(chunk))
    }

    fn check_chunk(&self, chunk: usize) -> Result<(), IndexError> {
        let damaged = IndexError::Damaged("contents");
        let (chunks, _) = self.sections[IndexSection::Chunks as usize];
        let from = HEADER + chunk * CHUNK;
        let bytes = self.data().get(from..chunks.min(from + CHUNK)).ok_or(damaged)?;
        if u64_at(self.data(), chunks + chunk * 8) != Some(xxh3_64(bytes)) {
            return Err(damaged);
        }
        self.checked.get(chunk).ok_or(damaged)?.store(1, Ordering::Relaxed);
        Ok(())
    }

    #[inline]
    pub(super) fn data(&self) -> &[u8] {
        match &self.bytes {
            Storage::Owned(bytes) => bytes,
            Storage::Mapped(file) => file,
        }
    }
}

impl<'i> Hit<'i> {
    /// The frames, innermost first; the last one is the function itself.
    pub fn frames(&self) -> Frames<'i> {
        Frames { index: self.index, raw: self.raw_frames() }
    }

    /// The same frames without their strings, for many addresses that share most of their strings.
    #[inline]
    pub fn raw_frames(&self) -> RawFrames<'i> {
        let (start, len) = self.index.sections[IndexSection::Nodes as usize];
        let nodes = self.index.data().get(start..start + len).unwrap_or(&[]);
        RawFrames { nodes, node: self.node, line: self.line }
    }

    /// The range of code that holds the address.
    pub fn range(&self) -> Option<Range<'i>> {
        let nodes = |node: u32| self.index.bytes(IndexSection::Nodes, node as usize * 16, 16).ok();
        let mut node = nodes(self.node)?;
        while word(node, 8) != NONE {
            node = nodes(word(node, 8))?;
        }
        self.index.range(word(node, 12))
    }

    /// The kind of file that the index was built from.
    pub fn origin(&self) -> Origin {
        self.index.header.origin
    }

    /// The address in the symbol file's own terms (it differs from the image's only where an OMAP
    /// moved code).
    pub fn linked_rva(&self) -> u32 {
        self.rva
    }
}

impl<'i> Range<'i> {
    /// Further names of the same code: functions folded into this one, other public names.
    pub fn aliases(&self, index: &'i SymbolIndex) -> Vec<(&'i str, RecordKind)> {
        let Ok(table) = index.bytes(IndexSection::Aliases, 0, index.len(IndexSection::Aliases)) else {
            return Vec::new();
        };
        let (mut low, mut high) = (0, table.len() / 12);
        while low < high {
            let middle = (low + high) / 2;
            if word(table, middle * 12) < self.number { low = middle + 1 } else { high = middle }
        }
        table[low * 12..]
            .chunks_exact(12)
            .take_while(|alias| word(alias, 0) == self.number)
            .filter_map(|alias| {
                Some((index.string(word(alias, 4))?, RecordKind::from_u8(word(alias, 8) as u8)?))
            })
            .collect()
    }
}

impl<'i> Iterator for Frames<'i> {
    type Item = Frame<'i>;

    fn next(&mut self) -> Option<Frame<'i>> {
        let RawFrame { name, file, line, inline } = self.raw.next()?;
        let file = file.and_then(|file| self.index.text(file));
        Some(Frame { name: self.index.text(name)?, file, line, inline })
    }
}

impl Iterator for RawFrames<'_> {
    type Item = RawFrame;

    #[inline]
    fn next(&mut self) -> Option<RawFrame> {
        if self.node == NONE {
            return None;
        }
        let node: &[u8; 16] = self.nodes.get(self.node as usize * 16..)?.first_chunk()?;
        let (file, parent) = (word(node, 4), word(node, 8));
        // Parents come before their children. In a damaged index they may not: this ends the chain
        // there.
        let parent = if parent < self.node { parent } else { NONE };
        let frame = RawFrame {
            name: TextId(word(node, 0)),
            file: (file != NONE).then_some(TextId(file)),
            line: (self.line != 0).then_some(self.line),
            inline: parent != NONE,
        };
        (self.node, self.line) = (parent, word(node, 12));
        Some(frame)
    }
}

#[inline]
pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    u32_at(bytes, at).unwrap_or(0)
}
