//! Source files: below folders that the user names and, where the user wants it, in the PDBs of
//! .NET modules and on servers ([`source_link`](super::source_link)). Nowhere else.
//!
//! Debug information names them, so their paths may be anything. Only names below a folder are
//! opened: no `..`, no link, no device, nothing above a size. No command that debug information
//! holds (source servers) is ever run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use stk_base::files::Below;
use stk_profile::runtimes::dotnet::Lines;
use stk_schema::windows::is_device_name;

/// Largest source file, in bytes.
const LARGEST: u64 = 16 << 20;
/// Most lines of a source file that are kept.
const MOST_LINES: usize = 1 << 20;
/// Most names of a path that are looked at.
const MOST_NAMES: usize = 64;
/// Longest path that is looked at, in bytes.
const LONGEST: usize = 4096;
/// Characters of a line that are kept.
const WIDEST: usize = 400;

/// A folder of sources, as the command line names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceFolder {
    /// Beginning of paths that the folder replaces; `None`: the folder is searched for the longest
    /// end of a path that it holds.
    pub old: Option<String>,
    /// The folder.
    pub folder: PathBuf,
}

/// Folders of sources.
#[derive(Debug, Default)]
pub struct SourceFolders(Vec<(SourceFolder, Below)>);

/// Why a source file has no text.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceProblem {
    /// Its path is unknown.
    #[error("no source file is known: symbols with lines are missing")]
    NoFile,
    /// No folder was named.
    #[error("no text: name the folder of the sources with --source, or take .NET's with --embedded-sources")]
    NoFolder,
    /// Its path is not one of names alone.
    #[error("no text: the path in the debug information is none that stk opens")]
    Refused,
    /// It is in no folder.
    #[error("no text: it is below none of the folders of --source")]
    NotFound,
    /// The PDB of its module does not hold it.
    #[error("no text: {0}")]
    NotEmbedded(String),
    /// It cannot be taken from a server.
    #[error("no text: {0}")]
    NotLinked(String),
    /// It cannot be read.
    #[error("no text: {path}: {why}")]
    Unreadable {
        /// The file.
        path: String,
        /// Why.
        why: String,
    },
}

/// The text of a source file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SourceText {
    /// Where it was found.
    pub path: String,
    pub lines: Arc<[String]>,
}

impl SourceFolders {
    /// Opens the folders.
    ///
    /// # Errors
    ///
    /// The folder that cannot be opened, and why.
    pub fn open(folders: &[SourceFolder]) -> Result<SourceFolders, (PathBuf, std::io::Error)> {
        let open = |named: &SourceFolder| match Below::folder(&named.folder) {
            Ok(below) => Ok((named.clone(), below)),
            Err(error) => Err((named.folder.clone(), error)),
        };
        folders.iter().map(open).collect::<Result<_, _>>().map(SourceFolders)
    }

    /// The text of a file that debug information names.
    pub(super) fn find(&self, path: &str) -> Result<SourceText, SourceProblem> {
        if self.0.is_empty() {
            return Err(SourceProblem::NoFolder);
        }
        let names = names(path).ok_or(SourceProblem::Refused)?;
        let mut problem = None;
        for (named, below) in &self.0 {
            for below in candidates(&names, named, below) {
                match below.read(LARGEST) {
                    Ok(bytes) => {
                        return Ok(SourceText {
                            path: below.path().display().to_string(),
                            lines: lines(&bytes).into(),
                        });
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                    Err(error) => {
                        let path = below.path().display().to_string();
                        problem.get_or_insert(SourceProblem::Unreadable { path, why: error.to_string() });
                    }
                }
            }
        }
        Err(problem.unwrap_or(SourceProblem::NotFound))
    }
}

/// The text of a file of a .NET module that is in the module's PDB.
pub(super) fn embedded(lines: &Lines<'_>, module: &str, path: &str) -> Result<SourceText, SourceProblem> {
    match lines.source(module, path) {
        Ok(Some((module, bytes))) => Ok(SourceText {
            path: format!("{path}, in the PDB of {module}"),
            lines: self::lines(&bytes).into(),
        }),
        Ok(None) => Err(SourceProblem::NotEmbedded("no PDB of a .NET module holds it".to_owned())),
        Err(error) => Err(SourceProblem::NotEmbedded(error.to_string())),
    }
}

/// The names that a path of Windows or Unix consists of, a drive left out. `None`: one of them is
/// no plain name of a file.
fn names(path: &str) -> Option<Vec<&str>> {
    if path.is_empty() || path.len() > LONGEST {
        return None;
    }
    let is_drive = |name: &str| matches!(name.as_bytes(), [drive, b':'] if drive.is_ascii_alphabetic());
    let mut names: Vec<&str> =
        path.split(['/', '\\']).filter(|name| !name.is_empty() && *name != ".").collect();
    if names.first().is_some_and(|name| is_drive(name)) {
        names.remove(0);
    }
    let is_plain = |name: &&str| {
        // A colon opens another stream of a file, and Windows drops dots and spaces at the end.
        *name != ".."
            && !is_device_name(name)
            && !name.ends_with(['.', ' '])
            && !name.contains(|c: char| c == ':' || c.is_control())
    };
    (!names.is_empty() && names.len() <= MOST_NAMES && names.iter().all(is_plain)).then_some(names)
}

/// Where a file may be, the most likely place first.
fn candidates(names: &[&str], named: &SourceFolder, below: &Below) -> Vec<Below> {
    let join = |names: &[&str]| below.join(names.iter().collect::<PathBuf>());
    match &named.old {
        None => (0..names.len()).map(|from| join(&names[from..])).collect(),
        Some(old) => {
            let Some(old) = self::names(old) else { return Vec::new() };
            let is_below = names.len() > old.len()
                && names.iter().zip(&old).all(|(name, old)| name.eq_ignore_ascii_case(old));
            if is_below { vec![join(&names[old.len()..])] } else { Vec::new() }
        }
    }
}

/// The lines of a file: UTF-8, or what can be read of it as that; tabs are four spaces.
pub(super) fn lines(bytes: &[u8]) -> Vec<String> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let line = |line: &[u8]| {
        let text = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).replace('\t', "    ");
        match text.char_indices().nth(WIDEST) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text,
        }
    };
    let mut lines: Vec<String> = bytes.split(|byte| *byte == b'\n').take(MOST_LINES).map(line).collect();
    if lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines
}

