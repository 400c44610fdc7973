//! What one trace is compared by: its stacks of functions, and their weights.

use super::code::Numbers;
use crate::model::stable_name;
use crate::profile::{FrameId, NameSource, NodeId, Profile, Run, Runs, Weight};
use std::io;

/// Where the name of code came from, as far as it decides whether names can be compared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Naming {
    /// Symbols, or the language runtime.
    Symbols,
    /// The nearest export.
    Export,
    /// There is none.
    None,
}

/// A function of a trace.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FunctionName {
    /// File name of its module; empty if it lies in none.
    pub module: String,
    /// Its name in every build; `None` for all code of the module that has none.
    pub name: Option<String>,
    pub naming: Naming,
}

/// A stack: a function, called by another stack.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Call {
    /// An index in [`TraceStacks::calls`], smaller than its own.
    pub caller: Option<u32>,
    /// An index in [`TraceStacks::functions`].
    pub function: u32,
}

/// Weights of a trace's stacks.
#[derive(Clone, PartialEq, Debug)]
pub struct StackWeights {
    pub weight: Weight,
    /// Samples that have such a weight.
    pub samples: u64,
    /// By stack that has weight, nanoseconds.
    pub stacks: Vec<(u32, u64)>,
}

/// What one trace is compared by.
#[derive(Clone, PartialEq, Debug)]
pub struct TraceStacks {
    /// File or name.
    pub source: String,
    /// Digest of its content.
    pub digest: u64,
    pub process: String,
    pub functions: Vec<FunctionName>,
    pub calls: Vec<Call>,
    /// One or several, in the order in which they are preferred.
    pub weights: Vec<StackWeights>,
}

/// The name of samples that have no stack.
const NO_STACK: &str = "[no stack]";

/// The stacks of a profile, with each of these weights. `digest` is that of the trace's content.
///
/// # Errors
///
/// When the runs cannot be read.
pub fn collect(profile: &Profile, runs: &Runs, digest: u64, weights: &[Weight]) -> io::Result<TraceStacks> {
    let mut functions: Numbers<FunctionName> = Numbers::default();
    let mut calls: Numbers<Call> = Numbers::default();
    let of_frames: Vec<Vec<u32>> = (0..profile.frames.keys().len() as u32)
        .map(|frame| functions_of(profile, FrameId(frame)).map(|name| functions.of(name)).collect())
        .collect();
    let mut of_nodes: Vec<Option<u32>> = Vec::with_capacity(profile.tree.nodes().len());
    for node in profile.tree.nodes() {
        let caller = node.parent.and_then(|NodeId(parent)| of_nodes[parent as usize]);
        let names = &of_frames[node.frame.0 as usize];
        let call = names.iter().fold(caller, |caller, &function| {
            // How much code without a name calls itself changes from build to build.
            let unnamed = functions.values()[function as usize].name.is_none();
            let of_caller = caller.map(|caller| calls.values()[caller as usize].function);
            if unnamed && of_caller == Some(function) {
                return caller;
            }
            Some(calls.of(Call { caller, function }))
        });
        of_nodes.push(call);
    }
    let none = FunctionName { module: String::new(), name: Some(NO_STACK.to_owned()), naming: Naming::None };
    let none = Call { caller: None, function: functions.of(none) };
    let none = calls.of(none);

    let mut sums = vec![vec![0u64; calls.values().len()]; weights.len()];
    let mut samples = vec![0u64; weights.len()];
    runs.for_each(|batch| {
        for run in batch.runs {
            let call = run.node.and_then(|NodeId(node)| of_nodes[node as usize]).unwrap_or(none);
            for (at, &weight) in weights.iter().enumerate() {
                add(run, weight, profile.trace.interval_ns, &mut sums[at][call as usize], &mut samples[at]);
            }
        }
        Ok::<(), io::Error>(())
    })?;
    let with_weight = |sums: Vec<u64>| (0u32..).zip(sums).filter(|(_, sum)| *sum > 0).collect();
    let weights = weights.iter().zip(sums).zip(samples);
    Ok(TraceStacks {
        source: profile.trace.source.clone(),
        digest,
        process: profile.trace.process.clone(),
        functions: functions.values().to_vec(),
        calls: calls.values().to_vec(),
        weights: weights
            .map(|((&weight, sums), samples)| StackWeights { weight, samples, stacks: with_weight(sums) })
            .collect(),
    })
}

/// Adds a run to the weight of its stack and to the samples.
fn add(run: &Run, weight: Weight, interval_ns: u64, sum: &mut u64, samples: &mut u64) {
    let ns = weight.of(run, interval_ns);
    if ns > 0 {
        *sum = sum.saturating_add(ns);
        *samples += u64::from(run.samples);
    }
}

/// The functions of a frame, outermost first.
fn functions_of(profile: &Profile, frame: FrameId) -> impl Iterator<Item = FunctionName> {
    let module = profile.module_name(frame).unwrap_or_default();
    let naming = match profile.symbols.source[frame.0 as usize] {
        NameSource::Pdb | NameSource::Dwarf | NameSource::Runtime => Naming::Symbols,
        NameSource::Export => Naming::Export,
        NameSource::None => Naming::None,
    };
    profile.symbols.names(frame).iter().rev().map(move |name| FunctionName {
        module: module.to_owned(),
        name: (naming != Naming::None).then(|| stable_name(profile.symbols.strings.get(name.function))),
        naming,
    })
}
