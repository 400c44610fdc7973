//! Facts about the machine and the process, for the trace's metadata.

use alloc::format;
use alloc::string::{String, ToString};
use core::ffi::CStr;
use core::mem::zeroed;

use windows_sys::Win32::System::Environment::GetCommandLineW;
use windows_sys::Win32::System::SystemInformation::{
    ComputerNameDnsHostname, GetComputerNameExW, GetNativeSystemInfo, GetTickCount64, SYSTEM_INFO,
};
use windows_sys::Win32::System::Threading::{GetCurrentProcess, GetProcessTimes};

use crate::windows::system::api::{SystemApi, VersionInfo, unix_nanoseconds, utc};
use crate::windows::system::context::ARCH;
use crate::windows::system::text::{units, wtf8};

/// UTF-16 units of the longest command line on Windows.
const LONGEST: usize = 32_768;

/// Calls `each` with every known fact, keys in a fixed order. Includes the command line only if
/// `with_command_line` is set.
pub(crate) fn facts(api: &SystemApi, with_command_line: bool, mut each: impl FnMut(&str, &[u8])) {
    let mut text = |key, value: String| {
        if !value.is_empty() {
            each(key, value.as_bytes());
        }
    };
    text("recorder.name", "stk agent".to_string());
    text("recorder.version", env!("CARGO_PKG_VERSION").to_string());
    text("recorder.arch", ARCH.name().to_string());
    text("os.name", "Windows".to_string());
    text("os.build", build(api));
    if let Some(version) = api.wine_version {
        // SAFETY: Wine returns a static zero-terminated text.
        let version = unsafe { CStr::from_ptr(version()) };
        text("wine", version.to_string_lossy().to_string());
    }
    // SAFETY: plain data that the call fills.
    let mut info: SYSTEM_INFO = unsafe { zeroed() };
    // SAFETY: as above.
    unsafe { GetNativeSystemInfo(&mut info) };
    text("cpu.count", info.dwNumberOfProcessors.to_string());
    text("page.size", info.dwPageSize.to_string());
    let mut name = [0u16; 256];
    let mut len = name.len() as u32;
    // SAFETY: the buffer has the length that is passed.
    if unsafe { GetComputerNameExW(ComputerNameDnsHostname, name.as_mut_ptr(), &mut len) } != 0 {
        each("host", &wtf8(name.iter().copied().take(len as usize)));
    }
    if with_command_line {
        // SAFETY: the command line lives as long as the process and is terminated.
        each("command_line", &wtf8(unsafe { units(GetCommandLineW(), LONGEST) }.iter().copied()));
    }
}

/// When the process was created, in nanoseconds since the Unix epoch; 0 if unknown.
pub(crate) fn process_created() -> u64 {
    let mut times = [0u64; 4];
    let [created, exited, kernel, user] = times.each_mut().map(|time| core::ptr::from_mut(time).cast());
    // SAFETY: four FILETIMEs, each the size of a u64 with no stricter alignment.
    if unsafe { GetProcessTimes(GetCurrentProcess(), created, exited, kernel, user) } == 0 {
        return 0;
    }
    unix_nanoseconds(times[0])
}

/// A number for this boot of the machine: the time at which it started, coarse enough to be the
/// same in nearly all processes of one boot.
pub(crate) fn boot_id(api: &SystemApi) -> u64 {
    // SAFETY: no preconditions.
    let up = unsafe { GetTickCount64() };
    (utc(api) / 1_000_000).saturating_sub(up) / 60_000
}

fn build(api: &SystemApi) -> String {
    // SAFETY: plain data.
    let mut version: VersionInfo = unsafe { zeroed() };
    version.size = size_of::<VersionInfo>() as u32;
    match api.version {
        // SAFETY: the struct says its size.
        Some(query) if unsafe { query(&mut version) } >= 0 => {
            format!("{}.{}.{}", version.major, version.minor, version.build)
        }
        _ => String::new(),
    }
}
