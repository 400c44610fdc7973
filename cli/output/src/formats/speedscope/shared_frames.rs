//! The frames that all profiles share.

use super::super::stack_sums::WeighedChains;
use super::super::unfold::{StackOrigin, incomplete, wait_root};
use super::kept_texts::KeptTexts;
use std::sync::OnceLock;
use stk_profile::profile::{Chains, FunctionId, Functions, Profile, Wait, Weight};

/// The shared frames, and the means to make stacks of them.
pub(super) struct SharedFrames {
    pub(super) functions: Functions,
    /// By stop: the frame that shows why a stack is incomplete; `None` = it is complete.
    pub(super) stops: Vec<Option<FunctionId>>,
    /// By wait: the root of a stack that waits; empty if no profile counts waits.
    pub(super) waits: Vec<FunctionId>,
    /// The names of these, which follow those of the functions.
    pub(super) roots: Vec<String>,
    /// How many frames the deepest stack has.
    pub(super) deepest: usize,
    /// The chains of the profile, for the sums.
    pub(super) chains: Option<WeighedChains>,
    /// By chain: how many frames the stack has that it ends with. Counted when a stack has no text
    /// that is kept.
    depths: OnceLock<Vec<u32>>,
    /// Texts that the sum of all threads has made.
    pub(super) texts: KeptTexts,
}

impl SharedFrames {
    pub(super) fn new(profile: &Profile, by_line: bool, weights: &[Weight]) -> SharedFrames {
        let (functions, chains) =
            rayon::join(|| Functions::new(profile, by_line), || WeighedChains::new(&profile.tree));
        let mut roots = Vec::new();
        let mut root = |name: String| {
            roots.push(name);
            FunctionId((functions.list().len() + roots.len() - 1) as u32)
        };
        let stops = profile.stops.iter().map(|stop| incomplete(stop).map(&mut root)).collect();
        let waits = if weights.contains(&Weight::Waiting) { Wait::all() } else { Vec::new() };
        let waits = waits.into_iter().map(|wait| root(wait_root(wait))).collect();
        let (deepest, chains) = (chains.deepest(), Some(chains));
        let (depths, texts) = (OnceLock::new(), KeptTexts::default());
        SharedFrames { functions, stops, waits, roots, deepest, chains, depths, texts }
    }

    /// The text of the stack of this origin, if it is kept.
    pub(super) fn kept(&self, chains: &Chains, origin: StackOrigin) -> Option<&[u8]> {
        let has_roots = self.roots(origin) != [None, None];
        origin.node.filter(|_| !has_roots).and_then(|node| self.texts.get(chains.of_node(node)))
    }

    /// By chain of the profile: how many frames the stack has that it ends with.
    pub(super) fn depths(&self, chains: &Chains) -> &[u32] {
        self.depths.get_or_init(|| chains.depths())
    }

    /// What stands above the functions of a stack, outermost first.
    pub(super) fn roots(&self, origin: StackOrigin) -> [Option<FunctionId>; 2] {
        let wait = origin.wait.and_then(|wait| self.waits.get(usize::from(wait.number())).copied());
        [wait, origin.stop.and_then(|stop| self.stops[stop.0 as usize])]
    }
}
