//! How far the clocks of this machine are ahead of UTC.
// The calls to the system are unsafe. Each states its reason.
#![allow(unsafe_code)]

/// Seconds that local clocks are ahead of UTC at a moment, in seconds since the epoch; `None` if
/// the system does not know.
#[cfg(unix)]
pub fn offset(seconds: i64) -> Option<i32> {
    let time = libc::time_t::try_from(seconds).ok()?;
    let mut parts = std::mem::MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: both point to values of their types, and the result is written to the second. All
    // zeros is a value of `tm`.
    let parts = unsafe {
        if libc::localtime_r(&time, parts.as_mut_ptr()).is_null() {
            return None;
        }
        parts.assume_init()
    };
    i32::try_from(parts.tm_gmtoff).ok()
}

/// Seconds that local clocks are ahead of UTC at a moment, in seconds since the epoch; `None` if
/// the system does not know.
#[cfg(windows)]
pub fn offset(seconds: i64) -> Option<i32> {
    use windows_sys::Win32::Foundation::{FILETIME, SYSTEMTIME};
    use windows_sys::Win32::System::Time::{
        FileTimeToSystemTime, SystemTimeToFileTime, SystemTimeToTzSpecificLocalTime,
    };

    /// Units of 100 ns in a second.
    const UNITS: i64 = 10_000_000;
    /// Seconds from 1601, where FILETIME begins, to 1970.
    const TO_EPOCH: i64 = 11_644_473_600;
    let units = seconds.checked_add(TO_EPOCH)?.checked_mul(UNITS)?;
    let utc = FILETIME { dwLowDateTime: units as u32, dwHighDateTime: (units >> 32) as u32 };
    let mut local = utc;
    let mut parts = SYSTEMTIME::default();
    let mut shifted = SYSTEMTIME::default();
    // SAFETY: all point to values of their types; a null zone is the machine's.
    let done = unsafe {
        FileTimeToSystemTime(&utc, &mut parts) != 0
            && SystemTimeToTzSpecificLocalTime(std::ptr::null(), &parts, &mut shifted) != 0
            && SystemTimeToFileTime(&shifted, &mut local) != 0
    };
    let local = (i64::from(local.dwHighDateTime) << 32) | i64::from(local.dwLowDateTime);
    if done { i32::try_from((local - units) / UNITS).ok() } else { None }
}
