//! Sums of the rows of `samples`: by group, state and stack.
//!
//! ```text
//! partial_sums  what one thread has summed up so far    row -> SumList
//! ```
//!
//! Each thread of the pool takes row groups, reads each row once, and keeps sums of its own. They
//! are joined at the end. The rows of a trace follow each other, and those of a thread in it, so
//! groups are looked up where one begins.

use super::partial_sums::{EdgeRun, Edges, GroupSumKey, PartialSums, SumList};
use super::sums::{SumClass, SumKey};
use super::tables::{Columns, Numbers, RowGroups};
use super::traces::samples_of;
use super::{Dataset, DatasetError, DatasetThread, DatasetTrace, Grouping, WaitRuns};
use hashbrown::HashMap;
use rayon::prelude::*;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use stk_profile::profile::{Activity, Additive, Run, RunFlags, SampleSum, StopId, Wait};
use stk_schema::event::RunState;
use stk_schema::tables;

/// A group, and the sums of its rows.
#[derive(Debug)]
pub(super) struct Group {
    pub class: SumClass,
    pub values: Vec<String>,
    /// By key, each once and sorted; but where each trace is a group, in any order, and a key is
    /// there once for each row group that the trace is in.
    pub sums: Vec<(SumKey, SampleSum)>,
    /// By sum; empty unless waits are counted.
    pub waits: Vec<WaitRuns>,
}

/// The sums of all rows.
#[derive(Default)]
pub(super) struct GroupedSums {
    /// Sorted by class and values.
    pub groups: Vec<Group>,
    /// Samples of all threads in the time asked for, by class.
    pub whole: HashMap<SumClass, SampleSum>,
}

/// Numbers of the groups, in the order in which they were met.
type GroupIds = HashMap<(SumClass, Vec<String>), u32>;

/// Sums the samples of a dataset's traces.
pub(super) fn sums(dataset: &Dataset, grouping: &Grouping<'_>) -> Result<GroupedSums, DatasetError> {
    let dates: BTreeSet<&str> = dataset.traces.iter().map(|trace| trace.date.as_str()).collect();
    let mut files = Vec::new();
    for date in dates {
        files.extend(super::tables::files(&samples_of(&dataset.folder, date))?);
    }
    let rows = RowGroups::of_files(files, &tables::SAMPLES)?;
    let scan = Scan {
        traces: dataset.traces.iter().zip(0u32..).map(|(trace, at)| (trace.trace_id.as_str(), at)).collect(),
        dataset,
        grouping,
        in_time: dataset.traces.iter().any(|trace| trace.from_ns.is_some() || trace.until_ns.is_some()),
        ids: Mutex::default(),
    };
    (grouping.rows)(rows.all_rows());
    let next = AtomicUsize::new(0);
    let one_thread = |_| {
        let mut partial = PartialSums::new(grouping.by_trace);
        loop {
            let group = next.fetch_add(1, Ordering::Relaxed);
            if group >= rows.len() {
                return Ok(partial);
            }
            scan.row_group(&rows, group, &mut partial)?;
            grouping.rows_read.fetch_add(rows.rows(group), Ordering::Relaxed);
        }
    };
    let threads = rayon::current_num_threads().min(rows.len());
    let all_partial: Vec<PartialSums> =
        (0..threads).into_par_iter().with_max_len(1).map(one_thread).collect::<Result<_, DatasetError>>()?;
    let ids = scan.ids.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(joined(all_partial, ids, grouping))
}

/// The sums of all threads, in an order that does not depend on which of them came first.
fn joined(all_partial: Vec<PartialSums>, ids: GroupIds, grouping: &Grouping<'_>) -> GroupedSums {
    let mut groups: Vec<SumList> = Vec::new();
    groups.resize_with(ids.len(), SumList::default);
    let mut all = GroupedSums::default();
    let mut edges: Vec<Edges> = Vec::new();
    let mut waits: HashMap<GroupSumKey, WaitRuns> = HashMap::new();
    for partial in all_partial {
        let partial = partial.finish();
        partial.groups.into_iter().zip(&mut groups).for_each(|(more, sums)| sums.append(more));
        for (class, more) in &partial.whole {
            all.whole.entry(*class).or_default().add(*more);
        }
        for (key, more) in partial.waits {
            let sum = waits.entry(key).or_default();
            sum.waits = sum.waits.saturating_add(more.waits);
            sum.longest_ns = sum.longest_ns.max(more.longest_ns);
        }
        edges.extend(partial.edges);
    }
    if !grouping.by_trace {
        groups.par_iter_mut().for_each(SumList::make_once);
    }
    join_edges(edges, &mut waits);
    let mut ids: Vec<((SumClass, Vec<String>), u32)> = ids.into_iter().collect();
    ids.sort();
    all.groups.extend(ids.into_iter().map(|((class, values), group)| {
        let sums = std::mem::take(&mut groups[group as usize]).into_sums();
        let wait = |(key, _): &(SumKey, SampleSum)| {
            waits.get(&GroupSumKey { group, key: *key }).copied().unwrap_or_default()
        };
        let waits = if grouping.waits { sums.iter().map(wait).collect() } else { Vec::new() };
        Group { class, values, sums, waits }
    }));
    all
}

