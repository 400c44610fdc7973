//! Sums of the runs and the call tree, and the sorted tables made of them.

use super::calls::CallSums;
use super::question::{AnswerSums, QuestionSums};
use super::timeline::Timeline;
use super::trust::{trust_stats, trusted};
use super::waits::WaitSums;
use super::{
    Amount, CauseStats, FrameStats, FunctionStats, ModuleStats, StatsOptions, StopStats, ThreadStats,
    TrustStats, TrustedWeight, WaitStats, per_second, share,
};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use stk_profile::profile::{
    Additive, Batch, FrameId, FrameKind, Functions, Modules, NameSource, NodeId, OpenFunctions, OwnTotal,
    Profile, Run, Runs, Visit, Weight,
};
use stk_profile::stack::StopReason;

/// Sums per thread, stop reason and stack, filled run by run.
pub(super) struct StatsTables<'a> {
    profile: &'a Profile,
    running_only: bool,
    threads: Vec<ThreadStats>,
    timelines: Vec<Timeline>,
    stops: Vec<u64>,
    /// By stop: the weights of the samples.
    stop_weights: Vec<[u64; WEIGHTS.len()]>,
    stacks: StackWeights,
    /// By node, once all runs are there: its samples, with the weight that the lists count.
    nodes: Vec<Amount>,
    /// Of runs without a stack: as above.
    no_stack: [u64; WEIGHTS.len()],
    waits: WaitSums,
}

/// Sums by stack. Of five nodes of the call tree, four are no stack of a run.
#[derive(Default)]
struct StackWeights {
    /// By node: its place among the sums, plus one; 0 = it has none.
    places: Vec<u32>,
    sums: Vec<StackSum>,
}

#[derive(Clone, Copy, Default)]
struct StackSum {
    samples: u64,
    /// In nanoseconds, for each weight.
    weights: [u64; WEIGHTS.len()],
}

impl StackWeights {
    fn of_mut(&mut self, NodeId(node): NodeId) -> &mut StackSum {
        let place = &mut self.places[node as usize];
        if *place == 0 {
            self.sums.push(StackSum::default());
            *place = self.sums.len() as u32;
        }
        &mut self.sums[*place as usize - 1]
    }

    /// By node: its samples, with the weight of this number.
    fn amounts(self, weight: usize) -> Vec<Amount> {
        let sum = |sum: &StackSum| Amount { samples: sum.samples, weight_ns: sum.weights[weight] };
        let sums: Vec<Amount> = self.sums.iter().map(sum).collect();
        // Before room is made for all nodes.
        drop(self.sums);
        let place = |place: &u32| place.checked_sub(1).map_or(Amount::default(), |at| sums[at as usize]);
        self.places.iter().map(place).collect()
    }
}

/// All weights.
const WEIGHTS: [Weight; 5] = [Weight::Cpu, Weight::Wall, Weight::Samples, Weight::Active, Weight::Waiting];

/// Tables that are ready to print.
pub(super) struct StatsSummary {
    pub weight: Weight,
    pub counted_ns: u64,
    pub waits: Vec<WaitStats>,
    pub distinct_stacks: u64,
    pub functions_by_self: Vec<FunctionStats>,
    pub functions_by_total: Vec<FunctionStats>,
    pub modules: Vec<ModuleStats>,
    /// All of them.
    pub threads: Vec<ThreadStats>,
    pub stops: Vec<StopStats>,
    pub complete_share: f64,
    pub trusts: Vec<TrustStats>,
    pub proved_share: f64,
    pub trusted: TrustedWeight,
    pub frames: FrameStats,
}

/// What a profile's samples come to by stack, with the weight that the lists of `stk stats` count.
#[derive(Clone, Debug)]
pub struct StackAmounts {
    pub weight: Weight,
    /// The weight of all, also of samples without a stack.
    pub counted_ns: u64,
    /// By node of the call tree: the samples that end there.
    pub nodes: Vec<Amount>,
}

impl StackAmounts {
    /// Sums up the runs, as the options say.
    pub fn of(profile: &Profile, runs: &Runs, options: &StatsOptions) -> io::Result<StackAmounts> {
        let mut tables = StatsTables::new(profile, options, runs.span());
        runs.for_each(|batch: Batch<'_>| -> io::Result<()> {
            tables.add(&batch);
            Ok(())
        })?;
        let (weight, counted_ns) = tables.weigh(options.weight, tables.is_cpu_known());
        Ok(StackAmounts { weight, counted_ns, nodes: tables.nodes })
    }
}

