//! The tables thread: finds threads and modules, and reads the modules' images.
//!
//! [`TablesThread::run`] is its loop. It may wait for the loader's lock; sampling and writing
//! continue meanwhile. The target's threads run two parts of this folder under the loader's lock,
//! `hints` from DllMain and the callback of `loader`. Both only leave notes in preallocated memory.
//!
//! The thread owns the lists of threads and modules ([`TablesRecorder`]) and the lane of their
//! events. It gets notes from `hints` and `loader`, and addresses of code in images from the
//! sampler. It gives threads to the sampler, .NET runtimes to the runtimes thread, and blocks to
//! the writer.
//!
//! ```text
//! threads   new, ended and renamed threads
//! modules   notifications and the loader's list
//! images    the tables of images
//! unlisted  images that the loader's list lacks
//! facts     clock, metadata, costs and losses
//! files     the next file of the recording
//! loader    the loader's notifications
//! marks     what stk_mark leaves
//! exceptions what the handler of exceptions leaves
//! usage     the process's CPU time, for a trigger
//! requests  what hosts ask for: marks, pauses
//! hints     DllMain's hints that a thread started
//! mapped    mapped images, including those that the loader does not know
//! ```

pub(super) mod exceptions;
mod facts;
mod files;
pub(super) mod hints;
mod images;
pub(super) mod loader;
mod mapped;
pub(super) mod marks;
mod modules;
mod requests;
mod threads;
mod unlisted;
mod usage;

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::sync::atomic::{AtomicU64, Ordering};
use stk_schema::Ticks;

use stk_format::BlockKind;
use stk_format::blob::instances_hash;
use stk_schema::control::{
    EMBED_NONE, STEP_ENDING, STEP_LISTING, STEP_READING_IMAGE, STEP_WAITING, STEP_WORKING, THREAD_TABLES,
};
use stk_schema::event::{Event, ModuleFlags, ModuleState, ThreadFlags};
use stk_schema::identity::ContentHash;
use stk_schema::limits;
use windows_sys::Win32::System::Threading::THREAD_PRIORITY_ABOVE_NORMAL;

use crate::record::cpu_trigger::CpuTrigger;
use crate::record::dynamic;
use crate::record::event_writer::{EventWriter, StoredBlobs};
use crate::record::loader_queue::LoaderQueue;
use crate::record::modules::{Events, Modules};
use crate::record::options::Options;
use crate::record::queue::Queue;
use crate::record::requests::HostRequest;
use crate::record::rescue::PoolIds;
use crate::record::sampler::ThreadCommand;
use crate::record::shared::{Counters, REASONS};
use crate::record::threads::Threads;
use crate::record::unlisted::UnlistedImages;
use crate::windows::runtimes::RuntimesState;
use crate::windows::sampler::process::SampledThread;
use crate::windows::shared::clock::SessionClock;
use crate::windows::shared::next_file::FileOffer;
use crate::windows::shared::pace::JournalPace;
use crate::windows::shared::priority::set_priority;
use crate::windows::shared::state::{SIGNALS, STATUS};
use crate::windows::shared::worker::Worker;
use crate::windows::system::api::{SystemApi, ticks};
use crate::windows::system::files::TablesFolder;
use crate::windows::system::memory::OwnMemory;
use crate::windows::system::peb::Peb;
use crate::windows::system::thread::{Teb, ThreadHandle};
use threads::ThreadRounds;

/// Milliseconds that reading the tables may still take after the end was requested.
pub(super) const TABLES_MS: u64 = 8_000;
/// Milliseconds between rounds when no event wakes the thread.
const ROUND_MS: u32 = 20;
/// Least milliseconds between two MODULE_STATE events.
const CONFIRM_MS: u64 = 750;

/// The parts of the tables thread that other threads may use.
pub(super) struct TablesThread {
    /// Lane, state, done flag and wake event.
    pub worker: Worker<TablesRecorder>,
    /// The counter of instance ids.
    pub module_ids: Arc<AtomicU64>,
    /// Bytes of the trace since the last STATE block; set by the writer.
    pub bytes_since_state: AtomicU64,
    clock: SessionClock,
}

impl TablesThread {
    pub(super) fn new(
        worker: Worker<TablesRecorder>,
        module_ids: Arc<AtomicU64>,
        clock: SessionClock,
    ) -> TablesThread {
        TablesThread { worker, module_ids, bytes_since_state: AtomicU64::new(0), clock }
    }

    /// Lists threads and modules until the recording is to end.
    pub(super) fn run(&self) {
        // On a busy machine, a thread with a lower priority than the target's would not run, and
        // the first sample and every new module wait for this thread.
        set_priority(THREAD_PRIORITY_ABOVE_NORMAL);
        let tables = &self.worker.state;
        tables.enter(TablesRecorder::begin);
        while !SIGNALS.stopping() {
            STATUS.round(THREAD_TABLES, STEP_WORKING);
            let since_state = self.bytes_since_state.load(Ordering::Relaxed);
            let more = tables.enter(|tables| tables.step(since_state)).unwrap_or(false);
            if !more {
                STATUS.step(THREAD_TABLES, STEP_WAITING);
                self.worker.wake.wait(ROUND_MS);
            }
        }
        STATUS.step(THREAD_TABLES, STEP_ENDING);
        let deadline = ticks() + self.clock.span(TABLES_MS);
        tables.enter(|tables| tables.finish(deadline));
        self.worker.finish();
    }
}

