//! Before the first pass: the cost of a suspension, measured on the code thread, which has nothing
//! to do yet.

use core::sync::atomic::Ordering;

use windows_sys::Win32::System::Threading::{GetCurrentThreadId, Sleep, WaitForSingleObject};

use crate::windows::sampler::cost;
use crate::windows::session::Session;
use crate::windows::shared::events::{WAKE_CODE, signal};
use crate::windows::shared::state::SIGNALS;
use crate::windows::system::api::ticks;

/// Milliseconds between the parked thread's looks at whether it may go on.
const PARKED_MS: u32 = 50;
/// Milliseconds that the sampler waits for a thread to park: on a busy machine it may not have run
/// yet.
const PATIENCE_MS: u64 = 100;

impl Session {
    /// The code thread waits here until the cost of a suspension is measured.
    pub fn park_for_calibration(&self) {
        // SAFETY: no preconditions.
        self.parked.store(unsafe { GetCurrentThreadId() }, Ordering::Release);
        while !self.calibrated.load(Ordering::Acquire) && !SIGNALS.stopping() {
            // SAFETY: the event lives as long as the process.
            unsafe { WaitForSingleObject(WAKE_CODE.load(Ordering::Acquire), PARKED_MS) };
        }
    }

    /// Measures, in the sampler's thread: nobody else suspends anything.
    pub fn calibrate(&self) {
        // One sample of each thread has nothing to compare its cycles with.
        if !self.once {
            self.measure_suspensions();
        }
        self.calibrated.store(true, Ordering::Release);
        signal(&WAKE_CODE);
    }

    fn measure_suspensions(&self) {
        let until = ticks() + PATIENCE_MS * self.ticks_per_ms;
        while self.parked.load(Ordering::Acquire) == 0 && ticks() < until && !SIGNALS.stopping() {
            // SAFETY: no preconditions.
            unsafe { Sleep(1) };
        }
        let tid = self.parked.load(Ordering::Acquire);
        if tid == 0 || SIGNALS.stopping() {
            return;
        }
        let costs = cost::measure(self.api, tid, self.has_cycles);
        let counters = &self.counters;
        if let Some(cost) = costs.nanoseconds {
            counters.suspension_ns_p50.store(cost.p50, Ordering::Relaxed);
            counters.suspension_ns_p95.store(cost.p95, Ordering::Relaxed);
        }
        if let Some(cost) = costs.cycles {
            counters.suspension_cycles_p50.store(cost.p50, Ordering::Relaxed);
            counters.suspension_cycles_p95.store(cost.p95, Ordering::Relaxed);
            self.sampler.enter(|sampler| sampler.set_suspension_cost(cost));
        }
        counters.calibrated.store(true, Ordering::Release);
    }
}