impl<'a> StatsTables<'a> {
    /// `span`: when samples were taken.
    pub(super) fn new(profile: &'a Profile, options: &StatsOptions, span: Range<u64>) -> StatsTables<'a> {
        let timelines = vec![Timeline::new(span); profile.threads.len()];
        let threads = profile
            .threads
            .iter()
            .map(|thread| ThreadStats {
                instance: thread.instance,
                tid: thread.tid,
                name: thread.name.clone(),
                sampling_cpu_ns: thread.sampling_cpu_ns,
                ..ThreadStats::default()
            })
            .collect();
        let stops = vec![0; profile.stops.len()];
        let stop_weights = vec![Default::default(); stops.len()];
        let stacks = StackWeights { places: vec![0; profile.tree.nodes().len()], sums: Vec::new() };
        StatsTables {
            profile,
            running_only: options.running_only,
            threads,
            timelines,
            stops,
            stop_weights,
            stacks,
            nodes: Vec::new(),
            no_stack: Default::default(),
            waits: WaitSums::new(options.waiting),
        }
    }

    pub(super) fn add(&mut self, batch: &Batch<'_>) {
        let thread = &mut self.threads[batch.thread as usize];
        let timeline = &mut self.timelines[batch.thread as usize];
        for run in batch.runs {
            timeline.add(run);
            thread.all.add_run(run);
            thread.states.of_mut(run.activity).add_run(run);
            thread.cpu_ns = thread.cpu_ns.saturating_add(run.cpu_ns);
            self.waits.add(batch.thread, run);
            if self.running_only && run.activity.wait().is_some() {
                continue;
            }
            self.stops[run.stop.0 as usize] += u64::from(run.samples);
            let sums = match run.node {
                Some(node) => {
                    let stack = self.stacks.of_mut(node);
                    stack.samples += u64::from(run.samples);
                    &mut stack.weights
                }
                None => &mut self.no_stack,
            };
            let of_stop = &mut self.stop_weights[run.stop.0 as usize];
            for ((sum, of_stop), weight) in sums.iter_mut().zip(of_stop).zip(WEIGHTS) {
                let ns = weight.of(run, self.profile.trace.interval_ns);
                *sum = sum.saturating_add(ns);
                *of_stop = of_stop.saturating_add(ns);
            }
        }
    }

    /// Whether the CPU time of any thread is known.
    fn is_cpu_known(&self) -> bool {
        self.threads.iter().any(|thread| thread.cpu_ns > 0)
    }

    /// Gives each node's amount the weight that the lists count. Returns what it is, and the weight
    /// of all.
    fn weigh(&mut self, asked: Option<Weight>, cpu_known: bool) -> (Weight, u64) {
        let weight = asked.unwrap_or(if cpu_known { Weight::Cpu } else { Weight::Active });
        let at = WEIGHTS.iter().position(|known| *known == weight).unwrap_or(0);
        self.nodes = std::mem::take(&mut self.stacks).amounts(at);
        // A forged trace may claim any CPU time and any interval.
        let all =
            self.nodes.iter().map(|amount| amount.weight_ns).fold(self.no_stack[at], u64::saturating_add);
        (weight, all)
    }

    /// The tables, and what else was requested. `functions`: those of the profile.
    pub(super) fn finish(
        mut self,
        functions: &Functions,
        options: &StatsOptions,
        asked: Option<QuestionSums<'_>>,
    ) -> (StatsSummary, Option<AnswerSums>) {
        let top = options.top;
        let cpu_known = self.is_cpu_known();
        let (weight, counted_ns) = self.weigh(options.weight, cpu_known);
        let distinct_stacks = self.nodes.iter().filter(|amount| amount.samples > 0).count() as u64;
        let modules_of = functions.modules();
        let trusted =
            TrustedWeight { complete_ns: self.complete_ns(weight), ..trusted(self.profile, &self.nodes) };
        let no_stack = self.no_stack_amount(weight);
        let calls = || {
            let through = through(self.profile, self.nodes.clone());
            CallSums::of(self.profile, functions, &self.nodes, &through, no_stack)
        };
        let answer = asked.map(|asked| asked.finish(cpu_known, calls));
        let (mut of_functions, mut of_modules) = own(self.profile, functions, &self.nodes);
        let through = through(self.profile, std::mem::take(&mut self.nodes));
        let module_of =
            |frame: FrameId| modules_of.names[modules_of.of_frames[frame.0 as usize] as usize].as_str();
        let sums = (&mut of_functions[..], &mut of_modules[..]);
        let ((), ((trusts, proved_share), frames)) = rayon::join(
            || add_totals(self.profile, functions, &through, sums),
            || {
                let trusts = trust_stats(self.profile, &through, module_of, top);
                (trusts, frame_stats(self.profile, modules_of, &through, top))
            },
        );
        drop(through);

        let by = |time: Time, other: Time| -> Vec<FunctionStats> {
            let function = |(id, sums): (u32, OwnTotal<Amount>)| {
                let function = &functions.list()[id as usize];
                FunctionStats {
                    function: function.name_in_module.clone(),
                    module: function.module.clone(),
                    modules: function.modules,
                    own: sums.own,
                    total: sums.total,
                }
            };
            ranked(&of_functions, time, other, top).into_iter().map(function).collect()
        };
        let modules = ranked(&of_modules, own_ns, total_ns, top)
            .into_iter()
            .map(|(id, sums)| ModuleStats {
                module: modules_of.names[id as usize].clone(),
                own: sums.own,
                total: sums.total,
            })
            .collect();

        let (functions_by_self, functions_by_total) = (by(own_ns, total_ns), by(total_ns, own_ns));
        for (thread, timeline) in self.threads.iter_mut().zip(&self.timelines) {
            thread.timeline = timeline.stats();
        }
        self.threads.retain(|thread| thread.all.samples > 0 || thread.cpu_ns > 0);
        self.threads.sort_by_key(|t| {
            let active = t.all.samples - t.states.waiting.samples;
            (Reverse((t.cpu_ns, active, t.all.samples)), t.instance)
        });
        for thread in &mut self.threads {
            thread.achieved_hz = per_second(thread.all.samples, thread.all.weight_ns);
        }
        let (stops, complete_share) = self.stop_stats(top);
        let summary = StatsSummary {
            weight,
            counted_ns,
            waits: self.waits.rows(self.profile, functions, top),
            distinct_stacks,
            functions_by_self,
            functions_by_total,
            modules,
            threads: std::mem::take(&mut self.threads),
            stops,
            complete_share,
            trusts,
            proved_share,
            trusted,
            frames,
        };
        (summary, answer)
    }

    /// The counted samples that have no stack.
    fn no_stack_amount(&self, weight: Weight) -> Amount {
        let all: u64 = self.stops.iter().sum();
        let with_stack: u64 = self.nodes.iter().map(|amount| amount.samples).sum();
        let at = WEIGHTS.iter().position(|known| *known == weight).unwrap_or(0);
        Amount { samples: all - with_stack, weight_ns: self.no_stack[at] }
    }

    /// The weight of the samples whose stacks are complete.
    fn complete_ns(&self, weight: Weight) -> u64 {
        let at = WEIGHTS.iter().position(|known| *known == weight).unwrap_or(0);
        let stops = self.profile.stops.iter().zip(&self.stop_weights);
        let complete = stops.filter(|(stop, _)| stop.reason.is_complete());
        complete.map(|(_, weights)| weights[at]).fold(0, u64::saturating_add)
    }

    /// The first `top` reasons why stacks end, and the part of all stacks that is complete.
    fn stop_stats(&self, top: usize) -> (Vec<StopStats>, f64) {
        let all: u64 = self.stops.iter().sum();
        let mut sums: HashMap<(StopReason, &str), u64> = HashMap::new();
        for (stop, &samples) in
            self.profile.stops.iter().zip(&self.stops).filter(|(_, samples)| **samples > 0)
        {
            *sums.entry((stop.reason, &stop.module)).or_default() += samples;
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_unstable_by_key(|&((reason, module), samples)| (Reverse(samples), reason.as_str(), module));
        let complete = sums.iter().filter(|((reason, _), _)| reason.is_complete()).map(|row| row.1).sum();
        sums.truncate(top);
        let stop = |((reason, module), samples): ((StopReason, &str), u64)| StopStats {
            reason,
            module: module.to_owned(),
            samples,
            share: share(samples, all),
        };
        (sums.into_iter().map(stop).collect(), share(complete, all))
    }
}

impl Amount {
    pub(super) fn add_run(&mut self, run: &Run) {
        self.samples += u64::from(run.samples);
        self.weight_ns = self.weight_ns.saturating_add(run.weight_ns);
    }
}

impl Additive for Amount {
    fn add(&mut self, more: Amount) {
        self.samples.add(more.samples);
        self.weight_ns.add(more.weight_ns);
    }
}

/// By node: samples of the stacks that go through it, of those that end there.
fn through(profile: &Profile, mut own: Vec<Amount>) -> Vec<Amount> {
    profile.tree.add_callees(&mut own, Amount::add);
    own
}

/// The sums of all functions, and of all modules: own amounts alone. With [`add_totals`] they are
/// [`Sums`](stk_profile::profile::Sums) of all stacks, without trees of functions and of modules,
/// which in a recording of few equal stacks are as large as it.
fn own(
    profile: &Profile,
    functions: &Functions,
    nodes: &[Amount],
) -> (Vec<OwnTotal<Amount>>, Vec<OwnTotal<Amount>>) {
    let modules = functions.modules();
    let mut of_functions = vec![OwnTotal::<Amount>::default(); functions.list().len()];
    let mut of_modules = vec![OwnTotal::<Amount>::default(); modules.names.len()];
    for (node, &own) in profile.tree.nodes().iter().zip(nodes).filter(|(_, own)| **own != Amount::default()) {
        if let Some(innermost) = functions.of(node.frame).last() {
            of_functions[innermost.0 as usize].own.add(own);
        }
        of_modules[modules.of_frames[node.frame.0 as usize] as usize].own.add(own);
    }
    (of_functions, of_modules)
}

/// Adds the total amounts. Visits every stack once that has samples or leads to one with samples.
fn add_totals(
    profile: &Profile,
    functions: &Functions,
    through: &[Amount],
    (of_functions, of_modules): (&mut [OwnTotal<Amount>], &mut [OwnTotal<Amount>]),
) {
    let nodes = profile.tree.nodes();
    let modules = functions.modules();
    let (mut open_functions, mut open_modules) = (OpenFunctions::default(), OpenFunctions::default());
    profile.tree.visit(|NodeId(node), when| {
        let at = node as usize;
        let frame = nodes[at].frame;
        let module = modules.of_frames[frame.0 as usize];
        let of_frame = functions.of(frame);
        if when == Visit::Leave {
            of_frame.iter().for_each(|function| open_functions.leave(function.0));
            open_modules.leave(module);
            return true;
        }
        if through[at] == Amount::default() {
            return false;
        }
        for function in of_frame {
            if open_functions.enter(function.0) {
                of_functions[function.0 as usize].total.add(through[at]);
            }
        }
        if open_modules.enter(module) {
            of_modules[module as usize].total.add(through[at]);
        }
        true
    });
}

/// A time by which functions and modules are listed.
type Time = fn(&OwnTotal<Amount>) -> u64;

fn own_ns(sums: &OwnTotal<Amount>) -> u64 {
    sums.own.weight_ns
}

fn total_ns(sums: &OwnTotal<Amount>) -> u64 {
    sums.total.weight_ns
}

/// The first `top` ids by a time that is not 0, the longest first; ties by the other time, then by
/// id, which is the order of first appearance.
fn ranked(all: &[OwnTotal<Amount>], time: Time, other: Time, top: usize) -> Vec<(u32, OwnTotal<Amount>)> {
    let mut rows: Vec<_> = (0u32..).zip(all.iter().copied()).filter(|(_, sums)| time(sums) > 0).collect();
    rows.sort_unstable_by_key(|(id, sums)| (Reverse((time(sums), other(sums))), *id));
    rows.truncate(top);
    rows
}

/// Frames of one module that have no certain name for one cause.
#[derive(Default)]
struct UnnamedFrames {
    frames: u64,
    /// Distinct ones.
    addresses: u64,
}

fn frame_stats(profile: &Profile, modules: &Modules, through: &[Amount], top: usize) -> FrameStats {
    let symbols = &profile.symbols;
    let mut unnamed: HashMap<(&str, &str, bool), UnnamedFrames> = HashMap::new();
    let (mut all, mut exports, mut unresolved) = (0, 0, 0);
    let (mut managed, mut managed_named) = (0, 0);
    // Names belong to frames, of which there are far fewer than nodes.
    let mut of_frames = vec![0u64; profile.frames.keys().len()];
    for (node, amount) in profile.tree.nodes().iter().zip(through) {
        of_frames[node.frame.0 as usize] += amount.samples;
    }
    for (i, samples) in of_frames.into_iter().enumerate().filter(|(_, samples)| *samples > 0) {
        let source = symbols.source[i];
        let kind = profile.kind(FrameId(i as u32));
        if kind == FrameKind::Placeholder {
            continue;
        }
        all += samples;
        if matches!(kind, FrameKind::Managed | FrameKind::Stub | FrameKind::Dynamic) {
            managed += samples;
            managed_named += if source.is_certain() { samples } else { 0 };
        }
        if source.is_certain() {
            continue;
        }
        let module = modules.names[modules.of_frames[i] as usize].as_str();
        let cause = symbols.reason[i].map_or("cause not known", |reason| symbols.strings.get(reason));
        let export_only = source == NameSource::Export;
        *if export_only { &mut exports } else { &mut unresolved } += samples;
        let group = unnamed.entry((module, cause, export_only)).or_default();
        group.frames += samples;
        group.addresses += 1;
    }
    let mut causes: Vec<_> = unnamed.into_iter().collect();
    causes.sort_unstable_by_key(|(key, group)| (Reverse(group.frames), *key));
    causes.truncate(top);
    let causes = causes
        .into_iter()
        .map(|((module, cause, export_only), group)| CauseStats {
            module: module.to_owned(),
            cause: cause.to_owned(),
            export_only,
            frames: group.frames,
            addresses: group.addresses,
            share: share(group.frames, all),
        })
        .collect();
    FrameStats {
        frames: all,
        named: all - exports - unresolved,
        export_only: exports,
        unresolved,
        unresolved_share: share(unresolved, all),
        managed,
        managed_named,
        causes,
    }
}
