//! Sums of the rows of `samples`: by group, state and stack.
//!
//! Row groups are read at the same time, each row once; what is held are the sums. The rows of a
//! trace follow each other, and those of a thread in it, so groups are looked up where one begins.

use super::tables::{Columns, RowGroups};
use super::traces::samples_of;
use super::{Dataset, DatasetError, DatasetThread, DatasetTrace, Grouping, WaitRuns};
use crate::profile::{Activity, SelectionSum, Wait};
use hashbrown::HashMap;
use polars::prelude::StringChunked;
use rayon::prelude::*;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Traces that are summed together: of one nominal interval, all with CPU times, or all without.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Class {
    pub interval_ns: u64,
    pub tells_cpu: bool,
}

/// What rows have in common that are one sum.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct SumKey {
    /// An index in [`Sums::groups`].
    pub group: u32,
    pub activity: Activity,
    pub stack: Option<i64>,
}

/// What rows sum up to.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Sum {
    pub samples: u64,
    pub weight_ns: u64,
    pub cpu_ns: u64,
    pub waits: WaitRuns,
}

/// The sums of all rows.
#[derive(Default)]
pub(super) struct Sums {
    /// Classes and values of the groups, sorted.
    pub groups: Vec<(Class, Vec<String>)>,
    /// Sorted.
    pub sums: Vec<(SumKey, Sum)>,
    /// Samples of all threads in the time asked for, by class.
    pub whole: HashMap<Class, SelectionSum>,
}

impl Sum {
    fn add(&mut self, other: &Sum) {
        self.samples = self.samples.saturating_add(other.samples);
        self.weight_ns = self.weight_ns.saturating_add(other.weight_ns);
        self.cpu_ns = self.cpu_ns.saturating_add(other.cpu_ns);
        self.waits.waits = self.waits.waits.saturating_add(other.waits.waits);
        self.waits.longest_ns = self.waits.longest_ns.max(other.waits.longest_ns);
    }
}

/// A run of rows at the beginning or the end of a row group, which may go on in another.
#[derive(Clone, Copy)]
struct EdgeRun {
    trace: u32,
    run_id: i64,
    key: SumKey,
    ns: u64,
}

/// The first and the last run of a row group; the same one if there is only one.
struct Edges {
    group: usize,
    first: EdgeRun,
    last: EdgeRun,
    only_one: bool,
}

/// What the threads that sum share.
#[derive(Default)]
struct Shared {
    ids: HashMap<(Class, Vec<String>), u32>,
    sums: HashMap<SumKey, Sum>,
    /// Sums of which some may have the same key, where hardly any have.
    list: Vec<(SumKey, Sum)>,
    whole: HashMap<Class, SelectionSum>,
    edges: Vec<Edges>,
}

/// Sums the samples of a dataset's traces.
pub(super) fn sums(dataset: &Dataset, grouping: &Grouping<'_>) -> Result<Sums, DatasetError> {
    let dates: BTreeSet<&str> = dataset.traces.iter().map(|trace| trace.date.as_str()).collect();
    let mut files = Vec::new();
    for date in dates {
        files.extend(super::tables::files(&samples_of(&dataset.folder, date))?);
    }
    let rows = RowGroups::of_files(files)?;
    let scan = Scan {
        traces: dataset.traces.iter().zip(0u32..).map(|(trace, at)| (trace.trace_id.as_str(), at)).collect(),
        dataset,
        grouping,
        in_time: dataset.traces.iter().any(|trace| trace.from_ns.is_some() || trace.until_ns.is_some()),
    };
    let shared = Mutex::new(Shared::default());
    (0..rows.len()).into_par_iter().try_for_each(|group| scan.row_group(&rows, group, &shared))?;
    let mut shared = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    join_edges(&mut shared);
    Ok(sorted(shared))
}

/// Counts runs once that reach over the end of a row group.
fn join_edges(shared: &mut Shared) {
    shared.edges.sort_by_key(|edges| edges.group);
    let mut open: Option<EdgeRun> = None;
    for edges in &shared.edges {
        let mut last = edges.last;
        if let Some(before) = open
            && (before.trace, before.run_id) == (edges.first.trace, edges.first.run_id)
        {
            let ns = before.ns.saturating_add(edges.first.ns);
            if let Some(sum) = shared.sums.get_mut(&edges.first.key) {
                sum.waits.waits = sum.waits.waits.saturating_sub(1);
                sum.waits.longest_ns = sum.waits.longest_ns.max(ns);
            }
            if edges.only_one {
                last.ns = ns;
            }
        }
        open = Some(last);
    }
}

