//! agent.dll as a file, and the folder from which targets load it.
//!
//! The file is opened before it is checked, so that it cannot be written, renamed or deleted, and
//! stays open until it is loaded. So the checked file is the one loaded. If this inject may write
//! to Program Files, or a copy exists there already, targets load a copy from `stk\<hash of the
//! contents>` there, a folder that only administrators own and write and that everybody may read.
//! Services, other users and AppContainers can load it, and an agent.dll in use can be replaced.
//! Otherwise targets load the named file.

use super::registry;
use super::system;
use crate::companion;
use crate::failure::Failure;
use crate::image::{self, Image};
use crate::windows::trust::local::real_path;
use crate::windows::trust::token::{self, Descriptor};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::windows::ffi::OsStrExt as _;
use std::os::windows::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf, Prefix};
use stk_schema::sddl;
use windows_sys::Win32::Storage::FileSystem::{
    FILE_ATTRIBUTE_REPARSE_POINT, FILE_SHARE_READ, GetDriveTypeW, QueryDosDeviceW,
};
use windows_sys::Win32::System::WindowsProgramming::DRIVE_REMOTE;

/// The longest path, in UTF-16 units, that LoadLibraryW accepts in every program: MAX_PATH without
/// its zero.
const LONGEST_PATH: usize = 259;

/// agent.dll as a file.
#[derive(Debug)]
pub(crate) struct AgentFile {
    /// Absolute path that the target can use.
    pub path: PathBuf,
    /// Its headers and exports.
    pub image: Image,
    bytes: Vec<u8>,
    /// Keeps others from changing the file.
    _file: File,
}

impl AgentFile {
    /// Opens, reads and checks a DLL; `None` is agent.dll beside inject.exe.
    ///
    /// # Errors
    /// A sentence for the user: the file is missing, unreadable or not a DLL, or not every process
    /// can use its path.
    pub(crate) fn open(path: Option<&Path>) -> Result<AgentFile, Failure> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => beside_inject()?,
        };
        let path = std::path::absolute(&path)
            .map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
        let shown = path.display();
        let (file, bytes) = open_unchanging(&path).map_err(|error| {
            Failure::failed(format!(
                "{shown} cannot be read ({error}): put agent.dll beside inject.exe or name it on the command line"
            ))
        })?;
        let image = Image::from_file(&bytes)
            .map_err(|error| Failure::failed(format!("{shown} is {error}: name agent.dll")))?;
        if !image.dll {
            return Err(Failure::failed(format!("{shown} is a program and no DLL: name agent.dll")));
        }
        let path = if is_of_this_session(&path) { real_path(&file).unwrap_or(path) } else { path };
        if path.as_os_str().encode_wide().count() > LONGEST_PATH {
            return Err(Failure::failed(format!(
                "{} is longer than {LONGEST_PATH} characters, which not every process can load: copy agent.dll to a shorter path",
                path.display()
            )));
        }
        Ok(AgentFile { path, image, bytes, _file: file })
    }

    /// Checks that it is the agent. Separate from [`AgentFile::open`], so that a DLL of another
    /// architecture is reported as such.
    ///
    /// # Errors
    /// A sentence that names the missing export.
    pub(crate) fn check_exports(&self) -> Result<(), Failure> {
        match self.image.agent_exports() {
            Ok(_) => Ok(()),
            Err(missing) => Err(Failure::failed(format!(
                "{} {missing}: it is no agent.dll of this stk",
                self.path.display()
            ))),
        }
    }

    /// The copy in Program Files for targets to load, if one exists or can be made; otherwise the
    /// file itself.
    #[must_use]
    pub(crate) fn placed(self) -> AgentFile {
        if !self.image.is_agent() || self.image.machine != image::own_machine() {
            return self;
        }
        match copy_in_program_files(&self.bytes) {
            Some((path, file)) => AgentFile { path, _file: file, ..self },
            None => self,
        }
    }
}

fn beside_inject() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().map_err(|error| {
        Failure::failed(format!("inject.exe does not know where it is ({error}): name agent.dll"))
    })?;
    let names = companion::agent_names(image::own_machine());
    let mut paths = names.iter().map(|name| own.with_file_name(name));
    let found = paths.clone().find(|path| path.is_file());
    Ok(found.or_else(|| paths.next()).unwrap_or(own))
}

