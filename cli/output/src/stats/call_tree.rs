//! Answers on the call tree: from its root, from the callers of functions, from their callees. The
//! heaviest functions are shown; the others are summed, so that every figure adds up.

use super::Amount;
use super::calls::CallSums;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use stk_profile::profile::{Additive, Children, NodeId, OpenFunctions, Visit};

/// Which way a tree goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the outermost functions to those that they call.
    Tree,
    /// From chosen functions to those that call them.
    Callers,
    /// From chosen functions to those that they call.
    Callees,
}

/// How much of a tree is shown.
#[derive(Clone, Copy, Debug)]
pub struct TreeLimits {
    /// Functions.
    pub functions: usize,
    /// Lines that [`print_tree`](super::print_tree) takes for them.
    pub lines: usize,
    /// Functions below each other.
    pub depth: usize,
    /// Part of the whole tree that a function has at least, 0 to 1.
    pub least: f64,
}

/// A call tree: callers before their callees, the heaviest of siblings first.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CallTreeStats {
    pub direction: Direction,
    /// Functions at which the tree begins; of callers and callees, the chosen ones.
    pub roots: u64,
    /// Samples in the tree, each once. Its roots add up to that, unless they are chosen functions
    /// that call each other.
    pub whole: Amount,
    pub rows: Vec<TreeRow>,
}

/// A function at its place in the tree, or the sum of others at that place. The rows below one and
/// its self samples add up to its total.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct TreeRow {
    /// 0 of a root.
    pub depth: u32,
    /// Index of the row that this one is below.
    pub parent: Option<usize>,
    /// Empty in the sum of others.
    pub function: String,
    /// File name of its module; empty if it has none.
    pub module: String,
    /// 0, or how many functions the row sums.
    pub others: u64,
    /// Samples that end here: the function is the innermost; of callers, the outermost.
    #[serde(rename = "self")]
    pub own: Amount,
    /// Samples that go through here.
    pub total: Amount,
}

/// A stack in the sums, and samples of it.
#[derive(Clone, Copy)]
struct Member {
    stack: NodeId,
    amount: Amount,
}

/// A function at a place in the tree.
#[derive(Default)]
struct Branch {
    function: u32,
    depth: u32,
    parent: Option<usize>,
    own: Amount,
    total: Amount,
    /// What it is the sum of, until its own branches are made.
    members: Vec<Member>,
    branches: Vec<usize>,
    /// Place among all branches: of equal ones the first is shown first.
    order: usize,
    shown: bool,
    /// How many of `branches` are shown.
    shown_below: usize,
}

/// Makes the tree of the sums. `is_chosen` says for each function whether its callers or callees
/// are requested.
pub(super) fn call_tree(
    sums: &CallSums,
    direction: Direction,
    is_chosen: &dyn Fn(u32) -> bool,
    limits: &TreeLimits,
) -> CallTreeStats {
    let totals = sums.tree.totals(&sums.own);
    let callees = sums.tree.callees();
    let chosen = match direction {
        Direction::Tree => ChosenStacks::roots(&callees, &totals),
        Direction::Callers | Direction::Callees => ChosenStacks::of(sums, &callees, &totals, is_chosen),
    };
    let mut growth = Growth { sums, totals: &totals, callees: &callees, direction, branches: Vec::new() };
    let roots = growth.grow(None, chosen.stacks);
    growth.show(&roots, chosen.whole, limits);
    CallTreeStats { direction, roots: roots.len() as u64, whole: chosen.whole, rows: growth.rows(&roots) }
}

/// Whether a branch has all of what the branch below it has: what weighs nothing does not count,
/// except where nothing weighs anything.
pub(super) fn has_all(branch: Amount, below: Amount) -> bool {
    branch.weight_ns == below.weight_ns && (below.weight_ns > 0 || branch == below)
}

/// The stacks at which a tree begins.
struct ChosenStacks {
    stacks: Vec<Member>,
    /// Their samples, each once.
    whole: Amount,
}

