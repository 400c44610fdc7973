//! The sampler's thread: suspends one thread of the target at a time, captures it, and encodes what
//! changed.
//!
//! Two spare samplers run [`SamplerThread::run_spare`] and wait until the sampler is stuck in a
//! call that asks a thread to stop. At most one of the three works on the state.
//!
//! It owns the state in `worker.state`: the portable [`Sampler`] with its view of this process, and
//! the lane of sample blocks. It gets threads from the tables thread (a queue of commands),
//! captures from the target's own threads (`triggers`), and the runtimes' state of managed threads.
//! It gives blocks to the writer and addresses of code to the code thread.
//!
//! **The law** applies here: while a thread is suspended, the sampler runs only `suspend`,
//! `stack_copy` and, with `--check-walks`, `walk` of this folder.
//!
//! ```text
//! process      this process as the portable sampler sees it
//! suspend      suspends threads of the target; nothing else does
//! stack_copy   copies a thread's stack as its bounds allow
//! walk         walks by the system's own unwinder
//! triggers     samples that the target requests; its own threads take them
//! timer        when the next pass is due
//! spares       replaces a stuck sampler; the watchdog runs a part of it
//! calibration  measures on the code thread before the first pass
//! cost         measures the cost of a suspension
//! own_cpu      the sampler's own CPU time
//! rest         pauses that a host asks for
//! ```

mod calibration;
mod cost;
pub(super) mod own_cpu;
pub(super) mod process;
mod rest;
mod spares;
mod stack_copy;
pub(super) mod suspend;
mod timer;
pub(super) mod triggers;
pub(super) mod walk;

pub(super) use calibration::Calibration;

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use stk_schema::Ticks;

use stk_schema::control::{
    STEP_AWAITING_TABLES, STEP_CALIBRATING, STEP_ENDING, STEP_WAITING, STEP_WORKING, THREAD_SAMPLER,
};
use stk_schema::event::{DropReason, EndReason};
use stk_schema::guard::SAMPLERS;
use windows_sys::Win32::System::Threading::{Sleep, THREAD_PRIORITY_TIME_CRITICAL};

use crate::record::pass_times::PassTimes;
use crate::record::patience;
use crate::record::sampler::{Acceptance, Sampler, TriggeredSample};
use crate::record::shared::Counters;
use crate::windows::shared::clock::SessionClock;
use crate::windows::shared::events::{WAKE_CODE, WAKE_SAMPLER};
use crate::windows::shared::next_file::FileOffer;
use crate::windows::shared::priority::{leave_power_throttling, set_priority};
use crate::windows::shared::state::{SIGNALS, STATUS};
use crate::windows::shared::worker::Worker;
use crate::windows::system::api::{SystemApi, ticks};
use crate::windows::system::clock::SystemClock;
use crate::windows::system::heap;
use process::OwnProcess;
use timer::{Timer, WakeReason};
use triggers::Triggers;

/// Milliseconds within which a one-shot recording tries to sample each thread, and between two of
/// its passes.
const ONCE_MS: u64 = 250;
const ONCE_AGAIN_MS: u32 = 5;

/// Captures that wait for the next pass without waking the sampler, if it comes in so many
/// milliseconds.
const MOST_WAITING: usize = 2;
const LATE_MS: u64 = 20;
/// Most milliseconds between two signs of a sampler that waits.
const SIGN_MS: u64 = 1000;
/// Milliseconds after the end of a recording's duration at which its sampler counts as stuck.
const OVERDUE_MS: u64 = 5000;
/// Bytes of the largest stack that is stored when the process ends: storing it may allocate twice
/// as much.
const LAST_CAPTURE_BYTES: usize = 64 << 10;

/// When samples are taken, as configured by the host.
pub(super) struct SamplingPlan {
    /// From pass to pass.
    pub period: Ticks,
    /// Milliseconds from the start of the recording to the first pass.
    pub delay_ms: u32,
    /// Milliseconds from the first pass to the end; 0 = until stopped.
    pub duration_ms: u32,
    /// Takes one sample of each thread, then ends.
    pub once: bool,
    /// Whether the system counts cycles.
    pub has_cycles: bool,
    /// Fault injection: panics after the first second.
    pub test_panic: bool,
}