impl SourceFolder {
    /// `DIR`, or `OLD=NEW`: paths that begin with OLD are below NEW.
    pub fn parse(text: &str) -> SourceFolder {
        match text.split_once('=') {
            Some((old, new)) if !Path::new(text).exists() && !old.is_empty() => {
                SourceFolder { old: Some(old.to_owned()), folder: new.into() }
            }
            _ => SourceFolder { old: None, folder: text.into() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stk_tests::synth::Random;

    /// A folder with a file outside of `sources`, and two within.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        std::fs::create_dir_all(root.join("sources/deep/er")).unwrap();
        std::fs::write(root.join("secret.txt"), "secret\n").unwrap();
        std::fs::write(root.join("sources/near.cpp"), "one\r\n\ttwo\n").unwrap();
        std::fs::write(root.join("sources/deep/er/far.cpp"), "\u{feff}far").unwrap();
        folder
    }

    fn folders(folder: &tempfile::TempDir, old: Option<&str>, below: &str) -> SourceFolders {
        let folder = folder.path().join(below);
        SourceFolders::open(&[SourceFolder { old: old.map(str::to_owned), folder }]).unwrap()
    }

    #[test]
    fn the_longest_end_of_a_path_is_found() {
        let folder = folder();
        std::fs::write(folder.path().join("sources/far.cpp"), "other").unwrap();
        let sources = folders(&folder, None, "sources");
        assert_eq!(*sources.find(r"C:\build\near.cpp").unwrap().lines, ["one", "    two"]);
        assert_eq!(*sources.find(r"C:\a\deep\er\far.cpp").unwrap().lines, ["far"]);
        assert_eq!(*sources.find("/b/er/far.cpp").unwrap().lines, ["other"]);
        assert_eq!(sources.find("none.cpp"), Err(SourceProblem::NotFound));
    }

    #[test]
    fn a_beginning_is_replaced_at_whole_names_only() {
        let folder = folder();
        let sources = folders(&folder, Some(r"c:\Build\src"), "sources");
        assert_eq!(*sources.find(r"C:\build/SRC\deep\er\far.cpp").unwrap().lines, ["far"]);
        for other in [r"C:\build\src2\near.cpp", r"C:\build\src", "near.cpp", r"D:\x\near.cpp"] {
            assert_eq!(sources.find(other), Err(SourceProblem::NotFound), "{other}");
        }
    }

    #[test]
    fn no_path_leads_out_of_the_folder() {
        let folder = folder();
        let sources = folders(&folder, None, "sources");
        let outside = folder.path().join("secret.txt").display().to_string();
        for path in ["../secret.txt", r"deep\..\..\secret.txt", "near.cpp:stream", "con", "", "/", "a\0b"] {
            assert_eq!(sources.find(path), Err(SourceProblem::Refused), "{path}");
        }
        assert_eq!(sources.find(&outside), Err(SourceProblem::NotFound));
        assert!(matches!(sources.find("deep"), Err(SourceProblem::Unreadable { .. })), "a folder");
    }

    #[test]
    #[cfg(unix)]
    fn links_and_pipes_below_the_folder_are_not_opened() {
        let folder = folder();
        let root = folder.path().join("sources");
        std::os::unix::fs::symlink("../secret.txt", root.join("link.cpp")).unwrap();
        std::os::unix::fs::symlink("..", root.join("up")).unwrap();
        let made = std::process::Command::new("mkfifo").arg(root.join("pipe.cpp")).status().unwrap();
        assert!(made.success());
        let sources = folders(&folder, None, "sources");
        for path in ["link.cpp", "up/secret.txt", "pipe.cpp"] {
            let found = sources.find(path);
            assert!(matches!(found, Err(SourceProblem::Unreadable { .. })), "{path}: {found:?}");
        }
    }

    #[test]
    fn a_file_larger_than_the_limit_is_not_read() {
        let folder = folder();
        let file = std::fs::File::create(folder.path().join("sources/large.cpp")).unwrap();
        file.set_len(LARGEST + 1).unwrap();
        let found = folders(&folder, None, "sources").find("large.cpp");
        assert!(matches!(found, Err(SourceProblem::Unreadable { .. })), "{found:?}");
    }

    #[test]
    fn random_paths_give_only_texts_below_the_folder() {
        let folder = folder();
        let sources = folders(&folder, None, "sources");
        let pieces = [
            "..",
            ".",
            "/",
            "\\",
            "near.cpp",
            "deep",
            "er",
            "far.cpp",
            "secret.txt",
            "C:",
            "sources",
            "\0",
            ":",
            " ",
            "nul",
            "é",
        ];
        let mut random = Random::new(19);
        let mut found = 0;
        for _ in 0..20_000 {
            let count = random.below(8);
            let path: String = (0..count).map(|_| pieces[random.below(pieces.len())]).collect();
            if let Ok(source) = sources.find(&path) {
                assert!(*source.lines == ["one", "    two"] || *source.lines == ["far"], "{path:?}");
                found += 1;
            }
        }
        assert!(found > 100, "{found}");
    }
}
