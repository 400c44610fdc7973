//! Mutexes of the agent that injects use among themselves: each duplicates the handle from the
//! recorded process.

use super::process::Process;
use super::system;
use std::io;
use std::mem::offset_of;
use std::os::windows::io::{AsRawHandle as _, OwnedHandle};
use std::ptr;
use stk_schema::bytes::u32_in;
use stk_schema::requests::{REQUESTS_VERSION, RequestMailbox};
use windows_sys::Win32::Foundation::{DuplicateHandle, WAIT_ABANDONED, WAIT_OBJECT_0};
use windows_sys::Win32::System::Threading::{
    GetCurrentProcess, MUTEX_MODIFY_STATE, ReleaseMutex, SYNCHRONIZATION_SYNCHRONIZE, WaitForSingleObject,
};

/// A mutex that the calling thread owns until this is dropped, on the same thread.
#[derive(Debug)]
pub(crate) struct OwnedMutex(OwnedHandle);

impl OwnedMutex {
    /// Waits for a mutex, `patience_ms` at most; the handle back if that was too short.
    pub(crate) fn take(mutex: OwnedHandle, patience_ms: u32) -> Result<OwnedMutex, OwnedHandle> {
        // SAFETY: the handle is open.
        match unsafe { WaitForSingleObject(mutex.as_raw_handle(), patience_ms) } {
            // A process that ended as its owner has left nothing half done that matters.
            WAIT_OBJECT_0 | WAIT_ABANDONED => Ok(OwnedMutex(mutex)),
            _ => Err(mutex),
        }
    }
}

impl Drop for OwnedMutex {
    fn drop(&mut self) {
        // SAFETY: this thread owns the mutex.
        unsafe { ReleaseMutex(self.0.as_raw_handle()) };
    }
}

/// A handle of this process for the mutex that `process` has under `value`.
///
/// # Errors
/// The system's error.
pub(crate) fn duplicate(process: &Process, value: u64) -> io::Result<OwnedHandle> {
    take_handle(process, value, MUTEX_MODIFY_STATE | SYNCHRONIZATION_SYNCHRONIZE)
}

/// A handle of this process for the object that `process` has under `value`, with these rights.
///
/// # Errors
/// The system's error.
pub(crate) fn take_handle(process: &Process, value: u64, rights: u32) -> io::Result<OwnedHandle> {
    let mut handle = ptr::null_mut();
    // SAFETY: the process is open with the right to duplicate its handles; a value that is no
    // handle there is refused.
    let ok = unsafe {
        let (from, source) = (process.handle().as_raw_handle(), value as usize as _);
        DuplicateHandle(from, source, GetCurrentProcess(), &mut handle, rights, 0, 0)
    };
    if ok == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the handle is fresh.
    unsafe { system::own(handle) }
}

/// The mailbox for requests at `address`, without its text; `None` if there is none that this
/// inject knows.
pub(crate) fn mailbox(process: &Process, address: u64) -> Option<[u8; offset_of!(RequestMailbox, text)]> {
    let mut head = [0; offset_of!(RequestMailbox, text)];
    let known = address != 0
        && process.read(address, &mut head)
        && u32_in(&head, 0) as usize >= size_of::<RequestMailbox>()
        && u32_in(&head, 4) == REQUESTS_VERSION;
    known.then_some(head)
}
