//! The one place where a thread of the target is suspended, and the watchdog's half of the same.
//!
//! The law: between suspension and resumption read the context and copy memory within [StackLimit, StackBase); no
//! allocation, lock, loader call, I/O or table lookup. Even the clock is not asked: the processor's counter, an
//! instruction, is read instead and placed between two readings of the clock taken outside.

use core::sync::atomic::{AtomicIsize, AtomicU64, Ordering, fence};

use stk_schema::registers::SP;
use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::Diagnostics::Debug::GetThreadContext;
use windows_sys::Win32::System::Threading::{ResumeThread, SuspendThread};

use super::api::ticks;
use super::context::Context;
use super::peb::Peb;
use super::thread::Teb;
use crate::record::sampler::{Capture, Outcome};

/// Bytes copied between two looks at whether the watchdog has resumed the thread: a stack that is alive again could go away.
const COPY_STEP: usize = 64 << 10;
const WORD: usize = size_of::<usize>();

/// Who may resume the suspended thread: a sequence number and, in the low bit, whether one is suspended. Whoever clears the bit
/// resumes.
static HELD: AtomicU64 = AtomicU64::new(0);
static HANDLE_HELD: AtomicIsize = AtomicIsize::new(0);
static HELD_SINCE: AtomicU64 = AtomicU64::new(0);

/// A moment's measurements of one capture.
pub struct Timing {
    /// Ticks from before the suspension to after the resumption.
    pub ticks: u64,
}

/// Suspends `thread`, captures it into `into`, resumes it.
pub fn capture(
    thread: HANDLE,
    tid: u32,
    teb: Teb,
    peb: &Peb,
    context: &mut Context,
    into: &mut Capture,
) -> (Outcome, Timing) {
    if peb.is_exiting(tid) {
        return (Outcome::Ended, Timing { ticks: 0 });
    }
    context.ask();
    let before = ticks();
    let counter_before = counter();
    let ticket = hold(thread, before);
    // SAFETY: the handle is open with THREAD_SUSPEND_RESUME.
    if unsafe { SuspendThread(thread) } == u32::MAX {
        let _ = release(ticket);
        return (Outcome::NotSuspended, Timing { ticks: 0 });
    }

    // ---- suspended: nothing but the context and plain copies from here ...
    // SAFETY: the handle is open with THREAD_GET_CONTEXT; the context is aligned and says what it asks for. It is not the
    // calling thread's.
    let ok = unsafe { GetThreadContext(thread, &mut context.0) } != 0;
    let counter_at = counter();
    let mut complete = false;
    if ok {
        let (limit, base) = teb.stack();
        // SAFETY: the thread is suspended, and what lies between its stack limit and base, both read after the
        // suspension, is committed. If the watchdog has resumed it meanwhile, `copy` stops at the next step.
        complete = unsafe { copy(context, limit, base, ticket, into) };
    }
    let mine = release(ticket);
    if mine {
        // SAFETY: the handle is open with THREAD_SUSPEND_RESUME, and this is the one resumption of the suspension above.
        unsafe { ResumeThread(thread) };
    }
    // ---- ... to here.

    let counter_after = counter();
    let after = ticks();
    let timing = Timing { ticks: after - before };
    if !ok || !complete || !mine {
        return (Outcome::NoContext, timing);
    }
    into.time = between(before, after, counter_before, counter_at, counter_after);
    into.registers = context.registers();
    into.context_reply = context.reply();
    (Outcome::Captured, timing)
}

/// The watchdog's look: resumes the thread that has been suspended for more than `most` ticks; true if there was one.
pub fn rescue(most: u64) -> bool {
    let held = HELD.load(Ordering::Acquire);
    if held & 1 == 0 {
        return false;
    }
    let since = HELD_SINCE.load(Ordering::Relaxed);
    let handle = HANDLE_HELD.load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    // Unless the word is still the same, what was read next to it may belong to another suspension.
    if ticks().saturating_sub(since) < most || !release(held) {
        return false;
    }
    // SAFETY: the sampler's handle, which stays open while the sampler is in `capture`.
    unsafe { ResumeThread(handle as HANDLE) };
    true
}

/// Announces a suspension; gives its ticket.
fn hold(thread: HANDLE, now: u64) -> u64 {
    HANDLE_HELD.store(thread as isize, Ordering::Relaxed);
    HELD_SINCE.store(now, Ordering::Relaxed);
    let ticket = (HELD.load(Ordering::Relaxed) + 2) | 1;
    HELD.store(ticket, Ordering::Release);
    ticket
}

/// Claims the right to resume; false if the other side has it.
fn release(ticket: u64) -> bool {
    HELD.compare_exchange(ticket, ticket & !1, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

/// Copies the stack from the stack pointer up; false if the watchdog resumed the thread meanwhile.
///
/// # Safety
/// `limit..base` must be the suspended thread's committed stack.
unsafe fn copy(context: &Context, limit: usize, base: usize, ticket: u64, into: &mut Capture) -> bool {
    let sp = context.registers()[SP] as usize;
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
