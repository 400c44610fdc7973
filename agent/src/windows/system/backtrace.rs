//! Walks the calling thread's own stack, for `stk_backtrace`. Needs no recording, suspends nothing,
//! allocates nothing.
//!
//! x64 and arm64: RtlLookupFunctionEntry, which takes the function-table locks of ntdll, and
//! RtlVirtualUnwind. x86 has neither: there the chain of frame pointers is followed. Both end where
//! a stack pointer leaves the thread's stack. A stack that the program has overwritten can fault
//! here as in the program itself: nothing catches that.

use core::ops::Range;

use super::context::Context;
use super::thread::Teb;

/// Where a walk puts what it finds.
pub(crate) struct Backtrace<'a> {
    /// The caller's array.
    pub pcs: &'a mut [usize],
    /// Frames that are left out before the first.
    pub skip: u32,
    /// The agent's own code, which is left out before anything else.
    pub own: Range<usize>,
    found: usize,
    outside: bool,
}

impl<'a> Backtrace<'a> {
    /// A walk that has found nothing.
    pub(crate) fn new(pcs: &'a mut [usize], skip: u32, own: Range<usize>) -> Backtrace<'a> {
        Backtrace { pcs, skip, own, found: 0, outside: false }
    }

    /// Frames found.
    pub(crate) fn found(&self) -> usize {
        self.found
    }

    /// Takes a frame; false if there is no room for another.
    fn take(&mut self, ip: usize) -> bool {
        self.outside |= !self.own.contains(&ip);
        if self.outside && self.skip > 0 {
            self.skip -= 1;
        } else if self.outside {
            let Some(pc) = self.pcs.get_mut(self.found) else { return false };
            *pc = ip;
            self.found += 1;
        }
        self.found < self.pcs.len()
    }
}

#[cfg(not(target_arch = "x86"))]
mod system {
    use core::ffi::c_void;
    use core::ptr::null_mut;

    use windows_sys::Win32::System::Diagnostics::Debug::CONTEXT;

    #[link(name = "kernel32.dll", kind = "raw-dylib", modifiers = "+verbatim")]
    unsafe extern "system" {
        pub(super) fn RtlLookupFunctionEntry(pc: u64, image: *mut u64, history: *mut c_void)
        -> *const c_void;
        pub(super) fn RtlVirtualUnwind(
            handler_type: u32,
            image: u64,
            pc: u64,
            function: *const c_void,
            context: *mut CONTEXT,
            handler_data: *mut *mut c_void,
            establisher: *mut u64,
            pointers: *mut c_void,
        ) -> *mut c_void;
    }

    /// The caller's registers; false if it is not known.
    ///
    /// # Safety
    /// The context is of the calling thread, its stack pointer within that thread's stack.
    pub(super) unsafe fn step(context: &mut CONTEXT, first: bool) -> bool {
        let ip = ip(context);
        // A return address may lie behind the last instruction of its function.
        let inside = if first { ip } else { ip - 1 };
        let (mut image, mut handler_data, mut establisher) = (0, null_mut(), 0);
        // SAFETY: the address is only looked up.
        let function = unsafe { RtlLookupFunctionEntry(inside, &mut image, null_mut()) };
        if function.is_null() {
            // A leaf; only the innermost function can be one.
            // SAFETY: by the caller's promise.
            return first && unsafe { leave_leaf(context) };
        }
        // SAFETY: the function's entry as it was looked up, and the thread's own stack.
        unsafe {
            RtlVirtualUnwind(
                0,
                image,
                ip,
                function,
                context,
                &mut handler_data,
                &mut establisher,
                null_mut(),
            );
        }
        true
    }

    #[cfg(target_arch = "x86_64")]
    pub(super) fn ip(context: &CONTEXT) -> u64 {
        context.Rip
    }

    #[cfg(target_arch = "aarch64")]
    pub(super) fn ip(context: &CONTEXT) -> u64 {
        context.Pc
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn leave_leaf(context: &mut CONTEXT) -> bool {
        // SAFETY: the stack pointer lies within the stack, by the caller's promise.
        context.Rip = unsafe { (context.Rsp as *const u64).read_unaligned() };
        context.Rsp += 8;
        true
    }

    #[cfg(target_arch = "aarch64")]
    unsafe fn leave_leaf(context: &mut CONTEXT) -> bool {
        // SAFETY: the union's array covers x0 to x30; all of it is plain data.
        let lr = unsafe { context.Anonymous.X }[30];
        let moved = lr != context.Pc;
        context.Pc = lr;
        moved
    }
}

/// Fills `into` with the instruction pointer of `context` and its return addresses.
///
/// # Safety
/// The context is of the calling thread, at or above the frame of the caller.
#[cfg(not(target_arch = "x86"))]
pub(crate) unsafe fn walk(context: &mut Context, into: &mut Backtrace<'_>) {
    // SAFETY: the calling thread's own block.
    let (limit, base) = unsafe { Teb::current().stack() };
    let mut first = true;
    loop {
        let (ip, sp) = (system::ip(&context.0), context.stack_pointer());
        if ip == 0 || !into.take(ip as usize) {
            return;
        }
        if !sp.is_multiple_of(8) || !(limit..base).contains(&sp) {
            return;
        }
        // SAFETY: by the caller's promise and the check above.
        let known = unsafe { system::step(&mut context.0, first) };
        if !known || context.stack_pointer() < sp || (context.stack_pointer() == sp && !first) {
            return;
        }
        first = false;
    }
}

/// Fills `into` with the instruction pointer of `context` and the return addresses in the chain of
/// frame pointers.
///
/// # Safety
/// The context is of the calling thread, at or above the frame of the caller.
#[cfg(target_arch = "x86")]
pub(crate) unsafe fn walk(context: &mut Context, into: &mut Backtrace<'_>) {
    // SAFETY: the calling thread's own block.
    let (limit, base) = unsafe { Teb::current().stack() };
    let (mut ip, mut frame) = (context.0.Eip as usize, context.0.Ebp as usize);
    while ip != 0 && into.take(ip) {
        if !frame.is_multiple_of(4) || frame < limit || frame.saturating_add(8) > base {
            return;
        }
        // SAFETY: both words lie within the thread's own stack.
        let (next, caller) =
            unsafe { ((frame as *const usize).read(), (frame as *const usize).add(1).read()) };
        ip = caller;
        if next <= frame {
            into.take(ip);
            return;
        }
        frame = next;
    }
}
