//! What a hostile hand would give to stk, made to order, and stk run on it under limits.
//!
//! * [`bombs`]: small traces that stand for much: memory, time, depth.
//! * [`names`]: names that are no names, in every place of a trace that has one.
//! * [`limits`]: a command's exit code, output, processor time and memory.

pub mod bombs;
#[cfg(unix)]
pub mod limits;
pub mod names;

use stk_format::synth::{Parts, TraceBuilder};
use stk_schema::event::{TableKind, ThreadFlags, ThreadStart};
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
