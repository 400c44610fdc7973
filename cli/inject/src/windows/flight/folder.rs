//! The private folder in which the files of a `--flight` ring lie.
//!
//! It is in the user's folder for temporary files; only that user, administrators and the system
//! may open it. The inject that records has the file `lock` in it open. A folder whose `lock`
//! nobody has open is what an inject left that was ended: the next one deletes it.

use crate::failure::Failure;
use crate::rotate;
use crate::windows::output;
use crate::windows::system;
use crate::windows::trust::token::{self, Token};
use std::fs::File;
use std::io;
use std::os::windows::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use stk_schema::sddl;
use windows_sys::Win32::Storage::FileSystem::{FILE_ATTRIBUTE_REPARSE_POINT, FILE_FLAG_OPEN_REPARSE_POINT};

/// The beginning of such a folder's name; the rest is random.
const PREFIX: &str = "stk-flight-";
/// The file that is open while the folder is used.
const LOCK: &str = "lock";
/// From this the names of the ring's files are made.
const NAME: &str = "ring.stk";
/// Most folders that are looked at, and most files that are deleted in one.
const MOST: usize = 10_000;

/// The folder; deleted with its files when dropped.
#[derive(Debug)]
pub(super) struct FlightFolder {
    path: PathBuf,
    lock: Option<File>,
}

impl FlightFolder {
    /// Makes the folder, and deletes those that nobody uses.
    ///
    /// # Errors
    /// A sentence for the user.
    pub(super) fn new() -> Result<FlightFolder, Failure> {
        let home = std::env::temp_dir();
        let home = std::path::absolute(&home).unwrap_or(home);
        sweep(&home);
        let path = home.join(format!("{PREFIX}{}", stk_schema::text::hex(&crate::uuid::random())));
        let fail = |error: io::Error| {
            Failure::failed(format!("{}: no folder for the ring of --flight: {error}", path.display()))
        };
        output::make_private_folder(&path).map_err(fail)?;
        let mut folder = FlightFolder { path: path.clone(), lock: None };
        folder.lock = Some(open_lock(&path, true).map_err(fail)?);
        Ok(folder)
    }

    /// From this the names of the ring's files are made.
    pub(super) fn ring_path(&self) -> PathBuf {
        self.path.join(NAME)
    }
}

impl Drop for FlightFolder {
    fn drop(&mut self) {
        empty(&self.path, self.lock.take());
    }
}

/// Deletes what injects left that were ended.
fn sweep(home: &Path) {
    let user = Token::own().ok().and_then(|token| token.user_sid());
    let Ok(entries) = home.read_dir() else { return };
    for entry in entries.flatten().take(MOST) {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let path = entry.path();
        let is_plain = path
            .symlink_metadata()
            .is_ok_and(|known| known.is_dir() && known.file_attributes() & FILE_ATTRIBUTE_REPARSE_POINT == 0);
        let is_own =
            || token::sddl(&path).is_some_and(|text| sddl::only_trusted_write(&text, user.as_deref()));
        if is_plain
            && is_own()
            && let Ok(lock) = open_lock(&path, false)
        {
            empty(&path, Some(lock));
        }
    }
}

/// Opens the folder's lock, which nobody else has open then.
fn open_lock(folder: &Path, new: bool) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).share_mode(0).custom_flags(FILE_FLAG_OPEN_REPARSE_POINT).create_new(new);
    options.open(folder.join(LOCK))
}

/// Deletes the ring's files and then the folder. If a file stays, the next sweep tries again.
fn empty(folder: &Path, lock: Option<File>) {
    let entries = folder.read_dir().into_iter().flatten().flatten().take(MOST);
    let files = entries.filter(|entry| rotate::number_of(Path::new(NAME), &entry.file_name()).is_some());
    let mut all = true;
    for file in files {
        all &= system::delete(&file.path()).is_ok();
    }
    drop(lock);
    if all {
        let _ = system::delete(&folder.join(LOCK));
        let _ = std::fs::remove_dir(folder);
    }
}
