//! The sampler's thread: when a pass is due, and what is taken between two passes; the spare
//! samplers, which wait until one has to take over.

mod boosts;
mod calibration;
mod cost;
mod own_cpu;
pub mod process;
mod stack_copy;
pub mod suspend;
pub mod triggers;
pub mod walk;

use core::ptr::null;
use core::sync::atomic::Ordering;

use stk_schema::event::{DropReason, EndReason};
use windows_sys::Win32::Foundation::{HANDLE, WAIT_OBJECT_0};
use windows_sys::Win32::System::Threading::{
    CREATE_WAITABLE_TIMER_HIGH_RESOLUTION, CreateWaitableTimerExW, INFINITE, SetWaitableTimer, Sleep,
    THREAD_PRIORITY_TIME_CRITICAL, TIMER_ALL_ACCESS, WaitForMultipleObjects, WaitForSingleObject,
};

use crate::record::sampler::{Accepted, Sampler, Triggered};
use crate::windows::sampler::process::OwnProcess;
use crate::windows::session::Session;
use crate::windows::session::threads::set_priority;
use crate::windows::shared::events::{WAKE_CODE, WAKE_SAMPLER, WAKE_SPARE, close, signal, wake_all};
use crate::windows::shared::state::{SIGNALS, STATUS};
use crate::windows::system::api::{Api, NtSetTimerResolution, ticks};

/// 1 ms in units of 100 ns, for NtSetTimerResolution.
const RESOLUTION: u32 = 10_000;
/// How often a one-shot recording tries a thread that could not be sampled.
const ONCE_TRIES: u32 = 50;
/// Milliseconds after which a spare sampler looks by itself whether the recording ends.
const SPARE_MS: u32 = 1000;

impl Session {
    /// Samples until the recording is to end.
    pub fn run_sampler(&self) {
        set_priority(THREAD_PRIORITY_TIME_CRITICAL);
        let timer = Timer::new(self.api);
        if self.delay_ms != 0 {
            self.wait_until(self.started + u64::from(self.delay_ms) * self.ticks_per_ms);
        }
        while !SIGNALS.threads_known.load(Ordering::Acquire) && !SIGNALS.stopping() {
            // SAFETY: no preconditions.
            unsafe { Sleep(1) };
        }
        self.calibrate();
        let begun = ticks();
        if self.duration_ms != 0 {
            let end = begun + u64::from(self.duration_ms) * self.ticks_per_ms;
            self.sampling_ends.store(end, Ordering::Release);
        }
        self.due.store(begun, Ordering::Release);
        self.sample(timer);
    }

    /// Waits until the sampler is stuck, then goes on in its place; at the end of the recording
    /// leaves without.
    pub fn run_spare(&self) {
        while !self.takeover.swap(false, Ordering::AcqRel) {
            if SIGNALS.stopping() && self.claim_spare() {
                // The event wakes one thread: the other spare is told by this one.
                return signal(&WAKE_SPARE);
            }
            // SAFETY: the event lives as long as the process.
            unsafe { WaitForSingleObject(WAKE_SPARE.load(Ordering::Acquire), SPARE_MS) };
        }
        set_priority(THREAD_PRIORITY_TIME_CRITICAL);
        if self.once {
            self.complete_once();
            SIGNALS.request_stop(EndReason::Stopped);
        }
        self.sample(Timer::new(self.api));
    }

