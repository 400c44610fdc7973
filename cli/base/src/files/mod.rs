//! Opens files by their names. No other module of `stk` does: `cli/clippy.toml` refuses the calls
//! of std for it elsewhere.
//!
//! ```text
//! id      which file a name or a handle means, whatever its name
//! inputs  the files that this call reads
//! gate    which files no output replaces
//! below   what is below a folder of outputs; no link there is followed
//! stamp   whether a file was written since it was read
//! ```
#![expect(clippy::disallowed_methods, reason = "this is the module that opens files")]

mod below;
mod gate;
mod id;
mod inputs;
mod stamp;

pub use below::{Below, Kind, is_link};
pub use gate::{MayReplace, Refusal, check as check_output, is_refusal, is_trace};
pub use inputs::{note as note_input, note_folder as note_input_folder};
pub use stamp::{FileStamp, settled_stamp, stamp};

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;

/// Whether two paths lead to one file.
pub fn is_same_file(a: &Path, b: &Path) -> bool {
    matches!((id::FileId::of_path(a), id::FileId::of_path(b)), (Ok(a), Ok(b)) if a == b)
}

/// Whether a path leads to this open file. While it is open, its number is no other's: the time of
/// creation does not matter, which Wine derives from the last write.
pub fn is_file_at(file: &File, path: &Path) -> bool {
    let (open, found) = (id::FileId::of_file(file), id::FileId::of_path(path));
    matches!((open, found), (Ok(open), Ok(found)) if open.number_on_volume() == found.number_on_volume())
}

/// Opens an input that the command line names, which may be a pipe or a device.
pub fn open_input(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    inputs::note_file(&file);
    Ok(file)
}

/// Opens an input whose path came from a trace, a store or a folder's contents, so it may be
/// anything: only if it is a regular file, and without waiting.
///
/// # Errors
///
/// [`io::ErrorKind::InvalidInput`] if it is no regular file; else the system's error.
pub fn open_plain(path: &Path) -> io::Result<File> {
    let file = look_at(path)?;
    inputs::note_file(&file);
    Ok(file)
}

/// [`open_plain`] for a file that is no input: what an output would replace, or a file of stk's
/// own.
pub fn look_at(path: &Path) -> io::Result<File> {
    // Checked before opening, because opening alone makes some devices act, and once more on the
    // opened file.
    check_plain(&std::fs::metadata(path)?)?;
    let mut options = File::options();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(path)?;
    check_plain(&file.metadata()?)?;
    Ok(file)
}

/// Opens a device or a pipe that the command line names to be written.
pub fn open_device(path: &Path) -> io::Result<File> {
    File::options().write(true).open(path)
}

/// The bytes of a regular input of at most `most` bytes.
///
/// # Errors
///
/// As of [`open_plain`]; [`io::ErrorKind::FileTooLarge`] if it is larger.
pub fn read_input(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    read_within(open_plain(path)?, most)
}

/// The bytes of a file that is open, at most `most`.
///
/// # Errors
///
/// [`io::ErrorKind::FileTooLarge`] if there are more; else the system's error.
pub fn read_within(file: File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if file.metadata()?.len() <= most {
        (&file).take(most + 1).read_to_end(&mut bytes)?;
    }
    if file.metadata()?.len().max(bytes.len() as u64) > most {
        let text = format!("has more than the {most} bytes that such a file may have");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    Ok(bytes)
}

fn check_plain(metadata: &Metadata) -> io::Result<()> {
    let why = match metadata.is_file() {
        true => return Ok(()),
        false if metadata.is_dir() => "is a folder, not a file",
        false => "is no regular file: devices and pipes are not opened",
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}
