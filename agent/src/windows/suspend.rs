//! The one place where a thread of the target is suspended, and the watchdog's half of the same.
//!
//! The law: between suspension and resumption read the context and copy memory within [StackLimit, StackBase); no
//! allocation, lock, loader call, I/O or table lookup. Even the clock is not asked: the processor's counter, an
//! instruction, is read instead and placed between two readings of the clock taken outside.
//!
//! The one exception is the walk of `--check-walks` (`walk`), which comes last and has a phase of its own: the watchdog resumes a
//! thread that is in it after 50 ms, and only the walk is lost.

use core::sync::atomic::{AtomicIsize, AtomicU64, Ordering, fence};

use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::Diagnostics::Debug::GetThreadContext;
use windows_sys::Win32::System::Threading::{ResumeThread, SuspendThread};

use super::api::ticks;
use super::context::Context;
use super::peb::Peb;
use super::thread::Teb;
use super::walk::SystemUnwinder;
use crate::record::sampler::{Capture, Outcome};
use stk_schema::event::CheckWalk;

/// Bytes copied between two looks at whether the watchdog has resumed the thread: a stack that is alive again could go away.
const COPY_STEP: usize = 64 << 10;
const WORD: usize = size_of::<usize>();

/// The suspension that is under way: a sequence number and, in the low three bits, its phase. Whoever brings the phase back to
/// [`FREE`] resumes the thread.
static HELD: AtomicU64 = AtomicU64::new(FREE);
static HANDLE_HELD: AtomicIsize = AtomicIsize::new(0);

/// No thread is suspended.
const FREE: u64 = 0;
/// The sampler is about to call SuspendThread or in it: whether it has taken effect cannot be told.
const ASKING: u64 = 1;
/// SuspendThread has returned; the system may still be stopping the thread, or wait for it to be scheduled so that it can stop.
const ASKED: u64 = 2;
/// The thread's context was obtained: it stands still.
const STOPPED: u64 = 3;
/// The watchdog is calling ResumeThread.
const RESCUING: u64 = 4;
/// The watchdog found the thread not suspended: if SuspendThread takes effect now, the sampler has to undo it, or the watchdog if the
/// sampler stands still again before it does.
const UNDO: u64 = 5;
/// The stack is copied; the system's own unwinder walks it.
const WALKING: u64 = 6;
const PHASE: u64 = 7;

/// How long a capture took.
#[derive(Clone, Copy, Default)]
pub struct Timing {
    /// Ticks from before the call that suspends to after the call that resumes.
    pub total: u64,
    /// Ticks of them after the context was obtained: copy and resumption.
    pub held: u64,
}

