//! Dynamic code in this process: what the system's function tables say, asked so that whoever is
//! called back for it may fail, and the thread that asks.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use stk_schema::event::{Event, Metadata};

use crate::record::dynamic::{CodeFunctions, Lookup, Shared, Tables};
use crate::record::journal::Journal;
use crate::record::modules::Events;
use crate::windows::shared::pace::JournalPace;
use crate::windows::system::api::{Api, ticks};
use crate::windows::system::memory::OwnMemory;

/// After so many faults nobody is asked any more: what faults may leave its locks held.
const MOST_FAULTS: u64 = 8;
/// Sightings looked up before what they gave is handed over.
const BATCH: usize = 256;

/// The state of the thread that looks dynamic code up. Like the tables thread it may wait for the
/// loader's lock and, in a runtime's callback, for that runtime; nobody waits for it.
pub struct CodeRecorder {
    functions: CodeFunctions,
    tables: SystemTables,
    memory: OwnMemory,
    journal: Journal<JournalPace>,
    shared: Arc<Shared>,
    ticks_per_ms: u64,
}

impl CodeRecorder {
    /// A recorder that has seen nothing yet.
    pub fn new(
        api: &'static Api,
        functions: CodeFunctions,
        journal: Journal<JournalPace>,
        shared: Arc<Shared>,
        ticks_per_ms: u64,
    ) -> CodeRecorder {
        let tables = SystemTables { api, faults: 0 };
        CodeRecorder { functions, tables, memory: OwnMemory(api), journal, shared, ticks_per_ms }
    }

    /// Looks up some of what waits; true if there is more.
    pub fn step(&mut self) -> bool {
        for _ in 0..BATCH {
            let Some(sighting) = self.shared.sightings.pop() else {
                self.journal.flush();
                return false;
            };
            let before = ticks();
            self.functions.sighted(sighting, &mut self.tables, &self.memory, &mut self.journal);
            let took = (ticks() - before).saturating_mul(1_000_000) / self.ticks_per_ms;
            self.shared.costs.lookup_ns.fetch_add(took, Ordering::Relaxed);
            self.shared.costs.lookup_max_ns.fetch_max(took, Ordering::Relaxed);
        }
        self.journal.flush();
        true
    }

    /// The last round: looks up what waits until `deadline` (ticks), and writes what it all cost.
    pub fn finish(&mut self, deadline: u64) {
        while ticks() < deadline && self.step() {}
        let (news, costs) = (&self.shared.news, &self.shared.costs);
        for (key, value) in [
            ("recorder.code.functions", &news.functions),
            ("recorder.code.stubs", &news.stubs),
            ("recorder.code.sightings", &costs.sightings),
            ("recorder.code.unseen", &costs.lost),
            ("recorder.code.lookups", &costs.lookups),
            ("recorder.code.lookup_ns", &costs.lookup_ns),
            ("recorder.code.lookup_max_ns", &costs.lookup_max_ns),
            ("recorder.code.faults", &costs.faults),
            ("recorder.code.removed", &costs.removed),
            ("recorder.code.forgotten", &costs.forgotten),
            ("recorder.code.bytes", &costs.bytes),
        ] {
            let value = value.load(Ordering::Relaxed);
            if value != 0 {
                let value = alloc::format!("{value}");
                let fact = Metadata { key: key.as_bytes(), value: value.as_bytes() };
                self.journal.event(&Event::Metadata(fact));
            }
        }
        self.journal.flush();
    }

    /// Hands over what was written; for the end of the process.
    pub fn flush(&mut self) {
        self.journal.flush();
    }
}

/// RtlLookupFunctionEntry.
struct SystemTables {
    api: &'static Api,
    faults: u64,
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

/// What [`guarded`] returns for a fault; no entry has an odd address.
const FAULT: u64 = 1;

/// Calls RtlLookupFunctionEntry, whose callbacks are the target's code: a fault in one ends the
/// call.
#[cfg(not(target_arch = "x86"))]
fn guarded(api: &Api, address: u64, image_base: &mut u64) -> u64 {
    let Some(lookup) = api.lookup_function else { return 0 };
    // SAFETY: the function is called as declared, with a valid place for its result. If it is left
    // by an exception, what it held stays held, which concerns the target's code only; the frames
    // in between are the system's and the target's.
    unsafe { guarded_lookup(lookup as usize, address, image_base) }
}

/// x86 has no function tables: the code's bytes are recorded without unwind data.
#[cfg(target_arch = "x86")]
fn guarded(_: &Api, _: u64, _: &mut u64) -> u64 {
    0
}

/// `lookup(address, image_base, null)` with a handler around it: on an exception that nobody in
/// between handles the frames above are unwound, termination handlers included, and [`FAULT`] is
/// returned. What `__try … __except(EXECUTE_HANDLER)` is in C.
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
        // The return address itself has to lie inside.
        "nop",
        ".Lstk_lookup_to:",
        "add rsp, 40",
        "ret",
        // Arrived at with the frame's stack pointer.
        ".Lstk_lookup_fault:",
        "mov eax, 1",
        "add rsp, 40",
        "ret",
        ".pushsection .rdata,\"dr\"",
        ".seh_handlerdata",
        // SCOPE_TABLE: one scope; from, to, EXCEPTION_EXECUTE_HANDLER, where to go on.
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

/// As for x64. The frame has to hold the return address alone; its unwind data is the same at the
/// end of the prologue and at the call, so that the handler goes on with the stack pointer of the
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
        // The return address itself has to lie inside.
        "nop",
        ".Lstk_lookup_to:",
        "b .Lstk_lookup_return",
        // Arrived at with the frame's stack pointer.
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
        // SCOPE_TABLE: one scope; from, to, EXCEPTION_EXECUTE_HANDLER, where to go on.
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
unsafe extern "C" {
    /// The C runtime's handler for scope tables; ntdll has it too.
    fn __C_specific_handler();
}
