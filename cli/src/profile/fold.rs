//! Leaves frames out of the stacks of a profile.

use super::{CallTree, Node, NodeId, Profile, Runs};
use crate::stack::{
    FoldOptions, FoldOutcome, FoldState, FrameFacts, FrameId, FrameKey, FrameKind, FrameSymbols, FrameTable,
    NameSource, NamedFrame, Placement, StrId, folded_name,
};

/// Leaves frames out of a symbolized profile. A sample whose frames are all left out has no stack
/// afterwards.
pub fn fold(profile: &mut Profile, runs: &mut Runs, options: FoldOptions) {
    if options.is_all() {
        return;
    }
    let titles = profile.images.iter().map(|image| folded_name(&image.name)).collect::<Vec<_>>();
    let titles = titles.iter().map(|title| profile.symbols.strings.intern(title)).collect();
    let mut folder = Folder::new(profile, titles);
    let mut tree = CallTree::default();
    let mut states: Vec<FoldedStack> = Vec::with_capacity(profile.tree.nodes().len());
    for node in profile.tree.nodes() {
        // A parent comes before its children.
        let above = node.parent.map_or(FoldedStack::default(), |parent| states[parent.0 as usize]);
        let mut state = above;
        let frame = match options.next(&mut state.fold, profile.kind(node.frame)) {
            FoldOutcome::Left => None,
            FoldOutcome::Shown => Some(folder.frame(node.frame)),
            FoldOutcome::Begins => Some(folder.stand_in(node.frame)),
        };
        if let Some(frame) = frame {
            state.node = Some(tree.intern(Node { parent: above.node, frame }));
        }
        states.push(state);
    }
    let Folder { frames, mut symbols, .. } = folder;
    symbols.strings = std::mem::take(&mut profile.symbols.strings);
    (profile.frames, profile.tree, profile.symbols) = (frames, tree, symbols);
    runs.map_nodes(states.into_iter().map(|state| state.node).collect());
}

/// A stack after folding.
#[derive(Clone, Copy, Default)]
struct FoldedStack {
    node: Option<NodeId>,
    fold: FoldState,
}

/// Copies the frames that remain.
struct Folder<'p> {
    profile: &'p Profile,
    /// Names of the frames that replace a runtime's, by image.
    titles: Vec<StrId>,
    frames: FrameTable,
    symbols: FrameSymbols,
    /// New ids by old ones.
    known: Vec<Option<FrameId>>,
}

impl Folder<'_> {
    fn new(profile: &Profile, titles: Vec<StrId>) -> Folder<'_> {
        Folder {
            profile,
            titles,
            frames: FrameTable::default(),
            symbols: FrameSymbols { starts: vec![0], ..FrameSymbols::default() },
            known: vec![None; profile.frames.keys().len()],
        }
    }

    /// The frame as it was.
    fn frame(&mut self, old: FrameId) -> FrameId {
        let at = old.0 as usize;
        if let Some(known) = self.known[at] {
            return known;
        }
        let from = &self.profile.symbols;
        let id = self.frames.intern(self.profile.frames.keys()[at]);
        self.symbols.named.extend_from_slice(from.names(old));
        if let Some(aliases) = from.aliases.get(&old) {
            self.symbols.aliases.insert(id, aliases.clone());
        }
        self.end(
            from.source[at],
            from.reason[at],
            FrameFacts { kind: self.profile.kind(old), ..from.facts.get(at).copied().unwrap_or_default() },
        );
        self.known[at] = Some(id);
        id
    }

    /// The frame that replaces this one and those of its runtime that it calls. No code lies at the
    /// beginning of an image, so no other frame has this location.
    fn stand_in(&mut self, old: FrameId) -> FrameId {
        let key = self.profile.frames.keys()[old.0 as usize];
        let Placement::Image(image, _) = key.place else { return self.frame(old) };
        let key = FrameKey { place: Placement::Image(image, 0), exact: true, trust: key.trust };
        let id = self.frames.intern(key);
        if id.0 as usize == self.symbols.source.len() {
            let function = self.titles[image.0 as usize];
            self.symbols.named.push(NamedFrame { function, file: None, line: None, inline: false });
            let facts = FrameFacts { kind: FrameKind::Runtime, ..FrameFacts::default() };
            self.end(NameSource::Runtime, None, facts);
        }
        id
    }

    fn end(&mut self, source: NameSource, reason: Option<StrId>, facts: FrameFacts) {
        self.symbols.source.push(source);
        self.symbols.reason.push(reason);
        self.symbols.facts.push(facts);
        self.symbols.starts.push(self.symbols.named.len() as u32);
    }
}
