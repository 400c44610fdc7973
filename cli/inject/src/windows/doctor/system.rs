//! Windows, processors, code integrity, security software.

use crate::doctor::system::SystemFacts;
use crate::image;
use crate::windows::process;
use crate::windows::registry::{number, text};
use crate::windows::system::{Procedure, kernel32, ntdll, wide, wine_version};
use std::ffi::{OsStr, OsString, c_void};
use std::mem::transmute;
use std::os::windows::ffi::OsStringExt;
use std::os::windows::io::BorrowedHandle;
use std::path::PathBuf;
use std::ptr;
use stk_schema::bytes::{u32_at, u32_in};
use windows_sys::Win32::Foundation::{ERROR_SUCCESS, HMODULE};
use windows_sys::Win32::System::LibraryLoader::GetModuleFileNameW;
use windows_sys::Win32::System::ProcessStatus::K32EnumProcessModules;
use windows_sys::Win32::System::Registry::{
    HKEY, HKEY_LOCAL_MACHINE, KEY_READ, KEY_WOW64_64KEY, RegCloseKey, RegEnumKeyExW, RegOpenKeyExW,
};
use windows_sys::Win32::System::SystemInformation::GetWindowsDirectoryW;
use windows_sys::Win32::System::Threading::{GetActiveProcessorCount, GetCurrentProcess};
use windows_sys::core::BOOL;

pub(super) fn gather() -> SystemFacts {
    const CURRENT: &str = r"SOFTWARE\Microsoft\Windows NT\CurrentVersion";
    const BIOS: &str = r"HARDWARE\DESCRIPTION\System\BIOS";
    let joined = |key: &str, names: [&str; 2]| {
        let all: Vec<String> =
            names.iter().filter_map(|name| text(key, name)).filter(|text| !text.is_empty()).collect();
        (!all.is_empty()).then(|| all.join(" "))
    };
    // SAFETY: the pseudo handle of this process is valid as long as the process, and needs no
    // closing.
    let own = unsafe { BorrowedHandle::borrow_raw(GetCurrentProcess()) };
    SystemFacts {
        version: version().map(|(major, minor, build)| (major, minor, build, number(CURRENT, "UBR"))),
        product: joined(CURRENT, ["ProductName", "DisplayVersion"]),
        wine: wine_version(),
        machine: Some((
            image::machine_name(image::own_machine()),
            image::machine_name(process::machine(own).native),
        )),
        // SAFETY: no preconditions; 0xffff stands for all processor groups.
        processors: unsafe { GetActiveProcessorCount(0xffff) },
        efficiency: efficiency_classes(),
        hypervisor: hypervisor(),
        model: joined(BIOS, ["SystemManufacturer", "SystemProductName"]),
        code_integrity: code_integrity(),
        isolated_user_mode: isolated_user_mode(),
        smart_app_control: number(
            r"SYSTEM\CurrentControlSet\Control\CI\Policy",
            "VerifiedAndReputablePolicyState",
        ),
        security_filters: security_filters(),
        foreign_modules: foreign_modules(),
    }
}

fn version() -> Option<(u32, u32, u32)> {
    // RTL_OSVERSIONINFOW: size, major, minor, build, platform, 128 units of text.
    let mut info = [0u32; 5 + 64];
    info[0] = size_of_val(&info) as u32;
    let function = ntdll(c"RtlGetVersion")?;
    // SAFETY: the documented signature; the buffer is as large as it says.
    let status = unsafe {
        transmute::<Procedure, unsafe extern "system" fn(*mut u32) -> i32>(function)(info.as_mut_ptr())
    };
    (status >= 0).then_some((info[1], info[2], info[3]))
}

/// NtQuerySystemInformation of `class` into `bytes`; false if the system does not know it.
fn query(class: u32, bytes: &mut [u8]) -> bool {
    type Function = unsafe extern "system" fn(u32, *mut c_void, u32, *mut u32) -> i32;
    let Some(function) = ntdll(c"NtQuerySystemInformation") else { return false };
    let mut len = 0;
    // SAFETY: the documented signature; pointer and length are those of the slice, whose users
    // align it themselves.
    unsafe {
        transmute::<Procedure, Function>(function)(
            class,
            bytes.as_mut_ptr().cast(),
            bytes.len() as u32,
            &mut len,
        ) >= 0
    }
}

/// SystemCodeIntegrityInformation, documented with NtQuerySystemInformation: length and options.
fn code_integrity() -> Option<u32> {
    const CLASS: u32 = 103;
    #[repr(align(8))]
    struct CodeIntegrityRoom([u8; 8]);
    let mut room = CodeIntegrityRoom([8, 0, 0, 0, 0, 0, 0, 0]);
    query(CLASS, &mut room.0).then(|| u32_in(&room.0, 4))
}

/// SystemIsolatedUserModeInformation (phnt): bits in the first byte.
fn isolated_user_mode() -> Option<u8> {
    const CLASS: u32 = 165;
    #[repr(align(8))]
    struct UserModeRoom([u8; 16]);
    let mut room = UserModeRoom([0; 16]);
    query(CLASS, &mut room.0).then_some(room.0[0])
}

