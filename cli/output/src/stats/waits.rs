//! What threads wait for, and in which stacks.

use super::{Amount, WaitStack, WaitStats};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use stk_profile::profile::{Functions, NodeId, Profile, Run, Wait, is_system_library};

/// Sums by what is waited for, filled run by run, thread by thread.
pub(super) struct WaitSums {
    sums: [WaitSum; Wait::COUNT],
    /// By wait and stack, if the stacks are wanted.
    stacks: Option<HashMap<(Wait, NodeId), Amount>>,
    /// The wait that the thread's last run belongs to.
    open: Option<OpenWait>,
}

/// Waits for one reason.
#[derive(Clone, Copy, Default)]
struct WaitSum {
    waits: u64,
    amount: Amount,
    longest_ns: u64,
}

/// A wait that may continue.
#[derive(Clone, Copy)]
struct OpenWait {
    thread: u32,
    wait: Wait,
    end_ns: u64,
    ns: u64,
}

impl WaitSums {
    pub(super) fn new(with_stacks: bool) -> WaitSums {
        let stacks = with_stacks.then(HashMap::new);
        WaitSums { sums: [WaitSum::default(); Wait::COUNT], stacks, open: None }
    }

    /// Adds a thread's next run. It continues the wait before it if that is for the same and ends
    /// where it begins.
    pub(super) fn add(&mut self, thread: u32, run: &Run) {
        if run.weight_ns == 0 && run.samples == 0 {
            return; // CPU time alone
        }
        let before = self.open.take();
        let Some(wait) = run.activity.wait() else { return };
        let same =
            before.filter(|open| (open.thread, open.wait, open.end_ns) == (thread, wait, run.first_ns));
        let ns = same.map_or(0, |open| open.ns).saturating_add(run.weight_ns);
        let sum = &mut self.sums[usize::from(wait.number())];
        sum.waits += u64::from(same.is_none());
        sum.amount.add_run(run);
        sum.longest_ns = sum.longest_ns.max(ns);
        self.open = Some(OpenWait { thread, wait, end_ns: run.end_ns(), ns });
        if let (Some(stacks), Some(node)) = (&mut self.stacks, run.node) {
            stacks.entry((wait, node)).or_default().add_run(run);
        }
    }

    /// A row for each reason, longest first, each with its first `top` stacks.
    pub(super) fn rows(&self, profile: &Profile, functions: &Functions, top: usize) -> Vec<WaitStats> {
        let mut stacks = self.stacks_by_wait(profile, functions);
        let row = |wait: Wait| {
            let sum = self.sums[usize::from(wait.number())];
            let mut stacks = stacks.remove(&wait).unwrap_or_default();
            stacks.truncate(top);
            (sum.amount.samples > 0).then(|| WaitStats {
                reason: wait.reason(),
                class: wait.class(),
                waits: sum.waits,
                samples: sum.amount.samples,
                weight_ns: sum.amount.weight_ns,
                longest_ns: sum.longest_ns,
                stacks,
            })
        };
        let mut rows: Vec<WaitStats> = Wait::all().into_iter().filter_map(row).collect();
        rows.sort_by_key(|row| (Reverse(row.weight_ns), row.reason));
        rows
    }

    /// The stacks of each reason, longest first. Stacks of the same functions are one.
    fn stacks_by_wait(&self, profile: &Profile, functions: &Functions) -> BTreeMap<Wait, Vec<WaitStack>> {
        let mut sums: BTreeMap<(Wait, (Vec<String>, usize)), Amount> = BTreeMap::new();
        for (&(wait, node), &amount) in self.stacks.iter().flatten() {
            let sum = sums.entry((wait, names(profile, functions, node))).or_default();
            sum.samples += amount.samples;
            sum.weight_ns = sum.weight_ns.saturating_add(amount.weight_ns);
        }
        let mut stacks: BTreeMap<Wait, Vec<WaitStack>> = BTreeMap::new();
        for ((wait, (functions, system)), Amount { samples, weight_ns }) in sums {
            let stack = WaitStack { samples, weight_ns, functions, system };
            stacks.entry(wait).or_default().push(stack);
        }
        // Stable: equal times stay in the order of their functions.
        stacks.values_mut().for_each(|stacks| stacks.sort_by_key(|stack| Reverse(stack.weight_ns)));
        stacks
    }
}

/// The functions of a stack, outermost first, and how many of them come before the system's that
/// lead to its innermost one.
fn names(profile: &Profile, functions: &Functions, node: NodeId) -> (Vec<String>, usize) {
    let mut innermost_first: Vec<&str> = Vec::new();
    let mut system = None;
    for frame in profile.tree.frames(node) {
        if !is_system_library(profile.module_name(frame).unwrap_or_default()) {
            system.get_or_insert(innermost_first.len());
        }
        let of_frame = functions.of(frame).iter().rev();
        innermost_first.extend(of_frame.map(|id| functions.list()[id.0 as usize].name.as_str()));
    }
    let system = system.unwrap_or(innermost_first.len());
    let all = innermost_first.len();
    (innermost_first.into_iter().rev().map(str::to_owned).collect(), all - system)
}
