//! The watchdog's thread: resumes a thread that stays suspended too long, has a spare sampler go on
//! when one is stuck, and ends a recording whose recorder is not well.
//!
//! [`WatchdogThread::run`] is its loop: one look at each sampler's word on the board
//! (`sampler::suspend`) every few milliseconds, nothing that waits for anybody.
//!
//! It owns the handle of the guard process. It gets the samplers' words and the writer's end of the
//! trace. It gives resumptions, the order to a spare sampler, and reasons to end.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use stk_schema::control::{TEST_FREEZE_WRITER, TEST_PANIC_AT_EXIT};
use stk_schema::event::{DropReason, EndReason};
use windows_sys::Win32::Foundation::{HANDLE, WAIT_OBJECT_0};
use windows_sys::Win32::System::Threading::{Sleep, THREAD_PRIORITY_HIGHEST, WaitForSingleObject};

use crate::record::shared::Counters;
use crate::record::suspension::{Limits, Rescue};
use crate::windows::sampler::SamplerThread;
use crate::windows::sampler::suspend::{SUSPENSIONS, Watches};
use crate::windows::shared::clock::SessionClock;
use crate::windows::shared::events::{ENDED, close, wake_all};
use crate::windows::shared::priority::set_priority;
use crate::windows::shared::state::{FINISHED, SIGNALS};
use crate::windows::system::api::ticks;
use crate::windows::system::panic;
use crate::windows::writer::{PATIENCE_MS, WriterThread};

/// A thread may take this long to stop: it may merely not be scheduled.
const ASKED_MS: u64 = 1_000;
/// A thread may be suspended for this long.
const SUSPENDED_MS: u64 = 100;
/// The system's own unwinder may walk a suspended thread for this long.
const WALKED_MS: u64 = 50;
/// A sampler that does not go on for this long after a walk was given up is stuck.
const STUCK_MS: u64 = 2_000;
/// Milliseconds between the watchdog's looks.
const WATCH_MS: u32 = 20;
/// The same where walks are checked.
const WATCH_WALKS_MS: u32 = 5;

/// What the watchdog owns.
pub struct WatchdogThread {
    clock: SessionClock,
    counters: Arc<Counters>,
    /// The guard process, whose end ends the recording; null = none.
    guard: HANDLE,
    check_walks: bool,
    /// The phase of a suspension in which samplers are to stop for ever, or the writer.
    test_freeze: u8,
}

impl WatchdogThread {
    /// A watchdog that has not begun; `guard` is its own from now on.
    pub fn new(
        clock: SessionClock,
        counters: Arc<Counters>,
        guard: HANDLE,
        check_walks: bool,
        test_freeze: u8,
    ) -> WatchdogThread {
        WatchdogThread { clock, counters, guard, check_walks, test_freeze }
    }

    /// Watches until the trace is finalised.
    pub fn run(&self, sampler: &SamplerThread, writer: &WriterThread) {
        set_priority(THREAD_PRIORITY_HIGHEST);
        let mut watches = Watches::default();
        let limits = Limits {
            asked: self.clock.span(ASKED_MS),
            stopped: self.clock.span(SUSPENDED_MS),
            walking: self.clock.span(WALKED_MS),
        };
        let mut rescued = 0;
        while !FINISHED.load(Ordering::Acquire) {
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
                },
            );
            self.freeze_for_test();
            // The pass in which a thread was resumed has not come to its end since: the sampler
            // hangs.
            if rescued == passes + 1 && watches.idle_for(self.clock.span(STUCK_MS)) {
                SIGNALS.request_stop(EndReason::Watchdog);
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

    /// Fault injection: stops the samplers for ever if that is asked for, after the first second.
    fn freeze_for_test(&self) {
        let freezes_sampler = !matches!(self.test_freeze, 0 | TEST_FREEZE_WRITER | TEST_PANIC_AT_EXIT);
        if freezes_sampler && ticks() >= self.clock.after_start(1000) {
            SUSPENSIONS.freeze(self.test_freeze);
        }
    }

    /// Whether the guard process has ended: nobody outside could resume a thread any more that a
    /// dying recorder holds.
    fn guard_is_gone(&self) -> bool {
        // SAFETY: the handle is open until the watchdog closes it; a time-out of 0 does not wait.
        !self.guard.is_null() && unsafe { WaitForSingleObject(self.guard, 0) } == WAIT_OBJECT_0
    }

    /// Where the writer itself panicked nobody else will tell of it: the trace stays truncated, the
    /// status says why.
    fn finish_for_panicked_writer(&self, sampler: &SamplerThread, writer: &WriterThread) {
        // SAFETY: no preconditions; time for a writer that is well to do it itself.
        unsafe { Sleep(PATIENCE_MS as u32 / 4) };
        if !FINISHED.load(Ordering::Acquire) && writer.state.is_busy() {
            writer.report_end(EndReason::Panic, sampler);
        }
    }
}
