//! The exports for the calling thread that need no recording: `stk_backtrace` and
//! `stk_thread_name`.

use core::ffi::{CStr, c_char, c_void};

#[cfg(not(target_arch = "x86"))]
use windows_sys::Win32::System::Diagnostics::Debug::RtlCaptureContext;
use windows_sys::Win32::System::Threading::GetCurrentThread;

use super::system::api::api;
use super::system::backtrace::{Backtrace, walk};
use super::system::context::Context;
use super::system::own_module;
use super::system::text::UnicodeString;

/// Most UTF-16 units of a thread's name; the rest is cut off.
const NAME: usize = 250;

/// Export: fills `pcs` with the instruction pointer of `context` and its return addresses, or those
/// of the caller where `context` is null. Returns their number.
///
/// # Safety
/// `context` is null or the calling thread's; `pcs` has room for `max` addresses.
#[cfg(not(target_arch = "x86"))]
#[unsafe(no_mangle)]
unsafe extern "system" fn stk_backtrace(
    context: *const Context,
    pcs: *mut *mut c_void,
    max: u32,
    skip: u32,
) -> u32 {
    let mut own = Context::request();
    // SAFETY: by the caller's promise; the system fills a CONTEXT of the calling thread.
    unsafe {
        match context.as_ref() {
            Some(given) => own.0 = given.0,
            None => RtlCaptureContext(&mut own.0),
        }
        backtrace(&mut own, pcs, max, skip)
    }
}

/// Export: as on x64. RtlCaptureContext of x86 relies on frame pointers of its callers, so the walk
/// begins at this frame.
#[cfg(target_arch = "x86")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "system" fn stk_backtrace(
    context: *const Context,
    pcs: *mut *mut c_void,
    max: u32,
    skip: u32,
) -> u32 {
    core::arch::naked_asm!(
        "push ebp",
        "mov ebp, esp",
        "push dword ptr [ebp + 20]",
        "push dword ptr [ebp + 16]",
        "push dword ptr [ebp + 12]",
        "push dword ptr [ebp + 8]",
        "push ebp",
        "call {from_frame}",
        "pop ebp",
        "ret 16",
        from_frame = sym from_frame,
    )
}

/// [`stk_backtrace`], whose frame is at `frame`: its caller's ebp and its return address.
#[cfg(target_arch = "x86")]
unsafe extern "system" fn from_frame(
    frame: *const u32,
    context: *const Context,
    pcs: *mut *mut c_void,
    max: u32,
    skip: u32,
) -> u32 {
    let mut own = Context::request();
    // SAFETY: by the caller's promise; the stub's frame holds both words.
    unsafe {
        match context.as_ref() {
            Some(given) => own.0 = given.0,
            None => (own.0.Ebp, own.0.Eip) = (frame.read(), frame.add(1).read()),
        }
        backtrace(&mut own, pcs, max, skip)
    }
}

/// Walks from `context`.
///
/// # Safety
/// As for [`stk_backtrace`].
unsafe fn backtrace(context: &mut Context, pcs: *mut *mut c_void, max: u32, skip: u32) -> u32 {
    own_module::note_use();
    if pcs.is_null() || max == 0 {
        return 0;
    }
    // SAFETY: by the caller's promise; the addresses are plain data.
    let pcs = unsafe { core::slice::from_raw_parts_mut(pcs.cast::<usize>(), max as usize) };
    let mut into = Backtrace::new(pcs, skip, own_module::image());
    // SAFETY: a CONTEXT of the calling thread, by the caller's promise.
    unsafe { walk(context, &mut into) };
    into.found() as u32
}

/// Export: names the calling thread as SetThreadDescription does: 0 named, 2 the system cannot, 3
/// no UTF-8 text.
///
/// # Safety
/// `text` is null or a zero-terminated text.
#[unsafe(no_mangle)]
unsafe extern "system" fn stk_thread_name(text: *const c_char) -> u32 {
    /// ThreadNameInformation.
    const THREAD_NAME: u32 = 38;
    own_module::note_use();
    if text.is_null() {
        return 3;
    }
    // SAFETY: by the caller's promise.
    let Ok(text) = unsafe { CStr::from_ptr(text) }.to_str() else { return 3 };
    let (mut units, mut len) = ([0u16; NAME], 0);
    for c in text.chars() {
        let Some(room) = units.get_mut(len..len + c.len_utf16()) else { break };
        len += c.encode_utf16(room).len();
    }
    let name = UnicodeString { len: 2 * len as u16, capacity: 2 * len as u16, text: units.as_ptr() };
    let Some(set) = api().and_then(|api| api.set_thread) else { return 2 };
    // SAFETY: the calling thread's pseudo handle, and a UNICODE_STRING that lives through the call.
    let status = unsafe {
        set(GetCurrentThread(), THREAD_NAME, (&raw const name).cast(), size_of::<UnicodeString>() as u32)
    };
    if status >= 0 { 0 } else { 2 }
}
