//! Makes a large trace of a small real one: `cargo run --release -p stk-benches --example grow --
//! IN.stk OUT.stk [SAMPLES [DEPTH]]`. It prints figures of the source and of the result.
//!
//! Or many different ones of a few: `grow --night FOLDER TRACES SAMPLES DAMAGED TRUNCATED IN.stk…`.
//! It prints a line for each.
//!
//! For measurements that need a million samples of real code, or a thousand traces.

mod growth;
mod night;
mod pieces;
#[cfg(test)]
mod tests;

use growth::{Grow, grow};
use night::Night;
use pieces::{Frame, Walk};
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use stk_format::Sample;
use stk_profile::image::{ImageSearch, ModuleMap, load_images};
use stk_profile::trace::{TraceFile, registers};
use stk_unwind::{WalkOptions, Walker};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("grow: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> anyhow::Result<()> {
    match arguments {
        [night, folder, traces, samples, damaged, truncated, sources @ ..]
            if night == "--night" && !sources.is_empty() =>
        {
            let (traces, samples) = (traces.parse()?, samples.parse()?);
            let night = Night { traces, samples, damaged: damaged.parse()?, truncated: truncated.parse()? };
            let sources: Vec<PathBuf> = sources.iter().map(PathBuf::from).collect();
            night.make(&sources, Path::new(folder))
        }
        [input, output, rest @ ..] if input != "--night" && rest.len() <= 2 => {
            let mut plan = Grow::default();
            if let Some(samples) = rest.first() {
                plan.samples = samples.parse()?;
            }
            if let Some(depth) = rest.get(1) {
                plan.depth = depth.parse()?;
            }
            one(Path::new(input), Path::new(output), &plan)
        }
        _ => anyhow::bail!(
            "usage: grow IN.stk OUT.stk [SAMPLES [DEPTH]], or \
             grow --night FOLDER TRACES SAMPLES DAMAGED TRUNCATED IN.stk…"
        ),
    }
}

fn one(input: &Path, output: &Path, plan: &Grow) -> anyhow::Result<()> {
    let mut out = Some(BufWriter::new(File::create(output)?));
    with_trace(input, &mut |trace, walk| {
        let Some(out) = out.take() else { return Ok(()) };
        let (_, grown) = grow(trace, plan, walk, out)?;
        println!(
            "{} samples, {:.1} frames each, {} different stacks, {:.1} % of consecutive pairs equal, {} bytes; from {} samples",
            grown.samples,
            grown.frames as f64 / grown.samples.max(1) as f64,
            grown.distinct,
            100.0 * grown.equal_pairs as f64 / grown.pairs.max(1) as f64,
            grown.bytes,
            grown.source,
        );
        Ok(())
    })
}

/// Gives a trace, and what walks its samples, to `use_it`.
fn with_trace(
    input: &Path,
    use_it: &mut dyn FnMut(&stk_format::Trace, Walk) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let file = TraceFile::open(input)?;
    let trace = file.read()?;
    let images = load_images(&trace, &ImageSearch::NOWHERE);
    let mut view = trace.timeline.view();
    let mut walker = Walker::new(WalkOptions::default());
    let mut frames = Vec::new();
    let mut walk = |sample: &Sample<'_>| {
        view.go(sample.time);
        let input = stk_unwind::Sample {
            registers: &registers(sample.set, sample.registers)?,
            stack: sample.stack,
            stack_start: sample.stack_start,
            stack_base: (sample.stack_base != 0).then_some(sample.stack_base),
            truncated: sample.truncated,
            code_at_ip: sample.code_at_ip,
        };
        let stop = walker.walk(&ModuleMap::new(&view, &images), &input, &mut frames);
        stop.is_complete()
            .then(|| frames.iter().map(|frame| Frame { ip: frame.address, sp: frame.sp }).collect())
    };
    use_it(trace.blocks(), &mut walk)
}
