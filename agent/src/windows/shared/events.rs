//! The events that the recorder's threads wait for. They are made once and stay open as long as the
//! agent is mapped, because a thread may signal one late.

use core::ffi::c_void;
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering};

use stk_schema::control::StartResult;
use windows_sys::Win32::Foundation::{CloseHandle, GetLastError, HANDLE};
use windows_sys::Win32::System::Threading::{
    CreateEventW, CreateMutexW, ResetEvent, SetEvent, WaitForSingleObject,
};

/// A system event. Once it is made, it lives as long as the agent.
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

/// A mutex of hosts. The agent itself never takes it. Made and kept like the events.
pub(crate) struct HostMutex(AtomicPtr<c_void>);

/// The mutex that hosts hold while they ask something ([`stk_schema::requests`]).
pub(crate) static HOSTS: HostMutex = HostMutex(AtomicPtr::new(null_mut()));
/// The mutex of the host that uses the mailbox for names ([`stk_schema::mailbox`]).
pub(crate) static NAMING_HOST: HostMutex = HostMutex(AtomicPtr::new(null_mut()));

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
            // SAFETY: the events live as long as the agent.
            unsafe { SetEvent(event) };
        }
    }

    /// Resets the signal.
    pub(crate) fn reset(&self) {
        // SAFETY: the event lives as long as the agent.
        unsafe { ResetEvent(self.handle()) };
    }

    /// Waits for the signal, at most `milliseconds`.
    pub(crate) fn wait(&self, milliseconds: u32) {
        // SAFETY: the event lives as long as the agent.
        unsafe { WaitForSingleObject(self.handle(), milliseconds) };
    }
}

/// All events but [`ENDED`].
const WAKES: [&WakeEvent; 6] =
    [&WAKE_SAMPLER, &WAKE_SPARE, &WAKE_TABLES, &WAKE_CODE, &WAKE_WRITER, &WAKE_RUNTIMES];

/// Makes the events that last as long as the agent.
pub(crate) fn make_events() -> Result<(), (StartResult, u32)> {
    for (event, manual_reset) in WAKES.into_iter().map(|event| (event, 0)).chain([(&ENDED, 1)]) {
        event.make(manual_reset).map_err(|error| (StartResult::NoThread, error))?;
    }
    let made = HOSTS.make().and_then(|()| NAMING_HOST.make());
    made.map_err(|error| (StartResult::NoThread, error))
}

/// Closes the events and the mutexes. Called as the agent is unmapped, when nobody uses them.
pub(crate) fn close_events() {
    for event in WAKES.into_iter().chain([&ENDED]) {
        close(event.0.swap(null_mut(), Ordering::AcqRel));
    }
    for mutex in [&HOSTS, &NAMING_HOST] {
        close(mutex.0.swap(null_mut(), Ordering::AcqRel));
    }
}

/// Wakes all threads that wait for work.
pub(crate) fn wake_all() {
    WAKES.into_iter().for_each(WakeEvent::signal);
}

/// Closes a handle unless it is null.
pub(crate) fn close(handle: HANDLE) {
    if !handle.is_null() {
        // SAFETY: the caller owns it.
        unsafe { CloseHandle(handle) };
    }
}
