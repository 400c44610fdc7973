//! Passes: which threads are looked at, in which order, and what happens with a thread that cannot
//! be captured.

use super::activity::{Activity, PassAction};
use super::*;

/// Words for which a new thread's image has room. The image grows to twice the stack of the first
/// sample that has no room, and most of thousands of threads wait with small stacks.
const FIRST_IMAGE_WORDS: usize = 256;
impl<T: Target> Sampler<T> {
    /// Looks at every thread once, or at as many as the sampler's share of a processor allows. The
    /// next pass continues after them.
    pub(crate) fn pass(&mut self) {
        let start = self.target.now();
        self.searched = false;
        self.take_commands();
        self.turn();
        if self.links.signals.renew.swap(false, Ordering::AcqRel) {
            self.cut();
            self.encoder.renew_keyframes();
        }
        let threads = self.threads.len().saturating_sub(self.unwanted);
        let looks = self.budget.as_ref().map_or(threads, |budget| budget.pace().threads.min(threads));
        self.look_at(looks);
        self.try_again();
        let end = self.target.now();
        if self.block.as_ref().is_some_and(|block| block.wants_cut(end)) {
            self.cut();
        }
        self.keep_to_share(end, looks, threads);
        let counters = &self.links.counters;
        counters.passes.fetch_add(1, Ordering::Relaxed);
        let nanoseconds = u128::from(end.saturating_sub(start).0) * 1_000_000 / u128::from(self.ticks_per_ms);
        counters.pass_ns.fetch_add(nanoseconds as u64, Ordering::Relaxed);
    }

    /// Looks at the next `looks` threads that are wanted.
    fn look_at(&mut self, looks: usize) {
        self.retry.clear();
        let mut left = looks;
        for _ in 0..self.threads.len() {
            // A pass over thousands of threads can last for minutes where suspensions are slow.
            if left == 0 || self.links.signals.stopping() {
                break;
            }
            if self.next >= self.threads.len() {
                self.next = 0;
            }
            let index = self.next;
            self.next += 1;
            if !self.is_wanted(index) {
                continue;
            }
            left -= 1;
            if self.sample(index).is_err() {
                self.retry.push(index);
            }
        }
    }

    fn is_wanted(&self, index: usize) -> bool {
        self.threads.get(index).is_some_and(|entry| entry.wanted)
    }

    /// Hands over what was sampled, before a pause: no block, SAME or IDLE reaches into it.
    pub(crate) fn pause(&mut self) {
        self.state_cpu();
        self.cut();
        self.links.signals.sampler_is_whole();
    }

    /// Notes threads that came and went during a pause, and cuts a block with samples that threads
    /// took of themselves.
    pub(crate) fn rest(&mut self) {
        self.take_commands();
        self.turn();
        let now = self.target.now();
        if self.block.as_ref().is_some_and(|block| block.wants_cut(now)) {
            self.cut();
        }
        self.links.signals.sampler_is_whole();
    }

    /// Continues after a pause. What the threads did and used meanwhile belongs to no sample.
    pub(crate) fn resume(&mut self) {
        self.take_commands();
        self.cut();
        for entry in &mut self.threads {
            entry.activity.forget();
            if let Some(cpu) = read(&mut self.target, entry) {
                entry.image.skip_cpu(cpu);
            }
            entry.coarse = CoarseClock::default();
        }
        self.links.signals.sampler_is_whole();
    }

    /// Samples the threads that have no stored sample yet. Returns how many still have none.
    pub(crate) fn pass_missing(&mut self) -> usize {
        self.take_commands();
        for index in 0..self.threads.len() {
            if self.links.signals.stopping() {
                break;
            }
            if self.threads.get(index).is_some_and(|entry| entry.wanted && !entry.image.has_sample())
                && let Err(reason) = self.sample(index)
            {
                self.links.counters.lose(reason, 1);
            }
        }
        self.threads.iter().filter(|entry| entry.wanted && !entry.image.has_sample()).count()
    }

    /// Forgets all threads: nothing is sampled any more.
    pub(crate) fn release(&mut self) {
        self.links.signals.sampler_changes();
        self.threads.clear();
        self.places.clear();
        self.unwanted = 0;
        self.next = 0;
    }

    pub(super) fn take_commands(&mut self) {
        self.links.signals.sampler_changes();
        while let Some(command) = self.links.commands.pop() {
            match command {
                ThreadCommand::Add { instance, tid, thread, wanted } => {
                    self.add(instance, tid, thread, wanted);
                }
                ThreadCommand::Remove { instance, tid } => self.remove(instance, tid),
            }
        }
    }

    /// Tries the failed captures again at the end of the pass, as their cause may have gone. Counts
    /// those that fail again.
    fn try_again(&mut self) {
        for at in 0..self.retry.len() {
            if let Some(&index) = self.retry.get(at)
                && let Err(reason) = self.sample(index)
            {
                self.links.counters.lose(reason, 1);
            }
        }
    }

    /// Counts the passes that were left out, and adapts the pace to what the sampler used.
    fn keep_to_share(&mut self, now: Ticks, looks: usize, threads: usize) {
        let Some(budget) = &mut self.budget else { return };
        let left_out = budget.passed(looks, threads);
        let counters = &self.links.counters;
        if left_out != 0 {
            counters.lose(DropReason::DutyLimit, left_out);
        }
        let mut rate = budget.foresee(threads);
        if budget.is_due(now) {
            let mut cpu = self.target.own_cpu();
            if budget.has_budget() {
                cpu += Ticks(counters.writer_cpu.load(Ordering::Relaxed));
            }
            rate = budget.measured(now, cpu, threads).or(rate);
        }
        if let Some(rate) = rate {
            counters.rate_since.store(now.0, Ordering::Relaxed);
            counters.rate.store(rate, Ordering::Release);
        }
    }

