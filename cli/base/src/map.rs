//! Maps files into memory. No other module does.
#![allow(unsafe_code)]

#[cfg(unix)]
use crate::faults::MappingWatch;
use crate::files::{look_at, open_input, open_plain};
use std::fs::File;
use std::io::{self, Read};
use std::ops::Deref;
use std::path::Path;

/// The bytes of a file, mapped if the system can map it, else read into memory (pipes, empty
/// files).
///
/// Other processes may shorten a file while it is mapped. On Unix, the lost part then reads as
/// zeros (`faults`). Windows lets nobody shorten a mapped file of its own disks, and a file on
/// another machine is first copied to a temporary one. Files that `stk` itself writes and maps get
/// their name by a rename and never change afterwards.
#[derive(Debug)]
pub struct MappedFile {
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Mapped(Mapping),
    Read(Vec<u8>),
}

/// Fields are dropped in this order.
#[derive(Debug)]
struct Mapping {
    #[cfg(unix)]
    watch: MappingWatch,
    map: memmap2::Mmap,
}

/// Limit for a file that is opened because of its name, in bytes. The largest PDB that a linker
/// writes with pages of 4 KiB has 4 GiB.
const MAX_PLAIN: u64 = 16 << 30;

/// Largest pipe or device that is read into memory, in bytes.
const MAX_READ: u64 = 256 << 20;

impl MappedFile {
    /// Maps a file whose path came from a trace, a store or a folder's contents, so it may be
    /// anything. It is opened only if it is a regular file, without waiting, and mapped only up to
    /// 16 GiB.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidInput`] if it is a folder, a device, a pipe or too large; else the
    /// system's error.
    pub fn open_plain(path: &Path) -> io::Result<MappedFile> {
        MappedFile::plain(open_plain(path)?)
    }

    /// [`open_plain`](MappedFile::open_plain) for a file that is no input: one of stk's own, or
    /// what an output would replace.
    pub fn look_at(path: &Path) -> io::Result<MappedFile> {
        MappedFile::plain(look_at(path)?)
    }

    fn plain(file: File) -> io::Result<MappedFile> {
        match file.metadata()?.len() {
            0 => Ok(MappedFile::from(Vec::new())),
            len if len > MAX_PLAIN => Err(refused("is larger than 16 GiB")),
            _ => MappedFile::map(file),
        }
    }

    /// Maps `path` read-only.
    ///
    /// # Errors
    ///
    /// As of [`MappedFile::from_file`].
    pub fn open(path: &Path) -> io::Result<MappedFile> {
        MappedFile::from_file(open_input(path)?)
    }

    /// Maps an open file read-only, from its first byte. A pipe or a device is read instead, up to
    /// 256 MiB.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidInput`] if it is a folder, or a pipe or device with more to read;
    /// else what the system says when the file is mapped or read.
    pub fn from_file(file: File) -> io::Result<MappedFile> {
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Err(refused("is a folder, not a file"));
        }
        if metadata.is_file() && metadata.len() != 0 {
            return MappedFile::map(file);
        }
        let mut bytes = Vec::new();
        file.take(MAX_READ + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_READ {
            let why = "is a pipe or a device with more than 256 MiB: write it to a file and name that";
            return Err(refused(why));
        }
        Ok(MappedFile { bytes: Bytes::Read(bytes) })
    }

    /// Maps a regular file that is not empty.
    fn map(file: File) -> io::Result<MappedFile> {
        #[cfg(windows)]
        let file = if remote::is_remote(&file) { remote::copy(file)? } else { file };
        // SAFETY: the mapping is read-only and private to this value, which gives out `&[u8]` only.
        // Concurrent writes can change the bytes, and every parser of them checks each read. Lost
        // pages are replaced (Unix) or cannot occur (Windows).
        let map = unsafe { memmap2::Mmap::map(&file)? };
        let mapping = Mapping {
            #[cfg(unix)]
            watch: MappingWatch::new(&map),
            map,
        };
        Ok(MappedFile { bytes: Bytes::Mapped(mapping) })
    }

    /// Whether the file is mapped. Otherwise it was read into memory, as pipes are.
    pub fn is_mapped(&self) -> bool {
        matches!(self.bytes, Bytes::Mapped(_))
    }

    /// The first byte that was missing or unreadable when it was needed. From there on, the file
    /// reads as zeros.
    pub fn lost(&self) -> Option<usize> {
        match &self.bytes {
            #[cfg(unix)]
            Bytes::Mapped(mapping) => mapping.watch.lost(),
            _ => None,
        }
    }

    /// Advises the system that a part of the file is not needed in memory for now, so that the read
    /// part of a large file does not count as this process's memory. It can be read again at any
    /// time. Windows has no such call, but trims mapped pages by itself when memory is short.
    pub fn release(&self, range: std::ops::Range<usize>) {
        #[cfg(unix)]
        if let Bytes::Mapped(Mapping { map, .. }) = &self.bytes {
            let end = range.end.min(map.len());
            let start = range.start.min(end);
            // SAFETY: for a read-only mapping of a file, MADV_DONTNEED only drops pages, which the
            // next access reads from the file again. A failure has no effect.
            let _ =
                unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start) };
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}