/// Suspends `thread`, captures it into `into`, has `unwinder` walk it, if there is one, and resumes it.
pub fn capture(
    thread: HANDLE,
    tid: u32,
    teb: Teb,
    peb: &Peb,
    context: &mut Context,
    unwinder: Option<&SystemUnwinder>,
    into: &mut Capture,
) -> (Outcome, Timing) {
    if peb.is_exiting(tid) {
        return (Outcome::Ended, Timing::default());
    }
    // Both held from before the suspension until after the resumption, without ever waiting for them; in the order in which an
    // ending process takes them. Without the loader lock there is no walk of this sample.
    let loader_held = unwinder.map(|unwinder| unwinder.hold_loader());
    let (unwinder, no_walk) = match &loader_held {
        Some(None) => (None, true),
        _ => (unwinder, false),
    };
    let Some(_exit_held) = peb.hold_exit() else {
        return (Outcome::NotSuspended, Timing::default());
    };
    context.ask();
    if let Some(walk) = &mut into.walk {
        walk.flags = if no_walk { CheckWalk::DISCARDED } else { 0 };
        walk.frames.clear();
    }
    let before = ticks();
    let counter_before = counter();
    let ticket = hold(thread);
    // SAFETY: the handle is open with THREAD_SUSPEND_RESUME.
    let suspended = unsafe { SuspendThread(thread) } != u32::MAX;
    if !enter(ticket | ASKING, if suspended { ASKED } else { FREE }) {
        settle(ticket, thread, suspended);
        return (Outcome::NoContext, Timing::default());
    }
    if !suspended {
        return (Outcome::NotSuspended, Timing::default());
    }

    // ---- suspended: nothing but the context and plain copies from here ...
    // SAFETY: the handle is open with THREAD_GET_CONTEXT; the context is aligned and says what it asks for. It is not the
    // calling thread's.
    let ok = unsafe { GetThreadContext(thread, &mut context.0) } != 0;
    let counter_at = counter();
    let held = enter(ticket | ASKED, STOPPED);
    let mut complete = false;
    let mut phase = STOPPED;
    if ok && held {
        // SAFETY: the thread is suspended, so that its block stays.
        let (limit, base) = unsafe { teb.stack() };
        // SAFETY: the thread is suspended, and what lies between its stack limit and base, both read after the
        // suspension, is committed. If the watchdog has resumed it meanwhile, `copy` stops at the next step.
        complete = unsafe { copy(context, limit, base, ticket | STOPPED, into) };
        if let (true, Some(unwinder), Some(walk)) = (complete, unwinder, &mut into.walk)
            && enter(ticket | STOPPED, WALKING)
        {
            phase = WALKING;
            let held = || HELD.load(Ordering::Acquire) == ticket | WALKING;
            // SAFETY: as above, and if the watchdog resumes the thread, the walk ends at the next frame; until then a fault on
            // the living stack is caught.
            unsafe { unwinder.walk(context, limit, base, &held, walk) };
        }
    }
    let mine = held && enter(ticket | phase, FREE);
    if !mine {
        settle(ticket, thread, true);
        if let (WALKING, Some(walk)) = (phase, &mut into.walk) {
            walk.flags = CheckWalk::DISCARDED;
            walk.frames.clear();
        }
    } else {
        // SAFETY: the handle is open with THREAD_SUSPEND_RESUME, and this is the one resumption of the suspension above.
        unsafe { ResumeThread(thread) };
    }
    // ---- ... to here.

    let counter_after = counter();
    let after = ticks();
    let time = between(before, after, counter_before, counter_at, counter_after);
    let timing = Timing { total: after - before, held: after - time };
    // What was captured before the walk is whole, whatever became of the walk.
    if !ok || !complete || !(mine || phase == WALKING) {
        return (Outcome::NoContext, timing);
    }
    into.time = time;
    into.registers = context.registers();
    into.context_reply = context.reply();
    (Outcome::Captured, timing)
}

/// What the watchdog found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rescue {
    /// Nothing to do.
    None,
    /// Resumed a thread that the system had not reported as stopped in time: on a loaded machine it may just not have been
    /// scheduled. Its sample is lost, no more.
    WhileAsked,
    /// Resumed a thread whose stack the system's unwinder was walking: only that walk is lost.
    WhileWalking,
    /// Resumed a thread that stood still for too long: the sampler is stuck.
    WhileStopped,
}

/// The watchdog's view of the suspension that is under way. It takes the time itself, so that the sampler need not
/// ask the clock while a thread is suspended.
#[derive(Default)]
pub struct Watch {
    seen: u64,
    since: u64,
    /// When a thread in phase [`UNDO`] was last looked at.
    retried: u64,
}

impl Watch {
    /// Looks, and resumes a thread that has been in one phase of the same suspension for more than `most` ticks, or
    /// `most_walk` ticks in that of the walk.
    pub fn look(&mut self, most: u64, most_walk: u64) -> Rescue {
        let held = HELD.load(Ordering::Acquire);
        let now = ticks();
        if held != self.seen {
            *self = Watch { seen: held, since: now, retried: 0 };
        }
        let phase = held & PHASE;
        let most = if phase == WALKING { most_walk } else { most };
        if !matches!(phase, ASKING | ASKED | STOPPED | WALKING | UNDO)
            || now.saturating_sub(self.since.max(self.retried)) < most
        {
            return Rescue::None;
        }
        let handle = HANDLE_HELD.load(Ordering::Relaxed);
        // Unless the word is still the same, the handle may be that of another suspension.
        fence(Ordering::Acquire);
        if !enter(held, RESCUING) {
            return Rescue::None;
        }
        // SAFETY: the sampler's handle, which stays open while the sampler is in `capture`, which it does not leave in this phase.
        let before = unsafe { ResumeThread(handle as HANDLE) };
        let undo = matches!(phase, ASKING | UNDO) && matches!(before, 0 | u32::MAX);
        enter(held & !PHASE | RESCUING, if undo { UNDO } else { FREE });
        match phase {
            // Still not suspended: looked at again after as long a time.
            UNDO if undo => {
                self.retried = now;
                Rescue::None
            }
            STOPPED => Rescue::WhileStopped,
            WALKING => Rescue::WhileWalking,
            _ => Rescue::WhileAsked,
        }
    }

