//! The watchdog's thread: resumes a thread that stays suspended too long, has a spare sampler go on
//! when one is stuck, and ends a recording whose recorder is not well.

use core::sync::atomic::Ordering;

use stk_schema::control::TEST_FREEZE_WRITER;
use stk_schema::event::{DropReason, EndReason};
use windows_sys::Win32::Foundation::WAIT_OBJECT_0;
use windows_sys::Win32::System::Threading::{Sleep, THREAD_PRIORITY_HIGHEST, WaitForSingleObject};

use crate::record::suspension::{Limits, Rescue};
use crate::windows::sampler::suspend::{SUSPENSIONS, Watches};
use crate::windows::session::threads::set_priority;
use crate::windows::session::{FINISHED, Session};
use crate::windows::shared::events::{ENDED, WAKE_SPARE, close, signal, wake_all};
use crate::windows::shared::state::SIGNALS;
use crate::windows::system::api::ticks;
use crate::windows::system::panic;
use crate::windows::writer::PATIENCE_MS;

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

impl Session {
    /// Watches until the trace is finalised.
    pub fn run_watchdog(&self) {
        set_priority(THREAD_PRIORITY_HIGHEST);
        let mut watches = Watches::default();
        let limits = Limits {
            asked: ASKED_MS * self.ticks_per_ms,
            stopped: SUSPENDED_MS * self.ticks_per_ms,
            walking: WALKED_MS * self.ticks_per_ms,
        };
        let mut rescued = 0;
        while !FINISHED.load(Ordering::Acquire) {
            let passes = self.counters.passes.load(Ordering::Relaxed);
            watches.look(
                &limits,
                || self.can_depose(),
                |rescue| match rescue {
                    Rescue::None => {}
                    Rescue::NotStopped => self.counters.lose(DropReason::NotStopped, 1),
                    Rescue::Deposed => self.replace_sampler(),
                    Rescue::WhileWalking => rescued = passes + 1,
                    Rescue::WhileStopped => SIGNALS.request_stop(EndReason::Watchdog),
                },
            );
            let freezes_sampler = !matches!(self.test_freeze, 0 | TEST_FREEZE_WRITER);
            if freezes_sampler && ticks() >= self.started + 1000 * self.ticks_per_ms {
                SUSPENSIONS.freeze(self.test_freeze);
            }
            // The pass in which a thread was resumed has not come to its end since: the sampler
            // hangs.
            if rescued == passes + 1 && watches.idle_for(STUCK_MS * self.ticks_per_ms) {
                SIGNALS.request_stop(EndReason::Watchdog);
            }
            if panic::happened() {
                SIGNALS.request_stop(EndReason::Panic);
                self.finish_for_panicked_writer();
            }
            if self.guard_is_gone() {
                SIGNALS.request_stop(EndReason::GuardGone);
            }
            if SIGNALS.stopping() {
                wake_all();
            }
            let pause = if self.check_walks { WATCH_WALKS_MS } else { WATCH_MS };
            // SAFETY: the event lives as long as the process.
            unsafe { WaitForSingleObject(ENDED.load(Ordering::Acquire), pause) };
        }
        close(self.guard);
    }

    /// Whether the guard process has ended: nobody outside could resume a thread any more that a
    /// dying recorder holds.
    fn guard_is_gone(&self) -> bool {
        // SAFETY: the handle is open until the watchdog closes it; a time-out of 0 does not wait.
        !self.guard.is_null() && unsafe { WaitForSingleObject(self.guard, 0) } == WAIT_OBJECT_0
    }

    /// Whether the sampler, found in a call that asks a thread to stop, can be replaced or is not
    /// needed any more.
    fn can_depose(&self) -> bool {
        let successor = self.spares.load(Ordering::Acquire) != 0 || SIGNALS.stopping();
        successor && SIGNALS.sampler_whole.load(Ordering::Acquire)
    }

    /// Has a spare sampler go on in the place of the one that was just deposed.
    fn replace_sampler(&self) {
        self.counters.lose(DropReason::NotStopped, 1);
        // SAFETY: the deposed sampler is in a call of a capture, where its state is whole by its
        // own word (`can_depose`), and does not come back from that capture (`suspend::capture`).
        unsafe { self.sampler.expel() };
        if self.claim_spare() {
            self.takeover.store(true, Ordering::Release);
            signal(&WAKE_SPARE);
        } else {
            // The recording ends and the spares have left: the writer hands over what the sampler
            // has gathered.
            self.sampler_done.store(true, Ordering::Release);
            wake_all();
        }
    }

    /// Where the writer itself panicked nobody else will tell of it: the trace stays truncated, the
    /// status says why.
    fn finish_for_panicked_writer(&self) {
        // SAFETY: no preconditions; time for a writer that is well to do it itself.
        unsafe { Sleep(PATIENCE_MS as u32 / 4) };
        if !FINISHED.load(Ordering::Acquire) && self.writer.busy.load(Ordering::Acquire) {
            self.report_end(EndReason::Panic);
        }
    }
}
