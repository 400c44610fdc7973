//! Reads little-endian numbers out of bytes: of any length with [`u32_at`] and its neighbours, of a
//! known length, a header for example, with [`u32_in`] and its neighbours. Numbers with seven bits
//! a byte, the lowest first (LEB128): [`leb128`], [`leb128_at`].

/// The `u16` at `at`; `None` beyond the end.
#[inline]
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The `u32` at `at`; `None` beyond the end.
#[inline]
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The `u64` at `at`; `None` beyond the end.
#[inline]
pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The `u16` at `at`, which must be the offset of a field.
#[inline]
pub const fn u16_in<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The `u32` at `at`, which must be the offset of a field.
#[inline]
pub const fn u32_in<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The `u64` at `at`, which must be the offset of a field.
#[inline]
pub const fn u64_in<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    u32_in(bytes, at) as u64 | (u32_in(bytes, at + 4) as u64) << 32
}

/// Unsigned LEB128: the bytes, and how many of them count.
#[inline]
pub const fn leb128(mut value: u64) -> ([u8; 10], usize) {
    let mut bytes = [0u8; 10];
    let mut len = 0;
    while value >= 0x80 {
        bytes[len] = value as u8 | 0x80;
        value >>= 7;
        len += 1;
    }
    bytes[len] = value as u8;
    (bytes, len + 1)
}

/// The unsigned LEB128 of at most 64 bits at `at`, and where it ends; `None` if there is none.
#[inline]
pub fn leb128_at(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let mut value = 0u64;
    for (n, &byte) in bytes.get(at..)?.iter().enumerate().take(10) {
        let bits = u64::from(byte & 0x7F);
        if n == 9 && bits > 1 {
            return None;
        }
        value |= bits << (7 * n);
        if byte & 0x80 == 0 {
            return Some((value, at + n + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; 9] = [1, 2, 3, 4, 5, 6, 7, 8, 9];

    #[test]
    fn numbers_are_little_endian() {
        assert_eq!((u16_at(&BYTES, 1), u16_in(&BYTES, 1)), (Some(0x0302), 0x0302));
        assert_eq!((u32_at(&BYTES, 1), u32_in(&BYTES, 1)), (Some(0x0504_0302), 0x0504_0302));
        let long = 0x0908_0706_0504_0302;
        assert_eq!((u64_at(&BYTES, 1), u64_in(&BYTES, 1)), (Some(long), long));
    }

    #[test]
    fn there_is_no_number_beyond_the_end() {
        assert_eq!((u16_at(&BYTES, 8), u32_at(&BYTES, 6), u64_at(&BYTES, 2)), (None, None, None));
        assert_eq!((u16_at(&BYTES, 10), u32_at(&BYTES, usize::MAX), u64_at(&[], 0)), (None, None, None));
    }
}
