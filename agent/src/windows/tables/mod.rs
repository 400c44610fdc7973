//! The tables thread: which threads and modules there are, and what their images say.
//!
//! [`TablesThread::run`] is its loop. It may meet the loader's lock, and wait for it: sampling and
//! writing go on meanwhile. The target's threads run two things of this folder, under the loader's
//! lock: `hints` from DllMain and the callback of `loader`; both only leave notes in preallocated
//! places.
//!
//! It owns the lists of threads and modules ([`TablesRecorder`]) and the lane of their events. It
//! gets the notes of `hints` and `loader`, and places of code in images from the sampler. It gives
//! threads to the sampler, .NET runtimes to the runtimes thread, and blocks to the writer.
//!
//! ```text
//! threads   enumerations: threads that came, ended, have a new name
//! modules   notifications and the loader's list
//! images    the tables of images
//! unlisted  images that the loader's list lacks
//! facts     clock, metadata, costs and losses
//! loader    the loader's notifications
//! hints     DllMain's word that a thread started
//! mapped    images that are mapped, whether the loader knows them or not
//! ```

mod facts;
pub mod hints;
mod images;
pub mod loader;
mod mapped;
mod modules;
mod threads;
mod unlisted;

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::sync::atomic::{AtomicU64, Ordering};
use stk_schema::Ticks;

use stk_format::BlockKind;
use stk_schema::control::EMBED_NONE;
use stk_schema::event::{ModuleFlags, ThreadFlags};
use stk_schema::limits;
use windows_sys::Win32::System::Threading::THREAD_PRIORITY_ABOVE_NORMAL;

use crate::record::changes::Changes;
use crate::record::dynamic;
use crate::record::journal::{Contents, Journal};
use crate::record::modules::Modules;
use crate::record::queue::Queue;
use crate::record::rescue::Tickets;
use crate::record::sampler::ThreadCommand;
use crate::record::shared::{Counters, REASONS};
use crate::record::threads::Threads;
use crate::record::unlisted::UnlistedImages;
use crate::windows::runtimes::RuntimesShared;
use crate::windows::sampler::process::SampledThread;
use crate::windows::shared::clock::SessionClock;
use crate::windows::shared::pace::JournalPace;
use crate::windows::shared::priority::set_priority;
use crate::windows::shared::state::{SIGNALS, STATUS};
use crate::windows::shared::worker::Worker;
use crate::windows::system::api::{Api, ticks};
use crate::windows::system::files::TablesFolder;
use crate::windows::system::memory::OwnMemory;
use crate::windows::system::peb::Peb;
use crate::windows::system::thread::ThreadHandle;

/// Milliseconds that reading the tables may still take after the end was asked for.
pub const TABLES_MS: u64 = 8_000;
/// Milliseconds between the thread's rounds when nothing calls it.
const ROUND_MS: u32 = 20;

/// What the tables thread owns, and what the others may touch of it.
pub struct TablesThread {
    /// Lane, state, done flag and wake event.
    pub worker: Worker<TablesRecorder>,
    /// Where instance ids come from.
    pub module_ids: Arc<AtomicU64>,
    /// Bytes of the trace since the last STATE block; the writer's word.
    pub bytes_since_state: AtomicU64,
    clock: SessionClock,
}

impl TablesThread {
    /// A thread that has not begun.
    pub fn new(
        worker: Worker<TablesRecorder>,
        module_ids: Arc<AtomicU64>,
        clock: SessionClock,
    ) -> TablesThread {
        TablesThread { worker, module_ids, bytes_since_state: AtomicU64::new(0), clock }
    }