/// The settings of the tables thread.
pub(super) struct TablesSettings {
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
    /// Whether words of stacks that are no addresses are stored as zeros.
    pub pointers_only: bool,
    /// Gives the ids of the recorder's threads.
    pub own_threads: fn() -> Vec<u32>,
    /// Ticks per millisecond.
    pub ticks_per_ms: u64,
    /// Nominal sampling rate in millihertz.
    pub rate_mhz: u32,
    /// Which threads are sampled, which module loads and what use of CPU time are looked for.
    pub options: Options,
    /// The addresses at which samples showed code.
    pub code_seen: Arc<dynamic::Shared>,
}

/// A live thread in the list.
struct ListedThread {
    handle: Arc<ThreadHandle>,
    teb: Teb,
    /// For the sampler; kept here until its queue has room.
    unsent: Option<SampledThread>,
    /// Whether passes sample it (`--threads`).
    wanted: bool,
    /// Whether it belongs to the recorder.
    own: bool,
}

/// The state of the tables thread.
pub(super) struct TablesRecorder {
    api: &'static SystemApi,
    memory: OwnMemory,
    peb: Peb,
    settings: TablesSettings,
    journal: EventWriter<JournalPace>,
    counters: Arc<Counters>,
    commands: Arc<Queue<ThreadCommand<SampledThread>>>,
    threads: Threads<ListedThread>,
    modules: Modules,
    changes: LoaderQueue,
    unlisted: UnlistedImages,
    contents: StoredBlobs,
    /// Instances whose tables are to be read.
    unread: VecDeque<u64>,
    /// The tickets by which the loader's callback learns that tables were read.
    tickets: PoolIds,
    /// Removals for which the sampler's queue had no room.
    removals: VecDeque<(u64, u32)>,
    /// The queue through which the runtimes thread gets new runtimes.
    runtimes: Arc<RuntimesState>,
    /// Instance of the main thread ([`MAIN_THREAD`](crate::windows::shared::state::MAIN_THREAD));
    /// 0 = not known yet, or it has ended.
    main: u64,
    /// Threads met, without the recorder's own.
    threads_met: u32,
    cpu_trigger: Option<CpuTrigger>,
    rounds: ThreadRounds,
    /// Whether threads or names are new to the user's choice of threads ...
    to_select: bool,
    /// ... and whether threads are reported to the sampler.
    to_send: bool,
    losses_due: Ticks,
    state_at: Ticks,
    /// When MODULE_STATE was written last.
    confirmed_at: Ticks,
    /// META blocks at that time.
    confirmed_blocks: u64,
    /// Events about modules and threads when all were restated last.
    restated: u64,
    reported: [u64; REASONS],
    /// Whether the cost of a suspension was written, and the rate that was written last.
    costs_written: bool,
    rate_written: u64,
    /// Changes of [`Pauses`](crate::record::shared::Pauses) that the trace holds.
    pauses_written: u32,
    /// A pause, or its end, that the sampler has not confirmed.
    pausing: Option<HostRequest>,
    /// The next file, on its way to the writer.
    offer: Arc<FileOffer>,
    /// The host's request for it, until the writer has it.
    offered: Option<(HostRequest, Vec<u8>)>,
    /// When such a request was seen first.
    file_asked: Option<Ticks>,
    /// What the files before cost.
    measured: [u64; 7],
    /// Words that REDACTION events have counted.
    redacted_words: u64,
    /// Successive listings that showed only the recorder's threads.
    alone: u32,
    /// The target's thread that ended last: the time in nanoseconds since the Unix epoch, and its
    /// instance.
    last_exit: (u64, Reverse<u64>),
}

