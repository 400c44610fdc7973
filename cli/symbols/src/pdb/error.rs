//! Why a PDB cannot be used.

use crate::index::IndexError;
use thiserror::Error;

/// Why a PDB cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum PdbError {
    /// The file does not begin like a PDB.
    #[error("is not a PDB")]
    NotPdb,
    /// It has the format of Visual C++ 6.0 and older.
    #[error("is a PDB of an old format (before Visual Studio .NET), which is not read")]
    OldFormat,
    /// Its container is compressed.
    #[error("is a compressed PDB (MSFZ), which is not read")]
    Compressed,
    /// It is a portable PDB, which describes managed code.
    #[error("is a portable PDB (.NET), which holds no native symbols")]
    Portable,
    /// A stream that every PDB has is missing.
    #[error("is a damaged PDB: the {0} stream is missing")]
    MissingStream(&'static str),
    /// A structure is invalid.
    #[error("is a damaged PDB: bad {what} at {at:#x}")]
    Corrupt {
        /// Name of the structure.
        what: &'static str,
        /// Offset in the file or in the stream that holds it.
        at: u64,
    },
    /// The symbols do not fit into an index.
    #[error(transparent)]
    Index(#[from] IndexError),
}

impl PdbError {
    pub(super) fn corrupt(what: &'static str, at: usize) -> PdbError {
        PdbError::Corrupt { what, at: at as u64 }
    }
}
