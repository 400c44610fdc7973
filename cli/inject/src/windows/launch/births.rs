//! The processes that recorded processes start, as a job reports them. A job without limits takes
//! in the roots; their descendants join it by themselves.
//!
//! The program can see that it is in a job. A child that leaves the job (CREATE_BREAKAWAY_FROM_JOB,
//! which the job allows as if it were not there) is not reported, and reports may be lost: the list
//! of processes has to be looked at, too.

use super::copies;
use crate::windows::process;
use crate::windows::system;
use std::io;
use std::os::windows::io::{AsRawHandle as _, OwnedHandle};
use std::ptr;
use windows_sys::Win32::Foundation::INVALID_HANDLE_VALUE;
use windows_sys::Win32::System::IO::{CreateIoCompletionPort, GetQueuedCompletionStatus};
use windows_sys::Win32::System::JobObjects::{
    AssignProcessToJobObject, JOB_OBJECT_LIMIT_BREAKAWAY_OK, JOBOBJECT_ASSOCIATE_COMPLETION_PORT,
    JobObjectAssociateCompletionPortInformation, SetInformationJobObject,
};
use windows_sys::Win32::System::Threading::{PROCESS_SET_QUOTA, PROCESS_TERMINATE};

/// The job, and the port to which it reports.
pub(crate) struct Births {
    job: OwnedHandle,
    port: OwnedHandle,
}

impl Births {
    /// A job without processes.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn new() -> io::Result<Births> {
        let job = copies::limited_job(JOB_OBJECT_LIMIT_BREAKAWAY_OK)?;
        // SAFETY: a port without a file; the handle is fresh.
        let port =
            unsafe { system::own(CreateIoCompletionPort(INVALID_HANDLE_VALUE, ptr::null_mut(), 0, 1))? };
        let reports = JOBOBJECT_ASSOCIATE_COMPLETION_PORT {
            CompletionKey: ptr::null_mut(),
            CompletionPort: port.as_raw_handle(),
        };
        // SAFETY: the job is open; pointer and size describe the struct.
        let set = unsafe {
            SetInformationJobObject(
                job.as_raw_handle(),
                JobObjectAssociateCompletionPortInformation,
                (&raw const reports).cast(),
                size_of_val(&reports) as u32,
            )
        };
        if set == 0 { Err(io::Error::last_os_error()) } else { Ok(Births { job, port }) }
    }

    /// Takes a process into the job, whose children are reported from now on.
    ///
    /// # Errors
    /// The system's error: the process refuses it, or a job that it is in.
    pub(crate) fn add(&self, pid: u32) -> io::Result<()> {
        let process = process::open(pid, PROCESS_SET_QUOTA | PROCESS_TERMINATE)?;
        // SAFETY: both handles are open with the rights that this needs.
        match unsafe { AssignProcessToJobObject(self.job.as_raw_handle(), process.as_raw_handle()) } {
            0 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// The next process that has joined the job; `None` if none does within `ms` milliseconds, or
    /// something else was reported.
    pub(crate) fn next(&self, ms: u32) -> Option<u32> {
        /// JOB_OBJECT_MSG_NEW_PROCESS.
        const NEW_PROCESS: u32 = 6;
        let (mut message, mut key, mut pid) = (0, 0, ptr::null_mut());
        // SAFETY: the port is open, and the results have room. The job sends ids in the place of
        // the pointer.
        let reported = unsafe {
            GetQueuedCompletionStatus(self.port.as_raw_handle(), &mut message, &mut key, &mut pid, ms) != 0
        };
        (reported && message == NEW_PROCESS).then_some(pid as usize as u32)
    }
}
