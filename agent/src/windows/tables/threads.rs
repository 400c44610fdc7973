//! The threads of the process: finds them, names them, passes them to the sampler, and notes their
//! ends.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::ptr::null_mut;
use core::sync::atomic::Ordering;
use stk_schema::Ticks;

use stk_schema::event::{DropReason, EndReason, ThreadFlags, ThreadStart};

use super::{ListedThread, TablesRecorder, hints};
use crate::record::period::AdaptivePeriod;
use crate::record::sampler::ThreadCommand;
use crate::record::thread_filter::{Candidate, ThreadTraits};
use crate::record::threads::Thread;
use crate::windows::sampler::process::SampledThread;
use crate::windows::shared::state::{LAST_EXIT_CODE, MAIN_THREAD, SIGNALS};
use crate::windows::system::api::{Status, ticks, utc};
use crate::windows::system::thread::{self, ThreadHandle};

/// Milliseconds between two listings of the threads, at least and at most. DllMain reports most
/// threads that start meanwhile.
const LIST_MS: (u64, u64) = (50, 30_000);
/// The same for looks for threads that have ended; the system says when they did ...
const ENDS_MS: (u64, u64) = (50, 2_000);
/// ... and for readings of all threads' names, which may change at any time.
const NAMES_MS: (u64, u64) = (500, 30_000);
/// Milliseconds between readings of the names of threads that started in the last YOUNG_MS: most
/// threads are named soon after they start.
const YOUNG_NAMES_MS: u64 = 50;
const YOUNG_MS: u64 = 300;
/// Listings without a thread of the target after which the recording ends.
const ALONE_ROUNDS: u32 = 2;

/// When the tables thread looks at the threads again.
pub(super) struct ThreadRounds {
    listing: AdaptivePeriod,
    ends: AdaptivePeriod,
    all_names: AdaptivePeriod,
    young_names_due: Ticks,
}

impl ThreadRounds {
    /// All is due at once.
    pub(super) fn new(ticks_per_ms: u64) -> ThreadRounds {
        let period =
            |(least, most)| AdaptivePeriod::new(Ticks(least * ticks_per_ms), Ticks(most * ticks_per_ms));
        ThreadRounds {
            listing: period(LIST_MS),
            ends: period(ENDS_MS),
            all_names: period(NAMES_MS),
            young_names_due: Ticks::ZERO,
        }
    }
}

impl TablesRecorder {
    /// Notes what happened to the threads, as far as it is due to look.
    pub(super) fn look_at_threads(&mut self) {
        self.follow_hints();
        let now = ticks();
        if self.rounds.ends.is_due(now) {
            self.remove_ended(now);
        }
        if self.rounds.listing.is_due(now) {
            self.list_threads(ThreadFlags::empty());
        }
        if now >= self.rounds.young_names_due {
            self.names(self.rounds.all_names.is_due(now));
        }
        self.send();
    }

    /// Opens the threads that DllMain reported, which costs the same however many threads there
    /// are.
    fn follow_hints(&mut self) {
        let now = ticks();
        let own = (self.settings.own_threads)();
        for _ in 0..hints::RING {
            let Some(tid) = hints::next() else { break };
            if !self.threads.knows(tid)
                && let Some(found) = thread::open_own(self.api, tid)
            {
                let _ = self.meet(&found, &own, now, ThreadFlags::empty());
            }
        }
        if hints::lost() {
            self.rounds.listing.hurry(now);
        }
        self.select();
    }

    /// The instance of the thread with this id, which is looked for if it is not known; 0 if there
    /// is none.
    pub(super) fn instance_of(&mut self, tid: u32) -> u64 {
        if !self.threads.knows(tid)
            && let Some(found) = thread::open_own(self.api, tid)
        {
            let own = (self.settings.own_threads)();
            let _ = self.meet(&found, &own, ticks(), ThreadFlags::empty());
        }
        self.threads.instance_of(tid).unwrap_or(0)
    }

