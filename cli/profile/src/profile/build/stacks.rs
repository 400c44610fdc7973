//! Distinct stacks, known by a hash of 128 bits of their frames. A block lists its own, each as
//! what differs from one before; of a stack that is already known no frame is looked up.

use crate::profile::{CallTree, FrameId, FrameKey, FrameTable, Node, NodeId};
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};

/// The hash of a stack: of its frames, the outermost first. The halves have keys of their own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct StackHash([u64; 2]);

/// Makes hashes of stacks. Keyed at random, so that no trace can give two stacks one hash.
#[derive(Debug)]
pub(super) struct StackHasher {
    start: StackHash,
    keys: [u64; 2],
}

impl StackHasher {
    pub(super) fn new() -> StackHasher {
        let random = RandomState::new();
        let [first, second, third, fourth] = [0u8, 1, 2, 3].map(|n| random.hash_one(n));
        // Odd, so that a multiplication loses nothing.
        StackHasher { start: StackHash([first, second]), keys: [third | 1, fourth | 1] }
    }

    /// Of the stack of a call by the stack `caller`; `None`: of an outermost call.
    pub(super) fn call(&self, caller: Option<StackHash>, frame: FrameKey) -> StackHash {
        let (kind, at) = frame.place.numbers();
        let how = kind << 17 | u64::from(frame.exact) << 16 | u64::from(frame.trust as u8) << 1;
        let StackHash(caller) = caller.unwrap_or(self.start);
        let half = |i: usize| folded(caller[i] ^ at, self.keys[i] ^ how);
        StackHash([half(0), half(1)])
    }
}

