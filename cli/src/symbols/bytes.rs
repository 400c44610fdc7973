//! Reads of little-endian values that answer `None` beyond the end instead of panicking.

use std::ffi::CStr;

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

/// As [`c_str_at`], of at most `limit` bytes: where texts overlap, reading each to its end takes
/// quadratic time.
#[inline]
pub(crate) fn c_str_within(data: &[u8], at: usize, limit: usize) -> Option<&[u8]> {
    let rest = data.get(at..)?;
    c_str_at(&rest[..rest.len().min(limit)], 0)
}

/// The bytes from `at` up to, not including, the next NUL, or up to the end.
#[inline]
pub(crate) fn c_str_at(data: &[u8], at: usize) -> Option<&[u8]> {
    let rest = data.get(at..)?;
    Some(CStr::from_bytes_until_nul(rest).map_or(rest, CStr::to_bytes))
}