    /// Lists threads and modules until the recording is to end.
    pub fn run(&self) {
        // On a busy machine a thread below the target's would not run: the first sample and every
        // new module wait for this one.
        set_priority(THREAD_PRIORITY_ABOVE_NORMAL);
        let tables = &self.worker.state;
        tables.enter(TablesRecorder::begin);
        while !SIGNALS.stopping() {
            let since_state = self.bytes_since_state.load(Ordering::Relaxed);
            let more = tables.enter(|tables| tables.step(since_state)).unwrap_or(false);
            if !more {
                self.worker.wake.wait(ROUND_MS);
            }
        }
        let deadline = ticks() + self.clock.span(TABLES_MS);
        tables.enter(|tables| tables.finish(deadline));
        self.worker.finish();
    }
}

/// What the tables thread is told at its start.
pub struct TablesSettings {
    /// `EMBED_*`.
    pub embed: u32,
    /// Metadata from the config: `key 0 value 0 …`.
    pub metadata: Vec<u8>,
    /// Folder of shared tables.
    pub folder: Option<TablesFolder>,
    /// Load address of the agent itself.
    pub own_base: u64,
    /// Whether walks are checked.
    pub check_walks: bool,
    /// Whether there is no guard process.
    pub unguarded: bool,
    /// Whether the process's command line goes into the trace.
    pub command_line: bool,
    /// Ticks per millisecond.
    pub ticks_per_ms: u64,
    /// Nominal sampling rate in millihertz.
    pub rate_mhz: u32,
    /// Where samples showed code.
    pub code_seen: Arc<dynamic::Shared>,
}

/// What is kept of a live thread.
struct ListedThread {
    handle: Arc<ThreadHandle>,
    /// For the sampler, until its queue has room.
    unsent: Option<SampledThread>,
    /// Whether it is one of the recorder's.
    own: bool,
}

/// The state of the tables thread.
pub struct TablesRecorder {
    api: &'static Api,
    memory: OwnMemory,
    peb: Peb,
    settings: TablesSettings,
    journal: Journal<JournalPace>,
    counters: Arc<Counters>,
    commands: Arc<Queue<ThreadCommand<SampledThread>>>,
    threads: Threads<ListedThread>,
    modules: Modules,
    changes: Changes,
    unlisted: UnlistedImages,
    contents: Contents,
    /// Instances whose tables are to be read.
    unread: VecDeque<u64>,
    /// By which the loader's callback is told that tables were read.
    tickets: Tickets,
    /// Removals that the sampler's queue had no room for.
    removals: VecDeque<u64>,
    own_threads: fn() -> Vec<u32>,
    /// Where the runtimes thread is told of a runtime.
    runtimes: Arc<RuntimesShared>,
    enumerate_due: Ticks,
    names_due: Ticks,
    losses_due: Ticks,
    state_at: Ticks,
    reported: [u64; REASONS],
    /// Whether the cost of a suspension is written, and the rate that was written last.
    costs_written: bool,
    rate_written: u64,
    /// Enumerations in a row that showed no thread but the recorder's.
    alone: u32,
    /// The target's thread whose end came last: when, in nanoseconds since the Unix epoch, and its
    /// instance.
    last_exit: (u64, Reverse<u64>),
}

impl TablesRecorder {
    /// Lists that nothing is in yet.
    pub fn new(
        api: &'static Api,
        settings: TablesSettings,
        journal: Journal<JournalPace>,
        counters: Arc<Counters>,
        commands: Arc<Queue<ThreadCommand<SampledThread>>>,
        own_threads: fn() -> Vec<u32>,
        runtimes: Arc<RuntimesShared>,
    ) -> TablesRecorder {
        TablesRecorder {
            api,
            memory: OwnMemory(api),
            peb: Peb::current(api),
            settings,
            journal,
            counters,
            commands,
            threads: Threads::default(),
            modules: Modules::default(),
            changes: Changes::default(),
            unlisted: UnlistedImages::default(),
            contents: Contents::default(),
            unread: VecDeque::new(),
            tickets: Tickets::default(),
            removals: VecDeque::new(),
            own_threads,
            runtimes,
            enumerate_due: Ticks::ZERO,
            names_due: Ticks::ZERO,
            losses_due: Ticks::ZERO,
            state_at: Ticks::ZERO,
            reported: [0; REASONS],
            costs_written: false,
            rate_written: 0,
            alone: 0,
            last_exit: (0, Reverse(u64::MAX)),
        }
    }

