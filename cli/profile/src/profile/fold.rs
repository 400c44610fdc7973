//! Leaves frames out of the stacks of a profile.

use super::copy::FrameCopy;
use super::{CallTree, Node, NodeId, Profile, Runs};
use crate::stack::{
    FoldOptions, FoldOutcome, FoldState, FrameFacts, FrameId, FrameKey, FrameKind, Placement, StrId,
    folded_name,
};

/// Leaves frames out of a symbolized profile. A sample whose frames are all left out has no stack
/// afterwards.
pub fn fold(profile: &mut Profile, runs: &mut Runs, options: FoldOptions) {
    if options.is_all() {
        return;
    }
    let titles = profile.images.iter().map(|image| folded_name(&image.name)).collect::<Vec<_>>();
    let titles: Vec<StrId> = titles.iter().map(|title| profile.symbols.strings.intern(title)).collect();
    let mut copy = FrameCopy::new(profile);
    let mut tree = CallTree::default();
    let mut states: Vec<FoldedStack> = Vec::with_capacity(profile.tree.nodes().len());
    for node in profile.tree.nodes() {
        // A parent comes before its children.
        let above = node.parent().map_or(FoldedStack::default(), |parent| states[parent.0 as usize]);
        let mut state = above;
        let frame = match options.next(&mut state.fold, profile.kind(node.frame)) {
            FoldOutcome::Left => None,
            FoldOutcome::Shown => Some(copy.frame(node.frame)),
            FoldOutcome::Begins => Some(placeholder(&mut copy, profile, &titles, node.frame)),
        };
        if let Some(frame) = frame {
            state.node = Some(tree.intern(Node { parent: above.node, frame }));
        }
        states.push(state);
    }
    let (frames, symbols) = copy.finish();
    profile.replace_stacks(frames, symbols, tree);
    runs.map_nodes(states.into_iter().map(|state| state.node).collect());
}

/// A stack after folding.
#[derive(Clone, Copy, Default)]
struct FoldedStack {
    node: Option<NodeId>,
    fold: FoldState,
}

/// The frame that replaces this one and those of its runtime that it calls. No code lies at the
/// beginning of an image, so no other frame has this location.
fn placeholder(copy: &mut FrameCopy<'_>, profile: &Profile, titles: &[StrId], old: FrameId) -> FrameId {
    let key = profile.frames.keys()[old.0 as usize];
    let Placement::Image(image, _) = key.place else { return copy.frame(old) };
    let key = FrameKey { place: Placement::Image(image, 0), exact: true, trust: key.trust };
    let facts = FrameFacts { kind: FrameKind::Runtime, ..FrameFacts::default() };
    copy.placeholder(key, titles[image.0 as usize], facts)
}
