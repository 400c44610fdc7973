//! The exports `stk_capture`, `stk_capture_context` and `stk_mark`: a thread of the target requests
//! a sample of itself, or leaves a mark.
//!
//! They run on that thread, take no lock, allocate nothing and do not wait.

use core::ffi::{CStr, c_char};
use core::sync::atomic::Ordering;

use stk_schema::Ticks;
use stk_schema::control::TEST_PANIC_IN_CAPTURE;
use stk_schema::event::DropReason;
use stk_schema::registers::MAX_REGISTERS;

use super::{CURRENT, Session, VISITORS};
use crate::windows::sampler::triggers::callers_registers;
use crate::windows::shared::events::WAKE_TABLES;
use crate::windows::shared::state::SIGNALS;
use crate::windows::system::api::ticks;
use crate::windows::system::context::Context;
use crate::windows::system::landing::survive_panic;
use crate::windows::system::{own_module, panic};
use crate::windows::tables::marks;

/// `stk_capture` calls this with its caller's context. 0 = recorded, 1 = nothing is recording, 2 =
/// dropped, also by a panic of the recorder.
extern "system" fn captured(context: *const Context, return_at: usize, tag: u64) -> u32 {
    // The agent captures a thread that loads a module by this function, too.
    // SAFETY: `stk_capture` passes the address of its return address.
    let by_program = !own_module::image().contains(&unsafe { (return_at as *const usize).read() });
    if by_program {
        own_module::note_use();
    }
    visit(|session| {
        if by_program {
            session.triggers.called(session, tag);
        }
        // SAFETY: `stk_capture` passes the calling thread's context and the address of its return
        // address.
        unsafe { record(session, &callers_registers(&*context, return_at), ticks(), tag) }
    })
}

/// Export: records the calling thread's stack as `context` has it, such as that of an exception. 0,
/// 1 and 2 as for [`captured`]; 3 = no context, or one without control and integer registers.
///
/// # Safety
/// `context` is null or the calling thread's, of its present frame or of one above.
#[unsafe(no_mangle)]
unsafe extern "system" fn stk_capture_context(context: *const Context, tag: u64) -> u32 {
    own_module::note_use();
    // SAFETY: by the caller's promise.
    match unsafe { context.as_ref() } {
        Some(context) if context.is_whole() => {
            visit(|session| {
                session.triggers.called(session, tag);
                // SAFETY: by the caller's promise.
                unsafe { record(session, &context.registers(), ticks(), tag) }
            })
        }
        _ => 3,
    }
}

/// Export: leaves a mark at this moment, of the calling thread. 0, 1 and 2 as for [`captured`]; 3 =
/// no UTF-8 text.
///
/// # Safety
/// `text` is null or a zero-terminated text.
#[unsafe(no_mangle)]
unsafe extern "system" fn stk_mark(text: *const c_char) -> u32 {
    own_module::note_use();
    if text.is_null() {
        return 3;
    }
    // SAFETY: by the caller's promise.
    let Ok(text) = unsafe { CStr::from_ptr(text) }.to_str() else { return 3 };
    visit(|session| {
        if marks::leave(text) {
            WAKE_TABLES.signal();
            return 0;
        }
        session.workers.sampler.counters.lose(DropReason::EventNotWritten, 1);
        2
    })
}

/// What `work` returns for the current recording; 1 if there is none, 2 if the recorder panics.
pub(super) fn visit(work: impl FnOnce(&Session) -> u32) -> u32 {
    VISITORS.fetch_add(1, Ordering::AcqRel);
    let mut result = 2;
    survive_panic(|| {
        // SAFETY: while a visitor is counted, the session behind a non-null pointer is not freed.
        result = match unsafe { CURRENT.load(Ordering::Acquire).as_ref() } {
            Some(session) if !SIGNALS.stopping() => work(session),
            _ => 1,
        };
    });
    VISITORS.fetch_sub(1, Ordering::AcqRel);
    result
}