impl ChosenStacks {
    /// The outermost functions.
    fn roots(callees: &Children, totals: &[Amount]) -> ChosenStacks {
        let member = |stack: NodeId| Member { stack, amount: totals[stack.0 as usize] };
        let stacks: Vec<Member> = callees.roots().map(member).collect();
        let mut whole = Amount::default();
        stacks.iter().for_each(|member| whole.add(member.amount));
        ChosenStacks { stacks, whole }
    }

    /// Of each chosen function the occurrences nearest to the root: recursion counts once.
    fn of(
        sums: &CallSums,
        callees: &Children,
        totals: &[Amount],
        is_chosen: &dyn Fn(u32) -> bool,
    ) -> ChosenStacks {
        let chosen: Vec<bool> = (0..sums.functions().len() as u32).map(is_chosen).collect();
        let mut found = ChosenStacks { stacks: Vec::new(), whole: Amount::default() };
        // The second is entered with every chosen function.
        let (mut open, mut any_open) = (OpenFunctions::default(), OpenFunctions::default());
        callees.visit(|stack, when| {
            let function = sums.tree.function(stack);
            if !chosen[function as usize] {
                return true;
            }
            if when == Visit::Leave {
                open.leave(function);
                any_open.leave(0);
                return true;
            }
            let amount = totals[stack.0 as usize];
            if open.enter(function) {
                found.stacks.push(Member { stack, amount });
            }
            if any_open.enter(0) {
                found.whole.add(amount);
            }
            true
        });
        // The order of a visit is not that of first appearance.
        found.stacks.sort_unstable_by_key(|member| member.stack);
        found
    }
}

/// A tree that grows from its roots, heaviest functions first.
struct Growth<'a> {
    sums: &'a CallSums,
    totals: &'a [Amount],
    callees: &'a Children,
    direction: Direction,
    branches: Vec<Branch>,
}

