//! A recording from start to end.
//!
//! Its functions run on threads of the host ([`start`], [`stop`]), on threads of the target
//! ([`thread_started`], [`process_exit`], `capture`), and at the beginning and the end of each of
//! the recorder's own threads (`threads`). There is at most one recording at a time in a process.
//!
//! It owns the [`Session`], which holds the parts of all threads. It gets the host's configuration,
//! and gives the trace, the status and the signal that the recording has ended.
//!
//! ```text
//! begin    checks the host's configuration
//! leave    takes back what the agent has registered, so that it can be unmapped
//! parts    makes everything that the recording needs, before it touches a thread of the target
//! threads  the recorder's own threads: started together; the last one to end cleans up
//! triggers exceptions and module loads that make a thread sample itself
//! capture  the export by which a thread of the target requests a sample of itself
//! ```

mod begin;
mod capture;
mod leave;
mod parts;
mod threads;
mod triggers;

use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use stk_schema::control::{AgentConfig, FLAG_LOADED, STATE_IDLE, StartResult};
use stk_schema::event::EndReason;
use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::Threading::GetCurrentProcessId;

use crate::record::shared::HomeProcess;
use crate::windows::shared::events::{ENDED, WAKE_TABLES, close, close_events, wake_all};
use crate::windows::shared::state::{FINISHED, SIGNALS, STATUS};
use crate::windows::system::files::OutputFile;
use crate::windows::system::landing::{self, survive_panic};
use crate::windows::system::{heap, own_module};
use crate::windows::tables::{TABLES_MS, hints};
use crate::windows::watchdog::WatchdogThread;
use crate::windows::workers::Workers;
use crate::windows::writer::{PATIENCE_MS, WriterThread};
use begin::try_start;
pub(super) use leave::leave;
use triggers::EventTriggers;

/// One recording: the parts that its threads own.
struct Session {
    workers: Workers,
    writer: WriterThread,
    watchdog: WatchdogThread,
    triggers: EventTriggers,
}

// SAFETY: the only parts that are not Sync are handles, which are numbers.
unsafe impl Sync for Session {}
// SAFETY: as above.
unsafe impl Send for Session {}

/// The current recording. The `Arc`s of its threads own it; this is a plain pointer that is cleared
/// before the last of them is dropped.
static CURRENT: AtomicPtr<Session> = AtomicPtr::new(null_mut());
/// Whether a recording is being started, is running, or has threads left.
static OCCUPIED: AtomicBool = AtomicBool::new(false);
/// The process whose recordings these are.
static HOME: HomeProcess = HomeProcess::new();
/// Threads of `stk_capture` that use `CURRENT` now.
static VISITORS: AtomicUsize = AtomicUsize::new(0);
/// Threads of the recording that still run.
static RUNNING: AtomicU32 = AtomicU32::new(0);

/// Starts a recording with `config`; see `stk_schema::control`.
pub(super) fn start(config: &mut AgentConfig, own_base: HANDLE) -> StartResult {
    config.system_error = 0;
    // SAFETY: no preconditions.
    HOME.set(unsafe { GetCurrentProcessId() });
    if config.flags & FLAG_LOADED != 0 {
        own_module::take_hosts_reference();
    }
    config.status_address = (&raw const STATUS) as u64;
    let output = OutputFile(config.output as usize as HANDLE);
    let ended_event = config.ended_event as usize as HANDLE;
    // After a panic, or with no room for another call, the agent stays off.
    let mut result = Err((StartResult::Disabled, 0));
    survive_panic(|| result = try_start(config, output, ended_event, own_base));
    if let Err((result, system_error)) = result {
        config.system_error = system_error;
        close(ended_event);
        close(config.guard as usize as HANDLE);
        return result;
    }
    StartResult::Ok
}

/// Stops the recording and waits until the trace is finalised; false if nothing was recording.
pub(super) fn stop() -> bool {
    if FINISHED.load(Ordering::Acquire) {
        return false;
    }
    SIGNALS.request_stop(EndReason::Stopped);
    wake_all();
    ENDED.wait((TABLES_MS + PATIENCE_MS) as u32);
    true
}

/// DLL_THREAD_ATTACH: makes the tables thread look for the new thread. Never waits.
pub(super) fn thread_started() {
    if !FINISHED.load(Ordering::Relaxed) {
        survive_panic(|| {
            if hints::thread_started() {
                WAKE_TABLES.signal();
            }
        });
    }
}

/// DLL_PROCESS_DETACH as the agent is unmapped: gives handles and memory back. Does nothing if a
/// recording runs, which only happens if somebody has freed references that are not theirs.
pub(super) fn unmapped() {
    if !OCCUPIED.load(Ordering::Acquire) {
        close_events();
        heap::destroy();
    }
}

/// DLL_PROCESS_DETACH at process exit, when the other threads are gone. Writes all complete data,
/// without waiting, locks or the heap.
pub(super) fn process_exit() {
    // SAFETY: no preconditions.
    if HOME.is_not(unsafe { GetCurrentProcessId() }) {
        // A clone of the recorded process (RtlCloneUserProcess): its memory says that it is
        // recorded, but the handles are those of other things, or of none.
        return;
    }
    // SAFETY: the session's threads own it; they were terminated without dropping it.
    let Some(session) = (unsafe { CURRENT.load(Ordering::Acquire).as_ref() }) else { return };
    if FINISHED.load(Ordering::Acquire) {
        return;
    }
    heap::leave_heap();
    SIGNALS.request_stop(EndReason::ProcessExit);
    // The system ends all other threads before it notifies of the process's end.
    landing::forget_all_calls();
    // A panic must not keep the process from ending.
    // SAFETY: as above, all threads but this one have ended.
    if !survive_panic(|| unsafe { session.writer.end_process(&session.workers) }) {
        survive_panic(|| session.writer.report_end(EndReason::ProcessExit, &session.workers.sampler));
    }
}

const _: () = assert!(STATE_IDLE == 0, "the status starts idle");
