//! Ctrl-C: incomplete files are removed, and the program ends with exit code 130.
//!
//! Every file or folder that is not to keep its present name must be made here: [`file`],
//! [`folder`]. Once [`catch`] has been called, an interrupt removes them all and ends the process.
//! [`TemporaryFile::persist`] is the one way in which an output gets its name.
// The calls to the system for signals are unsafe. Each states its reason.
#![allow(unsafe_code)]

use crate::files::{self, Below, Kind, MayReplace};
use std::collections::BTreeMap;
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind, Write};
use std::process::exit;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Files and folders that an interrupt removes, by numbers of their own.
static CLEANUP: Mutex<BTreeMap<u64, Below>> = Mutex::new(BTreeMap::new());

fn cleanup_list() -> MutexGuard<'static, BTreeMap<u64, Below>> {
    CLEANUP.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What else is done before an interrupt ends the program.
static BEFORE_END: Mutex<Vec<fn()>> = Mutex::new(Vec::new());

/// Has `work` done before an interrupt ends the program.
pub fn before_end(work: fn()) {
    BEFORE_END.lock().unwrap_or_else(PoisonError::into_inner).push(work);
}

/// Part of the names of temporary files and folders of outputs, if it is set: who makes them.
static OWNER: OnceLock<String> = OnceLock::new();

/// Has the names of temporary files and folders of outputs say that they are of this owner, from
/// now on. The first owner stays.
pub fn set_owner(owner: &str) {
    OWNER.get_or_init(|| owner.to_owned());
}

/// The beginning of the name of a temporary file or folder of outputs.
pub fn owned(prefix: &str) -> String {
    OWNER.get().map_or_else(|| prefix.to_owned(), |owner| format!("{prefix}{owner}."))
}

/// Whether a name, without the prefix, is of this owner.
pub fn is_owned(name: &str, owner: &str) -> bool {
    name.strip_prefix(owner).is_some_and(|rest| rest.starts_with('.'))
}

/// A temporary file. It is removed when it is dropped or the program is interrupted, unless it got
/// its final name before.
#[derive(Debug)]
pub struct TemporaryFile {
    file: File,
    entry: CleanupEntry,
}

/// A temporary folder. It is removed with its contents when it is dropped or the program is
/// interrupted.
#[derive(Debug)]
pub struct TemporaryFolder(CleanupEntry);

/// An entry of [`CLEANUP`].
#[derive(Debug)]
struct CleanupEntry {
    number: u64,
    at: Below,
    /// Whether it has its final name.
    is_named: bool,
}

impl Drop for CleanupEntry {
    fn drop(&mut self) {
        if !self.is_named {
            // What is left is of no use to anybody, and the next run removes it.
            let _ = self.at.remove_all();
        }
        cleanup_list().remove(&self.number);
    }
}

