//! `stk diff`: what takes more of the time in new traces than in those of a base.
//!
//! ```text
//! sides   which traces are on which side     arguments -> files
//! read    traces -> stacks for the comparison
//! write   the result to the terminal and to files
//! ```

mod read;
mod sides;
mod write;

use super::values::{choice, default_name};
use super::{Exit, Out, ProfileArgs, Usage, WorkerArgs, pool, warn};
use crate::diff::{Axis, Comparison, DiffFormat, DiffOptions, Renames, Verdict};
use std::path::PathBuf;
use stk_profile::profile::Weight;

/// Compares the traces of two builds: which functions, stacks or modules take a greater part of the
/// time than before. A difference counts if the lower bound of its confidence interval is above the
/// threshold.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Give at least three traces a side, better ten: how much the traces of one side differ among
themselves shows what chance does. Names are compared without what compilers
number (lambdas, hashes of Rust, .cold parts). Modules whose names one side lacks are
listed separately.

Exit codes: 0 nothing takes more, 6 something does, 7 inconclusive.

Examples:
  stk diff old new -y symbols                   two folders of traces
  stk diff --base old/*.stk --new new/*.stk --threshold 2 --format junit > diff.xml
  stk diff old new --by module --absolute       runs of the same work, with its CPU time itself
  stk diff 'lab.parquet?build=1' 'lab.parquet?build=2'
  stk diff old new --map 'parse=parser::run' --my-code -o diff.svg")]
pub(super) struct DiffArgs {
    /// The two sides, each a trace, a pattern such as old/*.stk, a folder of traces, or a Parquet
    /// dataset, with ?LABEL=VALUE behind it those of its traces
    #[arg(value_name = "BASE NEW", num_args = 0..)]
    sides: Vec<PathBuf>,
    /// Traces of the base, instead of BASE
    #[arg(long, value_name = "FILE", num_args = 1..)]
    base: Vec<PathBuf>,
    /// New traces, instead of NEW
    #[arg(long, value_name = "FILE", num_args = 1..)]
    new: Vec<PathBuf>,
    /// What is compared
    #[arg(long, value_parser = choice::<Axis>(), default_value = default_name::<Axis>(), value_name = "WHAT")]
    by: Axis,
    /// What counts [default: cpu; active if a trace has no CPU times]
    #[arg(long, value_parser = choice::<Weight>(), value_name = "WHAT")]
    weight: Option<Weight>,
    /// Count functions and modules with their callees
    #[arg(long)]
    total: bool,
    /// The traces did the same work: compare their time itself, in percent of the base's mean
    /// trace. By default shares of each side's own time are compared
    #[arg(long)]
    absolute: bool,
    /// Percent of the whole by which something must differ to count
    #[arg(long, value_name = "PCT", default_value_t = 1.0, value_parser = percent)]
    threshold: f64,
    /// Probability that no row is reported worse by chance, in percent, all rows together
    #[arg(long, value_name = "PCT", default_value_t = 95.0, value_parser = confidence)]
    confidence: f64,
    /// A name of the base and what it is called now: functions, MODULE!FUNCTION, modules, or the
    /// beginnings of names with a * behind both; may be repeated
    #[arg(long = "map", value_name = "OLD=NEW")]
    renames: Vec<String>,
    /// Rows to list, and always those that differ; 0 lists all
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,
    /// What to write [default: that of the output's name, or table]
    #[arg(long, value_parser = choice::<DiffFormat>(), value_name = "FORMAT", help_heading = "Output")]
    format: Option<DiffFormat>,
    /// Output file instead of standard output: .txt, .json, .md, .xml (JUnit) or .svg (flame graph)
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    output: Option<PathBuf>,
    /// Write a flame graph to this file, too: as wide as the new side, red where it takes more
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    flamegraph: Option<PathBuf>,
    /// Replace output files that are there, unless one is a trace or an input
    #[arg(long, help_heading = "Output")]
    force: bool,
    #[command(flatten)]
    workers: WorkerArgs,
    #[command(flatten)]
    profile: ProfileArgs,
}

/// Runs the command.
pub(super) fn run(args: &DiffArgs, out: Out<'_>) -> anyhow::Result<Exit> {
    args.profile.check()?;
    let (sides, exit) = sides::sides(args)?;
    let outputs = write::Outputs::of(args)?;
    let mut renames = Renames::default();
    for text in &args.renames {
        renames.add(text).map_err(|why| Usage(format!("--map {text}: {why}")))?;
    }
    let options = DiffOptions {
        by: args.by,
        total: args.total,
        absolute: args.absolute,
        threshold: args.threshold,
        confidence: args.confidence,
        top: if args.top == 0 { usize::MAX } else { args.top },
        stacks: outputs.has_flame_graph(),
    };
    let pool = pool(args.workers.jobs)?;
    let mut comparison = Comparison::new(options, renames);
    let exit = exit.worse(pool.install(|| read::read(&sides, args, &mut comparison))?);
    let diff = pool.install(|| comparison.finish());
    diff.notes.iter().for_each(|text| warn(text));
    outputs.write(&diff, out)?;
    Ok(exit.worse(match diff.verdict {
        Verdict::Passed => Exit::Ok,
        Verdict::Worse => Exit::Difference,
        Verdict::Inconclusive => Exit::Inconclusive,
    }))
}

fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').trim().parse::<f64>() {
        Ok(value) if (0.0..=100.0).contains(&value) => Ok(value),
        _ => Err("give a percentage from 0 to 100".into()),
    }
}

fn confidence(text: &str) -> Result<f64, String> {
    match percent(text) {
        Ok(value) if (50.0..=99.99).contains(&value) => Ok(value),
        _ => Err("give a percentage from 50 to 99.99".into()),
    }
}