fn refused(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// Files on other machines (Windows). Their pages can get lost, and the system then ends the
/// process.
#[cfg(windows)]
mod remote {
    use std::fs::File;
    use std::io;
    use std::os::windows::io::AsRawHandle;
    use windows_sys::Win32::Storage::FileSystem::{
        FILE_REMOTE_PROTOCOL_INFO, FileRemoteProtocolInfo, GetFileInformationByHandleEx,
    };

    /// Whether a file lies on another machine.
    pub(super) fn is_remote(file: &File) -> bool {
        let mut info = std::mem::MaybeUninit::<FILE_REMOTE_PROTOCOL_INFO>::uninit();
        let size = size_of::<FILE_REMOTE_PROTOCOL_INFO>() as u32;
        // SAFETY: the handle is open during the call, and the system writes at most `size` bytes to
        // `info`.
        unsafe {
            GetFileInformationByHandleEx(
                file.as_raw_handle(),
                FileRemoteProtocolInfo,
                info.as_mut_ptr().cast(),
                size,
            ) != 0
        }
    }

    /// A copy in a temporary file, which is deleted when it is closed.
    pub(super) fn copy(mut file: File) -> io::Result<File> {
        let mut copy = tempfile::tempfile()?;
        io::copy(&mut file, &mut copy)?;
        Ok(copy)
    }
}

/// Bytes that are already in memory.
impl From<Vec<u8>> for MappedFile {
    fn from(bytes: Vec<u8>) -> MappedFile {
        MappedFile { bytes: Bytes::Read(bytes) }
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(mapping) => &mapping.map,
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
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(MappedFile::open(file.path()).unwrap().is_empty());
        assert!(MappedFile::open_plain(file.path()).unwrap().is_empty());
    }

    #[test]
    fn a_folder_is_refused() {
        assert!(MappedFile::open(&std::env::temp_dir()).is_err());
        assert!(MappedFile::open_plain(&std::env::temp_dir()).is_err());
    }

    #[test]
    fn a_file_over_the_limit_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        // Sparse on every file system that supports it. On others there is nothing to test.
        if file.as_file().set_len(MAX_PLAIN + 1).is_ok() {
            let error = MappedFile::open_plain(file.path()).unwrap_err();
            assert!(error.to_string().contains("16 GiB"), "{error}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_device_without_end_is_read_up_to_the_limit() {
        let error = MappedFile::open(Path::new("/dev/zero")).unwrap_err();
        assert!(error.to_string().contains("256 MiB"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn devices_and_pipes_are_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
        // SAFETY: the name ends with NUL and lives until the call returns.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        for path in [pipe.as_path(), link.as_path(), Path::new("/dev/zero")] {
            let error = MappedFile::open_plain(path).unwrap_err();
            assert!(error.to_string().contains("no regular file"), "{error}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_mapped_file_reads_as_zeros_from_where_it_was_shortened() {
        const PAGES: usize = 64;
        let page = usize::try_from(page_size()).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![0xab; PAGES * page]).unwrap();
        let other = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(other.path(), vec![0xcd; PAGES * page]).unwrap();
        let (mapped, other) =
            (MappedFile::open(file.path()).unwrap(), MappedFile::open(other.path()).unwrap());
        file.as_file().set_len(3 * page as u64).unwrap();
        assert_eq!(mapped.lost(), None);
        assert_eq!(mapped[40 * page + 7], 0);
        assert_eq!(mapped.lost(), Some(40 * page));
        assert!(mapped[..3 * page].iter().all(|&byte| byte == 0xab));
        assert!(mapped[3 * page..].iter().all(|&byte| byte == 0));
        assert_eq!((mapped.lost(), mapped.len()), (Some(3 * page), PAGES * page));
        mapped.release(0..mapped.len());
        assert_eq!((mapped[0], mapped[5 * page]), (0xab, 0));
        assert!(other.iter().all(|&byte| byte == 0xcd));
        assert_eq!(other.lost(), None);
    }

    #[cfg(unix)]
    fn page_size() -> libc::c_long {
        // SAFETY: sysconf only reads.
        unsafe { libc::sysconf(libc::_SC_PAGESIZE) }
    }

    #[cfg(unix)]
    #[test]
    fn many_mappings_are_watched_and_each_only_while_it_is_mapped() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![1; 1 << 16]).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let maps: Vec<_> = (0..10).map(|_| MappedFile::open(file.path()).unwrap()).collect();
                        assert!(maps.iter().all(|map| map.lost().is_none() && map[60_000] == 1));
                    }
                });
            }
        });
    }
}
