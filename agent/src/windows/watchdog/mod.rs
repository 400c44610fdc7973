//! The watchdog's thread: resumes a thread that stays suspended too long, starts a spare sampler
//! when one is stuck, and ends a recording when the recorder fails.
//!
//! [`WatchdogThread::run`] is its loop: it checks each sampler's word on the board
//! (`sampler::suspend`) every few milliseconds, and waits for no other thread.
//!
//! It owns the handle of the guard process. It reads the samplers' words and whether the writer has
//! ended the trace. It gives resumptions, the order to a spare sampler, and reasons to end.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use stk_schema::control::{STEP_WORKING, TEST_FREEZE_WRITER, THREAD_WATCHDOG};
use stk_schema::event::{DropReason, EndReason};
use windows_sys::Win32::Foundation::{HANDLE, WAIT_OBJECT_0};
use windows_sys::Win32::System::Threading::{Sleep, THREAD_PRIORITY_HIGHEST, WaitForSingleObject};

use crate::record::shared::Counters;
use crate::record::suspension::{Limits, Rescue};
use crate::windows::sampler::SamplerThread;
use crate::windows::sampler::suspend::{SUSPENSIONS, SamplerWatchdog};
use crate::windows::shared::clock::SessionClock;
use crate::windows::shared::events::{ENDED, close, wake_all};
use crate::windows::shared::priority::{leave_power_throttling, set_priority};
use crate::windows::shared::state::{FINISHED, SIGNALS, STATUS, WatchdogCause, stop_for};
use crate::windows::system::api::ticks;
use crate::windows::system::panic;
use crate::windows::writer::{PATIENCE_MS, WriterThread};

/// Milliseconds that a thread may take to stop: it may merely not be scheduled.
const ASKED_MS: u64 = 1_000;
/// Milliseconds that a thread may stay suspended.
const SUSPENDED_MS: u64 = 100;
/// Milliseconds that the system's own unwinder may walk a suspended thread.
const WALKED_MS: u64 = 50;
/// Milliseconds after which a sampler is stuck that makes no progress after a walk was given up.
const STUCK_MS: u64 = 2_000;
/// Milliseconds between the watchdog's checks.
const WATCH_MS: u32 = 20;
/// The same while walks are checked.
const WATCH_WALKS_MS: u32 = 5;

/// The watchdog's thread and its data.
pub(super) struct WatchdogThread {
    clock: SessionClock,
    counters: Arc<Counters>,
    /// The guard process; its end ends the recording. Null = none.
    guard: HANDLE,
    check_walks: bool,
    /// The phase of a suspension in which the samplers, or the writer, are to stop forever.
    test_freeze: u8,
}

impl WatchdogThread {
    /// A watchdog that has not begun. It owns `guard` from now on.
    pub(super) fn new(
        clock: SessionClock,
        counters: Arc<Counters>,
        guard: HANDLE,
        check_walks: bool,
        test_freeze: u8,
    ) -> WatchdogThread {
        WatchdogThread { clock, counters, guard, check_walks, test_freeze }
    }

    /// Watches until the trace is finalised.
    pub(super) fn run(&self, sampler: &SamplerThread, writer: &WriterThread) {
        set_priority(THREAD_PRIORITY_HIGHEST);
        leave_power_throttling();
        let mut watches = SamplerWatchdog::default();
        let limits = Limits {
            asked: self.clock.span(ASKED_MS),
            stopped: self.clock.span(SUSPENDED_MS),
            walking: self.clock.span(WALKED_MS),
        };
        let mut rescued = 0;
        while !FINISHED.load(Ordering::Acquire) {
            STATUS.round(THREAD_WATCHDOG, STEP_WORKING);
            let passes = self.counters.passes.load(Ordering::Relaxed);
            watches.look(
                &limits,
                || sampler.can_depose(),
                |rescue| match rescue {
                    Rescue::None => {}
                    Rescue::NotStopped => self.counters.lose(DropReason::NotStopped, 1),
                    Rescue::Deposed => sampler.replace(),
                    Rescue::WhileWalking => rescued = passes + 1,
                    Rescue::WhileStopped => SIGNALS.request_stop(EndReason::Watchdog),
                    Rescue::ResumeSlow => stop_for(WatchdogCause::ResumeSlow),
                    Rescue::Refused => SUSPENSIONS.note_refusal(),
                },
            );
            if SUSPENSIONS.is_resume_refused() {
                stop_for(WatchdogCause::ResumeRefused);
            }
            self.freeze_for_test();
            // The pass in which a thread was resumed has not ended since: the sampler hangs.
            if rescued == passes + 1 && watches.idle_for(self.clock.span(STUCK_MS)) {
                SIGNALS.request_stop(EndReason::Watchdog);
            }
            if sampler.is_overdue() {
                SIGNALS.request_stop(EndReason::Duration);
            }
            if panic::happened() {
                SIGNALS.request_stop(EndReason::Panic);
                self.finish_for_panicked_writer(sampler, writer);
            }
            if self.guard_is_gone() {
                SIGNALS.request_stop(EndReason::GuardGone);
            }
            if SIGNALS.stopping() {
                wake_all();
            }
            ENDED.wait(if self.check_walks { WATCH_WALKS_MS } else { WATCH_MS });
        }
        close(self.guard);
    }

    /// Fault injection: stops the samplers forever if a test requests it, after the first second.
    fn freeze_for_test(&self) {
        let freezes_sampler = (1..TEST_FREEZE_WRITER).contains(&self.test_freeze);
        if freezes_sampler && ticks() >= self.clock.after_start(1000) {
            SUSPENSIONS.freeze(self.test_freeze);
        }
    }

    /// Whether the guard process has ended. Then no process outside can resume a thread that a
    /// dying recorder holds.
    fn guard_is_gone(&self) -> bool {
        // SAFETY: the handle is open until the watchdog closes it; a time-out of 0 does not wait.
        !self.guard.is_null() && unsafe { WaitForSingleObject(self.guard, 0) } == WAIT_OBJECT_0
    }

    /// Ends the recording if the writer itself panicked, because the writer cannot. The trace stays
    /// truncated, and the status says why.
    fn finish_for_panicked_writer(&self, sampler: &SamplerThread, writer: &WriterThread) {
        // SAFETY: no preconditions. Gives a working writer time to end the recording itself.
        unsafe { Sleep(PATIENCE_MS as u32 / 4) };
        if !FINISHED.load(Ordering::Acquire) && writer.state.is_busy() {
            writer.report_end(EndReason::Panic, sampler);
        }
    }
}
