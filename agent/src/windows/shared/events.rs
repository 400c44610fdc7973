//! The events that the recorder's threads wait for: made once per process, never closed, since
//! whoever signals one may be late.

use core::ffi::c_void;
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering};

use stk_schema::control::StartResult;
use windows_sys::Win32::Foundation::{CloseHandle, GetLastError, HANDLE};
use windows_sys::Win32::System::Threading::{CreateEventW, SetEvent};

/// Events, made once per process: wake the sampler, a spare sampler, the census, the code thread,
/// the writer, the runtimes thread; the recording has finished (manual reset).
pub static WAKE_SAMPLER: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
pub static WAKE_SPARE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
pub static WAKE_CENSUS: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
pub static WAKE_CODE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
pub static WAKE_WRITER: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
pub static WAKE_RUNTIMES: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
pub static ENDED: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Makes the events that last as long as the process.
pub fn make_events() -> Result<(), (StartResult, u32)> {
    let wakes = [&WAKE_SAMPLER, &WAKE_SPARE, &WAKE_CENSUS, &WAKE_CODE, &WAKE_WRITER, &WAKE_RUNTIMES];
    for (event, manual) in wakes.into_iter().map(|event| (event, 0)).chain([(&ENDED, 1)]) {
        if event.load(Ordering::Acquire).is_null() {
            // SAFETY: an unnamed event without special security.
            let made = unsafe { CreateEventW(null(), manual, 0, null()) };
            if made.is_null() {
                // SAFETY: no preconditions.
                return Err((StartResult::NoThread, unsafe { GetLastError() }));
            }
            event.store(made, Ordering::Release);
        }
    }
    Ok(())
}

/// Wakes all threads that wait for work.
pub fn wake_all() {
    signal(&WAKE_SAMPLER);
    signal(&WAKE_SPARE);
    signal(&WAKE_CENSUS);
    signal(&WAKE_CODE);
    signal(&WAKE_WRITER);
    signal(&WAKE_RUNTIMES);
}

/// Signals an event, if it was made.
pub fn signal(event: &AtomicPtr<c_void>) {
    let event = event.load(Ordering::Acquire);
    if !event.is_null() {
        // SAFETY: the events live as long as the process.
        unsafe { SetEvent(event) };
    }
}

/// Closes a handle, if it is one.
pub fn close(handle: HANDLE) {
    if !handle.is_null() {
        // SAFETY: the caller owns it.
        unsafe { CloseHandle(handle) };
    }
}
