//! Leaves frames out of stacks: those of one side of a mixed stack, or a language runtime's own.

use super::{
    CallTree, FrameFacts, FrameId, FrameKey, FrameKind, FrameSymbols, FrameTable, NameSource, NamedFrame,
    Node, NodeId, Placement, Profile, Runs, StrId,
};

/// Which frames of mixed stacks are shown.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum FrameChoice {
    /// All of them
    #[default]
    All,
    /// All but those of managed methods and of the stubs between them
    Native,
    /// Only those of managed methods and of the stubs between them
    Managed,
}

/// What is left out.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FoldOptions {
    /// Which frames stay.
    pub frames: FrameChoice,
    /// Whether stubs go, and frames of a runtime that follow each other become one.
    pub hide_runtime: bool,
}

/// What becomes of a frame, going from the root to the leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Folded {
    /// It stays.
    Shown,
    /// It goes.
    Left,
    /// It is the first of a runtime's frames that follow each other: one frame stands for all of them.
    Begins,
}

impl FoldOptions {
    /// Whether nothing is left out.
    pub fn is_all(&self) -> bool {
        *self == FoldOptions::default()
    }

    /// What becomes of a frame of this kind. `in_runtime`: whether the nearest frame towards the root that was not [`Folded::Left`]
    /// is one that stands for a runtime's.
    pub fn of(&self, kind: FrameKind, in_runtime: bool) -> Folded {
        let managed = matches!(kind, FrameKind::Managed | FrameKind::Stub);
        let chosen = match self.frames {
            FrameChoice::All => true,
            FrameChoice::Native => !managed,
            FrameChoice::Managed => managed,
        };
        match kind {
            _ if !chosen => Folded::Left,
            FrameKind::Stub if self.hide_runtime => Folded::Left,
            FrameKind::Runtime if self.hide_runtime && in_runtime => Folded::Left,
            FrameKind::Runtime if self.hide_runtime => Folded::Begins,
            _ => Folded::Shown,
        }
    }
}

/// The name of the frame that stands for a runtime's.
pub fn folded_name(module: &str) -> String {
    format!("[{module}]")
}

/// Leaves frames out of a symbolized profile. Samples whose whole stack goes have none then.
pub fn fold(profile: &mut Profile, runs: &mut Runs, options: FoldOptions) {
    if options.is_all() {
        return;
    }
    let titles = profile.images.iter().map(|image| folded_name(&image.name)).collect::<Vec<_>>();
    let titles = titles.iter().map(|title| profile.symbols.strings.intern(title)).collect();
    let mut folder = Folder::new(profile, titles);
    let mut tree = CallTree::default();
    let mut states: Vec<State> = Vec::with_capacity(profile.tree.nodes().len());
    for node in profile.tree.nodes() {
        // A parent comes before its children.
        let above = node.parent.map_or(State::default(), |parent| states[parent.0 as usize]);
        let frame = match options.of(profile.kind(node.frame), above.in_runtime) {
            Folded::Left => None,
            Folded::Shown => Some((folder.frame(node.frame), false)),
            Folded::Begins => Some((folder.stand_in(node.frame), true)),
        };
        states.push(frame.map_or(above, |(frame, in_runtime)| State {
            node: Some(tree.intern(Node { parent: above.node, frame })),
            in_runtime,
        }));
    }
    let Folder { frames, mut symbols, .. } = folder;
    symbols.strings = std::mem::take(&mut profile.symbols.strings);
    (profile.frames, profile.tree, profile.symbols) = (frames, tree, symbols);
    runs.map_nodes(states.into_iter().map(|state| state.node).collect());
}

/// A stack after folding.
#[derive(Clone, Copy, Default)]
struct State {
    node: Option<NodeId>,
    in_runtime: bool,
}

/// Takes over the frames that are left.
struct Folder<'p> {
    profile: &'p Profile,
    /// Names of the frames that stand for a runtime's, by image.
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

    /// The frame that stands for this one and those of its runtime that it calls. No code lies at the beginning of an image,
    /// so the place is its own.
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

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [FrameKind; 5] =
        [FrameKind::Native, FrameKind::Managed, FrameKind::Stub, FrameKind::Runtime, FrameKind::Unknown];

    #[test]
    fn each_choice_keeps_its_kinds() {
        let kept = |frames| {
            let options = FoldOptions { frames, hide_runtime: false };
            KINDS.map(|kind| options.of(kind, false) == Folded::Shown)
        };
        assert_eq!(kept(FrameChoice::All), [true; 5]);
        assert_eq!(kept(FrameChoice::Native), [true, false, false, true, true]);
        assert_eq!(kept(FrameChoice::Managed), [false, true, true, false, false]);
    }

    #[test]
    fn frames_of_a_runtime_that_follow_each_other_become_one() {
        let options = FoldOptions { frames: FrameChoice::All, hide_runtime: true };
        let stack = [
            FrameKind::Native,
            FrameKind::Runtime,
            FrameKind::Runtime,
            FrameKind::Managed,
            FrameKind::Stub,
            FrameKind::Runtime,
            FrameKind::Stub,
            FrameKind::Runtime,
            FrameKind::Native,
            FrameKind::Runtime,
        ];
        let mut in_runtime = false;
        let folded = stack.map(|kind| {
            let folded = options.of(kind, in_runtime);
            if folded != Folded::Left {
                in_runtime = folded == Folded::Begins;
            }
            folded
        });
        use Folded::{Begins, Left, Shown};
        assert_eq!(folded, [Shown, Begins, Left, Shown, Left, Begins, Left, Left, Shown, Begins]);
    }
}
