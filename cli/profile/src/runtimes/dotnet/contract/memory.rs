//! The captured part of the target's memory.

use std::borrow::Cow;

/// Reads the target's memory.
pub trait Memory {
    /// Fills `into` with the bytes at `address`. Returns false if some of them are not known.
    fn read(&self, address: u64, into: &mut [u8]) -> bool;

    /// An unsigned little-endian number of `size` bytes (at most 8).
    fn number(&self, address: u64, size: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        let size = usize::try_from(size).ok().filter(|size| *size <= bytes.len())?;
        self.read(address, bytes.get_mut(..size)?).then(|| u64::from_le_bytes(bytes))
    }
}

impl<M: Memory + ?Sized> Memory for &M {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        (**self).read(address, into)
    }
}

/// Pieces of memory. A read takes the first added piece that holds it whole.
#[derive(Debug, Default, Clone)]
pub struct Fragments<'a> {
    pieces: Vec<(u64, Cow<'a, [u8]>)>,
}

impl<'a> Fragments<'a> {
    /// Memory of which nothing is known.
    pub fn new() -> Fragments<'a> {
        Fragments::default()
    }

    /// Adds the bytes from `address` on.
    pub fn add(&mut self, address: u64, bytes: impl Into<Cow<'a, [u8]>>) {
        self.pieces.push((address, bytes.into()));
    }
}

impl Memory for Fragments<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.pieces.iter().any(|(start, bytes)| {
            let Some(from) = address.checked_sub(*start).and_then(|from| usize::try_from(from).ok()) else {
                return false;
            };
            let piece = bytes.get(from..).and_then(|rest| rest.get(..into.len()));
            piece.map(|piece| into.copy_from_slice(piece)).is_some()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_gives_all_bytes_or_none() {
        let mut memory = Fragments::new();
        memory.add(0x1000, vec![1, 2, 3, 4]);
        memory.add(0x1004, vec![5, 6, 7, 8]);
        memory.add(u64::MAX - 1, vec![9, 9]);
        assert_eq!(memory.number(0x1000, 4), Some(0x0403_0201));
        assert_eq!(memory.number(0x1002, 4), None, "no read spans two pieces");
        assert_eq!(memory.number(0x0fff, 1), None);
        assert_eq!(memory.number(u64::MAX, 2), None);
        assert_eq!(memory.number(0x1000, 9), None);
    }
}