/// Groups and sums in an order that does not depend on which thread came first.
fn sorted(shared: Shared) -> Sums {
    let mut groups: Vec<((Class, Vec<String>), u32)> = shared.ids.into_iter().collect();
    groups.sort();
    let mut places = vec![0u32; groups.len()];
    for (place, (_, id)) in (0u32..).zip(&groups) {
        places[*id as usize] = place;
    }
    let placed = |(key, sum): (SumKey, Sum)| (SumKey { group: places[key.group as usize], ..key }, sum);
    let mut sums: Vec<(SumKey, Sum)> = shared.list;
    sums.extend(shared.sums);
    sums.iter_mut().for_each(|sum| *sum = placed(*sum));
    sums.par_sort_unstable_by_key(|sum| sum.0);
    sums.dedup_by(|next, kept| {
        let same = next.0 == kept.0;
        if same {
            kept.1.add(&next.1);
        }
        same
    });
    Sums { groups: groups.into_iter().map(|group| group.0).collect(), sums, whole: shared.whole }
}

/// What is the same for all row groups.
struct Scan<'a> {
    dataset: &'a Dataset,
    grouping: &'a Grouping<'a>,
    /// By trace_id: an index in the dataset's traces.
    traces: HashMap<&'a str, u32>,
    /// Whether some traces are not taken from their beginning to their end.
    in_time: bool,
}

/// The numbers of the rows of a row group; those that are not needed are empty.
struct Rows {
    stack: Vec<Option<i64>>,
    samples: Vec<i64>,
    duration_ns: Vec<i64>,
    cpu_ns: Vec<Option<i64>>,
    ts_ns: Vec<i64>,
    thread: Vec<i64>,
    tid: Vec<i64>,
    run_id: Vec<i64>,
}

impl Rows {
    fn sum(&self, row: usize) -> Sum {
        Sum {
            samples: self.samples[row].max(0) as u64,
            weight_ns: self.duration_ns[row].max(0) as u64,
            cpu_ns: self.cpu_ns[row].unwrap_or(0).max(0) as u64,
            waits: WaitRuns::default(),
        }
    }
}

impl Scan<'_> {
    fn columns(&self) -> Vec<&'static str> {
        let mut columns = vec!["stack_id", "samples", "duration_ns", "cpu_ns", "wait_reason"];
        let more: [(bool, &[&'static str]); 4] = [
            (self.in_time, &["ts_ns"]),
            (self.grouping.by_thread, &["thread", "tid", "thread_name"]),
            (self.grouping.states, &["state"]),
            (self.grouping.waits, &["run_id"]),
        ];
        columns.extend(more.into_iter().filter(|(wanted, _)| *wanted).flat_map(|(_, names)| names));
        columns
    }

    fn row_group(&self, rows: &RowGroups, group: usize, shared: &Mutex<Shared>) -> Result<(), DatasetError> {
        // Row groups without a chosen trace cost this column alone.
        let ids = rows.read(group, &["trace_id"])?;
        let spans = self.spans(ids.texts("trace_id")?);
        if spans.is_empty() {
            return Ok(());
        }
        let columns = rows.read(group, &self.columns())?;
        let mut sums = GroupRows::default();
        let numbers = self.numbers(&columns)?;
        let waits = columns.texts("wait_reason")?;
        let states = self.grouping.states.then(|| columns.texts("state")).transpose()?;
        let names = self.grouping.by_thread.then(|| columns.texts("thread_name")).transpose()?;
        for (trace, span) in spans {
            self.rows_of_trace(trace, span, &numbers, [Some(waits), states, names], shared, &mut sums);
        }
        sums.give(group, self.grouping.by_trace, shared);
        Ok(())
    }

    /// The rows of each chosen trace.
    fn spans(&self, ids: &StringChunked) -> Vec<(u32, std::ops::Range<usize>)> {
        let mut spans: Vec<(u32, std::ops::Range<usize>)> = Vec::new();
        let mut before: Option<&str> = None;
        let mut chosen: Option<u32> = None;
        for (at, id) in ids.iter().enumerate() {
            if id != before {
                before = id;
                chosen = id.and_then(|id| self.traces.get(id).copied());
                spans.extend(chosen.map(|trace| (trace, at..at)));
            }
            if chosen.is_some()
                && let Some((_, span)) = spans.last_mut()
            {
                span.end = at + 1;
            }
        }
        spans
    }

    fn numbers(&self, columns: &Columns) -> Result<Rows, DatasetError> {
        let if_wanted = |wanted: bool, name: &str| match wanted {
            true => columns.numbers(name),
            false => Ok(Vec::new()),
        };
        Ok(Rows {
            stack: columns.optional_numbers("stack_id")?,
            samples: columns.numbers("samples")?,
            duration_ns: columns.numbers("duration_ns")?,
            cpu_ns: columns.optional_numbers("cpu_ns")?,
            ts_ns: if_wanted(self.in_time, "ts_ns")?,
            thread: if_wanted(self.grouping.by_thread, "thread")?,
            tid: if_wanted(self.grouping.by_thread, "tid")?,
            run_id: if_wanted(self.grouping.waits, "run_id")?,
        })
    }

    fn rows_of_trace(
        &self,
        number: u32,
        span: std::ops::Range<usize>,
        rows: &Rows,
        [waits, states, names]: [Option<&StringChunked>; 3],
        shared: &Mutex<Shared>,
        sums: &mut GroupRows,
    ) {
        let trace = &self.dataset.traces[number as usize];
        let class = Class { interval_ns: trace.interval_ns, tells_cpu: rows.cpu_ns[span.start].is_some() };
        let mut whole = SelectionSum::default();
        let mut group = match self.grouping.by_thread {
            true => None,
            false => self.group(trace, class, None, shared),
        };
        let mut thread: Option<i64> = None;
        let mut reasons = Reasons::default();
        let texts =
            |texts: Option<&StringChunked>| texts.map(|texts| texts.slice(span.start as i64, span.len()));
        let (waits, states, names) = (texts(waits), texts(states), texts(names));
        let mut waits = waits.iter().flat_map(|texts| texts.iter());
        let mut states = states.iter().flat_map(|texts| texts.iter());
        for (at, row) in span.enumerate() {
            let (wait, state) = (waits.next().flatten(), states.next().flatten());
            if self.in_time && !is_in_time(trace, rows.ts_ns[row]) {
                continue;
            }
            let sum = rows.sum(row);
            let Sum { samples, weight_ns, cpu_ns, .. } = sum;
            whole.add_sum(&SelectionSum { samples, cpu_ns, weight_ns });
            if self.grouping.by_thread && thread != Some(rows.thread[row]) {
                thread = Some(rows.thread[row]);
                let name = names.as_ref().and_then(|names| names.get(at)).unwrap_or_default();
                let (instance, tid) = (rows.thread[row] as u64, rows.tid[row] as u32);
                group = self.group(trace, class, Some(DatasetThread { instance, tid, name }), shared);
            }
            let Some(group) = group else { continue };
            let activity = match wait {
                Some(reason) => Activity::Waiting(reasons.wait(reason)),
                None => activity(state),
            };
            let key = SumKey { group, activity, stack: rows.stack[row] };
            sums.sums.entry(key).or_default().add(&sum);
            if self.grouping.waits {
                sums.run(EdgeRun { trace: number, run_id: rows.run_id[row], key, ns: sum.weight_ns });
            }
        }
        sums.whole.entry(class).or_default().add_sum(&whole);
    }

    /// The number of a group; `None` if it is left out.
    fn group(
        &self,
        trace: &DatasetTrace,
        class: Class,
        thread: Option<DatasetThread<'_>>,
        shared: &Mutex<Shared>,
    ) -> Option<u32> {
        let values = (self.grouping.values)(trace, thread)?;
        let ids = &mut shared.lock().unwrap_or_else(PoisonError::into_inner).ids;
        let next = ids.len() as u32;
        Some(*ids.entry((class, values)).or_insert(next))
    }
}

