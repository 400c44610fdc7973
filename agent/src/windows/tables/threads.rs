//! The threads of the process: finds them, names them, passes them to the sampler, and notes their
//! ends.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::sync::atomic::Ordering;
use stk_schema::Ticks;

use stk_schema::event::{DropReason, EndReason, ThreadFlags, ThreadStart};

use super::{ListedThread, TablesRecorder};
use crate::record::sampler::ThreadCommand;
use crate::record::thread_filter::{Candidate, ThreadTraits};
use crate::record::threads::Thread;
use crate::windows::sampler::process::SampledThread;
use crate::windows::shared::state::{LAST_EXIT_CODE, MAIN_THREAD, SIGNALS};
use crate::windows::system::api::{ticks, utc};
use crate::windows::system::thread;

/// Milliseconds between enumerations of the threads.
const ENUMERATE_MS: u64 = 50;
/// Milliseconds between readings of all threads' names, which may change at any time ...
const NAMES_MS: u64 = 500;
/// ... and the age up to which a thread's name is read at every enumeration, since most threads are
/// named soon after they start.
const YOUNG_MS: u64 = 300;
/// Enumerations without a thread of the target after which the recording ends.
const ALONE_ROUNDS: u32 = 2;

impl TablesRecorder {
    /// Compares with the system's list of threads. New threads get `flags`.
    pub(super) fn enumerate(&mut self, flags: ThreadFlags) {
        let now = ticks();
        self.enumerate_due = now + Ticks(ENUMERATE_MS * self.settings.ticks_per_ms);
        let own = (self.own_threads)();
        self.remove_ended(now);
        let (api, memory) = (self.api, self.memory);
        let all = self.settings.options.threads.takes_all();
        let (threads, journal) = (&mut self.threads, &mut self.journal);
        let (mut own_seen, mut unidentified) = (0, 0usize);
        let complete = thread::enumerate(api, |found| {
            let (tid, teb) = match found.identity(api) {
                Ok(identity) => identity,
                Err(status) => {
                    unidentified += usize::from(status < 0 && !found.ended());
                    return;
                }
            };
            let is_own = own.contains(&tid);
            own_seen += usize::from(is_own);
            if threads.knows(tid) || found.ended() {
                return;
            }
            let Some(handle) = found.duplicate().map(Arc::new) else { return };
            // The thread may end meanwhile, and the system then unmaps its block.
            let base = teb.stack_base(memory).unwrap_or(0);
            let mut flags = flags;
            flags.set(ThreadFlags::RECORDER, is_own);
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
            let unsent = (!is_own).then(|| SampledThread::new(handle.clone(), tid, teb, all));
            threads.started(start, ListedThread { handle, teb, unsent, wanted: all, own: is_own }, journal);
        });
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

    /// Ends the recording when two successive enumerations show no threads but the recorder's. A
    /// process ends with its last thread, and the recorder's threads must not keep it alive.
    fn look_for_own_threads(&mut self) {
        let alone = self.threads.live().iter().all(|thread| thread.handle.own);
        self.alone = if alone { self.alone + 1 } else { 0 };
        if self.alone >= ALONE_ROUNDS {
            SIGNALS.request_stop(EndReason::ProcessExit);
        }
    }

    /// Wants the threads that fit the user's choice now; one that is wanted stays so.
    fn select(&mut self) {
        let filter = &self.settings.options.threads;
        if filter.takes_all() {
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
                listed.unsent = Some(SampledThread::new(listed.handle.clone(), tid, listed.teb, true));
            }
        }
    }

    /// Sends new and removed threads to the sampler, as long as its queue has room.
    fn send(&mut self) {
        while let Some(&instance) = self.removals.front() {
            if self.commands.push(ThreadCommand::Remove { instance }).is_err() {
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
            }
        }
    }

    fn remove_ended(&mut self, now: Ticks) {
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
        // A thread that ended before its name was read still has its name now, but under Wine.
        let last_name = |thread: &Thread<ListedThread>| {
            if ended.contains(&thread.instance) { thread.handle.handle.name(api) } else { None }
        };
        self.threads.rename(now, last_name, |_| true, &mut self.journal);
        let (utc_now, per_ms) = (utc(api), self.settings.ticks_per_ms);
        self.threads.remove_ended(
            |thread| {
                if !ended.contains(&thread.instance) {
                    return None;
                }
                let exited = thread.handle.handle.times().map_or(utc_now, |times| times.exited);
                let ago = u128::from(utc_now.saturating_sub(exited)) * u128::from(per_ms) / 1_000_000;
                Some(now.saturating_sub(Ticks(ago as u64)))
            },
            |thread| {
                if !thread.handle.own {
                    removals.push_back(thread.instance);
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
    }

    /// Reads new threads' names at every call, since most threads are named soon after they start;
    /// all names every NAMES_MS.
    pub(super) fn names(&mut self) {
        let now = ticks();
        let all = now >= self.names_due;
        if all {
            self.names_due = now + Ticks(NAMES_MS * self.settings.ticks_per_ms);
        }
        let (api, young) = (self.api, now.saturating_sub(Ticks(YOUNG_MS * self.settings.ticks_per_ms)));
        let name = |thread: &Thread<ListedThread>| {
            if all || thread.start.time > young { thread.handle.handle.name(api) } else { None }
        };
        let ended = |thread: &Thread<ListedThread>| thread.handle.handle.ended();
        self.threads.rename(now, name, ended, &mut self.journal);
        self.select();
        self.send();
    }
}