/// The parts of the sampler and its spares that other threads may use.
pub(super) struct SamplerThread {
    /// Lane, state, done flag and wake event.
    pub worker: Worker<Sampler<OwnProcess>>,
    /// Captures that the target's threads made of themselves.
    pub triggers: Triggers,
    /// State of the measurement before the first pass, shared with the code thread.
    pub calibration: Calibration,
    pub counters: Arc<Counters>,
    offer: Arc<FileOffer>,
    api: &'static SystemApi,
    clock: SessionClock,
    plan: SamplingPlan,
    /// When the next pass is due, in ticks.
    due: AtomicU64,
    /// When sampling ends by itself, in ticks.
    ends: AtomicU64,
    /// Samplers that wait to take over.
    spares: AtomicU32,
    /// Set when the sampler was deposed and a spare is to take over.
    takeover: AtomicBool,
}

impl SamplerThread {
    /// A sampler that has not begun. All but one of the [`SAMPLERS`] are spare.
    pub(super) fn new(
        worker: Worker<Sampler<OwnProcess>>,
        api: &'static SystemApi,
        clock: SessionClock,
        counters: Arc<Counters>,
        offer: Arc<FileOffer>,
        plan: SamplingPlan,
        triggers: Triggers,
    ) -> SamplerThread {
        SamplerThread {
            worker,
            triggers,
            calibration: Calibration::new(plan.has_cycles),
            counters,
            offer,
            api,
            clock,
            plan,
            due: AtomicU64::new(0),
            ends: AtomicU64::new(u64::MAX),
            spares: AtomicU32::new(SAMPLERS as u32 - 1),
            takeover: AtomicBool::new(false),
        }
    }

    /// Samples until the recording is to end.
    pub(super) fn run(&self) {
        set_priority(THREAD_PRIORITY_TIME_CRITICAL);
        leave_power_throttling();
        let timer = Timer::new(self.api);
        if self.plan.delay_ms != 0 {
            self.wait_until(self.clock.after_start(u64::from(self.plan.delay_ms)));
        }
        while !SIGNALS.threads_known.load(Ordering::Acquire) && !SIGNALS.stopping() {
            STATUS.round(THREAD_SAMPLER, STEP_AWAITING_TABLES);
            // SAFETY: no preconditions.
            unsafe { Sleep(1) };
        }
        STATUS.round(THREAD_SAMPLER, STEP_CALIBRATING);
        self.calibrate();
        self.rest();
        let begun = ticks();
        if self.plan.duration_ms != 0 {
            let end = begun + self.clock.span(u64::from(self.plan.duration_ms));
            self.ends.store(end.0, Ordering::Release);
        }
        self.due.store(begun.0, Ordering::Release);
        self.sample(timer);
    }

    /// Samples from the pass that is due until the end, then hands over the last block.
    fn sample(&self, timer: Timer) {
        let mut due = Ticks(self.due.load(Ordering::Acquire));
        let end = Ticks(self.ends.load(Ordering::Acquire));
        let mut times = PassTimes::new(ticks().0);
        while !SIGNALS.stopping() {
            if self.rest() {
                due = ticks();
                continue;
            }
            self.pass();
            if self.plan.once {
                self.complete_once();
                SIGNALS.request_stop(EndReason::Stopped);
                break;
            }
            let now = ticks();
            if now >= end {
                SIGNALS.request_stop(EndReason::Duration);
                break;
            }
            assert!(
                !(self.plan.test_panic && now >= self.clock.after_start(1000)),
                "asked for by the test flag"
            );
            due = self.next_due(&mut times, due, now);
            self.due.store(due.0, Ordering::Release);
            self.await_pass(&timer, due);
        }
        STATUS.step(THREAD_SAMPLER, STEP_ENDING);
        self.worker.state.enter(|sampler| {
            self.take_triggered(sampler);
            sampler.finish();
            sampler.release();
        });
        drop(timer);
        self.worker.finish();
    }

    /// Waits for the pass that is due, and takes the captures that come meanwhile.
    fn await_pass(&self, timer: &Timer, due: Ticks) {
        STATUS.step(THREAD_SAMPLER, STEP_WAITING);
        while !SIGNALS.stopping() {
            let now = ticks();
            if now >= due {
                break;
            }
            // At the lowest rates a pass comes every few minutes.
            let until = due.min(now + self.clock.span(SIGN_MS));
            if timer.wait_until(until, self.api) == WakeReason::Early {
                self.worker.state.enter(|sampler| self.take_triggered(sampler));
            } else if until < due {
                STATUS.round(THREAD_SAMPLER, STEP_WAITING);
                self.publish();
            }
        }
    }