    /// Compares with the system's list of threads. New threads get `flags`.
    pub(super) fn list_threads(&mut self, flags: ThreadFlags) {
        let now = ticks();
        let own = (self.settings.own_threads)();
        let (mut own_seen, mut unidentified) = (0, 0usize);
        let complete = thread::enumerate(self.api, |found| match self.meet(found, &own, now, flags) {
            Ok(is_own) => own_seen += usize::from(is_own),
            Err(status) => unidentified += usize::from(status < 0 && !found.ended()),
        });
        self.rounds.listing.ran(now, ticks());
        self.select();
        self.send();
        // The recorder's own threads may be among those that the system does not identify.
        let hidden = unidentified.saturating_sub(own.len().saturating_sub(own_seen));
        if hidden > 0 {
            self.counters.lose(DropReason::NoThread, hidden as u64);
        } else if complete {
            self.look_for_own_threads();
        }
    }

    /// Adds a thread to the list unless it is known or has ended. Returns whether it is one of the
    /// recorder's, whose ids are `own`; or else why the system does not identify it.
    fn meet(
        &mut self,
        found: &ThreadHandle,
        own: &[u32],
        now: Ticks,
        flags: ThreadFlags,
    ) -> Result<bool, Status> {
        let (tid, teb) = found.identity(self.api)?;
        let is_own = own.contains(&tid);
        if self.threads.knows(tid) || found.ended() {
            return Ok(is_own);
        }
        let Some(handle) = found.duplicate().map(Arc::new) else { return Ok(is_own) };
        // The thread may end meanwhile, and the system then unmaps its block.
        let base = teb.stack_base(self.memory).unwrap_or(0);
        let mut flags = flags;
        flags.set(ThreadFlags::RECORDER, is_own);
        flags.set(ThreadFlags::NO_STACK_BOUNDS, base == 0);
        let start = ThreadStart {
            instance: 0,
            time: now,
            tid,
            flags,
            start_address: handle.start_address(self.api),
            stack_base: base,
            created: handle.times().map_or(0, |times| times.created),
        };
        let all = self.settings.options.threads.takes_all();
        let unsent = (!is_own).then(|| SampledThread::new(handle.clone(), tid, teb));
        let listed = ListedThread { handle, teb, unsent, wanted: all, own: is_own };
        self.threads.started(start, listed, &mut self.journal);
        self.threads_met += u32::from(!is_own);
        (self.to_select, self.to_send) = (true, true);
        Ok(is_own)
    }

    /// Ends the recording when two successive listings show no threads but the recorder's. A
    /// process ends with its last thread, and the recorder's threads must not keep it alive.
    fn look_for_own_threads(&mut self) {
        let alone = self.threads.live().iter().all(|thread| thread.handle.own);
        self.alone = if alone { self.alone + 1 } else { 0 };
        if alone {
            self.rounds.listing.hurry(ticks() + Ticks(LIST_MS.0 * self.settings.ticks_per_ms));
        }
        if self.alone >= ALONE_ROUNDS {
            SIGNALS.request_stop(EndReason::ProcessExit);
        }
    }

    /// Wants the threads that fit the user's choice now, if threads or names are new; one that is
    /// wanted stays so.
    fn select(&mut self) {
        let filter = &self.settings.options.threads;
        if !core::mem::take(&mut self.to_select) || filter.takes_all() {
            return;
        }
        if self.main == 0 {
            let others = self.threads.live().iter().filter(|thread| !thread.handle.own);
            let others = others.map(|Thread { instance, start, .. }| Candidate {
                instance: *instance,
                tid: start.tid,
                created: start.created,
            });
            self.main = MAIN_THREAD.among(others).unwrap_or(0);
        }
        for thread in self.threads.live_mut().filter(|thread| !thread.handle.own && !thread.handle.wanted) {
            let (tid, is_main) = (thread.start.tid, thread.instance == self.main);
            if filter.takes(&ThreadTraits { tid, is_main, name: &thread.name }) {
                let listed = &mut thread.handle;
                listed.wanted = true;
                listed.unsent = Some(SampledThread::new(listed.handle.clone(), tid, listed.teb));
                self.to_send = true;
            }
        }
    }