/// Makes something under a name of its own, which begins and ends so.
fn make<T>(
    folder: &Below,
    (prefix, suffix): (&str, &str),
    create: impl Fn(&Below) -> io::Result<T>,
) -> io::Result<(T, CleanupEntry)> {
    const TRIES: u32 = 100;
    // Made under the lock, so that an interrupt cannot come between the file and its entry.
    let mut list = cleanup_list();
    for _ in 0..TRIES {
        let random = RandomState::new().build_hasher().finish();
        let at = folder.join(format!("{prefix}{random:016x}{suffix}"));
        match create(&at) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
            Ok(created) => {
                let number = list.last_key_value().map_or(0, |(last, _)| last + 1);
                list.insert(number, at.clone());
                return Ok((created, CleanupEntry { number, at, is_named: false }));
            }
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

/// Makes a temporary file in `folder`, whose name begins with `prefix` and ends with `suffix`.
pub fn file(folder: &Below, prefix: &str, suffix: &str) -> io::Result<TemporaryFile> {
    let (file, entry) = make(folder, (prefix, suffix), Below::create_new)?;
    Ok(TemporaryFile { file, entry })
}

/// Makes a temporary folder in the system's folder for such.
#[cfg(any(windows, test))]
pub fn folder() -> io::Result<TemporaryFolder> {
    folder_in(&Below::folder(&std::env::temp_dir())?, "stk-")
}

/// Makes a temporary folder in the system's folder for such, in which nobody else can look.
pub fn private_folder() -> io::Result<TemporaryFolder> {
    let folder = folder_in(&Below::folder(&std::env::temp_dir())?, "stk-")?;
    // It is still empty. On Windows, the system's folder is the user's own.
    #[cfg(unix)]
    std::fs::set_permissions(folder.at().path(), std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
    Ok(folder)
}

/// Makes a temporary folder in `parent`, with a name that begins with `prefix`.
pub fn folder_in(parent: &Below, prefix: &str) -> io::Result<TemporaryFolder> {
    let ((), entry) = make(parent, (prefix, ""), Below::create_folder)?;
    Ok(TemporaryFolder(entry))
}

impl TemporaryFile {
    /// The file, to be read and written.
    pub fn as_file(&self) -> &File {
        &self.file
    }

    /// The file, for who writes it by itself.
    pub fn as_file_mut(&mut self) -> &mut File {
        &mut self.file
    }

    /// Gives the file its final name, and replaces a regular file of that name. It stays open.
    ///
    /// # Errors
    ///
    /// That the name is one of an input, a trace ([`files::check_output`]), a link or no regular
    /// file; else the error of the system. The file is then removed.
    pub fn persist(mut self, goal: &Below, may: MayReplace) -> io::Result<File> {
        let file = self.file.try_clone()?;
        match goal.kind()? {
            None | Some(Kind::File { .. }) => {}
            Some(Kind::Folder) => return Err(ErrorKind::IsADirectory.into()),
            Some(Kind::Other) => return Err(io::Error::new(ErrorKind::InvalidInput, "is no regular file")),
        }
        files::check_output(&goal.path(), may)?;
        self.entry.at.rename(goal)?;
        self.entry.is_named = true;
        Ok(file)
    }
}

impl io::Write for TemporaryFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl TemporaryFolder {
    pub fn at(&self) -> &Below {
        &self.0.at
    }

    /// Leaves it where it is, with what is in it.
    pub fn keep(mut self) {
        self.0.is_named = true;
    }
}

/// Removes incomplete files and folders and ends the process.
fn end(code: i32) -> ! {
    for work in BEFORE_END.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        work();
    }
    let list = removed();
    // Nobody may read it.
    let _ = writeln!(io::stderr(), "stk: interrupted; nothing half made is left");
    exit_with(code, list)
}

/// Removes incomplete files and folders and ends the process without a word.
pub fn end_quietly(code: i32) -> ! {
    exit_with(code, removed())
}

/// Ends the process. The lock is held until then.
fn exit_with(code: i32, _list: MutexGuard<'static, BTreeMap<u64, Below>>) -> ! {
    exit(code)
}

/// Removes incomplete files and folders. Keeps the lock, so that no more are made.
fn removed() -> MutexGuard<'static, BTreeMap<u64, Below>> {
    let list = cleanup_list();
    // On Windows, a file that another process (such as inject) has open can be removed only after
    // that process has ended too.
    const TRIES: u32 = 20;
    for _ in 0..TRIES {
        let mut left = false;
        for at in list.values() {
            left |= at.remove_all().is_err_and(|error| error.kind() != ErrorKind::NotFound);
        }
        if !left {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    list
}

/// From now on, an interrupt removes incomplete files and ends the process with 128 + the signal's
/// number, 130 for Ctrl-C. Must be called before the first thread is started. If the system
/// refuses, an interrupt ends the process without that.
#[cfg(unix)]
pub fn catch() {
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
pub fn catch() {
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

    #[test]
    #[cfg(unix)]
    fn a_private_folder_is_its_owners_alone_and_can_be_kept() {
        use std::os::unix::fs::PermissionsExt;
        let folder = private_folder().expect("a folder");
        let path = folder.at().path();
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o700);
        folder.keep();
        assert!(path.exists());
        std::fs::remove_dir(path).expect("empty");
    }

    #[test]
    fn a_file_is_registered_until_it_has_its_name_or_is_dropped() {
        let folder = folder().expect("a folder");
        let at = folder.at();
        let mut whole = file(at, ".stk-", ".partial").expect("a file");
        let dropped = file(at, ".stk-", ".partial").expect("a file");
        let (first, second) = (whole.entry.at.path(), dropped.entry.at.path());
        let is_made = |path| cleanup_list().values().any(|at| at.path() == path);
        assert!(is_made(first.clone()) && is_made(second.clone()) && is_made(at.path()));
        whole.write_all(b"all").expect("written");
        let goal = at.join("out");
        whole.persist(&goal, MayReplace::NoTrace).expect("renamed");
        drop(dropped);
        assert!(!is_made(first.clone()) && !is_made(second.clone()));
        assert_eq!(goal.read(10).expect("there"), b"all");
        assert!(!first.exists() && !second.exists());
        let path = at.path();
        drop(folder);
        assert!(!path.exists());
    }
}