impl TablesRecorder {
    /// A recorder with empty lists.
    pub(super) fn new(
        api: &'static SystemApi,
        settings: TablesSettings,
        journal: EventWriter<JournalPace>,
        counters: Arc<Counters>,
        commands: Arc<Queue<ThreadCommand<SampledThread>>>,
        runtimes: Arc<RuntimesState>,
        offer: Arc<FileOffer>,
    ) -> TablesRecorder {
        let cpu_trigger =
            settings.options.cpu_percent.map(|percent| CpuTrigger::new(percent, settings.ticks_per_ms));
        let rounds = ThreadRounds::new(settings.ticks_per_ms);
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
            changes: LoaderQueue::default(),
            unlisted: UnlistedImages::default(),
            contents: StoredBlobs::default(),
            unread: VecDeque::new(),
            tickets: PoolIds::default(),
            removals: VecDeque::new(),
            runtimes,
            main: 0,
            threads_met: 0,
            cpu_trigger,
            rounds,
            to_select: false,
            to_send: false,
            losses_due: Ticks::ZERO,
            state_at: Ticks::ZERO,
            confirmed_at: Ticks::ZERO,
            confirmed_blocks: 0,
            restated: 0,
            reported: [0; REASONS],
            costs_written: false,
            rate_written: 0,
            pauses_written: 0,
            pausing: None,
            offer,
            offered: None,
            file_asked: None,
            measured: [0; 7],
            redacted_words: 0,
            alone: 0,
            last_exit: (0, Reverse(u64::MAX)),
        }
    }

    /// The counter of instance ids. Dynamic code shares the number space with the modules.
    pub(super) fn ids(&self) -> Arc<AtomicU64> {
        self.modules.ids()
    }

    /// The first round: writes the STATE block that opens the trace.
    pub(super) fn begin(&mut self) {
        // Until the snapshot is processed, tables may be missing for every sample.
        SIGNALS.tables_pending.fetch_add(1, Ordering::AcqRel);
        self.journal.switch(BlockKind::State);
        self.clock();
        self.metadata();
        self.list_all(ThreadFlags::AT_START);
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
        self.restated = self.journal.listed();
        self.publish();
    }

    /// Runs one round. Returns whether there is more to do at once.
    pub(super) fn step(&mut self, bytes_since_state: u64) -> bool {
        let now = ticks();
        self.drain_loader();
        self.look_for_unlisted();
        STATUS.step(THREAD_TABLES, STEP_LISTING);
        self.look_at_threads();
        STATUS.step(THREAD_TABLES, STEP_WORKING);
        self.look_at_cpu();
        self.follow_files();
        // What happened once goes into one file: it waits for the moment until the sampler turns.
        if !self.journal.writes_both() {
            self.marks();
            self.exceptions();
            self.requests();
            if now >= self.losses_due {
                self.losses();
            }
        }
        let age = Ticks(limits::STATE_SECONDS * 1000 * self.settings.ticks_per_ms);
        if self.journal.writes_both() {
            // The next file has just been stated.
        } else if bytes_since_state >= limits::STATE_BYTES || now.saturating_sub(self.state_at) >= age {
            self.restate();
        }
        self.journal.flush();
        self.confirm(now);
        // What is read while events go into both files would have to be in both.
        if !self.journal.writes_both()
            && let Some(instance) = self.unread.pop_front()
        {
            STATUS.step(THREAD_TABLES, STEP_READING_IMAGE);
            self.read_tables(instance);
            self.journal.flush();
        }
        self.publish();
        !self.unread.is_empty() && !self.journal.writes_both()
    }

    /// The last round: what is known now is written; tables that were not read yet are read until
    /// `deadline`.
    pub(super) fn finish(&mut self, deadline: Ticks) {
        self.drain_loader();
        self.look_for_unlisted();
        // Measured now, while the recorder's threads that are about to end are still in the list.
        let own_cpu_ns = self.own_cpu_ns();
        self.list_all(ThreadFlags::empty());
        self.marks();
        self.exceptions();
        self.end_requests();
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

    /// Hands the written events to the writer; for the end of the process.
    pub(super) fn flush(&mut self) {
        self.journal.flush();
    }

    pub(super) fn modules(&self) -> &Modules {
        &self.modules
    }

    fn restate(&mut self) {
        self.state_at = ticks();
        self.journal.switch(BlockKind::State);
        self.clock();
        self.restate_lists();
        self.journal.switch(BlockKind::Meta);
        SIGNALS.renew.store(true, Ordering::Release);
    }

    fn restate_lists(&mut self) {
        self.modules.restate(&mut self.journal);
        self.threads.restate(&mut self.journal);
        self.restated = self.journal.listed();
    }

    /// After META blocks were written, by whichever thread: writes which modules live, and before
    /// that all modules and threads if something changed. Whoever reads a file in which one of the
    /// blocks is damaged then knows them again.
    fn confirm(&mut self, now: Ticks) {
        let written = |counters: &Counters| counters.meta_blocks.load(Ordering::Relaxed);
        let young = now.saturating_sub(self.confirmed_at) < Ticks(CONFIRM_MS * self.settings.ticks_per_ms);
        if young || written(&self.counters) == self.confirmed_blocks {
            return;
        }
        if self.journal.listed() != self.restated {
            self.restate_lists();
        }
        let (modules, modules_hash) =
            instances_hash(self.modules.live().iter().map(|module| module.instance));
        let state =
            ModuleState { time: now, modules, modules_hash, ranges: 0, ranges_hash: ContentHash::NONE };
        self.journal.event(&Event::ModuleState(state));
        self.journal.flush();
        self.confirmed_at = now;
        self.confirmed_blocks = written(&self.counters);
    }

    fn publish(&self) {
        let sampled = self.threads.live().iter().filter(|thread| !thread.handle.own).count();
        STATUS.threads.store(sampled as u32, Ordering::Relaxed);
        STATUS.threads_met.store(self.threads_met, Ordering::Relaxed);
        STATUS.modules.store(self.modules.live().len() as u32, Ordering::Relaxed);
        STATUS.set_held(self.counters.held.summary());
    }
}
