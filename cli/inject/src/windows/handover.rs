//! Hands a process over to the inject that was built for its architecture.

use super::console;
use super::process::Process;
use crate::companion;
use crate::failure::{self, Failure};
use crate::image;
use crate::refusal::Machine;
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
    // The other inject shares the console, gets Ctrl-C itself, and decides the exit code.
    let _ = console::catch();
    let status = Command::new(inject).args(std::env::args_os().skip(1)).status();
    let status = status
        .map_err(|error| Failure::failed(format!("{} cannot be started: {error}", inject.display())))?;
    Ok(status.code().unwrap_or(failure::FAILED))
}
