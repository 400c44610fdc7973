//! Files that inject makes: the trace, which the agent writes, and reports. No link can redirect a
//! privileged inject, no file is replaced unless the user asks for it, and a trace never is: it
//! gets another name.

use super::system;
use crate::failure::Failure;
use crate::file_identity::FileIdentity;
use crate::messages;
use crate::record::delivery::{self, Digest};
use crate::record::old_names;
use crate::rotate::{Deletion, RingFile};
use crate::trust::{self, ExistingFile};
use crate::windows::trust::token::{self, Descriptor, Token};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::windows::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::os::windows::io::{AsHandle as _, AsRawHandle as _, BorrowedHandle};
use std::path::{Path, PathBuf};
use std::ptr;
use stk_format::{FILE_HEADER_LEN, FileHeader};
use stk_schema::sddl;
use windows_sys::Win32::Foundation::{GENERIC_READ, GENERIC_WRITE};
use windows_sys::Win32::Storage::FileSystem::{
    BY_HANDLE_FILE_INFORMATION, CREATE_NEW, CreateFileW, DELETE, FILE_ATTRIBUTE_DIRECTORY,
    FILE_ATTRIBUTE_NORMAL, FILE_ATTRIBUTE_REPARSE_POINT, FILE_ATTRIBUTE_TEMPORARY, FILE_DISPOSITION_INFO,
    FILE_FLAG_BACKUP_SEMANTICS, FILE_FLAG_OPEN_REPARSE_POINT, FILE_ID_INFO, FILE_SHARE_DELETE,
    FILE_SHARE_READ, FILE_TYPE_DISK, FileDispositionInfo, FileIdInfo, GetDiskFreeSpaceExW,
    GetFileInformationByHandle, GetFileInformationByHandleEx, GetFileType, READ_CONTROL,
    SetFileInformationByHandle,
};

/// The opened output. Until [`Output::empty`] nothing of an earlier file is lost; unless
/// [`Output::keep`] is called, a file that was not there before is deleted again.
#[derive(Debug)]
pub(crate) struct Output {
    // Dropped in this order, because an open file cannot be deleted.
    file: File,
    unwanted: FileRemoval,
    path: PathBuf,
    identity: FileIdentity,
}

/// Deletes a trace of this recording, if it is still the file of that name. No link is followed.
pub(crate) fn delete_trace(file: &RingFile) -> Deletion {
    match try_delete(file) {
        Ok(true) => Deletion::Done,
        Ok(false) => Deletion::NotOurs,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Deletion::Gone,
        Err(error) => Deletion::Failed(error.to_string()),
    }
}

/// False if it is another file.
fn try_delete(file: &RingFile) -> io::Result<bool> {
    let mut options = OpenOptions::new();
    options
        .access_mode(GENERIC_READ | DELETE)
        .share_mode(FILE_SHARE_READ | FILE_SHARE_DELETE)
        .custom_flags(FILE_FLAG_OPEN_REPARSE_POINT);
    let mut opened = options.open(&file.path)?;
    let kind = existing(&opened)?;
    let mut head = [0; FILE_HEADER_LEN];
    let is_whole = kind.regular && !kind.link && opened.read_exact(&mut head).is_ok();
    if !is_whole || FileHeader::decode(&head).map(|header| header.uuid) != Ok(file.uuid) {
        return Ok(false);
    }
    let wanted = FILE_DISPOSITION_INFO { DeleteFile: true };
    // SAFETY: the handle is open with the right to delete; pointer and size describe the struct.
    let marked = unsafe {
        SetFileInformationByHandle(
            opened.as_raw_handle(),
            FileDispositionInfo,
            (&raw const wanted).cast(),
            size_of_val(&wanted) as u32,
        )
    };
    if marked == 0 { Err(io::Error::last_os_error()) } else { Ok(true) }
}

/// What becomes of a file that has an output's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IfThere {
    /// It stays, and the output is refused.
    Refuse,
    /// It is emptied, unless it is a trace: then the output is refused.
    Replace,
    /// It is emptied; a trace is renamed.
    SetAside,
}

impl IfThere {
    /// For a trace, with `--force` or without it.
    pub(crate) fn for_trace(force: bool) -> IfThere {
        if force { IfThere::SetAside } else { IfThere::Refuse }
    }
}

/// A new file to be deleted on drop, and the trace that had its name before.
#[derive(Debug, Default)]
struct FileRemoval {
    new: Option<PathBuf>,
    /// Gets its name back.
    set_aside: Option<PathBuf>,
}

