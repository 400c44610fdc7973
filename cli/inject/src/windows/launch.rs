//! Starting the program to be recorded, suspended before its first instruction.

use super::process::Process;
use super::system;
use crate::failure::{Failure, LAUNCH_DENIED, LAUNCH_NOT_FOUND};
use std::cell::Cell;
use std::ffi::OsString;
use std::io;
use std::os::windows::io::{AsHandle, AsRawHandle, OwnedHandle};
use std::os::windows::process::CommandExt;
use std::process::{Child, Command};
use windows_sys::Win32::System::Diagnostics::ToolHelp::{
    CreateToolhelp32Snapshot, TH32CS_SNAPTHREAD, THREADENTRY32, Thread32First, Thread32Next,
};
use windows_sys::Win32::System::Threading::{
    CREATE_SUSPENDED, OpenThread, ResumeThread, THREAD_SUSPEND_RESUME, TerminateProcess,
};

/// A program that inject has started and that waits for [`Launched::resume`]; ended on drop unless it was resumed.
#[derive(Debug)]
pub struct Launched {
    process: Process,
    main_thread: OwnedHandle,
    resumed: Cell<bool>,
    // Keeps the pipes, if any, and the process handle as long as the program runs.
    _child: Child,
}

impl Launched {
    /// Starts `line` (program and arguments) in inject's own console, environment and folder.
    ///
    /// # Errors
    /// A sentence for the user, with the exit code that a shell would give.
    pub fn start(line: &[OsString]) -> Result<Launched, Failure> {
        let [program, arguments @ ..] = line else {
            return Err(Failure::usage("no program to start: name one after --"));
        };
        let shown = program.to_string_lossy();
        let child = Command::new(program).args(arguments).creation_flags(CREATE_SUSPENDED).spawn();
        let child = child.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Failure::with_code(
                LAUNCH_NOT_FOUND,
                format!("{shown}: program not found, neither as a path nor on PATH"),
            ),
            _ => Failure::with_code(LAUNCH_DENIED, format!("{shown} cannot be started: {error}")),
        })?;
        let pid = child.id();
        let failed = |error: &dyn std::fmt::Display| {
            Failure::failed(format!("{shown} was started and lost again: {error}"))
        };
        let handle = child.as_handle().try_clone_to_owned().map_err(|error| failed(&error))?;
        let process = Process::from_handle(handle, pid).map_err(|_| failed(&"it has ended"))?;
        let main_thread = only_thread(pid).map_err(|error| failed(&error))?;
        Ok(Launched { process, main_thread, resumed: Cell::new(false), _child: child })
    }

    /// The program's process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Lets it run.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn resume(&self) -> Result<(), Failure> {
        // SAFETY: the handle is open with the right to resume.
        if unsafe { ResumeThread(self.main_thread.as_raw_handle()) } == u32::MAX {
            let error = io::Error::last_os_error();
            return Err(Failure::failed(format!("{} cannot be let run: {error}", self.process)));
        }
        self.resumed.set(true);
        Ok(())
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        if !self.resumed.get() {
            // SAFETY: the handle is open. The program has not run one instruction of its own, so nothing is lost with it.
            unsafe { TerminateProcess(self.process.handle().as_raw_handle(), 1) };
        }
    }
}

/// The main thread of a process that was created suspended: it has no other yet.
fn only_thread(pid: u32) -> io::Result<OwnedHandle> {
    // SAFETY: the snapshot handle is fresh.
    let snapshot = unsafe { system::own(CreateToolhelp32Snapshot(TH32CS_SNAPTHREAD, 0)) }?;
    let mut entry = THREADENTRY32 { dwSize: size_of::<THREADENTRY32>() as u32, ..THREADENTRY32::default() };
    // SAFETY: the snapshot is open and the entry says its size.
    let mut more = unsafe { Thread32First(snapshot.as_raw_handle(), &mut entry) };
    while more != 0 {
        if entry.th32OwnerProcessID == pid {
            // SAFETY: the handle is fresh.
            return unsafe { system::own(OpenThread(THREAD_SUSPEND_RESUME, 0, entry.th32ThreadID)) };
        }
        // SAFETY: as above.
        more = unsafe { Thread32Next(snapshot.as_raw_handle(), &mut entry) };
    }
    Err(io::Error::other("its main thread is not listed"))
}
