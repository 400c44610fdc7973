//! The file of a data access library. It is opened once, checked, and held open until it is loaded,
//! so that the checked file is the one loaded.

use super::candidate::{LibraryCandidate, LibraryError};
use crate::trust::{self, Evidence, IntegrityLevel, LoadPolicy};
use crate::windows::output;
use crate::windows::trust::local::{self, PathRefusal};
use crate::windows::trust::signature;
use crate::windows::trust::token::{self, Token};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::windows::fs::OpenOptionsExt as _;
use std::os::windows::io::AsHandle as _;
use std::path::{Path, PathBuf};
use stk_schema::sddl;
use windows_sys::Win32::Storage::FileSystem::FILE_SHARE_READ;

/// Most bytes of a library's file; real ones have some two megabytes.
const MOST_BYTES: u64 = 64 << 20;

/// A library that may be loaded while this value lives.
#[derive(Debug)]
pub(super) struct LibraryFile {
    /// Path without links, at which no other file can be put meanwhile.
    pub path: PathBuf,
    pub bytes: Vec<u8>,
    /// How it may be loaded.
    pub permit: LoadPolicy,
    /// Keeps others from changing, renaming or deleting it; a folder on the way cannot be renamed
    /// while this is open either.
    _file: File,
}

impl LibraryFile {
    /// Opens the file of a candidate; `None` if there is none. `rank` is the recorded process's.
    ///
    /// # Errors
    /// Why it is not loaded.
    pub(super) fn open(
        candidate: &LibraryCandidate,
        rank: IntegrityLevel,
    ) -> Result<Option<LibraryFile>, LibraryError> {
        let given = &candidate.path;
        let shown = given.display();
        // Check the path before opening it, because opening a share sends credentials there. A link
        // to a share may be the recorded user's trap, so links are refused unless that user has the
        // same rights as inject.
        let local = match rank {
            IntegrityLevel::Peer => local::check(given),
            IntegrityLevel::Below => local::check_without_links(given),
        };
        local.map_err(|elsewhere| {
            LibraryError::lasting(match elsewhere {
                PathRefusal::Place => format!("{shown} is not opened, since it is no file of a local disk"),
                PathRefusal::Link => format!(
                    "{shown} is not opened, since a link is on its path and the program does not run with inject's rights: {WAY_OUT}"
                ),
            })
        })?;
        let unreadable = |error: io::Error| LibraryError::lasting(format!("{shown} cannot be read: {error}"));
        let mut file = match File::options().read(true).share_mode(FILE_SHARE_READ).open(given) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(unreadable)?,
        };
        let regular = output::existing(&file).is_ok_and(|existing| existing.regular);
        let path = local::real_path(&file).filter(|path| regular && local::check(path).is_ok());
        let Some(path) = path else {
            return Err(LibraryError::lasting(format!(
                "{shown} is not loaded, since it is no file of a local disk"
            )));
        };
        let mut judged = LibraryEvidence { file: &file, path: &path };
        let Some(permit) = trust::permit(rank, candidate.beside, candidate.named, &mut judged) else {
            return Err(LibraryError::lasting(format!(
                "{shown} is not loaded, since others can write it, Microsoft has not signed it as a data access library, and the program \
                 does not run with inject's user and rights: {WAY_OUT}"
            )));
        };
        let mut bytes = Vec::new();
        file.by_ref().take(MOST_BYTES).read_to_end(&mut bytes).map_err(unreadable)?;
        Ok(Some(LibraryFile { path, bytes, permit, _file: file }))
    }
}

/// Advice for a user whose library is refused.
const WAY_OUT: &str = "run inject as the program's user, or name with --symbol-path a folder that only administrators and you write";

/// The system's facts about an opened library.
struct LibraryEvidence<'a> {
    file: &'a File,
    path: &'a Path,
}

impl LibraryEvidence<'_> {
    fn sddl(&self) -> Option<String> {
        token::sddl_of(self.file.as_handle())
    }
}

impl Evidence for LibraryEvidence<'_> {
    fn file_is_the_systems(&mut self) -> bool {
        self.sddl().is_some_and(|sddl| sddl::only_trusted_write(&sddl, None))
    }

    fn folder_is_the_systems(&mut self) -> bool {
        // The folder cannot change while the file is open.
        let sddl = self.path.parent().and_then(token::sddl);
        sddl.is_some_and(|sddl| sddl::only_trusted_write(&sddl, None))
    }

    fn file_is_own(&mut self) -> bool {
        let user = Token::own().ok().and_then(|token| token.user_sid());
        user.is_some() && self.sddl().is_some_and(|sddl| sddl::only_trusted_write(&sddl, user.as_deref()))
    }

    fn maker_signed(&mut self) -> bool {
        signature::is_data_access_library(self.file, self.path)
    }
}
