//! A CONTEXT's registers in the order of the trace's register set, per architecture.

use stk_schema::registers::{IP, MAX_REGISTERS, RegisterSet, SP};
use stk_schema::{Arch, registers};
use windows_sys::Win32::System::Diagnostics::Debug as sys;

/// The architecture that the agent was built for.
#[cfg(target_arch = "x86_64")]
pub(crate) const ARCH: Arch = Arch::X64;
#[cfg(target_arch = "aarch64")]
pub(crate) const ARCH: Arch = Arch::Arm64;
#[cfg(target_arch = "x86")]
pub(crate) const ARCH: Arch = Arch::X86;

/// The register set of that architecture.
pub(crate) const SET: RegisterSet = RegisterSet::general(ARCH);

/// CONTROL and INTEGER. On arm64 also the vector registers, because d8 to d15 are callee-saved.
#[cfg(target_arch = "x86_64")]
const FLAGS: u32 = 0x0010_0003;
#[cfg(target_arch = "aarch64")]
const FLAGS: u32 = 0x0040_0007;
#[cfg(target_arch = "x86")]
const FLAGS: u32 = 0x0001_0003;

/// CONTEXT_EXCEPTION_REQUEST: asks the system whether the context is reliable. Under WOW64, a
/// thread that runs 64-bit code has a stale one.
#[cfg(target_arch = "x86")]
const REQUEST: u32 = 0x4000_0000;
#[cfg(not(target_arch = "x86"))]
const REQUEST: u32 = 0;

// Checks the bindings' CONTEXT against the numbers that stk-schema's test `e2e::layouts` asserts
// from public headers.
const _: () = {
    use core::mem::offset_of;
    const LAYOUT: stk_schema::layout::ContextLayout = stk_schema::layout::context(ARCH);
    assert!(offset_of!(sys::CONTEXT, ContextFlags) == LAYOUT.flags);
    assert!(size_of::<sys::CONTEXT>() == LAYOUT.size);
    assert!(FLAGS == LAYOUT.request);
    #[cfg(target_arch = "x86_64")]
    assert!(
        offset_of!(sys::CONTEXT, Rip) == LAYOUT.ip
            && offset_of!(sys::CONTEXT, Rsp) == LAYOUT.sp
            && offset_of!(sys::CONTEXT, Rax) == LAYOUT.first
            && offset_of!(sys::CONTEXT, Rbp) == LAYOUT.frame
    );
    #[cfg(target_arch = "aarch64")]
    assert!(
        offset_of!(sys::CONTEXT, Pc) == LAYOUT.ip
            && offset_of!(sys::CONTEXT, Sp) == LAYOUT.sp
            && offset_of!(sys::CONTEXT, Anonymous) == LAYOUT.first
    );
    #[cfg(target_arch = "x86")]
    assert!(
        offset_of!(sys::CONTEXT, Eip) == LAYOUT.ip
            && offset_of!(sys::CONTEXT, Esp) == LAYOUT.sp
            && offset_of!(sys::CONTEXT, Edi) == LAYOUT.first
            && offset_of!(sys::CONTEXT, Ebp) == LAYOUT.frame
    );
};

/// A CONTEXT, aligned as the system demands.
#[repr(C, align(16))]
pub(crate) struct Context(pub sys::CONTEXT);

impl Context {
    /// A context that requests the registers that the trace stores.
    pub(crate) fn request() -> Context {
        // SAFETY: CONTEXT is plain data, for which zero is valid.
        let mut context = Context(unsafe { core::mem::zeroed() });
        context.ask();
        context
    }

    /// Sets the request flags again, because the system overwrites them.
    pub(crate) fn ask(&mut self) {
        self.0.ContextFlags = (FLAGS | REQUEST) as _;
    }

    /// The answer to the exception request, if it was made.
    pub(crate) fn reply(&self) -> Option<u32> {
        (REQUEST != 0).then_some(self.0.ContextFlags)
    }

    /// Whether it holds control and integer registers.
    pub(crate) fn is_whole(&self) -> bool {
        const NEEDED: u32 = FLAGS & !4 | 3;
        self.0.ContextFlags & NEEDED == NEEDED
    }

    pub(crate) fn stack_pointer(&self) -> usize {
        #[cfg(target_arch = "x86_64")]
        let sp = self.0.Rsp as usize;
        #[cfg(target_arch = "aarch64")]
        let sp = self.0.Sp as usize;
        #[cfg(target_arch = "x86")]
        let sp = self.0.Esp as usize;
        sp
    }

    /// The registers in the order of [`SET`].
    pub(crate) fn registers(&self) -> [u64; MAX_REGISTERS] {
        let mut values = [0; MAX_REGISTERS];
        fill(&self.0, &mut values);
        values
    }
}

#[cfg(target_arch = "x86_64")]
fn fill(context: &sys::CONTEXT, values: &mut [u64; MAX_REGISTERS]) {
    values[IP] = context.Rip;
    values[SP] = context.Rsp;
    let general = [
        context.Rax,
        context.Rcx,
        context.Rdx,
        context.Rbx,
        context.Rsp,
        context.Rbp,
        context.Rsi,
        context.Rdi,
        context.R8,
        context.R9,
        context.R10,
        context.R11,
        context.R12,
        context.R13,
        context.R14,
        context.R15,
    ];
    for (number, value) in general.into_iter().enumerate() {
        values[registers::x64_index(number)] = value;
    }
}

#[cfg(target_arch = "aarch64")]
fn fill(context: &sys::CONTEXT, values: &mut [u64; MAX_REGISTERS]) {
    // SAFETY: the union's array covers x0 to x30; all of it is plain data.
    let x = unsafe { context.Anonymous.X };
    let _ = registers::IP;
    values[IP] = context.Pc;
    values[SP] = context.Sp;
    values[2] = x[30];
    values[3] = x[29];
    values[4..33].copy_from_slice(&x[..29]);
    for (index, value) in values[33..41].iter_mut().enumerate() {
        // SAFETY: the union's array of doubles is plain data; the low half of a vector register is
        // its d register.
        *value = unsafe { context.V[8 + index].D[0] }.to_bits();
    }
}

#[cfg(target_arch = "x86")]
fn fill(context: &sys::CONTEXT, values: &mut [u64; MAX_REGISTERS]) {
    let _ = registers::IP;
    let all = [
        context.Eip,
        context.Esp,
        context.Eax,
        context.Ecx,
        context.Edx,
        context.Ebx,
        context.Ebp,
        context.Esi,
        context.Edi,
        context.EFlags,
    ];
    const { assert!(IP == 0 && SP == 1) };
    for (value, register) in values.iter_mut().zip(all) {
        *value = u64::from(register);
    }
}
