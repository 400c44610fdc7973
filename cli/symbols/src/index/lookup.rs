//! Finds the function, inline chain and line of an address, or of many addresses at once.
//!
//! Takes rvas and returns [`Hit`]s. The steps of a lookup are: the address's bucket, the low bytes
//! of its block, its row, the nodes of its chain. In an index of tens of megabytes each of these
//! steps waits for memory. [`SymbolIndex::lookup_all`] does each step for a group of addresses
//! before the next step, so that the waits of a group overlap.

use std::sync::atomic::Ordering;

use super::flat::IndexSection;
use super::layout::{IndexError, NONE};
use super::symbol_index::{Hit, SymbolIndex, word};

/// Addresses that are looked up together. From about a dozen on, their waits overlap fully. The
/// memory that they read must fit the processor's first cache.
const GROUP: usize = 32;

/// Row low bytes that are counted at once. Less than 256, since the count is a byte.
const PIECE: usize = 64;
/// The indexes of a piece's bytes, as bytes, so that they are compared as bytes.
const NUMBERS: [u8; PIECE] = {
    let mut numbers = [0; PIECE];
    let mut n = 0;
    while n < PIECE {
        numbers[n] = n as u8;
        n += 1;
    }
    numbers
};

/// A row's contents: the innermost node of its chain, and the line there.
#[derive(Clone, Copy)]
struct RowHit {
    node: u32,
    line: u32,
    /// The rva as linked.
    rva: u32,
}

impl RowHit {
    const NOTHING: RowHit = RowHit { node: NONE, line: 0, rva: 0 };
}

