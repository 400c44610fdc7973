//! Folders that are open, and so cannot be renamed or removed.

use super::Kind;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::windows::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use windows_sys::Win32::Storage::FileSystem::{
    FILE_FLAG_BACKUP_SEMANTICS, FILE_FLAG_OPEN_REPARSE_POINT, FILE_READ_ATTRIBUTES, FILE_SHARE_DELETE,
    FILE_SHARE_READ, FILE_SHARE_WRITE,
};

/// An open folder.
#[derive(Debug)]
pub(super) struct WindowsFolder {
    path: PathBuf,
    /// This one, and those below the root that lead to it.
    held: Vec<Arc<File>>,
}

impl WindowsFolder {
    /// Opens a folder, through links. It may be renamed while it is open: the user names it.
    pub(super) fn open(path: &Path) -> io::Result<WindowsFolder> {
        // Its path with links resolved, so that what is below is found where it was when it began.
        let path = path.canonicalize()?;
        if !path.is_dir() {
            return Err(ErrorKind::NotADirectory.into());
        }
        Ok(WindowsFolder { path, held: Vec::new() })
    }

    /// The same folder once more.
    pub(super) fn again(&self) -> io::Result<WindowsFolder> {
        Ok(WindowsFolder { path: self.path.clone(), held: self.held.clone() })
    }

    /// Opens a folder in it.
    pub(super) fn folder(&self, name: &OsStr) -> io::Result<WindowsFolder> {
        let path = self.path.join(name);
        let file = as_itself(&path, FILE_SHARE_READ | FILE_SHARE_WRITE)?;
        match kind_of(&file.metadata()?) {
            Some(Kind::Folder) => {}
            _ => return Err(ErrorKind::NotADirectory.into()),
        }
        let held = self.held.iter().cloned().chain([Arc::new(file)]).collect();
        Ok(WindowsFolder { path, held })
    }

    /// What a name in it is; `None`: a link.
    pub(super) fn kind(&self, name: &OsStr) -> io::Result<Option<Kind>> {
        Ok(kind_of(&self.facts(name)?))
    }

    /// When a name in it was changed last.
    pub(super) fn modified(&self, name: &OsStr) -> io::Result<SystemTime> {
        self.facts(name)?.modified()
    }

    fn facts(&self, name: &OsStr) -> io::Result<Metadata> {
        let shared = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
        as_itself(&self.path.join(name), shared)?.metadata()
    }

    /// Opens a file in it to be read.
    pub(super) fn open_file(&self, name: &OsStr) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(FILE_FLAG_OPEN_REPARSE_POINT);
        options.open(self.path.join(name))
    }

    /// Makes a file in it.
    pub(super) fn create_new(&self, name: &OsStr) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).create_new(true).open(self.path.join(name))
    }

    pub(super) fn make_folder(&self, name: &OsStr) -> io::Result<()> {
        std::fs::create_dir(self.path.join(name))
    }

    /// The names in it, in the system's order.
    pub(super) fn names(&self) -> io::Result<Vec<OsString>> {
        std::fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name())).collect()
    }

    pub(super) fn rename(&self, name: &OsStr, to: &WindowsFolder, new: &OsStr) -> io::Result<()> {
        std::fs::rename(self.path.join(name), to.path.join(new))
    }

    pub(super) fn link(&self, name: &OsStr, to: &WindowsFolder, new: &OsStr) -> io::Result<()> {
        std::fs::hard_link(self.path.join(name), to.path.join(new))
    }

    /// Removes a name that is no folder. Of a link to a folder, the link.
    pub(super) fn remove_file(&self, name: &OsStr) -> io::Result<()> {
        let path = self.path.join(name);
        let is_link_to_folder = std::os::windows::fs::FileTypeExt::is_symlink_dir;
        match std::fs::symlink_metadata(&path) {
            Ok(found) if is_link_to_folder(&found.file_type()) => std::fs::remove_dir(path),
            _ => std::fs::remove_file(path),
        }
    }

    /// Removes an empty folder.
    pub(super) fn remove_folder(&self, name: &OsStr) -> io::Result<()> {
        std::fs::remove_dir(self.path.join(name))
    }
}

/// Opens a file or folder for its attributes. A link is opened as itself.
fn as_itself(path: &Path, shared: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.access_mode(FILE_READ_ATTRIBUTES).share_mode(shared);
    options.custom_flags(FILE_FLAG_BACKUP_SEMANTICS | FILE_FLAG_OPEN_REPARSE_POINT);
    options.open(path)
}

/// `None`: a link, which junctions are too.
fn kind_of(found: &Metadata) -> Option<Kind> {
    let kind = found.file_type();
    match () {
        () if kind.is_symlink() => None,
        () if kind.is_dir() => Some(Kind::Folder),
        () if kind.is_file() => Some(Kind::File { len: found.len() }),
        () => Some(Kind::Other),
    }
}
