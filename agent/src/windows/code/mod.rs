//! The code thread: looks up the dynamic code that samples show.
//!
//! [`CodeThread::run`] is its loop. Before the first pass it waits while the sampler measures the
//! cost of a suspension on it. Like the tables thread, it may wait for the loader's lock and, in a
//! runtime's callback, for that runtime. Only the end of a recording waits for it, for a moment.
//!
//! It owns the known functions outside of modules ([`CodeRecorder`]) and the lane of their events.
//! It gets addresses of code from the sampler (`dynamic::Shared`). It gives addresses that need a
//! name to the runtimes thread, and blocks to the writer.
//!
//! ```text
//! lookup  RtlLookupFunctionEntry, with a handler around it
//! ```

mod lookup;

use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use stk_schema::Ticks;

use stk_schema::control::{STEP_ENDING, STEP_LOOKING_UP, STEP_WAITING, THREAD_CODE};
use stk_schema::event::{Event, Metadata};
use windows_sys::Win32::System::Threading::{Sleep, THREAD_PRIORITY_NORMAL};

use crate::record::dynamic::{CodeFunctions, Shared};
use crate::record::journal::Journal;
use crate::record::modules::Events;
use crate::windows::sampler::SamplerThread;
use crate::windows::shared::clock::SessionClock;
use crate::windows::shared::pace::JournalPace;
use crate::windows::shared::priority::set_priority;
use crate::windows::shared::state::{SIGNALS, STATUS};
use crate::windows::shared::worker::Worker;
use crate::windows::system::api::{Api, ticks};
use crate::windows::system::memory::OwnMemory;
use lookup::SystemTables;

/// Milliseconds that lookups may still take after the sampler has ended: a runtime may block them
/// forever.
pub(super) const CODE_PATIENCE_MS: u64 = 1_000;
/// Milliseconds between checks for new dynamic code, when no event wakes the thread.
const ROUND_MS: u32 = 50;
/// Sightings that are looked up before their events are handed over.
const BATCH: usize = 256;

/// The parts of the code thread that other threads may use.
pub(super) struct CodeThread {
    /// Lane, state, done flag and wake event.
    pub worker: Worker<CodeRecorder>,
    clock: SessionClock,
}

impl CodeThread {
    /// A thread that has not begun.
    pub(super) fn new(worker: Worker<CodeRecorder>, clock: SessionClock) -> CodeThread {
        CodeThread { worker, clock }
    }

    /// Looks up the dynamic code that samples show, until the recording is to end.
    pub(super) fn run(&self, sampler: &SamplerThread) {
        set_priority(THREAD_PRIORITY_NORMAL);
        sampler.calibration.park();
        let code = &self.worker.state;
        while !SIGNALS.stopping() {
            STATUS.round(THREAD_CODE, STEP_LOOKING_UP);
            if !code.enter(CodeRecorder::step).unwrap_or(false) {
                STATUS.step(THREAD_CODE, STEP_WAITING);
                self.worker.wake.wait(ROUND_MS);
            }
        }
        STATUS.step(THREAD_CODE, STEP_ENDING);
        let deadline = ticks() + self.clock.span(CODE_PATIENCE_MS);
        // The last pass may have shown new code.
        while !sampler.worker.is_done() && ticks() < deadline {
            // SAFETY: no preconditions.
            unsafe { Sleep(1) };
        }
        code.enter(|code| code.finish(deadline));
        self.worker.finish();
    }
}

/// The state of the code thread.
pub(super) struct CodeRecorder {
    functions: CodeFunctions,
    tables: SystemTables,
    memory: OwnMemory,
    journal: Journal<JournalPace>,
    shared: Arc<Shared>,
    ticks_per_ms: u64,
}

impl CodeRecorder {
    /// A recorder that has seen no code yet.
    pub(super) fn new(
        api: &'static Api,
        functions: CodeFunctions,
        journal: Journal<JournalPace>,
        shared: Arc<Shared>,
        ticks_per_ms: u64,
    ) -> CodeRecorder {
        let tables = SystemTables::new(api);
        CodeRecorder { functions, tables, memory: OwnMemory(api), journal, shared, ticks_per_ms }
    }

    /// Looks up some of the waiting sightings. Returns whether there are more.
    pub(super) fn step(&mut self) -> bool {
        for _ in 0..BATCH {
            let Some(sighting) = self.shared.sightings.pop() else {
                self.journal.flush();
                return false;
            };
            let before = ticks();
            self.functions.sighted(sighting, &mut self.tables, &self.memory, &mut self.journal);
            let took = (ticks() - before).0.saturating_mul(1_000_000) / self.ticks_per_ms;
            self.shared.costs.lookup_ns.fetch_add(took, Ordering::Relaxed);
            self.shared.costs.lookup_max_ns.fetch_max(took, Ordering::Relaxed);
        }
        self.journal.flush();
        true
    }

    /// The last round: looks up what waits until `deadline`, and writes what it all cost.
    pub(super) fn finish(&mut self, deadline: Ticks) {
        while ticks() < deadline && self.step() {}
        let (activity, costs) = (&self.shared.activity, &self.shared.costs);
        for (key, value) in [
            ("recorder.code.functions", &activity.functions),
            ("recorder.code.stubs", &activity.stubs),
            ("recorder.code.sightings", &costs.sightings),
            ("recorder.code.unseen", &costs.lost),
            ("recorder.code.lookups", &costs.lookups),
            ("recorder.code.lookup_ns", &costs.lookup_ns),
            ("recorder.code.lookup_max_ns", &costs.lookup_max_ns),
            ("recorder.code.faults", &costs.faults),
            ("recorder.code.removed", &costs.removed),
            ("recorder.code.forgotten", &costs.forgotten),
            ("recorder.code.bytes", &costs.bytes),
        ] {
            let value = value.load(Ordering::Relaxed);
            if value != 0 {
                let value = alloc::format!("{value}");
                let fact = Metadata { key: key.as_bytes(), value: value.as_bytes() };
                self.journal.event(&Event::Metadata(fact));
            }
        }
        self.journal.flush();
    }

    /// Hands the written events to the writer; for the end of the process.
    pub(super) fn flush(&mut self) {
        self.journal.flush();
    }
}
