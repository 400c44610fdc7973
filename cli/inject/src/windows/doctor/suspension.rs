//! Suspends helper threads repeatedly and measures the cost.

use super::helpers::{Helper, Work};
use crate::doctor::timing::{Boost, Cycles, Suspensions};
use crate::windows::system::{Procedure, kernel32};
use std::mem::{transmute, zeroed};
use std::time::{Duration, Instant};
use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::Diagnostics::Debug::{CONTEXT, GetThreadContext};
use windows_sys::Win32::System::Threading::{
    GetThreadPriorityBoost, ResumeThread, SetThreadPriorityBoost, SuspendThread,
};
use windows_sys::core::BOOL;

/// Suspensions of each helper.
const TRIES: u32 = 300;
/// Time limit for one helper, even on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(3);
/// Most bytes of the stack that are copied.
const COPY: usize = 4096;

/// CONTEXT_CONTROL and CONTEXT_INTEGER.
#[cfg(target_arch = "x86_64")]
const FLAGS: u32 = 0x0010_0003;
#[cfg(target_arch = "aarch64")]
const FLAGS: u32 = 0x0040_0003;
#[cfg(target_arch = "x86")]
const FLAGS: u32 = 0x0001_0003;

#[repr(C, align(16))]
struct AlignedContext(CONTEXT);

/// Suspends a spinning, a waiting and a file-calling helper.
pub(super) fn measure() -> Vec<Suspensions> {
    [Work::Spin, Work::Wait, Work::File].map(measure_one).into()
}

fn measure_one(work: Work) -> Suspensions {
    let mut found = Suspensions { helper: work.name(), ..Suspensions::default() };
    let Some(helper) = Helper::start(work) else { return found };
    // A waiting helper must have reached its wait.
    std::thread::sleep(Duration::from_millis(5));
    let began = Instant::now();
    // Reserve memory first: nothing may be allocated while the helper may hold the heap's lock.
    for times in [&mut found.suspend, &mut found.context, &mut found.copy, &mut found.resume] {
        times.reserve(TRIES as usize);
    }
    for _ in 0..TRIES {
        if began.elapsed() > PATIENCE {
            break;
        }
        match suspend_once(&helper) {
            Some([suspend, context, copy, resume]) => {
                found.suspend.push(suspend);
                found.context.push(context);
                found.copy.push(copy);
                found.resume.push(resume);
            }
            None => found.failed += 1,
        }
    }
    found
}

/// Nanoseconds of SuspendThread, GetThreadContext, the copy and ResumeThread.
fn suspend_once(helper: &Helper) -> Option<[u64; 4]> {
    let (thread, frame) = (helper.handle(), helper.frame());
    let mut stack = [0u8; COPY];
    // SAFETY: CONTEXT is plain data, for which zero is valid.
    let mut context = AlignedContext(unsafe { zeroed() });
    context.0.ContextFlags = FLAGS as _;
    let start = Instant::now();
    // SAFETY: a thread of this process, whose handle is open with all rights. Between here and its
    // resumption only the clock is read, which takes no lock.
    if unsafe { SuspendThread(thread) } == u32::MAX {
        return None;
    }
    let suspended = Instant::now();
    // SAFETY: as above; the context is aligned and holds the requested flags.
    let read = unsafe { GetThreadContext(thread, &mut context.0) } != 0;
    let known = Instant::now();
    if read {
        // SAFETY: the helper is suspended, and the memory between its stack pointer and its first
        // frame is its stack.
        unsafe { copy(stack_pointer(&context.0), frame, &mut stack) };
    }
    let copied = Instant::now();
    // SAFETY: as above; the one resumption of the suspension above.
    let resumed = unsafe { ResumeThread(thread) } != u32::MAX;
    let end = Instant::now();
    std::hint::black_box(&stack);
    let nanoseconds = |from: Instant, to: Instant| (to - from).as_nanos() as u64;
    (read && resumed).then(|| {
        [
            nanoseconds(start, suspended),
            nanoseconds(suspended, known),
            nanoseconds(known, copied),
            nanoseconds(copied, end),
        ]
    })
}

/// Copies from `from` up to `to`, as much as fits.
///
/// # Safety
/// The memory between both must be readable.
unsafe fn copy(from: usize, to: usize, into: &mut [u8]) {
    let len = to.saturating_sub(from).min(into.len());
    let source: *const u8 = std::ptr::with_exposed_provenance(from);
    // SAFETY: the caller's promise; the helper's stack is not this thread's, on which the
    // destination lies.
    unsafe { std::ptr::copy_nonoverlapping(source, into.as_mut_ptr(), len) };
}

fn stack_pointer(context: &CONTEXT) -> usize {
    #[cfg(target_arch = "x86_64")]
    let sp = context.Rsp as usize;
    #[cfg(target_arch = "aarch64")]
    let sp = context.Sp as usize;
    #[cfg(target_arch = "x86")]
    let sp = context.Esp as usize;
    sp
}

/// QueryThreadCycleTime's counts of a waiting helper that is suspended, and of a spinning one that
/// is not.
pub(super) fn cycles() -> Cycles {
    let mut found = Cycles::default();
    if let Some(waiting) = Helper::start(Work::Wait) {
        std::thread::sleep(Duration::from_millis(20));
        let began = Instant::now();
        let mut costs = Vec::new();
        while costs.len() < 100 && began.elapsed() < PATIENCE {
            let Some(before) = count(waiting.handle()) else { break };
            suspend_once(&waiting);
            // Wait until the thread has done the work that the suspension caused and waits again.
            std::thread::sleep(Duration::from_millis(1));
            let Some(after) = count(waiting.handle()) else { break };
            costs.push(after.saturating_sub(before));
        }
        found.of_suspension = (!costs.is_empty()).then_some(costs);
    }
    if let Some(spinning) = Helper::start(Work::Spin)
        && let Some(before) = count(spinning.handle())
    {
        std::thread::sleep(Duration::from_millis(20));
        found.of_spinner = count(spinning.handle()).map(|after| after.saturating_sub(before));
    }
    found
}

/// Whether the system boosts a waiting helper, and stops to when it is told.
pub(super) fn boost() -> Boost {
    let Some(helper) = Helper::start(Work::Wait) else { return Boost::default() };
    let given = boosted(helper.handle());
    // SAFETY: a thread of this process, whose handle is open with all rights.
    let told = unsafe { SetThreadPriorityBoost(helper.handle(), 1) } != 0;
    Boost { given, goes: told && boosted(helper.handle()) == Some(false) }
}

fn boosted(thread: HANDLE) -> Option<bool> {
    let mut off = 0;
    // SAFETY: the handle is open; the result is one BOOL.
    (unsafe { GetThreadPriorityBoost(thread, &mut off) } != 0).then_some(off == 0)
}

/// The thread's cycles; `None` where the system does not count them.
fn count(thread: HANDLE) -> Option<u64> {
    type Function = unsafe extern "system" fn(HANDLE, *mut u64) -> BOOL;
    let function = kernel32(c"QueryThreadCycleTime")?;
    let mut cycles = 0;
    // SAFETY: the documented signature; the handle is open, the result has room.
    let ok = unsafe { transmute::<Procedure, Function>(function)(thread, &mut cycles) != 0 };
    ok.then_some(cycles)
}
