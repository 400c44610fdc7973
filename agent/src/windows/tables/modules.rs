//! The modules of the process, from the loader's notifications and the loader's list.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use stk_schema::Ticks;

use stk_schema::control::EMBED_NONE;
use stk_schema::event::{DropReason, ModuleFlags};

use super::{TablesRecorder, loader};
use crate::record::dotnet::descriptor;
use crate::record::dotnet::runtime::{self, kind_of};
use crate::record::fingerprint::Fingerprint;
use crate::record::image::Image;
use crate::record::loader_queue::Change;
use crate::record::modules::ModuleSighting;
use crate::windows::runtimes::FoundRuntime;
use crate::windows::shared::events::WAKE_RUNTIMES;
use crate::windows::shared::state::SIGNALS;
use crate::windows::system::api::ticks;

/// Attempts to take a snapshot of the loader's list when it changes meanwhile.
const SNAPSHOT_TRIES: usize = 20;

impl TablesRecorder {
    /// Works off the loader's notifications.
    pub(super) fn drain_loader(&mut self) {
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

    /// Cancels the reading of the tables of the module at `base`, which is being unloaded.
    pub(super) fn forget_unread(&mut self, base: u64) {
        self.settings.code_seen.precompiled.remove(base);
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
    pub(super) fn snapshot(&mut self, flags: ModuleFlags, since: Ticks) {
        self.changes.take(loader::next);
        let waiting = self.changes.waiting();
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
        // Read the last loaded module's headers first, because it may be unloaded first.
        let mut images: Vec<Option<Image>> = Vec::with_capacity(shown.len());
        for seen in shown.iter().rev() {
            let known = self.modules.based_at(seen.base).is_some();
            images.push(if known { None } else { self.read_image(seen) });
        }
        for seen in shown {
            let image = images.pop().flatten();
            if !self.changes.leave(&seen, waiting) {
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

    /// The headers at a module's address, if they belong to the module.
    fn read_image(&mut self, seen: &ModuleSighting) -> Option<Image> {
        let image = Image::read(&self.memory, seen.base, seen.size);
        // The loader reports an unload before it unmaps: see `loader_queue`.
        self.changes.take(loader::next);
        image.filter(|_| !self.changes.unload(seen.base) && !loader::has_lost())
    }

    /// Records a module that was seen, with its headers and the identity that its notification
    /// kept. False if it was already known. If true, one pending table remains to be settled.
    pub(super) fn load(
        &mut self,
        time: Ticks,
        seen: ModuleSighting,
        flags: ModuleFlags,
        identity: (Option<Image>, Option<Box<Fingerprint>>),
        ticket: u64,
    ) -> bool {
        let Some(instance) = self.modules.loaded(time, seen, flags, identity, &mut self.journal) else {
            loader::tables_read(ticket);
            return false;
        };
        if let Some(image) = self.modules.get(instance).and_then(|module| module.image.as_ref()) {
            self.settings.code_seen.precompiled.add(instance, image, &self.memory);
        }
        self.tickets.put(instance, ticket);
        self.unread.push_back(instance);
        // A runtime that the loader did not map does not run.
        if !flags.contains(ModuleFlags::UNLISTED) {
            self.look_for_runtime(instance);
        }
        true
    }

    /// Passes a new module to the runtimes thread if it is a .NET runtime.
    fn look_for_runtime(&mut self, instance: u64) {
        let memory = self.memory;
        let Some(module) = self.modules.get(instance) else { return };
        let Some(image) = &module.image else { return };
        let Some(kind) = kind_of(&module.seen.path, image, &memory) else { return };
        let version = runtime::version(kind, &module.seen.path, image, &memory);
        let descriptor = image.export(&memory, descriptor::EXPORT);
        let (base, version) = (module.seen.base, version.unwrap_or_default());
        let found = FoundRuntime { module: instance, base, kind, version, descriptor };
        // When the queue is full, further runtimes are ignored.
        let _ = self.runtimes.found.push(found);
        WAKE_RUNTIMES.signal();
    }

    /// The full path of the module at `base`, if its notification could not hold it.
    fn path_of(&mut self, base: u64) -> Vec<u8> {
        let shown = self.peb.modules(&self.memory).unwrap_or_default();
        self.changes.take(loader::next);
        let still = !self.changes.unload(base) && !loader::has_lost();
        shown.into_iter().find(|seen| still && seen.base == base).map(|seen| seen.path).unwrap_or_default()
    }
}