impl Output {
    /// Creates the file, or opens an existing one if `there` allows that. From now on others may
    /// read it but not write it.
    ///
    /// # Errors
    /// A sentence for the user.
    pub(crate) fn open(path: &Path, there: IfThere) -> Result<Output, Failure> {
        let shown = path.display();
        let no = |why: &str| Failure::failed(format!("{shown} {why}: choose another file with -o"));
        let fail = |error: io::Error| no(&format!("cannot be written ({error})"));
        let path = std::path::absolute(path).map_err(fail)?;
        check_folders(&path)?;
        let (file, unwanted) = match create_private(&path, FILE_ATTRIBUTE_NORMAL) {
            Ok(file) => (file, FileRemoval { new: Some(path.clone()), set_aside: None }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if there == IfThere::Refuse {
                    return Err(Failure::failed(exists(&path)));
                }
                // Windows would refuse to open it; Wine does not when its user may do anything.
                if path.symlink_metadata().is_ok_and(|known| known.permissions().readonly()) {
                    return Err(no("is read-only"));
                }
                let mut options = OpenOptions::new();
                // With this flag a link itself is opened, not its target.
                options.read(true).write(true).share_mode(FILE_SHARE_READ);
                let mut file =
                    options.custom_flags(FILE_FLAG_OPEN_REPARSE_POINT).open(&path).map_err(fail)?;
                let known = existing(&file).map_err(fail)?;
                if known.regular && !known.link && is_trace(&mut file).map_err(fail)? {
                    if there == IfThere::Replace {
                        return Err(no("is a trace, which nothing replaces"));
                    }
                    drop(file);
                    let set_aside = Some(set_aside(&path).map_err(fail)?);
                    // Puts it back if no file can be made in its place.
                    let mut unwanted = FileRemoval { new: None, set_aside };
                    let file = create_private(&path, FILE_ATTRIBUTE_NORMAL).map_err(fail);
                    unwanted.new = file.is_ok().then(|| path.clone());
                    if file.is_err() {
                        unwanted.put_back(&path);
                    }
                    (file?, unwanted)
                } else {
                    trust::replaceable(known).map_err(|error| no(&error.to_string()))?;
                    (file, FileRemoval::default())
                }
            }
            Err(error) => return Err(fail(error)),
        };
        let identity = identity(&file);
        Ok(Output { file, unwanted, path, identity })
    }

    /// Creates a file of inject's own that is deleted soon: the system writes as little of it to
    /// the disk as it can.
    ///
    /// # Errors
    /// A sentence for the user.
    pub(crate) fn temporary(path: &Path) -> Result<Output, Failure> {
        let file = create_private(path, FILE_ATTRIBUTE_TEMPORARY)
            .map_err(|error| Failure::failed(format!("{} cannot be made: {error}", path.display())))?;
        let unwanted = FileRemoval { new: Some(path.to_owned()), set_aside: None };
        let identity = identity(&file);
        Ok(Output { file, unwanted, path: path.to_owned(), identity })
    }

    /// Empties the file for the new trace.
    ///
    /// # Errors
    /// A sentence for the user.
    pub(crate) fn empty(&self) -> Result<(), Failure> {
        let emptied = self.file.set_len(0);
        emptied
            .map_err(|error| Failure::failed(format!("{} cannot be emptied ({error})", self.path.display())))
    }

    /// Writes the whole file and keeps it.
    ///
    /// # Errors
    /// A sentence for the user.
    pub(crate) fn write(mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.empty()?;
        self.file.write_all(bytes).map_err(|error| {
            Failure::failed(format!("{} cannot be written: {error}", self.path.display()))
        })?;
        self.keep();
        Ok(())
    }

    /// Copies a file into it and keeps it.
    ///
    /// # Errors
    /// The system's error. The copy is deleted then.
    pub(crate) fn copy_from(mut self, from: &mut File) -> io::Result<Digest> {
        let digest = delivery::copy(from, &mut self.file)?;
        self.file.sync_all()?;
        self.keep();
        Ok(digest)
    }

    /// The default for the most bytes of the trace: 4 GiB, or a tenth of its disk's free space if
    /// that is less (at least 1 MiB).
    pub(crate) fn default_limit(&self) -> u64 {
        const MOST: u64 = 4 << 30;
        const LEAST: u64 = 1 << 20;
        let folder = self.path.parent().unwrap_or(&self.path);
        let mut free = 0;
        let name = system::wide(folder.as_os_str());
        // SAFETY: the name is zero-terminated, the result has room, and the other results may be
        // null.
        let known =
            unsafe { GetDiskFreeSpaceExW(name.as_ptr(), &mut free, ptr::null_mut(), ptr::null_mut()) } != 0;
        if known { (free / 10).clamp(LEAST, MOST) } else { MOST }
    }

