//! The cache folder: an index of every symbol file that was used, and the files from servers.
//!
//! ```text
//! <cache>/index/<format version>/<file name>/<identity>-<fingerprint>.stksym
//! <cache>/store/<file name>/<identity>/<file name>                              (a symbol store)
//! <cache>/missing/<hash of the address>                                         (negative answers)
//! ```
//!
//! A file is written under a temporary name and renamed, so other processes never see a part of it,
//! and several processes may do the same work at once. Damaged files are deleted and made again.
#![expect(
    clippy::disallowed_methods,
    reason = "nobody else writes to the cache, and std follows no link to remove"
)]

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::index::{FORMAT_VERSION, SymbolIndex};
use stk_base::files::{Below, MayReplace};
use stk_base::interrupt;
use stk_base::map::MappedFile;

/// Suffix of index files.
const SUFFIX: &str = ".stksym";

/// A cache folder. It is created when something is first written to it.
#[derive(Clone, Debug)]
pub struct SymbolCache {
    root: PathBuf,
}

/// The key of an index in the cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheKey<'a> {
    /// Name of the symbol file, without folders; see [`super::safe_file_name`].
    pub name: &'a str,
    /// Its identity as symbol servers write it.
    pub id: &'a str,
    /// Distinguishes files of one identity (a PDB and its stripped copy).
    pub fingerprint: u64,
}

/// The contents of a cache, counted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CacheStats {
    /// Indexes of this version.
    pub indexes: u64,
    pub index_bytes: u64,
    /// Indexes of other versions, and temporary files that a killed process left.
    pub stale: u64,
    pub stale_bytes: u64,
    /// Files from servers.
    pub files: u64,
    pub file_bytes: u64,
    /// Remembered negative answers.
    pub missing: u64,
}

impl SymbolCache {
    /// A cache in this folder.
    pub fn new(root: PathBuf) -> SymbolCache {
        SymbolCache { root }
    }

    /// The user's cache folder: `%LOCALAPPDATA%\stk\symbols` on Windows, else
    /// `$XDG_CACHE_HOME/stk/symbols` or `~/.cache/stk/symbols`. `None` if the environment has none
    /// of these variables.
    pub fn default_folder() -> Option<PathBuf> {
        let folder = |name: &str| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
                .filter(|p| p.is_absolute())
        };
        let base = if cfg!(windows) {
            folder("LOCALAPPDATA")
        } else {
            folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")))
        };
        base.map(|base| base.join("stk").join("symbols"))
    }

    /// The cache folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The symbol store of the files from servers.
    pub fn store(&self) -> PathBuf {
        self.root.join("store")
    }

    /// The folder of the servers' negative answers.
    pub(crate) fn missing(&self) -> PathBuf {
        self.root.join("missing")
    }

    /// The index of a symbol file, if the cache has an intact one.
    pub fn get(&self, key: &CacheKey<'_>) -> Option<SymbolIndex> {
        open(&self.index_path(key))
    }

    /// Any index of this identity, for when the symbol file is gone.
    pub fn get_any(&self, name: &str, id: &str) -> Option<(PathBuf, SymbolIndex)> {
        let prefix = format!("{id}-");
        let mut paths: Vec<PathBuf> = std::fs::read_dir(self.index_folder(name))
            .ok()?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| {
                path.file_name()
                    .and_then(|name| name.to_str())
                    .is_some_and(|name| name.starts_with(&prefix) && name.ends_with(SUFFIX))
            })
            .collect();
        // If a stripped and a full file share an identity, the larger index has more content.
        paths.sort_by_key(|path| (std::cmp::Reverse(path.metadata().map_or(0, |m| m.len())), path.clone()));
        paths.into_iter().find_map(|path| open(&path).map(|index| (path, index)))
    }

    /// Keeps an index.
    ///
    /// # Errors
    ///
    /// When the folder or file cannot be written.
    pub fn put(&self, key: &CacheKey<'_>, index: &SymbolIndex) -> io::Result<()> {
        write_atomically(&self.index_path(key), |file| file.write_all(index.as_bytes()))
    }

    /// Deletes an index that turned out to be damaged.
    pub fn remove(&self, key: &CacheKey<'_>) {
        let _ = std::fs::remove_file(self.index_path(key));
    }

    /// Counts the contents of the cache.
    pub fn stats(&self) -> CacheStats {
        let mut stats = CacheStats::default();
        let current = self.root.join("index").join(FORMAT_VERSION.to_string());
        for (path, len) in files_below(&self.root.join("index")) {
            let intact = path.starts_with(&current) && path.extension().is_some_and(|e| *e == SUFFIX[1..]);
            let (count, bytes) = if intact {
                (&mut stats.indexes, &mut stats.index_bytes)
            } else {
                (&mut stats.stale, &mut stats.stale_bytes)
            };
            *count += 1;
            *bytes += len;
        }
        for (_, len) in files_below(&self.store()) {
            stats.files += 1;
            stats.file_bytes += len;
        }
        stats.missing = files_below(&self.missing()).len() as u64;
        stats
    }

    /// Deletes all that `stk` has put into the folder. Other files stay.
    ///
    /// # Errors
    ///
    /// When something cannot be deleted.
    pub fn clear(&self) -> io::Result<()> {
        for folder in [self.root.join("index"), self.store(), self.missing()] {
            match std::fs::remove_dir_all(&folder) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        // This deletes only an empty folder.
        let _ = std::fs::remove_dir(&self.root);
        Ok(())
    }

    fn index_folder(&self, name: &str) -> PathBuf {
        self.root.join("index").join(FORMAT_VERSION.to_string()).join(name)
    }

    fn index_path(&self, key: &CacheKey<'_>) -> PathBuf {
        self.index_folder(key.name).join(format!("{}-{:016x}{SUFFIX}", key.id, key.fingerprint))
    }
}

/// Writes a file so that it appears whole or not at all.
pub(crate) fn write_atomically(
    path: &Path,
    write: impl FnOnce(&mut std::fs::File) -> io::Result<()>,
) -> io::Result<()> {
    let folder = Below::make(path.parent().unwrap_or(Path::new(".")))?;
    let goal = folder.join(path.file_name().ok_or(io::ErrorKind::InvalidInput)?);
    let mut file = interrupt::file(&folder, ".stk-", ".tmp")?;
    write(file.as_file_mut())?;
    // Without this, a power cut after the rename could leave a name without contents.
    file.as_file().sync_data()?;
    match file.persist(&goal, MayReplace::Stored) {
        Ok(_) => Ok(()),
        // Another process wrote the file first and has it open (Windows).
        Err(_) if path.is_file() => Ok(()),
        Err(error) => Err(error),
    }
}

fn open(path: &Path) -> Option<SymbolIndex> {
    let file = MappedFile::look_at(path).ok()?;
    match SymbolIndex::open(file) {
        Ok(index) => Some(index),
        Err(_) => {
            let _ = std::fs::remove_file(path);
            None
        }
    }
}

/// All files below a folder and their sizes.
fn files_below(folder: &Path) -> Vec<(PathBuf, u64)> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(kind) if kind.is_file() => {
                    files.push((entry.path(), entry.metadata().map_or(0, |m| m.len())))
                }
                _ => {}
            }
        }
    }
    files
}
