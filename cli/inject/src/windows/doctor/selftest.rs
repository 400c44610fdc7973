//! Loads agent.dll into inject's own process and runs its self-test.

use super::system::windows_folder;
use crate::doctor::agent::{self, OwnProcessFacts};
use crate::doctor::{Fact, Verdict};
use crate::windows::system::{Procedure, kernel32, own, wide};
use std::mem::{transmute, zeroed};
use std::os::windows::io::AsRawHandle;
use std::path::{Path, PathBuf};
use std::ptr;
use stk_schema::selftest::SelfTest;
use thiserror::Error;
use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::Diagnostics::ToolHelp::{
    CreateToolhelp32Snapshot, TH32CS_SNAPTHREAD, THREADENTRY32, Thread32First, Thread32Next,
};
use windows_sys::Win32::System::LibraryLoader::{
    GetModuleHandleW, GetProcAddress, LOAD_WITH_ALTERED_SEARCH_PATH, LoadLibraryExW,
};
use windows_sys::Win32::System::Memory::{MEMORY_BASIC_INFORMATION, VirtualQuery};
use windows_sys::Win32::System::Threading::GetCurrentThread;
use windows_sys::s;

type Export = unsafe extern "system" fn(*mut SelfTest) -> u32;

/// Name of the thread that runs the test. It is not ASCII, because thread names need not be.
const THREAD_NAME: &str = "stk doctor größe";

/// Why the self-test cannot run.
#[derive(Debug, Error)]
enum LoadError {
    #[error(
        "agent.dll cannot be loaded, not even into inject ({0}): a code integrity policy or security software blocks it \
         (event log Microsoft-Windows-CodeIntegrity/Operational, events 3033 and 3077)"
    )]
    Blocked(std::io::Error),
    #[error("agent.dll does not export stk_agent_selftest: it is of another stk version")]
    NoExport,
}

/// Loads the agent, runs its test on a thread of its own, and judges the answers.
pub(super) fn run(path: &Path) -> Vec<Fact> {
    let loaded = match load(path) {
        Ok(export) => export,
        Err(why) => return vec![Fact::ok("agent", "loaded", false).but(Verdict::Bad, why.to_string())],
    };
    let mut facts = vec![Fact::ok("agent", "loaded", path.display().to_string())];
    let tested = std::thread::spawn(move || test(loaded)).join();
    match tested {
        Ok(Some((test, known))) => facts.extend(agent::judge(&test, &known)),
        _ => facts.push(
            Fact::ok("agent", "self-test", false)
                .but(Verdict::Bad, "agent.dll is of another stk version than inject.exe"),
        ),
    }
    facts
}

/// The agent's export; the DLL stays loaded.
fn load(path: &Path) -> Result<Export, LoadError> {
    let name = wide(path.as_os_str());
    // SAFETY: the path is absolute and zero-terminated.
    let module = unsafe { LoadLibraryExW(name.as_ptr(), ptr::null_mut(), LOAD_WITH_ALTERED_SEARCH_PATH) };
    if module.is_null() {
        return Err(LoadError::Blocked(std::io::Error::last_os_error()));
    }
    // SAFETY: the module is loaded, the name zero-terminated.
    let export = unsafe { GetProcAddress(module, s!("stk_agent_selftest")) };
    // SAFETY: stk-schema declares the export so.
    export.map(|export| unsafe { transmute::<Procedure, Export>(export) }).ok_or(LoadError::NoExport)
}

fn test(export: Export) -> Option<(Box<SelfTest>, OwnProcessFacts)> {
    let thread_name = name_own_thread();
    let probe = probe().map(|path| wide(path.as_os_str())).unwrap_or_default();
    let mut test = Box::new(SelfTest::new(&probe));
    let before = threads();
    // SAFETY: the struct says its size and version and is writable.
    if unsafe { export(&mut *test) } != 0 {
        return None;
    }
    let threads = before.zip(threads());
    // SAFETY: null stands for the program itself.
    let image_base = unsafe { GetModuleHandleW(ptr::null()) } as u64;
    Some((test, OwnProcessFacts { image_base, stack: own_stack(), thread_name, threads }))
}

/// A small DLL of the system that is not loaded yet.
fn probe() -> Option<PathBuf> {
    let folder = windows_folder().join("system32");
    let candidates = ["cabinet.dll", "winmm.dll", "msacm32.dll", "avifil32.dll", "version.dll"];
    candidates.iter().map(|name| folder.join(name)).find(|path| {
        let name = wide(path.file_name().unwrap_or_default());
        // SAFETY: the name is zero-terminated.
        path.is_file() && unsafe { GetModuleHandleW(name.as_ptr()) }.is_null()
    })
}

fn name_own_thread() -> Option<String> {
    type Function = unsafe extern "system" fn(HANDLE, *const u16) -> i32;
    let function = kernel32(c"SetThreadDescription")?;
    let name = wide(THREAD_NAME.as_ref());
    // SAFETY: the documented signature; the pseudo handle needs no closing; the name is
    // zero-terminated.
    let result = unsafe { transmute::<Procedure, Function>(function)(GetCurrentThread(), name.as_ptr()) };
    (result >= 0).then(|| THREAD_NAME.to_owned())
}

/// The memory of the calling thread's stack: from its reservation's begin to its end.
fn own_stack() -> Option<(u64, u64)> {
    let query = |address: usize| {
        // SAFETY: the struct is plain data and has the size that is passed; the address is not
        // followed.
        unsafe {
            let mut info: MEMORY_BASIC_INFORMATION = zeroed();
            let size = size_of::<MEMORY_BASIC_INFORMATION>();
            (VirtualQuery(ptr::without_provenance(address), &mut info, size) != 0).then_some(info)
        }
    };
    let here = 0u8;
    let base = query(ptr::from_ref(&here).addr())?.AllocationBase as usize;
    let mut end = base;
    while let Some(region) = query(end)
        && region.AllocationBase as usize == base
        && region.RegionSize != 0
    {
        end += region.RegionSize;
    }
    Some((base as u64, end as u64))
}

/// This process's threads in a snapshot of the system.
fn threads() -> Option<u32> {
    of_process(std::process::id())
}

/// The threads of process `pid` in a snapshot of the system.
pub(super) fn of_process(pid: u32) -> Option<u32> {
    // SAFETY: the snapshot handle is fresh.
    let snapshot = unsafe { own(CreateToolhelp32Snapshot(TH32CS_SNAPTHREAD, 0)) }.ok()?;
    let mut entry = THREADENTRY32 { dwSize: size_of::<THREADENTRY32>() as u32, ..THREADENTRY32::default() };
    // SAFETY: the snapshot is open and the entry says its size.
    let mut more = unsafe { Thread32First(snapshot.as_raw_handle(), &mut entry) };
    let mut count = 0;
    while more != 0 {
        count += u32::from(entry.th32OwnerProcessID == pid);
        // SAFETY: as above.
        more = unsafe { Thread32Next(snapshot.as_raw_handle(), &mut entry) };
    }
    Some(count)
}
