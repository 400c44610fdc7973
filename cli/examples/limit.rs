//! What this machine needs at least for the steps of a conversion: benches/speed.sh runs it beside
//! stk, on the same trace and in the same rounds.
//!
//! `cargo run --release -p stk --no-default-features --example limit -- FILE.stk`
//!
//! Each step does only what no program can leave out, on one thread, with tables that fit into the
//! caches where they can: blocks are decompressed and their differences applied (by stk-format);
//! a frame of a walk is two dependent reads in a table of rules (512 KiB); a stack is a hash of its
//! frames and one look-up among the distinct ones; its text is copied. Nothing is merged, named or
//! sorted. Prints a line for each step, `NAME NANOSECONDS` of CPU time a sample, the best of five,
//! and the sums for the outputs.

use anyhow::{Context as _, Result, ensure};
use std::collections::{HashMap, HashSet};
use std::hint::black_box;
use std::io;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use stk_format::{BlockKind, SampleStep, Scratch};
use stk_profile::image::{ImageSearch, load_images};
use stk_profile::profile::{BuildOptions, NodeId, build};
use stk_profile::trace::{Trace, TraceFile};
use stk_tests::cpu::cpu_time;

const ROUNDS: usize = 5;
/// Entries of the table of rules: 512 KiB.
const RULES: usize = 1 << 16;
/// Odd, its bits well mixed: the golden ratio.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

fn main() -> Result<()> {
    let path = std::env::args_os().nth(1).context("usage: limit FILE.stk")?;
    let file = TraceFile::open(path.as_ref())?;
    let trace = file.read()?;
    let stacks = Stacks::of(&trace)?;
    let samples = trace.samples() as f64;
    let ns = |time: Duration| time.as_nanos() as f64 / samples;
    let decode = ns(best(|| decode(&trace))?.0);
    let walk = ns(best(|| Ok(walk(stacks.fresh)))?.0);
    let find = ns(best(|| Ok(find(&stacks)))?.0);
    let text = ns(best(|| Ok(copy(&stacks)))?.0);
    let steps = [("decode", decode), ("walk", walk), ("find", find), ("text", text)];
    for (name, ns) in steps {
        println!("{name} {ns:.1}");
    }
    let stats = decode + walk + find;
    // speedscope has the texts of two weights, Parquet the text of none.
    for (name, ns) in
        [("speedscope", stats + 2.0 * text), ("folded", stats), ("parquet", stats), ("stats", stats)]
    {
        println!("limit-{name} {ns:.1}");
    }
    Ok(())
}

/// The least CPU time of some rounds, and what the last one gave.
fn best<T>(mut step: impl FnMut() -> Result<T>) -> Result<(Duration, T)> {
    let mut timed = || -> Result<(Duration, T)> {
        let start = cpu_time();
        let made = step()?;
        Ok((cpu_time() - start, made))
    };
    let (mut least, mut made) = timed()?;
    for _ in 1..ROUNDS {
        let (time, next) = timed()?;
        (least, made) = (least.min(time), next);
    }
    Ok((least, made))
}

/// Decompresses all blocks and applies their differences.
fn decode(trace: &Trace<'_>) -> Result<u64> {
    let mut scratch = Scratch::new();
    let mut bytes = 0;
    let blocks = trace.blocks().blocks().iter().filter(|block| block.header.kind == BlockKind::Samples);
    for block in blocks {
        let mut samples = trace.blocks().samples(block, &mut scratch)?;
        while let Some(step) = samples.next()? {
            if let SampleStep::Sample(sample) = step {
                bytes += black_box(sample.stack).len() as u64;
            }
        }
    }
    Ok(bytes)
}

/// Two dependent reads for each of so many frames.
fn walk(frames: u64) -> u64 {
    let rules: Vec<u64> = (0..RULES as u64).map(|place| place.wrapping_mul(MIX)).collect();
    let mut at = 1u64;
    for frame in 0..frames {
        for _ in 0..2 {
            at = rules[(at ^ frame) as usize % RULES];
        }
    }
    black_box(at)
}

/// The stacks of all runs, one after the other.
struct Stacks {
    /// Frames of each run, outermost first.
    runs: Vec<Box<[u32]>>,
    /// Frames that a run does not share with the one before it in its thread.
    fresh: u64,
    /// The text of each run, in `texts`.
    order: Vec<u32>,
    texts: Vec<String>,
}

impl Stacks {
    fn of(trace: &Trace<'_>) -> Result<Stacks> {
        let images = load_images(trace, &ImageSearch::NOWHERE);
        let (profile, runs) = build(trace, &images, &BuildOptions::default(), &AtomicU64::new(0))?;
        let frames = |node| {
            let mut frames: Vec<u32> = profile.tree.frames(node).map(|frame| frame.0).collect();
            frames.reverse();
            frames.into_boxed_slice()
        };
        let mut numbers: HashMap<NodeId, u32> = HashMap::new();
        let mut stacks = Stacks { runs: Vec::new(), fresh: 0, order: Vec::new(), texts: Vec::new() };
        runs.for_each(|batch| -> io::Result<()> {
            let mut before: Box<[u32]> = Box::default();
            for node in batch.runs.iter().filter_map(|run| run.node) {
                let frames = frames(node);
                let shared = before.iter().zip(&frames).take_while(|(before, now)| before == now).count();
                stacks.fresh += (frames.len() - shared) as u64;
                before.clone_from(&frames);
                let number = *numbers.entry(node).or_insert_with(|| {
                    let text: Vec<String> = frames.iter().map(u32::to_string).collect();
                    stacks.texts.push(text.join(","));
                    stacks.texts.len() as u32 - 1
                });
                stacks.order.push(number);
                stacks.runs.push(frames);
            }
            Ok(())
        })?;
        let distinct: HashSet<&[u32]> = stacks.runs.iter().map(|frames| &**frames).collect();
        ensure!(!distinct.is_empty(), "no stacks");
        println!("distinct {}", distinct.len());
        Ok(stacks)
    }
}

/// Hashes the frames of each run and finds its number: open addressing, half full at most.
fn find(stacks: &Stacks) -> usize {
    let len = (stacks.texts.len() * 2).next_power_of_two();
    let mut table = vec![0u64; len];
    let mut distinct = 0;
    for frames in &stacks.runs {
        let hash = frames
            .iter()
            .fold(1u64, |hash, &frame| (hash.rotate_left(5) ^ u64::from(frame)).wrapping_mul(MIX));
        let hash = hash | 1;
        let mut at = (hash >> 32) as usize % len;
        while table[at] != 0 && table[at] != hash {
            at = (at + 1) % len;
        }
        distinct += usize::from(table[at] == 0);
        table[at] = hash;
    }
    black_box(distinct)
}

/// Copies the text of each run.
fn copy(stacks: &Stacks) -> usize {
    const PIECE: usize = 1 << 18;
    let mut buffer = Vec::with_capacity(2 * PIECE);
    let mut bytes = 0;
    for &number in &stacks.order {
        buffer.extend_from_slice(b",[");
        buffer.extend_from_slice(stacks.texts[number as usize].as_bytes());
        buffer.push(b']');
        if buffer.len() > PIECE {
            bytes += black_box(&buffer).len();
            buffer.clear();
        }
    }
    bytes + buffer.len()
}
