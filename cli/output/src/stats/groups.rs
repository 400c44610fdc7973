//! Lists by any of the things that samples and frames have: `stk stats --group-by`.

use super::Amount;
use super::group_stacks::{FrameGroups, KernelKind, NO_STACK, RunSums, Slot, callers};
use super::keys::{GroupKey, plain_span};
use super::timeline::{Timeline, TimelineStats};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;
use stk_profile::profile::{
    Activity, Additive, Folded, FunctionId, Functions, OwnTotal, Profile, Run, Sums, ThreadInfo, Wait, Weight,
};
use stk_profile::stack::Interner;

/// The order of a list.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum SortBy {
    /// The most self time first.
    #[default]
    Own,
    /// The most total time first.
    Total,
    /// The longest waits first.
    Waits,
    /// By name.
    Name,
}

/// A list of groups.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct GroupStats {
    pub keys: Vec<GroupKey>,
    /// Samples of all groups. Their self samples add up to them.
    pub whole: Amount,
    pub rows: Vec<GroupRow>,
    /// How many groups are not listed.
    pub others: u64,
    /// Their self samples.
    pub others_self: Amount,
}

/// Samples that have the same values of the keys.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct GroupRow {
    /// One for each key.
    pub values: Vec<String>,
    /// Samples whose innermost frame is in it.
    #[serde(rename = "self")]
    pub own: Amount,
    /// Samples that have it anywhere on the stack.
    pub total: Amount,
    /// Those of them that wait; the time that they cover, whatever the other columns count.
    pub waits: Amount,
    /// When CPU time was used, where the group is of threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<TimelineStats>,
    /// The traces, where the keys are of whole traces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<Recorded>,
    /// When the group's span of time begins, since its trace's start.
    #[serde(skip)]
    since_ns: u64,
}

/// Traces of a group.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Recorded {
    pub traces: u64,
    /// How long they recorded together.
    pub duration_ns: u64,
}

impl Additive for Recorded {
    fn add(&mut self, more: Recorded) {
        self.traces.add(more.traces);
        self.duration_ns.add(more.duration_ns);
    }
}

impl GroupRow {
    fn add_recorded(&mut self, more: Option<Recorded>) {
        more.into_iter().for_each(|more| self.recorded.get_or_insert_default().add(more));
    }
}

/// Sums by group, filled run by run.
pub(super) struct GroupSums<'a> {
    profile: &'a Profile,
    keys: Vec<GroupKey>,
    weights: [Weight; 2],
    running_only: bool,
    slots: Interner<Slot>,
    /// By slot.
    of_slots: Vec<RunSums>,
    /// By thread: its group.
    threads: Vec<u32>,
    /// By group of threads.
    groups: Vec<ThreadGroup>,
    /// See [`ThreadValues`].
    given: Option<&'a ThreadValues>,
    frames: FrameGroups<'a>,
    functions: &'a Functions,
    /// By stack; empty if they are no key.
    callers: Vec<Option<FunctionId>>,
    /// The length of the spans of time that are a key.
    span_ns: Option<u64>,
    stacks: Folded,
    sums: Sums<RunSums>,
    /// The group of the last run.
    last: Option<u32>,
    found: Vec<FoundGroup>,
}

/// What samples come to in a group. `slot`: one of theirs.
struct FoundGroup {
    slot: Slot,
    /// Of the frames.
    group: u32,
    sum: OwnTotal<RunSums>,
}

/// By thread of a profile: the values of the keys that all samples of a thread have in common, in
/// the order of the keys. Given where a profile's threads stand for those of many traces.
pub type ThreadValues = [Vec<String>];

/// Threads that are one group.
struct ThreadGroup {
    /// The values of [`GroupKey::Thread`] and [`GroupKey::ThreadName`].
    thread: String,
    name: String,
    timeline: Timeline,
}

