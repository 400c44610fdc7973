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
use rayon::prelude::*;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use stk_profile::profile::{
    Additive, Batch, ChainId, Children, FrameId, FrameKind, Functions, Modules, NameSource, NodeId,
    OpenFunctions, OwnTotal, Profile, Run, Runs, Visit, Weight,
};
use stk_profile::stack::StopReason;

/// Sums per thread, stop reason and stack, filled run by run.
pub(super) struct StatsTables<'a> {
    profile: &'a Profile,
    running_only: bool,
    threads: Vec<ThreadStats>,
    timelines: Vec<Timeline>,
    stops: Vec<u64>,
    /// By stop: the weight of the samples.
    stop_ns: Vec<u64>,
    /// What the lists count.
    weight: Weight,
    /// By chain: the samples that end with it.
    stacks: Vec<Amount>,
    /// Of runs without a stack.
    no_stack: Amount,
    waits: WaitSums,
}

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
    /// By chain of the call tree: the samples that end with it.
    pub stacks: Vec<Amount>,
}

impl StackAmounts {
    /// Sums up the runs, as the options say.
    pub fn of(profile: &Profile, runs: &Runs, options: &StatsOptions) -> io::Result<StackAmounts> {
        let mut tables = StatsTables::new(profile, runs, options, runs.span())?;
        runs.for_each(|batch: Batch<'_>| -> io::Result<()> {
            tables.add(&batch);
            Ok(())
        })?;
        Ok(StackAmounts { weight: tables.weight, counted_ns: tables.counted_ns(), stacks: tables.stacks })
    }
}

