//! The stream of names.

use stk_base::model::bytes::{c_str_within, slice_at, u32_at};

/// Limit for the name of a source file, in bytes.
const MAX_NAME: usize = 1 << 16;

/// The names of source files and the programs of FrameData: the `/names` stream.
pub(super) struct FileNames<'d> {
    pub(super) strings: &'d [u8],
}

impl<'d> FileNames<'d> {
    pub(super) fn open(stream: &'d [u8]) -> FileNames<'d> {
        let strings = u32_at(stream, 8).and_then(|len| slice_at(stream, 12, len as usize)).unwrap_or(&[]);
        FileNames { strings }
    }

    /// The name at this offset.
    pub(super) fn get(&self, offset: u32) -> Option<&'d [u8]> {
        c_str_within(self.strings, offset as usize, MAX_NAME).filter(|name| !name.is_empty())
    }
}
