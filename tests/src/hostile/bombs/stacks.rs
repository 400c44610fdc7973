//! Stacks that are far larger than their stored bytes.

use super::{many, module, named, runtime};
use crate::hostile::{BASE, STACK, thread};
use crate::synth::{Parts, TraceBuilder};
use stk_format::{BlockKind, RawSample};
use stk_schema::event::*;
use stk_schema::registers::{IP, RegisterSet, SP};
use stk_schema::{Arch, Ticks};

/// Frames of a deep stack. Walks do not go deeper.
const DEPTH: usize = 4_090;
/// Words of a frame: `sub rsp, 28h` and the return address.
const FRAME: usize = 6;
/// The module's functions: their number, their size in bytes, the RVA of the first.
const FUNCTIONS: u32 = 4_000;
const SIZE: u32 = 0x40;
const FIRST: u32 = 0x1000;

/// A trace with one module whose functions all have unwind data.
fn builder(path: &str) -> TraceBuilder {
    let mut builder = TraceBuilder::new(Arch::X64);
    let module = builder.module(0, BASE, 0x10_0000, path, Vec::new());
    add_tables(&mut builder, module, FUNCTIONS, (0x8_0000, 0xc_0000));
    builder
}

/// Unwind data of a module's functions, at two places in it: `sub rsp, 28h` (x64 exception
/// handling: UNWIND_INFO version 1, prologue of 4 bytes, UWOP_ALLOC_SMALL of 28h bytes).
fn add_tables(builder: &mut TraceBuilder, module: u64, functions: u32, (pdata, xdata): (u32, u32)) {
    let function = |n| [FIRST + n * SIZE, FIRST + (n + 1) * SIZE, xdata];
    let directory: Vec<u8> = (0..functions).flat_map(function).flat_map(u32::to_le_bytes).collect();
    let tables = [
        (TableKind::ExceptionDirectory, pdata, directory.as_slice()),
        (TableKind::UnwindInfo, xdata, &[1, 4, 1, 0, 4, 0x42, 0, 0]),
    ];
    builder.tables(0, module, &tables);
}

/// An address behind the prologue of a function.
fn inside(function: usize) -> u64 {
    BASE + u64::from(FIRST + function as u32 % FUNCTIONS * SIZE) + 16
}

/// The words of a stack of `frames` frames. `caller` returns the function of each, innermost first.
fn stack(frames: usize, caller: impl Fn(usize) -> usize) -> Vec<u64> {
    let mut words = vec![0; FRAME * frames];
    for (n, frame) in words.chunks_exact_mut(FRAME).enumerate() {
        frame[FRAME - 1] = inside(caller(n));
    }
    words
}

/// A sample of a thread with that stack.
fn sample(builder: &mut TraceBuilder, thread: u64, time: u64, ip: u64, words: &[u64]) {
    builder.sample(thread, time, &[ip, STACK_BASE - 8 * words.len() as u64], words);
}

/// The end of the threads' stacks.
const STACK_BASE: u64 = STACK << 8;

fn taken_apart(builder: TraceBuilder, parts: &mut Parts) {
    *parts = Parts::take_apart(&builder.abandon()).unwrap_or_else(|| parts.clone());
}

/// No two samples share a frame's caller.
pub(super) fn other_roots(parts: &mut Parts, samples: usize) {
    let mut builder = builder(r"C:\app\app.exe");
    let thread = builder.thread(0, 11, "main", STACK_BASE);
    let mut words = stack(DEPTH, |_| 1);
    let (last, root) = (words.len() - 1, words.len() - 1 - FRAME);
    for i in 0..samples {
        (words[last], words[root]) = (inside(i), inside(i / FUNCTIONS as usize));
        sample(&mut builder, thread, i as u64 * 1000, inside(1), &words);
        if i % 100 == 99 {
            builder.cut();
        }
    }
    builder.cut();
    taken_apart(builder, parts);
}

/// One block of 2,000 such samples, repeated.
pub(super) fn repeated_roots(parts: &mut Parts, blocks: usize) {
    let mut builder = builder(r"C:\app\app.exe");
    let thread = builder.thread(0, 11, "main", STACK_BASE);
    let mut words = stack(DEPTH, |_| 1);
    let root = words.len() - 1;
    for i in 0..2_000 {
        words[root] = inside(i % 2);
        sample(&mut builder, thread, i as u64 * 1000, inside(1), &words);
    }
    builder.cut();
    taken_apart(builder, parts);
    if let Some(block) = parts.blocks.last_mut() {
        block.times = blocks as u32;
    }
}

/// Each thread has one deep stack.
pub(super) fn many_threads(parts: &mut Parts, threads: usize) {
    let mut builder = builder(r"C:\app\app.exe");
    let words = stack(DEPTH, |_| 1);
    for i in 0..threads {
        let thread = builder.thread(0, 11 + i as u32, "", STACK_BASE);
        sample(&mut builder, thread, i as u64 * 1000, inside(1), &words);
        if i % 200 == 199 {
            builder.cut();
        }
    }
    builder.cut();
    taken_apart(builder, parts);
}

/// Deep stacks, each of which stands for a day.
pub(super) fn days(parts: &mut Parts, samples: usize) {
    apart(parts, samples, 86_400);
}

/// Deep stacks, each of which stands for a century.
pub(super) fn centuries(parts: &mut Parts, samples: usize) {
    apart(parts, samples, 86_400 * 36_525);
}

