//! Measures on this machine the cost of a suspension, on a waiting thread of the recorder, and the
//! rate of cycles.

use alloc::vec::Vec;
use stk_schema::Ticks;

use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::Diagnostics::Debug::GetThreadContext;
use windows_sys::Win32::System::Threading::{GetCurrentThread, Sleep, SuspendThread};

use crate::record::sampler::{CycleRate, SuspensionCost};
use crate::windows::sampler::suspend::{SUSPENSIONS, System};
use crate::windows::system::api::{SystemApi, ticks};
use crate::windows::system::context::Context;
use crate::windows::system::thread;

/// Most suspensions that are measured, and most milliseconds that they may take together.
const ROUNDS: usize = 50;
const MOST_MS: u32 = 60;
/// Microseconds for which a cycle count must not change to count as settled, and microseconds to
/// spin for that before yielding the processor.
const STILL_US: u64 = 20;
const SPIN_US: u64 = 300;

/// Spins that measure the rate of cycles, and the length of each in microseconds.
const RATE_SPINS: usize = 8;
const RATE_SPIN_US: u64 = 200;

/// The measured costs; `None` if they could not be measured.
#[derive(Default)]
pub(super) struct SuspensionCosts {
    /// Cycles that a suspension costs the suspended thread.
    pub cycles: Option<SuspensionCost>,
    /// Nanoseconds from before the call that suspends to after the call that resumes.
    pub nanoseconds: Option<SuspensionCost>,
}

/// Suspends the thread `tid`, reads its context and resumes it, several times. The thread must be a
/// waiting one of the recorder.
pub(super) fn measure(api: &SystemApi, tid: u32, has_cycles: bool) -> SuspensionCosts {
    let Some(thread) = thread::open(tid) else { return SuspensionCosts::default() };
    let mut context = Context::request();
    let mut cycles = Vec::with_capacity(ROUNDS);
    let mut nanoseconds = Vec::with_capacity(ROUNDS);
    let until = ticks() + api.milliseconds(MOST_MS);
    for _ in 0..ROUNDS {
        if ticks() >= until {
            break;
        }
        let before = if has_cycles { count(api, thread.raw()) } else { None };
        let Some(span) = suspend_once(thread.raw(), &mut context) else { break };
        nanoseconds.push((u128::from(span.0) * 1_000_000_000 / u128::from(api.frequency)) as u64);
        if let Some(before) = before
            && let Some(after) = settled(api, thread.raw(), before)
        {
            cycles.push(after.saturating_sub(before));
        }
    }
    SuspensionCosts {
        cycles: SuspensionCost::of(&mut cycles),
        nanoseconds: SuspensionCost::of(&mut nanoseconds),
    }
}

/// Cycles a second that the system counts for a thread while it runs, by spins of this thread.
/// `None` if it counts none.
pub(super) fn cycles_per_second(api: &SystemApi) -> Option<u64> {
    // SAFETY: no preconditions.
    let own = unsafe { GetCurrentThread() };
    let length = Ticks(RATE_SPIN_US * api.frequency / 1_000_000);
    let mut rate = CycleRate::default();
    for _ in 0..RATE_SPINS {
        let (began, before) = (ticks(), count(api, own)?);
        while ticks() - began < length {
            core::hint::spin_loop();
        }
        let (ended, after) = (ticks(), count(api, own)?);
        rate.add(after.saturating_sub(before), ended - began, api.frequency);
    }
    rate.per_second()
}

/// One suspension, as a sample makes it; gives its length.
fn suspend_once(thread: HANDLE, context: &mut Context) -> Option<Ticks> {
    context.ask();
    let before = ticks();
    // SAFETY: the handle is open with THREAD_SUSPEND_RESUME and THREAD_GET_CONTEXT; the context is
    // aligned and its flags say what is requested. The thread is not the calling one.
    let ok = unsafe {
        if SuspendThread(thread) == u32::MAX {
            return None;
        }
        GetThreadContext(thread, &mut context.0) != 0
    };
    let resumed = SUSPENSIONS.resume_own(thread as isize, &mut System);
    (ok && resumed).then(|| ticks() - before)
}

/// The thread's cycle count.
fn count(api: &SystemApi, thread: HANDLE) -> Option<u64> {
    let mut cycles = 0;
    // SAFETY: the handle is open with THREAD_QUERY_INFORMATION; the result is one u64.
    (unsafe { api.thread_cycles?(thread, &mut cycles) } != 0).then_some(cycles)
}

/// The thread's cycle count after it has returned to its wait: the count differs from `before` and
/// no longer changes.
fn settled(api: &SystemApi, thread: HANDLE, before: u64) -> Option<u64> {
    let us = |us: u64| Ticks((us * api.frequency / 1_000_000).max(1));
    let began = ticks();
    let (mut last, mut since) = (count(api, thread)?, began);
    loop {
        let now = ticks();
        if last != before && now - since >= us(STILL_US) {
            return Some(last);
        }
        if now - began >= us(SPIN_US) {
            // On a single processor, the thread cannot run before this one yields.
            // SAFETY: no preconditions.
            unsafe { Sleep(1) };
            return count(api, thread);
        }
        core::hint::spin_loop();
        let next = count(api, thread)?;
        if next != last {
            (last, since) = (next, ticks());
        }
    }
}
