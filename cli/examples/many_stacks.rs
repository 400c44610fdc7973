//! Makes a trace of many samples with many distinct stacks, 25 frames deep, for benches/report.sh.
//!
//! `cargo run --release -p stk --no-default-features --example many_stacks -- OUT.stk SAMPLES`

#[path = "../src/testing.rs"]
#[allow(dead_code)]
mod testing;

use std::io;
use stk_format::RawSample;
use stk_format::synth::Random;
use stk_schema::Ticks;
use stk_schema::event::RunState;
use stk_schema::registers::{IP, RegisterSet, SP};
use testing::{TestImage, in_function};

const THREADS: usize = 8;
/// Frames of a stack between the system's two.
const DEPTH: usize = 23;
const IMAGES: [&str; 4] =
    [r"C:\app\app.exe", r"C:\app\engine.dll", r"C:\app\render.dll", r"C:\app\script.dll"];
const FUNCTIONS: u32 = 4000;
const FIRST_BASE: u64 = 0x1_4000_0000;
const STACK: u64 = 0x100_0000;
/// Ticks of 100 ns between two samples of a thread.
const INTERVAL: u64 = 10_000;

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = || io::Error::other("usage: many_stacks OUT.stk SAMPLES");
    let path = arguments.next().ok_or_else(usage)?;
    let samples: u64 = arguments.next().and_then(|text| text.parse().ok()).ok_or_else(usage)?;
    let mut builder = testing::trace();
    for (path, base) in IMAGES.iter().zip((FIRST_BASE..).step_by(0x1000_0000)) {
        TestImage::new(path, FUNCTIONS).load(&mut builder, 0, base);
    }
    let bases: Vec<u64> = (1..=THREADS as u64).map(|i| i * STACK).collect();
    let threads: Vec<u64> =
        (0u32..).zip(&bases).map(|(i, &base)| builder.thread(0, 100 + i, "worker", base)).collect();
    let mut random = Random::new(1);
    let mut stacks: Vec<Vec<u64>> = vec![calls(&mut random); THREADS];
    let mut cpu = [0u64; THREADS];
    for i in 0..samples {
        let at = i as usize % THREADS;
        // Two of three stacks are not that of the sample before.
        if random.below(3) > 0 {
            stacks[at] = calls(&mut random);
        }
        cpu[at] += INTERVAL - random.below(4000) as u64;
        let time = (1 + i / THREADS as u64) * INTERVAL + random.below(2000) as u64;
        let ([ip, sp], words) = testing::stack(bases[at], &stacks[at]);
        let mut registers = [0; RegisterSet::X64.len()];
        (registers[IP], registers[SP]) = (ip, sp);
        let stack: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        builder.raw(&RawSample {
            thread: threads[at],
            time: Ticks(time),
            set: RegisterSet::X64,
            registers: &registers,
            stack_base: bases[at],
            stack_start: sp,
            stack: &stack,
            code: None,
            cpu: Some(cpu[at]),
            state: RunState::Running,
            tag: None,
            tables_pending: false,
            context_reply: None,
            extra: &[],
        });
    }
    std::fs::write(path, builder.finish())
}

/// A stack of calls, outermost first: each function calls one of four, most often the first, so
/// that stacks share their beginnings as those of programs do.
fn calls(random: &mut Random) -> Vec<u64> {
    let mut seed = 0u64;
    let call = |_| {
        let choice = match random.below(100) {
            0..88 => 0,
            88..95 => 1,
            95..98 => 2,
            _ => 3,
        };
        seed = Random::new(seed * 4 + choice).number() >> 16;
        let image = seed % IMAGES.len() as u64;
        in_function(FIRST_BASE + image * 0x1000_0000, (seed >> 8) as u32 % FUNCTIONS)
    };
    (0..DEPTH).map(call).collect()
}
