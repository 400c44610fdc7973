//! Makes hostile input for stk, and runs stk on it under limits.
//!
//! * [`bombs`]: small traces that need much memory, time or depth.
//! * [`names`]: invalid names, in every place of a trace that has a name.
//! * [`limits`]: a command's exit code, output, processor time and memory.
//! * [`shown`]: what no output for people may have in it.

pub mod bombs;
#[cfg(unix)]
pub mod limits;
pub mod names;
pub mod shown;

use crate::synth::{Parts, TraceBuilder};
use stk_schema::event::{RunState, TableKind, ThreadFlags, ThreadStart};
use stk_schema::identity::{CodeView, Identity, PeIdentity};
use stk_schema::{Arch, Ticks};

/// Highest address of the stack of [`small`]'s thread.
pub const STACK: u64 = 0x10_0000;
/// Where the module of [`small`] lies.
pub const BASE: u64 = 0x1_4000_0000;
/// Instance of the thread of [`small`].
pub const THREAD: u64 = 2;

/// A sound trace: one module with unwind data, one thread, 40 samples in four blocks.
pub fn small() -> Vec<u8> {
    let mut builder = TraceBuilder::new(Arch::X64);
    let module = builder.module(0, BASE, 0x10_0000, r"C:\app\app.exe", Vec::new());
    builder.tables(0, module, &[(TableKind::ExceptionDirectory, 0x8_0000, &[0; 12])]);
    let thread = builder.thread(0, 11, "main", STACK);
    for i in 1..=40 {
        builder.sample(thread, i * 10_000, &[BASE + 0x1000 + i % 3, STACK - 32], &[i, BASE + 0x2000, 0, 0]);
        if i % 10 == 0 {
            builder.cut();
        }
    }
    builder.finish()
}

/// A sound trace of a program whose image has this TimeDateStamp and size, and whose PDB is app.pdb
/// with the GUID of sevens and age 1. It has a sample at each of these RVAs.
pub fn wanting_symbols(time_date_stamp: u32, size_of_image: u32, rvas: &[u64]) -> Vec<u8> {
    let mut builder = TraceBuilder::new(Arch::X64);
    let pe = Identity::Pe(PeIdentity { time_date_stamp, size_of_image, check_sum: 0 });
    let code_view = Identity::CodeView(CodeView { guid: [7; 16], age: 1, pdb_name: b"app.pdb" });
    builder.module(0, BASE, size_of_image.into(), r"C:\app\app.exe", vec![pe, code_view]);
    let thread = builder.thread(0, 11, "main", STACK);
    for (i, rva) in (1..).zip(rvas) {
        builder.sample(thread, i * 10_000, &[BASE + rva, STACK - 32], &[i, 0, 0, 0]);
    }
    builder.finish()
}

/// A sound trace of one thread that runs and waits in turn: each sample is a run of its own.
pub fn alternating(samples: u64) -> Vec<u8> {
    let mut builder = TraceBuilder::new(Arch::X64);
    builder.module(0, BASE, 0x10_0000, r"C:\app\app.exe", Vec::new());
    let thread = builder.thread(0, 11, "main", STACK);
    let registers = [BASE + 0x1000, STACK - 32];
    builder.sample(thread, 10_000, &registers, &[0; 4]);
    for i in 2..=samples {
        let state = if i % 2 == 0 { RunState::Waiting } else { RunState::Running };
        builder.same(thread, i * 10_000, state);
        if i % 5_000 == 0 {
            builder.cut();
            builder.sample(thread, i * 10_000 + 5_000, &registers, &[0; 4]);
        }
    }
    builder.finish()
}

/// [`small`] taken apart.
///
/// # Panics
/// Never: it is a trace.
pub fn small_parts() -> Parts {
    Parts::take_apart(&small()).expect("a trace")
}

/// Start of a thread.
pub fn thread(instance: u64) -> ThreadStart {
    let flags = ThreadFlags::empty();
    ThreadStart {
        instance,
        time: Ticks(0),
        tid: instance as u32,
        flags,
        start_address: 0,
        stack_base: STACK,
        created: 0,
    }
}
