//! Makes a large trace of a small real one: `cargo run --release -p stk-benches --example grow --
//! IN.stk OUT.stk [SAMPLES [DEPTH]]`.
//!
//! For measurements that need a million samples of real code. It prints figures of the source and
//! of the result.

mod growth;
mod pieces;
#[cfg(test)]
mod tests;

use growth::{Grow, grow};
use pieces::Frame;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::process::ExitCode;
use stk::image::{AddressSpace, ImageSearch, load_images};
use stk::trace::{TraceFile, registers};
use stk_format::Sample;
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
    let [input, output, rest @ ..] = arguments else {
        anyhow::bail!("usage: grow IN.stk OUT.stk [SAMPLES [DEPTH]]")
    };
    let mut plan = Grow::default();
    if let Some(samples) = rest.first() {
        plan.samples = samples.parse()?;
    }
    if let Some(depth) = rest.get(1) {
        plan.depth = depth.parse()?;
    }
    let file = TraceFile::open(Path::new(input))?;
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
        let stop = walker.walk(&AddressSpace::new(&view, &images), &input, &mut frames);
        stop.is_complete()
            .then(|| frames.iter().map(|frame| Frame { ip: frame.address, sp: frame.sp }).collect())
    };
    let out = BufWriter::new(File::create(output)?);
    let (_, grown) = grow(trace.blocks(), &plan, &mut walk, out)?;
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
}