    /// One pass over the threads.
    fn pass(&self) {
        STATUS.round(THREAD_SAMPLER, STEP_WORKING);
        self.worker.state.enter(|sampler| {
            self.take_triggered(sampler);
            sampler.pass();
            if sampler.take_code_found() {
                WAKE_CODE.signal();
            }
        });
        self.publish();
    }

    /// When the pass after the one that was due at `due` is to be; counts those that it is too late
    /// for at `now`.
    fn next_due(&self, times: &mut PassTimes, due: Ticks, now: Ticks) -> Ticks {
        let step = self.plan.period;
        let stride = self.worker.state.enter(|sampler| sampler.stride()).unwrap_or(1);
        let (due, late) = times.next(due, now, Ticks(step.0 * stride), step);
        if late > 0 {
            self.counters.lose(DropReason::Late, late);
        }
        due
    }

    /// Takes one sample of every thread. Tries threads again that could not be sampled, for
    /// instance on a loaded machine.
    fn complete_once(&self) {
        patience::wait_until(&mut SystemClock, self.clock.span(ONCE_MS), ONCE_AGAIN_MS, || {
            SIGNALS.stopping() || self.worker.state.enter(Sampler::pass_missing) == Some(0)
        });
    }

    /// For the watchdog: whether the recording should have ended by its duration some time ago. The
    /// sampler, which ends it, may be stuck or dead.
    pub(crate) fn is_overdue(&self) -> bool {
        let ends = Ticks(self.ends.load(Ordering::Acquire));
        ticks().saturating_sub(ends) > self.clock.span(OVERDUE_MS)
    }

    /// Waits for the first sample's time, in steps, so that a stop is noticed.
    fn wait_until(&self, due: Ticks) {
        while ticks() < due && !SIGNALS.stopping() {
            STATUS.round(THREAD_SAMPLER, STEP_WAITING);
            WAKE_SAMPLER.wait(10);
            self.worker.state.enter(|sampler| self.take_triggered(sampler));
            self.publish();
        }
    }

    /// Wakes the sampler for the capture that a thread has made of itself at `time`, if its next
    /// pass would take it late or others wait already. The call that wakes costs several times as
    /// much as the capture.
    pub(super) fn report_capture(&self, waiting: usize, time: Ticks) {
        let next = Ticks(self.due.load(Ordering::Relaxed));
        if waiting >= MOST_WAITING || next.saturating_sub(time) > self.clock.span(LATE_MS) {
            WAKE_SAMPLER.signal();
        }
    }

    /// Takes the captures that wait when the process ends, and hands over the last block.
    pub(super) fn finish_in_place(&self, sampler: &mut Sampler<OwnProcess>) {
        self.triggers.offer(|content| {
            let (tid, tag) = (content.tid, content.tag);
            let mut triggered = TriggeredSample { tid, tag, capture: &mut content.capture };
            if triggered.capture.len > LAST_CAPTURE_BYTES || !heap::has_exit_room(4 * LAST_CAPTURE_BYTES) {
                self.counters.lose(DropReason::BuffersFull, 1);
                return true;
            }
            sampler.triggered_last(&mut triggered) == Acceptance::Done
        });
        sampler.finish();
    }

    fn take_triggered(&self, sampler: &mut Sampler<OwnProcess>) {
        sampler.turn();
        self.triggers.offer(|content| {
            let (tid, tag) = (content.tid, content.tag);
            let mut triggered = TriggeredSample { tid, tag, capture: &mut content.capture };
            sampler.triggered(&mut triggered) == Acceptance::Done
        });
    }

    /// Publishes the counters.
    pub(super) fn publish(&self) {
        let counters = &self.counters;
        let files = &self.offer.files;
        let (samples, dropped) =
            (counters.samples.load(Ordering::Relaxed), counters.dropped.load(Ordering::Relaxed));
        let (samples, dropped) = files.since(files.present(), samples, dropped);
        STATUS.samples.store(samples, Ordering::Relaxed);
        STATUS.dropped.store(dropped, Ordering::Relaxed);
        STATUS.passes.store(counters.passes.load(Ordering::Relaxed), Ordering::Relaxed);
        STATUS.elapsed_ms.store(self.offer.elapsed_ms(&self.clock), Ordering::Relaxed);
    }
}
