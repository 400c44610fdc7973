//! What one trace is compared by: its stacks of functions, and their weights.

use rayon::prelude::*;
use std::io;
use std::ops::Range;
use stk_base::model::stable_name;
use stk_profile::profile::{
    Accumulator, Folded, FrameId, FunctionTree, NameSource, NodeId, Profile, Run, Runs, Weight,
};
use stk_profile::stack::Interner;

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

/// A function as one build names it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct BuildFunction {
    /// File name of its module; empty if it is in none.
    pub module: String,
    /// Its name in every build; `None` for all code of the module that has none.
    pub name: Option<String>,
    pub naming: Naming,
}

/// Weights of a trace's stacks.
#[derive(Clone, PartialEq, Debug)]
pub struct StackWeights {
    pub weight: Weight,
    /// Samples that have such a weight.
    pub samples: u64,
    /// By number of a stack that has weight, nanoseconds.
    pub stacks: Vec<(u32, u64)>,
}

/// What one trace is compared by.
#[derive(Clone, Debug)]
pub struct TraceStacks {
    /// File or name.
    pub source: String,
    /// Digest of its content.
    pub digest: u64,
    pub process: String,
    pub functions: Vec<BuildFunction>,
    /// Its functions are indices in `functions`.
    pub calls: FunctionTree,
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
pub fn collect(profile: &Profile, runs: &Runs, digest: u64, weights: &[Weight]) -> io::Result<TraceStacks> {
    let code = StackCode::of(profile);
    let mut sums = StackWeigher::new(&code, profile, weights);
    runs.for_each(|batch| {
        batch.runs.iter().for_each(|run| sums.add(run));
        Ok::<(), io::Error>(())
    })?;
    let weights = sums.take();
    Ok(TraceStacks {
        source: profile.trace.source.clone(),
        digest,
        process: profile.trace.process.clone(),
        functions: code.functions.values,
        calls: code.calls.tree,
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
    pub fn functions(&self) -> &[BuildFunction] {
        &self.code.functions.values
    }

    /// All stacks.
    pub fn calls(&self) -> &FunctionTree {
        &self.code.calls.tree
    }

    /// Whether every thread has some of a weight. Runs in the caller's rayon pool.
    pub fn all_have(&self, weight: Weight) -> io::Result<bool> {
        let interval_ns = self.profile.trace.interval_ns;
        let has = |(): &mut (), thread: u32| {
            let mut has = false;
            self.runs.for_threads([thread], |batch| {
                has = has || batch.runs.iter().any(|run| weight.of(run, interval_ns) > 0);
                Ok::<(), io::Error>(())
            })?;
            Ok(has)
        };
        let each = self.each(0..self.profile.threads.len() as u32, || (), has)?;
        Ok(each.into_iter().all(|has| has))
    }

    /// The weights of these threads' stacks. Runs in the caller's rayon pool.
    pub fn weights(&self, threads: Range<u32>, weights: &[Weight]) -> io::Result<Vec<Vec<StackWeights>>> {
        let begin = || StackWeigher::new(&self.code, self.profile, weights);
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
    functions: Interner<BuildFunction>,
    calls: Folded,
    /// The stack of samples that have none.
    none: NodeId,
}

impl StackCode {
    fn of(profile: &Profile) -> StackCode {
        let mut functions: Interner<BuildFunction> = Interner::default();
        let of_frames: Vec<Vec<u32>> = (0..profile.frames.keys().len() as u32)
            .map(|frame| functions_of(profile, FrameId(frame)).map(|name| functions.intern(name)).collect())
            .collect();
        // How much code without a name calls itself changes from build to build.
        let is_unnamed = |function: u32| functions.values[function as usize].name.is_none();
        let of_frame = |frame: FrameId| of_frames[frame.0 as usize].iter().copied();
        let mut calls = FunctionTree::fold(&profile.tree, |_| true, of_frame, is_unnamed);
        let module = String::new();
        let none = BuildFunction { module, name: Some(NO_STACK.to_owned()), naming: Naming::None };
        let none = calls.tree.call(None, functions.intern(none));
        StackCode { functions, calls, none }
    }
}

/// The weights of a trace's stacks, run by run.
struct StackWeigher<'a> {
    code: &'a StackCode,
    interval_ns: u64,
    /// Each weight with its sums by stack and its samples.
    weights: Vec<(Weight, Accumulator<u64>, u64)>,
}

impl<'a> StackWeigher<'a> {
    fn new(code: &'a StackCode, profile: &Profile, weights: &[Weight]) -> StackWeigher<'a> {
        let weights = weights.iter().map(|&weight| (weight, Accumulator::default(), 0)).collect();
        StackWeigher { code, interval_ns: profile.trace.interval_ns, weights }
    }

    fn add(&mut self, run: &Run) {
        let known = run.node.and_then(|NodeId(node)| self.code.calls.stacks[node as usize]);
        let NodeId(stack) = known.unwrap_or(self.code.none);
        for (weight, sums, samples) in &mut self.weights {
            let ns = weight.of(run, self.interval_ns);
            sums.add(stack, ns);
            *samples += if ns > 0 { u64::from(run.samples) } else { 0 };
        }
    }

    /// The weights of the stacks so far. The next trace begins without any.
    fn take(&mut self) -> Vec<StackWeights> {
        let of = |(weight, sums, samples): &mut (Weight, Accumulator<u64>, u64)| StackWeights {
            weight: *weight,
            samples: std::mem::take(samples),
            stacks: sums.take(),
        };
        self.weights.iter_mut().map(of).collect()
    }
}

/// The functions of a frame, outermost first.
fn functions_of(profile: &Profile, frame: FrameId) -> impl Iterator<Item = BuildFunction> {
    let module = profile.module_name(frame).unwrap_or_default();
    let is_placeholder = profile.is_placeholder(frame);
    let naming = match profile.symbols.source[frame.0 as usize] {
        NameSource::Pdb | NameSource::Dwarf | NameSource::Runtime => Naming::Symbols,
        NameSource::Export => Naming::Export,
        NameSource::None => Naming::None,
    };
    profile.symbols.names(frame).iter().rev().map(move |name| BuildFunction {
        module: module.to_owned(),
        name: (naming != Naming::None || is_placeholder)
            .then(|| stable_name(profile.symbols.strings.get(name.function))),
        naming,
    })
}
