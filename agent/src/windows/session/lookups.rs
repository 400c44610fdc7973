//! The threads that look things up for the trace: tables (modules and threads), dynamic code, .NET
//! runtimes. Whatever in the process holds one of them up, the sampler goes on.

use core::sync::atomic::Ordering;

use windows_sys::Win32::System::Threading::{
    Sleep, THREAD_PRIORITY_ABOVE_NORMAL, THREAD_PRIORITY_NORMAL, WaitForSingleObject,
};

use super::Session;
use super::threads::set_priority;
use crate::windows::code::CodeRecorder;
use crate::windows::runtimes::Speaker;
use crate::windows::shared::events::{WAKE_CENSUS, WAKE_CODE, WAKE_RUNTIMES, wake_all};
use crate::windows::shared::state::SIGNALS;
use crate::windows::system::api::ticks;
use crate::windows::tables::Census;

/// Milliseconds between the tables thread's rounds when nothing calls it.
const CENSUS_MS: u32 = 20;
/// Milliseconds between looks at what dynamic code was seen, when nothing calls.
const CODE_MS: u32 = 50;
/// Milliseconds that its lookup may still take after the sampler has ended: a runtime may hold it
/// up for ever.
pub const CODE_PATIENCE_MS: u64 = 1_000;
/// Milliseconds that reading the tables may still take after the end was asked for.
pub const TABLES_MS: u64 = 8_000;

impl Session {
    /// Lists threads and modules.
    pub fn run_census(&self) {
        // On a busy machine a thread below the target's would not run: the first sample and every
        // new module wait for this one.
        set_priority(THREAD_PRIORITY_ABOVE_NORMAL);
        self.census.enter(Census::begin);
        while !SIGNALS.stopping() {
            let since_state = self.bytes_since_state.load(Ordering::Relaxed);
            let more = self.census.enter(|census| census.step(since_state)).unwrap_or(false);
            if !more {
                // SAFETY: the event lives as long as the process.
                unsafe { WaitForSingleObject(WAKE_CENSUS.load(Ordering::Acquire), CENSUS_MS) };
            }
        }
        let deadline = ticks() + TABLES_MS * self.ticks_per_ms;
        self.census.enter(|census| census.finish(deadline));
        self.census_done.store(true, Ordering::Release);
        wake_all();
    }

    /// Looks up the dynamic code that samples show.
    pub fn run_code(&self) {
        set_priority(THREAD_PRIORITY_NORMAL);
        self.park_for_calibration();
        while !SIGNALS.stopping() {
            if !self.code.enter(CodeRecorder::step).unwrap_or(false) {
                // SAFETY: the event lives as long as the process.
                unsafe { WaitForSingleObject(WAKE_CODE.load(Ordering::Acquire), CODE_MS) };
            }
        }
        let deadline = ticks() + CODE_PATIENCE_MS * self.ticks_per_ms;
        // The last pass may have shown code that was never seen before.
        while !self.sampler_done.load(Ordering::Acquire) && ticks() < deadline {
            // SAFETY: no preconditions.
            unsafe { Sleep(1) };
        }
        self.code.enter(|code| code.finish(deadline));
        self.code_done.store(true, Ordering::Release);
        wake_all();
    }

    /// Talks to .NET runtimes.
    pub fn run_runtimes(&self) {
        set_priority(THREAD_PRIORITY_NORMAL);
        let wake = WAKE_RUNTIMES.load(Ordering::Acquire);
        let (dotnet, state, code) = (&*self.dotnet, &self.runtimes, &*self.dynamic_code);
        Speaker::new(self.api, dotnet, state, code, wake, self.ticks_per_ms)
            .run(&self.census_done, &self.code_done);
        self.runtimes_done.store(true, Ordering::Release);
        wake_all();
    }
}
