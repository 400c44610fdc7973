//! Other processes: finding, opening, reading them.

pub(crate) mod ntdll;
pub(crate) mod remote;
pub(crate) mod suspension;
pub(crate) mod threads;

use super::refusal::{self, Machine, Refusal};
use super::system::{self, Procedure};
use crate::failure::Failure;
use crate::image::{self, Image};
use crate::launch::readiness::{self, LoaderState};
use crate::messages;
use crate::process::access::{self, Access};
use crate::process::name_pattern::NamePattern;
use crate::windows::trust::token;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::windows::ffi::OsStringExt;
use std::os::windows::io::{AsHandle, AsRawHandle, BorrowedHandle, OwnedHandle};
use std::path::PathBuf;
use std::ptr;
use std::time::{Duration, Instant};
use stk_schema::layout;
use windows_sys::Win32::Foundation::{DuplicateHandle, ERROR_ACCESS_DENIED, FILETIME, HANDLE, HMODULE};
use windows_sys::Win32::System::Diagnostics::Debug::{ReadProcessMemory, WriteProcessMemory};
use windows_sys::Win32::System::Diagnostics::ToolHelp::{
    CreateToolhelp32Snapshot, PROCESSENTRY32W, Process32FirstW, Process32NextW, TH32CS_SNAPPROCESS,
};
use windows_sys::Win32::System::ProcessStatus::{
    K32EnumProcessModulesEx, K32GetModuleFileNameExW, LIST_MODULES_ALL,
};
use windows_sys::Win32::System::SystemInformation::{GetSystemTimeAsFileTime, IMAGE_FILE_MACHINE};
use windows_sys::Win32::System::Threading::{
    GetCurrentProcess, GetExitCodeProcess, GetProcessId, GetProcessTimes, IsWow64Process, OpenProcess,
    PROCESS_BASIC_INFORMATION, PROCESS_CREATE_THREAD, PROCESS_DUP_HANDLE, PROCESS_MACHINE_INFORMATION,
    PROCESS_NAME_NATIVE, PROCESS_NAME_WIN32, PROCESS_QUERY_INFORMATION, PROCESS_QUERY_LIMITED_INFORMATION,
    PROCESS_SYNCHRONIZE, PROCESS_VM_OPERATION, PROCESS_VM_READ, PROCESS_VM_WRITE, ProcessMachineTypeInfo,
    QueryFullProcessImageNameW,
};
use windows_sys::core::BOOL;

/// The rights for answering the agent's requests for names: to read and write memory, to read the
/// modules' paths, to wait for the end.
pub(crate) const NAMING: u32 = PROCESS_VM_OPERATION
    | PROCESS_VM_READ
    | PROCESS_VM_WRITE
    | PROCESS_QUERY_INFORMATION
    | PROCESS_SYNCHRONIZE;

/// The rights for recording: to make a thread and memory there, to duplicate a handle, to read its
/// modules, to wait for its end.
const RIGHTS: u32 = PROCESS_CREATE_THREAD
    | PROCESS_VM_OPERATION
    | PROCESS_VM_READ
    | PROCESS_VM_WRITE
    | PROCESS_DUP_HANDLE
    | PROCESS_QUERY_INFORMATION
    | PROCESS_SYNCHRONIZE;

/// An open process whose handle has the rights that recording needs.
#[derive(Debug)]
pub(crate) struct Process {
    handle: OwnedHandle,
    pid: u32,
    name: String,
}

/// Why a process could not be opened.
#[derive(Clone, Debug)]
pub(crate) enum OpenError {
    /// There is no such process.
    NotFound,
    /// It has ended, but a handle of it is still open.
    Ended,
    /// It may not be opened.
    Refused(Refusal),
}

/// A module of another process.
#[derive(Clone, Debug)]
pub(crate) struct Module {
    /// Load address.
    pub base: u64,
    /// Its headers and exports, as loaded.
    pub image: Image,
}

/// A line of the system's process list.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// The process that started it.
    pub parent: u32,
    pub pid: u32,
    /// Program file name.
    pub name: String,
}

