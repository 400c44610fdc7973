//! Folders of tables that many traces share, as `inject --tables DIR` fills them. The files are
//! named `<hash>.tbl`, after the hash of their bytes.
//!
//! Finds a table by its hash in the folders, and returns its bytes, checked.

use std::fs::File;
use std::io::{self, Read, Seek as _};
use std::path::{Path, PathBuf};
use stk_base::files::open_plain;
use stk_format::blob::content_hash;
use stk_schema::identity::ContentHash;
use stk_schema::limits;
use xxhash_rust::xxh3::Xxh3;

/// Bytes that are hashed at once.
const PIECE: u64 = 1 << 16;

/// The folders to search, in order.
#[derive(Clone, Default, Debug)]
pub struct TableFolders {
    folders: Vec<PathBuf>,
}

/// Why a table in a folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableProblem {
    /// The system cannot open or read it.
    #[error("{}: {cause}", path.display())]
    Io {
        path: PathBuf,
        /// The error of the system.
        cause: io::Error,
    },
    /// Its bytes do not have the hash that its name states.
    #[error("{}: its bytes do not match its name: delete it, or take it from where it was recorded", path.display())]
    Corrupted {
        /// Path of the file.
        path: PathBuf,
    },
}

impl TableFolders {
    pub fn new(folders: Vec<PathBuf>) -> TableFolders {
        TableFolders { folders }
    }

    /// Length of the file that should hold a table. The file is not read.
    pub fn len_of(&self, hash: ContentHash) -> Option<u64> {
        let mut sizes = self.paths(hash).filter_map(|path| Some(std::fs::metadata(path).ok()?.len()));
        sizes.next()
    }

    /// Reads a table from the first folder that has it whole. `None`: no folder has it.
    pub fn read(&self, hash: ContentHash) -> Option<Result<Vec<u8>, TableProblem>> {
        let mut problem = None;
        for path in self.paths(hash) {
            match read(&path, hash) {
                Ok(Some(bytes)) => return Some(Ok(bytes)),
                Ok(None) => problem = problem.or(Some(TableProblem::Corrupted { path })),
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
                Err(cause) => problem = problem.or(Some(TableProblem::Io { path, cause })),
            }
        }
        problem.map(Err)
    }

    fn paths(&self, hash: ContentHash) -> impl Iterator<Item = PathBuf> {
        self.folders.iter().map(move |folder| folder.join(format!("{hash}.tbl")))
    }
}

/// Reads a file, if its bytes have this hash. Before that none of them is kept: it may have any
/// size.
fn read(path: &Path, hash: ContentHash) -> io::Result<Option<Vec<u8>>> {
    let mut file = open_plain(path)?;
    let len = file.metadata()?.len();
    if len > limits::MAX_BLOB || hash_of(&file, len)? != hash {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(len).read_to_end(&mut bytes)?;
    Ok((content_hash(&bytes) == hash).then_some(bytes))
}

/// The hash of a file of so many bytes.
fn hash_of(file: &File, len: u64) -> io::Result<ContentHash> {
    let mut hasher = Xxh3::new();
    let mut bytes = Vec::new();
    let mut rest = file.take(len);
    while rest.by_ref().take(PIECE).read_to_end(&mut bytes)? > 0 {
        hasher.update(&bytes);
        bytes.clear();
    }
    Ok(ContentHash(hasher.digest128().to_le_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, bytes) in files {
            std::fs::write(folder.path().join(name), bytes).expect("writable");
        }
        folder
    }

    fn named(bytes: &[u8]) -> String {
        format!("{}.tbl", content_hash(bytes))
    }

    #[test]
    fn the_first_folder_that_has_a_table_whole_gives_it() {
        let damaged = folder(&[(&named(b"pdata"), b"pdat!")]);
        let whole = folder(&[(&named(b"pdata"), b"pdata")]);
        let folders = TableFolders::new(vec![damaged.path().to_owned(), whole.path().to_owned()]);
        let hash = content_hash(b"pdata");
        assert_eq!(folders.read(hash).expect("found").expect("whole"), b"pdata");
        assert_eq!(folders.len_of(hash), Some(5));
        assert!(folders.read(content_hash(b"xdata")).is_none());
    }

    #[test]
    fn large_table_is_read_whole_and_a_longer_file_is_refused() {
        let large = vec![7; 3 * PIECE as usize + 5];
        let folder = folder(&[(&named(&large), &large), (&named(b"pdata"), b"pdata")]);
        let folders = TableFolders::new(vec![folder.path().to_owned()]);
        assert_eq!(folders.read(content_hash(&large)).expect("found").expect("whole"), large);
        let file = File::options().write(true).open(folder.path().join(named(b"pdata"))).expect("there");
        for len in [limits::MAX_BLOB + 1, 1 << 40] {
            file.set_len(len).expect("a sparse file");
            let problem = folders.read(content_hash(b"pdata")).expect("found").expect_err("longer");
            assert!(matches!(problem, TableProblem::Corrupted { .. }));
        }
    }

    #[test]
    fn a_table_with_other_bytes_is_refused_by_name() {
        let damaged = folder(&[(&named(b"pdata"), b"something else")]);
        let folders = TableFolders::new(vec![damaged.path().to_owned()]);
        let problem = folders.read(content_hash(b"pdata")).expect("found").expect_err("damaged");
        assert!(matches!(problem, TableProblem::Corrupted { .. }));
        assert!(problem.to_string().contains(&named(b"pdata")), "{problem}");
    }
}
