//! Stacks that are too deep to show: recursion folded, and the middle left out.

use super::{CallTree, FunctionId, Functions, Node, NodeId, Profile, Runs, TreeNode};
use crate::stack::FrameId;
use hashbrown::HashMap;
use std::io;

/// Functions of a cycle of calls at most that is folded.
const LONGEST_CYCLE: usize = 8;

/// Shows each cycle of calls once where it follows itself: `a > b > a > b > c` becomes `a > b > c`.
/// Every stack keeps its innermost function, and all of its functions. The profile has names.
pub fn fold_recursion(profile: &mut Profile, runs: &mut Runs) {
    let functions = Functions::new(profile, false);
    let mut tree = CallTree::default();
    let mut folded: Vec<NodeId> = Vec::with_capacity(profile.tree.nodes().len());
    for node in profile.tree.nodes() {
        // A parent comes before its children.
        let parent = node.parent().map(|parent| folded[parent.0 as usize]);
        let stack = tree.intern(Node { parent, frame: node.frame });
        folded.push(without_cycle(&tree, &functions, stack));
    }
    profile.tree = tree;
    runs.map_nodes(folded.into_iter().map(Some).collect());
}

/// The stack without its innermost cycle, if the same one is right above it.
fn without_cycle(tree: &CallTree, functions: &Functions, stack: NodeId) -> NodeId {
    let nodes = tree.nodes();
    let of = |node: NodeId| -> &[FunctionId] { functions.of(nodes[node.0 as usize].frame) };
    let parent = |node: NodeId| nodes[node.0 as usize].parent();
    let mut above = stack;
    for length in 1..=LONGEST_CYCLE {
        let Some(next) = parent(above) else { break };
        above = next;
        // Compares the innermost `length` frames with those above them.
        let (mut inner, mut outer) = (Some(stack), Some(above));
        let mut same = 0;
        while let (Some(a), Some(b)) = (inner, outer)
            && same < length
            && of(a) == of(b)
        {
            (inner, outer) = (parent(a), parent(b));
            same += 1;
        }
        if same == length {
            return above;
        }
    }
    stack
}

/// Leaves the middle out of stacks with more than `most` functions, so that no more than that are
/// left; a placeholder stands for it. Returns how many different stacks that were.
pub fn cut_stacks(profile: &mut Profile, runs: &mut Runs, most: usize) -> io::Result<u64> {
    let nodes = profile.tree.nodes();
    // Each name of a frame is that of a function.
    let names = profile.symbols.starts.windows(2).map(|pair| pair[1] - pair[0]);
    let names: Vec<u32> = names.collect();
    let most = u32::try_from(most).unwrap_or(u32::MAX);
    let deepest = profile.tree.chains().depths().into_iter().max().unwrap_or(0);
    if deepest.saturating_mul(names.iter().copied().max().unwrap_or(0)) <= most {
        return Ok(0);
    }
    let mut lengths: Vec<u32> = Vec::with_capacity(nodes.len());
    let mut longest = 0;
    for node in nodes {
        let above = node.parent().map_or(0, |parent| lengths[parent.0 as usize]);
        let length = above.saturating_add(names[node.frame.0 as usize]);
        longest = length.max(longest);
        lengths.push(length);
    }
    if longest <= most {
        return Ok(0);
    }
    let mut met = vec![false; nodes.len()];
    runs.for_each(|batch| {
        batch.runs.iter().filter_map(|run| run.node).for_each(|node| met[node.0 as usize] = true);
        Ok::<(), io::Error>(())
    })?;
    let gap = profile.add_placeholder(MIDDLE);
    let nodes = profile.tree.nodes();
    let keep = most.saturating_sub(1) / 2;
    let mut tree = CallTree::default();
    // The outer parts keep their shape; of what is too deep, only stacks of samples are made.
    let mut outer: HashMap<NodeId, NodeId> = HashMap::new();
    let mut map: Vec<Option<NodeId>> = vec![None; nodes.len()];
    let mut cut = 0;
    for (at, node) in nodes.iter().enumerate() {
        let id = NodeId(at as u32);
        let is_short = lengths[at] <= most;
        if is_short {
            let parent = node.parent().and_then(|parent| outer.get(&parent).copied());
            let same = tree.intern(Node { parent, frame: node.frame });
            outer.insert(id, same);
            map[at] = Some(same);
            continue;
        }
        if !met[at] {
            continue;
        }
        cut += 1;
        let (inner, top) = ends(nodes, &lengths, id, keep);
        let mut parent = top.and_then(|top| outer.get(&top).copied());
        parent = Some(tree.intern(Node { parent, frame: gap }));
        for frame in inner.into_iter().rev() {
            parent = Some(tree.intern(Node { parent, frame }));
        }
        map[at] = parent;
    }
    profile.tree = tree;
    runs.map_nodes(map);
    profile.tree.chain(runs)?;
    Ok(cut)
}

