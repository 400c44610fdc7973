//! Reads little-endian values and returns `None` beyond the end instead of panicking: at an offset
//! ([`u32_at`] and its neighbours), or one after the other ([`Cursor`]).

use std::ffi::CStr;
use stk_schema::bytes::leb128_at;
pub use stk_schema::bytes::{u16_at, u32_at, u64_at};

/// `len` bytes at `at`.
#[inline]
pub fn slice_at(data: &[u8], at: usize, len: usize) -> Option<&[u8]> {
    data.get(at..at.checked_add(len)?)
}

/// Like [`c_str_at`], with at most `limit` bytes. Without a limit, reading texts that overlap takes
/// quadratic time.
#[inline]
pub fn c_str_within(data: &[u8], at: usize, limit: usize) -> Option<&[u8]> {
    let rest = data.get(at..)?;
    c_str_at(&rest[..rest.len().min(limit)], 0)
}

/// The bytes from `at` up to, not including, the next NUL, or up to the end.
#[inline]
pub fn c_str_at(data: &[u8], at: usize) -> Option<&[u8]> {
    let rest = data.get(at..)?;
    Some(CStr::from_bytes_until_nul(rest).map_or(rest, CStr::to_bytes))
}

/// Reads fields one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(data: &'a [u8]) -> Cursor<'a> {
        Cursor { data, at: 0 }
    }

    /// Offset of the next field.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Bytes that are left.
    pub fn left(&self) -> usize {
        self.data.len() - self.at
    }

    pub fn is_empty(&self) -> bool {
        self.left() == 0
    }

    /// The next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let bytes = slice_at(self.data, self.at, len)?;
        self.at += len;
        Some(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub fn u8(&mut self) -> Option<u8> {
        Some(self.array::<1>()?[0])
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn guid(&mut self) -> Option<[u8; 16]> {
        self.array()
    }

    /// A number with seven bits a byte, the lowest first, at most 64 bits. NetTrace writes numbers
    /// this way.
    pub fn varint(&mut self) -> Option<u64> {
        let (value, end) = leb128_at(self.data, self.at)?;
        self.at = end;
        Some(value)
    }

    /// UTF-16 up to a zero unit, which is skipped. Unpaired surrogates become U+FFFD.
    pub fn utf16z(&mut self) -> Option<String> {
        let rest = &self.data[self.at..];
        let len = rest.chunks_exact(2).position(|unit| unit == [0, 0])?;
        self.at += 2 * len + 2;
        let units = rest[..2 * len].chunks_exact(2).map(|unit| u16::from_le_bytes([unit[0], unit[1]]));
        Some(char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect())
    }

    /// ECMA-335 II.23.2: an unsigned number of 1, 2 or 4 bytes.
    pub fn compressed(&mut self) -> Option<u32> {
        let first = self.u8()?;
        if first & 0x80 == 0 {
            Some(first.into())
        } else if first & 0x40 == 0 {
            Some(u32::from(first & 0x3F) << 8 | u32::from(self.u8()?))
        } else if first & 0x20 == 0 {
            let rest = self.bytes(3)?;
            Some(u32::from_be_bytes([first & 0x1F, rest[0], rest[1], rest[2]]))
        } else {
            None
        }
    }

    /// ECMA-335 II.23.2: a signed number of 1, 2 or 4 bytes. Its lowest stored bit is the sign.
    pub fn compressed_signed(&mut self) -> Option<i32> {
        let start = self.at;
        let stored = self.compressed()?;
        let bits = match self.at - start {
            1 => 6,
            2 => 13,
            _ => 28,
        };
        let value = (stored >> 1) as i32;
        Some(if stored & 1 == 0 { value } else { value - (1 << bits) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_varint_of_more_than_64_bits_is_refused() {
        let mut bytes = [0xFF; 10];
        bytes[9] = 1;
        assert_eq!(Cursor::new(&bytes).varint(), Some(u64::MAX));
        bytes[9] = 2;
        assert_eq!(Cursor::new(&bytes).varint(), None);
        assert_eq!(Cursor::new(&[0x80; 11]).varint(), None);
        assert_eq!(Cursor::new(&[0x80]).varint(), None);
    }

    // The examples of ECMA-335 II.23.2.
    #[test]
    fn compressed_numbers_match_the_examples_of_the_standard() {
        let unsigned: [(&[u8], u32); 8] = [
            (&[0x03], 0x03),
            (&[0x7F], 0x7F),
            (&[0x80, 0x80], 0x80),
            (&[0xAE, 0x57], 0x2E57),
            (&[0xBF, 0xFF], 0x3FFF),
            (&[0xC0, 0x00, 0x40, 0x00], 0x4000),
            (&[0xDF, 0xFF, 0xFF, 0xFF], 0x1FFF_FFFF),
            (&[0x00], 0),
        ];
        for (bytes, value) in unsigned {
            assert_eq!(Cursor::new(bytes).compressed(), Some(value), "{bytes:x?}");
        }
        let signed: [(&[u8], i32); 8] = [
            (&[0x06], 3),
            (&[0x7B], -3),
            (&[0x80, 0x80], 64),
            (&[0x01], -64),
            (&[0xC0, 0x00, 0x40, 0x00], 8192),
            (&[0x80, 0x01], -8192),
            (&[0xDF, 0xFF, 0xFF, 0xFE], 0x0FFF_FFFF),
            (&[0xC0, 0x00, 0x00, 0x01], -0x1000_0000),
        ];
        for (bytes, value) in signed {
            assert_eq!(Cursor::new(bytes).compressed_signed(), Some(value), "{bytes:x?}");
        }
        for bytes in [&[][..], &[0x80], &[0xC0, 0, 0], &[0xE0, 0, 0, 0, 0], &[0xFF]] {
            assert_eq!(Cursor::new(bytes).compressed(), None, "{bytes:x?}");
        }
    }
}
