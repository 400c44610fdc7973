//! The clock of a journal, and how it waits for a free buffer.

use crate::record::event_writer::Pace;
use crate::windows::system::api::ticks;
use stk_schema::Ticks;

/// The clock of a journal, and how long it waits.
pub(crate) struct JournalPace {
    /// Whether the writer still runs.
    pub writer_alive: fn() -> bool,
}

impl Pace for JournalPace {
    fn now(&self) -> Ticks {
        ticks()
    }

    fn pause(&self) -> bool {
        // SAFETY: no preconditions.
        unsafe { windows_sys::Win32::System::Threading::Sleep(2) };
        (self.writer_alive)()
    }
}
