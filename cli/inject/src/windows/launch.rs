//! Starts the program to record. Its main thread initialises the process and waits for the agent.

use super::ntdll;
use super::process::Process;
use super::remote::Duplicate;
use super::system::{self, Event};
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
    CREATE_SUSPENDED, OpenThread, ResumeThread, THREAD_SET_CONTEXT, THREAD_SUSPEND_RESUME, TerminateProcess,
};

/// A program that inject has started and that waits for [`LaunchedProgram::resume`]. If it is
/// dropped before, it is ended, unless it may have begun to run.
#[derive(Debug)]
pub(crate) struct LaunchedProgram {
    process: Process,
    main_thread: OwnedHandle,
    stage: Cell<Stage>,
    /// The event for which the main thread waits after it has initialised the process.
    go: Event,
    // Keeps the pipes, if any, and the process handle as long as the program runs.
    _child: Child,
}

/// The stages of a launched program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Its main thread is suspended before its first instruction.
    Suspended,
    /// Its main thread was resumed and has not signalled that the process is initialised. It may
    /// have passed the wait.
    Initialising,
    /// The process is initialised and its main thread waits before the program's entry point.
    Waiting,
    Running,
}

impl LaunchedProgram {
    /// Starts `line` (program and arguments) in inject's own console, environment and folder.
    ///
    /// # Errors
    /// A sentence for the user, with the exit code that a shell would give.
    pub(crate) fn start(line: &[OsString]) -> Result<LaunchedProgram, Failure> {
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
        let go = Event::new().map_err(|error| failed(&error))?;
        Ok(LaunchedProgram { process, main_thread, stage: Cell::new(Stage::Suspended), go, _child: child })
    }

    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    /// Lets the main thread initialise the process and then wait before the program's entry point,
    /// so that DLLs are attached on the same thread as without inject. (The first thread that runs
    /// in a process initialises it. A remote thread would do so instead of the main thread, and
    /// become the main thread of a .NET Framework program.)
    ///
    /// This uses asynchronous procedure calls. If they were queued to a thread before its first
    /// instruction, the loader delivers them after it has initialised the process and before the
    /// entry point. They call exports of ntdll; no code is written. The DllMains of the program's
    /// static imports and its TLS callbacks have run by then.
    ///
    /// # Errors
    /// A sentence for the user: it was refused, the process ended, or it took too long.
    pub(crate) fn initialise(&self, timeout_ms: u32) -> Result<(), Failure> {
        let process = &self.process;
        let calls = ntdll::Calls::find(process)?;
        let ready =
            Event::new().map_err(|error| Failure::failed(format!("no event could be made: {error}")))?;
        let (there, go) =
            (Duplicate::new(process, ready.handle())?, Duplicate::new(process, self.go.handle())?);
        let main = self.main_thread.as_handle();
        for (function, handle) in [
            (calls.set_event, &there),
            (calls.close, &there),
            (calls.wait, &go), // not alertable, without a limit: both are 0
            (calls.close, &go),
        ] {
            ntdll::queue(main, function, handle.value()).map_err(|error| {
                Failure::target(format!("{process} cannot be told to wait for the agent: {error}"))
            })?;
        }
        self.stage.set(Stage::Initialising);
        // SAFETY: the handle is open with the right to resume.
        if unsafe { ResumeThread(main.as_raw_handle()) } == u32::MAX {
            let error = io::Error::last_os_error();
            self.stage.set(Stage::Suspended);
            return Err(Failure::failed(format!("{process} cannot be let run: {error}")));
        }
        // The main thread closes them.
        there.give();
        go.give();
        match system::wait_any(&[process.handle(), ready.handle()], timeout_ms) {
            Some(0) => Err(Failure::target(format!(
                "{process} ended with exit code 0x{:08x} while it was being initialised, before the program began: one of its DLLs is missing \
                 or failed",
                process.exit_code()
            ))),
            Some(_) => {
                self.stage.set(Stage::Waiting);
                Ok(())
            }
            None => Err(Failure::target(format!(
                "{process} was not initialised within {} s (one of its DLLs waits, or security software holds it); it is left to run \
                 without being recorded: record it with --pid {}, or start it with a longer --timeout",
                timeout_ms.div_ceil(1000),
                process.pid()
            ))),
        }
    }

    /// Lets the program run.
    pub(crate) fn resume(&self) {
        self.go.set();
        self.stage.set(Stage::Running);
    }
}

impl Drop for LaunchedProgram {
    fn drop(&mut self) {
        match self.stage.get() {
            // SAFETY: the handle is open. The program has not come to its entry point, so nothing
            // is lost with it.
            Stage::Suspended | Stage::Waiting => unsafe {
                TerminateProcess(self.process.handle().as_raw_handle(), 1);
            },
            // The program may have passed its entry point, and ending it would lose its work.
            Stage::Initialising | Stage::Running => self.go.set(),
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
            return unsafe {
                system::own(OpenThread(THREAD_SUSPEND_RESUME | THREAD_SET_CONTEXT, 0, entry.th32ThreadID))
            };
        }
        // SAFETY: as above.
        more = unsafe { Thread32Next(snapshot.as_raw_handle(), &mut entry) };
    }
    Err(io::Error::other("its main thread is not listed"))
}
