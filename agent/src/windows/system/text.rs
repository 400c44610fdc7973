//! UTF-16 of the system: its counted strings, and WTF-8 for the trace.

use alloc::vec::Vec;

/// UNICODE_STRING; lengths in bytes.
#[repr(C)]
pub(crate) struct UnicodeString {
    pub len: u16,
    pub capacity: u16,
    pub text: *const u16,
}

const _: () = assert!(core::mem::offset_of!(UnicodeString, text) == stk_schema::layout::NATIVE.string_text);

/// Converts UTF-16, which may hold unpaired surrogates, to WTF-8.
pub(crate) fn wtf8(units: impl Iterator<Item = u16>) -> Vec<u8> {
    let mut out = Vec::new();
    for unit in char::decode_utf16(units) {
        match unit {
            Ok(character) => out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
            Err(unpaired) => {
                // A surrogate takes three bytes of generalised UTF-8. `char` refuses to encode it.
                let unit = unpaired.unpaired_surrogate();
                out.extend_from_slice(&[
                    0xe0 | (unit >> 12) as u8,
                    0x80 | (unit >> 6 & 0x3f) as u8,
                    0x80 | (unit & 0x3f) as u8,
                ]);
            }
        }
    }
    out
}

/// The zero-terminated UTF-16 at `text`, at most `most` units of it.
///
/// # Safety
/// `text` is null or points to `most` readable units, or to a terminator before them.
pub(crate) unsafe fn units<'a>(text: *const u16, most: usize) -> &'a [u16] {
    if text.is_null() {
        return &[];
    }
    // SAFETY: stops at the terminator or the bound, both readable by the caller's promise.
    unsafe {
        let len = (0..most).take_while(|&index| *text.add(index) != 0).count();
        core::slice::from_raw_parts(text, len)
    }
}
