//! Triggers: an exception, or the load of a module, makes the thread on which it happens take a
//! sample of itself; a capture that the program asks for leaves a mark too.
//!
//! All run on threads of the target: [`handler`] is a vectored handler, registered first, and lets
//! every exception continue unchanged; [`module_loaded`] is called by the loader's notification,
//! under its lock; [`EventTriggers::called`] by `stk_capture`. None allocates, takes a lock or
//! waits, and each does a bounded amount of work.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering};

use alloc::vec::Vec;
use stk_schema::Ticks;
use stk_schema::event::{DropReason, Exception};
use stk_schema::typed::fits;
use windows_sys::Win32::Foundation::{GetLastError, SetLastError};
use windows_sys::Win32::System::Diagnostics::Debug::{
    AddVectoredExceptionHandler, EXCEPTION_CONTINUE_SEARCH, EXCEPTION_POINTERS,
    RemoveVectoredExceptionHandler,
};
use windows_sys::Win32::System::Threading::GetCurrentThreadId;

use super::{Session, capture, threads};
use crate::record::exception_filter::{ExceptionFilter, InHandler, RateLimit};
use crate::record::options::Options;
use crate::windows::shared::state::{FINISHED, STATUS};
use crate::windows::system::api::ticks;
use crate::windows::system::context::Context;
use crate::windows::tables::exceptions::{self, STACK_OVERFLOW, SeenException};
use crate::windows::tables::{loader, marks};

/// Most exceptions and module loads that are recorded in a second. Programs that throw all the time
/// would fill the trace, and wait for the recorder's memory.
const MOST_PER_SECOND: u64 = 100;
/// Threads that can be in the handler at the same time.
const AT_ONCE: usize = 64;
/// Bytes of a mark about a module.
const MARK: usize = 240;

/// The threads that are in the handler now. An exception within the handler is not
/// recorded, so the handler never runs within itself.
static IN_HANDLER: InHandler<AT_ONCE> = InHandler::new();

/// Whether stack overflows are recorded.
static TAKES_OVERFLOWS: AtomicBool = AtomicBool::new(false);

/// Whether a handler was ever registered. The system does not say when the last thread has left it.
static HAD_HANDLER: AtomicBool = AtomicBool::new(false);

/// Whether a thread may still be on its way into or out of the handler, after it was removed.
pub(super) fn had_handler() -> bool {
    HAD_HANDLER.load(Ordering::Acquire)
}

/// What a recording's triggers look for. Dropping it removes the handler and the watcher.
pub(super) struct EventTriggers {
    exceptions: ExceptionFilter,
    modules: Vec<Vec<u8>>,
    api: bool,
    limit: RateLimit,
    /// The handler's registration; null = none.
    registration: *mut c_void,
}

impl EventTriggers {
    /// Registers what the options ask for; `None` without memory for it.
    pub(super) fn install(options: &Options, ticks_per_second: u64) -> Option<EventTriggers> {
        let mut triggers = EventTriggers {
            exceptions: options.exceptions.clone(),
            modules: options.modules.clone(),
            api: options.api,
            limit: RateLimit::new(MOST_PER_SECOND, ticks_per_second),
            registration: core::ptr::null_mut(),
        };
        TAKES_OVERFLOWS.store(triggers.exceptions.takes(STACK_OVERFLOW), Ordering::Release);
        if !triggers.exceptions.is_empty() {
            HAD_HANDLER.store(true, Ordering::Release);
            IN_HANDLER.forget();
            // SAFETY: the handler has the documented type. It stays mapped, since the agent leaves
            // only when no thread is in it.
            triggers.registration = unsafe { AddVectoredExceptionHandler(1, Some(handler)) };
            if triggers.registration.is_null() {
                return None;
            }
        }
        if !triggers.modules.is_empty() {
            loader::watch(Some(module_loaded));
        }
        Some(triggers)
    }

    /// Marks a capture with this tag, which the program has asked for, if such captures are looked
    /// for.
    pub(super) fn called(&self, session: &Session, tag: u64) {
        if self.api && self.admits(session) && !mark_of_call(tag, marks::leave) {
            session.workers.sampler.counters.lose(DropReason::EventNotWritten, 1);
        }
    }

    /// Whether one more may be recorded now; counts it as left out if not.
    fn admits(&self, session: &Session) -> bool {
        let admitted = self.limit.admits(ticks());
        if !admitted {
            session.workers.sampler.counters.lose(DropReason::TriggerLimit, 1);
        }
        admitted
    }
}

impl Drop for EventTriggers {
    fn drop(&mut self) {
        if !self.modules.is_empty() {
            loader::watch(None);
        }
        if !self.registration.is_null() {
            // SAFETY: the registration is this value's own.
            unsafe { RemoveVectoredExceptionHandler(self.registration) };
        }
    }
}

