//! Shows pages and sites in the user's browser.

use anyhow::Context as _;
use std::ffi::OsStr;
use std::process::{Command, Stdio};

/// Shows a file or an address. No shell reads it.
///
/// # Errors
///
/// When the system's program for that does not start.
pub(super) fn show(what: &OsStr) -> anyhow::Result<()> {
    let program = if cfg!(windows) {
        "explorer"
    } else if cfg!(target_os = "macos") {
        "open"
    } else {
        "xdg-open"
    };
    let started = Command::new(program).arg(what).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    started.with_context(|| format!("{program} does not start: open {} yourself", what.display()))?;
    Ok(())
}
