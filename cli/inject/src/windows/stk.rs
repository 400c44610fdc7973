//! The stk.exe beside this inject: what shows traces. inject itself reads no symbols and walks no
//! stack.

use crate::failure::Failure;
use crate::messages::say;
use std::path::{Path, PathBuf};
use std::process::Command;

/// stk.exe beside inject.exe.
///
/// # Errors
/// A sentence for the user if it is not there: what needs it, and the `way` without it.
pub(super) fn beside(needed_by: &str, way: &str) -> Result<PathBuf, Failure> {
    let own = std::env::current_exe();
    let stk = own.map(|own| own.with_file_name("stk.exe")).unwrap_or_default();
    if stk.is_file() {
        return Ok(stk);
    }
    Err(Failure::failed(format!(
        "{needed_by} needs stk.exe beside inject.exe ({} is not there): {way}",
        stk.display()
    )))
}

/// For `--open`.
///
/// # Errors
/// As [`beside`].
pub(super) fn for_open() -> Result<PathBuf, Failure> {
    beside("--open", "leave out --open, and run stk open FILE where stk is")
}

/// Shows a trace by `stk open`, which prints what it does. That it cannot is reported: the trace is
/// whole anyway.
pub(super) fn open(trace: &Path) {
    let shown = for_open().and_then(|stk| {
        let status = Command::new(&stk).arg("open").arg(trace).status();
        status.map_err(|error| Failure::failed(format!("{} cannot be run: {error}", stk.display())))
    });
    match shown {
        Ok(status) if status.success() => {}
        Ok(status) => say(&format!("inject: stk open ended with {status}; the trace is whole")),
        Err(failure) => say(&format!("inject: the trace is not shown: {failure}")),
    }
}
