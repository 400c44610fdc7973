//! One sampler in the place of another. The watchdog deposes a sampler that is stuck; a spare one
//! goes on.

use core::sync::atomic::Ordering;

use stk_schema::event::{DropReason, EndReason};
use windows_sys::Win32::System::Threading::THREAD_PRIORITY_TIME_CRITICAL;

use super::SamplerThread;
use super::timer::Timer;
use crate::windows::shared::events::WAKE_SPARE;
use crate::windows::shared::priority::set_priority;
use crate::windows::shared::state::SIGNALS;

/// Milliseconds after which a spare sampler looks by itself whether the recording ends.
const SPARE_MS: u32 = 1000;

impl SamplerThread {
    /// Waits until the sampler is stuck, then goes on in its place; at the end of the recording
    /// leaves without.
    pub fn run_spare(&self) {
        while !self.takeover.swap(false, Ordering::AcqRel) {
            if SIGNALS.stopping() && self.claim_spare() {
                // The event wakes one thread: the other spare is told by this one.
                return WAKE_SPARE.signal();
            }
            WAKE_SPARE.wait(SPARE_MS);
        }
        set_priority(THREAD_PRIORITY_TIME_CRITICAL);
        if self.plan.once {
            self.complete_once();
            SIGNALS.request_stop(EndReason::Stopped);
        }
        self.sample(Timer::new(self.api));
    }

    /// Takes one sampler out of those that are spare; false if there is none.
    fn claim_spare(&self) -> bool {
        let one_less = |spares: u32| spares.checked_sub(1);
        self.spares.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less).is_ok()
    }

    /// For the watchdog: whether the sampler, found in a call that asks a thread to stop, can be
    /// replaced or is not needed any more.
    pub fn can_depose(&self) -> bool {
        let successor = self.spares.load(Ordering::Acquire) != 0 || SIGNALS.stopping();
        successor && SIGNALS.sampler_whole.load(Ordering::Acquire)
    }

    /// For the watchdog: has a spare sampler go on in the place of the one that was just deposed.
    pub fn replace(&self) {
        self.counters.lose(DropReason::NotStopped, 1);
        // SAFETY: the deposed sampler is in a call of a capture, where its state is whole by its
        // own word (`can_depose`), and does not come back from that capture (`Suspender::capture`).
        unsafe { self.worker.state.expel() };
        if self.claim_spare() {
            self.takeover.store(true, Ordering::Release);
            WAKE_SPARE.signal();
        } else {
            // The recording ends and the spares have left: the writer hands over what the sampler
            // has gathered.
            self.worker.finish();
        }
    }
}
