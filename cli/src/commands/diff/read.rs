//! Reads the traces of both sides, several at a time, and gives them to the comparison in their
//! order.

use super::DiffArgs;
use crate::commands::pipeline::{MissingSum, load_file};
use crate::commands::{Exit, Progress, check_symbols, guarded, report, tell, verify, warn};
use crate::diff::{Comparison, Side, TraceStacks, collect};
use crate::profile::{MissingSymbols, Weight};
use rayon::prelude::*;
use std::path::{Path, PathBuf};

/// What a trace gave.
struct ReadTrace {
    stacks: TraceStacks,
    empty: Option<String>,
    missing: MissingSymbols,
    /// Why there are not enough symbols.
    missed: Option<String>,
    exit: Exit,
}

/// Adds the traces to the comparison. A trace that cannot be read is reported and left out.
pub(super) fn read(
    sides: &[(Side, PathBuf)],
    args: &DiffArgs,
    comparison: &mut Comparison,
) -> anyhow::Result<Exit> {
    let progress = Progress::new("samples");
    let mut missing = MissingSum::default();
    let mut exit = Exit::Ok;
    // A profile is in memory while it is read: no more of them than there are threads.
    for some in sides.chunks(rayon::current_num_threads()) {
        let read: Vec<_> =
            some.par_iter().map(|(_, path)| guarded(path, || read_one(path, args, &progress))).collect();
        for ((side, _), trace) in some.iter().zip(read) {
            match trace {
                Ok(trace) => {
                    trace.empty.iter().for_each(|why| warn(why));
                    trace.missed.iter().for_each(|line| eprintln!("{line}"));
                    missing.add(&trace.missing);
                    exit = exit.worse(trace.exit);
                    comparison.add(*side, trace.stacks);
                }
                Err(error) => {
                    report(&error);
                    exit = exit.worse(verify::exit_of(&error));
                }
            }
        }
    }
    drop(progress);
    tell(&missing.lines());
    Ok(exit)
}

fn read_one(path: &Path, args: &DiffArgs, progress: &Progress) -> anyhow::Result<ReadTrace> {
    let file = args.profile.tables.open(path)?;
    let digest = file.content()?.digest;
    let digest = digest.0.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let loaded = load_file(&file, &args.profile, progress)?;
    let (symbols, missed) = check_symbols(&loaded, &args.profile);
    let weights = args.weight.map_or(vec![Weight::Cpu, Weight::Active], |weight| vec![weight]);
    Ok(ReadTrace {
        stacks: collect(&loaded.profile, &loaded.runs, digest, &weights)?,
        empty: loaded.empty,
        missing: loaded.missing,
        missed,
        exit: loaded.exit.worse(symbols),
    })
}
