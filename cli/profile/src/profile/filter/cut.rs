//! Leaves frames out of stacks: each left-out frame's samples are its caller's.

use super::frames::FrameMarks;
use super::{FramePatterns, Marks, Selection};
use crate::profile::copy::FrameCopy;
use crate::profile::{CallTree, FrameId, Node, NodeId, Profile, Runs};
use std::collections::HashMap;
use std::io;

/// Leaves out of the stacks what a selection does not show, and the stacks and frames that no run
/// has. A sample whose frames are all left out has no stack afterwards. The profile has names, and
/// its samples are [`select`](super::select)ed.
pub fn leave_out(profile: &mut Profile, runs: &mut Runs, selection: &Selection) -> io::Result<()> {
    let patterns = &selection.frames;
    if !patterns.leave_out_frames() && profile.selection.is_none() {
        return Ok(());
    }
    let used = used_nodes(profile, runs)?;
    let begin = CutStack { node: None, state: CutState::new(patterns) };
    let marks = FrameMarks::new(profile, patterns);
    let mut cutter = Cutter {
        profile,
        marks: &marks,
        copy: FrameCopy::new(profile),
        parts: HashMap::new(),
        tree: CallTree::default(),
    };
    let mut stacks: Vec<CutStack> = Vec::with_capacity(used.len());
    for (node, used) in profile.tree.nodes().iter().zip(used) {
        // A parent comes before its children.
        let above = node.parent().map_or(begin, |parent| stacks[parent.0 as usize]);
        stacks.push(if used { cutter.next(above, node.frame) } else { begin });
    }
    let Cutter { copy, tree, .. } = cutter;
    let (frames, symbols) = copy.finish();
    profile.replace_stacks(frames, symbols, tree);
    runs.map_nodes(stacks.into_iter().map(|stack| stack.node).collect());
    Ok(())
}

/// By node: whether a run's stack goes through it.
fn used_nodes(profile: &Profile, runs: &Runs) -> io::Result<Vec<bool>> {
    let mut used = vec![false; profile.tree.nodes().len()];
    runs.for_each(|batch| {
        for NodeId(node) in batch.runs.iter().filter_map(|run| run.node) {
            used[node as usize] = true;
        }
        Ok::<(), io::Error>(())
    })?;
    profile.tree.add_callees(&mut used, |used, callee| *used |= callee);
    Ok(used)
}

/// How far a stack is cut, from its outermost frame inwards.
#[derive(Clone, Copy, Debug)]
pub struct CutState {
    /// Only functions that threads begin in have come so far.
    at_start: bool,
    /// The frame at which stacks are to begin has come.
    is_rooted: bool,
}

impl CutState {
    /// Before the outermost frame.
    pub fn new(patterns: &FramePatterns) -> CutState {
        CutState { at_start: patterns.skip_thread_start, is_rooted: patterns.root.is_empty() }
    }

    /// How many of the names of the next frame, innermost first, are not outside of the root.
    /// [`is_kept`] says which of them stay.
    pub fn next(&mut self, names: &[Marks]) -> usize {
        self.at_start &= names.iter().all(|marks| marks.contains(Marks::START));
        let mut inside = names.len();
        if !self.is_rooted {
            let root = names.iter().rposition(|marks| marks.contains(Marks::ROOT));
            self.is_rooted = root.is_some();
            inside = root.map_or(0, |root| root + 1);
        }
        if self.at_start { 0 } else { inside }
    }
}

/// Whether a name of a frame stays, by its index and how many [`CutState::next`] let in.
pub fn is_kept(names: &[Marks], inside: usize, at: usize) -> bool {
    at < inside && !names[at].contains(Marks::HIDE)
}

/// A stack without what is left out.
#[derive(Clone, Copy)]
struct CutStack {
    node: Option<NodeId>,
    state: CutState,
}

struct Cutter<'p> {
    profile: &'p Profile,
    marks: &'p FrameMarks,
    copy: FrameCopy<'p>,
    /// By frame: what is left of it as the root of stacks, where a function inlined into it is the
    /// root.
    parts: HashMap<FrameId, FrameId>,
    tree: CallTree,
}

impl Cutter<'_> {
    /// The stack in which `above` calls a frame.
    fn next(&mut self, above: CutStack, frame: FrameId) -> CutStack {
        let (marks, profile) = (self.marks, self.profile);
        let names = marks.of_names(profile, frame);
        let mut stack = above;
        let inside = stack.state.next(names);
        let is_kept = |i: usize| is_kept(names, inside, i);
        if !(0..inside).any(is_kept) {
            return stack;
        }
        let frame = if inside == names.len() {
            self.copy.frame_with(frame, is_kept)
        } else {
            *self.parts.entry(frame).or_insert_with(|| self.copy.part(frame, is_kept))
        };
        stack.node = Some(self.tree.intern(Node { parent: above.node, frame }));
        stack
    }
}
