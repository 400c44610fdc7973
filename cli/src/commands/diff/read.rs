//! Reads the traces of both sides, several at a time, and gives them to the comparison in their
//! order.

use super::DiffArgs;
use super::sides::SideInput;
use crate::commands::datasets::{self, DatasetArg, Wanted};
use crate::commands::pipeline::{MissingSum, load_file};
use crate::commands::{Exit, Progress, check_symbols, guarded, report, tell, verify, warn};
use crate::dataset::{DatasetThread, DatasetTrace};
use crate::diff::{
    Comparison, ManyStacks, Side, StackWeights, TraceStacks, TraceWeights, collect, collect_threads,
};
use crate::profile::{MissingSymbols, Weight};
use rayon::prelude::*;
use std::collections::HashMap;
use std::path::Path;
use stk_schema::identity::ContentHash;

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
    sides: &[(Side, SideInput)],
    args: &DiffArgs,
    comparison: &mut Comparison,
) -> anyhow::Result<Exit> {
    let progress = Progress::new("samples");
    let mut missing = MissingSum::default();
    let mut exit = Exit::Ok;
    let only_datasets = sides.iter().all(|(_, input)| matches!(input, SideInput::Dataset(_)));
    let mut of_datasets = Vec::new();
    for (side, input) in sides {
        if let SideInput::Dataset(named) = input {
            of_datasets.extend(read_dataset(named, args)?.into_iter().map(|stacks| (*side, stacks)));
        }
    }
    if only_datasets {
        leave_one_weight(&mut of_datasets);
    }
    of_datasets.into_iter().for_each(|(side, stacks)| comparison.add_all(side, stacks));
    let traces: Vec<(Side, &Path)> = sides
        .iter()
        .filter_map(|(side, input)| match input {
            SideInput::Trace(path) => Some((*side, path.as_path())),
            SideInput::Dataset(_) => None,
        })
        .collect();
    // A profile is in memory while it is read: no more of them than there are threads.
    for some in traces.chunks(rayon::current_num_threads()) {
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
    let digest = short(&file.content()?.digest);
    let loaded = load_file(&file, &args.profile, progress)?;
    let (symbols, missed) = check_symbols(&loaded, &args.profile);
    Ok(ReadTrace {
        stacks: collect(&loaded.profile, &loaded.runs, digest, &weights(args))?,
        empty: loaded.empty,
        missing: loaded.missing,
        missed,
        exit: loaded.exit.worse(symbols),
    })
}

/// What is compared; the first of them that all traces tell.
fn weights(args: &DiffArgs) -> Vec<Weight> {
    args.weight.map_or(vec![Weight::Cpu, Weight::Active], |weight| vec![weight])
}

/// Leaves the first weight alone if all traces tell it: the comparison would choose it.
fn leave_one_weight(sides: &mut [(Side, ManyStacks)]) {
    let traces = || sides.iter().flat_map(|(_, stacks)| &stacks.traces);
    if traces().all(|trace| trace.weights.first().is_some_and(|first| !first.stacks.is_empty())) {
        let traces = sides.iter_mut().flat_map(|(_, stacks)| &mut stacks.traces);
        traces.for_each(|trace| trace.weights.truncate(1));
    }
}

/// What of a trace's digest the draws need.
fn short(digest: &ContentHash) -> u64 {
    digest.0.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// The stacks of a dataset's traces. A trace of which no samples are left counts with its 0.
fn read_dataset(named: &DatasetArg, args: &DiffArgs) -> anyhow::Result<Vec<ManyStacks>> {
    let dataset = named.open(&args.profile)?;
    let values = |trace: &DatasetTrace, _: Option<DatasetThread<'_>>| vec![trace.trace_id.clone()];
    let wanted = Wanted { values: &values, by_thread: false, by_trace: true, states: false, waits: false };
    let weights = weights(args);
    let mut known: HashMap<&str, &DatasetTrace> =
        dataset.traces().iter().map(|trace| (trace.trace_id.as_str(), trace)).collect();
    let mut all = Vec::new();
    for part in datasets::load(&dataset, &args.profile, &wanted)? {
        // The one value of a group is the trace's id.
        let ids = part.values.iter().flatten();
        let traces = ids.filter_map(|id| known.remove(id.as_str())).map(without_weights).collect();
        all.push(collect_threads(&part.profile, &part.runs, traces, &weights)?);
    }
    let mut empty: Vec<TraceWeights> = known.into_values().map(without_weights).collect();
    empty.sort_by_key(|trace| trace.digest);
    for trace in &mut empty {
        let none = |&weight: &Weight| StackWeights { weight, samples: 0, stacks: Vec::new() };
        trace.weights = weights.iter().map(none).collect();
    }
    all.push(ManyStacks { functions: Vec::new(), calls: Vec::new(), traces: empty });
    Ok(all)
}

fn without_weights(trace: &DatasetTrace) -> TraceWeights {
    TraceWeights {
        source: trace.source.clone(),
        digest: ContentHash::parse(&trace.trace_id).as_ref().map_or(0, short),
        process: trace.process.clone(),
        weights: Vec::new(),
    }
}
