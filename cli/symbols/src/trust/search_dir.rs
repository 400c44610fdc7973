//! A folder to search, and how far it is trusted.
//!
//! Folders in the symbol path are trusted, since the user named them. Other folders are searched
//! because the trace lies there, or states that an image did. They are used only if they lie on
//! this machine, with all links resolved.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::listing;
use crate::local::{self, PathProblem};
use stk_base::map::MappedFile;

/// The source of a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trust {
    /// The symbol path names it.
    Named,
    /// A default place, which nobody named.
    Unnamed,
    /// `stk`'s own cache.
    Cache,
}

/// A folder to search.
#[derive(Clone, Debug)]
pub(crate) struct SearchDir {
    pub(crate) folder: PathBuf,
    pub(crate) trust: Trust,
}

/// A path leads to another machine.
#[derive(Debug, Error)]
#[error("{path} is passed over, because {at} is on {what}, not on this machine: name it with -y")]
pub(crate) struct ElsewhereError {
    path: PathBuf,
    /// The part of the path that leads there.
    at: PathBuf,
    /// What is there.
    what: String,
}

/// Why a file is not opened.
#[derive(Debug, Error)]
pub(crate) enum OpenError {
    /// It does not lie on this machine.
    #[error(transparent)]
    Elsewhere(ElsewhereError),
    /// The system cannot open it, or it is not a plain file.
    #[error(transparent)]
    Io(io::Error),
}

impl SearchDir {
    /// The place for `stk`'s own files.
    pub(crate) fn cache() -> SearchDir {
        SearchDir { folder: PathBuf::new(), trust: Trust::Cache }
    }

    /// The place for a file that an accepted pointer names.
    pub(crate) fn pointed_at() -> SearchDir {
        SearchDir { folder: PathBuf::new(), trust: Trust::Named }
    }

    /// Whether the folder exists.
    ///
    /// # Errors
    ///
    /// When it does not lie on this machine.
    pub(crate) fn is_there(&self) -> Result<bool, ElsewhereError> {
        match self.real(&self.folder) {
            Ok(path) => Ok(path.is_dir()),
            Err(OpenError::Elsewhere(why)) => Err(why),
            Err(OpenError::Io(_)) => Ok(false),
        }
    }

    /// Opens a file of this place, if it is a plain file.
    pub(crate) fn open(&self, path: &Path) -> Result<MappedFile, OpenError> {
        MappedFile::open_plain(&self.real(path)?).map_err(OpenError::Io)
    }

    /// Whether a file exists. Files that may not be accessed count as missing.
    pub(crate) fn is_file(&self, path: &Path) -> bool {
        self.real(path).is_ok_and(|path| path.is_file())
    }

    /// The file of this name in a folder of this place, ignoring case. A file on another machine is
    /// returned too; [`SearchDir::open`] then reports that.
    pub(crate) fn file(&self, folder: &Path, name: &str) -> Option<PathBuf> {
        let exact = folder.join(name);
        match self.real(&exact) {
            Ok(path) if path.is_file() => Some(exact),
            Err(OpenError::Elsewhere(_)) => Some(exact),
            _ => self.ignoring_case(folder, name).filter(|path| self.is_file(path)),
        }
    }

    /// A folder below the place, if it exists, ignoring the case of its parts.
    pub(crate) fn below(&self, parts: &[&str]) -> Option<PathBuf> {
        parts.iter().try_fold(self.folder.clone(), |at, part| {
            let exact = at.join(part);
            let there = self.real(&exact).is_ok_and(|path| path.exists());
            if there { Some(exact) } else { self.ignoring_case(&at, part) }
        })
    }

    /// The entry of a folder whose name differs only in case.
    pub(crate) fn ignoring_case(&self, folder: &Path, name: &str) -> Option<PathBuf> {
        if cfg!(windows) {
            return None;
        }
        self.real(folder).ok()?;
        Some(folder.join(listing::of(folder).find(name)?))
    }

    /// Says in one sentence that the folder has more files than are searched for names in another
    /// case.
    pub(crate) fn lacks(&self) -> Option<String> {
        if cfg!(windows) {
            return None;
        }
        self.real(&self.folder).ok()?;
        listing::of(&self.folder).lacks(&self.folder)
    }

    /// The path to open. In a place that nobody named, links are resolved, and it must be on this
    /// machine.
    fn real(&self, path: &Path) -> Result<PathBuf, OpenError> {
        if self.trust != Trust::Unnamed {
            return Ok(path.to_path_buf());
        }
        local::resolve(path).map_err(|unresolved| match unresolved {
            PathProblem::Io(error) => OpenError::Io(error),
            PathProblem::Elsewhere { at, what } => {
                OpenError::Elsewhere(ElsewhereError { path: path.to_path_buf(), at, what })
            }
        })
    }
}
