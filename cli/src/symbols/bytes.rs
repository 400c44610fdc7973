//! Reads of little-endian values that answer `None` beyond the end instead of panicking.

/// The `u16` at `at`.
#[inline]
pub(crate) fn u16_at(data: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*data.get(at..)?.first_chunk()?))
}

/// The `u32` at `at`.
#[inline]
pub(crate) fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*data.get(at..)?.first_chunk()?))
}

/// The `u64` at `at`.
#[inline]
pub(crate) fn u64_at(data: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*data.get(at..)?.first_chunk()?))
}

/// `len` bytes at `at`.
#[inline]
pub(crate) fn slice_at(data: &[u8], at: usize, len: usize) -> Option<&[u8]> {
    data.get(at..at.checked_add(len)?)
}

/// The bytes from `at` up to, not including, the next NUL, or up to the end.
#[inline]
pub(crate) fn c_str_at(data: &[u8], at: usize) -> Option<&[u8]> {
    let rest = data.get(at..)?;
    Some(&rest[..rest.iter().position(|&byte| byte == 0).unwrap_or(rest.len())])
}
