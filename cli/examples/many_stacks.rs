//! Makes a trace of many samples with many distinct stacks, 25 frames deep, for benches/report.sh
//! and benches/speed.sh, and prints what it holds.
//!
//! `cargo run --release -p stk --no-default-features --example many_stacks -- OUT.stk SAMPLES
//! [returns [small]]`
//!
//! Without `returns`, two of three stacks are new from the outermost call on. With it, three of
//! five are, and a thread returns from some of its calls, any number being as likely, and makes
//! others, as programs do. With `small`, calls are from 3,000 places in place of 48,000, and a
//! block has 30,000 samples, as in recordings of programs.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::io;
use stk_format::RawSample;
use stk_schema::Ticks;
use stk_schema::event::RunState;
use stk_schema::registers::{IP, RegisterSet, SP};
use stk_tests::synth::Random;
use stk_tests::traces::{TestImage, in_function};

const THREADS: usize = 8;
/// Frames of a stack between the system's two.
const DEPTH: usize = 23;
const IMAGES: [&str; 4] =
    [r"C:\app\app.exe", r"C:\app\engine.dll", r"C:\app\render.dll", r"C:\app\script.dll"];
/// Functions of an image, and with `small`.
const FUNCTIONS: u32 = 4000;
const FEW_FUNCTIONS: u32 = 250;
/// Samples of a block with `small`; else as many as fit.
const BLOCK: u64 = 30_000;
const FIRST_BASE: u64 = 0x1_4000_0000;
const STACK: u64 = 0x100_0000;
/// Ticks of 100 ns between two samples of a thread.
const INTERVAL: u64 = 10_000;

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = || io::Error::other("usage: many_stacks OUT.stk SAMPLES [returns [small]]");
    let path = arguments.next().ok_or_else(usage)?;
    let samples: u64 = arguments.next().and_then(|text| text.parse().ok()).ok_or_else(usage)?;
    let returns = match arguments.next().as_deref() {
        None => false,
        Some("returns") => true,
        Some(_) => return Err(usage()),
    };
    let (functions, block) = match arguments.next().as_deref() {
        None => (FUNCTIONS, u64::MAX),
        Some("small") => (FEW_FUNCTIONS, BLOCK),
        Some(_) => return Err(usage()),
    };
    let mut builder = stk_tests::traces::trace();
    for (path, base) in IMAGES.iter().zip((FIRST_BASE..).step_by(0x1000_0000)) {
        TestImage::new(path, functions).load(&mut builder, 0, base);
    }
    let bases: Vec<u64> = (1..=THREADS as u64).map(|i| i * STACK).collect();
    let threads: Vec<u64> =
        (0u32..).zip(&bases).map(|(i, &base)| builder.thread(0, 100 + i, "worker", base)).collect();
    let mut random = Random::new(1);
    let first = Calls::new(&mut random);
    let mut stacks: Vec<Calls> = vec![first; THREADS];
    let mut cpu = [0u64; THREADS];
    let mut facts = Facts::default();
    for i in 0..samples {
        let at = i as usize % THREADS;
        let changes = if returns { random.below(5) > 1 } else { random.below(3) > 0 };
        let before = stacks[at].choices;
        if changes {
            let kept = if returns { random.below(DEPTH) } else { 0 };
            stacks[at].change(kept, &mut random);
        }
        facts.add(i as usize >= THREADS, &before, &stacks[at].choices);
        cpu[at] += INTERVAL - random.below(4000) as u64;
        let time = (1 + i / THREADS as u64) * INTERVAL + random.below(2000) as u64;
        let ([ip, sp], words) = stk_tests::traces::stack(bases[at], &stacks[at].addresses(functions));
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
        if (i + 1) % block == 0 {
            builder.cut();
        }
    }
    facts.print(samples);
    std::fs::write(path, builder.finish())
}

/// What a thread has called, outermost first: each function calls one of four, most often the
/// first, so that stacks share their beginnings as those of programs do.
#[derive(Clone)]
struct Calls {
    choices: [u8; DEPTH],
}

impl Calls {
    fn new(random: &mut Random) -> Calls {
        let mut calls = Calls { choices: [0; DEPTH] };
        calls.change(0, random);
        calls
    }

    /// Replaces all calls but the first `kept` ones.
    fn change(&mut self, kept: usize, random: &mut Random) {
        for choice in &mut self.choices[kept..] {
            *choice = match random.below(100) {
                0..88 => 0,
                88..95 => 1,
                95..98 => 2,
                _ => 3,
            };
        }
    }

    fn addresses(&self, functions: u32) -> Vec<u64> {
        let mut seed = 0u64;
        let call = |&choice: &u8| {
            seed = Random::new(seed * 4 + u64::from(choice)).number() >> 16;
            let image = seed % IMAGES.len() as u64;
            in_function(FIRST_BASE + image * 0x1000_0000, (seed >> 8) as u32 % functions)
        };
        self.choices.iter().map(call).collect()
    }
}

/// What the stacks of the trace are like.
#[derive(Default)]
struct Facts {
    hasher: RandomState,
    /// Hashes of the stacks so far.
    stacks: HashSet<u64>,
    pairs: u64,
    equal: u64,
    /// Calls that a stack shares with the one before it in its thread, of all pairs.
    kept: u64,
}

impl Facts {
    fn add(&mut self, is_pair: bool, before: &[u8; DEPTH], now: &[u8; DEPTH]) {
        self.stacks.insert(self.hasher.hash_one(now));
        if is_pair {
            self.pairs += 1;
            self.equal += u64::from(before == now);
            self.kept += before.iter().zip(now).take_while(|(a, b)| a == b).count() as u64;
        }
    }

    fn print(&self, samples: u64) {
        let pairs = self.pairs.max(1) as f64;
        println!(
            "{samples} samples, {} frames each, {} distinct stacks; {:.1} % of consecutive pairs equal, {:.1} frames shared with the sample before",
            DEPTH + 2,
            self.stacks.len(),
            100.0 * self.equal as f64 / pairs,
            self.kept as f64 / pairs + 2.0,
        );
    }
}
