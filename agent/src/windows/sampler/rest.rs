//! Pauses: while a host wants none, no thread is sampled. Threads may still sample themselves.

use core::sync::atomic::Ordering;

use stk_schema::control::{STEP_PAUSED, THREAD_SAMPLER};
use stk_schema::event::EndReason;

use super::SamplerThread;
use crate::record::sampler::Sampler;
use crate::windows::shared::events::{WAKE_SAMPLER, WAKE_TABLES};
use crate::windows::shared::state::{SIGNALS, STATUS};
use crate::windows::system::api::ticks;

/// Milliseconds between two looks for work during a pause.
const REST_MS: u32 = 20;

impl SamplerThread {
    /// Rests until the host wants samples again, or the recording ends. Returns whether it rested.
    pub(super) fn rest(&self) -> bool {
        if !SIGNALS.pauses.wanted() {
            return false;
        }
        self.worker.state.enter(Sampler::pause);
        self.changed(1);
        while SIGNALS.pauses.wanted() && !SIGNALS.stopping() {
            STATUS.round(THREAD_SAMPLER, STEP_PAUSED);
            WAKE_SAMPLER.wait(REST_MS);
            self.worker.state.enter(|sampler| {
                self.take_triggered(sampler);
                sampler.rest();
            });
            self.publish();
            if ticks().0 >= self.ends.load(Ordering::Acquire) {
                SIGNALS.request_stop(EndReason::Duration);
            }
        }
        self.worker.state.enter(Sampler::resume);
        // A recording that ends in a pause is marked so: it may continue in another file.
        self.changed(u32::from(SIGNALS.stopping()));
        true
    }

    /// Informs the tables thread, which writes it to the trace, and the readers of the status.
    fn changed(&self, paused: u32) {
        SIGNALS.pauses.change(ticks());
        STATUS.paused.store(paused, Ordering::Relaxed);
        WAKE_TABLES.signal();
    }
}