/// The vectored handler. Whatever happens, the search for the program's own handlers continues,
/// with the thread's last error as it was.
///
/// A thread that has overflowed its stack has a page left, which the program's own handlers need:
/// of it only a note is left, from this frame.
///
/// Whatever it calls lies between the two counts: a thread that is in it and not counted has its
/// instruction pointer in the agent. `inject stop --unload` relies on that.
unsafe extern "system" fn handler(info: *mut EXCEPTION_POINTERS) -> i32 {
    STATUS.handler_begun.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the pointers are the system's and valid during this call.
    let record = unsafe { info.as_ref().and_then(|info| info.ExceptionRecord.as_ref()) };
    if let Some(record) = record.filter(|_| !FINISHED.load(Ordering::Acquire)) {
        if record.ExceptionCode as u32 != STACK_OVERFLOW {
            // SAFETY: as above.
            unsafe { raised(info) };
        } else if TAKES_OVERFLOWS.load(Ordering::Acquire) {
            // SAFETY: no preconditions.
            exceptions::leave_overflow(unsafe { GetCurrentThreadId() }, record.ExceptionAddress as u64);
        }
    }
    STATUS.handler_ended.fetch_add(1, Ordering::SeqCst);
    EXCEPTION_CONTINUE_SEARCH
}

/// [`record_exception`] with the thread's last error kept. Not inlined: see [`handler`].
///
/// # Safety
/// As for [`record_exception`].
#[inline(never)]
unsafe fn raised(info: *const EXCEPTION_POINTERS) {
    // SAFETY: by the caller's promise; the error is the thread's own.
    unsafe {
        let error = GetLastError();
        record_exception(info);
        SetLastError(error);
    }
}

/// Records an exception of the calling thread.
///
/// # Safety
/// `info` must be what the system passed to [`handler`], during its call.
unsafe fn record_exception(info: *const EXCEPTION_POINTERS) {
    // SAFETY: by the caller's promise, these are valid or null.
    let Some((info, record)) =
        (unsafe { info.as_ref().and_then(|info| Some((info, info.ExceptionRecord.as_ref()?))) })
    else {
        return;
    };
    // SAFETY: no preconditions.
    let tid = unsafe { GetCurrentThreadId() };
    if threads::is_own(tid) || !IN_HANDLER.enter(tid) {
        return;
    }
    let (code, address) = (record.ExceptionCode as u32, record.ExceptionAddress as u64);
    capture::visit(|session| {
        if !session.triggers.exceptions.takes(code) || !session.triggers.admits(session) {
            return 0;
        }
        let time = ticks();
        if !exceptions::leave(SeenException { tid, event: Exception { thread: 0, time, code, address } }) {
            session.workers.sampler.counters.lose(DropReason::EventNotWritten, 1);
        }
        // SAFETY: the system's context of this thread, valid during the call.
        unsafe { sample(session, info, time, code) }
    });
    IN_HANDLER.leave(tid);
}

/// Takes the sample of the calling thread.
///
/// # Safety
/// As for [`record_exception`].
unsafe fn sample(session: &Session, info: &EXCEPTION_POINTERS, time: Ticks, code: u32) -> u32 {
    if info.ContextRecord.is_null() {
        return 0;
    }
    // Copied, because the system aligns it less than `Context` on x86.
    // SAFETY: by the caller's promise, the context is valid.
    let context = Context(unsafe { info.ContextRecord.read_unaligned() });
    if !context.is_whole() {
        return 0;
    }
    // SAFETY: the context is this thread's, of the frame that raised the exception.
    unsafe { capture::record(session, &context.registers(), time, u64::from(code)) }
}

/// Called on the thread that loads a module, under the loader's lock: marks the load and takes a
/// sample of the thread, if the module's name is looked for.
fn module_loaded(name: &[u8]) {
    let mut wanted = false;
    capture::visit(|session| {
        wanted = session.triggers.modules.iter().any(|pattern| fits(pattern, name, true))
            && session.triggers.admits(session);
        if wanted && !mark_of(b"trigger module: ", name, marks::leave) {
            session.workers.sampler.counters.lose(DropReason::EventNotWritten, 1);
        }
        0
    });
    if wanted {
        // SAFETY: it captures its caller, this function.
        unsafe { capture::stk_capture(0) };
    }
}

/// Leaves the mark `trigger api: tag TAG` by `leave`.
fn mark_of_call(tag: u64, leave: impl Fn(&str) -> bool) -> bool {
    let mut digits = [0; 20];
    let (mut rest, mut begins) = (tag, digits.len());
    for place in digits.iter_mut().rev() {
        *place = b'0' + (rest % 10) as u8;
        rest /= 10;
        begins -= 1;
        if rest == 0 {
            break;
        }
    }
    mark_of(b"trigger api: tag ", digits.get(begins..).unwrap_or(&[]), leave)
}

/// Leaves the mark of `before` and a name by `leave`.
fn mark_of(before: &[u8], name: &[u8], leave: impl Fn(&str) -> bool) -> bool {
    let mut text = [0; MARK];
    let bytes = before.iter().chain(name);
    let len = (before.len() + name.len()).min(MARK);
    for (to, &from) in text.iter_mut().zip(bytes) {
        *to = from;
    }
    let text = text.get(..len).unwrap_or(&[]);
    let whole = core::str::from_utf8(text).map_or_else(|error| error.valid_up_to(), str::len);
    leave(text.get(..whole).and_then(|text| core::str::from_utf8(text).ok()).unwrap_or(""))
}