    /// Takes one sampler out of those that are spare; false if there is none.
    pub fn claim_spare(&self) -> bool {
        let one_less = |spares: u32| spares.checked_sub(1);
        self.spares.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less).is_ok()
    }

    /// Samples from the pass that is due until the end, and hands over what is left.
    fn sample(&self, timer: Timer) {
        let mut due = self.due.load(Ordering::Acquire);
        let end = self.sampling_ends.load(Ordering::Acquire);
        while !SIGNALS.stopping() {
            self.sampler.enter(|sampler| {
                self.take_triggered(sampler);
                sampler.pass();
                if sampler.take_code_found() {
                    signal(&WAKE_CODE);
                }
            });
            self.publish();
            if self.once {
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
                !(self.test_panic && now >= self.started + 1000 * self.ticks_per_ms),
                "asked for by the test flag"
            );
            due += self.period * self.sampler.enter(|sampler| sampler.stride()).unwrap_or(1);
            if now > due {
                let late = (now - due) / self.period + 1;
                due += late * self.period;
                self.counters.lose(DropReason::Late, late);
            }
            self.due.store(due, Ordering::Release);
            while timer.wait_until(due, self.api) == Woken::Early && !SIGNALS.stopping() {
                self.sampler.enter(|sampler| self.take_triggered(sampler));
            }
        }
        self.sampler.enter(|sampler| {
            self.take_triggered(sampler);
            sampler.finish();
            sampler.release();
        });
        drop(timer);
        self.sampler_done.store(true, Ordering::Release);
        wake_all();
    }

    /// One sample of every thread: tries those again that could not be sampled, on a loaded machine
    /// for instance.
    fn complete_once(&self) {
        for _ in 0..ONCE_TRIES {
            if SIGNALS.stopping() || self.sampler.enter(Sampler::pass_missing) == Some(0) {
                return;
            }
            // SAFETY: no preconditions.
            unsafe { Sleep(5) };
        }
    }

    /// Waits for the first sample's time, in steps, so that a stop is noticed.
    fn wait_until(&self, due: u64) {
        while ticks() < due && !SIGNALS.stopping() {
            // SAFETY: the event lives as long as the process.
            unsafe { WaitForSingleObject(WAKE_SAMPLER.load(Ordering::Acquire), 10) };
            self.sampler.enter(|sampler| self.take_triggered(sampler));
            self.publish();
        }
    }

    fn take_triggered(&self, sampler: &mut Sampler<OwnProcess>) {
        self.triggers.offer(|content| {
            let triggered = Triggered { tid: content.tid, tag: content.tag, capture: &content.capture };
            sampler.triggered(&triggered) == Accepted::Done
        });
    }

    /// Publishes what was counted.
    pub fn publish(&self) {
        let counters = &self.counters;
        STATUS.samples.store(counters.samples.load(Ordering::Relaxed), Ordering::Relaxed);
        STATUS.dropped.store(counters.dropped.load(Ordering::Relaxed), Ordering::Relaxed);
        STATUS.passes.store(counters.passes.load(Ordering::Relaxed), Ordering::Relaxed);
        STATUS.elapsed_ms.store((ticks() - self.started) / self.ticks_per_ms, Ordering::Relaxed);
    }
}

/// The timer of the sampler.
struct Timer {
    handle: HANDLE,
    /// Set where the system's clock was made finer; gives it back.
    finer: Option<NtSetTimerResolution>,
}

#[derive(PartialEq, Eq)]
enum Woken {
    /// The time has come.
    Due,
    /// Somebody else woke the sampler.
    Early,
}

impl Timer {
    fn new(api: &Api) -> Timer {
        // SAFETY: plain calls; the handle is owned by the result.
        unsafe {
            let mut finer = None;
            let mut handle = CreateWaitableTimerExW(
                null(),
                null(),
                CREATE_WAITABLE_TIMER_HIGH_RESOLUTION,
                TIMER_ALL_ACCESS,
            );
            if handle.is_null() {
                // Before Windows 10 1803: an ordinary timer, as fine as the system's clock
                // interrupt can be made.
                if let Some(set_resolution) = api.set_timer_resolution {
                    let mut actual = 0;
                    if set_resolution(RESOLUTION, 1, &mut actual) >= 0 {
                        finer = api.set_timer_resolution;
                    }
                }
                handle = CreateWaitableTimerExW(null(), null(), 0, TIMER_ALL_ACCESS);
            }
            Timer { handle, finer }
        }
    }

    /// Waits until `due` (ticks), or until the sampler is woken.
    fn wait_until(&self, due: u64, api: &Api) -> Woken {
        let now = ticks();
        if now >= due {
            return Woken::Due;
        }
        let units = ((due - now) as u128 * 10_000_000 / u128::from(api.frequency)) as i64;
        let wake = WAKE_SAMPLER.load(Ordering::Acquire);
        // SAFETY: both handles are open for the length of the call; the due time is relative, hence
        // negative.
        let result = unsafe {
            if self.handle.is_null()
                || SetWaitableTimer(self.handle, &(-units.max(1)), 0, None, null(), 0) == 0
            {
                WaitForSingleObject(wake, (units / 10_000).max(1) as u32)
            } else {
                match WaitForMultipleObjects(2, [wake, self.handle].as_ptr(), 0, INFINITE) {
                    WAIT_OBJECT_0 => WAIT_OBJECT_0,
                    _ => u32::MAX,
                }
            }
        };
        if result == WAIT_OBJECT_0 { Woken::Early } else { Woken::Due }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some(set_resolution) = self.finer {
            let mut actual = 0;
            // SAFETY: the result is one u32. The process's request of `Timer::new` is withdrawn.
            unsafe { set_resolution(RESOLUTION, 0, &mut actual) };
        }
        close(self.handle);
    }
}