fn efficiency_classes() -> Option<Vec<u8>> {
    type Function = unsafe extern "system" fn(*mut u8, u32, *mut u32, *mut c_void, u32) -> BOOL;
    /// Offset of EfficiencyClass in SYSTEM_CPU_SET_INFORMATION.
    const EFFICIENCY: usize = 18;
    let function = kernel32(c"GetSystemCpuSetInformation")?;
    // SAFETY: this is the documented signature.
    let function = unsafe { transmute::<Procedure, Function>(function) };
    let mut bytes = vec![0u64; 32 * 1024 / 8];
    let mut len = 0;
    let room = size_of_val(&bytes[..]) as u32;
    // SAFETY: pointer and length are those of the vector; a null process means this one's system.
    if unsafe { function(bytes.as_mut_ptr().cast(), room, &mut len, ptr::null_mut(), 0) } == 0 {
        return None;
    }
    let bytes: Vec<u8> = bytes.iter().flat_map(|word| word.to_le_bytes()).take(len as usize).collect();
    let (mut classes, mut at) = (Vec::new(), 0);
    // Each entry begins with its size.
    while let Some(size) = u32_at(&bytes, at) {
        let size = size as usize;
        classes.push(*bytes.get(at + EFFICIENCY)?);
        if size == 0 {
            return None;
        }
        at += size;
    }
    (!classes.is_empty()).then_some(classes)
}

/// The twelve letters of CPUID's hypervisor leaf.
#[cfg(target_arch = "x86_64")]
fn hypervisor() -> Option<String> {
    use std::arch::x86_64::__cpuid;
    const PRESENT: u32 = 1 << 31;
    if __cpuid(1).ecx & PRESENT == 0 {
        return None;
    }
    let leaf = __cpuid(0x4000_0000);
    let letters: Vec<u8> = [leaf.ebx, leaf.ecx, leaf.edx].into_iter().flat_map(u32::to_le_bytes).collect();
    Some(String::from_utf8_lossy(&letters).trim_end_matches('\0').to_owned())
}

/// Other processors do not show a hypervisor to programs.
#[cfg(not(target_arch = "x86_64"))]
fn hypervisor() -> Option<String> {
    None
}

/// The services that are registered as file filters of an antivirus program or of an activity
/// monitor.
fn security_filters() -> Option<Vec<String>> {
    const SERVICES: &str = r"SYSTEM\CurrentControlSet\Services";
    let path = wide(OsStr::new(SERVICES));
    let mut key: HKEY = ptr::null_mut();
    // SAFETY: the name is zero-terminated, the result has room.
    let error =
        unsafe { RegOpenKeyExW(HKEY_LOCAL_MACHINE, path.as_ptr(), 0, KEY_READ | KEY_WOW64_64KEY, &mut key) };
    if error != ERROR_SUCCESS {
        return None;
    }
    let mut found = Vec::new();
    for index in 0.. {
        let mut name = [0u16; 256];
        let mut len = name.len() as u32;
        // SAFETY: the key is open; the length is that of the array; results that are not needed are
        // null.
        let error = unsafe {
            let (none, class) = (ptr::null_mut(), ptr::null_mut());
            RegEnumKeyExW(
                key,
                index,
                name.as_mut_ptr(),
                &mut len,
                none,
                class,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        if error != ERROR_SUCCESS {
            break;
        }
        let name = String::from_utf16_lossy(&name[..(len as usize).min(name.len())]);
        let group = text(&format!("{SERVICES}\\{name}"), "Group").unwrap_or_default();
        if ["FSFilter Anti-Virus", "FSFilter Activity Monitor"]
            .iter()
            .any(|wanted| group.eq_ignore_ascii_case(wanted))
        {
            found.push(name);
        }
    }
    // SAFETY: the key is open and not used any more.
    unsafe { RegCloseKey(key) };
    Some(found)
}

/// Paths of the modules of this process that lie neither in Windows' folder nor in inject's own.
fn foreign_modules() -> Option<Vec<String>> {
    let mut handles: Vec<HMODULE> = vec![ptr::null_mut(); 1024];
    let mut need = 0;
    // SAFETY: pointer and size are those of the vector.
    let ok = unsafe {
        let size = size_of_val(&handles[..]) as u32;
        K32EnumProcessModules(GetCurrentProcess(), handles.as_mut_ptr(), size, &mut need)
    };
    if ok == 0 {
        return None;
    }
    handles.truncate(need as usize / size_of::<HMODULE>());
    let lower = |path: PathBuf| path.to_string_lossy().to_lowercase();
    let own = lower(std::env::current_exe().ok()?.parent()?.to_owned());
    let windows = lower(windows_folder());
    let paths = handles.into_iter().map(module_path);
    let foreign = paths.filter(|path| {
        let path = lower(path.clone());
        !path.starts_with(&own) && !path.starts_with(&windows)
    });
    Some(foreign.map(|path| path.to_string_lossy().into_owned()).collect())
}

fn windows_folder() -> PathBuf {
    let mut units = [0u16; 260];
    // SAFETY: pointer and length are those of the array.
    let len = unsafe { GetWindowsDirectoryW(units.as_mut_ptr(), units.len() as u32) } as usize;
    OsString::from_wide(&units[..len.min(units.len())]).into()
}

/// Path of a module of this process; empty if there is none.
fn module_path(module: HMODULE) -> PathBuf {
    let mut units = vec![0u16; 32_768];
    // SAFETY: pointer and length are those of the vector; for an invalid module handle the call
    // returns 0.
    let len = unsafe { GetModuleFileNameW(module, units.as_mut_ptr(), units.len() as u32) } as usize;
    OsString::from_wide(&units[..len.min(units.len())]).into()
}
