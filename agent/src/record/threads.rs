//! Keeps the list of live threads: compares successive enumerations and turns them into instances.
//!
//! The system reuses thread ids, but not while a handle to the thread is open. The recorder holds
//! one for every thread that it knows, so within an enumeration the id identifies the thread.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cell::Cell;
use stk_schema::Ticks;
use stk_schema::event::{Event, ThreadFlags, ThreadStart};

use super::modules::Events;

/// A live thread as the recorder knows it.
#[derive(Debug)]
pub(crate) struct Thread<H> {
    pub instance: u64,
    /// The THREAD_START that was written.
    pub start: ThreadStart,
    /// Its description, WTF-8.
    pub name: Vec<u8>,
    /// When its name was set or last changed.
    pub named: Ticks,
    /// The handle that keeps its id from being reused.
    pub handle: H,
}

/// The live threads of the process.
#[derive(Debug)]
pub(crate) struct Threads<H> {
    live: Vec<Thread<H>>,
    /// The instances of `live` by their ids.
    instances: BTreeMap<u32, u64>,
    next: u64,
}

impl<H> Default for Threads<H> {
    fn default() -> Threads<H> {
        Threads { live: Vec::new(), instances: BTreeMap::new(), next: 1 }
    }
}

impl<H> Threads<H> {
    /// The live threads, in the order in which they became known.
    pub(crate) fn live(&self) -> &[Thread<H>] {
        &self.live
    }

    /// The same, to change what their handles hold.
    pub(crate) fn live_mut(&mut self) -> impl Iterator<Item = &mut Thread<H>> {
        self.live.iter_mut()
    }

    /// Whether a live thread has this id.
    pub(crate) fn knows(&self, tid: u32) -> bool {
        self.instances.contains_key(&tid)
    }

    /// The instance of the live thread with this id.
    pub(crate) fn instance_of(&self, tid: u32) -> Option<u64> {
        self.instances.get(&tid).copied()
    }

    /// Adds a thread and writes THREAD_START. Assigns `start.instance` and returns it.
    pub(crate) fn started(&mut self, mut start: ThreadStart, handle: H, out: &mut impl Events) -> u64 {
        start.instance = self.next;
        self.next += 1;
        out.event(&Event::ThreadStart(start));
        self.instances.insert(start.tid, start.instance);
        self.live.push(Thread {
            instance: start.instance,
            start,
            name: Vec::new(),
            named: Ticks::ZERO,
            handle,
        });
        start.instance
    }

    /// Removes the threads that have ended, writes THREAD_EXIT for each and hands it to `gone`.
    /// `ended` is when a thread ended.
    pub(crate) fn remove_ended(
        &mut self,
        mut ended: impl FnMut(&Thread<H>) -> Option<Ticks>,
        mut gone: impl FnMut(Thread<H>),
        out: &mut impl Events,
    ) {
        let time = Cell::new(Ticks::ZERO);
        let has_ended = |thread: &mut Thread<H>| {
            let end = ended(thread);
            // Clocks differ in resolution: never report an end before the start.
            time.set(end.unwrap_or(Ticks::ZERO).max(thread.start.time));
            end.is_some()
        };
        for thread in self.live.extract_if(.., has_ended) {
            self.instances.remove(&thread.start.tid);
            out.event(&Event::ThreadExit { instance: thread.instance, time: time.get() });
            gone(thread);
        }
    }

    /// Compares names with the known ones and writes THREAD_NAME for each that changed; returns how
    /// many did. `name_of` returns `None` for a thread that is not to be looked at. Under Wine a
    /// thread loses its name as it ends, so an empty name is one only if the thread, by `ended`,
    /// still lives.
    pub(crate) fn rename(
        &mut self,
        time: Ticks,
        mut name_of: impl FnMut(&Thread<H>) -> Option<Vec<u8>>,
        mut ended: impl FnMut(&Thread<H>) -> bool,
        out: &mut impl Events,
    ) -> usize {
        let mut changed = 0;
        for thread in &mut self.live {
            if let Some(name) = name_of(thread)
                && name != thread.name
                && !(name.is_empty() && ended(thread))
            {
                out.event(&Event::ThreadName { instance: thread.instance, time, name: &name });
                thread.name = name;
                thread.named = time;
                changed += 1;
            }
        }
        changed
    }

