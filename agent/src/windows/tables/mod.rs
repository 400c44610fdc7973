//! The tables thread: which threads and modules there are, and what their images say. It alone may
//! meet the loader's lock, and wait for it: sampling and writing go on meanwhile.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::sync::atomic::Ordering;

use stk_format::BlockKind;
use stk_schema::control::{EMBED_FULL, EMBED_NONE};
use stk_schema::event::{
    Clock, DropReason, Dropped, EndReason, Event, Metadata, ModuleFlags, RateChange, Table, ThreadFlags,
    ThreadStart,
};
use stk_schema::limits;

pub mod hints;
pub mod loader;
mod mapped;
mod unlisted;

use crate::record::changes::{Change, Changes};
use crate::record::dotnet::descriptor;
use crate::record::dotnet::runtime::{self, Kind};
use crate::record::dynamic;
use crate::record::fingerprint::Fingerprint;
use crate::record::image::{Image, Memory, Part};
use crate::record::journal::{Contents, Journal};
use crate::record::modules::{Events, Modules, Seen};
use crate::record::queue::Queue;
use crate::record::rescue::{Rescued, Tickets};
use crate::record::sampler::ThreadCommand;
use crate::record::shared::{Counters, REASONS};
use crate::record::threads::{Thread, Threads};
use crate::record::unlisted::Unlisted;
use crate::windows::runtimes::{Found, Shared};
use crate::windows::sampler::process::Sampled;
use crate::windows::sampler::suspend::SUSPENSIONS;
use crate::windows::shared::pace::JournalPace;
use crate::windows::shared::state::{LAST_EXIT_CODE, SIGNALS, STATUS};
use crate::windows::system::api::{Api, ticks, utc};
use crate::windows::system::files::TablesFolder;
use crate::windows::system::host;
use crate::windows::system::memory::OwnMemory;
use crate::windows::system::peb::Peb;
use crate::windows::system::thread::{self, ThreadHandle};

/// Milliseconds between enumerations of the threads.
const ENUMERATE_MS: u64 = 50;
/// Milliseconds between looks at all threads' names, which may change at any time ...
const NAMES_MS: u64 = 500;
/// ... and age up to which a thread's name is looked for at every enumeration: it comes right after
/// the start.
const YOUNG_MS: u64 = 300;
/// Milliseconds between reports of losses.
const LOSSES_MS: u64 = 1000;
/// Enumerations without a thread of the target's own after which the recording ends.
const ALONE_ROUNDS: u32 = 2;
/// How often a snapshot of the loader's list that raced with a change is taken again.
const SNAPSHOT_TRIES: usize = 20;

/// What the census is told at its start.
pub struct Settings {
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

/// How the thread that speaks with .NET runtimes is told of one.
pub struct RuntimesLink {
    /// What is shared with it.
    pub shared: Arc<Shared>,
    /// Wakes it.
    pub wake: fn(),
}

/// A live thread's handle and whether the sampler has been told of it.
struct Known {
    handle: Arc<ThreadHandle>,
    told: Option<Sampled>,
    own: bool,
}

/// The state of the tables thread.
pub struct Census {
    api: &'static Api,
    memory: OwnMemory,
    peb: Peb,
    settings: Settings,
    journal: Journal<JournalPace>,
    counters: Arc<Counters>,
    commands: Arc<Queue<ThreadCommand<Sampled>>>,
    threads: Threads<Known>,
    modules: Modules,
    changes: Changes,
    unlisted: Unlisted,
    contents: Contents,
    /// Instances whose tables are to be read.
    unread: VecDeque<u64>,
    /// By which the loader's callback is told that tables were read.
    tickets: Tickets,
    /// Removals that the sampler's queue had no room for.
    removals: VecDeque<u64>,
    own_threads: fn() -> Vec<u32>,
    runtimes: RuntimesLink,
    enumerate_due: u64,
    names_due: u64,
    losses_due: u64,
    state_at: u64,
    reported: [u64; REASONS],
    /// Whether the cost of a suspension is written, and the rate that was written last.
    costs_told: bool,
    rate_told: u64,
    /// Enumerations in a row that showed no thread but the recorder's.
    alone: u32,
    /// The target's thread whose end came last: when, in nanoseconds since the Unix epoch, and its
    /// instance.
    last_exit: (u64, Reverse<u64>),
}

impl Census {
    /// A census that has looked at nothing yet.
    pub fn new(
        api: &'static Api,
        settings: Settings,
        journal: Journal<JournalPace>,
        counters: Arc<Counters>,
        commands: Arc<Queue<ThreadCommand<Sampled>>>,
        own_threads: fn() -> Vec<u32>,
        runtimes: RuntimesLink,
    ) -> Census {
        Census {
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
            unlisted: Unlisted::default(),
            contents: Contents::default(),
            unread: VecDeque::new(),
            tickets: Tickets::default(),
            removals: VecDeque::new(),
            own_threads,
            runtimes,
            enumerate_due: 0,
            names_due: 0,
            losses_due: 0,
            state_at: 0,
            reported: [0; REASONS],
            costs_told: false,
            rate_told: 0,
            alone: 0,
            last_exit: (0, Reverse(u64::MAX)),
        }
    }