    /// Where instance ids come from; dynamic code shares the number space with the modules.
    pub fn ids(&self) -> Arc<AtomicU64> {
        self.modules.ids()
    }

    /// The first look: the STATE block that opens the trace.
    pub fn begin(&mut self) {
        // Until the snapshot is worked off, every sample's tables may be missing.
        SIGNALS.tables_pending.fetch_add(1, Ordering::AcqRel);
        self.journal.switch(BlockKind::State);
        self.clock();
        self.metadata();
        self.enumerate(ThreadFlags::AT_START);
        self.names();
        SIGNALS.threads_known.store(true, Ordering::Release);

        let since = ticks();
        let notified = loader::listen(self.api, self.settings.embed != EMBED_NONE);
        self.snapshot(ModuleFlags::AT_START, since);
        if !notified {
            self.fact(
                "recorder.warning",
                b"loader notifications cannot be had: module events come from snapshots alone",
            );
        }
        self.journal.switch(BlockKind::Meta);
        SIGNALS.tables_pending.fetch_sub(1, Ordering::AcqRel);
        self.state_at = ticks();
        self.publish();
    }

    /// One round; true if there is more to do at once.
    pub fn step(&mut self, bytes_since_state: u64) -> bool {
        let now = ticks();
        self.drain_loader();
        self.look_for_unlisted();
        let mut hinted = false;
        while let Some(tid) = hints::next() {
            hinted |= !self.threads.knows(tid);
        }
        if hinted || now >= self.enumerate_due {
            self.enumerate(ThreadFlags::empty());
            self.names();
        }
        if now >= self.losses_due {
            self.losses();
        }
        let age = Ticks(limits::STATE_SECONDS * 1000 * self.settings.ticks_per_ms);
        if bytes_since_state >= limits::STATE_BYTES || now.saturating_sub(self.state_at) >= age {
            self.restate();
        }
        self.journal.flush();
        if let Some(instance) = self.unread.pop_front() {
            self.read_tables(instance);
            self.journal.flush();
        }
        self.publish();
        !self.unread.is_empty()
    }

    /// The last round: what is known now is written; tables that were not read yet are read until
    /// `deadline`.
    pub fn finish(&mut self, deadline: Ticks) {
        self.drain_loader();
        self.look_for_unlisted();
        // Those of the recorder's threads that are about to end are known now.
        let own_cpu_ns = self.own_cpu_ns();
        self.enumerate(ThreadFlags::empty());
        self.names();
        self.journal.flush();
        while ticks() < deadline
            && let Some(instance) = self.unread.pop_front()
        {
            self.read_tables(instance);
            self.drain_loader();
        }
        loader::ignore();
        self.losses();
        self.measurements(own_cpu_ns);
        self.journal.flush();
    }

    /// Hands over what was written; for the end of the process.
    pub fn flush(&mut self) {
        self.journal.flush();
    }

    /// The modules that are known.
    pub fn modules(&self) -> &Modules {
        &self.modules
    }

    fn restate(&mut self) {
        self.state_at = ticks();
        self.journal.switch(BlockKind::State);
        self.clock();
        self.modules.restate(&mut self.journal);
        self.threads.restate(&mut self.journal);
        self.journal.switch(BlockKind::Meta);
        SIGNALS.renew.store(true, Ordering::Release);
    }

    fn publish(&self) {
        let sampled = self.threads.live().iter().filter(|thread| !thread.handle.own).count();
        STATUS.threads.store(sampled as u32, Ordering::Relaxed);
        STATUS.modules.store(self.modules.live().len() as u32, Ordering::Relaxed);
    }
}