/// Stands for the middle of a stack.
const MIDDLE: &str = "[frames left out: too deep]";

/// The innermost frames of a stack with at most `keep` functions, innermost first, and the caller
/// with at most so many from which on the outer ones are kept.
fn ends(nodes: &[TreeNode], lengths: &[u32], stack: NodeId, keep: u32) -> (Vec<FrameId>, Option<NodeId>) {
    let mut inner = Vec::new();
    let mut next = Some(stack);
    let all = lengths[stack.0 as usize];
    while let Some(NodeId(node)) = next {
        let parent = nodes[node as usize].parent();
        let above = parent.map_or(0, |parent| lengths[parent.0 as usize]);
        if all - above > keep {
            break;
        }
        inner.push(nodes[node as usize].frame);
        next = parent;
    }
    while let Some(node) = next.filter(|node| lengths[node.0 as usize] > keep) {
        next = nodes[node.0 as usize].parent();
    }
    (inner, next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Activity, FrameFacts, TraceInfo};
    use crate::profile::{FrameKey, FrameKind, NameSource, NamedFrame, Placement, Run, RunFlags, StopId};
    use stk_schema::event::RunState;
    use stk_unwind::Trust;

    /// A profile with a sample in each of these stacks, whose functions have one letter.
    fn profile(stacks: &[&str]) -> (Profile, Runs) {
        let mut profile = Profile::empty(TraceInfo::unknown(stk_schema::Arch::X64));
        let mut runs = Runs::default();
        for (at, stack) in (0..).zip(stacks) {
            let mut parent = None;
            for letter in stack.chars() {
                let place = Placement::Unknown(u64::from(letter));
                let key = FrameKey { place, exact: true, trust: Trust::Context };
                let frame = profile.frames.intern(key);
                if frame.0 as usize == profile.symbols.source.len() {
                    let symbols = &mut profile.symbols;
                    let function = symbols.strings.intern(&letter.to_string());
                    symbols.named.push(NamedFrame { function, file: None, line: None, inline: false });
                    symbols.starts.push(symbols.named.len() as u32);
                    symbols.source.push(NameSource::Pdb);
                    symbols.reason.push(None);
                    symbols.facts.push(FrameFacts { kind: FrameKind::Native, ..FrameFacts::default() });
                }
                parent = Some(profile.tree.intern(Node { parent, frame }));
            }
            let run = Run {
                node: parent,
                stop: StopId(0),
                first_ns: at,
                last_ns: at,
                weight_ns: 1,
                samples: 1,
                cpu_ns: 1,
                state: RunState::Running,
                activity: Activity::OnCpu,
                flags: RunFlags::empty(),
                capture_tag: 0,
            };
            runs.push(0, run).unwrap();
        }
        (profile, runs)
    }

    fn stacks(profile: &Profile, runs: &Runs) -> Vec<String> {
        let mut stacks = Vec::new();
        let name = |frame| {
            let name = profile.symbols.names(frame)[0];
            profile.symbols.strings.get(name.function).to_owned()
        };
        let visited: io::Result<()> = runs.for_each(|batch| {
            for run in batch.runs {
                let mut names: Vec<String> = profile.tree.frames(run.node.unwrap()).map(name).collect();
                names.reverse();
                stacks.push(names.concat());
            }
            Ok(())
        });
        visited.unwrap();
        stacks
    }

    #[test]
    fn cycles_that_follow_themselves_are_shown_once() {
        let rows = [
            ("maaab", "mab"),
            ("mababc", "mabc"),
            ("mabab", "mab"),
            ("mababa", "maba"),
            ("mabcabcabcd", "mabcd"),
            ("mabxab", "mabxab"),
            ("m", "m"),
        ];
        let (mut profile, mut runs) = profile(&rows.map(|(stack, _)| stack));
        fold_recursion(&mut profile, &mut runs);
        assert_eq!(stacks(&profile, &runs), rows.map(|(_, folded)| folded));
    }

    #[test]
    fn deep_stacks_keep_both_ends() {
        let (mut profile, mut runs) = profile(&["abcdefghij", "abcde", "abc"]);
        assert_eq!(cut_stacks(&mut profile, &mut runs, 10).unwrap(), 0);
        assert_eq!(cut_stacks(&mut profile, &mut runs, 5).unwrap(), 1);
        assert_eq!(stacks(&profile, &runs), ["ab[frames left out: too deep]ij", "abcde", "abc"]);
    }
}