    /// Where instance ids come from; dynamic code shares the number space with the modules.
    pub fn ids(&self) -> Arc<core::sync::atomic::AtomicU64> {
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
        let seconds = limits::STATE_SECONDS * 1000 * self.settings.ticks_per_ms;
        if bytes_since_state >= limits::STATE_BYTES || now.saturating_sub(self.state_at) >= seconds {
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
    /// `deadline` (ticks).
    pub fn finish(&mut self, deadline: u64) {
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

    // ---- threads ----

    fn enumerate(&mut self, flags: ThreadFlags) {
        let now = ticks();
        self.enumerate_due = now + ENUMERATE_MS * self.settings.ticks_per_ms;
        let own = (self.own_threads)();
        self.remove_ended(now);
        let (api, memory) = (self.api, self.memory);
        let (threads, journal) = (&mut self.threads, &mut self.journal);
        let complete = thread::enumerate(api, |found| {
            let Some((tid, teb)) = found.identity(api) else { return };
            if threads.knows(tid) || found.ended() {
                return;
            }
            let Some(handle) = found.duplicate().map(Arc::new) else { return };
            let own = own.contains(&tid);
            // The thread may end meanwhile, and the system then unmaps the block.
            let base = teb.stack_base(memory).unwrap_or(0);
            let mut flags = flags;
            flags.set(ThreadFlags::RECORDER, own);
            flags.set(ThreadFlags::NO_STACK_BOUNDS, base == 0);
            let start = ThreadStart {
                instance: 0,
                time: now,
                tid,
                flags,
                start_address: handle.start_address(api),
                stack_base: base,
                created: handle.times().map_or(0, |times| times.created),
            };
            let told = (!own).then(|| Sampled::new(handle.clone(), tid, teb));
            threads.started(start, Known { handle, told, own }, journal);
        });
        self.tell();
        if complete {
            self.look_for_own_threads();
        }
    }

    /// A process ends with its last thread, and the recorder's threads must not keep it alive:
    /// where none but them is left in two enumerations after each other, the recording ends, and
    /// its threads with it.
    fn look_for_own_threads(&mut self) {
        let alone = self.threads.live().iter().all(|thread| thread.handle.own);
        self.alone = if alone { self.alone + 1 } else { 0 };
        if self.alone >= ALONE_ROUNDS {
            SIGNALS.request_stop(EndReason::ProcessExit);
        }
    }

    /// Tells the sampler of threads that came and went, as far as its queue has room.
    fn tell(&mut self) {
        while let Some(&instance) = self.removals.front() {
            if self.commands.push(ThreadCommand::Remove { instance }).is_err() {
                return;
            }
            self.removals.pop_front();
        }
        let commands = &self.commands;
        for (instance, known) in self.threads.handles_mut() {
            let Some(thread) = known.told.take() else { continue };
            let add = ThreadCommand::Add { instance, tid: thread.tid, thread };
            if let Err(ThreadCommand::Add { thread, .. }) = commands.push(add) {
                known.told = Some(thread);
            }
        }
    }

    fn remove_ended(&mut self, now: u64) {
        let (api, removals, last_exit) = (self.api, &mut self.removals, &mut self.last_exit);
        let ended: Vec<u64> = self
            .threads
            .live()
            .iter()
            .filter(|thread| thread.handle.handle.ended())
            .map(|thread| thread.instance)
            .collect();
        if ended.is_empty() {
            return;
        }
        // A thread that lived shorter than names are looked at still has its name now; under Wine
        // no thread has one any more.
        let last_name = |thread: &Thread<Known>| {
            if !ended.contains(&thread.instance) {
                return None;
            }
            thread.handle.handle.name(api).filter(|name| !name.is_empty())
        };
        self.threads.rename(now, last_name, &mut self.journal);
        let (utc_now, per_ms) = (utc(api), self.settings.ticks_per_ms);
        self.threads.remove_ended(
            |thread| {
                if !ended.contains(&thread.instance) {
                    return None;
                }
                let exited = thread.handle.handle.times().map_or(utc_now, |times| times.exited);
                let ago = u128::from(utc_now.saturating_sub(exited)) * u128::from(per_ms) / 1_000_000;
                Some(now.saturating_sub(ago as u64))
            },
            |thread| {
                if !thread.handle.own {
                    removals.push_back(thread.instance);
                    // A thread that is just ending may have no time of its end yet.
                    let exited = thread.handle.handle.times().map_or(0, |times| times.exited);
                    let exited = if exited == 0 { utc_now } else { exited };
                    // Two may end at one moment, by a coarse clock: the one that has been known for
                    // longer is taken for the last, as the first thread waits for the others.
                    let end = (exited, Reverse(thread.instance));
                    if end >= *last_exit {
                        *last_exit = end;
                        LAST_EXIT_CODE.store(thread.handle.handle.exit_code(), Ordering::Relaxed);
                    }
                }
            },
            &mut self.journal,
        );
    }

    /// Looks for new names: at every call those of young threads, which get them about now, at
    /// times all.
    fn names(&mut self) {
        let now = ticks();
        let all = now >= self.names_due;
        if all {
            self.names_due = now + NAMES_MS * self.settings.ticks_per_ms;
        }
        let (api, young) = (self.api, now.saturating_sub(YOUNG_MS * self.settings.ticks_per_ms));
        let name = |thread: &Thread<Known>| {
            if all || thread.start.time > young { thread.handle.handle.name(api) } else { None }
        };
        self.threads.rename(now, name, &mut self.journal);
    }

    // ---- modules ----

    fn drain_loader(&mut self) {
        let since = ticks();
        let mut changed = false;
        while let Some(change) = self.changes.pop().or_else(loader::next) {
            changed = true;
            match change {
                Change::Loaded { time, mut seen, path_cut, print, ticket } => {
                    if path_cut {
                        seen.path = self.path_of(seen.base);
                    }
                    let image = self.read_image(&seen);
                    if !self.load(time, seen, ModuleFlags::NOTIFIED, (image, print), ticket) {
                        SIGNALS.tables_pending.fetch_sub(1, Ordering::AcqRel);
                    }
                }
                Change::Unloaded { time, base, rescued } => {
                    if let Some(rescued) = rescued {
                        self.use_rescued(base, &rescued);
                        loader::give_back(rescued);
                    }
                    if let Some(module) = self.modules.based_at(base) {
                        self.unlisted.unloaded(&module.seen, time);
                    }
                    self.forget_unread(base);
                    self.modules.unloaded(time, base, &mut self.journal);
                }
            }
        }
        let lost = loader::take_lost();
        if lost != 0 {
            self.counters.lose(DropReason::RingFull, lost);
            self.snapshot(ModuleFlags::empty(), since);
        }
        if changed {
            // Module events are written at once: samples of new code must find their module.
            self.journal.flush();
            if self.changes.waiting() == 0 {
                loader::written();
            }
        }
    }

    /// The module at `base` goes: its tables are not to be read any more.
    fn forget_unread(&mut self, base: u64) {
        let unread = &mut self.unread;
        if let Some(module) = self.modules.based_at(base) {
            let instance = module.instance;
            let before = unread.len();
            unread.retain(|&one| one != instance);
            loader::tables_read(self.tickets.take(instance));
            SIGNALS.tables_pending.fetch_sub((before - unread.len()) as u32, Ordering::AcqRel);
        }
    }

    /// Compares with the loader's list. What it shows counts as loaded at `since`, which must lie
    /// before every notification that is still queued: a module that was unloaded and loaded again
    /// before the list was read shows there too, and its unload, still to come, must not precede
    /// its load.
    fn snapshot(&mut self, flags: ModuleFlags, since: u64) {
        self.changes.take(loader::next);
        let told = self.changes.waiting();
        let Some(shown) = (0..SNAPSHOT_TRIES).find_map(|_| self.peb.modules(&self.memory)) else {
            self.fact("recorder.warning", b"the loader's list of modules could not be read");
            return;
        };
        let now = ticks();
        self.modules.retain_shown(now, &shown, &mut self.journal);
        let main = shown.first().map(|seen| seen.base);
        if let Some(first) = shown.first()
            && flags.contains(ModuleFlags::AT_START)
        {
            self.fact("exe", &first.path.clone());
        }
        self.changes.take(loader::next);
        // The last loaded may be the first to go: its headers are read before the others'.
        let mut images: Vec<Option<Image>> = Vec::with_capacity(shown.len());
        for seen in shown.iter().rev() {
            let known = self.modules.based_at(seen.base).is_some();
            images.push(if known { None } else { self.read_image(seen) });
        }
        for seen in shown {
            let image = images.pop().flatten();
            if !self.changes.leave(&seen, told) {
                continue;
            }
            let mut flags = flags;
            flags.set(ModuleFlags::MAIN, Some(seen.base) == main);
            flags.set(ModuleFlags::RECORDER, seen.base == self.settings.own_base);
            SIGNALS.tables_pending.fetch_add(1, Ordering::AcqRel);
            let known = self.modules.based_at(seen.base).is_some();
            let ticket =
                if known || self.settings.embed == EMBED_NONE { 0 } else { loader::expect(seen.base) };
            if !self.load(since, seen, flags, (image, None), ticket) {
                SIGNALS.tables_pending.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// The headers at a module's address, if they are the module's.
    fn read_image(&mut self, seen: &Seen) -> Option<Image> {
        let image = Image::read(&self.memory, seen.base, seen.size);
        // The loader tells of an unload before it unmaps: see `changes`.
        self.changes.take(loader::next);
        image.filter(|_| !self.changes.unload(seen.base) && !loader::has_lost())
    }

    /// A module was seen, with these headers and what its notification kept; false if it was known
    /// already. True leaves one pending table to be settled.
    fn load(
        &mut self,
        time: u64,
        seen: Seen,
        flags: ModuleFlags,
        identity: (Option<Image>, Option<Box<Fingerprint>>),
        ticket: u64,
    ) -> bool {
        let Some(instance) = self.modules.loaded_with(time, seen, flags, identity, &mut self.journal) else {
            loader::tables_read(ticket);
            return false;
        };
        self.tickets.put(instance, ticket);
        self.unread.push_back(instance);
        // A runtime that the loader did not map does not run.
        if !flags.contains(ModuleFlags::UNLISTED) {
            self.look_for_runtime(instance);
        }
        true
    }

    /// Tells the runtimes thread if a new module is a .NET runtime.
    fn look_for_runtime(&mut self, instance: u64) {
        let memory = self.memory;
        let Some(module) = self.modules.get(instance) else { return };
        let Some(image) = &module.image else { return };
        let Some(kind) = Kind::of(&module.seen.path, image, &memory) else { return };
        let version = runtime::version(kind, &module.seen.path, image, &memory);
        let descriptor = image.export(&memory, descriptor::EXPORT);
        let (base, version) = (module.seen.base, version.unwrap_or_default());
        let found = Found { module: instance, base, kind, version, descriptor };
        // One runtime too many is none that anybody can do something for.
        let _ = self.runtimes.shared.found.push(found);
        (self.runtimes.wake)();
    }

    /// Reads and writes the tables of a module.
    fn read_tables(&mut self, instance: u64) {
        // Out of the list for as long as they are read.
        let (image, memory) = (self.modules.take_image(instance), self.memory);
        let tables = image.as_ref().map(|image| self.store_tables(image, &memory)).unwrap_or_default();
        self.modules.put_image(instance, image);
        // The loader tells of an unload before it unmaps: if it has told nothing, what was read was
        // this module's.
        self.drain_loader();
        let tables = if self.is_replaced(instance) { Vec::new() } else { tables };
        if self.modules.get(instance).is_some_and(|module| module.image.is_some()) {
            loader::tables_read(self.tickets.take(instance));
        }
        self.modules.tables_recorded(instance, tables, &mut self.journal);
        SIGNALS.tables_pending.fetch_sub(1, Ordering::AcqRel);
    }

    /// Writes what is wanted of an image.
    fn store_tables(&mut self, image: &Image, memory: &impl Memory) -> Vec<Table> {
        let mut tables = Vec::new();
        let embed = self.settings.embed;
        let (contents, journal, folder) = (&mut self.contents, &mut self.journal, &mut self.settings.folder);
        let mut store = |part: Part| tables.push(contents.put(&part, folder.as_mut(), journal));
        if embed != EMBED_NONE {
            image.unwind_parts(memory, &mut store);
        }
        if embed == EMBED_FULL {
            image.code_parts(memory, &mut store);
        }
        tables
    }

    /// Writes the tables of the module at `base`, which is gone, from what was copied of it when it
    /// went.
    fn use_rescued(&mut self, base: u64, rescued: &Rescued) {
        let Some(arena) = loader::arena() else { return };
        let Some(module) = self.modules.based_at(base).filter(|module| !module.has_tables()) else { return };
        let (instance, known) = (module.instance, module.identity());
        let memory = rescued.image(arena);
        let (base, size) = rescued.place();
        let image = Image::read(&memory, base, size);
        if let Some(image) = image.filter(|image| known.is_none_or(|known| known == image.identity)) {
            let tables = self.store_tables(&image, &memory);
            self.modules.tables_recorded(instance, tables, &mut self.journal);
        }
    }

    /// The full path of the module at `base`, for a notification that could not hold it.
    fn path_of(&mut self, base: u64) -> Vec<u8> {
        let shown = self.peb.modules(&self.memory).unwrap_or_default();
        self.changes.take(loader::next);
        let still = !self.changes.unload(base) && !loader::has_lost();
        shown.into_iter().find(|seen| still && seen.base == base).map(|seen| seen.path).unwrap_or_default()
    }

    // ---- the rest ----

    fn clock(&mut self) {
        let event = Event::Clock(Clock { time: ticks(), utc: utc(self.api) });
        self.journal.event(&event);
    }

    fn metadata(&mut self) {
        let journal = &mut self.journal;
        host::facts(self.api, self.settings.command_line, |key, value| {
            journal.event(&Event::Metadata(Metadata { key: key.as_bytes(), value }));
        });
        if self.settings.check_walks {
            self.fact("recorder.check_walks", b"on");
        }
        if self.settings.unguarded {
            self.fact("recorder.unguarded", b"on");
        }
        let mut texts = self.settings.metadata.split(|&byte| byte == 0);
        while let (Some(key), Some(value)) = (texts.next(), texts.next()) {
            if !key.is_empty() && key.len() + value.len() <= limits::MAX_NAME {
                self.journal.event(&Event::Metadata(Metadata { key, value }));
            }
        }
    }

    fn fact(&mut self, key: &str, value: &[u8]) {
        self.journal.event(&Event::Metadata(Metadata { key: key.as_bytes(), value }));
    }

    /// Writes DROPPED for what was lost since the last report.
    fn losses(&mut self) {
        let now = ticks();
        self.losses_due = now + LOSSES_MS * self.settings.ticks_per_ms;
        for (tid, since) in SUSPENSIONS.take_missed() {
            // The watchdog counts it, before or after this.
            let known = self.threads.live().iter().find(|thread| thread.start.tid == tid);
            let thread = known.map_or(0, |thread| thread.instance);
            let reason = DropReason::NotStopped as u64;
            self.journal.event(&Event::Dropped(Dropped { time: since, reason, thread, count: 1 }));
            self.reported[DropReason::NotStopped as usize] += 1;
        }
        for (reason, reported) in self.reported.iter_mut().enumerate() {
            let lost = self.counters.lost(reason);
            let count = lost.saturating_sub(*reported);
            if count != 0 {
                *reported = lost;
                let event = Event::Dropped(Dropped { time: now, reason: reason as u64, thread: 0, count });
                self.journal.event(&event);
            }
        }
        self.rate();
        self.suspension_costs();
    }

    /// Writes RATE_CHANGE if the sampler has changed the rate to keep to its share of a processor.
    fn rate(&mut self) {
        let rate = self.counters.rate.load(Ordering::Acquire);
        if rate != self.rate_told {
            self.rate_told = rate;
            let time = self.counters.rate_since.load(Ordering::Relaxed);
            let rate_mhz = (u64::from(self.settings.rate_mhz) * rate / 1_000_000).max(1) as u32;
            self.journal.event(&Event::RateChange(RateChange { time, rate_mhz }));
        }
    }

    /// Writes what a suspension costs, once it is measured.
    fn suspension_costs(&mut self) {
        let counters = self.counters.clone();
        if self.costs_told || !counters.calibrated.load(Ordering::Acquire) {
            return;
        }
        self.costs_told = true;
        for (key, value) in [
            ("recorder.suspension_cycles_p50", &counters.suspension_cycles_p50),
            ("recorder.suspension_cycles_p95", &counters.suspension_cycles_p95),
            ("recorder.suspension_ns_p50", &counters.suspension_ns_p50),
            ("recorder.suspension_ns_p95", &counters.suspension_ns_p95),
        ] {
            let value = value.load(Ordering::Relaxed);
            if value != 0 {
                self.fact(key, alloc::format!("{value}").as_bytes());
            }
        }
    }

    /// CPU time of the recorder's own threads so far, in nanoseconds.
    fn own_cpu_ns(&self) -> u64 {
        let own = self.threads.live().iter().filter(|thread| thread.handle.own);
        own.filter_map(|thread| thread.handle.handle.times()).map(|times| times.cpu * 100).sum()
    }

    /// What recording cost, as metadata.
    fn measurements(&mut self, own_cpu_ns: u64) {
        self.fact("recorder.cpu_ns", alloc::format!("{own_cpu_ns}").as_bytes());
        if loader::unrescued() != 0 {
            self.fact("recorder.unread_modules", alloc::format!("{}", loader::unrescued()).as_bytes());
        }
        if self.unlisted.left_out() != 0 {
            self.fact(
                "recorder.unlisted_left_out",
                alloc::format!("{}", self.unlisted.left_out()).as_bytes(),
            );
        }
        let counters = self.counters.clone();
        for (key, value) in [
            ("recorder.passes", &counters.passes),
            ("recorder.pass_ns", &counters.pass_ns),
            ("recorder.suspensions", &counters.suspensions),
            ("recorder.suspended_ns", &counters.suspended_ns),
            ("recorder.suspended_max_ns", &counters.suspended_max_ns),
            ("recorder.held_ns", &counters.held_ns),
            ("recorder.held_max_ns", &counters.held_max_ns),
        ] {
            self.fact(key, alloc::format!("{}", value.load(Ordering::Relaxed)).as_bytes());
        }
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
