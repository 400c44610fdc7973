//! System functions that are found once by name: those without an import library here, and those
//! that older systems lack.

use core::ffi::{c_char, c_void};
use core::mem::transmute_copy;
use core::sync::atomic::{AtomicPtr, Ordering};
use stk_schema::Ticks;

use alloc::boxed::Box;
use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::LibraryLoader::{GetModuleHandleW, GetProcAddress};
use windows_sys::Win32::System::Performance::{QueryPerformanceCounter, QueryPerformanceFrequency};
use windows_sys::w;

/// NTSTATUS; negative values are errors.
pub(crate) type Status = i32;

pub(crate) type NtReadVirtualMemory =
    unsafe extern "system" fn(HANDLE, *const c_void, *mut c_void, usize, *mut usize) -> Status;
pub(crate) type NtQueryVirtualMemory =
    unsafe extern "system" fn(HANDLE, *const c_void, u32, *mut c_void, usize, *mut usize) -> Status;
pub(crate) type NtQueryInformationThread =
    unsafe extern "system" fn(HANDLE, u32, *mut c_void, u32, *mut u32) -> Status;
pub(crate) type NtSetInformationThread = unsafe extern "system" fn(HANDLE, u32, *const c_void, u32) -> Status;
pub(crate) type NtGetNextThread =
    unsafe extern "system" fn(HANDLE, HANDLE, u32, u32, u32, *mut HANDLE) -> Status;
/// (count, handles, 1 = any of them, alertable, time-out in units of 100 ns) -> status.
pub(crate) type NtWaitForMultipleObjects =
    unsafe extern "system" fn(u32, *const HANDLE, u32, u8, *const i64) -> Status;
pub(crate) type NtSetTimerResolution = unsafe extern "system" fn(u32, u8, *mut u32) -> Status;
/// (alertable, time in units of 100 ns, negative = from now) -> status.
pub(crate) type NtDelayExecution = unsafe extern "system" fn(u8, *const i64) -> Status;
pub(crate) type LdrRegisterDllNotification =
    unsafe extern "system" fn(u32, *const c_void, *mut c_void, *mut *mut c_void) -> Status;
pub(crate) type LdrUnregisterDllNotification = unsafe extern "system" fn(*mut c_void) -> Status;
pub(crate) type RtlGetVersion = unsafe extern "system" fn(*mut VersionInfo) -> Status;
pub(crate) type RtlGetCurrentPeb = unsafe extern "system" fn() -> *const u8;
pub(crate) type WineGetVersion = unsafe extern "C" fn() -> *const c_char;
pub(crate) type QueryThreadCycleTime = unsafe extern "system" fn(HANDLE, *mut u64) -> i32;
pub(crate) type IsWow64Process2 = unsafe extern "system" fn(HANDLE, *mut u16, *mut u16) -> i32;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) type RtlLookupFunctionEntry = unsafe extern "system" fn(u64, *mut u64, *mut c_void) -> *const u32;
#[cfg(target_arch = "x86_64")]
pub(crate) type RtlVirtualUnwind = unsafe extern "system" fn(
    u32,
    u64,
    u64,
    *const u32,
    *mut windows_sys::Win32::System::Diagnostics::Debug::CONTEXT,
    *mut *mut c_void,
    *mut u64,
    *mut c_void,
) -> *mut c_void;
pub(crate) type GetProcessMitigationPolicy =
    unsafe extern "system" fn(HANDLE, i32, *mut c_void, usize) -> i32;
/// (thread, class, information, size) -> BOOL.
pub(crate) type SetThreadInformation = unsafe extern "system" fn(HANDLE, i32, *const c_void, u32) -> i32;
pub(crate) type PreciseTime = unsafe extern "system" fn(*mut u64);

/// RTL_OSVERSIONINFOW.
#[repr(C)]
pub(crate) struct VersionInfo {
    pub size: u32,
    pub major: u32,
    pub minor: u32,
    pub build: u32,
    pub platform: u32,
    pub service_pack: [u16; 128],
}

