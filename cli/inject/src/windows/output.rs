//! The file that the agent writes.

use super::system;
use crate::failure::Failure;
use std::fs::{File, OpenOptions};
use std::os::windows::fs::OpenOptionsExt;
use std::os::windows::io::{AsHandle, BorrowedHandle};
use std::path::{Path, PathBuf};
use std::ptr;
use windows_sys::Win32::Storage::FileSystem::{FILE_SHARE_READ, GetDiskFreeSpaceExW};

/// The opened output. Until [`Output::empty`] nothing of an earlier file is lost; unless [`Output::keep`] is called, a
/// file that was not there before is deleted again.
#[derive(Debug)]
pub struct Output {
    // In this order, since a file that is open cannot be deleted.
    file: File,
    unwanted: Unwanted,
    path: PathBuf,
}

/// A file to be deleted on drop.
#[derive(Debug)]
struct Unwanted(Option<PathBuf>);

impl Output {
    /// Opens or creates the file; others may read but not write it from now on.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn open(path: &Path) -> Result<Output, Failure> {
        let fail = |error| {
            let shown = path.display();
            Failure::failed(format!("{shown} cannot be written ({error}): choose another file with -o"))
        };
        let path = std::path::absolute(path).map_err(fail)?;
        let mut options = OpenOptions::new();
        options.write(true).share_mode(FILE_SHARE_READ);
        let (file, unwanted) = match options.clone().create_new(true).open(&path) {
            Ok(file) => (file, Unwanted(Some(path.clone()))),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                // Windows would refuse to open it; Wine does not when its user may do anything.
                if std::fs::metadata(&path).is_ok_and(|known| known.permissions().readonly()) {
                    let shown = path.display();
                    return Err(Failure::failed(format!(
                        "{shown} is read-only: choose another file with -o"
                    )));
                }
                (options.open(&path).map_err(fail)?, Unwanted(None))
            }
            Err(error) => return Err(fail(error)),
        };
        Ok(Output { file, unwanted, path })
    }

    /// Empties the file: from here on it is the new trace's.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn empty(&self) -> Result<(), Failure> {
        let emptied = self.file.set_len(0);
        emptied
            .map_err(|error| Failure::failed(format!("{} cannot be emptied ({error})", self.path.display())))
    }

    /// Most bytes of the trace where nobody says: 4 GiB, or a tenth of what is free on its disk (at least 1 MiB).
    pub fn default_limit(&self) -> u64 {
        const MOST: u64 = 4 << 30;
        const LEAST: u64 = 1 << 20;
        let folder = self.path.parent().unwrap_or(&self.path);
        let mut free = 0;
        let name = system::wide(folder.as_os_str());
        // SAFETY: the name is zero-terminated, the result has room, and the other results may be null.
        let known =
            unsafe { GetDiskFreeSpaceExW(name.as_ptr(), &mut free, ptr::null_mut(), ptr::null_mut()) } != 0;
        if known { (free / 10).clamp(LEAST, MOST) } else { MOST }
    }

    /// For duplication.
    pub fn handle(&self) -> BorrowedHandle<'_> {
        self.file.as_handle()
    }

    /// The agent has it now: closes our handle, leaves the file and returns its path.
    pub fn keep(mut self) -> PathBuf {
        self.unwanted.0 = None;
        self.path
    }
}

impl Drop for Unwanted {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // If it cannot be deleted, an empty file stays: no reason to hide the failure that led here.
            let _ = std::fs::remove_file(path);
        }
    }
}
