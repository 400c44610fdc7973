//! The only place that suspends a thread of the target, and the watchdog's half of the same.
//!
//! The law: between suspension and resumption, read the context and copy memory (`stack_copy`); no
//! allocation, lock, loader call, I/O or table lookup. Even the clock is not called: the sampler
//! reads the processor's counter, an instruction, and places it between two readings of the clock
//! outside. [`suspension`](crate::record::suspension) decides who resumes the thread.
//!
//! The sampler holds no lock while it asks a thread to stop: the thread would run into that lock
//! and be sampled there. The one exception is the walk of `--check-walks` (`walk`): the sampler
//! tries the loader lock before the suspension and releases it after the resumption. The walk comes
//! last and has its own phase: the watchdog resumes a thread that is in it after 50 ms, and only
//! the walk is lost.

use stk_schema::Ticks;
use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::Diagnostics::Debug::GetThreadContext;
use windows_sys::Win32::System::Threading::{
    GetCurrentThreadId, GetExitCodeThread, ResumeThread, Sleep, SuspendThread, SwitchToThread,
};

use crate::record::sampler::{Capture, CaptureOutcome};
use crate::record::stack_bounds::Bounds;
use crate::record::suspension::{Calls, Limits, Rescue, Resume, SlotWatchdog, Suspensions, Verdict};
use crate::windows::sampler::stack_copy;
use crate::windows::sampler::walk::SystemUnwinder;
use crate::windows::system::api::{self, SystemApi, ticks};
use crate::windows::system::context::Context;
use crate::windows::system::peb::Peb;
use crate::windows::system::thread::Teb;
use stk_schema::event::CheckWalk;
use stk_schema::guard::SAMPLERS;

/// Milliseconds for which a thread that did not stop is left alone, after the call that asked it
/// has returned.
const LEFT_ALONE_MS: u32 = 5_000;

/// The suspensions of this process. The guard process reads their board.
pub(crate) static SUSPENSIONS: Suspensions = Suspensions::new();

/// How long a capture took.
#[derive(Clone, Copy, Default)]
pub(crate) struct Timing {
    /// From before the call that suspends to after the call that resumes.
    pub total: Ticks,
    /// The part of it after the context was obtained: copy and resumption.
    pub held: Ticks,
}

/// Suspends and captures threads.
pub(crate) struct Suspender {
    /// The system's functions.
    pub api: &'static SystemApi,
    /// The process's block, for the owners of its locks.
    pub peb: Peb,
    /// Also walks each stack, if this is configured.
    pub unwinder: Option<SystemUnwinder>,
    /// Ends the calling thread, the deposed sampler of that slot, in place.
    pub leave_deposed: fn(usize) -> !,
}

impl Suspender {
    /// Suspends `thread`, captures it into `into`, walks it if there is an unwinder, and resumes
    /// it. Does not return if this sampler was deposed meanwhile: its successor then owns what the
    /// samplers share, including `into`.
    pub(crate) fn capture(
        &self,
        thread: HANDLE,
        tid: u32,
        teb: Teb,
        into: &mut Capture,
    ) -> (CaptureOutcome, Timing) {
        // Copied, because a deposed sampler may not use what the samplers share.
        let (api, leave_deposed) = (self.api, self.leave_deposed);
        // SAFETY: no preconditions.
        let Some(slot) = SUSPENSIONS.slot_of(unsafe { GetCurrentThreadId() }) else {
            return (CaptureOutcome::NotSuspended, Timing::default());
        };
        if SUSPENSIONS.leaves_alone(tid, ticks()) {
            return (CaptureOutcome::NotStopped, Timing::default());
        }
        // Without the loader lock, this sample is not walked.
        let loader_held = self.unwinder.as_ref().map(|unwinder| unwinder.hold_loader());
        let (unwinder, no_walk) = match &loader_held {
            Some(None) => (None, true),
            _ => (self.unwinder.as_ref(), false),
        };
        reset_walk(into, if no_walk { CheckWalk::DISCARDED } else { 0 });
        // On this sampler's stack: the system may still write it long after a spare has taken over.
        let mut context = Context::request();
        let before = ticks();
        let counter_before = counter();
        let mut attempt = Attempt {
            peb: &self.peb,
            teb,
            unwinder,
            context: &mut context,
            into,
            bounds: (0, 0),
            counter_at: counter_before,
        };
        let verdict = SUSPENSIONS.hold(slot, thread as isize, tid, &mut attempt);
        let counter_at = attempt.counter_at;
        let counter_after = counter();
        let after = ticks();
        match verdict {
            Verdict::Deposed => {
                // Holds a lock of the target if walks are checked: release it before this thread
                // ends.
                drop(loader_held);
                SUSPENSIONS.returned(slot, after + left_alone(api));
                leave_deposed(slot);
            }
            Verdict::NotStopped => SUSPENSIONS.returned(slot, after + left_alone(api)),
            Verdict::WalkLost => reset_walk(into, CheckWalk::DISCARDED),
            _ => {}
        }
        let outcome = outcome(verdict);
        if matches!(outcome, CaptureOutcome::NotSuspended | CaptureOutcome::OwnsExitLocks) {
            return (outcome, Timing::default());
        }
        let time = between(before, after, counter_before, counter_at, counter_after);
        if outcome == CaptureOutcome::Captured {
            into.time = time;
            into.registers = context.registers();
            into.context_reply = context.reply();
        }
        (outcome, Timing { total: after - before, held: after - time })
    }
}