    /// For whoever writes the trace in this process.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// For duplication.
    pub(crate) fn handle(&self) -> BorrowedHandle<'_> {
        self.file.as_handle()
    }

    /// Leaves the file to the agent: closes inject's handle and returns the file's path and
    /// identity.
    pub(crate) fn keep(mut self) -> (PathBuf, FileIdentity) {
        self.unwanted.new = None;
        if let Some(old) = self.unwanted.set_aside.take() {
            say_set_aside(&old);
        }
        (self.path, self.identity)
    }
}

/// The identity of an open file.
pub(crate) fn identity(file: &File) -> FileIdentity {
    let mut wide = FILE_ID_INFO::default();
    // SAFETY: the handle is open; pointer and size describe the struct.
    let known = unsafe {
        GetFileInformationByHandleEx(
            file.as_raw_handle(),
            FileIdInfo,
            (&raw mut wide).cast(),
            size_of_val(&wide) as u32,
        )
    };
    let wide = (known != 0).then(|| (wide.VolumeSerialNumber, u128::from_le_bytes(wide.FileId.Identifier)));
    let narrow = information(file).ok().map(|known| {
        let index = u64::from(known.nFileIndexHigh) << 32 | u64::from(known.nFileIndexLow);
        (known.dwVolumeSerialNumber, index)
    });
    FileIdentity::new(wide, narrow)
}

/// Why the file with this identity is not at `path`; `None` if it is, or if that is unknown.
pub(crate) fn absence(path: &Path, wanted: FileIdentity) -> Option<&'static str> {
    let mut options = OpenOptions::new();
    // No access is requested, so whoever still writes the file does not refuse.
    options.access_mode(0).custom_flags(FILE_FLAG_OPEN_REPARSE_POINT);
    match options.open(path) {
        Ok(file) => identity(&file).differs_from(wanted).then_some("another file has taken its place"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Some("the file, or a folder on its path, was deleted or renamed")
        }
        Err(_) => None,
    }
}

impl FileRemoval {
    fn put_back(&mut self, path: &Path) {
        // If that fails, the trace remains under its other name.
        let old = self.set_aside.take();
        old.into_iter().for_each(|old| drop(system::rename_new(&old, path)));
    }
}

impl Drop for FileRemoval {
    fn drop(&mut self) {
        if let Some(path) = self.new.take() {
            // If the file cannot be deleted, an empty file remains. Report the original failure,
            // not this one.
            let _ = system::delete(&path);
            self.put_back(&path);
        }
    }
}

/// Why a file is not written that has the name of another.
pub(crate) fn exists(path: &Path) -> String {
    format!("{} exists: choose another file with -o, or use --force", path.display())
}

/// Whether the file, which was just opened, begins as a trace does.
///
/// # Errors
/// The system's error.
fn is_trace(file: &mut File) -> io::Result<bool> {
    let mut head = [0; FILE_HEADER_LEN];
    let mut filled = 0;
    while let read @ 1.. = file.read(&mut head[filled..])? {
        filled += read;
    }
    // Whoever writes it, also by a duplicate of its handle, begins at its start.
    file.rewind()?;
    Ok(FileHeader::is_at_start_of(&head[..filled]))
}

/// Whether there is a file that begins as a trace does, or one of which that is not known. No link
/// is followed.
pub(crate) fn may_be_trace(path: &Path) -> bool {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(FILE_FLAG_OPEN_REPARSE_POINT);
    let found = options.open(path).and_then(|mut file| {
        let known = existing(&file)?;
        Ok(known.regular && !known.link && is_trace(&mut file)?)
    });
    found.unwrap_or_else(|error| error.kind() != io::ErrorKind::NotFound)
}

/// Gives a trace another name, which no file has, and returns it.
///
/// # Errors
/// The system's error.
pub(crate) fn set_aside(path: &Path) -> io::Result<PathBuf> {
    for old in old_names::of(path) {
        match system::rename_new(path, &old) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            renamed => return renamed.map(|()| old),
        }
    }
    Err(io::Error::other("every name for the trace that is there is taken"))
}

/// Says where a trace is now whose name another has.
pub(crate) fn say_set_aside(old: &Path) {
    messages::say(&format!("the trace that was there is now {}", messages::file(old)));
}

/// Creates a file that only inject's user, administrators and the system may open. Others may
/// read it meanwhile, if they may open it, but not write it.
fn create_private(path: &Path, file_attributes: u32) -> io::Result<File> {
    let descriptor = private_descriptor()?;
    let attributes = descriptor.attributes();
    let name = system::wide(&system::long(path));
    // SAFETY: the name is zero-terminated, the attributes and their descriptor live through the
    // call, and the handle is fresh.
    let handle = unsafe {
        system::own(CreateFileW(
            name.as_ptr(),
            GENERIC_WRITE,
            FILE_SHARE_READ,
            &attributes,
            CREATE_NEW,
            file_attributes | FILE_FLAG_OPEN_REPARSE_POINT,
            ptr::null_mut(),
        ))
    };
    Ok(File::from(handle?))
}

