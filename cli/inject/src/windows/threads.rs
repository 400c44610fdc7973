//! What the system says of another process's threads.

use super::system;
use std::io;
use std::os::windows::io::AsRawHandle as _;
use windows_sys::Win32::System::Diagnostics::ToolHelp::{
    CreateToolhelp32Snapshot, TH32CS_SNAPTHREAD, THREADENTRY32, Thread32First, Thread32Next,
};

/// Ids of the threads of the process with this id.
///
/// # Errors
/// The system's error.
pub(crate) fn ids(pid: u32) -> io::Result<Vec<u32>> {
    // SAFETY: the snapshot handle is fresh.
    let snapshot = unsafe { system::own(CreateToolhelp32Snapshot(TH32CS_SNAPTHREAD, 0)) }?;
    let mut entry = THREADENTRY32 { dwSize: size_of::<THREADENTRY32>() as u32, ..THREADENTRY32::default() };
    let mut all = Vec::new();
    // SAFETY: the snapshot is open and the entry says its size.
    let mut more = unsafe { Thread32First(snapshot.as_raw_handle(), &mut entry) };
    while more != 0 {
        if entry.th32OwnerProcessID == pid {
            all.push(entry.th32ThreadID);
        }
        // SAFETY: as above.
        more = unsafe { Thread32Next(snapshot.as_raw_handle(), &mut entry) };
    }
    Ok(all)
}