/// (flags, disposition, cookie) -> status.
#[cfg(target_arch = "x86_64")]
pub(crate) type LdrLockLoaderLock = unsafe extern "system" fn(u32, *mut u32, *mut usize) -> i32;
/// (flags, cookie) -> status.
#[cfg(target_arch = "x86_64")]
pub(crate) type LdrUnlockLoaderLock = unsafe extern "system" fn(u32, usize) -> i32;

/// The functions found in this process. Those that every supported system has are not optional.
pub(crate) struct SystemApi {
    pub read_memory: NtReadVirtualMemory,
    pub query_thread: NtQueryInformationThread,
    pub current_peb: RtlGetCurrentPeb,
    pub set_thread: Option<NtSetInformationThread>,
    pub query_memory: Option<NtQueryVirtualMemory>,
    pub next_thread: Option<NtGetNextThread>,
    pub wait_for_several: Option<NtWaitForMultipleObjects>,
    pub set_timer_resolution: Option<NtSetTimerResolution>,
    pub delay_execution: Option<NtDelayExecution>,
    pub register_notification: Option<LdrRegisterDllNotification>,
    pub unregister_notification: Option<LdrUnregisterDllNotification>,
    pub version: Option<RtlGetVersion>,
    pub wine_version: Option<WineGetVersion>,
    pub thread_cycles: Option<QueryThreadCycleTime>,
    pub is_wow64: Option<IsWow64Process2>,
    pub precise_time: Option<PreciseTime>,
    pub mitigation_policy: Option<GetProcessMitigationPolicy>,
    pub set_thread_information: Option<SetThreadInformation>,
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub lookup_function: Option<RtlLookupFunctionEntry>,
    #[cfg(target_arch = "x86_64")]
    pub virtual_unwind: Option<RtlVirtualUnwind>,
    #[cfg(target_arch = "x86_64")]
    pub lock_loader: Option<LdrLockLoaderLock>,
    #[cfg(target_arch = "x86_64")]
    pub unlock_loader: Option<LdrUnlockLoaderLock>,
    /// Ticks of the performance counter per second.
    pub frequency: u64,
}

impl SystemApi {
    /// `milliseconds` as a span.
    pub(crate) fn milliseconds(&self, milliseconds: u32) -> Ticks {
        Ticks(u64::from(milliseconds) * self.frequency / 1000)
    }

    /// Whole milliseconds in `span`.
    pub(crate) fn whole_milliseconds(&self, span: Ticks) -> u32 {
        u32::try_from(span.0.saturating_mul(1000) / self.frequency.max(1)).unwrap_or(u32::MAX)
    }
}

static API: AtomicPtr<SystemApi> = AtomicPtr::new(core::ptr::null_mut());

/// The functions, found at the first call; `None` on a system without the required ones.
pub(crate) fn api() -> Option<&'static SystemApi> {
    // SAFETY: the pointer is null or that of a box that is never freed.
    if let Some(api) = unsafe { API.load(Ordering::Acquire).as_ref() } {
        return Some(api);
    }
    let found = Box::into_raw(Box::new(find()?));
    // A second thread that searched at the same time found the same functions. One of the two boxes
    // stays in use, the other is leaked.
    API.store(found, Ordering::Release);
    // SAFETY: as above.
    unsafe { found.as_ref() }
}

/// Now, by the performance counter.
pub(crate) fn ticks() -> Ticks {
    let mut now = 0;
    // SAFETY: writes one i64; it cannot fail since Windows XP.
    unsafe { QueryPerformanceCounter(&mut now) };
    Ticks(now as u64)
}

/// UTC in nanoseconds since the Unix epoch.
pub(crate) fn utc(api: &SystemApi) -> u64 {
    let mut time = 0u64;
    match api.precise_time {
        // SAFETY: writes one FILETIME, which has the size of a u64 and no stricter alignment.
        Some(precise) => unsafe { precise(&mut time) },
        // SAFETY: as above.
        None => unsafe {
            windows_sys::Win32::System::SystemInformation::GetSystemTimeAsFileTime((&raw mut time).cast())
        },
    }
    unix_nanoseconds(time)
}

