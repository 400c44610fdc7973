//! Memory and threads in another process.

use crate::failure::Failure;
use crate::windows::process::Process;
use crate::windows::system;
use std::ffi::c_void;
use std::io;
use std::os::windows::io::{AsHandle, AsRawHandle, BorrowedHandle, OwnedHandle};
use std::ptr;
use windows_sys::Win32::Foundation::{
    DUPLICATE_CLOSE_SOURCE, DUPLICATE_SAME_ACCESS, DuplicateHandle, HANDLE,
};
use windows_sys::Win32::System::Diagnostics::Debug::WriteProcessMemory;
use windows_sys::Win32::System::Memory::{
    MEM_COMMIT, MEM_RELEASE, MEM_RESERVE, PAGE_READWRITE, VirtualAllocEx, VirtualFreeEx,
};
use windows_sys::Win32::System::Threading::{
    CreateRemoteThread, GetCurrentProcess, GetExitCodeThread, LPTHREAD_START_ROUTINE,
};

/// Memory in another process, freed when dropped.
#[derive(Debug)]
pub(crate) struct Block<'a> {
    process: &'a Process,
    address: *mut c_void,
}

impl<'a> Block<'a> {
    /// Memory that holds `bytes`.
    ///
    /// # Errors
    /// A sentence for the user: it was refused, or the process is ending.
    pub(crate) fn new(process: &'a Process, bytes: &[u8]) -> Result<Block<'a>, Failure> {
        let block = Block::allocate(process, bytes.len())?;
        // SAFETY: source and length are those of the slice; the destination is the memory just
        // allocated there.
        let written = unsafe {
            let source = bytes.as_ptr().cast();
            WriteProcessMemory(
                process.handle().as_raw_handle(),
                block.address,
                source,
                bytes.len(),
                ptr::null_mut(),
            )
        };
        if written == 0 {
            return Err(blocked(process, "writing to memory", &io::Error::last_os_error()));
        }
        Ok(block)
    }

    /// So many zeros.
    fn allocate(process: &'a Process, bytes: usize) -> Result<Block<'a>, Failure> {
        // SAFETY: the handle is open; the system picks the address.
        let address = unsafe {
            let access = MEM_COMMIT | MEM_RESERVE;
            VirtualAllocEx(process.handle().as_raw_handle(), ptr::null(), bytes, access, PAGE_READWRITE)
        };
        if address.is_null() {
            return Err(blocked(process, "memory", &io::Error::last_os_error()));
        }
        Ok(Block { process, address })
    }

    /// Its address in the other process.
    pub(crate) fn address(&self) -> u64 {
        self.address as u64
    }

    /// Never frees the memory, because a thread there may still use it.
    pub(crate) fn leak(self) {
        std::mem::forget(self);
    }
}

impl Drop for Block<'_> {
    fn drop(&mut self) {
        if self.process.has_ended() {
            return;
        }
        // SAFETY: it was allocated by `new`, and no thread there uses it any more (else `leak` was
        // called). If it fails, the process is gone with its memory.
        unsafe { VirtualFreeEx(self.process.handle().as_raw_handle(), self.address, 0, MEM_RELEASE) };
    }
}

/// Memory in another process for messages of which one is read at a time. It is allocated for the
/// first and freed when dropped, so that later ones do not change the process's address space.
#[derive(Debug)]
pub(crate) struct MessageRoom<'a> {
    process: &'a Process,
    /// The memory, and its bytes.
    block: Option<(Block<'a>, usize)>,
}

impl<'a> MessageRoom<'a> {
    /// Bytes that are allocated at least.
    const LEAST: usize = 64 << 10;

    pub(crate) fn new(process: &'a Process) -> MessageRoom<'a> {
        MessageRoom { process, block: None }
    }

    /// Address of so many bytes, which nothing in the process may still read.
    ///
    /// # Errors
    /// A sentence for the user: memory was refused, or the process is ending.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<u64, Failure> {
        let size = bytes.max(Self::LEAST);
        match &self.block {
            Some((block, room)) if *room >= bytes => Ok(block.address()),
            _ => {
                let block = Block::allocate(self.process, size)?;
                Ok(self.block.insert((block, size)).0.address())
            }
        }
    }

    /// Takes new memory next time, because the process may still read this.
    pub(crate) fn abandon(&mut self) {
        if let Some((block, _)) = self.block.take() {
            block.leak();
        }
    }
}

/// How a call ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    /// The function returned this.
    Returned(u32),
    /// The process ended first.
    ProcessEnded,
    /// The function did not return in time and may still run.
    TimedOut,
}

/// Calls the function at `function` in `process` on a thread of its own.
///
/// # Errors
/// A sentence for the user, when no thread can be made there.
pub(crate) fn call(
    process: &Process,
    function: u64,
    argument: u64,
    timeout_ms: u32,
) -> Result<Call, Failure> {
    Ok(RemoteCall::begin(process, function, argument)?.wait(timeout_ms))
}

