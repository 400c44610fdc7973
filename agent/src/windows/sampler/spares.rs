//! Replaces a sampler. The watchdog deposes a sampler that is stuck, and a spare one takes over.

use core::sync::atomic::Ordering;

use stk_schema::event::{DropReason, EndReason};
use windows_sys::Win32::System::Threading::THREAD_PRIORITY_TIME_CRITICAL;

use super::SamplerThread;
use super::timer::Timer;
use crate::windows::shared::events::WAKE_SPARE;
use crate::windows::shared::priority::{leave_power_throttling, set_priority};
use crate::windows::shared::state::SIGNALS;

/// Milliseconds after which a spare sampler checks by itself whether the recording ends.
const SPARE_MS: u32 = 1000;

impl SamplerThread {
    /// Waits until the sampler is stuck, then takes over. At the end of the recording, returns
    /// without taking over.
    pub(crate) fn run_spare(&self) {
        while !self.takeover.swap(false, Ordering::AcqRel) {
            if SIGNALS.stopping() && self.claim_spare() {
                // The event wakes one thread, so this one wakes the other spare.
                return WAKE_SPARE.signal();
            }
            WAKE_SPARE.wait(SPARE_MS);
        }
        set_priority(THREAD_PRIORITY_TIME_CRITICAL);
        leave_power_throttling();
        if self.plan.once {
            self.complete_once();
            SIGNALS.request_stop(EndReason::Stopped);
        }
        self.sample(Timer::new(self.api));
    }

    /// Takes one of the spare samplers; false if there is none.
    fn claim_spare(&self) -> bool {
        let one_less = |spares: u32| spares.checked_sub(1);
        self.spares.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less).is_ok()
    }

    /// For the watchdog, when the sampler is in a call that asks a thread to stop: whether it can
    /// be replaced or is no longer needed.
    pub(crate) fn can_depose(&self) -> bool {
        let successor = self.spares.load(Ordering::Acquire) != 0 || SIGNALS.stopping();
        successor && SIGNALS.sampler_whole.load(Ordering::Acquire)
    }

    /// For the watchdog: lets a spare sampler take over from the one that was just deposed.
    pub(crate) fn replace(&self) {
        self.counters.lose(DropReason::NotStopped, 1);
        // SAFETY: the deposed sampler is in a call of a capture, where its state is consistent
        // (`can_depose`), and does not return from that capture (`Suspender::capture`).
        unsafe { self.worker.state.expel() };
        if self.claim_spare() {
            self.takeover.store(true, Ordering::Release);
            WAKE_SPARE.signal();
        } else {
            // The recording ends and the spares have ended: the writer hands over the sampler's
            // last block.
            self.worker.finish();
        }
    }
}