impl<'a> StatsTables<'a> {
    /// For these runs of a profile. `span`: when samples were taken.
    pub(super) fn new(
        profile: &'a Profile,
        runs: &Runs,
        options: &StatsOptions,
        span: Range<u64>,
    ) -> io::Result<StatsTables<'a>> {
        let weight = match options.weight {
            Some(weight) => weight,
            None if is_cpu_known(runs)? => Weight::Cpu,
            None => Weight::Active,
        };
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
        Ok(StatsTables {
            profile,
            running_only: options.running_only,
            threads,
            timelines,
            stops: vec![0; profile.stops.len()],
            stop_ns: vec![0; profile.stops.len()],
            weight,
            stacks: vec![Amount::default(); profile.tree.chains().len()],
            no_stack: Amount::default(),
            waits: WaitSums::new(options.waiting),
        })
    }

    pub(super) fn add(&mut self, batch: &Batch<'_>) {
        let StatsTables { threads, timelines, stops, stop_ns, stacks, no_stack, waits, .. } = self;
        let (running_only, weight, interval_ns) =
            (self.running_only, self.weight, self.profile.trace.interval_ns);
        let counts = |run: &&Run| !running_only || run.activity.wait().is_none();
        let amount =
            |run: &Run| Amount { samples: run.samples.into(), weight_ns: weight.of(run, interval_ns) };
        let (thread, timeline) = (&mut threads[batch.thread as usize], &mut timelines[batch.thread as usize]);
        let chains = self.profile.tree.chains();
        rayon::join(
            || {
                chains.add(stacks, batch.runs.len(), |_, mut sums| {
                    for run in batch.runs.iter().filter(counts) {
                        if let Some(sum) = run.node.and_then(|node| sums.of(node)) {
                            sum.add(amount(run));
                        }
                    }
                });
            },
            || {
                for run in batch.runs {
                    timeline.add(run);
                    thread.all.add_run(run);
                    thread.states.of_mut(run.activity).add_run(run);
                    thread.cpu_ns = thread.cpu_ns.saturating_add(run.cpu_ns);
                    waits.add(batch.thread, run);
                }
                for run in batch.runs.iter().filter(counts) {
                    let amount = amount(run);
                    let stop = run.stop.0 as usize;
                    stops[stop] += amount.samples;
                    stop_ns[stop] = stop_ns[stop].saturating_add(amount.weight_ns);
                    if run.node.is_none() {
                        no_stack.add(amount);
                    }
                }
            },
        );
    }

    /// The weight of all.
    fn counted_ns(&self) -> u64 {
        // A forged trace may claim any CPU time and any interval.
        let weights = self.stacks.iter().map(|amount| amount.weight_ns);
        weights.fold(self.no_stack.weight_ns, u64::saturating_add)
    }

    /// The tables, and what else was requested. `functions`: those of the profile.
    pub(super) fn finish(
        mut self,
        functions: &Functions,
        options: &StatsOptions,
        asked: Option<QuestionSums<'_>>,
    ) -> (StatsSummary, Option<AnswerSums>) {
        let top = options.top;
        let cpu_known = self.threads.iter().any(|thread| thread.cpu_ns > 0);
        let modules_of = functions.modules();
        let calls = || {
            let through = through(self.profile, self.stacks.clone());
            CallSums::of(self.profile, functions, &self.stacks, &through, self.no_stack)
        };
        let answer = asked.map(|asked| asked.finish(cpu_known, calls));
        let ((counted_ns, trusted), (distinct_stacks, (mut of_functions, mut of_modules))) = rayon::join(
            || (self.counted_ns(), trusted(self.profile, &self.stacks)),
            || {
                let stacks = self.stacks.iter().filter(|amount| amount.samples > 0);
                (stacks.count() as u64, own(self.profile, functions, &self.stacks))
            },
        );
        let trusted = TrustedWeight { complete_ns: self.complete_ns(), ..trusted };
        let through = through(self.profile, std::mem::take(&mut self.stacks));
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
            weight: self.weight,
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

    /// The weight of the samples whose stacks are complete.
    fn complete_ns(&self) -> u64 {
        let stops = self.profile.stops.iter().zip(&self.stop_ns);
        let complete = stops.filter(|(stop, _)| stop.reason.is_complete());
        complete.map(|(_, ns)| *ns).fold(0, u64::saturating_add)
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

/// By chain: samples of the stacks that go through it, of those that end with it.
fn through(profile: &Profile, mut own: Vec<Amount>) -> Vec<Amount> {
    profile.tree.chains().add_callees(&mut own, Amount::add);
    own
}

/// The sums of all functions, and of all modules: own amounts alone. With [`add_totals`] they are
/// [`Sums`](stk_profile::profile::Sums) of all stacks, without trees of functions and of modules,
/// which in a recording of few equal stacks are as large as it.
fn own(
    profile: &Profile,
    functions: &Functions,
    stacks: &[Amount],
) -> (Vec<OwnTotal<Amount>>, Vec<OwnTotal<Amount>>) {
    let modules = functions.modules();
    let mut of_functions = vec![OwnTotal::<Amount>::default(); functions.list().len()];
    let mut of_modules = vec![OwnTotal::<Amount>::default(); modules.names.len()];
    let (chains, nodes) = (profile.tree.chains(), profile.tree.nodes());
    let with_samples = (0u32..).zip(stacks).filter(|(_, own)| **own != Amount::default());
    for (chain, &own) in with_samples {
        let node = nodes[chains.last(ChainId(chain)).0 as usize];
        if let Some(innermost) = functions.of(node.frame).last() {
            of_functions[innermost.0 as usize].own.add(own);
        }
        of_modules[modules.of_frames[node.frame.0 as usize] as usize].own.add(own);
    }
    (of_functions, of_modules)
}

/// Adds the total amounts. Visits every stack once that has samples or leads to one with samples,
/// several parts of the tree at once.
fn add_totals(
    profile: &Profile,
    functions: &Functions,
    through: &[Amount],
    (of_functions, of_modules): (&mut [OwnTotal<Amount>], &mut [OwnTotal<Amount>]),
) {
    let threads = rayon::current_num_threads();
    let parts = TreeParts::new(profile, through, threads);
    let next = AtomicUsize::new(0);
    let work = |_| {
        let mut totals = Totals::new(profile, functions, through);
        while let Some(&part) = parts.roots.get(next.fetch_add(1, Ordering::Relaxed)) {
            totals.add_part(&parts, part);
        }
        totals
    };
    for totals in (0..threads).into_par_iter().map(work).collect::<Vec<_>>() {
        for (sums, totals) in [(&mut *of_functions, &totals.functions), (&mut *of_modules, &totals.modules)] {
            sums.iter_mut().zip(&totals.sums).for_each(|(sum, total)| sum.total.add(*total));
        }
    }
}

/// A call tree, cut into parts that are visited at once. Its nodes are the chains.
struct TreeParts {
    callees: Children,
    /// The outermost chain of each, and whether the part is that chain alone.
    roots: Vec<(NodeId, bool)>,
}

/// Chains that are parts of their own, at most.
const MOST_SINGLE: usize = 256;

impl TreeParts {
    /// The chains that samples go through.
    fn new(profile: &Profile, through: &[Amount], threads: usize) -> TreeParts {
        let chains = profile.tree.chains();
        let callees = chains.callees();
        let mut sizes: Vec<u32> = chains.iter().map(|(_, nodes)| nodes.len() as u32).collect();
        chains.add_callees(&mut sizes, |sum, more| *sum += more);
        let part = |node: NodeId| (sizes[node.0 as usize], node);
        let is_met = |NodeId(chain): &NodeId| through[*chain as usize] != Amount::default();
        let mut parts: BinaryHeap<(u32, NodeId)> = callees.roots().filter(is_met).map(part).collect();
        // A part that is larger than this is cut.
        let large = profile.tree.nodes().len() / (8 * threads);
        let mut roots = Vec::new();
        while threads > 1
            && roots.len() < MOST_SINGLE
            && parts.peek().is_some_and(|(size, _)| *size as usize > large)
            && let Some((_, chain)) = parts.pop()
        {
            roots.push((chain, true));
            parts.extend(callees.of(chain).filter(is_met).map(part));
        }
        // The largest first, so that the last one to begin is a small one.
        roots.extend(parts.into_sorted_vec().into_iter().rev().map(|(_, chain)| (chain, false)));
        TreeParts { callees, roots }
    }
}

/// The total amounts of functions and modules, by some parts of a tree.
struct Totals<'p> {
    profile: &'p Profile,
    of_frames: &'p Functions,
    through: &'p [Amount],
    functions: OpenTotals,
    modules: OpenTotals,
}

/// Sums by number, and what is on the stack of the visit.
struct OpenTotals {
    sums: Vec<Amount>,
    open: OpenFunctions,
}

impl OpenTotals {
    fn new(numbers: usize) -> OpenTotals {
        OpenTotals { sums: vec![Amount::default(); numbers], open: OpenFunctions::default() }
    }

    fn enter(&mut self, number: u32, amount: Amount) {
        if self.open.enter(number) {
            self.sums[number as usize].add(amount);
        }
    }
}

impl<'p> Totals<'p> {
    fn new(profile: &'p Profile, of_frames: &'p Functions, through: &'p [Amount]) -> Totals<'p> {
        let functions = OpenTotals::new(of_frames.list().len());
        let modules = OpenTotals::new(of_frames.modules().names.len());
        Totals { profile, of_frames, through, functions, modules }
    }

    fn add_part(&mut self, parts: &TreeParts, (root, is_single): (NodeId, bool)) {
        let chains = self.profile.tree.chains();
        let caller = |NodeId(chain)| chains.caller(ChainId(chain)).map(|ChainId(caller)| NodeId(caller));
        let callers = || std::iter::successors(caller(root), |chain| caller(*chain));
        // Callers are on the stack, and counted with the parts that they belong to.
        callers().for_each(|caller| self.enter(caller, Amount::default()));
        self.enter(root, self.through[root.0 as usize]);
        if !is_single {
            parts.callees.visit_below(root, |chain, when| {
                let amount = self.through[chain.0 as usize];
                match when {
                    Visit::Leave => self.leave(chain),
                    Visit::Enter if amount == Amount::default() => return false,
                    Visit::Enter => self.enter(chain, amount),
                }
                true
            });
        }
        self.leave(root);
        callers().for_each(|caller| self.leave(caller));
    }

    fn enter(&mut self, chain: NodeId, amount: Amount) {
        let of_frames = self.of_frames;
        for frame in self.frames(chain) {
            of_frames.of(frame).iter().for_each(|function| self.functions.enter(function.0, amount));
            self.modules.enter(of_frames.modules().of_frames[frame.0 as usize], amount);
        }
    }

    fn leave(&mut self, chain: NodeId) {
        let of_frames = self.of_frames;
        for frame in self.frames(chain) {
            of_frames.of(frame).iter().for_each(|function| self.functions.open.leave(function.0));
            self.modules.open.leave(of_frames.modules().of_frames[frame.0 as usize]);
        }
    }

    /// The frames of a chain.
    fn frames(&self, NodeId(chain): NodeId) -> impl Iterator<Item = FrameId> + use<'p> {
        let tree = &self.profile.tree;
        tree.nodes()[tree.chains().nodes(ChainId(chain))].iter().map(|node| node.frame)
    }
}

/// Whether the CPU time of any run is known.
fn is_cpu_known(runs: &Runs) -> io::Result<bool> {
    let mut known = false;
    runs.for_each(|batch: Batch<'_>| -> io::Result<()> {
        known = known || batch.runs.iter().any(|run| run.cpu_ns > 0);
        Ok(())
    })?;
    Ok(known)
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
    for ((_, nodes), amount) in profile.tree.chains().iter().zip(through) {
        for node in &profile.tree.nodes()[nodes] {
            of_frames[node.frame.0 as usize] += amount.samples;
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::{chain, profile_of};
    use std::collections::BTreeSet;
    use stk_profile::profile::Node;
    use stk_tests::synth::Random;

    /// Each has two frames.
    const FUNCTIONS: u32 = 20;

    #[test]
    fn totals_are_those_of_each_stack_on_any_number_of_threads() {
        let names: Vec<[u32; 1]> = (0..2 * FUNCTIONS).map(|frame| [frame % FUNCTIONS]).collect();
        let mut profile = profile_of(&names.iter().map(|names| &names[..]).collect::<Vec<_>>());
        let mut random = Random::new(3);
        let (mut own, mut stack) = (Vec::new(), Vec::new());
        let (mut all, mut expected) = (Amount::default(), vec![Amount::default(); FUNCTIONS as usize]);
        for samples in 1..5_000 {
            let amount = Amount { samples, weight_ns: 3 * samples };
            stack.truncate(random.below(stack.len() + 1));
            let depth = 1 + random.below(30);
            while stack.len() < depth {
                stack.push(random.below(2 * FUNCTIONS as usize) as u32);
            }
            let call =
                |parent, frame: &u32| Some(profile.tree.intern(Node { parent, frame: FrameId(*frame) }));
            let node = stack.iter().fold(None, call).map_or(0, |NodeId(node)| node as usize);
            own.resize(profile.tree.nodes().len(), Amount::default());
            own[node].add(amount);
            all.add(amount);
            let distinct: BTreeSet<u32> = stack.iter().map(|frame| frame % FUNCTIONS).collect();
            distinct.into_iter().for_each(|function| expected[function as usize].add(amount));
        }
        let stacks = (0..).map(NodeId).zip(&own).filter(|(_, own)| own.samples > 0);
        chain(&mut profile, stacks.map(|(node, _)| node));
        let chains = profile.tree.chains();
        assert!(chains.len() < own.len());
        let functions = Functions::new(&profile, false);
        let own = chains.iter().map(|(chain, _)| own[chains.last(chain).0 as usize]).collect();
        let through = through(&profile, own);
        for threads in [1, 4] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let mut of_functions = vec![OwnTotal::default(); functions.list().len()];
            let mut of_modules = vec![OwnTotal::default(); functions.modules().names.len()];
            let sums = (&mut of_functions[..], &mut of_modules[..]);
            pool.install(|| add_totals(&profile, &functions, &through, sums));
            // Functions are numbered as their frames are.
            let totals: Vec<Amount> = of_functions.iter().map(|sums| sums.total).collect();
            assert_eq!(totals, expected, "{threads}");
            // All of them are in no module.
            assert_eq!(of_modules[0].total, all);
        }
    }
}
