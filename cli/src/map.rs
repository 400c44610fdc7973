//! The one place that maps a file into memory.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read};
use std::ops::Deref;
use std::path::Path;

/// The bytes of a file, mapped where the system can map it, else read into memory (pipes, empty files).
///
/// The file must not be shortened by others while it is mapped: touching a page behind the new end ends the
/// process (SIGBUS, EXCEPTION_IN_PAGE_ERROR). Every file that `stk` itself writes and maps is therefore put
/// in place by a rename and never changed afterwards.
#[derive(Debug)]
pub struct MappedFile {
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Mapped(memmap2::Mmap),
    Read(Vec<u8>),
}

impl MappedFile {
    /// Maps `path` read-only.
    ///
    /// # Errors
    ///
    /// Whatever the system says when the file is opened, mapped or read.
    pub fn open(path: &Path) -> io::Result<MappedFile> {
        MappedFile::from_file(File::open(path)?)
    }

    /// Maps an open file read-only, from its first byte.
    ///
    /// # Errors
    ///
    /// Whatever the system says when the file is mapped or read.
    pub fn from_file(mut file: File) -> io::Result<MappedFile> {
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "is a folder, not a file"));
        }
        if metadata.is_file() && metadata.len() != 0 {
            // SAFETY: the mapping is read-only and private to this value, which hands out `&[u8]` only. That
            // nobody shortens the file meanwhile is the caller's duty, as the type's documentation says;
            // concurrent writes can change the bytes seen, and every parser of them checks each read.
            let map = unsafe { memmap2::Mmap::map(&file)? };
            return Ok(MappedFile { bytes: Bytes::Mapped(map) });
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(MappedFile { bytes: Bytes::Read(bytes) })
    }

    /// Says that a part of the file is not needed in memory for now: what was read of a large file then does not count
    /// as this process's memory. It can be read again at any time. Where the system knows no such call (Windows), it
    /// trims mapped pages by itself when memory is short.
    pub fn release(&self, range: std::ops::Range<usize>) {
        #[cfg(unix)]
        if let Bytes::Mapped(map) = &self.bytes {
            let end = range.end.min(map.len());
            let start = range.start.min(end);
            // SAFETY: for a read-only mapping of a file MADV_DONTNEED only drops pages, which the next access reads
            // from the file again. A failure changes nothing.
            let _ =
                unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start) };
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}

/// Bytes that are at hand already.
impl From<Vec<u8>> for MappedFile {
    fn from(bytes: Vec<u8>) -> MappedFile {
        MappedFile { bytes: Bytes::Read(bytes) }
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(map) => map,
            Bytes::Read(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_reads_as_no_bytes() {
        let path = std::env::temp_dir().join(format!("stk-map-empty-{}", std::process::id()));
        std::fs::write(&path, b"").unwrap();
        assert!(MappedFile::open(&path).unwrap().is_empty());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_folder_is_refused() {
        assert!(MappedFile::open(&std::env::temp_dir()).is_err());
    }
}
