//! Which files no output replaces, whatever `--force` says: inputs of this call, and traces.
//!
//! [`check`] is called when an output is named, so that no work is lost, and once more when it gets
//! its name ([`crate::interrupt::TemporaryFile::persist`]), since files are opened in between.

use super::{inputs, look_at};
use std::error::Error;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use stk_format::FileHeader;
use stk_schema::windows::is_device_name;

/// What an output may replace beside other files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MayReplace {
    /// No trace.
    NoTrace,
    /// A trace that stk redact made: who says this has looked into it.
    RedactedTrace,
    /// A file of a symbol store by one of the same identity, also after it was found unfit.
    Stored,
}

/// Why a file is not replaced. The command line is wrong: exit code 2.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// An input of this command.
    #[error("{}: is an input of this command, which no output replaces: name another output", .0.display())]
    Input(PathBuf),
    /// A trace.
    #[error("{}: is a trace, which no output replaces: name another output, or remove the trace before", .0.display())]
    Trace(PathBuf),
    /// A name of a device of Windows.
    #[error("{}: is the name of a device to Windows, not of a file: name another output", .0.display())]
    Device(PathBuf),
}

/// Whether an output may have this name.
///
/// # Errors
///
/// That the name leads to an input or to a trace, or on Windows to a device.
pub fn check(output: &Path, may: MayReplace) -> Result<(), Refusal> {
    if cfg!(windows) && names_device(output) {
        return Err(Refusal::Device(output.to_owned()));
    }
    if may != MayReplace::Stored && inputs::is_input(output) {
        return Err(Refusal::Input(output.to_owned()));
    }
    if may != MayReplace::RedactedTrace && is_trace(output) {
        return Err(Refusal::Trace(output.to_owned()));
    }
    Ok(())
}

/// Whether Windows takes the last name of a path for a device: `NUL`, `con.json`.
fn names_device(path: &Path) -> bool {
    path.file_name().is_some_and(|name| is_device_name(&name.to_string_lossy()))
}

/// Whether a path leads to a regular file that begins as traces do.
pub fn is_trace(path: &Path) -> bool {
    let mut begin = [0; 16];
    let read = look_at(path).and_then(|mut file| file.read_exact(&mut begin));
    read.is_ok() && FileHeader::is_at_start_of(&begin)
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidInput, refusal)
    }
}

/// Whether an error is a refusal. One of the system that holds a refusal is one, too.
pub fn is_refusal(error: &(dyn Error + 'static)) -> bool {
    let held = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    error.is::<Refusal>() || held.is_some_and(|held| held.is::<Refusal>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices_are_no_outputs_of_windows() {
        for (path, is_device) in [("out/NUL", true), ("con.json", true), ("nul/a.json", false), ("a", false)]
        {
            assert_eq!(names_device(Path::new(path)), is_device, "{path}");
            assert_eq!(check(Path::new(path), MayReplace::NoTrace).is_err(), cfg!(windows) && is_device);
        }
    }
}
