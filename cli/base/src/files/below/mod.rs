//! What is below a folder of outputs: opened, made, renamed and removed without following a link.
//!
//! The folder itself is the user's word: links in its path are followed once, when it is opened.
//! Whoever may write in it may also put links there, to another user's files; a link below it is an
//! error that names it. On Unix each step goes from a folder's handle to the next name. On Windows
//! each folder on the way is opened as itself, and stays open, so that nobody replaces it.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
use unix::UnixFolder as Folder;
#[cfg(windows)]
use windows::WindowsFolder as Folder;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// A name below a folder of outputs, or the folder itself.
#[derive(Clone, Debug)]
pub struct Below {
    root: Arc<Root>,
    /// Names only, no `..`.
    names: PathBuf,
}

#[derive(Debug)]
struct Root {
    path: PathBuf,
    folder: Folder,
}

/// What a name is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A regular file.
    File {
        /// Its length in bytes.
        len: u64,
    },
    Folder,
    /// A device, a pipe, a socket.
    Other,
}

/// A link where stk follows none.
#[derive(Debug, thiserror::Error)]
#[error("{}: is a link, and none is followed below a folder of outputs: remove it", .0.display())]
struct LinkBelow(PathBuf);

impl Below {
    /// An existing folder of outputs.
    pub fn folder(path: &Path) -> io::Result<Below> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let root = Root { path: path.to_owned(), folder: Folder::open(path)? };
        Ok(Below { root: Arc::new(root), names: PathBuf::new() })
    }

    /// A folder of outputs, which is made if it is not there.
    pub fn make(path: &Path) -> io::Result<Below> {
        std::fs::create_dir_all(path)?;
        Below::folder(path)
    }

    /// A file that the command line names, which need not be there. If it is a link, then what it
    /// leads to.
    ///
    /// # Errors
    ///
    /// The error of the system: [`ErrorKind::NotFound`] if its folder is not there.
    pub fn named_file(path: &Path) -> io::Result<Below> {
        let goal = match path.canonicalize() {
            Ok(goal) => goal,
            Err(error) if error.kind() == ErrorKind::NotFound => path.to_owned(),
            Err(error) => return Err(error),
        };
        let (Some(folder), Some(name)) = (goal.parent(), goal.file_name()) else {
            return Err(io::Error::new(ErrorKind::IsADirectory, "names no file"));
        };
        Ok(Below::folder(folder)?.join(name))
    }

    /// A name below it.
    pub fn join(&self, name: impl AsRef<Path>) -> Below {
        Below { root: self.root.clone(), names: self.names.join(name) }
    }

    /// The same with another last name.
    pub fn with_name(&self, name: impl AsRef<OsStr>) -> Below {
        Below { root: self.root.clone(), names: self.names.with_file_name(name) }
    }

    /// The folder that it is in.
    pub fn parent(&self) -> Below {
        let names = self.names.parent().unwrap_or(Path::new("")).to_owned();
        Below { root: self.root.clone(), names }
    }

    /// Its path, for messages.
    pub fn path(&self) -> PathBuf {
        if self.names.as_os_str().is_empty() {
            self.root.path.clone()
        } else {
            self.root.path.join(&self.names)
        }
    }

    /// Its last name.
    pub fn name(&self) -> io::Result<&OsStr> {
        self.names.file_name().ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "names no file"))
    }

    /// What it is; `None` if it, or a folder on the way, is not there.
    ///
    /// # Errors
    ///
    /// That it is a link, or the error of the system.
    pub fn kind(&self) -> io::Result<Option<Kind>> {
        if self.names.as_os_str().is_empty() {
            return Ok(Some(Kind::Folder));
        }
        let found = self.parent().handle(false).and_then(|folder| folder.kind(self.name()?));
        match found {
            Ok(Some(kind)) => Ok(Some(kind)),
            Ok(None) => Err(self.link()),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether it is a folder.
    ///
    /// # Errors
    ///
    /// As of [`kind`](Below::kind).
    pub fn is_folder(&self) -> io::Result<bool> {
        Ok(self.kind()? == Some(Kind::Folder))
    }

    /// Opens a regular file.
    ///
    /// # Errors
    ///
    /// That it is a link or no regular file, or the error of the system.
    pub fn open(&self) -> io::Result<File> {
        match self.kind()? {
            Some(Kind::File { .. }) => {}
            Some(_) => return Err(io::Error::new(ErrorKind::InvalidInput, "is no regular file")),
            None => return Err(ErrorKind::NotFound.into()),
        }
        let file = self.parent().handle(false)?.open_file(self.name()?)?;
        super::check_plain(&file.metadata()?)?;
        Ok(file)
    }

    /// The bytes of a regular file of at most `most`.
    ///
    /// # Errors
    ///
    /// As of [`open`](Below::open), or that it is larger.
    pub fn read(&self, most: u64) -> io::Result<Vec<u8>> {
        super::read_within(self.open()?, most)
    }

    /// Makes a file, to be read and written.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AlreadyExists`] if there is anything of that name; else the system's error.
    pub fn create_new(&self) -> io::Result<File> {
        self.parent().handle(false)?.create_new(self.name()?)
    }

    /// Makes it a folder, with those on the way, where it is none.
    ///
    /// # Errors
    ///
    /// That one of them is a link or a file, or the error of the system.
    pub fn make_folder(&self) -> io::Result<()> {
        self.handle(true).map(drop)
    }

    /// Makes a folder.
    ///
    /// # Errors
    ///
    /// As of [`create_new`](Below::create_new).
    pub fn create_folder(&self) -> io::Result<()> {
        self.parent().handle(false)?.make_folder(self.name()?)
    }

    /// The names in a folder, sorted; none if it is not there. Names that are no Unicode are none
    /// of stk's and left out.
    ///
    /// # Errors
    ///
    /// That it is a link, or the error of the system.
    pub fn list(&self) -> io::Result<Vec<String>> {
        match self.kind()? {
            None => return Ok(Vec::new()),
            Some(Kind::Folder) => {}
            Some(_) => return Err(ErrorKind::NotADirectory.into()),
        }
        let names = self.handle(false)?.names()?.into_iter().filter_map(|name| name.into_string().ok());
        let mut names: Vec<String> = names.collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Renames it. A file that has the new name is replaced.
    ///
    /// # Errors
    ///
    /// That the new name is a link, or the error of the system.
    pub fn rename(&self, to: &Below) -> io::Result<()> {
        to.kind()?;
        let (from_folder, to_folder) = (self.parent().handle(false)?, to.parent().handle(false)?);
        from_folder.rename(self.name()?, &to_folder, to.name()?)
    }

    /// Gives a regular file a second name.
    ///
    /// # Errors
    ///
    /// That it is a link, or the error of the system.
    pub fn link_to(&self, to: &Below) -> io::Result<()> {
        if !matches!(self.kind()?, Some(Kind::File { .. })) {
            return Err(io::Error::new(ErrorKind::InvalidInput, "is no regular file"));
        }
        let (from_folder, to_folder) = (self.parent().handle(false)?, to.parent().handle(false)?);
        from_folder.link(self.name()?, &to_folder, to.name()?)
    }

    /// Removes a regular file.
    ///
    /// # Errors
    ///
    /// That it is a link or no file, or the error of the system.
    pub fn remove_file(&self) -> io::Result<()> {
        match self.kind()? {
            Some(Kind::Folder) => Err(ErrorKind::IsADirectory.into()),
            _ => self.parent().handle(false)?.remove_file(self.name()?),
        }
    }

    /// Removes a folder that is empty.
    pub fn remove_empty_folder(&self) -> io::Result<()> {
        self.parent().handle(false)?.remove_folder(self.name()?)
    }

    /// Removes a file or a folder with all that is in it. Links in it are removed, not followed.
    ///
    /// # Errors
    ///
    /// That a link is on the way to it, or the error of the system.
    pub fn remove_all(&self) -> io::Result<()> {
        remove_all(&self.parent().handle(false)?, self.name()?, 0)
    }

    /// When it was changed last.
    pub fn modified(&self) -> io::Result<std::time::SystemTime> {
        self.parent().handle(false)?.modified(self.name()?)
    }

    /// Its handle as a folder. `make`: folders that are not there are made.
    fn handle(&self, make: bool) -> io::Result<Folder> {
        let mut folder = self.root.folder.again()?;
        let mut path = self.root.path.clone();
        for part in self.names.components() {
            let Component::Normal(name) = part else {
                return Err(io::Error::new(ErrorKind::InvalidInput, "is no name below the folder"));
            };
            path.push(name);
            if make {
                match folder.make_folder(name) {
                    Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                    _ => {}
                }
            }
            match folder.kind(name)? {
                None => return Err(LinkBelow(path).into()),
                Some(Kind::Folder) => folder = folder.folder(name)?,
                Some(_) => return Err(ErrorKind::NotADirectory.into()),
            }
        }
        Ok(folder)
    }

    fn link(&self) -> io::Error {
        LinkBelow(self.path()).into()
    }
}

impl From<LinkBelow> for io::Error {
    fn from(link: LinkBelow) -> io::Error {
        io::Error::new(ErrorKind::InvalidInput, link)
    }
}

/// Whether an error is that a link is where none is followed.
pub fn is_link(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|held| held.is::<LinkBelow>())
}

/// Folders within each other that are removed at most; stk makes no more than four.
const DEEPEST: usize = 32;

fn remove_all(folder: &Folder, name: &OsStr, depth: usize) -> io::Result<()> {
    if folder.kind(name)? != Some(Kind::Folder) {
        return folder.remove_file(name);
    }
    if depth == DEEPEST {
        return Err(io::Error::other("holds more folders within each other than stk makes"));
    }
    let inner = folder.folder(name)?;
    for name in inner.names()? {
        match remove_all(&inner, &name, depth + 1) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    drop(inner);
    folder.remove_folder(name)
}

#[cfg(test)]
mod tests;
