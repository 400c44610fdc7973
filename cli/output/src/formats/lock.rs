//! One process at a time makes tables of a dataset, or converts one part of a batch's traces: it
//! holds a file, which says who it is.
//!
//! The file is created exclusively. While it is held, a number in it changes every two seconds. A
//! file that stays as it is for half a minute is of a process that was killed, and is taken over;
//! at once if the process was one of this machine and is not in `/proc`.

use super::OutputError;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use stk_base::files::{Below, look_at, read_within};

/// How often the number changes.
const BEAT: Duration = Duration::from_secs(2);
/// After this time without a change nobody holds it.
const STALE: Duration = Duration::from_secs(30);
/// How often the file is looked at by who waits.
const LOOK: Duration = Duration::from_millis(200);

/// Bytes of the file that are read at most.
const MOST_READ: u64 = 64 << 10;

/// Begins the names of the locks of parts, in `_stk/tmp`.
pub(super) const OF_PART: &str = "lock.";

/// Who holds a lock.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
struct LockOwner {
    pid: u32,
    host: String,
    /// Changes while it is held.
    beat: u64,
}

/// The right to do something in a folder of outputs. It ends with the value.
#[derive(Debug)]
pub struct FolderLock {
    at: Below,
    beat: Option<(Sender<()>, JoinHandle<()>)>,
}

impl FolderLock {
    /// The right to make the tables of a dataset. Waits until no other process has it. Reports once
    /// who has.
    #[cfg(feature = "parquet")]
    pub(super) fn of_tables(dataset: &Below) -> Result<FolderLock, OutputError> {
        FolderLock::hold(dataset.join("_stk").join("lock"), &dataset.path(), "makes its tables", STALE)
    }

    /// The right to convert a part of the traces of a batch to `folder`, by the part's name. Waits
    /// as for tables.
    pub fn of_part(folder: &Path, part: &str) -> Result<FolderLock, OutputError> {
        let out = Below::folder(folder).map_err(OutputError::at(folder, "cannot be opened"))?;
        let at = out.join("_stk").join("tmp").join(format!("{OF_PART}{part}"));
        FolderLock::hold(at, folder, &format!("converts part {part}"), STALE)
    }

    fn hold(at: Below, folder: &Path, work: &str, stale: Duration) -> Result<FolderLock, OutputError> {
        let path = at.path();
        let parent = at.parent();
        parent.make_folder().map_err(OutputError::at(&parent.path(), "cannot be made"))?;
        let mut seen: Option<(Vec<u8>, Instant)> = None;
        let mut reported = false;
        loop {
            match create(&at, &LockOwner { pid: std::process::id(), host: host(), beat: 0 }) {
                Ok(file) => return Ok(FolderLock::beating(at, file)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(OutputError::at(&path, "cannot be made")(error)),
            }
            let now = match at.read(MOST_READ) {
                Ok(text) => text,
                // One that is gone meanwhile can be made in the next round.
                Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
                Err(error) => return Err(OutputError::at(&path, "cannot be read")(error)),
            };
            let (holder, is_gone) = lock_holder(&now);
            match &seen {
                Some((before, since)) if *before == now => {
                    if since.elapsed() >= stale || is_gone {
                        log::warn!("{}: left behind by {holder}: removed", path.display());
                        remove(&at, &now)?;
                        seen = None;
                        continue;
                    }
                }
                _ => seen = Some((now.clone(), Instant::now())),
            }
            if !std::mem::replace(&mut reported, true) {
                log::warn!("{}: {holder} {work}: waiting", folder.display());
            }
            std::thread::sleep(LOOK);
        }
    }

    fn beating(at: Below, mut file: File) -> FolderLock {
        let (end, ended) = channel();
        let beat = std::thread::Builder::new().name("lock".to_owned()).spawn(move || {
            let mut holder = LockOwner { pid: std::process::id(), host: host(), beat: 0 };
            while ended.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
                holder.beat += 1;
                let text = serde_json::to_vec(&holder).unwrap_or_default();
                // If it cannot be written, another process takes the lock over in the end. Not by
                // its name: another file may have that then.
                let _ = write(&mut file, &text);
            }
        });
        FolderLock { at, beat: beat.ok().map(|thread| (end, thread)) }
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.beat.take() {
            drop(end);
            let _ = thread.join();
        }
        let _ = self.at.remove_file();
    }
}

