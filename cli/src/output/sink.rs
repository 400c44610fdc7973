//! Writes the bytes of a single-file output.

use super::compress::{Compression, Encoder};
use super::{OutputError, Summary};
use crate::interrupt::{self, TemporaryFile};
use crate::stdout;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Bytes collected before they are written.
const BUFFER: usize = 256 << 10;

/// A file that is being written, or standard output.
///
/// A file is written beside its destination under a temporary name and renamed when complete, so
/// nobody ever reads an incomplete output. A sink that is dropped unfinished leaves no file.
pub(crate) struct Sink {
    target: Target,
    /// The next bytes to write. Writers append here and call [`Sink::settle`] from time to time.
    pub buffer: Vec<u8>,
    written: u64,
}

enum Target {
    Renamed(Encoder<TemporaryFile>, PathBuf),
    /// A device, pipe or similar, which must not be replaced.
    InPlace(Encoder<File>, PathBuf),
    Stdout(Encoder<io::Stdout>),
    /// Nothing more is written.
    Done,
}

impl Sink {
    /// A file that is compressed as its name says.
    pub(crate) fn file(path: &Path) -> Result<Sink, OutputError> {
        Sink::file_as(path, Compression::of(path))
    }

    /// A file that is compressed in this way, whatever its name.
    pub(crate) fn file_as(path: &Path, compression: Compression) -> Result<Sink, OutputError> {
        let target = match std::fs::metadata(path) {
            Ok(found) if found.is_dir() => return Err(OutputError::IsFolder(path.to_owned())),
            Ok(found) if !found.is_file() => {
                let file = File::options().write(true).open(path);
                let file = file.and_then(|file| Encoder::new(file, compression));
                Target::InPlace(file.map_err(OutputError::at(path, "cannot be written"))?, path.to_owned())
            }
            found => {
                // For a symbolic link, the file that it leads to is replaced, not the link.
                let goal = match found {
                    Ok(_) => path.canonicalize().map_err(OutputError::at(path, "cannot be resolved"))?,
                    Err(_) => path.to_owned(),
                };
                let folder = match goal.parent() {
                    Some(parent) if !parent.as_os_str().is_empty() => parent,
                    _ => Path::new("."),
                };
                if !folder.is_dir() {
                    return Err(OutputError::NoFolder { path: path.to_owned(), folder: folder.to_owned() });
                }
                let file = temporary(folder).and_then(|file| Encoder::new(file, compression));
                Target::Renamed(file.map_err(OutputError::at(path, "cannot be made"))?, goal)
            }
        };
        Ok(Sink { target, buffer: Vec::with_capacity(BUFFER + BUFFER / 4), written: 0 })
    }

    pub(crate) fn stdout(compression: Compression) -> Result<Sink, OutputError> {
        let target = Target::Stdout(Encoder::new(io::stdout(), compression).map_err(OutputError::Stdout)?);
        Ok(Sink { target, buffer: Vec::with_capacity(BUFFER + BUFFER / 4), written: 0 })
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Bytes so far, before they are compressed, those in the buffer included.
    pub(crate) fn len(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Writes the buffer if it is full.
    pub(crate) fn settle(&mut self) -> Result<(), OutputError> {
        if self.buffer.len() >= BUFFER { self.write_buffer() } else { Ok(()) }
    }

    /// Writes the rest and gives the file its name.
    pub(crate) fn finish(&mut self) -> Result<Summary, OutputError> {
        self.write_buffer()?;
        let files = match std::mem::replace(&mut self.target, Target::Done) {
            Target::Done => Vec::new(),
            Target::Stdout(out) => {
                stdout::check().and_then(|()| out.finish()).map_err(OutputError::Stdout)?;
                Vec::new()
            }
            Target::InPlace(file, path) => {
                let (_, bytes) = file.finish().map_err(OutputError::at(&path, "cannot be written"))?;
                vec![(path, bytes)]
            }
            Target::Renamed(file, path) => {
                let (file, bytes) = file.finish().map_err(OutputError::at(&path, "cannot be written"))?;
                file.persist(&path).map_err(OutputError::at(&path, "cannot be replaced"))?;
                vec![(path, bytes)]
            }
        };
        Ok(Summary { files, warnings: Vec::new() })
    }

    /// Appends bytes. Many are written at once, without being copied.
    pub(crate) fn put_many(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        if self.buffer.len() + bytes.len() < BUFFER {
            self.put(bytes);
            return Ok(());
        }
        self.write_buffer()?;
        self.write_bytes(bytes)
    }

    fn write_buffer(&mut self) -> Result<(), OutputError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let written = self.write_bytes(&buffer);
        buffer.clear();
        self.buffer = buffer;
        written
    }

    fn write_bytes(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        match &mut self.target {
            Target::Renamed(file, path) => {
                file.write_all(bytes).map_err(OutputError::at(path, "cannot be written"))?;
            }
            Target::InPlace(file, path) => {
                file.write_all(bytes).map_err(OutputError::at(path, "cannot be written"))?;
            }
            Target::Stdout(out) => {
                stdout::check().and_then(|()| out.write_all(bytes)).map_err(OutputError::Stdout)?;
            }
            Target::Done => return Err(OutputError::Order("written after the end")),
        }
        self.written += bytes.len() as u64;
        Ok(())
    }
}

/// For libraries that write by themselves. [`OutputError::from_io`] gets the reason back.
impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.put(bytes);
        self.settle().map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.settle().map_err(io::Error::other)
    }
}

/// A temporary file with the permissions of any new file.
pub(super) fn temporary(folder: &Path) -> io::Result<TemporaryFile> {
    let prefix = interrupt::owned(".stk-");
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(".partial");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    interrupt::file(&builder, folder)
}