impl Growth<'_> {
    /// Makes a branch of the members of each function, the heaviest first. Each costs its members
    /// once.
    fn grow(&mut self, parent: Option<usize>, members: Vec<Member>) -> Vec<usize> {
        let depth = parent.map_or(0, |parent| self.branches[parent].depth + 1);
        let mut of_function: HashMap<u32, usize> = HashMap::new();
        let mut grown = Vec::new();
        for member in members {
            let function = self.sums.tree.function(member.stack);
            let at = *of_function.entry(function).or_insert_with(|| {
                self.branches.push(Branch { function, depth, parent, ..Branch::default() });
                grown.push(self.branches.len() - 1);
                self.branches.len() - 1
            });
            let own = self.ends_here(&member);
            let branch = &mut self.branches[at];
            branch.own.add(own);
            branch.total.add(member.amount);
            branch.members.push(member);
        }
        let names = self.sums.functions();
        grown.sort_by_key(|&at| {
            let Branch { total, function, .. } = self.branches[at];
            let name = &names[function as usize];
            (Reverse((total.weight_ns, total.samples)), &name.function, &name.module)
        });
        let before = self.branches.len() - grown.len();
        for (place, &at) in grown.iter().enumerate() {
            self.branches[at].order = before + place;
        }
        grown
    }

    /// The samples of a member that have nothing below it in the tree.
    fn ends_here(&self, member: &Member) -> Amount {
        match self.direction {
            Direction::Tree | Direction::Callees => self.sums.own[member.stack.0 as usize],
            Direction::Callers if self.sums.tree.caller(member.stack).is_none() => member.amount,
            Direction::Callers => Amount::default(),
        }
    }

    /// The members of what is below a member in the tree.
    fn below(&self, member: Member) -> impl Iterator<Item = Member> + use<'_> {
        let callers = self.direction == Direction::Callers;
        let caller = self.sums.tree.caller(member.stack).filter(|_| callers);
        let callees = if callers { None } else { Some(self.callees.of(member.stack)) };
        let caller = caller.map(|stack| Member { stack, amount: member.amount });
        let callees = callees
            .into_iter()
            .flatten()
            .map(|stack| Member { stack, amount: self.totals[stack.0 as usize] });
        caller.into_iter().chain(callees)
    }

    /// Shows the heaviest branches, as many as the limits allow. A branch is never heavier than the
    /// one that it is on, so what is shown hangs together.
    fn show(&mut self, roots: &[usize], whole: Amount, limits: &TreeLimits) {
        let least = (whole.weight_ns as f64 * limits.least).ceil() as u64;
        let rank = |branches: &[Branch], at: usize| {
            let Branch { total, order, .. } = branches[at];
            (total.weight_ns, total.samples, Reverse(order), at)
        };
        let mut waiting: BinaryHeap<_> = roots.iter().map(|&at| rank(&self.branches, at)).collect();
        let (mut functions, mut lines) = (0, usize::from(roots.len() > 1));
        while let Some((weight, _, _, at)) = waiting.pop() {
            if functions == limits.functions || weight < least {
                break;
            }
            let new_lines = self.new_lines(at);
            let too_deep = self.branches[at].depth as usize >= limits.depth;
            if too_deep || lines + new_lines > limits.lines {
                continue;
            }
            functions += 1;
            lines += new_lines;
            self.branches[at].shown = true;
            if let Some(parent) = self.branches[at].parent {
                self.branches[parent].shown_below += 1;
            }
            let members = std::mem::take(&mut self.branches[at].members);
            let below: Vec<Member> = members.into_iter().flat_map(|member| self.below(member)).collect();
            let grown = self.grow(Some(at), below);
            waiting.extend(grown.iter().map(|&at| rank(&self.branches, at)));
            self.branches[at].branches = grown;
        }
    }

    /// How many lines more the text takes with a branch: none if it continues the line of the one
    /// that it is on. Beside branches that are shown stands a line for the others.
    fn new_lines(&self, at: usize) -> usize {
        // The line for the other roots is counted at the start.
        let Some(parent) = self.branches[at].parent.map(|parent| &self.branches[parent]) else { return 1 };
        let (siblings, shown) = (parent.branches.len(), parent.shown_below);
        match (shown, siblings) {
            _ if self.continues(parent) => 0,
            (_, 1) => 1,
            // With the line for the others.
            (0, _) => 2,
            // Instead of that line.
            _ if shown + 1 == siblings => 0,
            _ => 1,
        }
    }

    /// Whether everything that a branch has is in one branch on it.
    fn continues(&self, branch: &Branch) -> bool {
        // The first is the heaviest.
        branch.branches.first().is_some_and(|&first| has_all(self.branches[first].total, branch.total))
    }

    /// The branches that are shown as rows, and sums of the others.
    fn rows(&self, roots: &[usize]) -> Vec<TreeRow> {
        let mut rows: Vec<TreeRow> = Vec::new();
        // What is still to come, the next at the end: siblings with the row that they are below.
        let mut todo: Vec<(Option<usize>, &[usize])> = vec![(None, roots)];
        while let Some((parent, siblings)) = todo.pop() {
            let depth = parent.map_or(0, |parent: usize| rows[parent].depth + 1);
            // What is shown comes first: it is the heaviest.
            match siblings.split_first() {
                Some((&at, rest)) if self.branches[at].shown => {
                    let branch = &self.branches[at];
                    let name = &self.sums.functions()[branch.function as usize];
                    rows.push(TreeRow {
                        depth,
                        parent,
                        function: name.function.clone(),
                        module: name.module.clone(),
                        others: 0,
                        own: branch.own,
                        total: branch.total,
                    });
                    todo.push((parent, rest));
                    todo.push((Some(rows.len() - 1), &branch.branches));
                }
                Some(_) => {
                    let mut total = Amount::default();
                    siblings.iter().for_each(|&at| total.add(self.branches[at].total));
                    rows.push(TreeRow {
                        depth,
                        parent,
                        function: String::new(),
                        module: String::new(),
                        others: siblings.len() as u64,
                        own: Amount::default(),
                        total,
                    });
                }
                None => {}
            }
        }
        rows
    }
}
