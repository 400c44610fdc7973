//! Why an address has no better name, with advice on what to do.

use std::fmt;
use std::path::{Path, PathBuf};

use super::identity::Identity;
use super::store::Search;
use stk_base::model::file_name;

/// Why an address has no better name.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// The trace does not identify the image.
    NoIdentity,
    /// The image does not name its PDB.
    NoCodeView,
    /// The image names its PDB by a record without a GUID, from before Visual Studio .NET.
    OldCodeView,
    /// The image belongs to the system and does not name its PDB, as Wine's images do.
    SystemWithoutPdb,
    /// No PDB of that name was found.
    PdbNotFound {
        /// The PDB's file name.
        name: String,
        /// GUID and age as symbol servers write them.
        id: String,
        /// Number of places that were searched.
        tried: usize,
        /// Places and pointers that were skipped, and why.
        skipped: Vec<String>,
        /// The errors of the servers that were queried.
        servers: Vec<String>,
    },
    /// There is a PDB of that name, but of another build.
    PdbMismatch {
        path: PathBuf,
        /// Its identity.
        found: Identity,
        /// The identity that the image needs.
        wanted: Identity,
    },
    /// The PDB, or the only one of that name, cannot be read.
    PdbUnreadable {
        path: PathBuf,
        /// What is wrong with it.
        error: String,
    },
    /// The PDB refers to object files for its private symbols.
    FastLink {
        /// Path of the PDB.
        path: PathBuf,
    },
    /// The symbols were read, but no record covers the address.
    NotCovered {
        /// Where the symbols are.
        path: PathBuf,
    },
}

impl Reason {
    /// The reason for an image that does not name its PDB.
    pub fn no_code_view(image_path: &str) -> Reason {
        let mut parts = image_path.split(['\\', '/']);
        let drive = parts.next().is_some_and(|part| part.ends_with(':'));
        let windows = parts.next().is_some_and(|part| part.eq_ignore_ascii_case("windows"));
        if drive && windows { Reason::SystemWithoutPdb } else { Reason::NoCodeView }
    }
}

/// The reason for a PDB that cannot be read.
pub(super) fn unreadable(path: &Path, error: &dyn fmt::Display) -> Reason {
    Reason::PdbUnreadable { path: path.to_path_buf(), error: error.to_string() }
}

impl Search {
    /// The most useful reason why nothing was found.
    pub fn reason(&self, name: &str, wanted: Identity) -> Reason {
        if let Some((path, found)) = self.mismatched.first() {
            return Reason::PdbMismatch { path: path.clone(), found: *found, wanted };
        }
        if let Some((path, error)) = self.unreadable.first() {
            return Reason::PdbUnreadable { path: path.clone(), error: error.clone() };
        }
        Reason::PdbNotFound {
            name: file_name(name).to_owned(),
            id: wanted.to_string(),
            tried: self.tried.len(),
            skipped: self.skipped.clone(),
            servers: self.servers.clone(),
        }
    }
}

/// How reasons end against which something helps.
const FIND_PDB: &str = "put it beside the trace, or name its folder or server with -y";
const BUILD: &str = "build it with debug information";
const THAT_BUILD: &str = "get the PDB of that very build";
const INTACT: &str = "replace it by an intact copy";
const FULL: &str = "link with /DEBUG:FULL, or run mspdbcmf on it";

/// What helps against a reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remedy {
    /// Nothing.
    Nothing,
    /// The PDB, which was not found.
    Pdb,
    /// What the end of its text says.
    Stated,
}

impl Remedy {
    /// What helps against the reason of this text.
    pub fn of(reason: &str) -> Remedy {
        match () {
            () if reason.ends_with(FIND_PDB) => Remedy::Pdb,
            () if [BUILD, THAT_BUILD, INTACT, FULL].iter().any(|end| reason.ends_with(end)) => Remedy::Stated,
            () => Remedy::Nothing,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NoIdentity => {
                write!(
                    f,
                    "its headers were not recorded: they could not be read, or it was unloaded before that"
                )
            }
            Reason::NoCodeView => {
                write!(f, "the image names no PDB (no CodeView record): {BUILD}")
            }
            Reason::OldCodeView => {
                write!(f, "the image names its PDB by a record of an old format (NB10), which is not read")
            }
            Reason::SystemWithoutPdb => {
                write!(f, "an image of the system that names no PDB, as Wine's do not: nothing to do")
            }
            Reason::PdbNotFound { name, id, tried, skipped, servers } => {
                write!(f, "{name} ({id}) is in none of {tried} places")?;
                skipped.iter().try_for_each(|place| write!(f, "; {place}"))?;
                servers.iter().try_for_each(|server| write!(f, "; {server}"))?;
                write!(f, ": {FIND_PDB}")
            }
            Reason::PdbMismatch { path, found, wanted } => write!(
                f,
                "{}: identity {found} does not match the image's {wanted}: {THAT_BUILD}",
                path.display(),
            ),
            Reason::PdbUnreadable { path, error } => {
                write!(f, "{}: {error}: {INTACT}", path.display())
            }
            Reason::FastLink { path } => write!(
                f,
                "{}: was linked with /DEBUG:FASTLINK and refers to object files: {FULL}",
                path.display()
            ),
            Reason::NotCovered { path } => {
                write!(f, "{}: no record covers the address: the PDB may be a stripped one", path.display())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_image_gets_no_advice_to_build_it() {
        for path in [r"C:\windows\system32\ntdll.dll", r"D:\WINDOWS\SysWOW64\kernel32.dll"] {
            let text = Reason::no_code_view(path).to_string();
            assert!(text.ends_with("nothing to do"), "{text}");
        }
        for path in [r"C:\app\windows\app.exe", r"\\server\windows\a.dll", "windows/a.dll", "a.dll", ""] {
            assert_eq!(Reason::no_code_view(path), Reason::NoCodeView, "{path}");
        }
    }

    #[test]
    fn each_reason_has_its_remedy() {
        let path = PathBuf::from("a.pdb");
        let (found, wanted) =
            (Identity::Pdb { guid: [1; 16], age: 1 }, Identity::Pdb { guid: [2; 16], age: 1 });
        let (name, id) = ("a.pdb".to_owned(), "1".to_owned());
        let skipped = vec!["nothing to do".to_owned()];
        let not_found = Reason::PdbNotFound { name, id, tried: 1, skipped, servers: Vec::new() };
        for (reason, remedy) in [
            (not_found, Remedy::Pdb),
            (Reason::NoCodeView, Remedy::Stated),
            (Reason::PdbMismatch { path: path.clone(), found, wanted }, Remedy::Stated),
            (Reason::PdbUnreadable { path: path.clone(), error: "damaged".to_owned() }, Remedy::Stated),
            (Reason::FastLink { path: path.clone() }, Remedy::Stated),
            (Reason::NoIdentity, Remedy::Nothing),
            (Reason::SystemWithoutPdb, Remedy::Nothing),
            (Reason::NotCovered { path }, Remedy::Nothing),
        ] {
            assert_eq!(Remedy::of(&reason.to_string()), remedy, "{reason}");
        }
    }
}
