//! Weights by part, line and instruction: each stack of frames becomes one of groups, and the one
//! sum over stacks gives the own and the total amount of each group.

use super::subject::CodeSubject;
use crate::stats::Amount;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use stk_profile::profile::{
    FrameId, FunctionId, FunctionTree, Functions, NamedFrame, OwnTotal, Profile, Sums,
};
use stk_profile::stack::Interner;

/// The amounts of stacks, and what they are shared out among.
pub(super) struct PartSums<'a> {
    pub profile: &'a Profile,
    functions: &'a Functions,
    /// By chain of the call tree.
    stacks: &'a [Amount],
    /// By function: the part that it is in.
    parts: HashMap<FunctionId, usize>,
}

/// A function of a frame: the part that it is in, the frame, and the frame's name for it.
pub(super) type PartOfFrame<'n> = (Option<usize>, FrameId, Option<&'n NamedFrame>);

/// The group of everything that is in no part.
const OTHER: u32 = 0;

impl<'a> PartSums<'a> {
    pub(super) fn new(
        profile: &'a Profile,
        functions: &'a Functions,
        stacks: &'a [Amount],
        parts: &[CodeSubject],
    ) -> PartSums<'a> {
        let parts = parts.iter().enumerate();
        let parts = parts.flat_map(|(at, part)| part.functions.iter().map(move |&function| (function, at)));
        PartSums { profile, functions, stacks, parts: parts.collect() }
    }

    /// By part: its sums; those that have none are left out.
    pub(super) fn of_parts(&self) -> BTreeMap<usize, OwnTotal<Amount>> {
        self.by(|part, _, _| part).into_iter().collect()
    }

    /// By part and line.
    pub(super) fn of_lines(&self) -> HashMap<usize, BTreeMap<Option<u32>, OwnTotal<Amount>>> {
        let mut lines: HashMap<usize, BTreeMap<_, _>> = HashMap::new();
        for ((part, line), sum) in self.by(|part, _, name| (part, name.and_then(|name| name.line))) {
            lines.entry(part).or_default().insert(line, sum);
        }
        lines
    }

    /// The sums of the groups that `group` makes of a part, a frame in it and the frame's name for
    /// it. What is in no part is left out, and so are groups without samples.
    pub(super) fn by<G: Eq + Hash + Clone>(
        &self,
        group: impl Fn(usize, FrameId, Option<&NamedFrame>) -> G,
    ) -> Vec<(G, OwnTotal<Amount>)> {
        let mut groups: Interner<Option<G>> = Interner::default();
        groups.intern(None);
        let mut of_frames: Vec<Vec<u32>> = Vec::with_capacity(self.profile.frames.keys().len());
        self.each_frame(|found| {
            let of_frame = found.iter().map(|&(part, frame, name)| {
                part.map_or(OTHER, |part| groups.intern(Some(group(part, frame, name))))
            });
            of_frames.push(of_frame.collect());
        });
        let of = |frame: FrameId| of_frames[frame.0 as usize].iter().copied();
        let folded = FunctionTree::fold(&self.profile.tree, |_| true, of, |group| group == OTHER);
        let mut sums = Sums::default();
        let chains = self.profile.tree.chains();
        for ((chain, _), &amount) in chains.iter().zip(self.stacks) {
            let stack = folded.stacks[chains.last(chain).0 as usize];
            if let Some(stack) = stack.filter(|_| amount != Amount::default()) {
                sums.add(&folded.tree, stack, amount);
            }
        }
        let taken = sums.take(&folded.tree).into_iter();
        taken.filter_map(|(id, sum)| Some((groups.values[id as usize].clone()?, sum))).collect()
    }

    /// Gives the functions of each frame, outermost first: the part of each, if it is in one, and
    /// the frame's name for it.
    pub(super) fn each_frame(&self, mut visit: impl FnMut(&[PartOfFrame<'_>])) {
        let mut found = Vec::new();
        for frame in (0..self.profile.frames.keys().len() as u32).map(FrameId) {
            let of_frame = self.functions.of(frame);
            // Names are innermost first, functions outermost first.
            let names = self.profile.symbols.names(frame);
            found.clear();
            found.extend(of_frame.iter().enumerate().map(|(inner, function)| {
                (self.parts.get(function).copied(), frame, names.get(of_frame.len() - 1 - inner))
            }));
            visit(&found);
        }
    }
}
