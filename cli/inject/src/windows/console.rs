//! Ctrl-C and the closing of the console.

use super::system::Event;
use std::io;
use std::sync::OnceLock;
use std::time::Duration;
use windows_sys::Win32::System::Console::{CTRL_BREAK_EVENT, CTRL_C_EVENT, SetConsoleCtrlHandler};
use windows_sys::core::BOOL;

static ASKED: OnceLock<Event> = OnceLock::new();

/// From now on Ctrl-C, Ctrl-Break and the closing of the console only set the event returned.
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
    Ok(event)
}

unsafe extern "system" fn handler(kind: u32) -> BOOL {
    let Some(asked) = ASKED.get() else { return 0 };
    asked.set();
    if kind != CTRL_C_EVENT && kind != CTRL_BREAK_EVENT {
        // When the console is closed or the user logs off, the system ends this process as soon as
        // the handler returns, or after five seconds. The main thread ends it sooner, when the
        // trace is finalised.
        std::thread::sleep(Duration::from_millis(4_500));
    }
    1
}
