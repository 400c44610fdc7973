//! Hands a process over to the inject that was built for its architecture.

use crate::args::Request;
use crate::companion;
use crate::failure::{self, Failure};
use crate::image;
use crate::refusal::Machine;
use crate::windows::console;
use crate::windows::process::Process;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The inject beside this one that records `process`, if this one cannot and that one exists.
pub(crate) fn companion(process: &Process) -> Option<PathBuf> {
    companion_for(process.machine())
}

/// As [`companion`], for a process on this machine type.
pub(crate) fn companion_for(machine: Machine) -> Option<PathBuf> {
    let name = companion::inject_for(image::own_machine(), machine.process)?;
    let path = std::env::current_exe().ok()?.with_file_name(name);
    path.is_file().then_some(path)
}

/// Runs `inject` with this one's own command line and returns its exit code.
///
/// # Errors
/// A sentence for the user, when it cannot be started.
pub(crate) fn run(inject: &Path) -> Result<i32, Failure> {
    run_with(inject, Vec::new())
}

/// As [`run`], for this process, whatever process the command line names.
///
/// # Errors
/// As there.
pub(crate) fn run_for(inject: &Path, pid: u32) -> Result<i32, Failure> {
    // The option is said at most once.
    let said = std::env::args_os().any(|argument| argument == "--only-pid");
    let more = if said { Vec::new() } else { vec!["--only-pid".to_owned(), pid.to_string()] };
    run_with(inject, more)
}

fn run_with(inject: &Path, more: Vec<String>) -> Result<i32, Failure> {
    call(inject, more.into_iter().map(OsString::from).chain(std::env::args_os().skip(1)))
}

/// Has `inject` end the recording of one process, and the agent leave it with `unload`.
///
/// # Errors
/// As [`run`].
pub(crate) fn stop(inject: &Path, pid: u32, timeout_ms: u32, unload: bool) -> Result<i32, Failure> {
    let (pid, timeout) = (pid.to_string(), format!("{timeout_ms}ms"));
    let arguments = ["stop", "--pid", &pid, "--timeout", &timeout];
    call(inject, arguments.into_iter().chain(unload.then_some("--unload")).map(OsString::from))
}

/// Has `inject` ask for a trace of one process that is recorded with --flight.
///
/// # Errors
/// As [`run`].
pub(crate) fn snap(inject: &Path, pid: u32, timeout_ms: u32) -> Result<i32, Failure> {
    let (pid, timeout) = (pid.to_string(), format!("{timeout_ms}ms"));
    call(inject, ["snap", "--pid", &pid, "--timeout", &timeout].map(OsString::from))
}

/// Has `inject` ask the agent of one process for something.
///
/// # Errors
/// As [`run`], and when it fails.
pub(crate) fn ask(inject: &Path, pid: u32, request: &Request) -> Result<(), Failure> {
    let (command, text) = match request {
        Request::Mark(text) => ("mark", Some(text)),
        Request::Pause => ("pause", None),
        Request::Resume => ("resume", None),
    };
    let pid = pid.to_string();
    let text = text.into_iter().flat_map(|text| ["--", text.as_str()]);
    let arguments = [command, "--pid", &pid].into_iter().chain(text);
    match call(inject, arguments.map(OsString::from))? {
        failure::OK => Ok(()),
        code => Err(Failure::with_code(code, format!("{} failed", inject.display()))),
    }
}

fn call(inject: &Path, arguments: impl IntoIterator<Item = OsString>) -> Result<i32, Failure> {
    // The other inject shares the console, gets Ctrl-C itself, and decides the exit code.
    let _ = console::catch();
    let status = Command::new(inject).args(arguments).status();
    let status = status
        .map_err(|error| Failure::failed(format!("{} cannot be started: {error}", inject.display())))?;
    Ok(status.code().unwrap_or(failure::FAILED))
}
