//! A folder to look into, and how far it is trusted.
//!
//! The user vouches for what the symbol path names. Other places are looked into because the trace
//! lies there or says that an image did: they count only as far as they lie on this machine, links
//! and all.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::listing;
use super::local::{self, PathProblem};
use crate::map::MappedFile;

/// Who vouches for a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Trust {
    /// The symbol path names it.
    Named,
    /// Nobody: a default place.
    Unnamed,
    /// `stk`'s own cache.
    Cache,
}

/// A folder to look into.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) folder: PathBuf,
    pub(super) trust: Trust,
}

/// That a path leads to another machine.
#[derive(Debug, Error)]
#[error("{path} is passed over, because {at} is on {what}, not on this machine: name it with -y")]
pub(super) struct ElsewhereError {
    path: PathBuf,
    /// From where on it does.
    at: PathBuf,
    /// What is there.
    what: String,
}

/// Why a file is not opened.
#[derive(Debug, Error)]
pub(super) enum OpenError {
    /// It does not lie on this machine.
    #[error(transparent)]
    Elsewhere(ElsewhereError),
    /// What the system says, or that it is no plain file.
    #[error(transparent)]
    Io(io::Error),
}

impl Place {
    /// For files that are `stk`'s own.
    pub(super) fn cache() -> Place {
        Place { folder: PathBuf::new(), trust: Trust::Cache }
    }

    /// For a file that an accepted pointer names.
    pub(super) fn pointed_at() -> Place {
        Place { folder: PathBuf::new(), trust: Trust::Named }
    }

    /// Whether the folder is there.
    ///
    /// # Errors
    ///
    /// That it does not lie on this machine.
    pub(super) fn is_there(&self) -> Result<bool, ElsewhereError> {
        match self.real(&self.folder) {
            Ok(path) => Ok(path.is_dir()),
            Err(OpenError::Elsewhere(why)) => Err(why),
            Err(OpenError::Io(_)) => Ok(false),
        }
    }

    /// Opens a file of this place, if it is a plain one.
    pub(super) fn open(&self, path: &Path) -> Result<MappedFile, OpenError> {
        MappedFile::open_plain(&self.real(path)?).map_err(OpenError::Io)
    }

    /// Whether there is a file, as far as may be looked.
    pub(super) fn is_file(&self, path: &Path) -> bool {
        self.real(path).is_ok_and(|path| path.is_file())
    }

    /// The file of this name in a folder of this place, whatever the case. One that lies elsewhere
    /// is given too: [`Place::open`] says so.
    pub(super) fn file(&self, folder: &Path, name: &str) -> Option<PathBuf> {
        let exact = folder.join(name);
        match self.real(&exact) {
            Ok(path) if path.is_file() => Some(exact),
            Err(OpenError::Elsewhere(_)) => Some(exact),
            _ => self.ignoring_case(folder, name).filter(|path| self.is_file(path)),
        }
    }

    /// A folder below the place, if it is there, whatever the case of its parts.
    pub(super) fn below(&self, parts: &[&str]) -> Option<PathBuf> {
        parts.iter().try_fold(self.folder.clone(), |at, part| {
            let exact = at.join(part);
            let there = self.real(&exact).is_ok_and(|path| path.exists());
            if there { Some(exact) } else { self.ignoring_case(&at, part) }
        })
    }

    /// The entry of a folder whose name differs in case only.
    pub(super) fn ignoring_case(&self, folder: &Path, name: &str) -> Option<PathBuf> {
        if cfg!(windows) {
            return None;
        }
        self.real(folder).ok()?;
        Some(folder.join(listing::of(folder).find(name)?))
    }

    /// That more files lie in the folder than are looked at for such a name: one sentence.
    pub(super) fn lacks(&self) -> Option<String> {
        if cfg!(windows) {
            return None;
        }
        self.real(&self.folder).ok()?;
        listing::of(&self.folder).lacks(&self.folder)
    }

    /// The path to open: of a place that nobody vouches for without links, and on this machine.
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
