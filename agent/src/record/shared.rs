//! State that the recorder's threads share: block buffers on their way to the writer, and counters.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use stk_format::BlockBuffer;
use stk_schema::Ticks;
use stk_schema::event::DropReason;

use super::files::Files;
use super::held_times::HeldTimes;
use super::queue::Queue;

/// Number of [`DropReason`]s, 0 included.
pub(crate) const REASONS: usize = 15;

/// Buffers that travel between one thread and the writer.
pub(crate) struct Lane {
    free: Queue<Box<BlockBuffer>>,
    /// With the file that each block belongs to.
    full: Queue<(u32, Box<BlockBuffer>)>,
    files: Arc<Files>,
}

impl Lane {
    /// A lane of `count` buffers for `capacity` event bytes each; `None` without the memory.
    pub(crate) fn new(count: usize, capacity: usize, files: &Arc<Files>) -> Option<Lane> {
        let lane = Lane { free: Queue::new(count), full: Queue::new(count), files: files.clone() };
        let header = files.header(files.last())?;
        for _ in 0..count {
            let buffer = Box::new(BlockBuffer::new(capacity, &header).ok()?);
            lane.free.push(buffer).ok()?;
        }
        Some(lane)
    }

    /// Takes an empty buffer for a block of this file; `None` while all are with the writer.
    pub(crate) fn take_free(&self, file: u32) -> Option<Box<BlockBuffer>> {
        let mut buffer = self.free.pop()?;
        if let Some(header) = self.files.header(file) {
            buffer.set_header(&header);
        }
        Some(buffer)
    }

    /// Hands a filled buffer to the writer, with the file that it belongs to and the samples that
    /// were lost so far.
    pub(crate) fn hand_over(&self, file: u32, mut buffer: Box<BlockBuffer>, dropped: u64) {
        buffer.set_dropped(self.files.since(file, 0, dropped).1);
        // The queue has a slot for every buffer.
        let _ = self.full.push((file, buffer));
    }

    /// The oldest filled buffer, and its file.
    pub(crate) fn take_full(&self) -> Option<(u32, Box<BlockBuffer>)> {
        self.full.pop()
    }

    /// The files of the recording.
    pub(crate) fn files(&self) -> &Arc<Files> {
        &self.files
    }

    /// Gives a buffer back.
    pub(crate) fn put_back(&self, buffer: Box<BlockBuffer>) {
        let _ = self.free.push(buffer);
    }
}

/// Counters of a recording, written by its threads and read for the status and the trace.
#[derive(Default)]
pub(crate) struct Counters {
    /// Samples taken, idle ones included.
    pub samples: AtomicU64,
    pub dropped: AtomicU64,
    /// META blocks that were handed to the writer.
    pub meta_blocks: AtomicU64,
    pub passes: AtomicU64,
    /// Nanoseconds from before the call that suspends to after the call that resumes, summed over
    /// all samples. For part of that time the thread still ran, or waited for its turn to stop.
    pub suspended_ns: AtomicU64,
    /// The longest of these.
    pub suspended_max_ns: AtomicU64,
    /// Nanoseconds of `suspended_ns` after the context was obtained, when the thread certainly
    /// stood still.
    pub held_ns: AtomicU64,
    /// These, one by one.
    pub held: HeldTimes,
    pub suspensions: AtomicU64,
    /// Nanoseconds spent in passes, in total.
    pub pass_ns: AtomicU64,
    /// Rate at which each thread is sampled, in millionths of the nominal rate, since the time in
    /// ticks before it; 0 = the nominal rate, since the start. Both are written by the sampler, the
    /// time first.
    pub rate_since: AtomicU64,
    /// See [`Counters::rate_since`].
    pub rate: AtomicU64,
    /// Cycles that a suspension costs the suspended thread, median; 0 = not measured.
    pub suspension_cycles_p50: AtomicU64,
    /// The 95th percentile of the same cost.
    pub suspension_cycles_p95: AtomicU64,
    /// Nanoseconds from before the call that suspends to after the call that resumes a waiting
    /// thread, median; 0 = not measured.
    pub suspension_ns_p50: AtomicU64,
    /// The 95th percentile of the same time.
    pub suspension_ns_p95: AtomicU64,
    /// Cycles a second of a thread that runs; 0 = not measured.
    pub cycles_per_second: AtomicU64,
    /// Whether the five above are measured, as far as they could be.
    pub calibrated: AtomicBool,
    /// CPU time of the writer, in ticks. Kept where `--max-overhead` limits it.
    pub writer_cpu: AtomicU64,
    /// Words and registers that `--stack-words pointers` zeroed.
    pub redacted_words: AtomicU64,
    /// Losses, indexed by [`DropReason`].
    reasons: [AtomicU64; REASONS],
}