impl<'a> GroupSums<'a> {
    /// `weight`: what is counted; by default CPU time, or samples that do not wait. `span`: when
    /// samples were taken.
    pub(super) fn new(
        profile: &'a Profile,
        functions: &'a Functions,
        keys: &[GroupKey],
        weight: Option<Weight>,
        running_only: bool,
        span: Range<u64>,
        given: Option<&'a ThreadValues>,
    ) -> GroupSums<'a> {
        let (threads, groups) = match given {
            None => thread_groups(profile, keys, span),
            Some(given) => ((0..given.len() as u32).collect(), Vec::new()),
        };
        let (frames, stacks) = FrameGroups::new(profile, functions, keys);
        let by_caller = keys.contains(&GroupKey::Caller);
        let callers = if by_caller { callers(profile, functions) } else { Vec::new() };
        let span_ns = span_ns(keys);
        GroupSums {
            profile,
            keys: keys.to_vec(),
            weights: weight.map_or([Weight::Cpu, Weight::Active], |weight| [weight; 2]),
            running_only,
            slots: Interner::default(),
            of_slots: Vec::new(),
            threads,
            groups,
            given,
            frames,
            functions,
            callers,
            span_ns,
            stacks,
            sums: Sums::default(),
            last: None,
            found: Vec::new(),
        }
    }

    /// Adds a run of a thread.
    pub(super) fn add(&mut self, thread: u32, run: &Run) {
        let group = self.threads[thread as usize];
        if self.given.is_some() && self.last != Some(group) {
            // Its threads follow each other, and are a group each: no more comes for the last one.
            self.end_groups();
            self.last = Some(group);
        }
        self.groups.get_mut(group as usize).into_iter().for_each(|group| group.timeline.add(run));
        let Some(span_ns) = self.span_ns else { return self.add_part(group, run, 0) };
        for span in run.first_ns / span_ns..=run.last_span(span_ns) {
            let from = span.saturating_mul(span_ns);
            let part = run.within(from, from.saturating_add(span_ns));
            part.into_iter().for_each(|part| self.add_part(group, &part, span));
        }
    }

    /// Adds the part of a run within a span of time.
    fn add_part(&mut self, group: u32, run: &Run, span: u64) {
        let waits = run.activity.wait().is_some();
        let mut sums = RunSums::default();
        if !(self.running_only && waits) {
            let interval_ns = self.profile.trace.interval_ns;
            sums.samples = run.samples.into();
            sums.weights = self.weights.map(|weight| weight.of(run, interval_ns));
        }
        if waits {
            sums.waits.add_run(run);
        }
        let kernel = match run.activity {
            _ if !self.keys.contains(&GroupKey::Kind) => None,
            Activity::Waiting(_) => Some(KernelKind::Wait),
            Activity::SystemCall => Some(KernelKind::Call),
            Activity::OnCpu | Activity::Unknown => None,
        };
        let activity = self.keys.iter().any(GroupKey::is_of_activity).then_some(run.activity);
        let stack = run.node.and_then(|node| self.stacks.stacks[node.0 as usize]);
        let caller = run.node.and_then(|node| self.callers.get(node.0 as usize).copied().flatten());
        let id = self.slots.intern(Slot { thread: group, activity, span, caller, kernel, stack }) as usize;
        if id == self.of_slots.len() {
            self.of_slots.push(RunSums::default());
        }
        self.of_slots[id].add(sums);
    }

    /// Sums up the stacks of the groups of threads so far.
    fn end_groups(&mut self) {
        let mut slots: Vec<(Slot, RunSums)> =
            self.slots.values.iter().copied().zip(self.of_slots.iter().copied()).collect();
        slots.sort_unstable_by_key(|(slot, _)| *slot);
        let tree = &self.stacks.tree;
        let group = |slot: &Slot| (slot.thread, slot.activity, slot.span, slot.caller);
        for same in slots.chunk_by(|(a, _), (b, _)| group(a) == group(b)) {
            for &(Slot { kernel, stack, .. }, amount) in same {
                match (stack, kernel) {
                    (None, _) => self.sums.add_to_function(self.frames.of_none(), amount),
                    (Some(stack), None) => self.sums.add(tree, stack, amount),
                    (Some(stack), Some(kernel)) => {
                        let group = self.frames.of_kernel(tree.function(stack), kernel);
                        self.sums.add_to_function(group, amount);
                        let caller = tree.caller(stack);
                        caller.into_iter().for_each(|caller| self.sums.add_to_callers(caller, amount));
                    }
                }
            }
            let slot = same[0].0;
            self.found.extend(self.sums.take(tree).into_iter().map(|(group, sum)| FoundGroup {
                slot,
                group,
                sum,
            }));
        }
        self.slots.clear();
        self.of_slots.clear();
    }

    /// The groups. `cpu_known`: whether the CPU time of any thread is.
    pub(super) fn finish(mut self, cpu_known: bool) -> GroupTable {
        self.end_groups();
        let weight = usize::from(!cpu_known);
        let mut table = GroupTable::new(&self.keys);
        // A trace of which all is one group.
        let window = self.profile.window();
        let duration_ns = window.end.saturating_sub(window.start);
        let of_trace = self.given.is_none() && self.keys.iter().all(GroupKey::is_of_trace);
        let recorded = of_trace.then_some(Recorded { traces: 1, duration_ns });
        for FoundGroup { slot, group, sum: OwnTotal { own, total } } in std::mem::take(&mut self.found) {
            let values = self.values(&slot, &self.frames.values(group));
            let (own, waits, total) = (own.amount(weight), total.waits, total.amount(weight));
            let since_ns = slot.span.saturating_mul(self.span_ns.unwrap_or(0));
            table.add(GroupRow { values, own, total, waits, timeline: None, recorded, since_ns });
        }
        if self.keys.iter().all(GroupKey::is_of_thread) {
            for (thread, group) in self.groups.iter().enumerate() {
                let slot = Slot { thread: thread as u32, ..Slot::default() };
                let row = table.rows.get_mut(&self.values(&slot, &[]));
                row.into_iter().for_each(|row| row.timeline = Some(group.timeline.stats()));
            }
        }
        table
    }

    /// The values of the keys. `of_frame`: those of the frames' keys, in their order.
    fn values(&self, slot: &Slot, of_frame: &[String]) -> Vec<String> {
        let Slot { thread, activity, span, caller, .. } = *slot;
        let trace = &self.profile.trace;
        let group = self.groups.get(thread as usize);
        let mut given = self.given.and_then(|given| given.get(thread as usize)).into_iter().flatten();
        let mut of_frame = of_frame.iter();
        let value = |key: &GroupKey| match key {
            key if self.given.is_some() && key.is_of_thread() => given.next().cloned().unwrap_or_default(),
            GroupKey::Process => trace.process.clone(),
            GroupKey::Host => trace.host.clone(),
            GroupKey::Trace => trace.source.clone(),
            GroupKey::Label(name) => trace.label(name).unwrap_or(NO_LABEL).to_owned(),
            GroupKey::Thread => group.map(|group| group.thread.clone()).unwrap_or_default(),
            GroupKey::ThreadName => group.map(|group| group.name.clone()).unwrap_or_default(),
            GroupKey::State => activity.unwrap_or_default().as_str().to_owned(),
            GroupKey::WaitReason => {
                activity.and_then(Activity::wait).map_or(NO_WAIT, Wait::reason).to_owned()
            }
            GroupKey::Time(length) => plain_span(span.saturating_mul(*length)),
            GroupKey::Caller => caller
                .map_or(NO_STACK, |FunctionId(function)| {
                    &self.functions.list()[function as usize].name_in_module
                })
                .to_owned(),
            GroupKey::Function | GroupKey::Module | GroupKey::Line | GroupKey::Kind => {
                of_frame.next().cloned().unwrap_or_default()
            }
        };
        self.keys.iter().map(value).collect()
    }
}