/// Clears the previous sample's walk and sets `flags` for this one's.
fn reset_walk(into: &mut Capture, flags: u64) {
    if let Some(walk) = &mut into.walk {
        walk.flags = flags;
        walk.frames.clear();
    }
}

fn outcome(verdict: Verdict) -> CaptureOutcome {
    match verdict {
        Verdict::Whole | Verdict::WalkLost => CaptureOutcome::Captured,
        Verdict::Refused => CaptureOutcome::NotSuspended,
        Verdict::OwnsExitLocks => CaptureOutcome::OwnsExitLocks,
        Verdict::NotStopped => CaptureOutcome::NotStopped,
        Verdict::NoContext | Verdict::Deposed => CaptureOutcome::NoContext,
    }
}

/// Until when a thread is left alone, counted from the return of the call that asked it.
fn left_alone(api: &SystemApi) -> Ticks {
    api.milliseconds(LEFT_ALONE_MS)
}

/// ResumeThread and Sleep.
pub(crate) struct System;

impl Resume for System {
    fn resume(&mut self, thread: isize) -> Option<u32> {
        // SAFETY: the sampler's handle, open with THREAD_SUSPEND_RESUME while the word names its
        // thread.
        let before = unsafe { ResumeThread(thread as HANDLE) };
        // Nobody needs to resume a thread that has ended.
        if before == u32::MAX { has_ended(thread as HANDLE).then_some(0) } else { Some(before) }
    }

    fn sleep(&mut self, milliseconds: u32) {
        // SAFETY: no preconditions.
        unsafe { Sleep(milliseconds) };
    }

    fn now_us(&mut self) -> u64 {
        let frequency = api::api().map_or(1, |api| api.frequency);
        (u128::from(ticks().0) * 1_000_000 / u128::from(frequency)) as u64
    }

    fn yield_now(&mut self) {
        // SAFETY: no preconditions.
        unsafe { SwitchToThread() };
    }
}

/// Whether the thread has ended; false if that is not known.
fn has_ended(thread: HANDLE) -> bool {
    const STILL_ACTIVE: u32 = 259;
    let mut code = STILL_ACTIVE;
    // SAFETY: the handle is open; the result has room.
    unsafe { GetExitCodeThread(thread, &mut code) != 0 && code != STILL_ACTIVE }
}

/// One attempt at one thread.
struct Attempt<'a> {
    peb: &'a Peb,
    teb: Teb,
    unwinder: Option<&'a SystemUnwinder>,
    context: &'a mut Context,
    into: &'a mut Capture,
    /// StackLimit and StackBase, read while the thread stood still.
    bounds: (usize, usize),
    /// The processor's counter when the context was obtained.
    counter_at: u64,
}

impl Resume for Attempt<'_> {
    fn resume(&mut self, thread: isize) -> Option<u32> {
        System.resume(thread)
    }

    fn sleep(&mut self, milliseconds: u32) {
        System.sleep(milliseconds);
    }

    fn now_us(&mut self) -> u64 {
        System.now_us()
    }

    fn yield_now(&mut self) {
        System.yield_now();
    }
}