/// Counts waits once that reach over the end of a row group.
fn join_edges(mut edges: Vec<Edges>, waits: &mut HashMap<GroupSumKey, WaitRuns>) {
    edges.sort_by_key(|edges| edges.row_group);
    let mut open: Option<EdgeRun> = None;
    for edges in &edges {
        let mut last = edges.last;
        if let (Some(before), Some(first)) = (open, edges.first)
            && before.is_same(&first)
        {
            let ns = before.ns.saturating_add(first.ns);
            if let Some(sum) = waits.get_mut(&first.key) {
                sum.waits = sum.waits.saturating_sub(1);
                sum.longest_ns = sum.longest_ns.max(ns);
            }
            if edges.only_one {
                last = last.map(|last| EdgeRun { ns, ..last });
            }
        }
        open = last;
    }
}

/// What is the same for all row groups.
struct Scan<'a> {
    dataset: &'a Dataset,
    grouping: &'a Grouping<'a>,
    /// By trace_id: an index in the dataset's traces.
    traces: HashMap<&'a str, u32>,
    /// Whether some traces are not taken from their beginning to their end.
    in_time: bool,
    ids: Mutex<GroupIds>,
}

/// The columns of a row group; those that are not needed are empty.
struct Rows<'a> {
    columns: &'a Columns,
    activity: Vec<Activity>,
    stack: Numbers<'a>,
    samples: Numbers<'a>,
    duration_ns: Numbers<'a>,
    cpu_ns: Numbers<'a>,
    ts_ns: Numbers<'a>,
    thread: Numbers<'a>,
    tid: Numbers<'a>,
    run_id: Numbers<'a>,
}

impl<'a> Rows<'a> {
    fn of(columns: &'a Columns, scan: &Scan<'_>) -> Result<Rows<'a>, DatasetError> {
        let if_wanted = |wanted: bool, name: &str| match wanted {
            true => columns.numbers_or_null(name),
            false => Ok(Numbers::default()),
        };
        let by_thread = scan.grouping.by_thread;
        Ok(Rows {
            columns,
            activity: activities(columns, scan.grouping.states)?,
            stack: columns.numbers_or_null("stack_id")?,
            samples: columns.numbers_or_null("samples")?,
            duration_ns: columns.numbers_or_null("duration_ns")?,
            cpu_ns: columns.numbers_or_null("cpu_ns")?,
            ts_ns: if_wanted(scan.in_time, "ts_ns")?,
            thread: if_wanted(by_thread, "thread")?,
            tid: if_wanted(by_thread, "tid")?,
            run_id: if_wanted(scan.grouping.waits, "run_id")?,
        })
    }

    fn sum(&self, row: usize) -> SampleSum {
        let positive = |numbers: &Numbers<'_>| numbers.or_zero(row).max(0) as u64;
        SampleSum {
            samples: positive(&self.samples),
            weight_ns: positive(&self.duration_ns),
            cpu_ns: positive(&self.cpu_ns),
        }
    }

    /// The thread of a row.
    fn thread(&self, row: usize) -> Result<DatasetThread<'_>, DatasetError> {
        Ok(DatasetThread {
            instance: self.thread.or_zero(row) as u64,
            tid: self.tid.or_zero(row) as u32,
            name: self.columns.texts("thread_name")?.get(row).unwrap_or_default(),
        })
    }
}

