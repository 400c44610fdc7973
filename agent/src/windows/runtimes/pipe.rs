//! The client's end of a named pipe. Every step has a deadline.

use core::mem::zeroed;
use core::ptr::{null, null_mut};

use windows_sys::Win32::Foundation::{
    CloseHandle, ERROR_BROKEN_PIPE, ERROR_IO_PENDING, ERROR_PIPE_NOT_CONNECTED, GENERIC_READ, GENERIC_WRITE,
    GetLastError, HANDLE, INVALID_HANDLE_VALUE, WAIT_OBJECT_0,
};
use windows_sys::Win32::Storage::FileSystem::{
    CreateFileW, FILE_FLAG_OVERLAPPED, OPEN_EXISTING, ReadFile, SECURITY_IDENTIFICATION,
    SECURITY_SQOS_PRESENT, WriteFile,
};
use windows_sys::Win32::System::IO::{CancelIoEx, GetOverlappedResult, OVERLAPPED};
use windows_sys::Win32::System::Pipes::GetNamedPipeServerProcessId;
use windows_sys::Win32::System::Threading::{CreateEventW, GetCurrentProcessId, WaitForSingleObject};

/// Why a step failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// The system's error code.
    System(u32),
    /// The other end made no progress until the deadline.
    Late,
    /// Another process made the pipe: its id.
    Foreign(u32),
}

/// An open pipe. Dropping it closes it, which ends the server's work for this client.
pub(super) struct Pipe {
    handle: HANDLE,
    done: HANDLE,
}

impl Pipe {
    /// Opens the pipe with this zero-terminated name, if this process made it: any process may make
    /// a pipe of that name first. Does not wait for a busy server: that is error 231.
    pub(super) fn open(name: &[u16]) -> Result<Pipe, Fault> {
        debug_assert!(name.last() == Some(&0));
        // SAFETY: no preconditions; the handles are owned by the result or closed here.
        unsafe {
            let done = CreateEventW(null(), 1, 0, null());
            if done.is_null() {
                return Err(Fault::System(GetLastError()));
            }
            let handle = CreateFileW(
                name.as_ptr(),
                GENERIC_READ | GENERIC_WRITE,
                0,
                null(),
                OPEN_EXISTING,
                // The server of the pipe may learn who the client is, but not act in its name.
                FILE_FLAG_OVERLAPPED | SECURITY_SQOS_PRESENT | SECURITY_IDENTIFICATION,
                null_mut(),
            );
            if handle == INVALID_HANDLE_VALUE {
                let error = GetLastError();
                CloseHandle(done);
                return Err(Fault::System(error));
            }
            let pipe = Pipe { handle, done };
            let mut server = 0;
            // Windows knows this of every pipe. Some Wines do not.
            let reported = GetNamedPipeServerProcessId(handle, &mut server) != 0;
            if reported && server != GetCurrentProcessId() { Err(Fault::Foreign(server)) } else { Ok(pipe) }
        }
    }

    /// Writes all of `bytes` within `ms`.
    pub(super) fn write(&mut self, mut bytes: &[u8], ms: u32) -> Result<(), Fault> {
        while !bytes.is_empty() {
            let (handle, buffer, len) = (self.handle, bytes.as_ptr(), bytes.len() as u32);
            // SAFETY: the buffer lives until `transfer` has seen the end of the operation.
            let start = |state: &mut OVERLAPPED| unsafe { WriteFile(handle, buffer, len, null_mut(), state) };
            let written = self.transfer(ms, start)?;
            bytes = bytes.get(written.max(1)..).unwrap_or(&[]);
        }
        Ok(())
    }

    /// Reads available bytes, at least one, within `ms`; 0 at the end of the stream.
    pub(super) fn read(&mut self, into: &mut [u8], ms: u32) -> Result<usize, Fault> {
        let (handle, buffer, len) = (self.handle, into.as_mut_ptr(), into.len() as u32);
        // SAFETY: as for `write`.
        let start = |state: &mut OVERLAPPED| unsafe { ReadFile(handle, buffer, len, null_mut(), state) };
        match self.transfer(ms, start) {
            Err(Fault::System(ERROR_BROKEN_PIPE | ERROR_PIPE_NOT_CONNECTED)) => Ok(0),
            other => other.map(|read| read.min(into.len())),
        }
    }

    /// Fills `into`, each piece of it within `ms`.
    pub(super) fn read_exact(&mut self, mut into: &mut [u8], ms: u32) -> Result<(), Fault> {
        while !into.is_empty() {
            match self.read(into, ms)? {
                0 => return Err(Fault::System(ERROR_BROKEN_PIPE)),
                read => into = into.get_mut(read..).unwrap_or(&mut []),
            }
        }
        Ok(())
    }

    /// Starts an operation and waits for its end. Cancels a late one; it has ended when this
    /// returns.
    fn transfer(&mut self, ms: u32, start: impl FnOnce(&mut OVERLAPPED) -> i32) -> Result<usize, Fault> {
        // SAFETY: plain data.
        let mut state: OVERLAPPED = unsafe { zeroed() };
        state.hEvent = self.done;
        let mut moved = 0;
        let begun = start(&mut state);
        // SAFETY: the handles are open, and `state` lives until GetOverlappedResult, which waits
        // here, has seen the end.
        unsafe {
            if begun == 0 {
                let error = GetLastError();
                if error != ERROR_IO_PENDING {
                    return Err(Fault::System(error));
                }
            }
            let late = begun == 0 && WaitForSingleObject(self.done, ms) != WAIT_OBJECT_0;
            if late {
                CancelIoEx(self.handle, &state);
            }
            if GetOverlappedResult(self.handle, &state, &mut moved, 1) == 0 {
                let error = GetLastError();
                return Err(if late { Fault::Late } else { Fault::System(error) });
            }
        }
        Ok(moved as usize)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // SAFETY: this owns both handles; no operation is under way.
        unsafe {
            CloseHandle(self.handle);
            CloseHandle(self.done);
        }
    }
}
