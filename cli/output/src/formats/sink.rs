//! Writes the bytes of a single-file output.

use super::compress::{Compression, Encoder};
use super::{OutputError, Summary};
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use stk_base::files::{Below, Kind, MayReplace, check_output, open_device};
use stk_base::interrupt::{self, TemporaryFile};
use stk_base::stdout;

/// Bytes collected before they are written.
const BUFFER: usize = 256 << 10;

/// A file that is being written, or standard output.
///
/// A file is written beside its destination under a temporary name and renamed when complete, so
/// nobody ever reads an incomplete output. A sink that is dropped unfinished leaves no file.
pub struct Sink {
    target: Target,
    /// The next bytes to write. Writers append here and call [`Sink::settle`] from time to time.
    pub buffer: Vec<u8>,
    written: u64,
}

enum Target {
    /// A file with its place, and its path for messages.
    Renamed(Encoder<TemporaryFile>, Below, PathBuf),
    /// A device, pipe or similar, which must not be replaced.
    InPlace(Encoder<File>, PathBuf),
    Stdout(Encoder<io::Stdout>),
    /// Nothing more is written.
    Done,
}

impl Sink {
    /// A file that is compressed as its name says.
    pub fn file(path: &Path) -> Result<Sink, OutputError> {
        Sink::file_as(path, Compression::of(path))
    }

    /// A file that the command line names, compressed in this way, whatever its name. For a
    /// symbolic link, the file that it leads to is replaced, not the link.
    pub fn file_as(path: &Path, compression: Compression) -> Result<Sink, OutputError> {
        check_output(path, MayReplace::NoTrace)?;
        let target = match std::fs::metadata(path) {
            Ok(found) if found.is_dir() => return Err(OutputError::IsFolder(path.to_owned())),
            Ok(found) if !found.is_file() => {
                let file = open_device(path).and_then(|file| Encoder::new(file, compression));
                Target::InPlace(file.map_err(OutputError::at(path, "cannot be written"))?, path.to_owned())
            }
            _ => {
                let goal = named(path)?;
                return Sink::beside(goal, path, compression);
            }
        };
        Ok(Sink { target, buffer: Vec::with_capacity(BUFFER + BUFFER / 4), written: 0 })
    }

    /// A file in a folder of outputs, compressed in this way. A link of its name is an error.
    pub fn below(goal: Below, compression: Compression) -> Result<Sink, OutputError> {
        let path = goal.path();
        check_output(&path, MayReplace::NoTrace)?;
        match goal.kind().map_err(OutputError::at(&path, "cannot be made"))? {
            Some(Kind::Folder) => Err(OutputError::IsFolder(path)),
            _ => Sink::beside(goal, &path, compression),
        }
    }

    fn beside(goal: Below, path: &Path, compression: Compression) -> Result<Sink, OutputError> {
        let file = temporary(&goal.parent()).and_then(|file| Encoder::new(file, compression));
        let file = file.map_err(OutputError::at(path, "cannot be made"))?;
        let target = Target::Renamed(file, goal, path.to_owned());
        Ok(Sink { target, buffer: Vec::with_capacity(BUFFER + BUFFER / 4), written: 0 })
    }

    pub fn stdout(compression: Compression) -> Result<Sink, OutputError> {
        let target = Target::Stdout(Encoder::new(io::stdout(), compression).map_err(OutputError::Stdout)?);
        Ok(Sink { target, buffer: Vec::with_capacity(BUFFER + BUFFER / 4), written: 0 })
    }

    pub fn put(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Bytes so far, before they are compressed, those in the buffer included.
    pub(crate) fn len(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Writes the buffer if it is full.
    pub fn settle(&mut self) -> Result<(), OutputError> {
        if self.buffer.len() >= BUFFER { self.write_buffer() } else { Ok(()) }
    }

    /// Writes the rest and gives the file its name.
    pub fn finish(&mut self) -> Result<Summary, OutputError> {
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
            Target::Renamed(file, goal, path) => {
                let (file, bytes) = file.finish().map_err(OutputError::at(&path, "cannot be written"))?;
                let placed = file.persist(&goal, MayReplace::NoTrace);
                placed.map_err(OutputError::at(&path, "cannot be replaced"))?;
                vec![(path, bytes)]
            }
        };
        Ok(Summary { files, ..Summary::default() })
    }

    /// Appends bytes. Many are written at once, without being copied.
    pub fn put_many(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
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
            Target::Renamed(file, _, path) => {
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

/// The place of a file that the command line names.
pub fn named(path: &Path) -> Result<Below, OutputError> {
    Below::named_file(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => {
            let folder = path.parent().unwrap_or(Path::new("")).to_owned();
            OutputError::NoFolder { path: path.to_owned(), folder }
        }
        _ => OutputError::at(path, "cannot be made")(error),
    })
}

/// A temporary file for an output in a folder.
pub fn temporary(folder: &Below) -> io::Result<TemporaryFile> {
    interrupt::file(folder, &interrupt::owned(TEMPORARY.0), TEMPORARY.1)
}

/// How the names of temporary files of outputs begin and end.
pub(super) const TEMPORARY: (&str, &str) = (".stk-", ".partial");
