//! What processes left behind that were killed: temporary files and folders.

use super::OutputError;
use super::sink::TEMPORARY;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;
use stk_base::files::Below;

/// Of whom temporary files are known to be left behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeftBehind<'a> {
    /// Of everybody: nobody else writes to the folder.
    OfAll,
    /// Of earlier runs of the owner with this name ([`owned`](stk_base::interrupt::owned)), which
    /// has the name alone.
    Of(&'a str),
}

/// How old temporary files of others must be before they are taken for left behind.
const OLD: Duration = Duration::from_secs(24 * 60 * 60);

/// Begins the names of temporary folders in `_stk/tmp`.
pub(super) const TEMPORARY_FOLDER: &str = "new-";

/// Removes what interrupted runs left behind in a folder of outputs; of runs that may still be at
/// work only what is a day old. Only what has a name that stk gives is removed.
///
/// # Errors
///
/// That a link is at such a name or on the way to it, or the error of the system.
pub fn remove_left_behind(folder: &Path, whose: LeftBehind<'_>) -> Result<(), OutputError> {
    let out = Below::folder(folder).map_err(OutputError::at(folder, "cannot be opened"))?;
    let own = out.join("_stk").join("tmp");
    let folders = [out.join("_stk"), out.join("_stk").join("done"), out];
    for (folder, is_own) in folders.into_iter().map(|folder| (folder, false)).chain([(own, true)]) {
        for name in folder.list().map_err(OutputError::at(&folder.path(), "cannot be listed"))? {
            let made_by = match is_own {
                true => name.strip_prefix(TEMPORARY_FOLDER).or_else(|| lock_of_part(&name)),
                false => None,
            };
            let made_by = made_by
                .or_else(|| name.strip_suffix(TEMPORARY.1).and_then(|name| name.strip_prefix(TEMPORARY.0)));
            let Some(made_by) = made_by else { continue };
            let at = folder.join(&name);
            let is_old = || {
                let changed = at.modified();
                changed.is_ok_and(|time| time.elapsed().is_ok_and(|passed| passed >= OLD))
            };
            let is_left = match whose {
                LeftBehind::OfAll => true,
                LeftBehind::Of(owner) => stk_base::interrupt::is_owned(made_by, owner) || is_old(),
            };
            if is_left {
                remove(&at).map_err(OutputError::at(&at.path(), "cannot be removed"))?;
            }
        }
    }
    Ok(())
}

/// The name of a lock in `_stk/tmp`, which has no owner in front.
fn lock_of_part(name: &str) -> Option<&str> {
    name.starts_with(super::lock::OF_PART).then_some(name)
}

fn remove(at: &Below) -> io::Result<()> {
    // A link is an error.
    match at.kind()? {
        None => Ok(()),
        Some(_) => match at.remove_all() {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        },
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
            std::fs::create_dir_all(own.join("new-1-of-12.x/new")).unwrap();
            std::fs::create_dir_all(own.join("new-1-of-1.x/new")).unwrap();
            std::fs::create_dir_all(own.join("thesis")).unwrap();
            std::fs::write(own.join("letter.txt"), "mine").unwrap();
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
        let mut others = [
            ".stk-2-of-12.x.partial",
            ".stk-x.partial",
            "new-1-of-12.x",
            "_stk",
            "a.folded",
            "lock.1-of-1",
            "thesis",
            "letter.txt",
        ];
        others.sort_unstable();
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
        assert_eq!(left(), ["_stk", "a.folded", "letter.txt", "thesis"], "others made the last two");
    }

    #[cfg(unix)]
    #[test]
    fn a_link_where_stk_removes_is_an_error_and_nothing_is_removed() {
        use std::os::unix::fs::symlink;
        for at in ["_stk", "_stk/tmp", "_stk/tmp/new-x", ".stk-x.partial"] {
            let folder = tempfile::tempdir().unwrap();
            let (out, home) = (folder.path().join("out"), folder.path().join("home"));
            for made in ["docs", "tmp/docs", "tmp/new-y", "new-y"] {
                std::fs::create_dir_all(home.join(made)).unwrap();
            }
            std::fs::write(home.join("new-y/letter.txt"), "mine").unwrap();
            std::fs::write(home.join("tmp/new-y/letter.txt"), "mine").unwrap();
            std::fs::create_dir_all(out.join(at).parent().unwrap()).unwrap();
            symlink(&home, out.join(at)).unwrap();
            for whose in [LeftBehind::OfAll, LeftBehind::Of("1-of-1")] {
                let error = match remove_left_behind(&out, whose) {
                    Err(OutputError::Link(error)) => error.to_string(),
                    // What may be of a run that is at work is not touched.
                    Ok(()) if whose != LeftBehind::OfAll => continue,
                    other => panic!("{at}: {other:?}"),
                };
                let link = out.join(at);
                assert!(error.starts_with(&format!("{}: is a link", link.display())), "{error}");
            }
            assert!(home.join("docs").exists() && home.join("new-y/letter.txt").exists());
            assert!(home.join("tmp/docs").exists() && home.join("tmp/new-y/letter.txt").exists());
        }
    }
}
