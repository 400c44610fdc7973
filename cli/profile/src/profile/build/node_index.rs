//! Finds the nodes of a call tree by a hash of the stack that each is.

use crate::profile::{NodeId, TreeNode};
use std::hint::black_box;

/// Where nodes are in a list of nodes. What is found is compared with the node, so that any hash
/// gives the right one; a hash that a trace cannot foresee gives it soon.
#[derive(Default)]
pub(super) struct NodeIndex {
    /// By the highest bits of a node's hash, or behind that place as far as others are in it. Less
    /// than three quarters are taken.
    places: Vec<Place>,
    taken: usize,
}

#[derive(Clone, Copy)]
struct Place {
    hash: u32,
    /// [`FREE`], or a node.
    node: u32,
}

const FREE: Place = Place { hash: 0, node: u32::MAX };
/// Places at first. A power of two, as any number of places.
const FIRST: usize = 1 << 10;

impl NodeIndex {
    /// Makes room for nodes of these hashes, and reads where they would be: the processor waits for
    /// the memory of all of them at once.
    pub(super) fn expect(&mut self, hashes: impl ExactSizeIterator<Item = u32>) {
        while (self.taken + hashes.len()) * 4 >= self.places.len() * 3 {
            self.grow();
        }
        let shift = self.shift();
        let read = hashes.fold(0, |sum, hash| sum ^ self.places[(hash >> shift) as usize].node);
        black_box(read);
    }

    /// The number of a node in `nodes`, to which it is added if it is new. It was expected.
    pub(super) fn intern(&mut self, hash: u32, nodes: &mut Vec<TreeNode>, node: TreeNode) -> NodeId {
        let mut at = (hash >> self.shift()) as usize;
        loop {
            let place = &mut self.places[at];
            if place.node == FREE.node {
                let id = nodes.len() as u32;
                *place = Place { hash, node: id };
                self.taken += 1;
                nodes.push(node);
                return NodeId(id);
            }
            if place.hash == hash && nodes[place.node as usize] == node {
                return NodeId(place.node);
            }
            at = (at + 1) & (self.places.len() - 1);
        }
    }

    /// By how many bits a hash is more than the number of a place.
    fn shift(&self) -> u32 {
        u32::BITS - self.places.len().trailing_zeros()
    }

    fn grow(&mut self) {
        let size = (2 * self.places.len()).max(FIRST);
        let before = std::mem::replace(&mut self.places, vec![FREE; size]);
        let shift = self.shift();
        for place in before.into_iter().filter(|place| place.node != FREE.node) {
            let mut at = (place.hash >> shift) as usize;
            while self.places[at].node != FREE.node {
                at = (at + 1) & (size - 1);
            }
            self.places[at] = place;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{FrameId, Node};
    use std::collections::HashMap;
    use stk_tests::synth::Random;

    /// Interns nodes with hashes of `bits` bits, beside a map.
    fn interns_as_a_map_does(bits: u32) {
        let mut random = Random::new(u64::from(bits));
        let (mut index, mut nodes) = (NodeIndex::default(), Vec::new());
        let mut known: HashMap<(Option<NodeId>, FrameId), NodeId> = HashMap::new();
        for _ in 0..400 {
            let mut parent = None;
            let frames: Vec<FrameId> =
                (0..random.below(20)).map(|_| FrameId(random.below(3) as u32)).collect();
            let hash_of = |frame: &FrameId| frame.0.wrapping_mul(0x9E37_79B9) >> (32 - bits) << (32 - bits);
            index.expect(frames.iter().map(hash_of));
            for frame in frames {
                let id = index.intern(hash_of(&frame), &mut nodes, Node { parent, frame }.into());
                assert_eq!(*known.entry((parent, frame)).or_insert(id), id);
                parent = Some(id);
            }
        }
        assert_eq!(nodes.len(), known.len());
        assert!(nodes.len() > FIRST, "it grew");
    }

    #[test]
    fn nodes_of_equal_hashes_are_told_apart() {
        interns_as_a_map_does(1);
        interns_as_a_map_does(31);
    }
}
