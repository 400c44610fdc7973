//! The samples of a page: rows of one thread, stack and state each.
//!
//! A row is a run of the profile. Of a trace with more runs than [`MOST_ROWS`], the runs of a
//! thread that have the same stack and state and begin in the same stretch of time are one row.
//! Sums stay what they were; only when something was within the stretch is lost.

use super::columns::{Columns, difference};
use super::tree::PageTree;
use std::collections::HashMap;
use std::io;
use stk_profile::profile::{Activity, Batch, Run, Runs};

/// Rows of a page beyond which runs are joined.
pub(super) const MOST_ROWS: usize = 1 << 20;

/// Samples of one thread with the same stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PageRow {
    pub start_ns: u64,
    pub wall_ns: u64,
    /// From its first sample to its last.
    pub last_ns: u64,
    pub cpu_ns: u64,
    pub samples: u64,
    /// 0: no stack; else one more than the node.
    pub node: u32,
    /// What the thread did: [`state`].
    pub state: u16,
    pub stop: u16,
}

/// Rows of all threads.
pub(super) struct PageRows {
    /// Thread by thread.
    pub list: Vec<PageRow>,
    /// How many are of each thread.
    pub of_threads: Vec<usize>,
    /// Length of the stretches in which runs were joined; `None` = each run is a row.
    pub joined_ns: Option<u64>,
    /// How many runs there are.
    pub runs: usize,
}

/// Number of a state in the page: 0 not known, 1 on a processor, 2 in a system call, 3 and more: it
/// waits, by the number of the reason.
pub(super) fn state(activity: Activity) -> u16 {
    match activity {
        Activity::Unknown => 0,
        Activity::OnCpu => 1,
        Activity::SystemCall => 2,
        Activity::Waiting(wait) => 3 + wait.number(),
    }
}

impl PageRows {
    /// At most `most` rows of the runs, or as many as there are threads, stacks and states.
    pub(super) fn new(
        runs: &Runs,
        threads: usize,
        tree: &PageTree,
        span_ns: u64,
        most: usize,
    ) -> io::Result<PageRows> {
        let count = count(runs)?;
        let mut joined_ns = (count > most).then(|| (span_ns / most as u64).max(1));
        loop {
            let rows = PageRows::joined(runs, threads, tree, (joined_ns, most))?;
            match joined_ns {
                Some(stretch) if rows.list.len() > most && stretch < span_ns => {
                    joined_ns = Some(stretch.saturating_mul(2));
                }
                _ => return Ok(PageRows { runs: count, ..rows }),
            }
        }
    }

    /// The rows; with a stretch, no more than one above `most` of them.
    fn joined(
        runs: &Runs,
        threads: usize,
        tree: &PageTree,
        (joined_ns, most): (Option<u64>, usize),
    ) -> io::Result<PageRows> {
        let mut rows = PageRows { list: Vec::new(), of_threads: vec![0; threads], joined_ns, runs: 0 };
        // The rows of the stretch that is being filled, by what they have in common.
        let mut open: HashMap<(u32, u16, u16), usize> = HashMap::new();
        let mut at = (u32::MAX, 0);
        runs.for_each(|batch: Batch<'_>| {
            for run in batch.runs {
                if joined_ns.is_some() && rows.list.len() > most {
                    break; // a longer stretch is tried
                }
                let row = PageRow::of(run, tree);
                let stretch = (batch.thread, joined_ns.map_or(0, |ns| run.first_ns / ns));
                if stretch != at || joined_ns.is_none() {
                    open.clear();
                    at = stretch;
                }
                let place = *open.entry((row.node, row.state, row.stop)).or_insert(rows.list.len());
                match rows.list.get_mut(place) {
                    Some(known) => known.add(&row),
                    None => {
                        rows.list.push(row);
                        rows.of_threads[batch.thread as usize] += 1;
                    }
                }
            }
            Ok::<(), io::Error>(())
        })?;
        if joined_ns.is_some() {
            rows.lay_end_to_end();
        }
        Ok(rows)
    }

    /// Has each row that was joined begin where the one before it ends.
    fn lay_end_to_end(&mut self) {
        let mut first = 0;
        for count in &self.of_threads {
            let mut end = 0;
            for row in &mut self.list[first..first + count] {
                row.start_ns = row.start_ns.max(end);
                end = row.start_ns.saturating_add(row.wall_ns);
            }
            first += count;
        }
    }

    /// Adds the columns of the rows.
    pub(super) fn put(&self, columns: &mut Columns) {
        let mut gaps = Vec::with_capacity(self.list.len());
        let mut first = 0;
        for count in &self.of_threads {
            let mut end = 0;
            for row in &self.list[first..first + count] {
                gaps.push(difference(row.start_ns, end));
                end = row.start_ns.saturating_add(row.wall_ns);
            }
            first += count;
        }
        let column = |get: fn(&PageRow) -> u64| self.list.iter().map(get).collect::<Vec<u64>>();
        columns.add("gap", &gaps);
        columns.add("wall", &column(|row| row.wall_ns));
        columns.add("last", &column(|row| row.last_ns));
        columns.add("cpu", &column(|row| row.cpu_ns));
        columns.add("samples", &column(|row| row.samples));
        columns.add("node", &column(|row| row.node.into()));
        columns.add("state", &column(|row| row.state.into()));
        columns.add("stop", &column(|row| row.stop.into()));
    }
}

impl PageRow {
    fn of(run: &Run, tree: &PageTree) -> PageRow {
        PageRow {
            start_ns: run.first_ns,
            wall_ns: run.weight_ns,
            last_ns: run.last_ns.saturating_sub(run.first_ns),
            cpu_ns: run.cpu_ns,
            samples: run.samples.into(),
            node: run.node.and_then(|node| tree.of_nodes[node.0 as usize]).map_or(0, |node| node + 1),
            state: state(run.activity),
            stop: run.stop.0,
        }
    }

    fn add(&mut self, other: &PageRow) {
        // The samples of a row that was joined are spread over its time.
        self.last_ns = self.wall_ns.saturating_add(other.last_ns);
        self.wall_ns = self.wall_ns.saturating_add(other.wall_ns);
        self.cpu_ns = self.cpu_ns.saturating_add(other.cpu_ns);
        self.samples = self.samples.saturating_add(other.samples);
    }
}

fn count(runs: &Runs) -> io::Result<usize> {
    let mut count = 0;
    runs.for_each(|batch| {
        count += batch.runs.len();
        Ok::<(), io::Error>(())
    })?;
    Ok(count)
}