    /// Looks at a thread. Captures and stores it unless it is known not to have run. The error is
    /// the reason why it could not be captured; the caller may try again, and counts the loss.
    fn sample(&mut self, index: usize) -> Result<(), DropReason> {
        self.links.signals.sampler_is_whole();
        let Some(entry) = self.threads.get_mut(index) else { return Ok(()) };
        let cycles = self.target.cycles(&entry.thread);
        if let Some(now) = cycles
            && entry.image.has_sample()
            && let PassAction::Same(state) = entry.activity.look(now, self.cost)
        {
            self.store_same(index, state, now);
            self.links.signals.sampler_is_whole();
            self.search_unchanged(index);
            return Ok(());
        }
        match self.target.capture(&entry.thread, &mut self.capture) {
            CaptureOutcome::Captured => {}
            // Its THREAD_EXIT follows, so nothing is missing.
            CaptureOutcome::Ended => return Ok(()),
            CaptureOutcome::NotSuspended => return Err(DropReason::NoThread),
            CaptureOutcome::NoContext => return Err(DropReason::NoContext),
            CaptureOutcome::OwnsExitLocks => return Err(DropReason::OwnsExitLocks),
            // A second wait would cost all other threads as much again.
            CaptureOutcome::NotStopped => {
                self.links.counters.lose(DropReason::NotStopped, 1);
                return Ok(());
            }
        }
        let moved = entry.sampled && entry.registers != self.capture.registers;
        let (state, cpu) = match cycles {
            Some(now) => (entry.activity.captured(now, moved, self.cost), cycles),
            None => self.coarse_state(index, moved),
        };
        self.registers = self.capture.registers;
        self.filter(index, None);
        let stored = self.store(index, None, state, cpu);
        if let Some(entry) = self.threads.get_mut(index) {
            entry.registers = self.capture.registers;
            entry.sampled = true;
            if !stored {
                entry.activity.forget();
            }
        }
        Ok(())
    }

    /// State and CPU time of the captured thread on systems without cycle counts: judged by whether
    /// its registers or its coarse clock changed.
    fn coarse_state(&mut self, index: usize, moved: bool) -> (RunState, Option<u64>) {
        let Some(entry) = self.threads.get_mut(index) else { return (RunState::Unknown, None) };
        let (clock, now) = (&mut entry.coarse, self.capture.time);
        let cpu = if clock.is_due(moved, now, self.ticks_per_ms) {
            clock.read(self.target.cpu_time(&entry.thread), now, self.ticks_per_ms)
        } else {
            None
        };
        (clock.state(moved), cpu)
    }

    fn add(&mut self, instance: u64, tid: u32, thread: T::Thread, wanted: bool) {
        if let Some(&index) = self.places.get(&tid)
            && let Some(entry) = self.threads.get_mut(index).filter(|entry| entry.instance == instance)
        {
            self.unwanted -= usize::from(!entry.wanted);
            self.unwanted += usize::from(!wanted);
            (entry.thread, entry.wanted) = (thread, wanted);
            return;
        }
        let image = match self.spare.pop() {
            Some(image) => image,
            None => match ThreadImage::new(FIRST_IMAGE_WORDS, self.word) {
                Ok(image) => image,
                Err(_) => return self.links.counters.lose(DropReason::TableFull, 1),
            },
        };
        self.unwanted += usize::from(!wanted);
        self.places.insert(tid, self.threads.len());
        self.threads.push(ThreadEntry {
            instance,
            tid,
            thread,
            wanted,
            image,
            activity: Activity::default(),
            coarse: CoarseClock::default(),
            registers: [0; MAX_REGISTERS],
            sampled: false,
            search_due: Ticks::ZERO,
        });
    }

    fn remove(&mut self, instance: u64, tid: u32) {
        let Some(&index) = self.places.get(&tid) else { return };
        if self.threads.get(index).is_none_or(|entry| entry.instance != instance) {
            return;
        }
        self.state_cpu_of(index);
        let mut entry = self.take_entry(index);
        self.unwanted -= usize::from(!entry.wanted);
        if let Some(block) = &mut self.block {
            let _ = self.encoder.flush_idle(block, &mut entry.image);
        }
        entry.image.reset();
        // Images of exceptionally deep stacks are not kept.
        if self.spare.len() < 64 && entry.image.memory() <= 1 << 20 {
            self.spare.push(entry.image);
        }
    }

    /// Takes an entry out so that the entries before `next` stay before it and those after it stay
    /// after it: every thread keeps its turn.
    fn take_entry(&mut self, index: usize) -> ThreadEntry<T::Thread> {
        let mut hole = index;
        if index < self.next && self.next <= self.threads.len() {
            self.next -= 1;
            self.threads.swap(index, self.next);
            self.note_place(index);
            hole = self.next;
        }
        let entry = self.threads.swap_remove(hole);
        self.places.remove(&entry.tid);
        self.note_place(hole);
        entry
    }

    /// Notes the index of the thread there, if there is one.
    fn note_place(&mut self, index: usize) {
        if let Some(entry) = self.threads.get(index) {
            self.places.insert(entry.tid, index);
        }
    }
}
