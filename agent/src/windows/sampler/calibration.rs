//! Before the first pass: measures the cost of a suspension on the code thread, which has nothing
//! to do yet, and the rate of cycles on the sampler's own thread.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use stk_schema::Ticks;
use windows_sys::Win32::System::Threading::{GetCurrentThreadId, Sleep};

use super::{SamplerThread, cost};
use crate::windows::shared::events::WAKE_CODE;
use crate::windows::shared::state::SIGNALS;
use crate::windows::system::api::ticks;

/// Milliseconds between the parked thread's checks whether it may continue.
const PARKED_MS: u32 = 50;
/// Milliseconds that the sampler waits for a thread to park. On a busy machine it may not have run
/// yet.
const PATIENCE_MS: u64 = 100;

/// State that the sampler shares with the thread that it measures.
pub(crate) struct Calibration {
    /// Whether the system counts threads' cycles.
    has_cycles: bool,
    /// Id of the recorder's thread on which the cost of a suspension is to be measured; 0 = it does
    /// not wait yet.
    parked: AtomicU32,
    /// The measurement is done, or will not be made.
    over: AtomicBool,
}

impl Calibration {
    pub(crate) fn new(has_cycles: bool) -> Calibration {
        Calibration { has_cycles, parked: AtomicU32::new(0), over: AtomicBool::new(false) }
    }

    /// Waits until the cost of a suspension is measured. Called by the code thread.
    pub(crate) fn park(&self) {
        // SAFETY: no preconditions.
        self.parked.store(unsafe { GetCurrentThreadId() }, Ordering::Release);
        while !self.over.load(Ordering::Acquire) && !SIGNALS.stopping() {
            WAKE_CODE.wait(PARKED_MS);
        }
    }
}

impl SamplerThread {
    /// Measures on the sampler's thread, so that no other thread suspends anything.
    pub(super) fn calibrate(&self) {
        // With one sample of each thread there is no earlier cycle count to compare with.
        if !self.plan.once {
            if self.calibration.has_cycles {
                let rate = cost::cycles_per_second(self.api).unwrap_or(0);
                self.counters.cycles_per_second.store(rate, Ordering::Relaxed);
            }
            self.measure_suspensions();
            self.counters.calibrated.store(true, Ordering::Release);
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
            let look = Ticks((u128::from(cost.p50) * u128::from(self.api.frequency) / 1_000_000_000) as u64);
            self.worker.state.enter(|sampler| sampler.expect_cost(look));
        }
        if let Some(cost) = costs.cycles {
            counters.suspension_cycles_p50.store(cost.p50, Ordering::Relaxed);
            counters.suspension_cycles_p95.store(cost.p95, Ordering::Relaxed);
            self.worker.state.enter(|sampler| sampler.set_suspension_cost(cost));
        }
    }
}