impl Counters {
    /// Counts `count` losses. They count as lost samples too, unless the reason is one of
    /// [`DropReason::WITHOUT_SAMPLES`].
    pub(crate) fn lose(&self, reason: DropReason, count: u64) {
        if let Some(counter) = self.reasons.get(reason as usize) {
            counter.fetch_add(count, Ordering::Relaxed);
        }
        if !DropReason::WITHOUT_SAMPLES.contains(&reason) {
            self.dropped.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Counts samples as lost that were taken but are not in the file.
    pub(crate) fn take_back(&self, samples: u64) {
        self.samples.fetch_sub(samples, Ordering::Relaxed);
        self.dropped.fetch_add(samples, Ordering::Relaxed);
    }

    /// Losses so far for the reason with this code.
    pub(crate) fn lost(&self, reason: usize) -> u64 {
        self.reasons.get(reason).map_or(0, |counter| counter.load(Ordering::Relaxed))
    }
}

/// The process whose memory this is. A clone of it (RtlCloneUserProcess) has the same memory.
pub(crate) struct HomeProcess(AtomicU32);

impl HomeProcess {
    /// None yet.
    pub(crate) const fn new() -> HomeProcess {
        HomeProcess(AtomicU32::new(0))
    }

    pub(crate) fn set(&self, pid: u32) {
        self.0.store(pid, Ordering::Release);
    }

    /// Whether the process with this id is another one.
    pub(crate) fn is_not(&self, pid: u32) -> bool {
        self.0.load(Ordering::Acquire) != pid
    }
}

/// Signals between the recorder's threads.
#[derive(Default)]
pub(crate) struct Signals {
    /// Why to stop: an `EndReason` code; 0 = continue.
    pub stop: AtomicU32,
    /// Loader events whose modules' tables are not recorded yet.
    pub tables_pending: AtomicU32,
    /// Grows with every loader event: an address may then hold another module's code.
    pub loader_generation: AtomicU32,
    /// Set when a STATE block was written: every thread needs a keyframe.
    pub renew: AtomicBool,
    /// The first enumeration of threads is complete.
    pub threads_known: AtomicBool,
    /// True while the sampler changes neither its block, its encoder nor its thread list. If it is
    /// terminated then, all three are consistent.
    pub sampler_whole: AtomicBool,
    /// Whether sampling is to rest.
    pub pauses: Pauses,
}

/// Whether a host wants the sampler to rest, and what the sampler did about it.
#[derive(Default)]
pub(crate) struct Pauses {
    wanted: AtomicBool,
    /// How often the sampler began to rest or resumed; odd while it rests.
    changes: AtomicU32,
    /// When it did so last, in ticks.
    changed: AtomicU64,
}

impl Pauses {
    /// The sampler runs and is to run.
    pub(crate) const fn new() -> Pauses {
        Pauses { wanted: AtomicBool::new(false), changes: AtomicU32::new(0), changed: AtomicU64::new(0) }
    }

    /// Begins anew: the sampler runs, and is to rest or not.
    pub(crate) fn reset(&self, wanted: bool) {
        self.changes.store(0, Ordering::Relaxed);
        self.wanted.store(wanted, Ordering::Release);
    }

    /// Wants the sampler to rest, or to run. False if that was wanted already.
    pub(crate) fn want(&self, rest: bool) -> bool {
        self.wanted.swap(rest, Ordering::AcqRel) != rest
    }

    /// Whether the sampler is to rest.
    pub(crate) fn wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// For the sampler: it rests, or runs again, since `time`.
    pub(crate) fn change(&self, time: Ticks) {
        self.changed.store(time.0, Ordering::Relaxed);
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// How often the sampler began to rest or resumed, and when it did so last.
    pub(crate) fn changes(&self) -> (u32, Ticks) {
        let changes = self.changes.load(Ordering::Acquire);
        (changes, Ticks(self.changed.load(Ordering::Relaxed)))
    }

    /// Whether the sampler does what is wanted.
    pub(crate) fn settled(&self) -> bool {
        self.wanted() == (self.changes.load(Ordering::Acquire) % 2 == 1)
    }
}

impl Signals {
    /// Requests the end of the recording. The first reason is kept.
    pub(crate) fn request_stop(&self, reason: stk_schema::event::EndReason) {
        let _ = self.stop.compare_exchange(0, reason as u32, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Marks that the sampler is about to change its state. Called before the change.
    pub(crate) fn sampler_changes(&self) {
        // An exchange, so that no change can be reordered before it.
        self.sampler_whole.swap(false, Ordering::AcqRel);
    }

    /// Marks that the sampler has changed its state and will not change it again for a while.
    pub(crate) fn sampler_is_whole(&self) {
        self.sampler_whole.store(true, Ordering::Release);
    }

    /// Whether the recording is to end.
    pub(crate) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_is_not_the_process_that_is_recorded() {
        let home = HomeProcess::new();
        home.set(1200);
        assert!(!home.is_not(1200));
        assert!(home.is_not(1204), "the clone's own id");
    }
}
