//! The traces that a command line names: files, folders, and patterns that no shell has expanded.

use super::datasets::DatasetArg;
use super::{Exit, print_error};
use anyhow::{Context, bail};
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};
use stk_base::files::note_input;
use stk_schema::typed;

/// The traces that the arguments name, in their order. Those of a folder or pattern are sorted. An
/// argument that names none is reported, also by the exit code.
pub(super) fn traces(named: &[PathBuf]) -> (Vec<PathBuf>, Exit) {
    let mut files = Vec::new();
    let mut exit = Exit::Ok;
    for path in named {
        match expanded(path) {
            Ok(found) => {
                // Before any is opened: outputs may be made by then.
                found.iter().for_each(|file| note_input(file));
                files.extend(found);
            }
            Err(error) => {
                print_error(&error);
                exit = Exit::Failure;
            }
        }
    }
    (files, exit)
}

/// The one trace that an argument names.
///
/// # Errors
///
/// When it names none, or several.
pub(super) fn trace(named: &Path) -> anyhow::Result<PathBuf> {
    match expanded(named)?.as_slice() {
        [one] => {
            note_input(one);
            Ok(one.clone())
        }
        [first, others @ ..] => {
            let (named, count) = (named.display(), 1 + others.len());
            bail!("{named}: {count} traces: name one of them, such as {}", first.display())
        }
        [] => bail!("{}: no trace", named.display()),
    }
}

/// The traces that one argument names; at least one. A file need not exist: who opens it reports
/// that.
fn expanded(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    refuse_dataset(path)?;
    if !path.components().any(|part| is_pattern(&part)) || path.exists() {
        return of_path(path);
    }
    let mut found = vec![PathBuf::new()];
    for part in path.components() {
        if is_pattern(&part) {
            let pattern = part.as_os_str().to_string_lossy();
            found = found.iter().flat_map(|folder| matches(folder, &pattern)).collect();
        } else {
            found.iter_mut().for_each(|path| path.push(part));
            found.retain(|path| path.exists());
        }
    }
    if found.is_empty() {
        bail!("{}: no file matches", path.display());
    }
    let mut files = Vec::new();
    for path in found {
        files.extend(of_path(&path)?);
    }
    Ok(files)
}

/// Refuses a dataset where traces are taken.
///
/// # Errors
///
/// When the path is that of a dataset, with or without labels behind it.
pub(super) fn refuse_dataset(path: &Path) -> anyhow::Result<()> {
    match DatasetArg::of(path)? {
        None => Ok(()),
        Some(_) => bail!(
            "{}: is a Parquet dataset: stk stats, stk diff and stk symbols apply read it",
            path.display()
        ),
    }
}

/// A file as it is; of a folder, the traces in it.
fn of_path(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let is_trace = |path: &PathBuf| {
        path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("stk")) && path.is_file()
    };
    refuse_dataset(path)?;
    let entries = std::fs::read_dir(path).with_context(|| path.display().to_string())?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_trace).collect();
    if files.is_empty() {
        bail!("{}: the folder holds no .stk file", path.display());
    }
    files.sort();
    Ok(files)
}

fn is_pattern(part: &Component<'_>) -> bool {
    matches!(part, Component::Normal(name) if name.to_string_lossy().contains(['*', '?']))
}

/// What a folder holds that fits, sorted.
fn matches(folder: &Path, pattern: &str) -> Vec<PathBuf> {
    let here = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let names = std::fs::read_dir(here).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let mut found: Vec<PathBuf> =
        names.filter(|name| fits(pattern, name)).map(|name| folder.join(name)).collect();
    found.sort();
    found
}

/// Whether a name fits a pattern, as shells take it: `*` for any characters, `?` for one; a name
/// with a dot in front only if the pattern has it too.
fn fits(pattern: &str, name: &OsStr) -> bool {
    let cased = |text: &str| if cfg!(windows) { text.to_lowercase() } else { text.to_owned() };
    let (pattern, name) = (cased(pattern), cased(&name.to_string_lossy()));
    let is_hidden = name.starts_with('.') && !pattern.starts_with('.');
    !is_hidden && typed::fits(pattern.as_bytes(), name.as_bytes(), false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_a_dot_in_front_fit_only_patterns_with_one() {
        let fits = |pattern, name| fits(pattern, OsStr::new(name));
        assert!(fits("*.stk", "a.stk") && fits("?.stk", "ä.stk") && fits(".*", ".stk"));
        assert!(!fits("*.stk", ".stk.stk.stk") && !fits("*.stk", "a.stk2"));
        assert_eq!(fits("A*", "a.stk"), cfg!(windows));
    }

    #[test]
    fn folders_and_patterns_name_their_traces_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(path("lab1/sub")).unwrap();
        std::fs::create_dir_all(path("lab2")).unwrap();
        std::fs::create_dir_all(path("empty")).unwrap();
        for name in ["lab1/b.stk", "lab1/a.STK", "lab1/a.txt", "lab1/sub/c.stk", "lab2/d.stk"] {
            std::fs::write(path(name), "").unwrap();
        }
        let names = |named: &[&str]| {
            let named: Vec<PathBuf> = named.iter().map(|name| path(name)).collect();
            let (files, exit) = traces(&named);
            let names = files
                .iter()
                .map(|file| file.strip_prefix(folder.path()).unwrap().to_string_lossy().replace('\\', "/"));
            (names.collect::<Vec<_>>(), exit)
        };
        let are = |files: &[&str], exit| (files.iter().map(|&file| file.to_owned()).collect(), exit);
        assert_eq!(names(&["lab1"]), are(&["lab1/a.STK", "lab1/b.stk"], Exit::Ok));
        assert_eq!(names(&["lab?/*.stk"]), are(&["lab1/b.stk", "lab2/d.stk"], Exit::Ok));
        assert_eq!(names(&["l*1", "lab2"]), are(&["lab1/a.STK", "lab1/b.stk", "lab2/d.stk"], Exit::Ok));
        #[cfg(unix)] // where a file may have such a name: it is meant itself
        {
            std::fs::write(path("x?.stk"), "").unwrap();
            std::fs::write(path("xy.stk"), "").unwrap();
            assert_eq!(names(&["x?.stk"]), are(&["x?.stk"], Exit::Ok));
        }
        // What names no trace is reported, and the others are taken.
        assert_eq!(names(&["empty", "no*.stk", "lab2"]), are(&["lab2/d.stk"], Exit::Failure));
        // Whoever opens it says that it is not there.
        assert_eq!(names(&["none.stk"]), are(&["none.stk"], Exit::Ok));
        let reported = |name: &str| trace(&path(name)).unwrap_err().to_string();
        assert!(reported("lab1").contains("2 traces: name one of them"), "{}", reported("lab1"));
        assert!(reported("empty").ends_with("the folder holds no .stk file"), "{}", reported("empty"));
        assert!(reported("no*.stk").ends_with("no file matches"), "{}", reported("no*.stk"));
        assert_eq!(trace(&path("lab2")).unwrap(), path("lab2/d.stk"));
    }
}