fn apart(parts: &mut Parts, samples: usize, seconds: u64) {
    let mut builder = builder(r"C:\app\app.exe");
    let thread = builder.thread(0, 11, "main", STACK_BASE);
    let words = stack(DEPTH, |_| 1);
    for i in 0..samples {
        sample(&mut builder, thread, i as u64 * seconds, inside(i), &words);
        builder.cut();
    }
    taken_apart(builder, parts);
    parts.header.clock_frequency = 1;
}

/// Every frame's name repeats that of the module.
pub(super) fn long_module(parts: &mut Parts, samples: usize) {
    let mut builder = builder(&"x".repeat(super::TEXT));
    let thread = builder.thread(0, 11, "main", STACK_BASE);
    for i in 0..samples {
        let words = stack(DEPTH, |n| n + i);
        sample(&mut builder, thread, i as u64 * 1000, inside(i), &words);
    }
    builder.cut();
    taken_apart(builder, parts);
}

/// Each frame is in another module than its neighbours, and no two samples share a root: nearly
/// every stack goes through other modules.
pub(super) fn many_modules(parts: &mut Parts, samples: usize) {
    const MODULES: usize = 2_000;
    const MODULE_SIZE: u32 = 0x1_0000;
    let mut builder = TraceBuilder::new(Arch::X64);
    let base = |n: usize| BASE + n as u64 * u64::from(MODULE_SIZE);
    for n in 0..MODULES {
        let module = builder.module(0, base(n), MODULE_SIZE.into(), r"C:\app\a.dll", Vec::new());
        add_tables(&mut builder, module, 1, (0x8000, 0xc000));
    }
    let thread = builder.thread(0, 11, "main", STACK_BASE);
    let inside = |n: usize| base(n % MODULES) + u64::from(FIRST) + 16;
    for i in 0..samples {
        let mut words = vec![0; FRAME * DEPTH];
        for (n, frame) in words.chunks_exact_mut(FRAME).rev().enumerate() {
            frame[FRAME - 1] = inside(i + (i + 1) * n);
        }
        sample(&mut builder, thread, i as u64 * 1000, inside(i), &words);
        if i % 100 == 99 {
            builder.cut();
        }
    }
    builder.cut();
    taken_apart(builder, parts);
}

/// One thread's stack of two frames, different in every sample.
pub(super) fn different(parts: &mut Parts, samples: usize) {
    let mut builder = builder(r"C:\app\app.exe");
    let thread = builder.thread(0, 11, "main", STACK_BASE);
    for i in 0..samples {
        let words = stack(2, |n| if n == 0 { i } else { i / FUNCTIONS as usize });
        sample(&mut builder, thread, i as u64 * 1000, inside(i / 7), &words);
        if i % 5_000 == 4_999 {
            builder.cut();
        }
    }
    builder.cut();
    taken_apart(builder, parts);
}

/// Samples that a thread with a long name asked for, each with a tag of its own.
pub(super) fn captures(parts: &mut Parts, count: usize) {
    let mut builder = builder(r"C:\app\app.exe");
    let thread = builder.thread(0, 11, &"x".repeat(300), STACK_BASE);
    for i in 0..count {
        capture(&mut builder, thread, i as u64 * 1000, i as u64);
    }
    builder.cut();
    taken_apart(builder, parts);
}

/// A capture of a thread in two frames.
fn capture(builder: &mut TraceBuilder, thread: u64, time: u64, tag: u64) {
    let words = stack(2, |n| n + tag as usize);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let sp = STACK_BASE - bytes.len() as u64;
    let mut registers = [0; RegisterSet::X64.len()];
    (registers[IP], registers[SP]) = (inside(tag as usize), sp);
    builder.raw(&RawSample {
        thread,
        time: Ticks(time),
        set: RegisterSet::X64,
        registers: &registers,
        stack_base: STACK_BASE,
        stack_start: sp,
        stack: &bytes,
        code: None,
        cpu: None,
        state: RunState::Running,
        tag: Some(tag),
        tables_pending: false,
        context_reply: None,
        extra: &[],
    });
}

/// A sound trace of `count` captures of one thread, whose tags are 7 and 8 in turn.
pub fn two_tags(count: u64) -> Vec<u8> {
    let mut builder = builder(r"C:\app\app.exe");
    let thread = builder.thread(0, 11, "main", STACK_BASE);
    for i in 0..count {
        capture(&mut builder, thread, i * 1000, 7 + i % 2);
        if i % 10_000 == 9_999 {
            builder.cut();
        }
    }
    builder.finish()
}

/// Two methods, and any number of return addresses that either may hold.
pub(super) fn ambiguous_methods(parts: &mut Parts, addresses: usize) {
    const METHODS: u64 = 0x7000_0000;
    let mut builder = builder(r"C:\app\app.exe");
    let thread = builder.thread(0, 11, "main", STACK_BASE);
    for i in 0..addresses as u64 {
        sample(&mut builder, thread, i * 1000, METHODS + i, &stack(1, |_| 1));
        if i % 5_000 == 4_999 {
            builder.cut();
        }
    }
    builder.cut();
    taken_apart(builder, parts);
    let texts = [vec![b'x'; super::TEXT], vec![b'y'; super::TEXT]];
    many(parts, BlockKind::Meta, 2, |i| named(METHODS, &texts[i as usize]));
}

/// As many runtimes as modules. No runtime is in one of the modules.
pub(super) fn runtimes_and_modules(parts: &mut Parts, count: usize) {
    many(parts, BlockKind::Meta, count, |i| module(100 + i, i << 12, b"x.dll", None));
    many(parts, BlockKind::Meta, count, |i| runtime((1 << 32) + i, b""));
    many(parts, BlockKind::Meta, 1, |_| Event::ThreadStart(thread(100)));
}