fn is_in_time(trace: &DatasetTrace, ts_ns: i64) -> bool {
    let ts_ns = ts_ns.max(0) as u64;
    trace.from_ns.is_none_or(|from| ts_ns >= from) && trace.until_ns.is_none_or(|until| ts_ns < until)
}

/// The activity of a row that does not wait, by its state.
fn activity(state: Option<&str>) -> Activity {
    match state {
        None | Some("running") => Activity::OnCpu,
        Some("system-call") => Activity::SystemCall,
        Some(_) => Activity::Unknown,
    }
}

/// Waits by their reasons. Rows that follow each other mostly have the same.
#[derive(Default)]
struct Reasons(Option<(String, Wait)>);

impl Reasons {
    fn wait(&mut self, reason: &str) -> Wait {
        match &self.0 {
            Some((known, wait)) if known == reason => *wait,
            _ => {
                let wait = Wait::of_reason(reason);
                self.0 = Some((reason.to_owned(), wait));
                wait
            }
        }
    }
}

/// The sums of a row group.
#[derive(Default)]
struct GroupRows {
    sums: HashMap<SumKey, Sum>,
    whole: HashMap<Class, SelectionSum>,
    first: Option<EdgeRun>,
    open: Option<EdgeRun>,
    runs: u64,
}

impl GroupRows {
    /// Adds a row to the run before it, or begins one.
    fn run(&mut self, row: EdgeRun) {
        let mut row = row;
        let mut begins = 1;
        if let Some(open) = self.open
            && (open.trace, open.run_id) == (row.trace, row.run_id)
        {
            row.ns = row.ns.saturating_add(open.ns);
            begins = 0;
        }
        self.runs += begins;
        if self.runs == 1 {
            self.first = Some(row);
        }
        if let Some(sum) = self.sums.get_mut(&row.key) {
            sum.waits.waits += begins;
            sum.waits.longest_ns = sum.waits.longest_ns.max(row.ns);
        }
        self.open = Some(row);
    }

    /// Adds them to those of all.
    fn give(self, group: usize, as_list: bool, shared: &Mutex<Shared>) {
        let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
        if as_list {
            shared.list.extend(self.sums);
        } else if shared.sums.is_empty() {
            shared.sums = self.sums;
        } else {
            for (key, sum) in &self.sums {
                shared.sums.entry(*key).or_default().add(sum);
            }
        }
        for (class, more) in &self.whole {
            shared.whole.entry(*class).or_default().add_sum(more);
        }
        if let (Some(first), Some(last)) = (self.first, self.open) {
            shared.edges.push(Edges { group, first, last, only_one: self.runs == 1 });
        }
    }
}
