//! Folders by their handles.

use super::Kind;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::fs::{linkat, mkdirat, openat, renameat, statat, unlinkat};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// An open folder.
#[derive(Debug)]
pub(super) struct UnixFolder(Arc<OwnedFd>);

/// A folder that may not be listed may still be gone through (`PATH`, which not every system has).
#[cfg(target_os = "linux")]
const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
#[cfg(not(target_os = "linux"))]
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// As for any new file: the process's mask takes from it.
const NEW_FILE: u16 = 0o666;
const NEW_FOLDER: u16 = 0o777;

impl UnixFolder {
    /// Opens a folder, through links.
    pub(super) fn open(path: &Path) -> io::Result<UnixFolder> {
        Ok(UnixFolder(Arc::new(openat(CWD, path, FOLDER, Mode::empty())?)))
    }

    /// The same folder once more.
    pub(super) fn again(&self) -> io::Result<UnixFolder> {
        Ok(UnixFolder(self.0.clone()))
    }

    /// Opens a folder in it.
    pub(super) fn folder(&self, name: &OsStr) -> io::Result<UnixFolder> {
        Ok(UnixFolder(Arc::new(openat(&*self.0, name, FOLDER | OFlags::NOFOLLOW, Mode::empty())?)))
    }

    /// What a name in it is; `None`: a link.
    pub(super) fn kind(&self, name: &OsStr) -> io::Result<Option<Kind>> {
        let found = statat(&*self.0, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(match FileType::from_raw_mode(found.st_mode) {
            FileType::Symlink => None,
            FileType::Directory => Some(Kind::Folder),
            FileType::RegularFile => Some(Kind::File { len: u64::try_from(found.st_size).unwrap_or(0) }),
            _ => Some(Kind::Other),
        })
    }

    /// When a name in it was changed last.
    pub(super) fn modified(&self, name: &OsStr) -> io::Result<SystemTime> {
        let found = statat(&*self.0, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let since = Duration::from_secs(u64::try_from(found.st_mtime).unwrap_or(0));
        SystemTime::UNIX_EPOCH.checked_add(since).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Opens a file in it to be read, without waiting for one who writes.
    pub(super) fn open_file(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        Ok(openat(&*self.0, name, flags, Mode::empty())?.into())
    }

    /// Makes a file in it.
    pub(super) fn create_new(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&*self.0, name, flags, Mode::from_raw_mode(NEW_FILE.into()))?.into())
    }

    pub(super) fn make_folder(&self, name: &OsStr) -> io::Result<()> {
        Ok(mkdirat(&*self.0, name, Mode::from_raw_mode(NEW_FOLDER.into()))?)
    }

    /// The names in it, in the system's order.
    pub(super) fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        let readable =
            openat(&*self.0, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        for entry in Dir::new(readable)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        Ok(names)
    }

    pub(super) fn rename(&self, name: &OsStr, to: &UnixFolder, new: &OsStr) -> io::Result<()> {
        Ok(renameat(&*self.0, name, &*to.0, new)?)
    }

    pub(super) fn link(&self, name: &OsStr, to: &UnixFolder, new: &OsStr) -> io::Result<()> {
        Ok(linkat(&*self.0, name, &*to.0, new, AtFlags::empty())?)
    }

    /// Removes a name that is no folder.
    pub(super) fn remove_file(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&*self.0, name, AtFlags::empty())?)
    }

    /// Removes an empty folder.
    pub(super) fn remove_folder(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&*self.0, name, AtFlags::REMOVEDIR)?)
    }
}