/// The length of the spans of time among the keys.
pub(super) fn span_ns(keys: &[GroupKey]) -> Option<u64> {
    keys.iter().find_map(|key| match key {
        GroupKey::Time(ns) => Some((*ns).max(1)),
        _ => None,
    })
}

/// Shown instead of the name of a thread that has none.
pub const NO_NAME: &str = "(no name)";
/// Shown instead of a label that a recording does not have.
pub const NO_LABEL: &str = "(no label)";
/// Shown instead of what a thread waits for that does not wait.
const NO_WAIT: &str = "(no wait)";

/// The group of each thread, and the groups: threads, or those of one name, or all.
fn thread_groups(profile: &Profile, keys: &[GroupKey], span: Range<u64>) -> (Vec<u32>, Vec<ThreadGroup>) {
    let by = |key| keys.contains(&key);
    let mut ids: HashMap<String, u32> = HashMap::new();
    let mut groups: Vec<ThreadGroup> = Vec::new();
    let mut group = |thread: &ThreadInfo| {
        let name = if thread.name.is_empty() { NO_NAME } else { &thread.name };
        let mut id = match (by(GroupKey::Thread), by(GroupKey::ThreadName)) {
            (true, _) => thread.label(),
            (false, true) => name.to_owned(),
            (false, false) => String::new(),
        };
        if by(GroupKey::Thread) && ids.contains_key(&id) {
            // The system gave this thread the number of one that had ended.
            id = format!("{id} #{}", thread.instance);
        }
        *ids.entry(id).or_insert_with_key(|id| {
            let timeline = Timeline::new(span.clone());
            groups.push(ThreadGroup { thread: id.clone(), name: name.to_owned(), timeline });
            groups.len() as u32 - 1
        })
    };
    let threads = profile.threads.iter().map(&mut group).collect();
    (threads, groups)
}