/// A call in another process that has begun.
#[derive(Debug)]
pub(crate) struct RemoteCall<'a> {
    process: &'a Process,
    thread: OwnedHandle,
}

impl<'a> RemoteCall<'a> {
    /// As [`call`], without waiting for its end.
    ///
    /// # Errors
    /// As [`call`].
    pub(crate) fn begin(
        process: &'a Process,
        function: u64,
        argument: u64,
    ) -> Result<RemoteCall<'a>, Failure> {
        // SAFETY: an address is not called here but in the other process; the option's layout is
        // that of a nullable pointer.
        let start = unsafe { std::mem::transmute::<usize, LPTHREAD_START_ROUTINE>(function as usize) };
        // SAFETY: the handle is open; start address and argument are valid in that process by the
        // caller's knowledge of it (an export of a loaded module); a wrong one would harm that
        // process, not this one.
        let thread = unsafe {
            let argument = argument as *const c_void;
            system::own(CreateRemoteThread(
                process.handle().as_raw_handle(),
                ptr::null(),
                0,
                start,
                argument,
                0,
                ptr::null_mut(),
            ))
        };
        let thread = thread.map_err(|error| blocked(process, "a thread", &error))?;
        Ok(RemoteCall { process, thread })
    }

    /// Waits for its end. After [`Call::TimedOut`] it may be waited for again.
    pub(crate) fn wait(&self, timeout_ms: u32) -> Call {
        let RemoteCall { process, thread } = self;
        match system::wait_any(&[process.handle(), thread.as_handle()], timeout_ms) {
            Some(0) => Call::ProcessEnded,
            Some(_) => {
                let mut code = 0;
                // SAFETY: the handle is open and the code has room.
                unsafe { GetExitCodeThread(thread.as_raw_handle(), &mut code) };
                // When a process ends, its threads are signalled a moment before the process.
                if system::wait(process.handle(), if code == 0 { 0 } else { 20 }) {
                    Call::ProcessEnded
                } else {
                    Call::Returned(code)
                }
            }
            None => Call::TimedOut,
        }
    }
}

/// A handle in another process, closed there when dropped.
#[derive(Debug)]
pub(crate) struct Duplicate<'a> {
    process: &'a Process,
    value: HANDLE,
}

impl<'a> Duplicate<'a> {
    /// Gives `process` a handle of the same object with the same rights, not inherited by its
    /// children.
    ///
    /// # Errors
    /// A sentence for the user: refused.
    pub(crate) fn new(process: &'a Process, handle: BorrowedHandle) -> Result<Duplicate<'a>, Failure> {
        let mut value = ptr::null_mut();
        // SAFETY: all handles are open; the result has room.
        let ok = unsafe {
            let own = GetCurrentProcess();
            DuplicateHandle(
                own,
                handle.as_raw_handle(),
                process.handle().as_raw_handle(),
                &mut value,
                0,
                0,
                DUPLICATE_SAME_ACCESS,
            )
        };
        if ok == 0 {
            return Err(blocked(process, "a handle", &io::Error::last_os_error()));
        }
        Ok(Duplicate { process, value })
    }

    /// Its value in the other process.
    pub(crate) fn value(&self) -> u64 {
        self.value as u64
    }

    /// Leaves it to the other process, which closes it.
    pub(crate) fn give(self) {
        std::mem::forget(self);
    }
}

impl Drop for Duplicate<'_> {
    fn drop(&mut self) {
        let mut here = ptr::null_mut();
        // SAFETY: the source handle was made by `new` and belongs to us; it is closed there,
        // whatever else fails.
        let moved = unsafe {
            let own = GetCurrentProcess();
            let options = DUPLICATE_CLOSE_SOURCE | DUPLICATE_SAME_ACCESS;
            DuplicateHandle(self.process.handle().as_raw_handle(), self.value, own, &mut here, 0, 0, options)
        };
        if moved != 0 {
            // SAFETY: the handle is fresh.
            let moved: io::Result<OwnedHandle> = unsafe { system::own(here) };
            drop(moved);
        }
    }
}

fn blocked(process: &Process, what: &str, error: &io::Error) -> Failure {
    const ACCESS_DENIED: u32 = 5;
    if process.has_ended() {
        return Failure::target(format!("{process} ended before it could be recorded"));
    }
    if system::code(error) == ACCESS_DENIED {
        let cause = match system::wine_version() {
            Some(version) => format!(
                "Wine {version} could not do it (it needs Linux' ptrace: see /proc/sys/kernel/yama/ptrace_scope, and the container's \
                 capability SYS_PTRACE)"
            ),
            None => {
                "it is being shut down, or security software blocks it: allow inject.exe and agent.dll there"
                    .to_owned()
            }
        };
        return Failure::target(format!("{process} denied {what} although it could be opened: {cause}"));
    }
    Failure::failed(format!("{process}: {what} could not be had: {error}"))
}
