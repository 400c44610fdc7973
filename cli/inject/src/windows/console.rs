//! Ctrl-C, the closing of the console and the end of the user's session.

use super::system::Event;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use windows_sys::Win32::System::Console::{
    CTRL_BREAK_EVENT, CTRL_C_EVENT, CTRL_LOGOFF_EVENT, CTRL_SHUTDOWN_EVENT, SetConsoleCtrlHandler,
};
use windows_sys::Win32::System::Threading::SetProcessShutdownParameters;
use windows_sys::core::BOOL;

static ASKED: OnceLock<Event> = OnceLock::new();
static SESSION_ENDS: AtomicBool = AtomicBool::new(false);
/// Programs have level 0x280 unless they choose one; the system ends lower levels later.
const SHUTDOWN_LEVEL: u32 = 0x100;

/// From now on Ctrl-C, Ctrl-Break, the closing of the console and a logoff only set the event
/// returned. At a shutdown the system ends recorded programs first.
///
/// # Errors
/// The system's error, when it has no memory for an event.
pub(crate) fn catch() -> io::Result<&'static Event> {
    let event = Event::new()?;
    let event = ASKED.get_or_init(|| event);
    // SAFETY: `handler` is a function of this program and has no state but the static above.
    if unsafe { SetConsoleCtrlHandler(Some(handler), 1) } == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a plain call. If it fails the system ends inject in any order.
    unsafe { SetProcessShutdownParameters(SHUTDOWN_LEVEL, 0) };
    Ok(event)
}

/// Sets the event of [`catch`] because the user's session ends.
pub(crate) fn end_session() {
    SESSION_ENDS.store(true, Ordering::Release);
    ASKED.get().into_iter().for_each(Event::set);
}

/// Whether the event was set because the user's session ends.
pub(crate) fn session_ends() -> bool {
    SESSION_ENDS.load(Ordering::Acquire)
}

unsafe extern "system" fn handler(kind: u32) -> BOOL {
    let Some(asked) = ASKED.get() else { return 0 };
    if matches!(kind, CTRL_LOGOFF_EVENT | CTRL_SHUTDOWN_EVENT) {
        SESSION_ENDS.store(true, Ordering::Release);
    }
    asked.set();
    if kind != CTRL_C_EVENT && kind != CTRL_BREAK_EVENT {
        // When the console is closed or the user logs off, the system ends this process as soon as
        // the handler returns, or after five seconds. The main thread ends it sooner, when the
        // trace is finalised.
        std::thread::sleep(Duration::from_millis(4_500));
    }
    1
}
