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
    let (key, name) = (wide(OsStr::new(key)), wide(OsStr::new(name)));
    let mut units = vec![0u16; 1024];
    let mut size = size_of_val(&units[..]) as u32;
    // SAFETY: both names are zero-terminated; the size is that of the vector. The result is
    // zero-terminated.
    let error = unsafe {
        let flags = RRF_RT_REG_SZ | RRF_SUBKEY_WOW6464KEY;
        let (key, name) = (key.as_ptr(), name.as_ptr());
        RegGetValueW(
            HKEY_LOCAL_MACHINE,
            key,
            name,
            flags,
            ptr::null_mut(),
            units.as_mut_ptr().cast(),
            &mut size,
        )
    };
    let end = units.iter().position(|&unit| unit == 0).unwrap_or(0);
    (error == ERROR_SUCCESS).then(|| String::from_utf16_lossy(&units[..end]))
}

/// A number of HKEY_LOCAL_MACHINE, as 64-bit programs see it.
pub(crate) fn number(key: &str, name: &str) -> Option<u32> {
    let (key, name) = (wide(OsStr::new(key)), wide(OsStr::new(name)));
    let (mut value, mut size) = (0u32, 4);
    // SAFETY: both names are zero-terminated; the value has the size that is passed.
    let error = unsafe {
        let flags = RRF_RT_REG_DWORD | RRF_SUBKEY_WOW6464KEY;
        let (key, name) = (key.as_ptr(), name.as_ptr());
        RegGetValueW(
            HKEY_LOCAL_MACHINE,
            key,
            name,
            flags,
            ptr::null_mut(),
            (&raw mut value).cast(),
            &mut size,
        )
    };
    (error == ERROR_SUCCESS).then_some(value)
}