    /// The next file begins: every live thread was there when it did.
    pub(crate) fn begin_file(&mut self) {
        self.live.iter_mut().for_each(|thread| thread.start.flags |= ThreadFlags::AT_START);
    }

    /// Writes every live thread again, for a STATE block.
    pub(crate) fn restate(&self, out: &mut impl Events) {
        for thread in &self.live {
            let mut start = thread.start;
            start.flags |= ThreadFlags::RESTATED;
            out.event(&Event::ThreadStart(start));
            if !thread.name.is_empty() {
                out.event(&Event::ThreadName {
                    instance: thread.instance,
                    time: thread.named,
                    name: &thread.name,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;

    #[derive(Default)]
    struct ThreadLog(Vec<String>);

    impl Events for ThreadLog {
        fn event(&mut self, event: &Event<'_>) {
            self.0.push(match event {
                Event::ThreadStart(start) => {
                    format!("start {} tid {} {:?}", start.instance, start.tid, start.flags.bits())
                }
                Event::ThreadExit { instance, time } => format!("exit {instance} at {}", time.0),
                Event::ThreadName { instance, name, .. } => {
                    format!("name {instance} {}", String::from_utf8_lossy(name))
                }
                other => format!("{other:?}"),
            });
        }
    }

    fn start(tid: u32) -> ThreadStart {
        ThreadStart {
            instance: 0,
            time: Ticks(1),
            tid,
            flags: ThreadFlags::empty(),
            start_address: 0,
            stack_base: 0,
            created: 0,
        }
    }

    #[test]
    fn a_reused_thread_id_is_a_new_instance() {
        let (mut threads, mut log) = (Threads::<u8>::default(), ThreadLog::default());
        threads.started(start(40), 0, &mut log);
        threads.started(start(44), 1, &mut log);
        let mut gone = Vec::new();
        threads.remove_ended(
            |thread| (thread.handle == 0).then_some(Ticks(9)),
            |thread| gone.push(thread.handle),
            &mut log,
        );
        threads.started(start(40), 2, &mut log);
        assert_eq!(gone, [0]);
        assert_eq!(
            log.0.iter().map(|line| &line[..7]).collect::<Vec<_>>(),
            ["start 1", "start 2", "exit 1 ", "start 3"]
        );
    }

    #[test]
    fn a_name_is_written_when_it_changes_and_restated_with_its_thread() {
        let (mut threads, mut log) = (Threads::<u8>::default(), ThreadLog::default());
        threads.started(start(40), 0, &mut log);
        log.0.clear();
        let lives = |_: &Thread<u8>| false;
        assert_eq!(threads.rename(Ticks(5), |_| Some(Vec::new()), lives, &mut log), 0);
        assert_eq!(threads.rename(Ticks(6), |_| Some("Zähler".into()), lives, &mut log), 1);
        assert_eq!(threads.rename(Ticks(7), |_| Some("Zähler".into()), lives, &mut log), 0);
        assert_eq!(threads.rename(Ticks(8), |_| None, lives, &mut log), 0);
        assert_eq!(log.0, ["name 1 Zähler"]);
        threads.restate(&mut log);
        assert_eq!(log.0.len(), 3);
        assert_eq!(log.0[2], "name 1 Zähler");
    }
    #[test]
    fn a_thread_that_loses_its_name_as_it_ends_keeps_it() {
        let (mut threads, mut log) = (Threads::<u8>::default(), ThreadLog::default());
        for tid in [40, 44] {
            threads.started(start(tid), tid as u8, &mut log);
        }
        threads.rename(Ticks(5), |_| Some("waiter".into()), |_| false, &mut log);
        log.0.clear();
        // The second still lives: its program took the name away.
        threads.rename(Ticks(6), |_| Some(Vec::new()), |thread| thread.handle == 40, &mut log);
        assert_eq!(log.0, ["name 2 "]);
        assert_eq!(threads.live()[0].name, b"waiter");
    }
}