impl SymbolIndex {
    /// The function, inline chain and line of `rva`, if the index has any.
    ///
    /// # Errors
    ///
    /// [`IndexError::Damaged`] if a part of a mapped index that the lookup needs does not match its
    /// hash.
    pub fn lookup(&self, rva: u32) -> Result<Option<Hit<'_>>, IndexError> {
        let Some(linked) = self.linked_rva(rva)? else { return Ok(None) };
        let found = self.read_row(self.row_before(linked, self.block(linked)?)?, linked)?;
        self.hit(found)
    }

    /// Looks up many addresses, in any order. Calls `each` in the order of `rvas`, with the index
    /// in `rvas` and the result. Faster than single lookups, since the processor waits for the
    /// memory of many at once.
    ///
    /// # Errors
    ///
    /// As for [`SymbolIndex::lookup`]. `each` may have been called for some addresses before.
    pub fn lookup_all<'i>(
        &'i self,
        rvas: &[u32],
        mut each: impl FnMut(usize, Option<Hit<'i>>),
    ) -> Result<(), IndexError> {
        let mut first = 0;
        for group in rvas.chunks(GROUP) {
            let mut found = [RowHit::NOTHING; GROUP];
            self.find_group(group, &mut found)?;
            self.touch_chains(&found);
            for (n, &found) in found.iter().take(group.len()).enumerate() {
                each(first + n, self.hit(found)?);
            }
            first += group.len();
        }
        Ok(())
    }

    /// The rows of a group: the same steps as in [`SymbolIndex::lookup`], each for all addresses.
    fn find_group(&self, rvas: &[u32], found: &mut [RowHit; GROUP]) -> Result<(), IndexError> {
        let mut linked = [None; GROUP];
        let mut blocks = [(0, 0); GROUP];
        let mut rows = [0; GROUP];
        for ((&rva, linked), block) in rvas.iter().zip(&mut linked).zip(&mut blocks) {
            *linked = self.linked_rva(rva)?;
            if let Some(linked) = *linked {
                *block = self.block(linked)?;
            }
        }
        for ((&linked, &block), row) in linked.iter().zip(&blocks).zip(&mut rows) {
            if let Some(linked) = linked {
                *row = self.row_before(linked, block)?;
            }
        }
        for ((&linked, &row), found) in linked.iter().zip(&rows).zip(found) {
            *found = self.read_row(row, linked.unwrap_or(0))?;
        }
        Ok(())
    }

    /// Reads the nodes of all chains of a group, level by level, so that they are in the cache when
    /// each chain is walked. Walking a single chain waits at every node, since each node states
    /// where the next one is.
    fn touch_chains(&self, found: &[RowHit; GROUP]) {
        let (start, len) = self.sections[IndexSection::Nodes as usize];
        let nodes = self.data().get(start..start + len).unwrap_or(&[]);
        let mut open = found.map(|found| found.node);
        let mut count = GROUP;
        while count != 0 {
            let mut kept = 0;
            for n in 0..count {
                let node = open[n];
                let parent = nodes
                    .get(node as usize * 16..)
                    .and_then(|node| node.get(..16))
                    .map_or(NONE, |n| word(n, 8));
                open[kept] = parent;
                // In a valid index, parents come before their children. In a damaged one, this
                // condition still ends the loop.
                kept += usize::from(parent < node);
            }
            count = kept;
        }
    }

    /// The rows that begin in the 256-byte block of an address: the number of the first, and of the
    /// first behind them. Behind the last block there are none.
    #[inline]
    fn block(&self, linked: u32) -> Result<(usize, usize), IndexError> {
        let bucket = (linked >> 8) as usize;
        if bucket + 1 >= self.len(IndexSection::Buckets) / 4 {
            let rows = self.len(IndexSection::RowLows);
            return Ok((rows, rows));
        }
        let bounds = self.bytes(IndexSection::Buckets, bucket * 4, 8)?;
        Ok((word(bounds, 0) as usize, word(bounds, 4) as usize))
    }

    /// One more than the number of the last row in `block` that begins at or below the address.
    #[inline]
    fn row_before(&self, linked: u32, (from, to): (usize, usize)) -> Result<usize, IndexError> {
        let len = to.checked_sub(from).ok_or(IndexError::Damaged("buckets"))?;
        let block = self.bytes(IndexSection::RowLows, from, len)?;
        let low = linked as u8;
        // Blocks hold a few dozen rows, so counting all is faster than searching. Counting a whole
        // piece, with the bytes behind the block excluded, is faster than stopping where the block
        // ends.
        let (start, _) = self.sections[IndexSection::RowLows as usize];
        let whole = self.data().get(start + from..).and_then(|bytes| bytes.first_chunk::<PIECE>());
        let count = match whole {
            Some(piece) if len <= PIECE => count_in_piece(piece, len, low),
            _ => block.chunks(PIECE).map(|piece| count_in(piece, low)).sum(),
        };
        Ok(from + count)
    }

    /// The row before the number that [`SymbolIndex::row_before`] returned.
    #[inline]
    fn read_row(&self, row: usize, rva: u32) -> Result<RowHit, IndexError> {
        let Some(row) = row.checked_sub(1) else { return Ok(RowHit::NOTHING) };
        let row = self.bytes(IndexSection::Rows, row * 8, 8)?;
        Ok(RowHit { node: word(row, 0), line: word(row, 4), rva })
    }

    #[inline]
    fn hit(&self, RowHit { node, line, rva }: RowHit) -> Result<Option<Hit<'_>>, IndexError> {
        if node == NONE {
            return Ok(None);
        }
        self.check_chain(node)?;
        Ok(Some(Hit { index: self, node, line, rva }))
    }

    /// Converts an image's rva to the one that the symbols use.
    #[inline]
    fn linked_rva(&self, rva: u32) -> Result<Option<u32>, IndexError> {
        match self.len(IndexSection::Omap) {
            0 => Ok(Some(rva)),
            len => self.through_omap(rva, len),
        }
    }

    fn through_omap(&self, rva: u32, len: usize) -> Result<Option<u32>, IndexError> {
        let omap = self.bytes(IndexSection::Omap, 0, len)?;
        let (mut low, mut high) = (0, len / 8);
        while low < high {
            let middle = (low + high) / 2;
            if word(omap, middle * 8) <= rva { low = middle + 1 } else { high = middle }
        }
        let Some(entry) = low.checked_sub(1) else { return Ok(None) };
        let (from, to) = (word(omap, entry * 8), word(omap, entry * 8 + 4));
        // A target of zero marks code that the post-link tool has added.
        Ok((to != 0).then(|| to.wrapping_add(rva - from)))
    }

    /// Checks once everything that the chain's frames need, so that walking the chain later cannot
    /// fail.
    #[inline]
    fn check_chain(&self, node: u32) -> Result<(), IndexError> {
        let Some(flags) = self.chains.get(node as usize / 8) else {
            return if self.checked.is_empty() { Ok(()) } else { Err(IndexError::Damaged("rows")) };
        };
        let bit = 1 << (node % 8);
        if flags.load(Ordering::Relaxed) & bit == 0 {
            self.check_nodes(node)?;
            flags.fetch_or(bit, Ordering::Relaxed);
        }
        Ok(())
    }

    #[cold]
    fn check_nodes(&self, mut node: u32) -> Result<(), IndexError> {
        loop {
            let bytes = self.bytes(IndexSection::Nodes, node as usize * 16, 16)?;
            self.check_string(word(bytes, 0))?;
            if word(bytes, 4) != NONE {
                self.check_string(word(bytes, 4))?;
            }
            match word(bytes, 8) {
                NONE => {
                    let range = self.bytes(IndexSection::Ranges, word(bytes, 12) as usize * 16, 16)?;
                    return self.check_string(word(range, 8));
                }
                // Parents come before their children, so this ends.
                parent if parent < node => node = parent,
                _ => return Err(IndexError::Damaged("nodes")),
            }
        }
    }
}