    /// Whether nothing has changed for `span` ticks.
    pub fn idle_for(&self, span: u64) -> bool {
        ticks().saturating_sub(self.since) >= span
    }
}

/// Announces a suspension; gives its ticket.
fn hold(thread: HANDLE) -> u64 {
    HANDLE_HELD.store(thread as isize, Ordering::Relaxed);
    let ticket = (HELD.load(Ordering::Relaxed) & !PHASE) + (PHASE + 1);
    HELD.store(ticket | ASKING, Ordering::Release);
    ticket
}

/// The sampler's side of a rescue. If it came while the sampler was in SuspendThread, whoever was second undoes the
/// suspension. (Were the thread also suspended by the target itself, the count comes out the same either way.)
#[cold]
fn settle(ticket: u64, thread: HANDLE, suspended: bool) {
    // The watchdog is between two system calls: this is short.
    while HELD.load(Ordering::Acquire) == ticket | RESCUING {
        core::hint::spin_loop();
    }
    if enter(ticket | UNDO, FREE) && suspended {
        // SAFETY: the handle is open with THREAD_SUSPEND_RESUME, and the watchdog's resumption came before the suspension.
        unsafe { ResumeThread(thread) };
    }
}

/// Moves the suspension `from` to another phase; false if the other side has ended it.
fn enter(from: u64, phase: u64) -> bool {
    HELD.compare_exchange(from, (from & !PHASE) | phase, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

/// Copies the stack from the stack pointer up; false if the watchdog resumed the thread meanwhile.
///
/// # Safety
/// `limit..base` must be the suspended thread's committed stack.
unsafe fn copy(context: &Context, limit: usize, base: usize, ticket: u64, into: &mut Capture) -> bool {
    let sp = context.stack_pointer();
    let start = sp & !(WORD - 1);
    into.stack_base = base as u64;
    if start < limit || start >= base {
        // Not on its own stack: the system's side of a call under Wine, or a stack that the code made itself.
        into.stack_start = base as u64;
        into.len = 0;
        return true;
    }
    let len = (base - start).min(into.stack.len()) & !(WORD - 1);
    into.stack_start = start as u64;
    into.len = len;
    let mut done = 0;
    while done < len {
        if HELD.load(Ordering::Acquire) != ticket {
            return false;
        }
        let step = (len - done).min(COPY_STEP);
        // SAFETY: `start + done .. + step` lies within `limit..base`, and `done + step` within the buffer, which is
        // not part of that stack.
        unsafe {
            core::ptr::copy_nonoverlapping(
                (start + done) as *const u8,
                into.stack.as_mut_ptr().add(done),
                step,
            );
        }
        done += step;
    }
    true
}

/// The tick at which the processor's counter stood at `at`, between two moments at which both were read.
fn between(before: u64, after: u64, counter_before: u64, at: u64, counter_after: u64) -> u64 {
    let (span, part) = (counter_after.wrapping_sub(counter_before), at.wrapping_sub(counter_before));
    // The counters of two processors may differ where the thread moved between them: then the end is what is known.
    if span == 0 || part > span {
        return after;
    }
    before + (u128::from(after - before) * u128::from(part) / u128::from(span)) as u64
}

/// The processor's time-stamp counter.
#[cfg(target_arch = "x86_64")]
fn counter() -> u64 {
    // SAFETY: every x64 processor has it; no system that runs this forbids it in user mode.
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
    // SAFETY: reads the virtual counter, which Windows leaves open to user mode.
    unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) value, options(nomem, nostack)) };
    value
}