/// What the thread did in each row. `states`: what it did when it did not wait is wanted.
fn activities(columns: &Columns, states: bool) -> Result<Vec<Activity>, DatasetError> {
    let waits = columns.of_texts("wait_reason", |reason| reason.map(Wait::of_reason))?;
    let waiting = |wait: Option<Wait>| wait.map(Activity::Waiting);
    if !states {
        return Ok(waits.into_iter().map(|wait| waiting(wait).unwrap_or(Activity::OnCpu)).collect());
    }
    let states = columns.of_texts("state", activity)?;
    Ok(waits.into_iter().zip(states).map(|(wait, state)| waiting(wait).unwrap_or(state)).collect())
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

    fn row_group(
        &self,
        rows: &RowGroups,
        group: usize,
        partial: &mut PartialSums,
    ) -> Result<(), DatasetError> {
        // Row groups without a chosen trace cost this column alone.
        let ids = rows.read(group, &["trace_id"])?;
        let of_id = |id: Option<&str>| id.and_then(|id| self.traces.get(id).copied());
        let spans = spans(&ids.of_texts("trace_id", of_id)?);
        drop(ids);
        if spans.is_empty() {
            return Ok(());
        }
        let columns = rows.read(group, &self.columns())?;
        let rows = Rows::of(&columns, self)?;
        for (trace, span) in spans {
            self.rows_of_trace(trace, span, &rows, partial)?;
        }
        partial.end_row_group(group);
        Ok(())
    }

    fn rows_of_trace(
        &self,
        number: u32,
        span: Range<usize>,
        rows: &Rows<'_>,
        partial: &mut PartialSums,
    ) -> Result<(), DatasetError> {
        let trace = &self.dataset.traces[number as usize];
        let has_cpu = rows.cpu_ns.get(span.start).is_some();
        let class = SumClass { interval_ns: trace.interval_ns, has_cpu };
        let mut whole = SampleSum::default();
        let Grouping { by_thread, waits, .. } = *self.grouping;
        let mut group = if by_thread { None } else { self.group(trace, class, None, partial) };
        let mut thread: Option<i64> = None;
        for row in span {
            let sum = rows.sum(row);
            let sum = if self.in_time { within(trace, rows.ts_ns.or_zero(row), sum) } else { Some(sum) };
            let Some(sum) = sum else { continue };
            whole.add(sum);
            if by_thread && thread != Some(rows.thread.or_zero(row)) {
                thread = Some(rows.thread.or_zero(row));
                group = self.group(trace, class, Some(rows.thread(row)?), partial);
            }
            let Some(group) = group else { continue };
            let key = GroupSumKey { group, key: SumKey::new(rows.activity[row], rows.stack.get(row)) };
            partial.add(key, sum);
            if waits {
                let run_id = rows.run_id.or_zero(row);
                partial.run(EdgeRun { trace: number, run_id, key, ns: sum.weight_ns }, sum.samples);
            }
        }
        partial.whole.entry(class).or_default().add(whole);
        Ok(())
    }

    /// The number of a group that begins; `None` if it is left out.
    fn group(
        &self,
        trace: &DatasetTrace,
        class: SumClass,
        thread: Option<DatasetThread<'_>>,
        partial: &mut PartialSums,
    ) -> Option<u32> {
        let values = (self.grouping.values)(trace, thread)?;
        let group = {
            let ids = &mut self.ids.lock().unwrap_or_else(PoisonError::into_inner);
            let next = ids.len() as u32;
            *ids.entry((class, values)).or_insert(next)
        };
        partial.begin_group(group);
        Some(group)
    }
}

/// The rows of each chosen trace, by the trace of each row.
fn spans(traces: &[Option<u32>]) -> Vec<(u32, Range<usize>)> {
    let mut spans = Vec::new();
    let mut from = 0;
    for same in traces.chunk_by(|a, b| a == b) {
        spans.extend(same[0].map(|trace| (trace, from..from + same.len())));
        from += same.len();
    }
    spans
}

/// What of a row is within the time that was given: as of a run, whose samples are spread over its
/// time.
fn within(trace: &DatasetTrace, ts_ns: i64, sum: SampleSum) -> Option<SampleSum> {
    let first_ns = ts_ns.max(0) as u64;
    let samples = u32::try_from(sum.samples).unwrap_or(u32::MAX);
    // Each sample stands for the time up to the next one.
    let gaps = u128::from(sum.weight_ns) * u128::from(samples.saturating_sub(1));
    let span_ns = (gaps / u128::from(samples.max(1))) as u64;
    let run = Run {
        node: None,
        stop: StopId(0),
        first_ns,
        last_ns: first_ns.saturating_add(span_ns),
        weight_ns: sum.weight_ns,
        samples,
        cpu_ns: sum.cpu_ns,
        state: RunState::Unknown,
        activity: Activity::Unknown,
        flags: RunFlags::empty(),
        capture_tag: 0,
    };
    let Run { samples, cpu_ns, weight_ns, .. } =
        run.within(trace.from_ns.unwrap_or(0), trace.until_ns.unwrap_or(u64::MAX))?;
    Some(SampleSum { samples: samples.into(), cpu_ns, weight_ns })
}

/// The activity of a row that does not wait, by its state.
fn activity(state: Option<&str>) -> Activity {
    match state {
        None | Some("running") => Activity::OnCpu,
        Some("system-call") => Activity::SystemCall,
        Some(_) => Activity::Unknown,
    }
}
