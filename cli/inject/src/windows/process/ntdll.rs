//! ntdll in another process that may not be initialised yet, and asynchronous procedure calls to a
//! thread there.

use crate::failure::Failure;
use crate::image;
use crate::windows::process::{Module, Process};
use crate::windows::system::{self, Procedure};
use std::ffi::c_void;
use std::io;
use std::os::windows::io::{AsRawHandle, BorrowedHandle};
use std::ptr;
use windows_sys::Win32::Foundation::{HANDLE, NTSTATUS, RtlNtStatusToDosError};
use windows_sys::Win32::System::LibraryLoader::GetModuleHandleW;
use windows_sys::Win32::System::Memory::{MEM_IMAGE, MEMORY_BASIC_INFORMATION, VirtualQueryEx};
use windows_sys::w;

/// Addresses of functions of ntdll in a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calls {
    /// `NtSetEvent(handle, previous state or null)`.
    pub set_event: u64,
    /// `NtWaitForSingleObject(handle, alertable, time-out or null)`.
    pub wait: u64,
    /// `NtClose(handle)`.
    pub close: u64,
}

impl Calls {
    /// Finds the functions in the memory of `process`. The system maps ntdll into a process before
    /// it makes the first thread.
    ///
    /// # Errors
    /// A sentence for the user, when there is no ntdll that looks like one.
    pub(crate) fn find(process: &Process) -> Result<Calls, Failure> {
        let missing = |what: &str| Failure::target(format!("{what} was not found in {process}"));
        let Module { base, image } = module(process).ok_or_else(|| missing("ntdll.dll"))?;
        let find = |name: &str| {
            let rva = image.export(name).ok_or_else(|| missing(name))?;
            Ok(base + u64::from(rva))
        };
        Ok(Calls {
            set_event: find("NtSetEvent")?,
            wait: find("NtWaitForSingleObject")?,
            close: find("NtClose")?,
        })
    }
}

/// The process's ntdll of this inject's architecture. It nearly always has the same address as in
/// this process; otherwise every image is checked.
fn module(process: &Process) -> Option<Module> {
    let named = |base| {
        let found = process.module(base, |name| name.eq_ignore_ascii_case("ntdll.dll"))?;
        (found.image.machine == image::own_machine() && !found.image.exports.is_empty()).then_some(found)
    };
    // SAFETY: the name is zero-terminated; ntdll is in every process.
    let usual = unsafe { GetModuleHandleW(w!("ntdll.dll")) } as u64;
    named(usual).or_else(|| image_bases(process).into_iter().find_map(named))
}

/// Load addresses of all images that are mapped into the process.
fn image_bases(process: &Process) -> Vec<u64> {
    let mut bases = Vec::new();
    let mut address = 0usize;
    loop {
        let mut region = MEMORY_BASIC_INFORMATION::default();
        let size = size_of_val(&region);
        // SAFETY: the handle is open and the result has the size that is passed.
        let filled = unsafe {
            let at = ptr::without_provenance(address);
            VirtualQueryEx(process.handle().as_raw_handle(), at, &mut region, size)
        };
        if filled == 0 {
            return bases;
        }
        if region.Type == MEM_IMAGE && region.AllocationBase == region.BaseAddress {
            bases.push(region.BaseAddress as u64);
        }
        let end = (region.BaseAddress as usize).checked_add(region.RegionSize);
        let Some(end) = end.filter(|&end| end > address) else { return bases };
        address = end;
    }
}

/// Queues a call of `function(argument, 0, 0)` to a thread. The thread makes it when it next checks
/// for such calls; if it has not run yet, before its first own instruction at the latest.
///
/// # Errors
/// The system's error.
pub(crate) fn queue(thread: BorrowedHandle, function: u64, argument: u64) -> io::Result<()> {
    type Queue = unsafe extern "system" fn(
        HANDLE,
        *const c_void,
        *const c_void,
        *const c_void,
        *const c_void,
    ) -> NTSTATUS;
    let missing = || io::Error::other("ntdll.dll has no NtQueueApcThread");
    let found = system::ntdll(c"NtQueueApcThread").ok_or_else(missing)?;
    // SAFETY: this is the signature of NtQueueApcThread since Windows NT.
    let queue = unsafe { std::mem::transmute::<Procedure, Queue>(found) };
    let at = |address: u64| ptr::without_provenance(address as usize);
    // SAFETY: the handle is open. The function is called in the other process, where the caller
    // found it.
    let status =
        unsafe { queue(thread.as_raw_handle(), at(function), at(argument), ptr::null(), ptr::null()) };
    if status < 0 {
        // SAFETY: no preconditions.
        return Err(io::Error::from_raw_os_error(unsafe { RtlNtStatusToDosError(status) } as i32));
    }
    Ok(())
}
