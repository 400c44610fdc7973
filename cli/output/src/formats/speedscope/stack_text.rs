//! The text of a stack: numbers of its functions, the outermost first, separated by commas.

use super::super::json;
use super::super::unfold::StackOrigin;
use super::shared_frames::SharedFrames;
use stk_profile::profile::{FunctionId, NodeId, Profile};

/// The text of the last stack that has none in the shared frames. Kept, since the next one mostly
/// begins alike.
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
    pub(super) fn of(&mut self, profile: &Profile, frames: &SharedFrames, origin: StackOrigin) -> &[u8] {
        let roots = frames.roots(origin);
        if roots != self.roots {
            self.roots = roots;
            self.path.clear();
            self.text.clear();
            roots.into_iter().flatten().for_each(|root| self.put(root));
            self.roots_end = self.text.len();
        }
        let (nodes, chains) = (profile.tree.nodes(), profile.tree.chains());
        let depths = frames.depths(chains);
        let depth_of = |node: NodeId| {
            let chain = chains.of_node(node);
            (depths[chain.0 as usize] - 1 - (chains.last(chain).0 - node.0)) as usize
        };
        let mut next = origin.node;
        let mut kept = 0;
        while let Some(node) = next {
            let depth = depth_of(node);
            if self.path.get(depth).is_some_and(|(known, _)| *known == node) {
                kept = depth + 1;
                break;
            }
            self.missing.push(node);
            next = nodes[node.0 as usize].parent();
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
