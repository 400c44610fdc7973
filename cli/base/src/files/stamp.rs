//! Whether a file was written since it was read, without reading it: what make, rsync and git
//! compare.

use std::fs::Metadata;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What the system says of a regular file, which differs after it was written or replaced: its
/// length; when its content and its properties were changed, in nanoseconds since the Unix epoch;
/// its number. Where the system has not all of them, they are 0.
pub type FileStamp = [i64; 4];

/// The coarsest clock of a file system, which is FAT's: a file that is written again so soon may
/// have the time of before.
const COARSEST: Duration = Duration::from_secs(2);

/// The stamp of the regular file that a path leads to.
pub fn stamp(path: &Path) -> Option<FileStamp> {
    let found = std::fs::metadata(path).ok().filter(Metadata::is_file)?;
    let modified = found.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    let modified = i64::try_from(modified.as_nanos()).ok()?;
    let (changed, number) = properties(&found)?;
    Some([i64::try_from(found.len()).ok()?, modified, changed, number])
}

/// [`stamp`] of a file that is about to be read, if no later change can have the same one: it was
/// changed before the last tick of the clock. git calls the others racy.
pub fn settled_stamp(path: &Path) -> Option<FileStamp> {
    let until = SystemTime::now().checked_sub(COARSEST)?.duration_since(UNIX_EPOCH).ok()?;
    let until = i64::try_from(until.as_nanos()).ok()?;
    stamp(path).filter(|[_, modified, changed, _]| *modified.max(changed) < until)
}

#[cfg(unix)]
fn properties(found: &Metadata) -> Option<(i64, i64)> {
    use std::os::unix::fs::MetadataExt;
    let changed = found.ctime().checked_mul(1_000_000_000)?.checked_add(found.ctime_nsec())?;
    Some((changed, found.ino() as i64))
}

#[cfg(windows)]
fn properties(found: &Metadata) -> Option<(i64, i64)> {
    use std::os::windows::fs::MetadataExt;
    // In units of 100 ns since 1601. std has neither the time of change nor the file's number.
    Some((0, found.creation_time() as i64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::time::Instant;

    #[test]
    fn a_file_that_was_written_or_replaced_has_another_stamp() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        assert_eq!(stamp(&path), None);
        assert_eq!(stamp(folder.path()), None, "a folder");
        std::fs::write(&path, "one").unwrap();
        let first = stamp(&path).unwrap();
        assert_eq!(stamp(&path), Some(first));
        std::fs::write(&path, "longer").unwrap();
        assert_ne!(stamp(&path), Some(first));
        // As long as before, with its time of before.
        std::thread::sleep(Duration::from_millis(20));
        std::fs::write(&path, "two").unwrap();
        let modified = UNIX_EPOCH + Duration::from_nanos(first[1] as u64);
        File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
        let found = stamp(&path).unwrap();
        assert_eq!(found[..2], first[..2]);
        assert_eq!(found == first, cfg!(windows), "only Unix has the time of change");
        // Another file of that name.
        let other = folder.path().join("b");
        std::fs::write(&other, "six").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert_ne!(stamp(&path), Some(first));
    }

    #[test]
    fn a_file_that_was_just_written_is_not_settled() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let begun = Instant::now();
        std::fs::write(&path, "one").unwrap();
        // Unless this thread waited that long.
        assert!(settled_stamp(&path).is_none() || begun.elapsed() >= COARSEST);
        let future = SystemTime::now() + 1000 * COARSEST;
        File::options().write(true).open(&path).unwrap().set_modified(future).unwrap();
        std::thread::sleep(COARSEST + Duration::from_millis(50));
        assert_eq!(settled_stamp(&path), None, "a time to come");
        std::fs::write(&path, "two").unwrap();
        std::thread::sleep(COARSEST + Duration::from_millis(50));
        assert_eq!(settled_stamp(&path), stamp(&path));
        assert!(settled_stamp(&path).is_some());
    }
}