/// Both halves of a product of 128 bits in one.
fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Index of a stack in [`BlockStacks`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BlockStackId(u32);

/// The distinct stacks of a block, in the order in which they were found.
#[derive(Default)]
pub(super) struct BlockStacks {
    frames: FrameTable,
    ids: HashMap<StackHash, BlockStackId>,
    stacks: Vec<NewStack>,
    /// Frames of all of them that are not shared with one before.
    new_frames: Vec<FrameId>,
}

/// A stack of a block, as what differs from the one of its slot that was found before.
struct NewStack {
    hash: StackHash,
    slot: u32,
    /// How many of the outermost frames are those of the one before.
    shared: u32,
    /// End of its other frames in the list of all.
    end: usize,
}

impl BlockStacks {
    /// The stack with this hash in a slot. If it is new, `others` gives its frames but the
    /// outermost `shared` ones, which are those of the slot's stack that was new last; the
    /// outermost first.
    pub(super) fn intern<F: Iterator<Item = FrameKey>>(
        &mut self,
        hash: StackHash,
        (slot, shared): (usize, usize),
        others: impl FnOnce() -> F,
    ) -> (BlockStackId, bool) {
        let entry = match self.ids.entry(hash) {
            Entry::Occupied(known) => return (*known.get(), false),
            Entry::Vacant(new) => new,
        };
        let id = *entry.insert(BlockStackId(self.stacks.len() as u32));
        let BlockStacks { frames, new_frames, .. } = self;
        new_frames.extend(others().map(|key| frames.intern(key)));
        let (slot, shared, end) = (slot as u32, shared as u32, new_frames.len());
        self.stacks.push(NewStack { hash, slot, shared, end });
        (id, true)
    }

    /// Forgets all stacks, but keeps their memory.
    pub(super) fn clear(&mut self) {
        self.frames.clear();
        self.ids.clear();
        self.stacks.clear();
        self.new_frames.clear();
    }

    /// Bytes that they take.
    pub(super) fn memory(&self) -> usize {
        self.frames.keys().len() * 2 * size_of::<FrameKey>()
            + self.stacks.len() * (size_of::<NewStack>() + 2 * size_of::<(StackHash, BlockStackId)>())
            + self.new_frames.len() * size_of::<FrameId>()
    }

    /// How many frames they list.
    pub(super) fn listed(&self) -> usize {
        self.new_frames.len()
    }
}

/// The distinct stacks of a trace, as a call tree.
#[derive(Default)]
pub(super) struct TraceStacks {
    pub(super) frames: FrameTable,
    pub(super) tree: CallTree,
    known: HashMap<StackHash, NodeId>,
}

/// What is merged of a block's stacks. Kept to reuse its memory.
#[derive(Default)]
pub(super) struct MergedStacks {
    /// By frame of the block.
    frames: Vec<Option<FrameId>>,
    /// By stack of the block, as far as they are merged.
    nodes: Vec<NodeId>,
    slots: Vec<MergedSlot>,
}

/// The latest stack of a slot.
#[derive(Default)]
struct MergedSlot {
    /// Frames of the block, the outermost first.
    frames: Vec<FrameId>,
    /// The nodes of the outermost ones, as far as they are known.
    nodes: Vec<NodeId>,
}

impl MergedStacks {
    /// Forgets the block before.
    pub(super) fn begin(&mut self, block: &BlockStacks) {
        self.frames.clear();
        self.frames.resize(block.frames.keys().len(), None);
        self.nodes.clear();
        for slot in &mut self.slots {
            slot.frames.clear();
            slot.nodes.clear();
        }
    }
}

impl TraceStacks {
    /// The node of a stack of a block. Stacks that the block found before are merged first.
    pub(super) fn node(
        &mut self,
        block: &BlockStacks,
        merged: &mut MergedStacks,
        BlockStackId(id): BlockStackId,
    ) -> NodeId {
        for at in merged.nodes.len()..=id as usize {
            let NewStack { hash, slot, shared, end } = block.stacks[at];
            let first = at.checked_sub(1).map_or(0, |before| block.stacks[before].end);
            let slot = slot as usize;
            if merged.slots.len() <= slot {
                merged.slots.resize_with(slot + 1, MergedSlot::default);
            }
            merged.slots[slot].change(shared as usize, &block.new_frames[first..end]);
            let node = match self.known.get(&hash) {
                Some(node) => *node,
                None => {
                    let node = self.add(block, &mut merged.frames, &mut merged.slots[slot]);
                    self.known.insert(hash, node);
                    node
                }
            };
            merged.nodes.push(node);
        }
        merged.nodes[id as usize]
    }

    /// Adds the latest stack of a slot.
    fn add(&mut self, block: &BlockStacks, frames: &mut [Option<FrameId>], slot: &mut MergedSlot) -> NodeId {
        let TraceStacks { frames: all, tree, .. } = self;
        let mut parent = slot.nodes.last().copied();
        for FrameId(frame) in &slot.frames[slot.nodes.len()..] {
            let at = *frame as usize;
            let frame = *frames[at].get_or_insert_with(|| all.intern(block.frames.keys()[at]));
            let node = tree.intern(Node { parent, frame });
            slot.nodes.push(node);
            parent = Some(node);
        }
        // No stack is without frames.
        parent.unwrap_or(NodeId(0))
    }
}

impl MergedSlot {
    /// Keeps the outermost `shared` frames and adds these.
    fn change(&mut self, shared: usize, others: &[FrameId]) {
        self.frames.truncate(shared);
        self.frames.extend_from_slice(others);
        self.nodes.truncate(shared);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Placement;
    use stk_base::model::ImageId;
    use stk_unwind::Trust;

    fn frame(rva: u32) -> FrameKey {
        FrameKey { place: Placement::Image(ImageId(0), rva), exact: false, trust: Trust::UnwindInfo }
    }

    fn hash(hasher: &StackHasher, frames: &[FrameKey]) -> StackHash {
        frames.iter().fold(None, |caller, &frame| Some(hasher.call(caller, frame))).expect("a frame")
    }

    #[test]
    fn other_frames_or_another_order_give_another_hash() {
        let hasher = StackHasher::new();
        let of = |frames: &[FrameKey]| hash(&hasher, frames);
        let (a, b) = (frame(1), frame(2));
        let others = [
            vec![b, a],
            vec![a],
            vec![a, b, b],
            vec![a, FrameKey { exact: true, ..b }],
            vec![a, FrameKey { trust: Trust::Scan, ..b }],
            vec![a, FrameKey { place: Placement::Code(0, 2), ..b }],
            vec![a, FrameKey { place: Placement::Unknown(2), ..b }],
            vec![a, FrameKey { place: Placement::Image(ImageId(1), 2), ..b }],
        ];
        for other in &others {
            assert_ne!(of(other), of(&[a, b]), "{other:?}");
        }
        assert_eq!(of(&[a, b]), of(&[a, b]));
        assert_ne!(of(&[a, b]), hash(&StackHasher::new(), &[a, b]), "keyed at random");
    }

    /// Interns stacks, each in a slot, as a block does. Gives their ids.
    fn interned(hasher: &StackHasher, stacks: &[(usize, &[u32])]) -> (BlockStacks, Vec<BlockStackId>) {
        let mut block = BlockStacks::default();
        // By slot, the stack that was new last.
        let mut latest: Vec<Vec<u32>> = vec![Vec::new(); 2];
        let mut ids = Vec::new();
        for &(slot, stack) in stacks {
            let shared = latest[slot].iter().zip(stack).take_while(|(old, new)| old == new).count();
            let frames: Vec<FrameKey> = stack.iter().map(|&rva| frame(rva)).collect();
            let others = || frames[shared..].iter().copied();
            let (id, is_new) = block.intern(hash(hasher, &frames), (slot, shared), others);
            if is_new {
                latest[slot] = stack.to_vec();
            }
            ids.push(id);
        }
        (block, ids)
    }

    #[test]
    fn stacks_of_blocks_are_merged_to_one_tree() {
        let hasher = StackHasher::new();
        let stacks: [(usize, &[u32]); 6] =
            [(0, &[1, 2, 3]), (1, &[1, 2]), (0, &[1, 2]), (0, &[1, 2, 4, 5]), (1, &[1, 2, 3]), (1, &[9])];
        let mut all = TraceStacks::default();
        let mut merged = MergedStacks::default();
        // The second block has the same stacks in another order, so that its ids are others.
        for order in [[0, 1, 2, 3, 4, 5], [5, 3, 1, 0, 4, 2]] {
            let of_block = order.map(|at| stacks[at]);
            let (block, ids) = interned(&hasher, &of_block);
            assert_eq!(block.stacks.len(), 4, "equal stacks have one id");
            merged.begin(&block);
            for ((_, stack), id) in of_block.iter().zip(ids) {
                let node = all.node(&block, &mut merged, id);
                let mut frames: Vec<FrameKey> =
                    all.tree.frames(node).map(|frame| all.frames.keys()[frame.0 as usize]).collect();
                frames.reverse();
                let wanted: Vec<FrameKey> = stack.iter().map(|&rva| frame(rva)).collect();
                assert_eq!(frames, wanted);
            }
        }
        // 1, 1/2, 1/2/3, 1/2/4, 1/2/4/5, 9.
        assert_eq!((all.tree.nodes().len(), all.frames.keys().len()), (6, 6));
    }
}
