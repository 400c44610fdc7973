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

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use stk_schema::Ticks;

use stk_schema::control::{STEP_ENDING, STEP_LOOKING_UP, STEP_WAITING, THREAD_CODE};
use stk_schema::event::{Event, Metadata};
use windows_sys::Win32::System::Threading::{Sleep, THREAD_PRIORITY_NORMAL};

use crate::record::dotnet::contract::{ContractNames, FrameMethods};
use crate::record::dynamic::{CodeFunctions, Shared};
use crate::record::event_writer::EventWriter;
use crate::record::files::FileThread;
use crate::record::modules::Events;
use crate::windows::runtimes::RuntimesState;
use crate::windows::sampler::SamplerThread;
use crate::windows::shared::clock::SessionClock;
use crate::windows::shared::events::{WAKE_RUNTIMES, WAKE_WRITER};
use crate::windows::shared::pace::JournalPace;
use crate::windows::shared::priority::set_priority;
use crate::windows::shared::state::{SIGNALS, STATUS};
use crate::windows::shared::worker::Worker;
use crate::windows::system::api::{SystemApi, ticks};
use crate::windows::system::memory::OwnMemory;
use lookup::SystemTables;

/// Milliseconds that lookups may still take after the sampler has ended: a runtime may block them
/// forever.
pub(super) const CODE_PATIENCE_MS: u64 = 1_000;
/// Milliseconds between checks for new dynamic code, when no event wakes the thread.
const ROUND_MS: u32 = 50;
/// Sightings that are looked up before their events are handed over ...
const BATCH: usize = 256;
/// ... and milliseconds. Then code is named, so that names keep up with the code: code that is seen
/// together lies together, and its names share what is read.
const BATCH_MS: u64 = 25;

const LOOKUP_MAX: &str = "recorder.code.lookup_max_ns";

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
    journal: EventWriter<JournalPace>,
    shared: Arc<Shared>,
    runtimes: Arc<RuntimesState>,
    names: ContractNames,
    /// The costs that the trace has already.
    written_costs: BTreeMap<&'static str, u64>,
    frames: FrameMethods,
    ticks_per_ms: u64,
}

impl CodeRecorder {
    /// A recorder that has seen no code yet.
    pub(super) fn new(
        api: &'static SystemApi,
        functions: CodeFunctions,
        journal: EventWriter<JournalPace>,
        shared: Arc<Shared>,
        runtimes: Arc<RuntimesState>,
        ticks_per_ms: u64,
    ) -> CodeRecorder {
        let (tables, memory) = (SystemTables::new(api), OwnMemory(api));
        let names = ContractNames::new(ticks_per_ms);
        let written_costs = BTreeMap::new();
        CodeRecorder {
            functions,
            tables,
            memory,
            journal,
            shared,
            runtimes,
            names,
            frames: FrameMethods::default(),
            written_costs,
            ticks_per_ms,
        }
    }

    /// Looks up some of the waiting sightings, and names new code. Returns whether there are more.
    pub(super) fn step(&mut self) -> bool {
        self.follow_files();
        let more = self.look_up();
        // What is not handed over is lost if the process ends meanwhile.
        self.journal.flush();
        let unnamed = self.name(false);
        self.journal.flush();
        more || unnamed
    }

    /// Turns to the next file when the sampler has: what was seen before is looked up and named
    /// first, and then all that is known is stated again.
    fn follow_files(&mut self) {
        let files = self.journal.files().clone();
        if !files.is_due(FileThread::Code, self.journal.file()) {
            return;
        }
        let deadline = ticks() + Ticks(CODE_PATIENCE_MS * self.ticks_per_ms);
        while self.look_up() && ticks() < deadline {}
        self.name(true);
        self.costs();
        self.journal.turn();
        self.journal.restate();
        files.turn(FileThread::Code, self.journal.file());
        WAKE_RUNTIMES.signal();
        WAKE_WRITER.signal();
    }

    fn look_up(&mut self) -> bool {
        let end = ticks() + Ticks(BATCH_MS * self.ticks_per_ms);
        for _ in 0..BATCH {
            let before = ticks();
            if before >= end {
                break;
            }
            let Some(sighting) = self.shared.next_sighting() else { return false };
            self.functions.sighted(sighting, &mut self.tables, &self.memory, &mut self.journal);
            let took = (ticks() - before).0.saturating_mul(1_000_000) / self.ticks_per_ms;
            self.shared.costs.lookup_ns.fetch_add(took, Ordering::Relaxed);
            self.shared.costs.lookup_max_ns.fetch_max(took, Ordering::Relaxed);
        }
        true
    }

    /// Names code by the runtime's data contract, if it has one, for a moment. Returns whether more
    /// is to be named now. `last`: all is named, and nothing is tried later.
    fn name(&mut self, last: bool) -> bool {
        let contract = self.runtimes.contract();
        for code in self.functions.take_unnamed() {
            self.names.want(code, contract, &self.shared);
        }
        let Some(contract) = contract else { return false };
        let before = ticks();
        let runtime = (contract, self.runtimes.contract_module());
        let next = || self.runtimes.called.pop();
        let more = self.frames.step(runtime, &self.memory, before, next, &mut self.journal);
        self.names.step(contract, &self.memory, ticks, last, &self.shared, &mut self.journal);
        let after = ticks();
        let took = (after - before).0.saturating_mul(1_000_000) / self.ticks_per_ms;
        self.shared.costs.naming_ns.fetch_add(took, Ordering::Relaxed);
        more || self.names.is_due(after)
    }

    /// The last round: looks up what waits until `deadline`, and writes what it all cost.
    pub(super) fn finish(&mut self, deadline: Ticks) {
        while ticks() < deadline && self.step() {}
        self.name(true);
        self.costs();
        self.journal.flush();
    }

    /// Writes what it all cost: that of the file that events go into.
    fn costs(&mut self) {
        let (activity, costs) = (&self.shared.activity, &self.shared.costs);
        for (key, value) in [
            ("recorder.code.functions", &activity.functions),
            ("recorder.code.stubs", &activity.stubs),
            ("recorder.code.sightings", &costs.sightings),
            ("recorder.code.unseen", &costs.lost),
            ("recorder.code.lookups", &costs.lookups),
            ("recorder.code.lookup_ns", &costs.lookup_ns),
            (LOOKUP_MAX, &costs.lookup_max_ns),
            ("recorder.code.faults", &costs.faults),
            ("recorder.code.removed", &costs.removed),
            ("recorder.code.forgotten", &costs.forgotten),
            ("recorder.code.bytes", &costs.bytes),
            ("recorder.code.named", &costs.named),
            ("recorder.code.nameless", &costs.nameless),
            ("recorder.code.naming_ns", &costs.naming_ns),
        ] {
            let all = value.load(Ordering::Relaxed);
            let before = self.written_costs.insert(key, all).unwrap_or(0);
            // The longest time is no sum.
            let value = if key == LOOKUP_MAX { all } else { all.saturating_sub(before) };
            if value != 0 {
                let value = alloc::format!("{value}");
                let fact = Metadata { key: key.as_bytes(), value: value.as_bytes() };
                self.journal.event(&Event::Metadata(fact));
            }
        }
    }

    /// Hands the written events to the writer; for the end of the process.
    pub(super) fn flush(&mut self) {
        self.journal.flush();
    }
}
