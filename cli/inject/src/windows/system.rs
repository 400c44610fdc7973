//! Handles, events, error texts, optional functions.

use crate::held;
use std::ffi::{CStr, OsStr, OsString};
use std::io;
use std::os::windows::ffi::OsStrExt;
use std::os::windows::io::{AsHandle, AsRawHandle, BorrowedHandle, FromRawHandle, OwnedHandle};
use std::path::{Component, Path, PathBuf, Prefix};
use std::ptr;
use std::time::{Duration, Instant};
use windows_sys::Win32::Foundation::{FILETIME, HANDLE, INVALID_HANDLE_VALUE, SYSTEMTIME, WAIT_OBJECT_0};
use windows_sys::Win32::Storage::FileSystem::{GetDriveTypeW, MOVEFILE_REPLACE_EXISTING, MoveFileExW};
use windows_sys::Win32::System::LibraryLoader::{
    GetModuleHandleW, GetProcAddress, LOAD_LIBRARY_SEARCH_SYSTEM32, LoadLibraryExA,
};
use windows_sys::Win32::System::SystemInformation::GetLocalTime;
use windows_sys::Win32::System::Threading::{
    CreateEventW, SetEvent, WaitForMultipleObjects, WaitForSingleObject,
};
use windows_sys::Win32::System::WindowsProgramming::DRIVE_REMOTE;
use windows_sys::w;

/// What GetProcAddress returns: a function whose signature only its caller knows.
pub(crate) type Procedure = unsafe extern "system" fn() -> isize;

/// Takes ownership of a handle that a system call returned; null and INVALID_HANDLE_VALUE are its
/// last error.
///
/// # Errors
/// The calling thread's last error.
///
/// # Safety
/// `handle` must be fresh: nobody else may own or close it.
pub(crate) unsafe fn own(handle: HANDLE) -> io::Result<OwnedHandle> {
    if handle.is_null() || handle == INVALID_HANDLE_VALUE {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, and the caller gives it to us.
    Ok(unsafe { OwnedHandle::from_raw_handle(handle) })
}

/// `text` as zero-terminated UTF-16 for system calls.
pub(crate) fn wide(text: &OsStr) -> Vec<u16> {
    text.encode_wide().chain([0]).collect()
}

/// The system's code of `error`; 0 if it has none.
pub(crate) fn code(error: &io::Error) -> u32 {
    error.raw_os_error().unwrap_or(0) as u32
}

/// Renames a file to a name that does not exist yet.
///
/// # Errors
/// The system's error, also when a file of that name exists.
pub(crate) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    rename(from, to, false)
}

/// Renames a file. `replace`: to a name that another file may have, which is lost then. Tries again
/// while somebody else has one of the files open.
///
/// # Errors
/// The system's error.
pub(crate) fn rename(from: &Path, to: &Path, replace: bool) -> io::Result<()> {
    let flags = if replace { MOVEFILE_REPLACE_EXISTING } else { 0 };
    let (from, to) = (wide(&long(from)), wide(&long(to)));
    // SAFETY: both paths are zero-terminated.
    patiently(|| match unsafe { MoveFileExW(from.as_ptr(), to.as_ptr(), flags) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    })
}

/// Deletes a file. Tries again while somebody else has it open.
///
/// # Errors
/// The system's error.
pub(crate) fn delete(path: &Path) -> io::Result<()> {
    let path = PathBuf::from(long(path));
    patiently(|| std::fs::remove_file(&path))
}

fn patiently(attempt: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let begun = Instant::now();
    held::while_held(attempt, || begun.elapsed(), std::thread::sleep)
}