/// Groups of one trace or of several, by their values.
#[derive(Default, Debug)]
pub(super) struct GroupTable {
    keys: Vec<GroupKey>,
    rows: HashMap<Vec<String>, GroupRow>,
}

impl GroupTable {
    fn new(keys: &[GroupKey]) -> GroupTable {
        GroupTable { keys: keys.to_vec(), rows: HashMap::new() }
    }

    fn add(&mut self, row: GroupRow) {
        match self.rows.get_mut(&row.values) {
            None => drop(self.rows.insert(row.values.clone(), row)),
            Some(known) => {
                known.own.add(row.own);
                known.total.add(row.total);
                known.waits.add(row.waits);
                known.add_recorded(row.recorded);
            }
        }
    }

    /// Adds a trace to the group of these values, if there is one.
    pub(super) fn add_recorded(&mut self, values: &[String], recorded: Recorded) {
        self.rows.get_mut(values).into_iter().for_each(|row| row.add_recorded(Some(recorded)));
    }

    /// Adds the groups of another trace. Its time is another: what they used when is left out.
    pub(super) fn absorb(&mut self, other: &GroupTable) {
        self.keys.clone_from(&other.keys);
        for row in other.rows.values() {
            self.add(GroupRow { timeline: None, ..row.clone() });
        }
        self.rows.values_mut().for_each(|row| row.timeline = None);
    }

    /// The groups of the first of several traces: their times differ.
    pub(super) fn without_timelines(mut self) -> GroupTable {
        self.rows.values_mut().for_each(|row| row.timeline = None);
        self
    }

    /// The first `top` groups.
    pub(super) fn list(&self, sort: SortBy, top: usize) -> GroupStats {
        let mut rows: Vec<&GroupRow> = self.rows.values().collect();
        let mut whole = Amount::default();
        rows.iter().for_each(|row| whole.add(row.own));
        // Spans of time follow each other, where no other order is wanted.
        let by_time = sort == SortBy::Own || sort == SortBy::Name;
        rows.sort_by_key(|row| {
            let (own, total, waits) = (row.own.weight_ns, row.total.weight_ns, row.waits.weight_ns);
            let first = match sort {
                SortBy::Own => [own, total, waits],
                SortBy::Total => [total, own, waits],
                SortBy::Waits => [waits, total, own],
                SortBy::Name => [0; 3],
            };
            let since_ns = if by_time { row.since_ns } else { 0 };
            (
                since_ns,
                Reverse(first),
                Reverse(if sort == SortBy::Name { 0 } else { row.total.samples }),
                &row.values,
            )
        });
        let others = rows.split_off(top.min(rows.len()));
        let mut others_self = Amount::default();
        others.iter().for_each(|row| others_self.add(row.own));
        GroupStats {
            keys: self.keys.clone(),
            whole,
            rows: rows.into_iter().cloned().collect(),
            others: others.len() as u64,
            others_self,
        }
    }
}
