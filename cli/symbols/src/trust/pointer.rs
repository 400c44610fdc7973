//! Decides which files the `file.ptr` of a store may name. A pointer is a text in a folder, so
//! whoever can write to the folder chooses a path to open.
//!
//! A pointer is followed only in stores that the symbol path names, and only to a file on this
//! machine, below a folder that the path names, or on a share of which the path names a folder.
//! Pointers of servers have their own rule (`server`).

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::search_dir::{ElsewhereError, OpenError, SearchDir, Trust};
use crate::local::{self, PathProblem};
use crate::path::SymbolPath;

/// Limit for the bytes of a pointer. Paths are shorter.
const MAX_POINTER: u64 = 4096;

/// Why a pointer is not followed, and what to do.
#[derive(Debug, Error)]
pub(crate) enum PointerError {
    /// It does not lie on this machine.
    #[error(transparent)]
    Elsewhere(ElsewhereError),
    /// The rules forbid it, or it is invalid.
    #[error("{pointer} is not followed, because {why}")]
    Refused { pointer: PathBuf, why: PointerRefusal },
}

/// What is wrong with a pointer.
#[derive(Debug, Error)]
pub(crate) enum PointerRefusal {
    #[error("nobody has named its folder: name it with -y")]
    Unnamed,
    #[error(transparent)]
    Io(io::Error),
    #[error("it is no text")]
    NoText,
    #[error("{path:?} {why}")]
    Target { path: String, why: TargetRefusal },
}

/// What is wrong with a pointer's path.
#[derive(Debug, Error)]
pub(crate) enum TargetRefusal {
    #[error("is a device")]
    Device,
    #[error("is on a share that the symbol path does not name: name it with -y")]
    Share,
    #[error("is no absolute path of this machine")]
    Relative,
    #[error("leads to {at}, on {what}: name its folder with -y")]
    Elsewhere { at: PathBuf, what: String },
    #[error("cannot be opened: {0}")]
    Io(io::Error),
}

/// The file that a pointer names; `None` if it names none.
pub(crate) fn target(
    place: &SearchDir,
    pointer: &Path,
    named: &SymbolPath,
) -> Result<Option<PathBuf>, PointerError> {
    let refuse = |why| PointerError::Refused { pointer: pointer.to_path_buf(), why };
    if place.trust != Trust::Named {
        return Err(refuse(PointerRefusal::Unnamed));
    }
    let file = match place.open(pointer) {
        Ok(file) => file,
        Err(OpenError::Io(error)) => return Err(refuse(PointerRefusal::Io(error))),
        Err(OpenError::Elsewhere(why)) => return Err(PointerError::Elsewhere(why)),
    };
    let mut text = String::new();
    if (&file[..]).take(MAX_POINTER).read_to_string(&mut text).is_err() {
        return Err(refuse(PointerRefusal::NoText));
    }
    let Some(path) = pointer_path(&text) else { return Ok(None) };
    match allowed(path, named) {
        Ok(path) => Ok(Some(path)),
        Err(why) => Err(refuse(PointerRefusal::Target { path: path.to_owned(), why })),
    }
}

/// The path of a pointer, if it may be opened.
fn allowed(path: &str, named: &SymbolPath) -> Result<PathBuf, TargetRefusal> {
    if let Some(share) = share(path) {
        let named =
            named.folders().filter_map(Path::to_str).any(|folder| self::share(folder) == Some(share.clone()));
        return match (share, named) {
            (Share::Device, _) => Err(TargetRefusal::Device),
            (Share::Named(..), true) if cfg!(windows) => Ok(PathBuf::from(path)),
            _ => Err(TargetRefusal::Share),
        };
    }
    let path = Path::new(path);
    if !path.is_absolute() || path.components().any(|part| part == std::path::Component::ParentDir) {
        return Err(TargetRefusal::Relative);
    }
    if named.folders().any(|folder| path.starts_with(folder)) {
        return Ok(path.to_path_buf());
    }
    match local::resolve(path) {
        Ok(path) => Ok(path),
        Err(PathProblem::Elsewhere { at, what }) => Err(TargetRefusal::Elsewhere { at, what }),
        Err(PathProblem::Io(error)) => Err(TargetRefusal::Io(error)),
    }
}

/// The target of a path that begins with two separators.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Share {
    /// `\\?\…`, `\\.\…`
    Device,
    /// Server and share, in lower case.
    Named(String, String),
}

fn share(path: &str) -> Option<Share> {
    let separator = ['\\', '/'];
    let rest = path.strip_prefix(separator)?;
    // `\??\…` is the kernel's way to write `\\?\…`.
    let rest = rest.strip_prefix(separator).or(rest.starts_with("??").then_some(rest))?;
    let mut parts = rest.split(separator);
    let (server, share) = (parts.next()?.to_lowercase(), parts.next().unwrap_or("").to_lowercase());
    Some(match server.as_str() {
        "?" | "." | "??" | "" => Share::Device,
        _ if share.is_empty() || parts.any(|part| part == "..") => Share::Device,
        _ => Share::Named(server, share),
    })
}

/// The path in a `file.ptr`: `PATH:…`, or the bare text. `MSG:…` means that there is none.
pub(crate) fn pointer_path(text: &str) -> Option<&str> {
    let line = text.trim_start_matches('\u{feff}').lines().next()?.trim();
    if line.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("MSG:")) {
        return None;
    }
    let path = match line.get(..5) {
        Some(start) if start.eq_ignore_ascii_case("PATH:") => line[5..].trim(),
        _ => line,
    };
    (!path.is_empty()).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_not_a_pointer() {
        assert_eq!(pointer_path("MSG: gone"), None);
        assert_eq!(pointer_path("PATH:x\\y.pdb\r\n"), Some("x\\y.pdb"));
        assert_eq!(pointer_path(" "), None);
    }

    #[test]
    fn shares_devices_and_paths_are_distinguished() {
        let named = |server: &str, share: &str| Some(Share::Named(server.into(), share.into()));
        assert_eq!(share(r"\\Filer\Syms\x.pdb"), named("filer", "syms"));
        assert_eq!(share("//filer/syms"), named("filer", "syms"));
        for device in [r"\\?\C:\x", r"\\.\pipe\x", r"\??\UNC\filer\syms", r"\\filer", r"\\filer\a\..\b"] {
            assert_eq!(share(device), Some(Share::Device), "{device}");
        }
        assert_eq!((share(r"C:\x"), share("/x"), share("x")), (None, None, None));
    }

    #[test]
    fn a_pointer_to_a_share_that_is_not_named_is_refused() {
        let path = SymbolPath::parse(r"C:\mine;srv*\\filer\syms\store");
        for text in
            [r"\\evil\syms\x.pdb", r"\\filer\other\x.pdb", r"\\?\UNC\filer\syms\x.pdb", r"\\.\C:", "x.pdb"]
        {
            assert!(allowed(text, &path).is_err(), "{text}");
        }
        assert_eq!(allowed(r"\\FILER\syms\x.pdb", &path).is_ok(), cfg!(windows));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_pointer_may_lead_to_this_machine_or_below_a_named_folder() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let own = file.path().canonicalize().unwrap();
        let none = SymbolPath::default();
        assert_eq!(allowed(own.to_str().unwrap(), &none).unwrap(), own);
        assert!(allowed("/proc/self/mem", &none).is_err());
        assert!(allowed("/proc/self/mem", &SymbolPath::parse("/proc/self")).is_ok());
        assert!(allowed("/proc/self/../x", &SymbolPath::parse("/proc/self")).is_err());
    }
}
