//! Decides what an inject with higher rights trusts: which paths it opens, which code it loads,
//! which links it follows and which files it replaces.
//!
//! The recorded process chooses its modules' names, and its user may write in its files' folders.
//! In a shared folder every user may write.

use stk_schema::sddl;
use stk_schema::windows::is_device_name;
use thiserror::Error;

/// The recorded process's user compared with inject's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IntegrityLevel {
    /// The same user with at least inject's rights. Anything that this user can make inject do, the
    /// user can do directly.
    Peer,
    /// Another user, fewer rights, or not known.
    Below,
}

/// Compares users and integrity levels. Two users at one level are not peers: one must not run code
/// that the other has planted.
///
/// `same_user` is `None` and a level 0 where they cannot be read.
pub(crate) fn rank(same_user: Option<bool>, integrity: u32, own_integrity: u32) -> IntegrityLevel {
    if same_user == Some(true) && integrity != 0 && integrity >= own_integrity {
        IntegrityLevel::Peer
    } else {
        IntegrityLevel::Below
    }
}

/// Facts about an opened library. Each may cost a system call or a signature check.
pub(crate) trait Evidence {
    /// Whether only administrators and the system can write the file.
    fn file_is_the_systems(&mut self) -> bool;
    /// Whether only administrators and the system can write its folder.
    fn folder_is_the_systems(&mut self) -> bool;
    /// Whether only administrators, the system and inject's own user can write the file.
    fn file_is_own(&mut self) -> bool;
    /// Whether the maker of the runtime has signed it as a data access library.
    fn maker_signed(&mut self) -> bool;
}

/// How a library may be loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LoadPolicy {
    /// Whether DLLs that it needs may come from its own folder, besides the system's.
    pub own_folder: bool,
}

/// Whether a data access library may be loaded into inject, and how; `None` if nobody that inject
/// trusts has written or signed it.
///
/// `beside`: it lies where the runtime says that it belongs. `named`: the user of inject has named
/// its folder on the command line.
pub(crate) fn permit(
    rank: IntegrityLevel,
    beside: bool,
    named: bool,
    evidence: &mut impl Evidence,
) -> Option<LoadPolicy> {
    if rank == IntegrityLevel::Peer {
        return Some(LoadPolicy { own_folder: beside });
    }
    if evidence.file_is_the_systems() {
        return Some(LoadPolicy { own_folder: beside && evidence.folder_is_the_systems() });
    }
    let vouched = named && evidence.file_is_own() || evidence.maker_signed();
    vouched.then_some(LoadPolicy { own_folder: false })
}

/// The letter (upper case) of the drive that an absolute path begins with, if the path names an
/// ordinary file or folder there and no device, share, alternate stream or parent folder: one that
/// can be opened without leaving that drive, apart from links.
pub(crate) fn plain_drive(path: &str) -> Option<char> {
    let path = path.replace('/', "\\");
    let rest = path.strip_prefix(r"\\?\").unwrap_or(&path);
    let mut chars = rest.chars();
    let letter = chars.next().filter(char::is_ascii_alphabetic)?.to_ascii_uppercase();
    let names = chars.as_str().strip_prefix(r":\")?;
    names.split('\\').all(is_plain_name).then_some(letter)
}

fn is_plain_name(name: &str) -> bool {
    !name.contains([':', '\0', '*', '?', '"', '<', '>', '|']) && name != ".." && !is_device_name(name)
}

/// Whether a link (a junction or symbolic link) on the way to an output may be followed: only if
/// administrators, the system or inject's own user made it. `link` is its security descriptor,
/// `own` inject's user.
pub(crate) fn follows(link: Option<&str>, own: Option<&str>) -> bool {
    link.is_some_and(|descriptor| sddl::is_owned(descriptor, own))
}

/// The file at an output's path, as far as it matters for replacing it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ExistingFile {
    /// It is a regular file on a disk.
    pub regular: bool,
    /// It is a link or another reparse point.
    pub link: bool,
    /// The number of the file's names; more than 1 with hard links.
    pub names: u32,
}

/// Why `--force` may not empty a file, as the part of a sentence after the path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub(crate) enum ReplaceError {
    #[error("is a link or a placeholder, which is not followed")]
    Link,
    #[error("is no file")]
    NoFile,
    #[error("has another name too (a hard link), under which it would be emptied as well")]
    HardLink,
}

/// Whether `--force` may empty the file.
///
/// # Errors
/// [`ReplaceError`].
pub(crate) fn replaceable(existing: ExistingFile) -> Result<(), ReplaceError> {
    if existing.link {
        Err(ReplaceError::Link)
    } else if !existing.regular {
        Err(ReplaceError::NoFile)
    } else if existing.names > 1 {
        Err(ReplaceError::HardLink)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