impl Calls for Attempt<'_> {
    fn owns_exit_locks(&mut self, tid: u32) -> bool {
        self.peb.owns_exit_locks(tid)
    }

    fn suspend(&mut self, thread: isize) -> bool {
        // SAFETY: the handle is open with THREAD_SUSPEND_RESUME.
        unsafe { SuspendThread(thread as HANDLE) != u32::MAX }
    }

    fn context(&mut self, thread: isize) -> bool {
        // SAFETY: the handle is open with THREAD_GET_CONTEXT; the context is aligned and its flags
        // say what is requested. It is not the calling thread's.
        let known = unsafe { GetThreadContext(thread as HANDLE, &mut self.context.0) } != 0;
        self.counter_at = counter();
        known
    }

    fn copy(&mut self, held: &dyn Fn() -> bool) -> bool {
        // SAFETY: the thread is suspended, so its block stays mapped.
        self.bounds = unsafe { self.teb.stack() };
        let (limit, base) = self.bounds;
        self.into.bounds = Bounds { limit: limit as u64, base: base as u64 };
        let (sp, bounds, checked) = (self.context.stack_pointer(), self.into.bounds, self.into.checked);
        // SAFETY: the thread is suspended and its bounds were read after the suspension. If the
        // watchdog has resumed it meanwhile, `copy` stops at the next step.
        unsafe { stack_copy::copy(sp, bounds, &checked, held, self.into) }
    }

    fn walks(&self) -> bool {
        self.unwinder.is_some() && self.into.walk.is_some() && self.into.stack_base != 0
    }

    fn walk(&mut self, held: &dyn Fn() -> bool) {
        let (Some(unwinder), Some(walk)) = (self.unwinder, &mut self.into.walk) else { return };
        let (limit, base) = self.bounds;
        // SAFETY: as for the copy. If the watchdog resumes the thread, the walk ends at the next
        // frame; until then, a fault on the running thread's stack is caught.
        unsafe { unwinder.walk(self.context, limit, base, held, walk) };
    }
}

/// The watchdog's view of all samplers.
#[derive(Default)]
pub(crate) struct SamplerWatchdog([SlotWatchdog; SAMPLERS]);

impl SamplerWatchdog {
    /// Calls [`SlotWatchdog::look`] for every slot. `spare` says whether the sampler can be
    /// replaced.
    pub(crate) fn look(&mut self, limits: &Limits, spare: impl Fn() -> bool, mut each: impl FnMut(Rescue)) {
        for (slot, watch) in self.0.iter_mut().enumerate() {
            each(watch.look(&SUSPENSIONS, slot, ticks(), limits, spare(), &mut System));
        }
    }

    /// Whether nothing has changed for `span`.
    pub(crate) fn idle_for(&self, span: Ticks) -> bool {
        let now = ticks();
        self.0.iter().all(|watch| watch.idle_for(span, now))
    }
}

/// The tick at which the processor's counter stood at `at`, between two moments at which both were
/// read.
fn between(before: Ticks, after: Ticks, counter_before: u64, at: u64, counter_after: u64) -> Ticks {
    let (span, part) = (counter_after.wrapping_sub(counter_before), at.wrapping_sub(counter_before));
    // The counters of two processors may differ if the thread moved between them. Then only the end
    // is known.
    if span == 0 || part > span {
        return after;
    }
    before + Ticks((u128::from((after - before).0) * u128::from(part) / u128::from(span)) as u64)
}

/// The processor's time-stamp counter.
#[cfg(target_arch = "x86_64")]
fn counter() -> u64 {
    // SAFETY: every x64 processor has it; no supported system forbids it in user mode.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(target_arch = "x86")]
fn counter() -> u64 {
    // SAFETY: as for x64.
    unsafe { core::arch::x86::_rdtsc() }
}

#[cfg(target_arch = "aarch64")]
fn counter() -> u64 {
    let value;
    // SAFETY: reads the virtual counter, which Windows permits in user mode.
    unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) value, options(nomem, nostack)) };
    value
}
