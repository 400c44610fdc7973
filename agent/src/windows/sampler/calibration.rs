//! Before the first pass: the cost of a suspension, measured on the code thread, which has nothing
//! to do yet.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use windows_sys::Win32::System::Threading::{GetCurrentThreadId, Sleep};

use super::{SamplerThread, cost};
use crate::windows::shared::events::WAKE_CODE;
use crate::windows::shared::state::SIGNALS;
use crate::windows::system::api::ticks;

/// Milliseconds between the parked thread's looks at whether it may go on.
const PARKED_MS: u32 = 50;
/// Milliseconds that the sampler waits for a thread to park: on a busy machine it may not have run
/// yet.
const PATIENCE_MS: u64 = 100;

/// Where the sampler and the thread that it measures meet.
pub struct Calibration {
    /// Whether the system counts threads' cycles.
    has_cycles: bool,
    /// Id of a thread of the recorder that waits for the cost of a suspension to be measured on it;
    /// 0 = none.
    parked: AtomicU32,
    /// It is measured, or will not be.
    over: AtomicBool,
}

impl Calibration {
    /// Nothing measured yet.
    pub fn new(has_cycles: bool) -> Calibration {
        Calibration { has_cycles, parked: AtomicU32::new(0), over: AtomicBool::new(false) }
    }

    /// The code thread waits here until the cost of a suspension is measured.
    pub fn park(&self) {
        // SAFETY: no preconditions.
        self.parked.store(unsafe { GetCurrentThreadId() }, Ordering::Release);
        while !self.over.load(Ordering::Acquire) && !SIGNALS.stopping() {
            WAKE_CODE.wait(PARKED_MS);
        }
    }
}

impl SamplerThread {
    /// Measures, in the sampler's thread: nobody else suspends anything.
    pub(super) fn calibrate(&self) {
        // One sample of each thread has nothing to compare its cycles with.
        if !self.plan.once {
            self.measure_suspensions();
        }
        self.calibration.over.store(true, Ordering::Release);
        WAKE_CODE.signal();
    }

    fn measure_suspensions(&self) {
        let parked = &self.calibration.parked;
        let until = ticks() + self.clock.span(PATIENCE_MS);
        while parked.load(Ordering::Acquire) == 0 && ticks() < until && !SIGNALS.stopping() {
            // SAFETY: no preconditions.
            unsafe { Sleep(1) };
        }
        let tid = parked.load(Ordering::Acquire);
        if tid == 0 || SIGNALS.stopping() {
            return;
        }
        let costs = cost::measure(self.api, tid, self.calibration.has_cycles);
        let counters = &self.counters;
        if let Some(cost) = costs.nanoseconds {
            counters.suspension_ns_p50.store(cost.p50, Ordering::Relaxed);
            counters.suspension_ns_p95.store(cost.p95, Ordering::Relaxed);
        }
        if let Some(cost) = costs.cycles {
            counters.suspension_cycles_p50.store(cost.p50, Ordering::Relaxed);
            counters.suspension_cycles_p95.store(cost.p95, Ordering::Relaxed);
            self.worker.state.enter(|sampler| sampler.set_suspension_cost(cost));
        }
        counters.calibrated.store(true, Ordering::Release);
    }
}