impl Process {
    /// Opens a process with all rights that recording needs.
    ///
    /// # Errors
    /// A sentence for the user: no such process, or why it is denied.
    pub(crate) fn open(pid: u32) -> Result<Process, Failure> {
        Process::try_open(pid).map_err(|error| match error {
            OpenError::NotFound => Failure::target(format!(
                "there is no process with pid {pid}: see inject ps for those that run"
            )),
            OpenError::Ended => Failure::target(format!("the process with pid {pid} has ended")),
            OpenError::Refused(refusal) => {
                let name = entries().ok().and_then(|all| all.into_iter().find(|entry| entry.pid == pid));
                let name = name.map_or("the process".to_owned(), |entry| entry.name);
                refusal.failure(&format!("{name} (pid {pid})"))
            }
        })
    }

    /// Opens a process only for reading its properties, modules and memory, without any privilege.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn open_to_read(pid: u32) -> io::Result<Process> {
        let handle = open(pid, PROCESS_QUERY_INFORMATION | PROCESS_VM_READ | PROCESS_SYNCHRONIZE)?;
        let name = program_name(handle.as_handle());
        Ok(Process { handle, pid, name })
    }

    /// As [`Process::open`], but returns the cause of a failure.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub(crate) fn try_open(pid: u32) -> Result<Process, OpenError> {
        const ACCESS_DENIED: u32 = 5;
        let mut opened = open(pid, RIGHTS);
        if opened.as_ref().is_err_and(|error| system::code(error) == ACCESS_DENIED)
            && let Some(_privilege) = token::DebugPrivilege::enable()
        {
            opened = open(pid, RIGHTS);
        }
        let handle = opened.map_err(|error| match system::code(&error) {
            ACCESS_DENIED => {
                let limited = open_limited(pid).ok();
                OpenError::Refused(refusal::why_denied(limited.as_ref().map(AsHandle::as_handle)))
            }
            _ => OpenError::NotFound,
        })?;
        Process::from_handle(handle, pid)
    }

    /// A process that inject has started, from the handle that it got then.
    ///
    /// # Errors
    /// As [`Process::try_open`].
    pub(crate) fn from_handle(handle: OwnedHandle, pid: u32) -> Result<Process, OpenError> {
        // SAFETY: the handle is open. OpenProcess ignores the lowest two bits of a pid, so that a
        // wrong one can open a neighbour's process.
        if unsafe { GetProcessId(handle.as_raw_handle()) } != pid {
            return Err(OpenError::NotFound);
        }
        let name = program_name(handle.as_handle());
        let process = Process { handle, pid, name };
        if process.has_ended() { Err(OpenError::Ended) } else { Ok(process) }
    }

    /// A handle of it with only these of its rights.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn narrowed(&self, rights: u32) -> io::Result<OwnedHandle> {
        let mut narrow = ptr::null_mut();
        // SAFETY: the handle is open and the result has room.
        let ok = unsafe {
            let own = GetCurrentProcess();
            DuplicateHandle(own, self.handle.as_raw_handle(), own, &mut narrow, rights, 0, 0)
        };
        if ok == 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the handle is fresh.
        unsafe { system::own(narrow) }
    }

    /// Its handle, open as long as `self` lives.
    pub(crate) fn handle(&self) -> BorrowedHandle<'_> {
        self.handle.as_handle()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Its program's file name, such as `app.exe`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        system::wait(self.handle(), 0)
    }

    /// Milliseconds since its start; `None` if the system does not report it.
    pub(crate) fn age_ms(&self) -> Option<u64> {
        Some(now().saturating_sub(created(self.handle())?) / 10_000)
    }

    /// The id of the process that started it; that one may have ended, and the id may be another's.
    pub(crate) fn parent(&self) -> Option<u32> {
        // Process ids have 32 bits.
        Some(self.basic()?.InheritedFromUniqueProcessId as u32)
    }

    /// What its loader has done; `None` if there is no whole list of modules. For a process of this
    /// inject's width.
    pub(crate) fn loader_state(&self) -> Option<LoaderState> {
        LoaderState::read(&layout::NATIVE, self.peb()?, &|address, buffer| self.read(address, buffer))
    }

    /// That the process has not begun, if so.
    ///
    /// # Errors
    /// What it waits for, and what to do.
    pub(crate) fn begun(&self) -> Result<(), Refusal> {
        let begun =
            |peb| readiness::has_begun(&layout::NATIVE, peb, &|address, buffer| self.read(address, buffer));
        if self.peb().is_none_or(begun) {
            return Ok(());
        }
        Err(Refusal::new(
            "has not begun: it was created suspended, or is being started",
            "try again when it runs, or start it with inject -- PROGRAM",
        ))
    }

    /// The address of its process environment block, of this inject's width.
    pub(crate) fn peb(&self) -> Option<u64> {
        Some(self.basic()?.PebBaseAddress as u64).filter(|&peb| peb != 0)
    }

    fn basic(&self) -> Option<PROCESS_BASIC_INFORMATION> {
        type Function =
            unsafe extern "system" fn(HANDLE, i32, *mut PROCESS_BASIC_INFORMATION, u32, *mut u32) -> i32;
        const BASIC: i32 = 0;
        let function = system::ntdll(c"NtQueryInformationProcess")?;
        let mut basic = PROCESS_BASIC_INFORMATION::default();
        let size = size_of_val(&basic) as u32;
        // SAFETY: this is the documented signature of NtQueryInformationProcess; the handle is open
        // and may query; the struct has the size that is passed.
        let status = unsafe {
            let function = std::mem::transmute::<Procedure, Function>(function);
            function(self.handle.as_raw_handle(), BASIC, &mut basic, size, ptr::null_mut())
        };
        (status >= 0).then_some(basic)
    }

    /// CPU time that it has used; `None` if the system does not report it.
    pub(crate) fn cpu_time(&self) -> Option<Duration> {
        let [mut created, mut exited, mut kernel, mut user] = [FILETIME::default(); 4];
        let handle = self.handle.as_raw_handle();
        // SAFETY: the handle is open and may query; the four structs are filled.
        let known = unsafe { GetProcessTimes(handle, &mut created, &mut exited, &mut kernel, &mut user) };
        (known != 0).then(|| system::duration(kernel) + system::duration(user))
    }

    /// Its exit code, once it has ended.
    pub(crate) fn exit_code(&self) -> u32 {
        let mut code = 0;
        // SAFETY: the handle is open and the code has room.
        unsafe { GetExitCodeProcess(self.handle.as_raw_handle(), &mut code) };
        code
    }

    /// The machine types of the process and of its processor.
    pub(crate) fn machine(&self) -> Machine {
        machine(self.handle())
    }

    /// Fills `buffer` from its memory at `address`; false if not all of that could be read.
    pub(crate) fn read(&self, address: u64, buffer: &mut [u8]) -> bool {
        let Ok(address) = usize::try_from(address) else { return false };
        self.transfer(|| {
            let mut read = 0;
            // SAFETY: the destination is the slice; the source is checked by the system.
            let ok = unsafe {
                let source = ptr::without_provenance(address);
                ReadProcessMemory(
                    self.handle.as_raw_handle(),
                    source,
                    buffer.as_mut_ptr().cast(),
                    buffer.len(),
                    &mut read,
                )
            };
            ok != 0 && read == buffer.len()
        })
    }

    /// Writes `bytes` into its memory at `address`; false if not all of them could be written.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> bool {
        if bytes.is_empty() {
            return true; // Wine refuses to write nothing
        }
        let Ok(address) = usize::try_from(address) else { return false };
        self.transfer(|| {
            let mut written = 0;
            // SAFETY: the source is the slice; the destination is checked by the system, and the
            // caller knows what lies there.
            let ok = unsafe {
                let to = ptr::without_provenance_mut(address);
                let (from, len) = (bytes.as_ptr().cast(), bytes.len());
                WriteProcessMemory(self.handle.as_raw_handle(), to, from, len, &mut written)
            };
            ok != 0 && written == bytes.len()
        })
    }

    /// Calls `transfer`, which moves bytes from or to the process's memory and returns whether all
    /// of them were; again while the system refuses that.
    fn transfer(&self, mut transfer: impl FnMut() -> bool) -> bool {
        let access = || {
            if transfer() {
                return Access::Done;
            }
            let denied = Some(ERROR_ACCESS_DENIED as i32);
            let refused = io::Error::last_os_error().raw_os_error() == denied;
            if refused { Access::Refused } else { Access::Failed }
        };
        let begun = Instant::now();
        let ended = || system::wait(self.handle(), access::WAIT_MS);
        access::unless_refused(access, ended, || begun.elapsed())
    }

    /// The NT path of its program, such as `\Device\HarddiskVolume3\a.exe`.
    pub(crate) fn native_image_path(&self) -> Option<String> {
        Some(image_path_as(self.handle(), PROCESS_NAME_NATIVE)?.to_string_lossy().into_owned())
    }

    /// Its modules' headers and exports, the program first. Empty while it has not been
    /// initialised.
    ///
    /// The paths are not read: for each module the system would walk the process's whole list
    /// again.
    ///
    /// # Errors
    /// The system's error, when the list keeps changing under the reader or cannot be read.
    pub(crate) fn modules(&self) -> io::Result<Vec<Module>> {
        self.modules_if(&|_, _| true)
    }

    /// As [`Process::modules`], with the exports of only those modules whose index and name (in the
    /// export directory) are `wanted`.
    ///
    /// # Errors
    /// As [`Process::modules`].
    pub(crate) fn modules_if(&self, wanted: &dyn Fn(usize, &str) -> bool) -> io::Result<Vec<Module>> {
        let module = |(index, base)| self.module(base, |name| wanted(index, name));
        Ok(self.module_bases()?.into_iter().enumerate().filter_map(module).collect())
    }

    /// Load addresses of its modules. Reads the list again if it changes meanwhile.
    fn module_bases(&self) -> io::Result<Vec<u64>> {
        // On a loaded machine a sleep lasts long, and a program may load modules all the time.
        const LIMIT: Duration = Duration::from_secs(1);
        let begun = Instant::now();
        loop {
            match self.module_handles() {
                Ok(handles) => return Ok(handles.into_iter().map(|handle| handle as u64).collect()),
                Err(error) if begun.elapsed() >= LIMIT => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Its executable, without the exports. `None` while it has not been initialised, or if it
    /// cannot be read.
    pub(crate) fn executable(&self) -> Option<Module> {
        let base = *self.module_handles().ok()?.first()? as u64;
        self.module(base, |_| false)
    }

    /// Full path of the module at `base`; empty if there is none.
    pub(crate) fn module_path(&self, base: u64) -> PathBuf {
        let mut path = vec![0u16; 32_768];
        let Ok(base) = usize::try_from(base) else { return PathBuf::new() };
        // SAFETY: pointer and length are those of the vector; a module handle is a load address and
        // is checked there.
        let len = unsafe {
            let module = ptr::without_provenance_mut(base);
            let (buffer, room) = (path.as_mut_ptr(), path.len() as u32);
            K32GetModuleFileNameExW(self.handle.as_raw_handle(), module, buffer, room) as usize
        };
        OsString::from_wide(&path[..len.min(path.len())]).into()
    }

    /// Whether a module is loaded at `base`.
    ///
    /// # Errors
    /// The system's error, when the list cannot be read.
    pub(crate) fn has_module(&self, base: u64) -> io::Result<bool> {
        Ok(self.module_bases()?.contains(&base))
    }

    fn module_handles(&self) -> io::Result<Vec<HMODULE>> {
        let mut handles: Vec<HMODULE> = vec![ptr::null_mut(); 512];
        loop {
            let have = size_of_val(&handles[..]) as u32;
            let mut need = 0;
            // SAFETY: pointer and size are those of the vector.
            let ok = unsafe {
                K32EnumProcessModulesEx(
                    self.handle.as_raw_handle(),
                    handles.as_mut_ptr(),
                    have,
                    &mut need,
                    LIST_MODULES_ALL,
                )
            };
            if ok == 0 {
                return Err(io::Error::last_os_error());
            }
            let count = need as usize / size_of::<HMODULE>();
            if need <= have {
                handles.truncate(count);
                return Ok(handles);
            }
            handles.resize(count + 64, ptr::null_mut());
        }
    }

    /// The image at `base`, with its exports if its name is `wanted`; `None` if there is none (any
    /// more).
    pub(crate) fn module(&self, base: u64, wanted: impl FnOnce(&str) -> bool) -> Option<Module> {
        let image = Image::from_memory_if(wanted, |rva, buffer| {
            base.checked_add(rva.into()).is_some_and(|address| self.read(address, buffer))
        });
        Some(Module { base, image: image.ok()? })
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&messages::process(&self.name, self.pid))
    }
}

/// The system's process list.
///
/// # Errors
/// A sentence for the user, when the list cannot be read.
pub(crate) fn entries() -> Result<Vec<Entry>, Failure> {
    // SAFETY: the snapshot handle is fresh.
    let snapshot = unsafe { system::own(CreateToolhelp32Snapshot(TH32CS_SNAPPROCESS, 0)) }
        .map_err(|error| Failure::failed(format!("the list of processes cannot be read: {error}")))?;
    let mut entry =
        PROCESSENTRY32W { dwSize: size_of::<PROCESSENTRY32W>() as u32, ..PROCESSENTRY32W::default() };
    let mut all = Vec::new();
    // SAFETY: the snapshot is open and the entry says its size.
    let mut more = unsafe { Process32FirstW(snapshot.as_raw_handle(), &mut entry) };
    while more != 0 {
        let len = entry.szExeFile.iter().position(|&unit| unit == 0).unwrap_or(entry.szExeFile.len());
        let name = String::from_utf16_lossy(&entry.szExeFile[..len]);
        all.push(Entry { pid: entry.th32ProcessID, parent: entry.th32ParentProcessID, name });
        // SAFETY: as above.
        more = unsafe { Process32NextW(snapshot.as_raw_handle(), &mut entry) };
    }
    Ok(all)
}

/// When the process behind `handle` was created, in units of 100 ns since 1601; `None` if the
/// system does not report it. Until a process has initialised itself, Wine reports a number that
/// was left in its memory: a time to come is none.
pub(crate) fn created(handle: BorrowedHandle) -> Option<u64> {
    let [mut created, mut exited, mut kernel, mut user] = [FILETIME::default(); 4];
    let handle = handle.as_raw_handle();
    // SAFETY: the handle is open and may query; the four structs are filled.
    let known = unsafe { GetProcessTimes(handle, &mut created, &mut exited, &mut kernel, &mut user) };
    (known != 0).then(|| units(created)).filter(|created| (1..=now()).contains(created))
}

/// The time of day, in units of 100 ns since 1601.
fn now() -> u64 {
    let mut now = FILETIME::default();
    // SAFETY: it fills the struct it is given.
    unsafe { GetSystemTimeAsFileTime(&mut now) };
    units(now)
}

fn units(time: FILETIME) -> u64 {
    u64::from(time.dwHighDateTime) << 32 | u64::from(time.dwLowDateTime)
}

/// The processes whose programs have a name, or names of a pattern; without this inject. A plain
/// name must be that of exactly one process.
///
/// # Errors
/// A sentence for the user, when there is none, or more than one of a plain name.
pub(crate) fn pids_of(name: &str) -> Result<Vec<u32>, Failure> {
    let pattern = NamePattern::new(name).map_err(Failure::usage)?;
    let mut found = entries()?;
    found.retain(|entry| entry.pid != std::process::id() && pattern.fits(&entry.name));
    let pids: Vec<u32> = found.iter().map(|entry| entry.pid).collect();
    match pids.len() {
        0 => Err(Failure::target(format!("no process is called '{name}': see inject ps for those that run"))),
        1 => Ok(pids),
        _ if pattern.is_regex() => Ok(pids),
        many => {
            let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
            let pids = pids.join(", ");
            Err(Failure::usage(format!(
                "{many} processes are called '{name}': choose one with --pid of {pids}"
            )))
        }
    }
}

/// The only process with this name.
///
/// # Errors
/// As [`pids_of`], and when a pattern fits several.
pub(crate) fn pid_of(name: &str) -> Result<u32, Failure> {
    match pids_of(name)?[..] {
        [pid] => Ok(pid),
        ref many => {
            Err(Failure::usage(format!("{} processes have names like '{name}': choose one", many.len())))
        }
    }
}

/// The machine types of the process behind `handle`.
pub(crate) fn machine(handle: BorrowedHandle) -> Machine {
    const UNKNOWN: u16 = 0;
    let (wow, native) = is_wow64(handle);
    let mut machine = Machine { process: if wow == UNKNOWN { native } else { wow }, native };
    // IsWow64Process2 does not distinguish x64 programs on ARM64 from native ones. This function
    // does. It came with Windows 11, as did x64 programs on ARM64.
    if let Some(function) = system::kernel32(c"GetProcessInformation") {
        type Function = unsafe extern "system" fn(HANDLE, i32, *mut PROCESS_MACHINE_INFORMATION, u32) -> BOOL;
        // SAFETY: this is the documented signature of GetProcessInformation.
        let function = unsafe { std::mem::transmute::<Procedure, Function>(function) };
        let mut info = PROCESS_MACHINE_INFORMATION::default();
        let size = size_of_val(&info) as u32;
        // SAFETY: the buffer has the size that is passed.
        if unsafe { function(handle.as_raw_handle(), ProcessMachineTypeInfo, &mut info, size) } != 0
            && info.ProcessMachine != UNKNOWN
        {
            machine.process = info.ProcessMachine;
        }
    }
    machine
}

/// The emulated machine (0 = none) and the native one.
fn is_wow64(handle: BorrowedHandle) -> (IMAGE_FILE_MACHINE, IMAGE_FILE_MACHINE) {
    if let Some(function) = system::kernel32(c"IsWow64Process2") {
        type Function =
            unsafe extern "system" fn(HANDLE, *mut IMAGE_FILE_MACHINE, *mut IMAGE_FILE_MACHINE) -> BOOL;
        // SAFETY: this is the documented signature of IsWow64Process2.
        let function = unsafe { std::mem::transmute::<Procedure, Function>(function) };
        let (mut wow, mut native) = (0, 0);
        // SAFETY: both results have room.
        if unsafe { function(handle.as_raw_handle(), &mut wow, &mut native) } != 0 {
            return (wow, native);
        }
    }
    // Before Windows 10 1511 there was only x86 on x64.
    let mut wow = 0;
    // SAFETY: the result has room.
    let known = unsafe { IsWow64Process(handle.as_raw_handle(), &mut wow) };
    let x86 = object::pe::IMAGE_FILE_MACHINE_I386;
    if known != 0 && wow != 0 {
        (x86, object::pe::IMAGE_FILE_MACHINE_AMD64)
    } else {
        (0, image::own_machine())
    }
}

/// Opens a process with `rights`.
///
/// # Errors
/// The system's error.
pub(crate) fn open(pid: u32, rights: u32) -> io::Result<OwnedHandle> {
    // SAFETY: the handle is fresh.
    unsafe { system::own(OpenProcess(rights, 0, pid)) }
}

/// Opens a process for the few queries that nearly every user may make.
///
/// # Errors
/// The system's error.
pub(crate) fn open_limited(pid: u32) -> io::Result<OwnedHandle> {
    open(pid, PROCESS_QUERY_LIMITED_INFORMATION)
}

fn program_name(handle: BorrowedHandle) -> String {
    let path = image_path(handle).unwrap_or_default();
    stk_schema::text::file_name(&path.to_string_lossy()).to_owned()
}

fn image_path(handle: BorrowedHandle) -> Option<OsString> {
    image_path_as(handle, PROCESS_NAME_WIN32)
}

fn image_path_as(handle: BorrowedHandle, form: u32) -> Option<OsString> {
    let mut path = vec![0u16; 32_768];
    let mut len = path.len() as u32;
    // SAFETY: pointer and length are those of the vector.
    let ok = unsafe { QueryFullProcessImageNameW(handle.as_raw_handle(), form, path.as_mut_ptr(), &mut len) };
    (ok != 0).then(|| OsString::from_wide(&path[..(len as usize).min(path.len())]))
}