/// How many of the first `len` bytes are `low` or less.
#[inline]
fn count_in_piece(piece: &[u8; PIECE], len: usize, low: u8) -> usize {
    let (len, mut count) = (len as u8, 0u8);
    for (&start, &n) in piece.iter().zip(&NUMBERS) {
        count += u8::from(start <= low) & u8::from(n < len);
    }
    count.into()
}

/// How many of at most 255 bytes are `low` or less.
fn count_in(piece: &[u8], low: u8) -> usize {
    piece.iter().map(|&start| u8::from(start <= low)).sum::<u8>().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pdb::PdbFile;
    use stk_base::map::MappedFile;

    #[test]
    fn lookup_all_equals_single_lookups() {
        let pdb = include_bytes!("../../../../examples/traces/busy.pdb");
        let built = PdbFile::open(pdb).unwrap().index().unwrap();
        let mapped = SymbolIndex::open(MappedFile::from(built.as_bytes().to_vec())).unwrap();
        let end = built.ranges().map(|range| range.end).max().unwrap() + 600;
        // In mixed order, not a multiple of a group, with addresses beyond the code.
        let rvas: Vec<u32> = (0..end).map(|n| n.wrapping_mul(7919) % end).chain([u32::MAX, 0, 1]).collect();
        for index in [&built, &mapped] {
            let mut next = 0;
            index
                .lookup_all(&rvas, |n, hit| {
                    assert_eq!(n, next);
                    next += 1;
                    let expected = index.lookup(rvas[n]).unwrap();
                    assert_eq!(hit.map(|hit| hit.linked_rva()), expected.map(|hit| hit.linked_rva()));
                    assert!(hit.iter().flat_map(Hit::frames).eq(expected.iter().flat_map(Hit::frames)));
                })
                .unwrap();
            assert_eq!(next, rvas.len());
        }
    }

    #[test]
    fn bytes_behind_a_block_do_not_count() {
        // Blocks of every length, each byte up to five times. Behind them zeros, which are at or
        // below every address.
        for len in 0..=PIECE {
            let mut piece = [0; PIECE];
            piece.iter_mut().take(len).enumerate().for_each(|(n, byte)| *byte = (n / 5 * 4) as u8);
            for low in 0..=u8::MAX {
                let expected = piece[..len].iter().filter(|&&start| start <= low).count();
                assert_eq!(count_in_piece(&piece, len, low), expected, "{len} bytes, {low}");
                assert_eq!(count_in(&piece[..len], low), expected, "{len} bytes, {low}");
            }
        }
    }

    #[test]
    fn damage_ends_lookup_all_with_an_error() {
        let pdb = include_bytes!("../../../../examples/traces/busy.pdb");
        let built = PdbFile::open(pdb).unwrap().index().unwrap();
        let rva = built.ranges().next().unwrap().start;
        let mut bytes = built.as_bytes().to_vec();
        bytes[super::super::flat::HEADER] ^= 1;
        let index = SymbolIndex::open(MappedFile::from(bytes)).unwrap();
        assert!(index.lookup_all(&[rva; 40], |_, _| ()).is_err());
    }
}
