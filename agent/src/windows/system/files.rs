//! Files: the trace, and the folder of shared tables.

use alloc::vec::Vec;
use core::ptr::{null, null_mut};

use stk_schema::Ticks;
use stk_schema::identity::ContentHash;
use windows_sys::Win32::Foundation::{
    CloseHandle, GENERIC_READ, GENERIC_WRITE, GetLastError, HANDLE, INVALID_HANDLE_VALUE,
};
use windows_sys::Win32::Storage::FileSystem::{
    BY_HANDLE_FILE_INFORMATION, CREATE_NEW, CreateFileW, DeleteFileW, FILE_ATTRIBUTE_DIRECTORY,
    FILE_ATTRIBUTE_NORMAL, FILE_ATTRIBUTE_REPARSE_POINT, FILE_FLAG_OPEN_REPARSE_POINT, FILE_SHARE_READ,
    FILE_TYPE_DISK, GetFileAttributesW, GetFileInformationByHandle, GetFileSizeEx, GetFileType,
    INVALID_FILE_ATTRIBUTES, MoveFileExW, OPEN_EXISTING, ReadFile, WriteFile,
};

use crate::record::event_writer::TableStore;
use crate::record::patience::{self, Sleeper as _};
use crate::record::temporary::{TemporaryNames, is_held, long};
use crate::record::writer::Output;
use crate::windows::system::api::{api, ticks};
use crate::windows::system::clock::SystemClock;

/// ERROR_DISK_FULL, for a write that the system cut short without an error.
const DISK_FULL: u32 = 112;

/// Milliseconds for which a rename or a deletion is tried that somebody else's handle prevents, and
/// between two tries.
const HELD_MS: u32 = 1_000;
const AGAIN_MS: u32 = 50;
/// UTF-16 units of a table's name.
const TABLE_NAME: usize = 36;

/// The handle of the trace; closed when dropped.
pub(crate) struct OutputFile(pub HANDLE);

// SAFETY: a handle is a number, valid on every thread of the process.
unsafe impl Send for OutputFile {}

impl Output for OutputFile {
    fn append(&mut self, bytes: &[u8]) -> Result<(), u32> {
        write_all(self.0, bytes)
    }

    fn appended(&mut self) -> Option<u64> {
        let mut len = 0;
        // SAFETY: the handle is open; the result has room.
        let ok = unsafe { GetFileSizeEx(self.0, &mut len) };
        (ok != 0).then_some(len as u64)
    }

    fn wait_for_write(&mut self) -> u32 {
        let begun = ticks();
        SystemClock.sleep(2);
        api().map_or(u32::MAX, |api| api.whole_milliseconds(ticks() - begun))
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        // SAFETY: this owns the handle.
        unsafe { CloseHandle(self.0) };
    }
}

/// A folder in which many traces share tables: `<hash>.tbl`, each written once and never changed.
pub(crate) struct TablesFolder {
    /// Path with a separator at its end, not terminated.
    path: Vec<u16>,
    names: TemporaryNames,
    /// A file was held by somebody else for longer than [`HELD_MS`].
    impatient: bool,
}

impl TablesFolder {
    /// The folder with this path; the names of its unfinished files follow from `secret`.
    pub(crate) fn new(path: &[u16], secret: &[u8]) -> TablesFolder {
        let mut path = long(path, TABLE_NAME);
        if !matches!(path.last(), Some(&last) if last == u16::from(b'\\') || last == u16::from(b'/')) {
            path.push(u16::from(b'\\'));
        }
        TablesFolder { path, names: TemporaryNames::new(secret), impatient: false }
    }

    fn file(&self, name: core::fmt::Arguments<'_>) -> Vec<u16> {
        let name = alloc::format!("{name}");
        self.path.iter().copied().chain(name.encode_utf16()).chain([0]).collect()
    }

