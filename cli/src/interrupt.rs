//! Ctrl-C: incomplete files are removed, and the program ends with exit code 130.
//!
//! Every file or folder that is not to keep its present name must be made here: [`file`],
//! [`folder`]. Once [`catch`] has been called, an interrupt removes them all and ends the process.
// The calls to the system for signals are unsafe. Each states its reason.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::exit;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Files and folders that an interrupt removes.
static MADE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn made() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    MADE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What else is done before an interrupt ends the program.
static BEFORE_END: Mutex<Vec<fn()>> = Mutex::new(Vec::new());

/// Has `work` done before an interrupt ends the program.
pub(crate) fn before_end(work: fn()) {
    BEFORE_END.lock().unwrap_or_else(PoisonError::into_inner).push(work);
}

/// Stands in the names of temporary files and folders of outputs, if it is set: who makes them.
static OWNER: OnceLock<String> = OnceLock::new();

/// Has the names of temporary files and folders of outputs say that they are of this owner, from
/// now on. The first owner stays.
pub(crate) fn set_owner(owner: &str) {
    OWNER.get_or_init(|| owner.to_owned());
}

/// The beginning of the name of a temporary file or folder of outputs.
pub(crate) fn owned(prefix: &str) -> String {
    OWNER.get().map_or_else(|| prefix.to_owned(), |owner| format!("{prefix}{owner}."))
}

/// Whether a name, without the prefix, is of this owner.
pub(crate) fn is_owned(name: &str, owner: &str) -> bool {
    name.strip_prefix(owner).is_some_and(|rest| rest.starts_with('.'))
}

/// A temporary file. It is removed when it is dropped or the program is interrupted, unless it got
/// its final name before.
#[derive(Debug)]
pub(crate) struct TemporaryFile {
    /// `None` once it has its final name.
    file: Option<tempfile::NamedTempFile>,
    _kept: MadePath,
}

/// A temporary folder. It is removed with its contents when it is dropped or the program is
/// interrupted.
#[cfg(any(windows, test, feature = "parquet"))]
#[derive(Debug)]
pub(crate) struct TemporaryFolder {
    folder: tempfile::TempDir,
    _kept: MadePath,
}

/// An entry of [`MADE`].
#[derive(Debug)]
struct MadePath(PathBuf);

impl Drop for MadePath {
    fn drop(&mut self) {
        made().remove(&self.0);
    }
}

/// Makes a temporary file in `folder`, with a name from `builder`.
///
/// # Errors
///
/// The error of the system.
pub(crate) fn file(builder: &tempfile::Builder<'_, '_>, folder: &Path) -> io::Result<TemporaryFile> {
    // Made under the lock, so that an interrupt cannot come between the file and its entry.
    let mut made = made();
    let file = builder.tempfile_in(folder)?;
    let path = file.path().to_owned();
    made.insert(path.clone());
    Ok(TemporaryFile { file: Some(file), _kept: MadePath(path) })
}

/// Makes a temporary folder in the system's folder for such.
///
/// # Errors
///
/// The error of the system.
#[cfg(any(windows, test))]
pub(crate) fn folder() -> io::Result<TemporaryFolder> {
    folder_in(&std::env::temp_dir(), "stk-")
}

/// Makes a temporary folder in `parent`, with a name that begins with `prefix`.
///
/// # Errors
///
/// The error of the system.
#[cfg(any(windows, test, feature = "parquet"))]
pub(crate) fn folder_in(parent: &Path, prefix: &str) -> io::Result<TemporaryFolder> {
    let mut made = made();
    let folder = tempfile::Builder::new().prefix(prefix).tempdir_in(parent)?;
    let path = folder.path().to_owned();
    made.insert(path.clone());
    Ok(TemporaryFolder { folder, _kept: MadePath(path) })
}

impl TemporaryFile {
    /// Gives the file its final name, and replaces any other file of that name.
    ///
    /// # Errors
    ///
    /// The error of the system. The file is then removed.
    pub(crate) fn persist(mut self, name: &Path) -> io::Result<()> {
        match self.file.take() {
            Some(file) => file.persist(name).map(drop).map_err(|error| error.error),
            None => Ok(()),
        }
    }
}

impl Deref for TemporaryFile {
    type Target = tempfile::NamedTempFile;

    fn deref(&self) -> &tempfile::NamedTempFile {
        self.file.as_ref().expect("only `persist` takes it, with all of this")
    }
}