/// A FILETIME's 100 ns units since 1601 as nanoseconds since 1970; 0 for times before.
pub(crate) fn unix_nanoseconds(filetime: u64) -> u64 {
    filetime.saturating_sub(116_444_736_000_000_000).saturating_mul(100)
}

fn find() -> Option<SystemApi> {
    // SAFETY: the names are zero-terminated; ntdll and kernel32 are mapped in every process and
    // never unmapped.
    let (ntdll, kernel32) =
        unsafe { (GetModuleHandleW(w!("ntdll.dll")), GetModuleHandleW(w!("kernel32.dll"))) };
    let find = |module, name: &core::ffi::CStr| {
        // SAFETY: the name is zero-terminated.
        unsafe { GetProcAddress(module, name.as_ptr().cast()) }
    };
    /// Gives a found function its type, which the caller takes from the system's documentation.
    unsafe fn typed<T: Copy>(function: unsafe extern "system" fn() -> isize) -> T {
        const { assert!(size_of::<T>() == size_of::<usize>()) };
        // SAFETY: the sizes are equal, and the caller names the function's true type.
        unsafe { transmute_copy(&function) }
    }
    let mut frequency = 0;
    // SAFETY: writes one i64.
    unsafe { QueryPerformanceFrequency(&mut frequency) };
    // SAFETY: each function is given the type that the Windows SDK, phnt or Wine's headers declare
    // for its name.
    unsafe {
        Some(SystemApi {
            read_memory: typed(find(ntdll, c"NtReadVirtualMemory")?),
            query_thread: typed(find(ntdll, c"NtQueryInformationThread")?),
            current_peb: typed(find(ntdll, c"RtlGetCurrentPeb")?),
            set_thread: find(ntdll, c"NtSetInformationThread").map(|function| typed(function)),
            query_memory: find(ntdll, c"NtQueryVirtualMemory").map(|function| typed(function)),
            next_thread: find(ntdll, c"NtGetNextThread").map(|function| typed(function)),
            wait_for_several: find(ntdll, c"NtWaitForMultipleObjects").map(|function| typed(function)),
            set_timer_resolution: find(ntdll, c"NtSetTimerResolution").map(|function| typed(function)),
            delay_execution: find(ntdll, c"NtDelayExecution").map(|function| typed(function)),
            register_notification: find(ntdll, c"LdrRegisterDllNotification").map(|function| typed(function)),
            unregister_notification: find(ntdll, c"LdrUnregisterDllNotification")
                .map(|function| typed(function)),
            version: find(ntdll, c"RtlGetVersion").map(|function| typed(function)),
            wine_version: find(ntdll, c"wine_get_version").map(|function| typed(function)),
            thread_cycles: find(kernel32, c"QueryThreadCycleTime").map(|function| typed(function)),
            is_wow64: find(kernel32, c"IsWow64Process2").map(|function| typed(function)),
            mitigation_policy: find(kernel32, c"GetProcessMitigationPolicy").map(|function| typed(function)),
            set_thread_information: find(kernel32, c"SetThreadInformation").map(|function| typed(function)),
            precise_time: find(kernel32, c"GetSystemTimePreciseAsFileTime").map(|function| typed(function)),
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            lookup_function: find(ntdll, c"RtlLookupFunctionEntry").map(|function| typed(function)),
            #[cfg(target_arch = "x86_64")]
            virtual_unwind: find(ntdll, c"RtlVirtualUnwind").map(|function| typed(function)),
            #[cfg(target_arch = "x86_64")]
            lock_loader: find(ntdll, c"LdrLockLoaderLock").map(|function| typed(function)),
            #[cfg(target_arch = "x86_64")]
            unlock_loader: find(ntdll, c"LdrUnlockLoaderLock").map(|function| typed(function)),
            frequency: (frequency as u64).max(1),
        })
    }
}
