//! What one trace is compared by: its stacks of functions, and their weights.

use super::numbers::Numbers;
use stk_base::model::stable_name;
use stk_profile::profile::{FrameId, NameSource, NodeId, Profile, Run, Runs, Weight};
use rayon::prelude::*;
use std::io;
use std::ops::Range;

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

/// The weights of one of several traces: see [`TraceStacks`].
#[derive(Clone, PartialEq, Debug)]
pub struct TraceWeights {
    pub source: String,
    pub digest: u64,
    pub process: String,
    pub weights: Vec<StackWeights>,
}

/// The stacks of a profile, with each of these weights. `digest` is that of the trace's content.
///
/// # Errors
///
/// When the runs cannot be read.
pub fn collect(profile: &Profile, runs: &Runs, digest: u64, weights: &[Weight]) -> io::Result<TraceStacks> {
    let code = StackCode::of(profile);
    let mut sums = StackSums::new(&code, profile, weights);
    runs.for_each(|batch| {
        batch.runs.iter().for_each(|run| sums.add(run));
        Ok::<(), io::Error>(())
    })?;
    let weights = sums.take();
    Ok(TraceStacks {
        source: profile.trace.source.clone(),
        digest,
        process: profile.trace.process.clone(),
        functions: code.functions.values().to_vec(),
        calls: code.calls.values().to_vec(),
        weights,
    })
}

/// The stacks of a profile of which each thread stands for a trace.
pub struct ThreadStacks<'a> {
    profile: &'a Profile,
    runs: &'a Runs,
    code: StackCode,
}

impl<'a> ThreadStacks<'a> {
    pub fn new(profile: &'a Profile, runs: &'a Runs) -> ThreadStacks<'a> {
        ThreadStacks { profile, runs, code: StackCode::of(profile) }
    }

    /// The functions of all stacks.
    pub fn functions(&self) -> &[FunctionName] {
        self.code.functions.values()
    }

    /// All stacks.
    pub fn calls(&self) -> &[Call] {
        self.code.calls.values()
    }

    /// Whether every thread has some of a weight. Runs in the caller's rayon pool.
    ///
    /// # Errors
    ///
    /// When the runs cannot be read.
    pub fn all_tell(&self, weight: Weight) -> io::Result<bool> {
        let interval_ns = self.profile.trace.interval_ns;
        let tells = |(): &mut (), thread: u32| {
            let mut tells = false;
            self.runs.for_threads([thread], |batch| {
                tells = tells || batch.runs.iter().any(|run| weight.of(run, interval_ns) > 0);
                Ok::<(), io::Error>(())
            })?;
            Ok(tells)
        };
        let told = self.each(0..self.profile.threads.len() as u32, || (), tells)?;
        Ok(told.into_iter().all(|tells| tells))
    }

    /// The weights of these threads' stacks. Runs in the caller's rayon pool.
    ///
    /// # Errors
    ///
    /// When the runs cannot be read.
    pub fn weights(&self, threads: Range<u32>, weights: &[Weight]) -> io::Result<Vec<Vec<StackWeights>>> {
        let begin = || StackSums::new(&self.code, self.profile, weights);
        self.each(threads, begin, |sums, thread| {
            self.runs.for_threads([thread], |batch| {
                batch.runs.iter().for_each(|run| sums.add(run));
                Ok::<(), io::Error>(())
            })?;
            Ok(sums.take())
        })
    }

    /// What `of` says of each thread, several at a time where the runs can be read so.
    fn each<S, T: Send>(
        &self,
        threads: Range<u32>,
        begin: impl Fn() -> S + Sync + Send,
        of: impl Fn(&mut S, u32) -> io::Result<T> + Sync + Send,
    ) -> io::Result<Vec<T>> {
        if self.runs.can_be_shared() {
            return threads.into_par_iter().map_init(&begin, &of).collect();
        }
        let mut state = begin();
        threads.map(|thread| of(&mut state, thread)).collect()
    }
}

/// The functions and the stacks of a profile.
struct StackCode {
    functions: Numbers<FunctionName>,
    calls: Numbers<Call>,
    /// By node: its innermost function's call.
    of_nodes: Vec<Option<u32>>,
    /// The call of samples that have no stack.
    none: u32,
}

impl StackCode {
    fn of(profile: &Profile) -> StackCode {
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
        let module = String::new();
        let none = FunctionName { module, name: Some(NO_STACK.to_owned()), naming: Naming::None };
        let none = Call { caller: None, function: functions.of(none) };
        let none = calls.of(none);
        StackCode { functions, calls, of_nodes, none }
    }
}

/// The weights of a trace's stacks, run by run.
struct StackSums<'a> {
    code: &'a StackCode,
    interval_ns: u64,
    weights: &'a [Weight],
    /// By weight and call.
    sums: Vec<Vec<u64>>,
    samples: Vec<u64>,
    /// Calls that have a sum, perhaps more than once.
    met: Vec<u32>,
}

impl<'a> StackSums<'a> {
    fn new(code: &'a StackCode, profile: &Profile, weights: &'a [Weight]) -> StackSums<'a> {
        let sums = vec![vec![0u64; code.calls.values().len()]; weights.len()];
        let interval_ns = profile.trace.interval_ns;
        StackSums { code, interval_ns, weights, sums, samples: vec![0; weights.len()], met: Vec::new() }
    }

    fn add(&mut self, run: &Run) {
        let known = run.node.and_then(|NodeId(node)| self.code.of_nodes[node as usize]);
        let call = known.unwrap_or(self.code.none);
        if self.sums.iter().all(|sums| sums[call as usize] == 0) {
            self.met.push(call);
        }
        for (at, &weight) in self.weights.iter().enumerate() {
            let sum = &mut self.sums[at][call as usize];
            add(run, weight, self.interval_ns, sum, &mut self.samples[at]);
        }
    }

    /// The weights of the stacks so far. The next trace begins without any.
    fn take(&mut self) -> Vec<StackWeights> {
        self.met.sort_unstable();
        self.met.dedup();
        let mut all = Vec::with_capacity(self.weights.len());
        for (at, &weight) in self.weights.iter().enumerate() {
            let sums = &mut self.sums[at];
            let stacks = self.met.iter().map(|&call| (call, std::mem::take(&mut sums[call as usize])));
            let stacks = stacks.filter(|(_, sum)| *sum > 0).collect();
            all.push(StackWeights { weight, samples: std::mem::take(&mut self.samples[at]), stacks });
        }
        self.met.clear();
        all
    }
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