/// Opens a file so that it cannot be written, renamed or deleted while it is open, and reads its
/// contents.
fn open_unchanging(path: &Path) -> io::Result<(File, Vec<u8>)> {
    let mut file = File::options().read(true).share_mode(FILE_SHARE_READ).open(path)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok((file, bytes))
}

/// Whether the path begins with a drive that only this logon session has: one mapped to a share, or
/// made by subst.
fn is_of_this_session(path: &Path) -> bool {
    let Some(Component::Prefix(prefix)) = path.components().next() else { return false };
    let (Prefix::Disk(letter) | Prefix::VerbatimDisk(letter)) = prefix.kind() else { return false };
    let name = [u16::from(letter), u16::from(b':'), 0];
    let root = [name[0], name[1], u16::from(b'\\'), 0];
    let mut device = [0u16; 1024];
    // SAFETY: both names are zero-terminated; the length is that of the array.
    let (kind, len) = unsafe {
        let len = QueryDosDeviceW(name.as_ptr(), device.as_mut_ptr(), device.len() as u32);
        (GetDriveTypeW(root.as_ptr()), len as usize)
    };
    // subst makes a link to a folder, `\??\C:\folder`; other drives are devices.
    let link: Vec<u16> = r"\??\".encode_utf16().collect();
    kind == DRIVE_REMOTE || device[..len.min(device.len())].starts_with(&link)
}

/// The path of a copy that only administrators can change, held open; `None` if there is none and
/// none can be made.
fn copy_in_program_files(bytes: &[u8]) -> Option<(PathBuf, File)> {
    let programs = program_files()?;
    let stk = programs.join("stk");
    let home = stk.join(format!("{:032x}", xxhash_rust::xxh3::xxh3_128(bytes)));
    let path = home.join(image::AGENT_NAME);
    if !is_guarded(&programs) || path.as_os_str().encode_wide().count() > LONGEST_PATH {
        return None;
    }
    for folder in [&stk, &home] {
        if make_folder(folder).is_ok() && !is_guarded(folder) {
            let _ = std::fs::remove_dir(folder); // It is ours and empty.
        }
        if !is_guarded(folder) {
            return None;
        }
    }
    if !path.exists() && write_whole(&path, bytes).is_err() && !path.exists() {
        return None;
    }
    // The name only gives the place. The file there must have exactly the same bytes.
    let (file, found) = open_unchanging(&path).ok()?;
    (found == bytes && is_guarded(&path)).then_some((path, file))
}

/// The folder of installed programs, from the registry: shell32, which has a function for it, loads
/// user32, and a console program with user32 gets no CTRL_LOGOFF_EVENT.
fn program_files() -> Option<PathBuf> {
    let path =
        PathBuf::from(registry::text(r"SOFTWARE\Microsoft\Windows\CurrentVersion", "ProgramFilesDir")?);
    path.is_absolute().then_some(path)
}

/// Whether it exists, is not a link, and only administrators own and write it.
fn is_guarded(path: &Path) -> bool {
    let plain = std::fs::symlink_metadata(path)
        .is_ok_and(|metadata| metadata.file_attributes() & FILE_ATTRIBUTE_REPARSE_POINT == 0);
    plain && token::sddl(path).is_some_and(|sddl| sddl::only_trusted_write(&sddl, None))
}

/// Makes a folder that Administrators and SYSTEM own and write, and that everybody and every
/// AppContainer may read.
fn make_folder(path: &Path) -> io::Result<()> {
    Descriptor::from_sddl(
        "O:BAG:BAD:PAI(A;OICI;FA;;;BA)(A;OICI;FA;;;SY)(A;OICI;0x1200a9;;;WD)(A;OICI;0x1200a9;;;AC)(A;OICI;0x1200a9;;;S-1-15-2-2)",
    )?
    .make_folder(path)
}

/// Writes a file that appears under its name only when it is whole.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let unfinished = path.with_extension(format!("{}.tmp", std::process::id()));
    let written = File::options()
        .write(true)
        .create_new(true)
        .open(&unfinished)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| system::rename_new(&unfinished, path));
    if written.is_err() {
        let _ = system::delete(&unfinished);
    }
    written
}
