//! Copies the frames that remain when others are left out of a profile.

use super::{
    FrameFacts, FrameId, FrameKey, FrameSymbols, FrameTable, NameSource, NamedFrame, Profile, StrId,
};

/// The frames that remain, with their names and facts, under new ids in the order of their first
/// use.
pub(super) struct FrameCopy<'p> {
    profile: &'p Profile,
    frames: FrameTable,
    symbols: FrameSymbols,
    /// New ids by old ones.
    known: Vec<Option<FrameId>>,
}

impl<'p> FrameCopy<'p> {
    /// For a symbolized profile.
    pub(super) fn new(profile: &'p Profile) -> FrameCopy<'p> {
        FrameCopy {
            profile,
            frames: FrameTable::default(),
            symbols: FrameSymbols { starts: vec![0], ..FrameSymbols::default() },
            known: vec![None; profile.frames.keys().len()],
        }
    }

    /// The frame as it was.
    pub(super) fn frame(&mut self, old: FrameId) -> FrameId {
        self.frame_with(old, |_| true)
    }

    /// The frame with those of its names, innermost first, whose index `is_kept` takes. It has to
    /// take the same ones at each call for a frame.
    pub(super) fn frame_with(&mut self, old: FrameId, is_kept: impl Fn(usize) -> bool) -> FrameId {
        let at = old.0 as usize;
        if let Some(known) = self.known[at] {
            return known;
        }
        let key = self.profile.frames.keys()[at];
        let mut id = self.frames.intern(key);
        if (id.0 as usize) < self.symbols.source.len() {
            // One of the two is a part of the other: see `part`.
            id = self.frames.push(key);
        }
        self.describe(id, old, is_kept);
        self.known[at] = Some(id);
        id
    }

    /// A second frame at the place of an old one, with fewer names.
    pub(super) fn part(&mut self, old: FrameId, is_kept: impl Fn(usize) -> bool) -> FrameId {
        let id = self.frames.push(self.profile.frames.keys()[old.0 as usize]);
        self.describe(id, old, is_kept);
        id
    }

    /// A frame that stands for others, new or known.
    pub(super) fn placeholder(&mut self, key: FrameKey, function: StrId, facts: FrameFacts) -> FrameId {
        let id = self.frames.intern(key);
        if id.0 as usize == self.symbols.source.len() {
            self.symbols.named.push(NamedFrame { function, file: None, line: None, inline: false });
            self.end(NameSource::Runtime, None, facts);
        }
        id
    }

    /// The frames, and their names. The texts are still those of the profile.
    pub(super) fn finish(self) -> (FrameTable, FrameSymbols) {
        (self.frames, self.symbols)
    }

    fn describe(&mut self, id: FrameId, old: FrameId, is_kept: impl Fn(usize) -> bool) {
        let at = old.0 as usize;
        let from = &self.profile.symbols;
        let names = from.names(old);
        let kept = names.iter().enumerate().filter(|&(i, _)| is_kept(i)).map(|(_, name)| *name);
        self.symbols.named.extend(kept);
        // Aliases are further names of the outermost function.
        if let Some(aliases) = from.aliases.get(&old).filter(|_| is_kept(names.len().saturating_sub(1))) {
            self.symbols.aliases.insert(id, aliases.clone());
        }
        let facts =
            FrameFacts { kind: self.profile.kind(old), ..from.facts.get(at).copied().unwrap_or_default() };
        self.end(from.source[at], from.reason[at], facts);
    }

    fn end(&mut self, source: NameSource, reason: Option<StrId>, facts: FrameFacts) {
        self.symbols.source.push(source);
        self.symbols.reason.push(reason);
        self.symbols.facts.push(facts);
        self.symbols.starts.push(self.symbols.named.len() as u32);
    }
}
