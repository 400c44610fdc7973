//! The text of a stack: numbers of its functions, the outermost first, separated by commas.

use super::super::json;
use super::super::stack_sums::WeighedStacks;
use super::super::unfold::StackOrigin;
use super::shared_frames::SharedFrames;
use stk_profile::profile::{FunctionId, NodeId, Profile};

/// Bytes of the texts of stacks that are kept.
const MOST_KEPT: usize = 16 << 20;

/// Texts of stacks above which nothing stands, made once for all profiles.
#[derive(Default)]
pub(super) struct KeptTexts {
    /// By stack, and once all are kept by node of the profile: where its text is; 0 = it is not
    /// kept.
    places: Vec<u32>,
    /// Texts, each behind its length in two bytes. The first byte belongs to none.
    texts: Vec<u8>,
}

impl KeptTexts {
    pub(super) fn of(stacks: &WeighedStacks) -> KeptTexts {
        KeptTexts { places: vec![0; stacks.len()], texts: vec![0] }
    }

    /// Keeps the text of a stack while there is room.
    pub(super) fn keep(&mut self, NodeId(stack): NodeId, text: &[u8]) {
        let Ok(len) = u16::try_from(text.len()) else { return };
        if self.texts.len() + text.len() <= MOST_KEPT {
            self.places[stack as usize] = self.texts.len() as u32;
            self.texts.extend_from_slice(&len.to_le_bytes());
            self.texts.extend_from_slice(text);
        }
    }

    /// All are kept: from now on they are found by the nodes of the profile.
    pub(super) fn close(&mut self, stacks: &WeighedStacks) {
        let place = |stack: &Option<NodeId>| stack.map_or(0, |NodeId(stack)| self.places[stack as usize]);
        self.places = stacks.of_nodes().iter().map(place).collect();
    }

    fn get(&self, NodeId(node): NodeId) -> Option<&[u8]> {
        let place = self.places.get(node as usize).filter(|place| **place > 0)?;
        let (len, text) = self.texts[*place as usize..].split_first_chunk()?;
        text.get(..usize::from(u16::from_le_bytes(*len)))
    }
}

/// The text of the last stack that is not among the [`KeptTexts`]. Kept, since the next one mostly begins alike.
#[derive(Default)]
pub(super) struct StackText {
    text: Vec<u8>,
    /// What stands above the functions.
    roots: [Option<FunctionId>; 2],
    /// Length of the text of these.
    roots_end: usize,
    /// The nodes from the root to the stack, each with the length of the text up to its end.
    path: Vec<(NodeId, usize)>,
    /// Nodes that are to be added, the last one first.
    missing: Vec<NodeId>,
}

impl StackText {
    /// The text of the stack of this origin.
    pub(super) fn of<'t>(
        &'t mut self,
        profile: &Profile,
        frames: &'t SharedFrames,
        origin: StackOrigin,
    ) -> &'t [u8] {
        let roots = frames.roots(origin);
        let kept = || frames.texts.get(origin.node?);
        if let Some(text) = kept().filter(|_| roots == [None, None]) {
            return text;
        }
        if roots != self.roots {
            self.roots = roots;
            self.path.clear();
            self.text.clear();
            roots.into_iter().flatten().for_each(|root| self.put(root));
            self.roots_end = self.text.len();
        }
        let nodes = profile.tree.nodes();
        let mut next = origin.node;
        let mut kept = 0;
        while let Some(node) = next {
            let depth = frames.depths[node.0 as usize] as usize;
            if self.path.get(depth).is_some_and(|(known, _)| *known == node) {
                kept = depth + 1;
                break;
            }
            self.missing.push(node);
            next = nodes[node.0 as usize].parent;
        }
        self.path.truncate(kept);
        self.text.truncate(self.path.last().map_or(self.roots_end, |(_, end)| *end));
        while let Some(node) = self.missing.pop() {
            for &function in frames.functions.of(nodes[node.0 as usize].frame) {
                self.put(function);
            }
            self.path.push((node, self.text.len()));
        }
        &self.text
    }

    fn put(&mut self, function: FunctionId) {
        if !self.text.is_empty() {
            self.text.push(b',');
        }
        json::number(&mut self.text, function.0.into());
    }
}
