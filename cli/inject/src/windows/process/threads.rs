//! What the system says of another process's threads.

use crate::windows::process::Process;
use crate::windows::system::{self, Procedure};
use std::collections::HashMap;
use std::io;
use std::os::windows::io::{AsHandle as _, AsRawHandle as _, OwnedHandle};
use std::time::Duration;
use windows_sys::Win32::Foundation::{FILETIME, NTSTATUS};
use windows_sys::Win32::System::Diagnostics::ToolHelp::{
    CreateToolhelp32Snapshot, TH32CS_SNAPTHREAD, THREADENTRY32, Thread32First, Thread32Next,
};
use windows_sys::Win32::System::Threading::{
    GetProcessIdOfThread, GetThreadTimes, OpenThread, THREAD_QUERY_LIMITED_INFORMATION, THREAD_SYNCHRONIZE,
};

/// Ids of the process's threads; none if the system does not list them.
pub(crate) fn of(process: &Process) -> Vec<u32> {
    ids(process.pid()).unwrap_or_default()
}

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

/// Whether the thread has ended, or is none of the process. False where that is not known.
pub(crate) fn has_ended(process: &Process, tid: u32) -> bool {
    /// ERROR_INVALID_PARAMETER: no thread has this id.
    const GONE: u32 = 87;
    match open(tid) {
        // SAFETY: the handle is open with the right to ask.
        Ok(thread) => unsafe {
            GetProcessIdOfThread(thread.as_raw_handle()) != process.pid()
                || system::wait(thread.as_handle(), 0)
        },
        Err(error) => system::code(&error) == GONE,
    }
}

/// CPU time of a thread; `None` if it is not known.
pub(crate) fn cpu_time(process: &Process, tid: u32) -> Option<Duration> {
    let thread = open(tid).ok()?;
    // SAFETY: the handle is open with the right to ask.
    if unsafe { GetProcessIdOfThread(thread.as_raw_handle()) } != process.pid() {
        return None;
    }
    let [mut created, mut exited, mut kernel, mut user] = [FILETIME::default(); 4];
    let handle = thread.as_raw_handle();
    // SAFETY: the handle is open with the right to ask; the four structs are filled.
    let known = unsafe { GetThreadTimes(handle, &mut created, &mut exited, &mut kernel, &mut user) } != 0;
    known.then(|| system::duration(kernel) + system::duration(user))
}

fn open(tid: u32) -> io::Result<OwnedHandle> {
    // SAFETY: the handle is fresh.
    unsafe { system::own(OpenThread(THREAD_QUERY_LIMITED_INFORMATION | THREAD_SYNCHRONIZE, 0, tid)) }
}

/// KTHREAD_STATE and KWAIT_REASON of the process's threads, by id; empty if the system does not say
/// them.
pub(crate) fn states(process: &Process) -> HashMap<u32, (u32, u32)> {
    system_processes().map_or_else(HashMap::new, |bytes| states_in(&bytes, process.pid()))
}

/// SystemProcessInformation: an entry for each process, each followed by its threads.
fn system_processes() -> Option<Vec<u8>> {
    type Function = unsafe extern "system" fn(i32, *mut u8, u32, *mut u32) -> NTSTATUS;
    const PROCESSES: i32 = 5;
    const LENGTH_MISMATCH: NTSTATUS = 0xC000_0004_u32 as NTSTATUS;
    let function = system::ntdll(c"NtQuerySystemInformation")?;
    // SAFETY: this is the documented signature of NtQuerySystemInformation.
    let function = unsafe { std::mem::transmute::<Procedure, Function>(function) };
    let mut bytes = vec![0; 1 << 20];
    for _ in 0..4 {
        let mut needed = 0;
        // SAFETY: pointer and size are those of the vector; the result has room.
        let status = unsafe { function(PROCESSES, bytes.as_mut_ptr(), bytes.len() as u32, &mut needed) };
        if status >= 0 {
            return Some(bytes);
        }
        if status != LENGTH_MISMATCH {
            return None;
        }
        bytes = vec![0; needed as usize + (1 << 16)];
    }
    None
}

/// Offsets in SYSTEM_PROCESS_INFORMATION and SYSTEM_THREAD_INFORMATION (winternl.h).
struct Offsets {
    pid: usize,
    threads: usize,
    thread_size: usize,
    tid: usize,
    state: usize,
}

const OFFSETS: Offsets = if cfg!(target_pointer_width = "64") {
    Offsets { pid: 0x50, threads: 0x100, thread_size: 0x50, tid: 0x30, state: 0x44 }
} else {
    Offsets { pid: 0x44, threads: 0xb8, thread_size: 0x40, tid: 0x24, state: 0x34 }
};

fn states_in(bytes: &[u8], pid: u32) -> HashMap<u32, (u32, u32)> {
    let mut at = 0;
    while let Some(entry) = bytes.get(at..)
        && let (Some(next), Some(count)) = (number(entry, 0), number(entry, 4))
    {
        if number(entry, OFFSETS.pid) == Some(pid) {
            let threads = entry.get(OFFSETS.threads..).unwrap_or_default();
            let threads = threads.chunks_exact(OFFSETS.thread_size).take(count as usize);
            let state = |thread: &[u8]| {
                let state = (number(thread, OFFSETS.state)?, number(thread, OFFSETS.state + 4)?);
                Some((number(thread, OFFSETS.tid)?, state))
            };
            return threads.filter_map(state).collect();
        }
        if next == 0 {
            break;
        }
        at += next as usize;
    }
    HashMap::new()
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|chunk| u32::from_le_bytes(*chunk))
}
