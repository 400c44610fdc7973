//! A file that may be a data access library, and why none can be used.

use crate::dac::runtime::Index;
use std::path::PathBuf;

/// Why no library can be used.
#[derive(Debug)]
pub(super) struct LibraryError {
    /// A sentence for the user.
    pub text: String,
    /// Whether a later attempt may succeed.
    pub may_pass: bool,
}

impl LibraryError {
    pub(super) fn lasting(text: String) -> LibraryError {
        LibraryError { text, may_pass: false }
    }
}

/// A file that may be the library.
#[derive(Clone)]
pub(super) struct LibraryCandidate {
    pub(super) path: PathBuf,
    /// Whether it was found beside the runtime, not on the symbol path.
    pub(super) beside: bool,
    /// Whether the user named its folder on the command line.
    pub(super) named: bool,
    /// The build that it must be, if that is known and nothing else ensures it.
    pub(super) index: Option<Index>,
}
