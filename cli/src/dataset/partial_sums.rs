//! Sums that one thread keeps while it reads rows.
//!
//! The sums of the groups that are being met are in a table. When another group begins and the
//! table is large, they go to lists by group: memory grows with sums, not with rows, and the table
//! stays small where groups follow each other.

use super::WaitRuns;
use super::sums::{SumClass, SumKey};
use hashbrown::HashMap;
use std::hash::{Hash, Hasher};
use stk_profile::profile::{Additive, SampleSum};

/// What rows have in common that are one sum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct GroupSumKey {
    /// Number of the group.
    pub group: u32,
    pub key: SumKey,
}

/// Two numbers instead of each field: it is done for each row.
impl Hash for GroupSumKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.key.stack().unwrap_or(0) as u64);
        state.write_u64(u64::from(self.group) << 16 | u64::from(self.key.activity.code()));
    }
}

/// A run of rows at the beginning or the end of a row group, which may continue in another.
#[derive(Clone, Copy)]
pub(super) struct EdgeRun {
    pub trace: u32,
    pub run_id: i64,
    pub key: GroupSumKey,
    pub ns: u64,
}

impl EdgeRun {
    /// Whether rows are of the same run.
    pub(super) fn is_same(&self, other: &EdgeRun) -> bool {
        (self.trace, self.run_id) == (other.trace, other.run_id)
    }
}

/// The first and the last run of a row group, where they are waits; the same one if there is only
/// one.
pub(super) struct Edges {
    pub row_group: usize,
    pub first: Option<EdgeRun>,
    pub last: Option<EdgeRun>,
    pub only_one: bool,
}

/// Sums in the table beyond which those of other groups are moved to their lists.
const MOST_SUMS: usize = 1 << 19;

/// What one thread has summed up.
#[derive(Default)]
pub(super) struct PartialSums {
    table: HashMap<GroupSumKey, SampleSum>,
    /// Sums that the table may have when another group begins.
    most: usize,
    /// The group of the last row.
    group: Option<u32>,
    pub groups: Vec<SumList>,
    pub waits: HashMap<GroupSumKey, WaitRuns>,
    /// Samples of all threads in the time asked for, by class.
    pub whole: HashMap<SumClass, SampleSum>,
    pub edges: Vec<Edges>,
    /// Of the row group that is being read.
    first: Option<EdgeRun>,
    open: Option<EdgeRun>,
    runs: u64,
}

impl PartialSums {
    /// `by_trace`: what follows a group is another one, and does not have its stacks.
    pub(super) fn new(by_trace: bool) -> PartialSums {
        PartialSums { most: if by_trace { 0 } else { MOST_SUMS }, ..PartialSums::default() }
    }

    /// The rows that follow are of this group.
    pub(super) fn begin_group(&mut self, group: u32) {
        if self.group != Some(group) && self.table.len() > self.most {
            self.move_to_lists();
        }
        self.group = Some(group);
    }

    /// Adds a row of the group that was begun.
    pub(super) fn add(&mut self, key: GroupSumKey, sum: SampleSum) {
        self.table.entry(key).or_default().add(sum);
    }

    /// Adds a row to the run before it, or begins one. Only waits are counted.
    pub(super) fn run(&mut self, mut row: EdgeRun, samples: u64) {
        if row.ns == 0 && samples == 0 {
            return; // CPU time alone
        }
        if row.key.key.activity.wait().is_none() {
            self.open = None;
            self.runs += 1;
            return;
        }
        let before = self.open.filter(|open| open.is_same(&row));
        row.ns = row.ns.saturating_add(before.map_or(0, |open| open.ns));
        let begins = u64::from(before.is_none());
        self.runs += begins;
        if self.runs == 1 {
            // A wait is counted in its first stack.
            let key = self.first.map_or(row.key, |first| first.key);
            self.first = Some(EdgeRun { key, ..row });
        }
        let sum = self.waits.entry(row.key).or_default();
        sum.waits += begins;
        sum.longest_ns = sum.longest_ns.max(row.ns);
        self.open = Some(row);
    }

    /// Remembers the waits that may continue in other row groups.
    pub(super) fn end_row_group(&mut self, row_group: usize) {
        let runs = std::mem::take(&mut self.runs);
        if runs > 0 {
            let (first, last) = (self.first.take(), self.open.take());
            self.edges.push(Edges { row_group, first, last, only_one: runs == 1 });
        }
    }

    fn move_to_lists(&mut self) {
        for (GroupSumKey { group, key }, sum) in self.table.drain() {
            let group = group as usize;
            if self.groups.len() <= group {
                self.groups.resize_with(group + 1, SumList::default);
            }
            self.groups[group].push(key, sum);
        }
    }

    /// All of it, in lists.
    pub(super) fn finish(mut self) -> PartialSums {
        self.move_to_lists();
        self.table = HashMap::new();
        self
    }
}

/// The sums of a group. A key may be there several times.
#[derive(Default)]
pub(super) struct SumList {
    sums: Vec<(SumKey, SampleSum)>,
    /// How many there were when each key was there once.
    once: usize,
}

impl SumList {
    fn push(&mut self, key: SumKey, sum: SampleSum) {
        if self.sums.len() >= 2 * self.once + MOST_SUMS / 4 {
            self.make_once();
        }
        self.sums.push((key, sum));
    }

    pub(super) fn append(&mut self, mut more: SumList) {
        self.sums.append(&mut more.sums);
    }

    /// Adds up those of one key, and sorts them.
    pub(super) fn make_once(&mut self) {
        self.sums.sort_unstable_by_key(|sum| sum.0);
        self.sums.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1.add(next.1);
            }
            same
        });
        self.once = self.sums.len();
    }

    pub(super) fn into_sums(self) -> Vec<(SumKey, SampleSum)> {
        self.sums
    }
}
