//! One process at a time makes tables of a dataset, or converts one part of a batch's traces: it
//! holds a file, which says who it is.
//!
//! The file is created exclusively. While it is held, a number in it changes every two seconds. A
//! file that stays as it is for half a minute is of a process that was killed, and is taken over;
//! at once if the process was one of this machine and is not in `/proc`.

use super::OutputError;
use serde::{Deserialize, Serialize};
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the number changes.
const BEAT: Duration = Duration::from_secs(2);
/// After this time without a change nobody holds it.
const STALE: Duration = Duration::from_secs(30);
/// How often the file is looked at by who waits.
const LOOK: Duration = Duration::from_millis(200);

/// Who holds a lock.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
struct Holder {
    pid: u32,
    host: String,
    /// Changes while it is held.
    beat: u64,
}

/// The right to do something in a folder of outputs. It ends with the value.
#[derive(Debug)]
pub struct FolderLock {
    path: PathBuf,
    beat: Option<(Sender<()>, JoinHandle<()>)>,
}

impl FolderLock {
    /// The right to make the tables of a dataset. Waits until no other process has it. Tells once
    /// who has.
    ///
    /// # Errors
    ///
    /// The error of the system.
    #[cfg(feature = "parquet")]
    pub(super) fn of_tables(dataset: &Path) -> Result<FolderLock, OutputError> {
        FolderLock::hold(dataset.join("_stk").join("lock"), dataset, "makes its tables", STALE)
    }

    /// The right to convert a part of the traces of a batch to `folder`, by the part's name. Waits
    /// as for tables.
    ///
    /// # Errors
    ///
    /// The error of the system.
    pub fn of_part(folder: &Path, part: &str) -> Result<FolderLock, OutputError> {
        let path = folder.join("_stk").join("tmp").join(format!("lock.{part}"));
        FolderLock::hold(path, folder, &format!("converts part {part}"), STALE)
    }

    fn hold(path: PathBuf, folder: &Path, work: &str, stale: Duration) -> Result<FolderLock, OutputError> {
        let parent = path.parent().unwrap_or(folder);
        std::fs::create_dir_all(parent).map_err(OutputError::at(parent, "cannot be made"))?;
        let mut seen: Option<(Vec<u8>, Instant)> = None;
        let mut told = false;
        loop {
            match create(&path, &Holder { pid: std::process::id(), host: host(), beat: 0 }) {
                Ok(()) => return Ok(FolderLock::beating(path)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(OutputError::at(&path, "cannot be made")(error)),
            }
            // A file that is gone meanwhile can be made in the next round.
            let now = std::fs::read(&path).unwrap_or_default();
            match &seen {
                Some((before, since)) if *before == now => {
                    if since.elapsed() >= stale || is_gone(&now) {
                        log::warn!("{}: left behind by {}: removed", path.display(), who(&now));
                        remove(&path, &now)?;
                        seen = None;
                        continue;
                    }
                }
                _ => seen = Some((now.clone(), Instant::now())),
            }
            if !std::mem::replace(&mut told, true) {
                log::warn!("{}: {} {work}: waiting", folder.display(), who(&now));
            }
            std::thread::sleep(LOOK);
        }
    }

    fn beating(path: PathBuf) -> FolderLock {
        let (end, ended) = channel();
        let file = path.clone();
        let beat = std::thread::Builder::new().name("lock".to_owned()).spawn(move || {
            let mut holder = Holder { pid: std::process::id(), host: host(), beat: 0 };
            while ended.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
                holder.beat += 1;
                let text = serde_json::to_vec(&holder).unwrap_or_default();
                // If it cannot be written, another process takes the lock over in the end.
                let _ = std::fs::write(&file, text);
            }
        });
        FolderLock { path, beat: beat.ok().map(|thread| (end, thread)) }
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.beat.take() {
            drop(end);
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

fn create(path: &Path, holder: &Holder) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(&serde_json::to_vec(holder).unwrap_or_default())
}

/// Removes a lock that was left behind: of those who wait, one removes it, since it is renamed
/// first.
fn remove(path: &Path, expected: &[u8]) -> Result<(), OutputError> {
    let aside = path.with_extension(format!("{}", std::process::id()));
    match std::fs::rename(path, &aside) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(OutputError::at(path, "cannot be removed")(error)),
        Ok(()) => {}
    }
    if std::fs::read(&aside).unwrap_or_default() != expected {
        // It was another one's already: give it back, unless there is a third.
        let _ = std::fs::hard_link(&aside, path);
    }
    std::fs::remove_file(&aside).map_err(OutputError::at(&aside, "cannot be removed"))
}

/// Whether the holder is known to be no process any more: it was one of this machine, and the
/// system lists its processes.
fn is_gone(text: &[u8]) -> bool {
    let Ok(holder) = serde_json::from_slice::<Holder>(text) else { return false };
    let processes = Path::new("/proc");
    holder.host == host()
        && processes.join(std::process::id().to_string()).exists()
        && !processes.join(holder.pid.to_string()).exists()
}

/// The holder in words.
fn who(text: &[u8]) -> String {
    match serde_json::from_slice::<Holder>(text) {
        Ok(holder) => {
            let host = stk_schema::text::printable(&holder.host).into_owned();
            format!("process {} on {host}", holder.pid)
        }
        Err(_) => "another process".to_owned(),
    }
}

/// The name of this machine, as far as the system tells it without more.
fn host() -> String {
    let named = ["COMPUTERNAME", "HOSTNAME"].iter().find_map(|name| std::env::var(name).ok());
    let told = || std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    named.or_else(told).map_or_else(|| "this machine".to_owned(), |name| name.trim().to_owned())
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
        let path = folder.path().join("lock");
        create(&path, &Holder { pid: 1, host: "lab".to_owned(), beat: 7 }).unwrap();
        let stale = Duration::from_millis(300);
        let lock = FolderLock::hold(path.clone(), folder.path(), "works", stale).unwrap();
        let holder: Holder = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(holder.pid, std::process::id());
        drop(lock);
        assert!(!path.exists());
        assert!(!is_gone(br#"{"pid":1,"host":"lab","beat":7}"#) && !is_gone(b"?"), "nothing is known of it");
        #[cfg(target_os = "linux")]
        assert!(is_gone(&serde_json::to_vec(&Holder { pid: u32::MAX, host: host(), beat: 1 }).unwrap()));
        assert_eq!(who(br#"{"pid":1,"host":"lab","beat":7}"#), "process 1 on lab");
        assert_eq!(who(b"?"), "another process");
    }
}
