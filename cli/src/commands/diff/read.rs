//! Reads the traces of both sides, several at a time, and gives them to the comparison in their
//! order.

use super::DiffArgs;
use super::sides::SideInput;
use crate::commands::datasets::{self, DatasetArg, SumRequest};
use crate::commands::profile_args::{MissingSum, load_file};
use crate::commands::{
    Exit, Progress, TraceChoice, TraceProgress, check_symbols, guarded, print_error, print_line, verify,
};
use crate::dataset::{Dataset, DatasetPart, DatasetThread, DatasetTrace};
use crate::diff::{Comparison, Side, StackWeights, ThreadStacks, TraceStacks, TraceWeights, collect};
use rayon::prelude::*;
use std::collections::HashMap;
use std::path::Path;
use stk_profile::profile::{FunctionTree, MissingSymbols, Weight};
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
    let mut missing = MissingSum::default();
    let mut exit = Exit::Ok;
    let mut choice = TraceChoice::new(args.profile.is_part());
    let only_datasets = sides.iter().all(|(_, input)| matches!(input, SideInput::Dataset(_)));
    let named = sides.iter().filter_map(|(side, input)| match input {
        SideInput::Dataset(named) => Some((*side, named)),
        SideInput::Trace(_) => None,
    });
    add_datasets(&named.collect::<Vec<_>>(), args, only_datasets, comparison, &mut choice)?;
    let traces: Vec<(Side, &Path)> = sides
        .iter()
        .filter_map(|(side, input)| match input {
            SideInput::Trace(path) => Some((*side, path.as_path())),
            SideInput::Dataset(_) => None,
        })
        .collect();
    let progress = TraceProgress::new(traces.len());
    let counted = |path: &Path| {
        let read = guarded(path, || read_one(path, args, progress.samples()));
        progress.end_trace();
        read
    };
    // A profile is in memory while it is read: no more of them than there are threads.
    for some in traces.chunks(rayon::current_num_threads()) {
        let read: Vec<_> = some.par_iter().map(|(_, path)| counted(path)).collect();
        for ((side, path), trace) in some.iter().zip(read) {
            match trace {
                Ok(trace) => {
                    let source = path.display().to_string();
                    choice.add(&source, trace.empty);
                    trace.missed.iter().for_each(|line| print_line(line));
                    missing.add(&source, &trace.missing);
                    exit = exit.worse(trace.exit);
                    comparison.add(*side, trace.stacks);
                }
                Err(error) => {
                    print_error(&error);
                    exit = exit.worse(verify::exit_of(&error));
                }
            }
        }
    }
    drop(progress);
    missing.print(&args.profile.symbols.options);
    Ok(exit.worse(choice.finish()))
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

/// What is compared; the first of them that all traces have.
fn weights(args: &DiffArgs) -> Vec<Weight> {
    args.weight.map_or(vec![Weight::Cpu, Weight::Active], |weight| vec![weight])
}

/// What of a trace's digest the draws need.
fn short(digest: &ContentHash) -> u64 {
    digest.0.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Adds the traces of datasets. `alone`: there are no other traces.
fn add_datasets(
    named: &[(Side, &DatasetArg)],
    args: &DiffArgs,
    alone: bool,
    comparison: &mut Comparison,
    choice: &mut TraceChoice,
) -> anyhow::Result<()> {
    let open = |(side, named): &(Side, &DatasetArg)| Ok((*side, named.open(&args.profile)?));
    let datasets = named.iter().map(open).collect::<anyhow::Result<Vec<_>>>()?;
    let progress = Progress::new("rows");
    let parts = datasets.par_iter().map(|(_, dataset)| load(dataset, args, &progress));
    let parts = parts.collect::<anyhow::Result<Vec<Vec<DatasetPart>>>>()?;
    drop(progress);
    let stacks: Vec<Vec<ThreadStacks<'_>>> = parts
        .par_iter()
        .map(|parts| parts.iter().map(|part| ThreadStacks::new(&part.profile, &part.runs)).collect())
        .collect();
    let mut weights = weights(args);
    if alone && weights.len() > 1 {
        let traces = datasets.iter().map(|(_, dataset)| dataset.traces().len()).sum::<usize>();
        let read = parts.iter().flatten().map(|part| part.values.len()).sum::<usize>();
        let has = |stacks: &ThreadStacks<'_>| stacks.all_have(weights[0]);
        // The comparison takes the first weight if all traces have it.
        if traces == read
            && stacks.iter().flatten().map(has).collect::<Result<Vec<_>, _>>()?.iter().all(|all| *all)
        {
            weights.truncate(1);
        }
    }
    for (((side, dataset), parts), stacks) in datasets.iter().zip(&parts).zip(&stacks) {
        let folder = dataset.folder().display().to_string();
        let is_empty = parts.iter().flat_map(|part| &part.profile.threads).all(|thread| thread.samples == 0);
        choice.add(&folder, is_empty.then(|| format!("{folder}: no samples are left")));
        add_dataset(*side, dataset, parts, stacks, &weights, comparison)?;
    }
    Ok(())
}

/// The sums of a dataset's traces, each of which is a thread.
fn load(dataset: &Dataset, args: &DiffArgs, progress: &Progress) -> anyhow::Result<Vec<DatasetPart>> {
    let values = |trace: &DatasetTrace, _: Option<DatasetThread<'_>>| vec![trace.trace_id.clone()];
    let wanted =
        SumRequest { values: &values, by_thread: false, by_trace: true, states: false, waits: false };
    datasets::load(dataset, &args.profile, &wanted, progress)
}

/// Traces of a dataset whose stacks are in memory at a time.
const TRACES_AT_ONCE: usize = 64;

/// Adds the traces of a dataset. One of which no samples are left counts with its 0.
fn add_dataset(
    side: Side,
    dataset: &Dataset,
    parts: &[DatasetPart],
    stacks: &[ThreadStacks<'_>],
    weights: &[Weight],
    comparison: &mut Comparison,
) -> anyhow::Result<()> {
    let mut known: HashMap<&str, &DatasetTrace> =
        dataset.traces().iter().map(|trace| (trace.trace_id.as_str(), trace)).collect();
    for (part, stacks) in parts.iter().zip(stacks) {
        let code = comparison.code_of(side, stacks.functions(), stacks.calls().clone());
        // The one value of a group is the trace's id.
        for (ids, from) in part.values.chunks(TRACES_AT_ONCE).zip((0..).step_by(TRACES_AT_ONCE)) {
            let of_threads = stacks.weights(from..from + ids.len() as u32, weights)?;
            let traces = ids.iter().flatten().zip(of_threads).filter_map(|(id, weights)| {
                Some(TraceWeights { weights, ..without_weights(known.remove(id.as_str())?) })
            });
            comparison.add_traces(&code, traces.collect());
        }
    }
    let mut empty: Vec<TraceWeights> = known.into_values().map(without_weights).collect();
    empty.sort_by_key(|trace| trace.digest);
    for trace in &mut empty {
        let none = |&weight: &Weight| StackWeights { weight, samples: 0, stacks: Vec::new() };
        trace.weights = weights.iter().map(none).collect();
    }
    let code = comparison.code_of(side, &[], FunctionTree::default());
    comparison.add_traces(&code, empty);
    Ok(())
}

fn without_weights(trace: &DatasetTrace) -> TraceWeights {
    TraceWeights {
        source: trace.source.clone(),
        digest: ContentHash::parse(&trace.trace_id).as_ref().map_or(0, short),
        process: trace.process.clone(),
        weights: Vec::new(),
    }
}
