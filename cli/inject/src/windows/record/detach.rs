//! `--detach`: a copy of inject records and remains as the guard, without a window or console. This
//! inject returns when the recording has begun.
//!
//! The copy gets the same command line and, by an inherited handle, an event that it sets when it
//! has begun. Until then a pipe carries its messages to this inject's stderr.

use crate::failure::{self, Failure};
use crate::messages;
use crate::windows::console;
use crate::windows::record::logoff;
use crate::windows::system::{self, Event};
use std::fs::OpenOptions;
use std::io;
use std::os::windows::io::{AsHandle as _, AsRawHandle, FromRawHandle, IntoRawHandle as _, OwnedHandle};
use std::os::windows::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use windows_sys::Win32::Foundation::{CloseHandle, HANDLE, HANDLE_FLAG_INHERIT, SetHandleInformation};
use windows_sys::Win32::System::Console::{
    GetStdHandle, STD_ERROR_HANDLE, STD_INPUT_HANDLE, STD_OUTPUT_HANDLE, SetStdHandle,
};
use windows_sys::Win32::System::Threading::{
    CREATE_BREAKAWAY_FROM_JOB, CREATE_NEW_PROCESS_GROUP, DETACHED_PROCESS, INFINITE,
};

/// Starts the copy, waits until it records or fails, and returns the exit code.
///
/// # Errors
/// A sentence for the user, when it cannot be started.
pub(crate) fn run() -> Result<i32, Failure> {
    let fail = |error: io::Error| Failure::failed(format!("no copy of inject can be left behind: {error}"));
    let interrupted = console::catch().map_err(fail)?;
    let begun = Event::new().map_err(fail)?;
    let (mut copy, in_job) = start(&begun).map_err(fail)?;
    let said = copy.stderr.take();
    // The forwarder ends when the copy has begun or has ended.
    let forwarder = std::thread::spawn(move || said.map(|mut said| io::copy(&mut said, &mut io::stderr())));
    let handles = [begun.handle(), copy.as_handle(), interrupted.handle()];
    let signalled = system::wait_any(&handles, INFINITE);
    if signalled == Some(2) {
        // If its recording has begun, it ends with the copy.
        copy.kill().map_err(fail)?;
    }
    let _ = forwarder.join();
    match signalled {
        Some(0) => {
            eprintln!(
                "inject continues as pid {} until the recording ends; to end it: inject stop",
                copy.id()
            );
            if in_job {
                eprintln!(
                    "inject: it stays in the job of this terminal, service or task, which may end it: the job allows no process to leave"
                );
            }
            Ok(failure::OK)
        }
        Some(1) => Ok(copy.wait().ok().and_then(|status| status.code()).unwrap_or(failure::FAILED)),
        _ => Ok(failure::INTERRUPTED),
    }
}

/// In the copy: signals the inject that started it that the recording has begun. From then on
/// nobody reads the copy's messages, and a logoff ends the recording as Ctrl-C would.
pub(crate) fn begun(event: u64) {
    if !logoff::watch() {
        messages::say("this session has no windows: a logoff ends the copy without a warning");
    }
    // SAFETY: the inject that started this one has made the event inheritable and passed its handle
    // for this only use.
    let event = unsafe { OwnedHandle::from_raw_handle(event as HANDLE) };
    system::set(event.as_handle());
    let Ok(nothing) = OpenOptions::new().write(true).open("NUL") else { return };
    // SAFETY: plain calls; the pipe's handle is closed once, and no code uses it afterwards: std
    // gets the standard handle at each write.
    unsafe {
        let pipe = GetStdHandle(STD_ERROR_HANDLE);
        if SetStdHandle(STD_ERROR_HANDLE, nothing.into_raw_handle()) != 0 {
            CloseHandle(pipe);
        }
    }
}

/// The copy, and whether it could not leave the job of this inject.
fn start(begun: &Event) -> io::Result<(Child, bool)> {
    // The copy must not keep open the pipes of a program that reads this inject's output.
    for standard in [STD_INPUT_HANDLE, STD_OUTPUT_HANDLE, STD_ERROR_HANDLE] {
        // SAFETY: a standard handle, or one that the call refuses.
        unsafe { SetHandleInformation(GetStdHandle(standard), HANDLE_FLAG_INHERIT, 0) };
    }
    let event = begun.handle().as_raw_handle();
    // SAFETY: the event is open.
    if unsafe { SetHandleInformation(event, HANDLE_FLAG_INHERIT, HANDLE_FLAG_INHERIT) } == 0 {
        return Err(io::Error::last_os_error());
    }
    let spawn = |flags| {
        Command::new(std::env::current_exe()?)
            .args(std::env::args_os().skip(1))
            .args(["--begun-event", &(event as usize).to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .creation_flags(flags)
            .spawn()
    };
    let flags = DETACHED_PROCESS | CREATE_NEW_PROCESS_GROUP;
    // Start the copy outside the job of a terminal or a build, which may end all of its processes.
    // Not every job allows that.
    let outside = spawn(flags | CREATE_BREAKAWAY_FROM_JOB).map(|copy| (copy, false));
    outside.or_else(|_| spawn(flags).map(|copy| (copy, true)))
}
