//! Copies of this inject, one for each process that it records.

use crate::windows::system;
use std::ffi::OsString;
use std::io;
use std::os::windows::io::{AsRawHandle, OwnedHandle};
use std::process::{Child, Command};
use std::ptr;
use windows_sys::Win32::System::JobObjects::{
    AssignProcessToJobObject, CreateJobObjectW, JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE,
    JOBOBJECT_EXTENDED_LIMIT_INFORMATION, JobObjectExtendedLimitInformation, SetInformationJobObject,
};

/// Starts this inject again, with these arguments, for one process.
pub(crate) fn start(job: &OwnedHandle, pid: u32, arguments: &[OsString]) -> io::Result<Child> {
    let copy = Command::new(std::env::current_exe()?)
        .arg("--only-pid")
        .arg(pid.to_string())
        .args(arguments)
        .spawn()?;
    join(job, &copy);
    Ok(copy)
}

/// Puts a copy of inject into a job.
pub(crate) fn join(job: &OwnedHandle, copy: &Child) {
    // SAFETY: both handles are open. Where the call fails, the copy only outlives a killed inject.
    unsafe { AssignProcessToJobObject(job.as_raw_handle(), copy.as_raw_handle()) };
}

/// A job whose processes end with its last handle, which is this inject's.
pub(crate) fn job() -> io::Result<OwnedHandle> {
    limited_job(JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE)
}

/// A job without processes, with these limits (`JOB_OBJECT_LIMIT_*`).
pub(crate) fn limited_job(limit_flags: u32) -> io::Result<OwnedHandle> {
    // SAFETY: no attributes, no name; the handle is fresh.
    let job = unsafe { system::own(CreateJobObjectW(ptr::null(), ptr::null())) }?;
    let mut limits = JOBOBJECT_EXTENDED_LIMIT_INFORMATION::default();
    limits.BasicLimitInformation.LimitFlags = limit_flags;
    // SAFETY: the job is open, and pointer and size describe the struct.
    let set = unsafe {
        SetInformationJobObject(
            job.as_raw_handle(),
            JobObjectExtendedLimitInformation,
            (&raw const limits).cast(),
            size_of_val(&limits) as u32,
        )
    };
    if set == 0 { Err(io::Error::last_os_error()) } else { Ok(job) }
}