fn create(at: &Below, holder: &LockOwner) -> io::Result<File> {
    let mut file = at.create_new()?;
    file.write_all(&serde_json::to_vec(holder).unwrap_or_default())?;
    Ok(file)
}

/// Replaces what is in the file. What is longer is cut afterwards, so that it is never empty.
fn write(file: &mut File, text: &[u8]) -> io::Result<()> {
    file.seek(SeekFrom::Start(0))?;
    file.write_all(text)?;
    file.set_len(text.len() as u64)
}

/// Removes a lock that was left behind: of those who wait, one removes it, since it is renamed
/// first.
fn remove(at: &Below, expected: &[u8]) -> Result<(), OutputError> {
    let path = at.path();
    let name = at.name().map_err(OutputError::at(&path, "cannot be removed"))?;
    let aside = at.with_name(Path::new(name).with_extension(std::process::id().to_string()));
    match at.rename(&aside) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(OutputError::at(&path, "cannot be removed")(error)),
        Ok(()) => {}
    }
    if aside.read(MOST_READ).unwrap_or_default() != expected {
        // It was another one's already: give it back, unless there is a third.
        let _ = aside.link_to(at);
    }
    aside.remove_file().map_err(OutputError::at(&path, "cannot be removed"))
}

/// The holder of a lock with this text, in words; and whether it is known to be no process any
/// more: it was one of this machine, and the system lists its processes.
pub fn lock_holder(text: &[u8]) -> (String, bool) {
    let Ok(holder) = serde_json::from_slice::<LockOwner>(text) else {
        return ("another process".to_owned(), false);
    };
    let processes = Path::new("/proc");
    let is_gone = holder.host == host()
        && processes.join(std::process::id().to_string()).exists()
        && !processes.join(holder.pid.to_string()).exists();
    let host = stk_schema::text::printable(&holder.host);
    (format!("process {} on {host}", holder.pid), is_gone)
}

/// The name of this machine, as far as the system reports it without more.
fn host() -> String {
    let named = ["COMPUTERNAME", "HOSTNAME"].iter().find_map(|name| std::env::var(name).ok());
    let reported = || {
        let file = look_at(Path::new("/proc/sys/kernel/hostname")).ok()?;
        Some(String::from_utf8_lossy(&read_within(file, 4096).ok()?).into_owned())
    };
    named.or_else(reported).map_or_else(|| "this machine".to_owned(), |name| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn one_at_a_time_holds_it() {
        let folder = tempfile::tempdir().unwrap();
        let inside = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let lock = FolderLock::of_part(folder.path(), "1-of-2").unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "nobody else");
                    std::thread::sleep(Duration::from_millis(20));
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(lock);
                });
            }
        });
        assert!(!folder.path().join("_stk/tmp/lock.1-of-2").exists());
        let _other = FolderLock::of_part(folder.path(), "2-of-2").unwrap();
        drop(FolderLock::of_part(folder.path(), "1-of-2").unwrap());
    }

    #[test]
    fn what_a_killed_process_left_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let at = Below::folder(folder.path()).unwrap().join("lock");
        let path = at.path();
        create(&at, &LockOwner { pid: 1, host: "lab".to_owned(), beat: 7 }).unwrap();
        let stale = Duration::from_millis(300);
        let lock = FolderLock::hold(at, folder.path(), "works", stale).unwrap();
        let holder: LockOwner = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(holder.pid, std::process::id());
        drop(lock);
        assert!(!path.exists());
        let of_lab = lock_holder(br#"{"pid":1,"host":"lab","beat":7}"#);
        assert_eq!(of_lab, ("process 1 on lab".to_owned(), false), "nothing is known of it");
        assert_eq!(lock_holder(b"?"), ("another process".to_owned(), false));
        #[cfg(target_os = "linux")]
        assert!(
            lock_holder(&serde_json::to_vec(&LockOwner { pid: u32::MAX, host: host(), beat: 1 }).unwrap()).1
        );
    }
}
