//! Which file a name means: the same for links, hard links and other spellings of one file.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::SystemTime;

/// A file, whatever its name. The system gives the number of a file that is gone to a new one: the
/// time of creation, where the system has it, distinguishes them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct FileId {
    volume: u64,
    number: u128,
    created: Option<SystemTime>,
}

impl FileId {
    /// Unique among the files that exist at one time.
    pub(super) fn number_on_volume(&self) -> (u64, u128) {
        (self.volume, self.number)
    }

    /// The file that a path leads to, through links.
    #[cfg(unix)]
    pub(super) fn of_path(path: &Path) -> io::Result<FileId> {
        Ok(FileId::of(&std::fs::metadata(path)?))
    }

    /// An open file.
    #[cfg(unix)]
    pub(super) fn of_file(file: &File) -> io::Result<FileId> {
        Ok(FileId::of(&file.metadata()?))
    }

    #[cfg(unix)]
    fn of(found: &std::fs::Metadata) -> FileId {
        use std::os::unix::fs::MetadataExt;
        FileId { volume: found.dev(), number: found.ino().into(), created: found.created().ok() }
    }

    /// The file that a path leads to, through links.
    #[cfg(windows)]
    pub(super) fn of_path(path: &Path) -> io::Result<FileId> {
        use std::os::windows::fs::OpenOptionsExt;
        use windows_sys::Win32::Storage::FileSystem::{FILE_FLAG_BACKUP_SEMANTICS, FILE_READ_ATTRIBUTES};
        // Folders can be opened with this flag only. These rights conflict with nobody's.
        let mut options = File::options();
        options.access_mode(FILE_READ_ATTRIBUTES).custom_flags(FILE_FLAG_BACKUP_SEMANTICS);
        FileId::of_file(&options.open(path)?)
    }

    /// An open file.
    #[cfg(windows)]
    #[expect(unsafe_code, reason = "std does not give a file's number")]
    pub(super) fn of_file(file: &File) -> io::Result<FileId> {
        use std::mem::MaybeUninit;
        use std::os::windows::io::AsRawHandle;
        use windows_sys::Win32::Storage::FileSystem::{
            BY_HANDLE_FILE_INFORMATION, FILE_ID_INFO, FileIdInfo, GetFileInformationByHandle,
            GetFileInformationByHandleEx,
        };
        let created = file.metadata()?.created().ok();
        let mut info = MaybeUninit::<FILE_ID_INFO>::uninit();
        let size = size_of::<FILE_ID_INFO>() as u32;
        // SAFETY: the handle is open, and the system writes at most `size` bytes to `info`.
        let known = unsafe {
            GetFileInformationByHandleEx(file.as_raw_handle(), FileIdInfo, info.as_mut_ptr().cast(), size)
        };
        if known != 0 {
            // SAFETY: the call has filled it.
            let info = unsafe { info.assume_init() };
            let number = u128::from_le_bytes(info.FileId.Identifier);
            return Ok(FileId { volume: info.VolumeSerialNumber, number, created });
        }
        // File systems without numbers of 128 bits.
        let mut info = MaybeUninit::<BY_HANDLE_FILE_INFORMATION>::uninit();
        // SAFETY: the handle is open, and the system writes one such structure.
        if unsafe { GetFileInformationByHandle(file.as_raw_handle(), info.as_mut_ptr()) } == 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has filled it.
        let info = unsafe { info.assume_init() };
        let number = u128::from(info.nFileIndexHigh) << 32 | u128::from(info.nFileIndexLow);
        Ok(FileId { volume: info.dwVolumeSerialNumber.into(), number, created })
    }
}
