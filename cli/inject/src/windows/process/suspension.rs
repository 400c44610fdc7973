//! A thread of another process, suspended for as long as it takes to read its registers.

use std::os::windows::io::{AsRawHandle as _, BorrowedHandle};
use windows_sys::Win32::System::Diagnostics::Debug::{CONTEXT, GetThreadContext};
use windows_sys::Win32::System::Threading::{ResumeThread, SuspendThread};

/// A suspended thread, resumed when dropped.
pub(crate) struct Suspension<'a> {
    thread: BorrowedHandle<'a>,
    registers: Registers,
}

/// Where a thread stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Registers {
    /// Instruction pointer.
    pub ip: u64,
    /// Stack pointer.
    pub sp: u64,
}

/// CONTEXT, aligned as the system demands.
#[repr(C, align(16))]
struct Context(CONTEXT);

impl<'a> Suspension<'a> {
    /// Suspends a thread whose handle has the rights for that and for reading its registers, and
    /// waits until it has stopped; `None` if it was refused.
    pub(crate) fn of(thread: BorrowedHandle<'a>) -> Option<Suspension<'a>> {
        if !suspend(thread) {
            return None;
        }
        let mut suspension = Suspension { thread, registers: Registers { ip: 0, sp: 0 } };
        suspension.registers = registers_of(thread)?;
        Some(suspension)
    }

    pub(crate) fn registers(&self) -> Registers {
        self.registers
    }
}

impl Drop for Suspension<'_> {
    fn drop(&mut self) {
        resume(self.thread);
    }
}

/// Suspends a thread, which may not have stopped yet when this returns; false if that is refused.
pub(crate) fn suspend(thread: BorrowedHandle) -> bool {
    // SAFETY: the handle is open, and the system checks its rights.
    unsafe { SuspendThread(thread.as_raw_handle()) != u32::MAX }
}

/// Waits until a suspended thread has stopped and reads its registers; `None` if that is refused.
pub(crate) fn registers_of(thread: BorrowedHandle) -> Option<Registers> {
    let mut context = Context(CONTEXT::default());
    context.0.ContextFlags = CONTROL;
    // SAFETY: the handle is open, and the struct has room for the registers.
    let known = unsafe { GetThreadContext(thread.as_raw_handle(), &mut context.0) } != 0;
    known.then(|| registers(&context.0))
}

/// Takes one suspension of a thread back.
pub(crate) fn resume(thread: BorrowedHandle) {
    // SAFETY: the handle is open, and the system checks its rights.
    unsafe { ResumeThread(thread.as_raw_handle()) };
}

#[cfg(target_arch = "x86_64")]
const CONTROL: u32 = windows_sys::Win32::System::Diagnostics::Debug::CONTEXT_CONTROL_AMD64;
#[cfg(target_arch = "x86")]
const CONTROL: u32 = windows_sys::Win32::System::Diagnostics::Debug::CONTEXT_CONTROL_X86;
#[cfg(target_arch = "aarch64")]
const CONTROL: u32 = windows_sys::Win32::System::Diagnostics::Debug::CONTEXT_CONTROL_ARM64;

fn registers(context: &CONTEXT) -> Registers {
    #[cfg(target_arch = "x86_64")]
    return Registers { ip: context.Rip, sp: context.Rsp };
    #[cfg(target_arch = "x86")]
    return Registers { ip: u64::from(context.Eip), sp: u64::from(context.Esp) };
    #[cfg(target_arch = "aarch64")]
    return Registers { ip: context.Pc, sp: context.Sp };
}