    /// Calls `attempt`, again while somebody else, such as a virus scanner, has the file open. A
    /// folder in which that does not help once gets no more time: the end of the recording waits.
    fn patiently(&mut self, mut attempt: impl FnMut() -> bool) -> bool {
        let limit = api().filter(|_| !self.impatient).map_or(Ticks::ZERO, |api| api.milliseconds(HELD_MS));
        let done = patience::wait_for(&mut SystemClock, limit, AGAIN_MS, || {
            let done = attempt();
            // SAFETY: no preconditions.
            (done || !is_held(unsafe { GetLastError() })).then_some(done)
        });
        self.impatient |= done.is_none();
        done.unwrap_or(false)
    }
}

impl TableStore for TablesFolder {
    fn put(&mut self, hash: ContentHash, bytes: &[u8]) -> bool {
        let file = self.file(format_args!("{hash}.tbl"));
        // Other processes may write to the folder, so compare the contents, not only the name.
        if let Some(same) = holds(&file, bytes) {
            return same;
        }
        // Write another file and rename it, so that a reader or another recording process never
        // sees half a table.
        let temporary = self.names.fresh();
        let temporary = self.file(format_args!("{temporary}.tmp"));
        let Some(handle) = open(&temporary, GENERIC_WRITE, CREATE_NEW) else { return false };
        let written = write_all(handle, bytes).is_ok();
        // SAFETY: the handle is closed once.
        unsafe { CloseHandle(handle) };
        // SAFETY: both paths are zero-terminated.
        if written && self.patiently(|| unsafe { MoveFileExW(temporary.as_ptr(), file.as_ptr(), 0) } != 0) {
            return true;
        }
        // SAFETY: the path is zero-terminated.
        self.patiently(|| unsafe { DeleteFileW(temporary.as_ptr()) } != 0);
        // Another process may have written it first.
        written && holds(&file, bytes) == Some(true)
    }
}

/// Whether the file has exactly these bytes; `None` if it does not exist. False for anything but a
/// regular file.
fn holds(path: &[u16], bytes: &[u8]) -> Option<bool> {
    const CHUNK: usize = 16 << 10;
    // SAFETY: the path is zero-terminated.
    if unsafe { GetFileAttributesW(path.as_ptr()) } == INVALID_FILE_ATTRIBUTES {
        return None;
    }
    let Some(handle) = open(path, GENERIC_READ, OPEN_EXISTING) else { return Some(false) };
    let file = OutputFile(handle);
    // SAFETY: plain data; the handle is open and the result has room.
    let mut known: BY_HANDLE_FILE_INFORMATION = unsafe { core::mem::zeroed() };
    // SAFETY: as above.
    let regular = unsafe {
        GetFileType(file.0) == FILE_TYPE_DISK
            && GetFileInformationByHandle(file.0, &mut known) != 0
            && known.dwFileAttributes & (FILE_ATTRIBUTE_REPARSE_POINT | FILE_ATTRIBUTE_DIRECTORY) == 0
    };
    let size = u64::from(known.nFileSizeHigh) << 32 | u64::from(known.nFileSizeLow);
    if !regular || size != bytes.len() as u64 {
        return Some(false);
    }
    let mut chunk = alloc::vec![0u8; CHUNK.min(bytes.len())];
    let same = bytes.chunks(CHUNK).all(|expected| {
        let mut read = 0;
        // SAFETY: the buffer has at least that many bytes, and the handle is open.
        let ok = unsafe {
            ReadFile(file.0, chunk.as_mut_ptr(), expected.len() as u32, &mut read, null_mut()) != 0
        };
        ok && chunk.get(..read as usize) == Some(expected)
    });
    Some(same)
}

/// Opens a file that others may read meanwhile. Opens a link itself, not its target.
fn open(path: &[u16], access: u32, how: u32) -> Option<HANDLE> {
    let flags = FILE_ATTRIBUTE_NORMAL | FILE_FLAG_OPEN_REPARSE_POINT;
    // SAFETY: the path is zero-terminated.
    let handle =
        unsafe { CreateFileW(path.as_ptr(), access, FILE_SHARE_READ, null(), how, flags, null_mut()) };
    (handle != INVALID_HANDLE_VALUE).then_some(handle)
}

/// Writes all of `bytes` with one call.
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
