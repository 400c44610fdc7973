//! Files: the trace, and the folder of shared tables.

use alloc::vec::Vec;
use core::ptr::{null, null_mut};

use stk_schema::identity::ContentHash;
use windows_sys::Win32::Foundation::{
    CloseHandle, GENERIC_WRITE, GetLastError, HANDLE, INVALID_HANDLE_VALUE,
};
use windows_sys::Win32::Storage::FileSystem::{
    CREATE_ALWAYS, CreateFileW, DeleteFileW, FILE_ATTRIBUTE_NORMAL, FILE_SHARE_READ, GetFileAttributesW,
    GetFileSizeEx, INVALID_FILE_ATTRIBUTES, MoveFileExW, WriteFile,
};
use windows_sys::Win32::System::Threading::{GetCurrentProcessId, GetCurrentThreadId};

use crate::record::journal::TableStore;
use crate::record::writer::Output;

/// ERROR_DISK_FULL, for a write that the system cut short without an error.
const DISK_FULL: u32 = 112;

/// The handle of the trace; closed when dropped.
pub struct OutputFile(pub HANDLE);

// SAFETY: a handle is a number, valid on every thread of the process.
unsafe impl Send for OutputFile {}

impl Output for OutputFile {
    fn append(&mut self, bytes: &[u8]) -> Result<(), u32> {
        write_all(self.0, bytes)
    }

    fn appended(&mut self) -> Option<u64> {
        let mut len = 0;
        // SAFETY: the handle is open; the result is written to a place of its own.
        let ok = unsafe { GetFileSizeEx(self.0, &mut len) };
        (ok != 0).then_some(len as u64)
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        // SAFETY: this owns the handle.
        unsafe { CloseHandle(self.0) };
    }
}

/// A folder in which many traces share tables: `<hash>.tbl`, each written once and never changed.
pub struct TablesFolder {
    /// Path with a separator at its end, not terminated.
    path: Vec<u16>,
}

impl TablesFolder {
    /// The folder with this path.
    pub fn new(path: &[u16]) -> TablesFolder {
        let mut path = path.to_vec();
        if !matches!(path.last(), Some(&last) if last == u16::from(b'\\') || last == u16::from(b'/')) {
            path.push(u16::from(b'\\'));
        }
        TablesFolder { path }
    }

    fn file(&self, name: core::fmt::Arguments<'_>) -> Vec<u16> {
        let name = alloc::format!("{name}");
        self.path.iter().copied().chain(name.encode_utf16()).chain([0]).collect()
    }
}

impl TableStore for TablesFolder {
    fn put(&mut self, hash: ContentHash, bytes: &[u8]) -> bool {
        let file = self.file(format_args!("{hash}.tbl"));
        // SAFETY: zero-terminated paths, and a handle that is closed here.
        unsafe {
            if GetFileAttributesW(file.as_ptr()) != INVALID_FILE_ATTRIBUTES {
                return true;
            }
            // Written beside and renamed: a reader, or another process that records, never sees half a table.
            let temporary =
                self.file(format_args!("{hash}.{:x}-{:x}.tmp", GetCurrentProcessId(), GetCurrentThreadId()));
            let handle = CreateFileW(
                temporary.as_ptr(),
                GENERIC_WRITE,
                FILE_SHARE_READ,
                null(),
                CREATE_ALWAYS,
                FILE_ATTRIBUTE_NORMAL,
                null_mut(),
            );
            if handle == INVALID_HANDLE_VALUE {
                return false;
            }
            let written = write_all(handle, bytes).is_ok();
            CloseHandle(handle);
            let stored = written
                && (MoveFileExW(temporary.as_ptr(), file.as_ptr(), 0) != 0
                    // Another process was faster.
                    || GetFileAttributesW(file.as_ptr()) != INVALID_FILE_ATTRIBUTES);
            DeleteFileW(temporary.as_ptr());
            stored
        }
    }
}

/// One write of all of `bytes`.
fn write_all(handle: HANDLE, bytes: &[u8]) -> Result<(), u32> {
    let mut written = 0;
    // SAFETY: the buffer is live and of that length; a block is far below 4 GiB.
    let ok = unsafe { WriteFile(handle, bytes.as_ptr(), bytes.len() as u32, &mut written, null_mut()) };
    if ok == 0 {
        // SAFETY: no preconditions.
        return Err(unsafe { GetLastError() });
    }
    if written as usize != bytes.len() {
        return Err(DISK_FULL);
    }
    Ok(())
}
