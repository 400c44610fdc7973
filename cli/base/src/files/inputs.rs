//! The files that this process reads as inputs: what the command line names, and what was opened
//! because of that. A process runs one command.

use super::id::FileId;
use std::collections::HashSet;
use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

#[derive(Default)]
struct Inputs {
    files: HashSet<FileId>,
    folders: HashSet<FileId>,
}

fn inputs() -> MutexGuard<'static, Inputs> {
    static INPUTS: OnceLock<Mutex<Inputs>> = OnceLock::new();
    INPUTS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes an input that is not opened yet. One that is not there is none.
pub fn note(path: &Path) {
    // A pipe or a device loses nothing when it is written to.
    if std::fs::metadata(path).is_ok_and(|found| found.is_file())
        && let Ok(id) = FileId::of_path(path)
    {
        inputs().files.insert(id);
    }
}

/// Notes a folder of which all files are inputs.
pub fn note_folder(path: &Path) {
    if let Ok(id) = FileId::of_path(path) {
        inputs().folders.insert(id);
    }
}

/// Notes an input that is open.
pub(super) fn note_file(file: &File) {
    if file.metadata().is_ok_and(|found| found.is_file())
        && let Ok(id) = FileId::of_file(file)
    {
        inputs().files.insert(id);
    }
}

/// Whether a path leads to an input, or to a file in a folder of inputs.
pub(super) fn is_input(path: &Path) -> bool {
    let Ok(id) = FileId::of_path(path) else { return false };
    let known = inputs();
    if known.files.contains(&id) || known.folders.is_empty() {
        return known.files.contains(&id);
    }
    let Ok(absolute) = path.canonicalize() else { return false };
    absolute.ancestors().any(|folder| FileId::of_path(folder).is_ok_and(|id| known.folders.contains(&id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_is_known_by_every_name() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("sub")).unwrap();
        for name in ["a", "other"] {
            std::fs::write(at(name), name).unwrap();
        }
        std::fs::hard_link(at("a"), at("hard")).unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink(at("a"), at("link")).unwrap();
        assert!(!is_input(&at("a")));
        note(&at("a"));
        note(&at("none"));
        for name in ["a", "sub/../a", "./a", "hard"] {
            assert!(is_input(&at(name)), "{name}");
        }
        assert!(!is_input(&at("other")) && !is_input(&at("none")) && !is_input(&at("sub")));
        #[cfg(unix)]
        assert!(is_input(&at("link")));
    }

    #[test]
    fn an_opened_input_stays_known_when_it_is_renamed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("a"), "a").unwrap();
        note_file(&File::open(at("a")).unwrap());
        std::fs::rename(at("a"), at("b")).unwrap();
        std::fs::write(at("a"), "another").unwrap();
        assert!(is_input(&at("b")) && !is_input(&at("a")));
    }

    #[test]
    fn files_below_a_folder_of_inputs_are_inputs() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("lab/samples")).unwrap();
        std::fs::write(at("lab/samples/0.parquet"), "x").unwrap();
        note_folder(&at("lab"));
        assert!(is_input(&at("lab/samples/0.parquet")) && is_input(&at("lab/samples/../samples/0.parquet")));
        assert!(!is_input(&at("lab/samples/none")), "nothing is replaced there");
    }
}
