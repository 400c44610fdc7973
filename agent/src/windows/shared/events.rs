//! The events that the recorder's threads wait for: made once per process, never closed, since
//! whoever signals one may be late.

use core::ffi::c_void;
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering};

use stk_schema::control::StartResult;
use windows_sys::Win32::Foundation::{CloseHandle, GetLastError, HANDLE};
use windows_sys::Win32::System::Threading::{CreateEventW, ResetEvent, SetEvent, WaitForSingleObject};

/// An event of the system's that lives as long as the process, once it is made.
pub struct WakeEvent(AtomicPtr<c_void>);

/// Wakes the sampler.
pub static WAKE_SAMPLER: WakeEvent = WakeEvent::new();
/// Wakes a spare sampler.
pub static WAKE_SPARE: WakeEvent = WakeEvent::new();
/// Wakes the tables thread.
pub static WAKE_TABLES: WakeEvent = WakeEvent::new();
/// Wakes the code thread.
pub static WAKE_CODE: WakeEvent = WakeEvent::new();
/// Wakes the writer.
pub static WAKE_WRITER: WakeEvent = WakeEvent::new();
/// Wakes the runtimes thread.
pub static WAKE_RUNTIMES: WakeEvent = WakeEvent::new();
/// The recording has finished; stays set (manual reset) until the next one starts.
pub static ENDED: WakeEvent = WakeEvent::new();

impl WakeEvent {
    const fn new() -> WakeEvent {
        WakeEvent(AtomicPtr::new(null_mut()))
    }

    /// The handle; null until the event is made.
    pub fn handle(&self) -> HANDLE {
        self.0.load(Ordering::Acquire)
    }

    /// Makes the event unless it is there; the error is the system's.
    fn make(&self, manual_reset: i32) -> Result<(), u32> {
        if self.handle().is_null() {
            // SAFETY: an unnamed event without special security.
            let made = unsafe { CreateEventW(null(), manual_reset, 0, null()) };
            if made.is_null() {
                // SAFETY: no preconditions.
                return Err(unsafe { GetLastError() });
            }
            self.0.store(made, Ordering::Release);
        }
        Ok(())
    }

    /// Signals the event, if it was made.
    pub fn signal(&self) {
        let event = self.handle();
        if !event.is_null() {
            // SAFETY: the events live as long as the process.
            unsafe { SetEvent(event) };
        }
    }

    /// Takes the signal back.
    pub fn reset(&self) {
        // SAFETY: the event lives as long as the process.
        unsafe { ResetEvent(self.handle()) };
    }

    /// Waits for the signal, at most `milliseconds`.
    pub fn wait(&self, milliseconds: u32) {
        // SAFETY: the event lives as long as the process.
        unsafe { WaitForSingleObject(self.handle(), milliseconds) };
    }
}

/// Makes the events that last as long as the process.
pub fn make_events() -> Result<(), (StartResult, u32)> {
    let wakes = [&WAKE_SAMPLER, &WAKE_SPARE, &WAKE_TABLES, &WAKE_CODE, &WAKE_WRITER, &WAKE_RUNTIMES];
    for (event, manual_reset) in wakes.into_iter().map(|event| (event, 0)).chain([(&ENDED, 1)]) {
        event.make(manual_reset).map_err(|error| (StartResult::NoThread, error))?;
    }
    Ok(())
}

/// Wakes all threads that wait for work.
pub fn wake_all() {
    WAKE_SAMPLER.signal();
    WAKE_SPARE.signal();
    WAKE_TABLES.signal();
    WAKE_CODE.signal();
    WAKE_WRITER.signal();
    WAKE_RUNTIMES.signal();
}

/// Closes a handle, if it is one.
pub fn close(handle: HANDLE) {
    if !handle.is_null() {
        // SAFETY: the caller owns it.
        unsafe { CloseHandle(handle) };
    }
}