/// Makes a folder that only inject's user, administrators and the system may open.
///
/// # Errors
/// The system's error.
pub(crate) fn make_private_folder(path: &Path) -> io::Result<()> {
    private_descriptor()?.make_folder(path)
}

fn private_descriptor() -> io::Result<Descriptor> {
    let user = Token::own()?.user_sid().ok_or_else(|| io::Error::other("inject's own user is not known"))?;
    Descriptor::from_sddl(&sddl::private(&user))
}

/// The kind of an open file, from its handle and not from its name.
///
/// # Errors
/// The system's error.
pub(crate) fn existing(file: &File) -> io::Result<ExistingFile> {
    let known = information(file)?;
    // SAFETY: the handle is open.
    let is_disk = unsafe { GetFileType(file.as_raw_handle()) } == FILE_TYPE_DISK;
    Ok(ExistingFile {
        regular: is_disk && known.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY == 0,
        // Includes placeholders of files stored elsewhere, in a cloud or a store of shared chunks,
        // because the flag opens the placeholder.
        link: known.dwFileAttributes & FILE_ATTRIBUTE_REPARSE_POINT != 0,
        names: known.nNumberOfLinks,
    })
}

fn information(file: &File) -> io::Result<BY_HANDLE_FILE_INFORMATION> {
    let mut known = BY_HANDLE_FILE_INFORMATION::default();
    // SAFETY: the handle is open and the result has room.
    match unsafe { GetFileInformationByHandle(file.as_raw_handle(), &mut known) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(known),
    }
}

/// Refuses an output whose path contains a link made by a user without inject's rights.
fn check_folders(path: &Path) -> Result<(), Failure> {
    let mut own = None;
    for folder in path.ancestors().skip(1) {
        let Ok(metadata) = folder.symlink_metadata() else { continue };
        let is_link = metadata.file_attributes() & FILE_ATTRIBUTE_REPARSE_POINT != 0
            && metadata.file_type().is_symlink();
        if !is_link {
            continue;
        }
        let own = own.get_or_insert_with(|| Token::own().ok().and_then(|token| token.user_sid()));
        let mut options = OpenOptions::new();
        let flags = FILE_FLAG_BACKUP_SEMANTICS | FILE_FLAG_OPEN_REPARSE_POINT;
        let link = options.access_mode(READ_CONTROL).custom_flags(flags).open(folder).ok();
        let descriptor = link.and_then(|link| token::sddl_of(link.as_handle()));
        if !trust::follows(descriptor.as_deref(), own.as_deref()) {
            return Err(Failure::failed(format!(
                "{} leads over the link {}, which another user made: choose another file with -o",
                path.display(),
                folder.display()
            )));
        }
    }
    Ok(())
}

/// Stores `bytes` under `path` if no file exists there. The file is written under an unguessable
/// name beside it and then renamed, so it is whole or absent. True if the file holds these bytes
/// afterwards.
pub(crate) fn store_once(path: &Path, bytes: &[u8]) -> bool {
    if holds(path, bytes) {
        return true;
    }
    let name = stk_schema::text::hex(&crate::uuid::random());
    let beside = path.with_file_name(format!("{name}.tmp"));
    let mut options = OpenOptions::new();
    options.write(true).share_mode(FILE_SHARE_READ);
    let Ok(mut file) = options.create_new(true).open(&beside) else { return false };
    let written = file.write_all(bytes);
    drop(file);
    // Does not replace a file that was made meanwhile, but reads it instead.
    let stored = written.is_ok() && system::rename_new(&beside, path).is_ok();
    if !stored {
        let _ = system::delete(&beside);
    }
    stored || holds(path, bytes)
}

/// Whether there is a regular file with exactly these bytes.
fn holds(path: &Path, bytes: &[u8]) -> bool {
    let mut options = OpenOptions::new();
    options.read(true).share_mode(FILE_SHARE_READ).custom_flags(FILE_FLAG_OPEN_REPARSE_POINT);
    let Ok(file) = options.open(path) else { return false };
    if !existing(&file).is_ok_and(|existing| existing.regular && !existing.link) {
        return false;
    }
    let mut found = Vec::new();
    file.take(bytes.len() as u64 + 1).read_to_end(&mut found).is_ok() && found == bytes
}
