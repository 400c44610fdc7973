//! Which files no output replaces, whatever `--force` says: inputs of this call, and traces.
//!
//! [`check`] is called when an output is named, so that no work is lost, and once more when it gets
//! its name ([`crate::interrupt::TemporaryFile::persist`]), since files are opened in between.

use super::{inputs, look_at};
use std::error::Error;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use stk_format::FileHeader;

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
}

/// Whether an output may have this name.
///
/// # Errors
///
/// That the name leads to an input or to a trace.
pub fn check(output: &Path, may: MayReplace) -> Result<(), Refusal> {
    if may != MayReplace::Stored && inputs::is_input(output) {
        return Err(Refusal::Input(output.to_owned()));
    }
    if may != MayReplace::RedactedTrace && is_trace(output) {
        return Err(Refusal::Trace(output.to_owned()));
    }
    Ok(())
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
