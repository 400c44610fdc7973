//! Reads values of the registry.

use super::system::wide;
use std::ffi::OsStr;
use std::ptr;
use windows_sys::Win32::Foundation::ERROR_SUCCESS;
use windows_sys::Win32::System::Registry::{
    HKEY_LOCAL_MACHINE, RRF_RT_REG_DWORD, RRF_RT_REG_SZ, RRF_SUBKEY_WOW6464KEY, RegGetValueW,
};

/// A text of HKEY_LOCAL_MACHINE, as 64-bit programs see it.
pub(crate) fn text(key: &str, name: &str) -> Option<String> {
    let units = read::<1024>(key, name, RRF_RT_REG_SZ)?;
    let end = units.iter().position(|&unit| unit == 0).unwrap_or(0);
    Some(String::from_utf16_lossy(&units[..end]))
}

/// A number of HKEY_LOCAL_MACHINE, as 64-bit programs see it.
pub(crate) fn number(key: &str, name: &str) -> Option<u32> {
    let [low, high] = read::<2>(key, name, RRF_RT_REG_DWORD)?;
    Some(u32::from(low) | u32::from(high) << 16)
}

/// A value of this type and at most so many 16-bit units; `None` if there is no such value.
fn read<const UNITS: usize>(key: &str, name: &str, kind: u32) -> Option<[u16; UNITS]> {
    let (key, name) = (wide(OsStr::new(key)), wide(OsStr::new(name)));
    let mut units = [0u16; UNITS];
    let mut size = size_of_val(&units) as u32;
    // SAFETY: both names are zero-terminated; the size is that of the array. A text is
    // zero-terminated.
    let error = unsafe {
        RegGetValueW(
            HKEY_LOCAL_MACHINE,
            key.as_ptr(),
            name.as_ptr(),
            kind | RRF_SUBKEY_WOW6464KEY,
            ptr::null_mut(),
            units.as_mut_ptr().cast(),
            &mut size,
        )
    };
    (error == ERROR_SUCCESS).then_some(units)
}