/// An absolute path in the form for which no limit of 260 characters holds, where it has a drive
/// and is long.
pub(crate) fn long(path: &Path) -> OsString {
    const SHORT: usize = 240;
    let drive = path.to_str().is_some_and(|text| text.as_bytes().get(1..3) == Some(br":\"));
    let mut name = OsString::new();
    if drive && path.as_os_str().len() > SHORT {
        name.push(r"\\?\");
    }
    name.push(path);
    name
}

/// An event that is set once and stays set.
#[derive(Debug)]
pub(crate) struct Event(OwnedHandle);

impl Event {
    /// A new event, not set.
    ///
    /// # Errors
    /// The system's error, when it has no memory for one.
    pub(crate) fn new() -> io::Result<Event> {
        // SAFETY: no attributes, no name; the handle is fresh.
        unsafe { own(CreateEventW(ptr::null(), 1, 0, ptr::null())) }.map(Event)
    }

    pub(crate) fn set(&self) {
        set(self.handle());
    }

    /// The event's handle, for waiting.
    pub(crate) fn handle(&self) -> BorrowedHandle<'_> {
        self.0.as_handle()
    }
}

/// Sets an event that is open.
pub(crate) fn set(event: BorrowedHandle) {
    // SAFETY: the handle is open. It cannot fail for an event.
    unsafe { SetEvent(event.as_raw_handle()) };
}

/// Waits until `handle` is signalled; false after `ms` milliseconds.
pub(crate) fn wait(handle: BorrowedHandle, ms: u32) -> bool {
    // SAFETY: the handle is open.
    unsafe { WaitForSingleObject(handle.as_raw_handle(), ms) == WAIT_OBJECT_0 }
}

/// Milliseconds until then, for a wait; at least one.
pub(crate) fn rest_ms(until: Instant) -> u32 {
    until.saturating_duration_since(Instant::now()).as_millis().clamp(1, u128::from(u32::MAX - 1)) as u32
}

/// A length of time as the system gives it, in units of 100 ns.
pub(crate) fn duration(time: FILETIME) -> Duration {
    let units = u64::from(time.dwHighDateTime) << 32 | u64::from(time.dwLowDateTime);
    Duration::from_nanos(units.saturating_mul(100))
}

/// Waits until one of `handles` (at most 64) is signalled and returns the index of the first that
/// is; `None` after `ms` milliseconds.
pub(crate) fn wait_any(handles: &[BorrowedHandle], ms: u32) -> Option<usize> {
    // SAFETY: the handles are open, the pointer and count describe the slice, and a BorrowedHandle
    // is a HANDLE (repr transparent).
    let result = unsafe { WaitForMultipleObjects(handles.len() as u32, handles.as_ptr().cast(), 0, ms) };
    let index = result.wrapping_sub(WAIT_OBJECT_0) as usize;
    (index < handles.len()).then_some(index)
}

/// Address of a function of kernel32 that not every Windows (or Wine) has.
pub(crate) fn kernel32(name: &CStr) -> Option<Procedure> {
    // SAFETY: kernel32 is in every process and is never unloaded; the name is zero-terminated.
    unsafe { GetProcAddress(GetModuleHandleW(w!("kernel32.dll")), name.as_ptr().cast()) }
}

/// Address of a function of ntdll that has no import library here.
pub(crate) fn ntdll(name: &CStr) -> Option<Procedure> {
    // SAFETY: ntdll is in every process and is never unloaded; the name is zero-terminated.
    unsafe { GetProcAddress(GetModuleHandleW(w!("ntdll.dll")), name.as_ptr().cast()) }
}

/// Address of a function of a DLL in the system folder. The DLL is loaded only now, so runs that do
/// not need it do not load it.
pub(crate) fn system_dll(dll: &CStr, name: &CStr) -> Option<Procedure> {
    // SAFETY: both names are zero-terminated; the DLL is never unloaded.
    unsafe {
        let module = LoadLibraryExA(dll.as_ptr().cast(), ptr::null_mut(), LOAD_LIBRARY_SEARCH_SYSTEM32);
        if module.is_null() { None } else { GetProcAddress(module, name.as_ptr().cast()) }
    }
}

/// Wine's version; `None` on Windows.
pub(crate) fn wine_version() -> Option<String> {
    type Version = unsafe extern "system" fn() -> *const std::ffi::c_char;
    let function = ntdll(c"wine_get_version")?;
    // SAFETY: that is the signature of Wine's function, without arguments, whose result is a
    // constant zero-terminated text.
    unsafe {
        let function = std::mem::transmute::<Procedure, Version>(function);
        let text = function();
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    }
}

/// Whether the file lies on a network share: named by `\\\\server`, or on a drive that is mapped to
/// one.
pub(crate) fn is_remote(path: &Path) -> bool {
    let Some(Component::Prefix(prefix)) = path.components().next() else { return false };
    match prefix.kind() {
        Prefix::UNC(..) | Prefix::VerbatimUNC(..) => true,
        Prefix::Disk(letter) | Prefix::VerbatimDisk(letter) => {
            let root = [u16::from(letter), u16::from(b':'), u16::from(b'\\'), 0];
            // SAFETY: the root is zero-terminated.
            unsafe { GetDriveTypeW(root.as_ptr()) == DRIVE_REMOTE }
        }
        _ => false,
    }
}

/// The system's performance counter, which is the clock of traces; 0 without one.
pub(crate) fn counter() -> u64 {
    type Function = unsafe extern "system" fn(*mut i64) -> i32;
    let Some(function) = kernel32(c"QueryPerformanceCounter") else { return 0 };
    let mut now = 0;
    // SAFETY: this is the documented signature of QueryPerformanceCounter; the result has room.
    unsafe { std::mem::transmute::<Procedure, Function>(function)(&mut now) };
    u64::try_from(now).unwrap_or(0)
}

/// Name of this machine; `host` if the system does not report it.
pub(crate) fn host_name() -> String {
    let name = std::env::var("COMPUTERNAME").unwrap_or_default();
    // It becomes part of a file's name.
    let fits = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || !name.chars().all(fits) { "host".to_owned() } else { name }
}

/// Local time as `20260131-235959`.
pub(crate) fn local_time() -> String {
    let mut now = SYSTEMTIME::default();
    // SAFETY: it fills the struct it is given.
    unsafe { GetLocalTime(&mut now) };
    format!(
        "{:04}{:02}{:02}-{:02}{:02}{:02}",
        now.wYear, now.wMonth, now.wDay, now.wHour, now.wMinute, now.wSecond
    )
}
