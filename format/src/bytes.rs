//! Varints and bounded reading and writing of bytes, which all other modules use.

use crate::DecodeError;
use alloc::vec::Vec;
use stk_schema::bytes::leb128;

/// The buffer has no room left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NoRoom;

/// The output of encoders.
pub(crate) trait Sink {
    /// Appends `bytes`, all or nothing.
    fn put(&mut self, bytes: &[u8]) -> Result<(), NoRoom>;

    /// Unsigned LEB128.
    #[inline]
    fn varint(&mut self, value: u64) -> Result<(), NoRoom> {
        if value < 0x80 {
            return self.put(&[value as u8]);
        }
        let (bytes, len) = leb128(value);
        self.put(&bytes[..len])
    }

    /// Zigzag-mapped LEB128.
    #[inline]
    fn signed(&mut self, value: i64) -> Result<(), NoRoom> {
        self.varint(zigzag(value))
    }

    /// A length and that many bytes.
    fn bytes(&mut self, bytes: &[u8]) -> Result<(), NoRoom> {
        self.varint(bytes.len() as u64)?;
        self.put(bytes)
    }
}

/// Counts the bytes that would be written.
pub(crate) struct Counter(pub usize);

impl Sink for Counter {
    fn put(&mut self, bytes: &[u8]) -> Result<(), NoRoom> {
        self.0 += bytes.len();
        Ok(())
    }
}

/// Appends to a vector without ever growing it past `limit` bytes.
pub(crate) struct LimitedBuffer<'a> {
    pub buf: &'a mut Vec<u8>,
    pub limit: usize,
}

impl Sink for LimitedBuffer<'_> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) -> Result<(), NoRoom> {
        if bytes.len() > self.limit.saturating_sub(self.buf.len()) {
            return Err(NoRoom);
        }
        self.buf.extend_from_slice(bytes);
        Ok(())
    }
}

/// Maps small magnitudes of either sign to small numbers.
#[inline]
pub(crate) const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// Inverse of [`zigzag`].
#[inline]
pub(crate) const fn unzigzag(value: u64) -> i64 {
    ((value >> 1) as i64) ^ -((value & 1) as i64)
}

/// Reads a byte slice from front to back; never past its end.
#[derive(Clone)]
pub(crate) struct Cursor<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Cursor { data, at: 0 }
    }

    /// Bytes consumed so far.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    pub(crate) fn remaining(&self) -> usize {
        self.data.len() - self.at
    }

    #[cfg(any(feature = "std", test))]
    pub(crate) fn is_empty(&self) -> bool {
        self.at == self.data.len()
    }

    /// The error for invalid bytes at the cursor's position.
    pub(crate) fn malformed(&self) -> DecodeError {
        DecodeError { at: self.at }
    }

    #[inline]
    pub(crate) fn varint(&mut self) -> Result<u64, DecodeError> {
        if let Some(&byte) = self.data.get(self.at)
            && byte < 0x80
        {
            self.at += 1;
            return Ok(u64::from(byte));
        }
        self.long_varint()
    }

    /// Two varints. The first two fields of most events and each run of words take a byte each.
    #[cfg(feature = "std")]
    #[inline]
    pub(crate) fn varints(&mut self) -> Result<(u64, u64), DecodeError> {
        if let Some(&[first, second]) = self.data[self.at..].first_chunk()
            && (first | second) < 0x80
        {
            self.at += 2;
            return Ok((u64::from(first), u64::from(second)));
        }
        Ok((self.varint()?, self.varint()?))
    }

    fn long_varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for (i, &byte) in self.data[self.at..].iter().take(10).enumerate() {
            // The tenth byte holds bit 63 only.
            if i == 9 && byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte < 0x80 {
                self.at += i + 1;
                return Ok(value);
            }
        }
        Err(self.malformed())
    }

    #[inline]
    pub(crate) fn signed(&mut self) -> Result<i64, DecodeError> {
        self.varint().map(unzigzag)
    }

    /// A varint that must fit 32 bits.
    pub(crate) fn varint32(&mut self) -> Result<u32, DecodeError> {
        let start = self.at;
        u32::try_from(self.varint()?).map_err(|_| DecodeError { at: start })
    }

    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        if len > self.remaining() {
            return Err(self.malformed());
        }
        let bytes = &self.data[self.at..self.at + len];
        self.at += len;
        Ok(bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let error = self.malformed();
        self.take(N)?.try_into().map_err(|_| error)
    }

    /// A length of at most `max` and that many bytes.
    pub(crate) fn bytes(&mut self, max: usize) -> Result<&'a [u8], DecodeError> {
        let error = self.malformed();
        let len = self.varint()?;
        if len > max as u64 {
            return Err(error);
        }
        self.take(len as usize)
    }

    /// An element count of at most `max`, each element taking at least `least` bytes.
    pub(crate) fn count(&mut self, max: usize, least: usize) -> Result<usize, DecodeError> {
        let error = self.malformed();
        let count = self.varint()?;
        if count > max as u64 || count > (self.remaining() / least) as u64 {
            return Err(error);
        }
        Ok(count as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_follow_leb128() {
        // Examples of the DWARF specification, section 7.6, and the extremes.
        for (value, bytes) in [
            (2u64, &[2u8][..]),
            (127, &[127]),
            (128, &[0x80, 1]),
            (129, &[0x81, 1]),
            (12857, &[0x80 + 57, 100]),
            (u64::MAX, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
        ] {
            let mut buf = Vec::new();
            LimitedBuffer { buf: &mut buf, limit: 10 }.varint(value).unwrap();
            assert_eq!(buf, bytes);
            let mut cursor = Cursor::new(bytes);
            assert_eq!(cursor.varint(), Ok(value));
            assert!(cursor.is_empty());
        }
    }

    #[test]
    fn a_varint_over_64_bits_or_cut_short_is_refused() {
        for bytes in
            [&[0xff; 9][..], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2], &[0x80; 11], &[]]
        {
            assert_eq!(Cursor::new(bytes).varint(), Err(DecodeError { at: 0 }));
        }
    }

    #[test]
    fn zigzag_maps_0_m1_1_m2() {
        assert_eq!([0, -1, 1, -2].map(zigzag), [0, 1, 2, 3]);
        for value in [0, 1, -1, i64::MIN, i64::MAX] {
            assert_eq!(unzigzag(zigzag(value)), value);
        }
    }

    #[test]
    fn a_bounded_sink_keeps_its_limit() {
        let mut buf = Vec::with_capacity(4);
        let mut sink = LimitedBuffer { buf: &mut buf, limit: 4 };
        assert_eq!(sink.put(&[1, 2, 3]), Ok(()));
        assert_eq!(sink.put(&[4, 5]), Err(NoRoom));
        assert_eq!(buf, [1, 2, 3]);
    }
}