/// Records the calling thread's stack. The results are those of [`captured`].
///
/// # Safety
/// The registers must be the calling thread's, of its present frame or of one above.
pub(super) unsafe fn record(
    session: &Session,
    registers: &[u64; MAX_REGISTERS],
    time: Ticks,
    tag: u64,
) -> u32 {
    panic::if_requested(TEST_PANIC_IN_CAPTURE);
    let sampler = &session.workers.sampler;
    // SAFETY: by the caller's promise.
    match unsafe { sampler.triggers.capture(registers, time, tag) } {
        Some(waiting) => {
            sampler.report_capture(waiting, time);
            0
        }
        None => {
            sampler.counters.lose(DropReason::BuffersFull, 1);
            2
        }
    }
}

// `stk_capture` must know its caller's registers and stack pointer exactly, so it is written in
// assembly: its prologue keeps the callee-saved registers unchanged, and RtlCaptureContext, called
// from it, stores them. It has its own unwind information, because it can be sampled like any other
// code.

/// Export `stk_capture`: see `stk_schema::control::EXPORT_CAPTURE`.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub(super) unsafe extern "system" fn stk_capture(tag: u64) -> u32 {
    // 0x20 shadow space, 0x4d0 CONTEXT, 8 tag, 0x10 padding: rsp is 8 modulo 16 on entry, so this
    // aligns it.
    core::arch::naked_asm!(
        ".seh_proc stk_capture",
        "sub rsp, 0x508",
        ".seh_stackalloc 0x508",
        ".seh_endprologue",
        "mov [rsp + 0x4f0], rcx",
        "lea rcx, [rsp + 0x20]",
        "call {capture_context}",
        "lea rcx, [rsp + 0x20]",
        "lea rdx, [rsp + 0x508]",
        "mov r8, [rsp + 0x4f0]",
        "call {captured}",
        "add rsp, 0x508",
        "ret",
        ".seh_endproc",
        capture_context = sym windows_sys::Win32::System::Diagnostics::Debug::RtlCaptureContext,
        captured = sym captured,
    )
}

/// Export `stk_capture`: see `stk_schema::control::EXPORT_CAPTURE`.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub(super) unsafe extern "system" fn stk_capture(tag: u64) -> u32 {
    // 0x390 CONTEXT, 0x10 tag; below them fp and lr. The return address is passed in memory, as on
    // the other architectures.
    core::arch::naked_asm!(
        ".seh_proc stk_capture",
        "stp x29, x30, [sp, #-16]!",
        ".seh_save_fplr_x 16",
        "sub sp, sp, #0x3a0",
        ".seh_stackalloc 0x3a0",
        ".seh_endprologue",
        "str x0, [sp, #0x390]",
        "mov x0, sp",
        "bl {capture_context}",
        "ldr x30, [sp, #0x3a8]",
        "mov x0, sp",
        "add x1, sp, #0x3a8",
        "ldr x2, [sp, #0x390]",
        "bl {captured}",
        ".seh_startepilogue",
        "add sp, sp, #0x3a0",
        ".seh_stackalloc 0x3a0",
        "ldp x29, x30, [sp], #16",
        ".seh_save_fplr_x 16",
        ".seh_endepilogue",
        "ret",
        ".seh_endproc",
        capture_context = sym windows_sys::Win32::System::Diagnostics::Debug::RtlCaptureContext,
        captured = sym captured,
    )
}

/// Export `stk_capture`: see `stk_schema::control::EXPORT_CAPTURE`.
#[cfg(target_arch = "x86")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub(super) unsafe extern "system" fn stk_capture(tag: u64) -> u32 {
    // RtlCaptureContext on x86 stores ebp, esp and eip of its caller's caller by the frame chain.
    // The frame here is a regular one, so that the stored ebp is the caller's.
    core::arch::naked_asm!(
        "push ebp",
        "mov ebp, esp",
        "and esp, -16",
        "sub esp, 0x2d0",
        "push esp",
        "call {capture_context}",
        "mov eax, esp",
        "push dword ptr [ebp + 12]",
        "push dword ptr [ebp + 8]",
        "lea edx, [ebp + 4]",
        "push edx",
        "push eax",
        "call {captured}",
        "mov esp, ebp",
        "pop ebp",
        "ret 8",
        capture_context = sym windows_sys::Win32::System::Diagnostics::Debug::RtlCaptureContext,
        captured = sym captured,
    )
}