impl DerefMut for TemporaryFile {
    fn deref_mut(&mut self) -> &mut tempfile::NamedTempFile {
        self.file.as_mut().expect("only `persist` takes it, with all of this")
    }
}

impl io::Write for TemporaryFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (**self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        (**self).flush()
    }
}

#[cfg(any(windows, test, feature = "parquet"))]
impl TemporaryFolder {
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes incomplete files and folders and ends the process.
fn end(code: i32) -> ! {
    for work in BEFORE_END.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        work();
    }
    let made = removed();
    // Nobody may read it.
    let _ = writeln!(io::stderr(), "stk: interrupted; nothing half made is left");
    exit_with(code, made)
}

/// Removes incomplete files and folders and ends the process without a word.
pub(crate) fn end_quietly(code: i32) -> ! {
    exit_with(code, removed())
}

/// Ends the process. The lock is held until then.
fn exit_with(code: i32, _made: MutexGuard<'static, BTreeSet<PathBuf>>) -> ! {
    exit(code)
}

/// Removes incomplete files and folders. Keeps the lock, so that no more are made.
fn removed() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    let made = made();
    // On Windows, a file that another process (such as inject) has open can be removed only after
    // that process has ended too.
    const TRIES: u32 = 20;
    for _ in 0..TRIES {
        let mut left = false;
        for path in made.iter() {
            let removed =
                if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
            left |= removed.is_err_and(|error| error.kind() != io::ErrorKind::NotFound);
        }
        if !left {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    made
}

/// From now on, an interrupt removes incomplete files and ends the process with 128 + the signal's
/// number, 130 for Ctrl-C. Must be called before the first thread is started. If the system
/// refuses, an interrupt ends the process without that.
#[cfg(unix)]
pub(crate) fn catch() {
    use std::mem::MaybeUninit;

    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set that it is given.
    let mut set = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    };
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let mut now = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: without a new action this only writes the present one into `now`, which is valid
        // with zeros.
        let now = unsafe {
            libc::sigaction(signal, std::ptr::null(), now.as_mut_ptr());
            now.assume_init()
        };
        // The program was started with this signal ignored (by nohup, or in the background of a
        // shell). Keep that.
        if now.sa_sigaction != libc::SIG_IGN {
            // SAFETY: the set is initialised.
            unsafe { libc::sigaddset(&mut set, signal) };
        }
    }
    // SAFETY: the set is initialised, and the former mask is not requested. Threads started from
    // here on inherit the mask.
    if unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) } != 0 {
        return;
    }
    let wait = move || {
        let mut signal = 0;
        // SAFETY: an initialised set of blocked signals, and a variable for the number.
        while unsafe { libc::sigwait(&set, &mut signal) } != 0 {}
        end(128 + signal)
    };
    if std::thread::Builder::new().name("interrupt".to_owned()).spawn(wait).is_err() {
        // SAFETY: as above.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut()) };
    }
}

/// From now on, Ctrl-C, Ctrl-Break and closing the console remove incomplete files and end the
/// process with 130. If the system refuses, they end it without that.
#[cfg(windows)]
pub(crate) fn catch() {
    use windows_sys::Win32::System::Console::SetConsoleCtrlHandler;
    use windows_sys::core::BOOL;

    // The system calls it on a thread of its own, so it may wait for locks.
    unsafe extern "system" fn handler(_: u32) -> BOOL {
        end(130)
    }
    // SAFETY: `handler` is a function of this program.
    let _ = unsafe { SetConsoleCtrlHandler(Some(handler), 1) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn builder() -> tempfile::Builder<'static, 'static> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(".stk-");
        builder
    }

    #[test]
    fn a_file_is_registered_until_it_has_its_name_or_is_dropped() {
        let folder = folder().expect("a folder");
        let mut whole = file(&builder(), folder.path()).expect("a file");
        let dropped = file(&builder(), folder.path()).expect("a file");
        let (first, second) = (whole.path().to_owned(), dropped.path().to_owned());
        assert!(made().contains(&first) && made().contains(&second) && made().contains(folder.path()));
        whole.write_all(b"all").expect("written");
        let goal = folder.path().join("out");
        whole.persist(&goal).expect("renamed");
        drop(dropped);
        assert!(!made().contains(&first) && !made().contains(&second));
        assert_eq!(std::fs::read(&goal).expect("there"), b"all");
        assert!(!first.exists() && !second.exists());
    }
}
