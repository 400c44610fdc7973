//! Measures the gain from walking only the changed part of a stack, on real recordings.
//!
//! `cargo bench -p stk-benches --bench reuse -- [FILE.stk…]`; without a file, the kept recording
//! of examples/busy.
//!
//! The samples are decoded first, each with the address from which on the stack is as at the
//! thread's last sample. Each is walked whole and by `walk_again`, and every frame and stop must be
//! the same. Only then is time measured: CPU time of this thread, the best of several alternating
//! rounds.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use stk_format::{SampleStep, Scratch};
use stk_profile::image::{ImageSearch, ModuleImage, ModuleMap, load_images};
use stk_profile::trace::{Trace, TraceFile, registers};
use stk_schema::Ticks;
use stk_tests::cpu::cpu_time;
use stk_unwind::{Frame, History, Registers, Stop, WalkOptions, Walker};

fn main() -> Result<()> {
    // `cargo test --benches` also runs this program, which has no tests.
    if !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let mut files: Vec<PathBuf> =
        std::env::args_os().skip(1).filter(|argument| argument != "--bench").map(PathBuf::from).collect();
    if files.is_empty() {
        files.push(Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/traces/busy.stk"));
    }
    for file in &files {
        measure(file).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

/// A decoded sample, ready for the walker.
struct Recorded {
    /// The first of its thread in a block, so the one before is unknown.
    is_first: bool,
    slot: usize,
    time: Ticks,
    registers: Registers,
    stack: Vec<u8>,
    stack_start: u64,
    stack_base: Option<u64>,
    truncated: bool,
    unchanged_from: u64,
    code_at_ip: Option<Vec<u8>>,
}

impl Recorded {
    fn sample(&self) -> stk_unwind::Sample<'_> {
        stk_unwind::Sample {
            registers: &self.registers,
            stack: &self.stack,
            stack_start: self.stack_start,
            stack_base: self.stack_base,
            truncated: self.truncated,
            code_at_ip: self.code_at_ip.as_deref(),
        }
    }
}

fn measure(file: &Path) -> Result<()> {
    let opened = TraceFile::open(file)?;
    let trace = opened.read()?;
    let images = load_images(&trace, &ImageSearch::NOWHERE);
    let samples = decode(&trace)?;
    ensure!(!samples.is_empty(), "no samples");
    let (whole, again) = (walk_whole(&trace, &images, &samples), walk_again(&trace, &images, &samples));
    ensure!(whole == again.walks, "walking again gives other frames than walking whole");
    let frames: usize = whole.iter().map(|(frames, _)| frames.len()).sum();

    let (mut best_whole, mut best_again) = (Duration::MAX, Duration::MAX);
    let mut walker = Walker::new(WalkOptions::default());
    for _ in 0..ROUNDS {
        let start = cpu_time();
        each(&trace, &images, &samples, |space, sample, _, found| {
            walker.walk(space, &sample.sample(), found);
        });
        best_whole = best_whole.min(cpu_time() - start);
        let mut histories = Vec::new();
        let start = cpu_time();
        each(&trace, &images, &samples, |space, sample, unchanged_from, _| {
            step(&mut walker, &mut histories, space, sample, unchanged_from);
        });
        best_again = best_again.min(cpu_time() - start);
    }
    let per_second = |time: Duration| samples.len() as f64 / time.as_secs_f64() / 1e6;
    println!(
        "{}: {} samples of {:.1} frames, {:.0} % of them taken over; whole {:.2} M samples/s, again {:.2} M samples/s, \
         gain {:.2}",
        file.file_name().unwrap_or_default().to_string_lossy(),
        samples.len(),
        frames as f64 / samples.len() as f64,
        again.reused as f64 * 100.0 / frames as f64,
        per_second(best_whole),
        per_second(best_again),
        best_whole.as_secs_f64() / best_again.as_secs_f64()
    );
    Ok(())
}

/// How often each method is measured.
const ROUNDS: usize = 15;

fn decode(trace: &Trace<'_>) -> Result<Vec<Recorded>> {
    let mut recorded = Vec::new();
    let mut scratch = Scratch::default();
    for block in trace.sample_blocks() {
        let mut met = HashSet::new();
        let mut samples = trace.blocks().samples(block, &mut scratch)?;
        while let Some(decoded) = samples.next()? {
            let SampleStep::Sample(sample) = decoded else { continue };
            let Some(registers) = registers(sample.set, sample.registers) else { continue };
            let slot = sample.slot as usize;
            recorded.push(Recorded {
                is_first: met.insert(slot),
                slot,
                time: sample.time,
                registers,
                stack: sample.stack.to_vec(),
                stack_start: sample.stack_start,
                stack_base: (sample.stack_base != 0).then_some(sample.stack_base),
                truncated: sample.truncated,
                unchanged_from: sample.unchanged_from,
                code_at_ip: sample.code_at_ip.map(<[u8]>::to_vec),
            });
        }
    }
    Ok(recorded)
}

/// Passes on each sample with the modules of its time and the address from which on its stack is
/// unchanged.
fn each(
    trace: &Trace<'_>,
    images: &[ModuleImage],
    samples: &[Recorded],
    mut walk: impl FnMut(&ModuleMap<'_, '_>, &Recorded, u64, &mut Vec<Frame>),
) {
    let mut view = trace.timeline.view();
    let mut epochs: Vec<usize> = Vec::new();
    let mut found = Vec::new();
    for sample in samples {
        view.go(sample.time);
        if epochs.len() <= sample.slot {
            epochs.resize(sample.slot + 1, usize::MAX);
        }
        // With other modules even the same words have another meaning.
        let same_modules = epochs[sample.slot] == view.epoch();
        epochs[sample.slot] = view.epoch();
        let unchanged_from = if same_modules { sample.unchanged_from } else { u64::MAX };
        walk(&ModuleMap::new(&view, images), sample, unchanged_from, &mut found);
    }
}

/// Walks a sample again as `stk convert` does, with histories that last for one block.
fn step<'h>(
    walker: &mut Walker,
    histories: &'h mut Vec<History>,
    space: &ModuleMap<'_, '_>,
    sample: &Recorded,
    unchanged_from: u64,
) -> &'h History {
    if histories.len() <= sample.slot {
        histories.resize_with(sample.slot + 1, History::default);
    }
    let history = &mut histories[sample.slot];
    if sample.is_first {
        history.clear();
    }
    walker.walk_again(space, &sample.sample(), unchanged_from, history);
    history
}

fn walk_whole(trace: &Trace<'_>, images: &[ModuleImage], samples: &[Recorded]) -> Vec<(Vec<Frame>, Stop)> {
    let mut walker = Walker::new(WalkOptions::default());
    let mut walks = Vec::new();
    each(trace, images, samples, |space, sample, _, found| {
        let stop = walker.walk(space, &sample.sample(), found);
        walks.push((found.clone(), stop));
    });
    walks
}

/// The result of walking again, and how many frames were reused.
struct Again {
    walks: Vec<(Vec<Frame>, Stop)>,
    reused: usize,
}

fn walk_again(trace: &Trace<'_>, images: &[ModuleImage], samples: &[Recorded]) -> Again {
    let mut walker = Walker::new(WalkOptions::default());
    let mut histories = Vec::new();
    let mut again = Again { walks: Vec::new(), reused: 0 };
    each(trace, images, samples, |space, sample, unchanged_from, _| {
        let history = step(&mut walker, &mut histories, space, sample, unchanged_from);
        again
            .walks
            .extend(history.stop().map(|stop| (history.frames().iter().rev().copied().collect(), stop)));
        again.reused += history.reused();
    });
    again
}
