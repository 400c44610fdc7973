//! The events that the recorder's threads wait for. They are made once per process and never
//! closed, because a thread may signal one late.

use core::ffi::c_void;
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering};

use stk_schema::control::StartResult;
use windows_sys::Win32::Foundation::{CloseHandle, GetLastError, HANDLE};
use windows_sys::Win32::System::Threading::{
    CreateEventW, CreateMutexW, ResetEvent, SetEvent, WaitForSingleObject,
};

/// A system event. Once it is made, it lives as long as the process.
pub(crate) struct WakeEvent(AtomicPtr<c_void>);

pub(crate) static WAKE_SAMPLER: WakeEvent = WakeEvent::new();
/// Wakes a spare sampler.
pub(crate) static WAKE_SPARE: WakeEvent = WakeEvent::new();
pub(crate) static WAKE_TABLES: WakeEvent = WakeEvent::new();
pub(crate) static WAKE_CODE: WakeEvent = WakeEvent::new();
pub(crate) static WAKE_WRITER: WakeEvent = WakeEvent::new();
pub(crate) static WAKE_RUNTIMES: WakeEvent = WakeEvent::new();
/// Signals that the recording has finished. It stays set (manual reset) until the next one starts.
pub(crate) static ENDED: WakeEvent = WakeEvent::new();

/// The mutex that hosts hold while they ask something ([`stk_schema::requests`]). The agent itself
/// never takes it. Made and kept like the events.
pub(crate) struct HostMutex(AtomicPtr<c_void>);

pub(crate) static HOSTS: HostMutex = HostMutex(AtomicPtr::new(null_mut()));

impl HostMutex {
    /// The handle; null until the mutex is made.
    pub(crate) fn handle(&self) -> HANDLE {
        self.0.load(Ordering::Acquire)
    }

    /// Makes the mutex unless it exists. The error is the system's error code.
    fn make(&self) -> Result<(), u32> {
        if self.handle().is_null() {
            // SAFETY: an unnamed mutex without special security, owned by nobody.
            let made = unsafe { CreateMutexW(null(), 0, null()) };
            if made.is_null() {
                // SAFETY: no preconditions.
                return Err(unsafe { GetLastError() });
            }
            self.0.store(made, Ordering::Release);
        }
        Ok(())
    }
}

impl WakeEvent {
    const fn new() -> WakeEvent {
        WakeEvent(AtomicPtr::new(null_mut()))
    }

    /// The handle; null until the event is made.
    pub(crate) fn handle(&self) -> HANDLE {
        self.0.load(Ordering::Acquire)
    }

    /// Makes the event unless it exists. The error is the system's error code.
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

    /// Signals the event if it exists.
    pub(crate) fn signal(&self) {
        let event = self.handle();
        if !event.is_null() {
            // SAFETY: the events live as long as the process.
            unsafe { SetEvent(event) };
        }
    }

    /// Resets the signal.
    pub(crate) fn reset(&self) {
        // SAFETY: the event lives as long as the process.
        unsafe { ResetEvent(self.handle()) };
    }

    /// Waits for the signal, at most `milliseconds`.
    pub(crate) fn wait(&self, milliseconds: u32) {
        // SAFETY: the event lives as long as the process.
        unsafe { WaitForSingleObject(self.handle(), milliseconds) };
    }
}

/// Makes the events that last as long as the process.
pub(crate) fn make_events() -> Result<(), (StartResult, u32)> {
    let wakes = [&WAKE_SAMPLER, &WAKE_SPARE, &WAKE_TABLES, &WAKE_CODE, &WAKE_WRITER, &WAKE_RUNTIMES];
    for (event, manual_reset) in wakes.into_iter().map(|event| (event, 0)).chain([(&ENDED, 1)]) {
        event.make(manual_reset).map_err(|error| (StartResult::NoThread, error))?;
    }
    HOSTS.make().map_err(|error| (StartResult::NoThread, error))
}

/// Wakes all threads that wait for work.
pub(crate) fn wake_all() {
    WAKE_SAMPLER.signal();
    WAKE_SPARE.signal();
    WAKE_TABLES.signal();
    WAKE_CODE.signal();
    WAKE_WRITER.signal();
    WAKE_RUNTIMES.signal();
}

/// Closes a handle unless it is null.
pub(crate) fn close(handle: HANDLE) {
    if !handle.is_null() {
        // SAFETY: the caller owns it.
        unsafe { CloseHandle(handle) };
    }
}
