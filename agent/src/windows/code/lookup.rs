//! Looks up dynamic code in the system's function tables, and survives a fault of the callbacks
//! that the tables may call. Never while a thread is suspended.

use crate::record::dynamic::{Lookup, Tables};
use crate::windows::system::api::SystemApi;

/// Lookups stop after this many faults: a callback that faults may leave its locks held.
const MOST_FAULTS: u64 = 8;

/// RtlLookupFunctionEntry.
pub(super) struct SystemTables {
    api: &'static SystemApi,
    faults: u64,
}

impl SystemTables {
    /// Function tables without faults so far.
    pub(super) fn new(api: &'static SystemApi) -> SystemTables {
        SystemTables { api, faults: 0 }
    }
}

impl Tables for SystemTables {
    fn lookup(&mut self, address: u64) -> Lookup {
        if self.faults >= MOST_FAULTS {
            return Lookup::Unasked;
        }
        let mut image_base = 0;
        match guarded(self.api, address, &mut image_base) {
            FAULT => {
                self.faults += 1;
                Lookup::Fault
            }
            0 => Lookup::None,
            entry => Lookup::Found { entry, image_base },
        }
    }
}

/// The result of [`guarded`] for a fault; no entry has an odd address.
const FAULT: u64 = 1;

/// Calls RtlLookupFunctionEntry. Its callbacks are the target's code; a fault in one ends the call.
#[cfg(not(target_arch = "x86"))]
fn guarded(api: &SystemApi, address: u64, image_base: &mut u64) -> u64 {
    let Some(lookup) = api.lookup_function else { return 0 };
    // SAFETY: the function is called as declared, with valid memory for its result. If an exception
    // ends it, locks of its callback stay held, which concerns the target's code only; the frames
    // in between belong to the system and the target.
    unsafe { guarded_lookup(lookup as usize, address, image_base) }
}

/// x86 has no function tables: the code's bytes are recorded without unwind data.
#[cfg(target_arch = "x86")]
fn guarded(_: &SystemApi, _: u64, _: &mut u64) -> u64 {
    0
}

/// Calls `lookup(address, image_base, null)` with a handler around it. On an exception that no
/// frame in between handles, the system unwinds the frames above, runs their termination handlers,
/// and this returns [`FAULT`]. Equivalent to `__try … __except(EXECUTE_HANDLER)` in C.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "system" fn guarded_lookup(lookup: usize, address: u64, image_base: *mut u64) -> u64 {
    core::arch::naked_asm!(
        ".seh_proc {this}",
        ".seh_handler {handler}, @except",
        "sub rsp, 40",
        ".seh_stackalloc 40",
        ".seh_endprologue",
        "mov rax, rcx",
        "mov rcx, rdx",
        "mov rdx, r8",
        "xor r8d, r8d",
        ".Lstk_lookup_from:",
        "call rax",
        // The return address itself must lie inside the scope.
        "nop",
        ".Lstk_lookup_to:",
        "add rsp, 40",
        "ret",
        // The handler continues here with the frame's stack pointer.
        ".Lstk_lookup_fault:",
        "mov eax, 1",
        "add rsp, 40",
        "ret",
        ".pushsection .rdata,\"dr\"",
        ".seh_handlerdata",
        // SCOPE_TABLE: one scope; from, to, EXCEPTION_EXECUTE_HANDLER, where to continue.
        ".long 1",
        ".rva .Lstk_lookup_from",
        ".rva .Lstk_lookup_to",
        ".long 1",
        ".rva .Lstk_lookup_fault",
        ".popsection",
        ".seh_endproc",
        this = sym guarded_lookup,
        handler = sym __C_specific_handler,
    )
}

/// The same for arm64. The frame must hold only the return address. Its unwind data is the same at
/// the end of the prologue and at the call, so the handler continues with the stack pointer of the
/// call.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "system" fn guarded_lookup(lookup: usize, address: u64, image_base: *mut u64) -> u64 {
    core::arch::naked_asm!(
        ".seh_proc {this}",
        ".seh_handler {handler}, @except",
        "stp x29, x30, [sp, #-16]!",
        ".seh_save_fplr_x 16",
        "mov x29, sp",
        ".seh_set_fp",
        ".seh_endprologue",
        "mov x8, x0",
        "mov x0, x1",
        "mov x1, x2",
        "mov x2, xzr",
        ".Lstk_lookup_from:",
        "blr x8",
        // The return address itself must lie inside the scope.
        "nop",
        ".Lstk_lookup_to:",
        "b .Lstk_lookup_return",
        // The handler continues here with the frame's stack pointer.
        ".Lstk_lookup_fault:",
        "mov x0, #1",
        ".Lstk_lookup_return:",
        ".seh_startepilogue",
        "ldp x29, x30, [sp], #16",
        ".seh_save_fplr_x 16",
        ".seh_endepilogue",
        "ret",
        ".pushsection .rdata,\"dr\"",
        ".seh_handlerdata",
        // SCOPE_TABLE: one scope; from, to, EXCEPTION_EXECUTE_HANDLER, where to continue.
        ".long 1",
        ".rva .Lstk_lookup_from",
        ".rva .Lstk_lookup_to",
        ".long 1",
        ".rva .Lstk_lookup_fault",
        ".popsection",
        ".seh_endproc",
        this = sym guarded_lookup,
        handler = sym __C_specific_handler,
    )
}

#[cfg(not(target_arch = "x86"))]
#[link(name = "ntdll.dll", kind = "raw-dylib", modifiers = "+verbatim")]
unsafe extern "C" {
    /// The handler for scope tables.
    fn __C_specific_handler();
}
