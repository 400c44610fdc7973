//! Checks whether a path from an untrusted source leads to a file of this machine, before anything
//! opens it.

use crate::trust;
use crate::windows::system;
use std::fs::File;
use std::os::windows::fs::MetadataExt as _;
use std::os::windows::io::AsRawHandle as _;
use std::path::{Path, PathBuf};
use windows_sys::Win32::Storage::FileSystem::{
    FILE_ATTRIBUTE_REPARSE_POINT, FILE_NAME_NORMALIZED, GetDriveTypeW, GetFinalPathNameByHandleW,
};

/// Why a path is not opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PathRefusal {
    /// It names a share, a device, a mapped drive or no file at all.
    Place,
    /// A folder on the way, or the file, is a link.
    Link,
}

/// Whether the path is that of an ordinary file on a local disk.
///
/// # Errors
/// Where else the path leads or may lead.
pub(crate) fn check(path: &Path) -> Result<(), PathRefusal> {
    const REMOVABLE: u32 = 2;
    const FIXED: u32 = 3;
    const RAM_DISK: u32 = 6;
    let drive = path.to_str().and_then(trust::plain_drive).ok_or(PathRefusal::Place)?;
    let root = system::wide(format!("{drive}:\\").as_ref());
    // SAFETY: a zero-terminated text.
    if !matches!(unsafe { GetDriveTypeW(root.as_ptr()) }, REMOVABLE | FIXED | RAM_DISK) {
        return Err(PathRefusal::Place);
    }
    Ok(())
}

/// As [`check`], and also that no link lies on the way.
///
/// # Errors
/// Where else the path leads or may lead.
pub(crate) fn check_without_links(path: &Path) -> Result<(), PathRefusal> {
    check(path)?;
    // Start at the root, so that no link is followed before it is checked.
    let mut folders: Vec<&Path> = path.ancestors().collect();
    folders.reverse();
    for part in folders.into_iter().skip(1) {
        let Ok(metadata) = part.symlink_metadata() else { break };
        if metadata.file_attributes() & FILE_ATTRIBUTE_REPARSE_POINT != 0 && metadata.file_type().is_symlink()
        {
            return Err(PathRefusal::Link);
        }
    }
    Ok(())
}

/// The path of an open file without links and drives of this session, `C:\…` or
/// `\\server\share\…`; `None` if it has no such path.
pub(crate) fn real_path(file: &File) -> Option<PathBuf> {
    use std::ffi::OsString;
    use std::os::windows::ffi::OsStringExt as _;
    let mut path = vec![0u16; 32_768];
    // SAFETY: the handle is open; pointer and length are those of the vector.
    let len = unsafe {
        let room = path.len() as u32;
        GetFinalPathNameByHandleW(file.as_raw_handle(), path.as_mut_ptr(), room, FILE_NAME_NORMALIZED)
    } as usize;
    let path = OsString::from_wide(path.get(..len).filter(|path| !path.is_empty())?);
    let text = path.to_str()?;
    if let Some(share) = text.strip_prefix(r"\\?\UNC\") {
        return Some(format!(r"\\{share}").into());
    }
    let local = text.strip_prefix(r"\\?\").unwrap_or(text);
    local.as_bytes().get(1).is_some_and(|&byte| byte == b':').then(|| local.into())
}