    /// Sends new and removed threads to the sampler, as long as its queue has room.
    fn send(&mut self) {
        if !self.to_send {
            return;
        }
        while let Some(&(instance, tid)) = self.removals.front() {
            if self.commands.push(ThreadCommand::Remove { instance, tid }).is_err() {
                return;
            }
            self.removals.pop_front();
        }
        let commands = &self.commands;
        for known in self.threads.live_mut() {
            let (instance, wanted) = (known.instance, known.handle.wanted);
            let Some(thread) = known.handle.unsent.take() else { continue };
            let add = ThreadCommand::Add { instance, tid: thread.tid, thread, wanted };
            if let Err(ThreadCommand::Add { thread, .. }) = commands.push(add) {
                known.handle.unsent = Some(thread);
                return;
            }
        }
        self.to_send = false;
    }

    /// Instances of threads that have ended, in ascending order. Asks the system about many threads
    /// at once.
    fn ended(&self) -> Vec<u64> {
        let mut ended = Vec::new();
        let mut handles = [null_mut(); thread::AT_ONCE];
        for threads in self.threads.live().chunks(thread::AT_ONCE) {
            for (handle, thread) in handles.iter_mut().zip(threads) {
                *handle = thread.handle.handle.raw();
            }
            if thread::any_ended(self.api, handles.get(..threads.len()).unwrap_or(&[])) {
                let gone = threads.iter().filter(|thread| thread.handle.handle.ended());
                ended.extend(gone.map(|thread| thread.instance));
            }
        }
        ended
    }

    /// Removes threads that have ended.
    fn remove_ended(&mut self, now: Ticks) {
        let ended = self.ended();
        self.rounds.ends.ran(now, ticks());
        if ended.is_empty() {
            return;
        }
        self.to_send = true;
        let (api, removals, last_exit) = (self.api, &mut self.removals, &mut self.last_exit);
        let has_ended = |thread: &Thread<ListedThread>| ended.binary_search(&thread.instance).is_ok();
        // A thread that ended before its name was read still has its name now, but under Wine.
        let last_name = |thread: &Thread<ListedThread>| {
            if has_ended(thread) { thread.handle.handle.name(api) } else { None }
        };
        self.threads.rename(now, last_name, |_| true, &mut self.journal);
        let (utc_now, per_ms) = (utc(api), self.settings.ticks_per_ms);
        self.threads.remove_ended(
            |thread| {
                if !has_ended(thread) {
                    return None;
                }
                let exited = thread.handle.handle.times().map_or(utc_now, |times| times.exited);
                let ago = u128::from(utc_now.saturating_sub(exited)) * u128::from(per_ms) / 1_000_000;
                Some(now.saturating_sub(Ticks(ago as u64)))
            },
            |thread| {
                if !thread.handle.own {
                    removals.push_back((thread.instance, thread.start.tid));
                    // A thread that is just ending may have no end time yet.
                    let exited = thread.handle.handle.times().map_or(0, |times| times.exited);
                    let exited = if exited == 0 { utc_now } else { exited };
                    // Two threads may end at the same time by this coarse clock. Then the one known
                    // for longer counts as the last, because the first thread usually waits for the
                    // others.
                    let end = (exited, Reverse(thread.instance));
                    if end >= *last_exit {
                        *last_exit = end;
                        LAST_EXIT_CODE.store(thread.handle.handle.exit_code(), Ordering::Relaxed);
                    }
                }
            },
            &mut self.journal,
        );
        if self.threads.live().iter().all(|thread| thread.handle.own) {
            self.rounds.listing.hurry(now);
        }
    }

    /// Reads the names of threads that started a short time ago, or of all.
    fn names(&mut self, all: bool) {
        let now = ticks();
        let per_ms = self.settings.ticks_per_ms;
        self.rounds.young_names_due = now + Ticks(YOUNG_NAMES_MS * per_ms);
        let (api, young) = (self.api, now.saturating_sub(Ticks(YOUNG_MS * per_ms)));
        let name = |thread: &Thread<ListedThread>| {
            if all || thread.start.time > young { thread.handle.handle.name(api) } else { None }
        };
        let ended = |thread: &Thread<ListedThread>| thread.handle.handle.ended();
        if self.threads.rename(now, name, ended, &mut self.journal) != 0 {
            self.to_select = true;
        }
        if all {
            self.rounds.all_names.ran(now, ticks());
        }
        self.select();
    }

    /// Looks at all threads and all names, due or not. New threads get `flags`.
    pub(super) fn list_all(&mut self, flags: ThreadFlags) {
        self.remove_ended(ticks());
        self.list_threads(flags);
        self.names(true);
        self.send();
    }
}
