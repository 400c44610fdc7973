//! What processes left behind that were killed: temporary files and folders.

use super::OutputError;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

/// Of whom temporary files are known to be left behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeftBehind<'a> {
    /// Of everybody: nobody else writes to the folder.
    OfAll,
    /// Of earlier runs of the owner with this name ([`owned`](crate::interrupt::owned)), which has
    /// the name alone.
    Of(&'a str),
}

/// How old temporary files of others must be before they are taken for left behind.
const OLD: Duration = Duration::from_secs(24 * 60 * 60);

/// Removes what interrupted runs left behind in a folder of outputs; of runs that may still be at
/// work only what is a day old.
///
/// # Errors
///
/// When the system refuses.
pub fn remove_left_behind(folder: &Path, whose: LeftBehind<'_>) -> Result<(), OutputError> {
    let own = folder.join("_stk").join("tmp");
    for (folder, is_own) in [(folder, false), (&own, true)] {
        let Ok(entries) = std::fs::read_dir(folder) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let ours = match is_own {
                true => Some(name.as_str()),
                false => name.strip_suffix(".partial").and_then(|name| name.strip_prefix(".stk-")),
            };
            let changed = entry.metadata().and_then(|facts| facts.modified());
            let is_old = || changed.is_ok_and(|time| time.elapsed().is_ok_and(|passed| passed >= OLD));
            let is_left = |name: &str| match whose {
                LeftBehind::OfAll => true,
                LeftBehind::Of(owner) => crate::interrupt::is_owned(name, owner) || is_old(),
            };
            if ours.is_some_and(is_left) {
                remove(&entry.path())?;
            }
        }
    }
    Ok(())
}

fn remove(path: &Path) -> Result<(), OutputError> {
    let removed = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(OutputError::at(path, "cannot be removed")(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_of_the_owner_or_old_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("_stk/tmp");
        let make = || {
            std::fs::create_dir_all(own.join("1-of-12.x/new")).unwrap();
            std::fs::create_dir_all(own.join("1-of-1.x/new")).unwrap();
            for name in [".stk-1-of-1.x.partial", ".stk-2-of-12.x.partial", ".stk-x.partial", "a.folded"] {
                std::fs::write(folder.path().join(name), "x").unwrap();
            }
            std::fs::write(own.join("lock.1-of-1"), "x").unwrap();
        };
        let left = || {
            let names = |folder: &Path| -> Vec<String> {
                let entries = std::fs::read_dir(folder).unwrap().flatten();
                entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
            };
            let mut names = [names(folder.path()), names(&own)].concat();
            names.sort();
            names
        };
        make();
        remove_left_behind(folder.path(), LeftBehind::Of("1-of-1")).unwrap();
        let others =
            [".stk-2-of-12.x.partial", ".stk-x.partial", "1-of-12.x", "_stk", "a.folded", "lock.1-of-1"];
        assert_eq!(left(), others);
        let old = std::time::SystemTime::now() - 2 * OLD;
        std::fs::File::options()
            .write(true)
            .open(folder.path().join(".stk-x.partial"))
            .unwrap()
            .set_modified(old)
            .unwrap();
        remove_left_behind(folder.path(), LeftBehind::Of("1-of-1")).unwrap();
        assert!(!left().contains(&".stk-x.partial".to_owned()));
        remove_left_behind(folder.path(), LeftBehind::OfAll).unwrap();
        assert_eq!(left(), ["_stk", "a.folded"]);
    }
}
