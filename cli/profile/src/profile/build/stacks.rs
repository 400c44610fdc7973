//! Distinct stacks, known by a hash of 128 bits of their frames. A worker numbers those of all its
//! blocks. A block lists the ones that are new to its worker, each as what differs from the
//! thread's stack before. The nodes of the trace's call tree are found by a hash that comes with
//! each frame, so that the places in memory of all nodes of a stack are known at once.

use crate::profile::{CallTree, FrameId, FrameKey, FrameTable, Node, NodeId, TreeNode};
use crate::stack::{HashIndex, ThingHash, load_ahead, random_numbers};

/// The hash of a stack: of its frames, the outermost first. The halves have keys of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StackHash([u64; 2]);

/// What a table holds of a [`StackHash`]: 96 bits, in which no two of 2^32 stacks are the same by
/// chance.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct StackKey([u32; 3]);

impl StackHash {
    fn key(self) -> StackKey {
        let StackHash([first, second]) = self;
        StackKey([first as u32, (first >> 32) as u32, second as u32])
    }

    /// For the trace's tree: other bits than a worker's tables place stacks by.
    fn of_node(self) -> u32 {
        (self.0[1] >> 32) as u32
    }
}

impl ThingHash for StackKey {
    fn bits(self) -> u32 {
        self.0[0]
    }
}

/// Makes hashes of stacks. Keyed at random, so that no trace can give two stacks one hash.
#[derive(Debug)]
pub(super) struct StackHasher {
    start: StackHash,
    keys: [u64; 2],
}

impl StackHasher {
    pub(super) fn new() -> StackHasher {
        let [first, second, third, fourth] = random_numbers();
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

/// Index of a stack in [`WorkerStacks`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct WorkerStackId(u32);

/// The distinct stacks that a worker has found, in all its blocks.
pub(super) struct WorkerStacks {
    table: StackTable,
    frames: FrameTable,
    ids: HashIndex<StackKey>,
    /// How many there are.
    known: u32,
    /// By stack, a bit each: whether the block that is being read has it.
    in_block: Vec<u64>,
    /// What the stacks of this block take, in bytes: at most, for it counts each frame of a list as
    /// one that the block has nowhere else.
    most_memory: usize,
    /// Frames of the worker's blocks before this one.
    frames_before: usize,
    new: NewStacks,
    /// Of the stack that is listed. Kept to reuse its memory.
    keys: Vec<FrameKey>,
}

/// Which [`WorkerStacks`] ids are of. A worker that forgets its stacks continues with another
/// number.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct StackTable {
    pub(super) worker: u32,
    pub(super) number: u32,
}

/// The stacks of a block that its worker did not know, in the order in which they were found.
#[derive(Default)]
pub(super) struct NewStacks {
    table: StackTable,
    /// The frames that the worker did not know.
    frames: Vec<FrameKey>,
    stacks: Vec<NewStack>,
    /// Frames of all of them that are not shared with one before.
    listed: Vec<ListedFrame>,
}

/// A frame of a new stack.
#[derive(Clone, Copy)]
struct ListedFrame {
    frame: FrameId,
    /// Of the stack that ends with it: see [`StackHash::of_node`].
    hash: u32,
}

/// A new stack, as what differs from another one of its worker.
struct NewStack {
    /// A stack known before, whose outermost frames it has; `None`: all frames are listed.
    base: Option<WorkerStackId>,
    /// How many of the base's innermost frames it does not have.
    left: u32,
    /// End of its other frames in the list of all.
    end: u32,
}

/// A stack of a thread, which its next stack mostly begins with.
#[derive(Clone, Copy, Debug)]
pub(super) struct BaseStack {
    pub(super) id: WorkerStackId,
    /// Number of its frames.
    pub(super) len: usize,
}

/// Bytes of a distinct frame, a distinct stack, and a frame in the list of a stack.
const FRAME: usize = 2 * size_of::<FrameKey>();
const STACK: usize = size_of::<NewStack>() + 2 * size_of::<(StackKey, WorkerStackId)>();
const LISTED: usize = size_of::<ListedFrame>();
/// Distinct stacks and frames that a worker keeps for its next block, at most: 16 MiB together.
const MOST_KEPT: usize = 1 << 18;
/// How many stacks before it is merged what a stack needs is loaded, and of how many frames.
const AHEAD: usize = 2;
const LOADED: usize = 16;

impl WorkerStacks {
    /// Those of a new worker with this number.
    pub(super) fn new(table: StackTable) -> WorkerStacks {
        WorkerStacks {
            table,
            frames: FrameTable::default(),
            ids: HashIndex::default(),
            known: 0,
            in_block: Vec::new(),
            most_memory: 0,
            frames_before: 0,
            new: NewStacks { table, ..NewStacks::default() },
            keys: Vec::new(),
        }
    }

    /// Whether none are known, so that [`memory`](Self::memory) is exact.
    pub(super) fn is_empty(&self) -> bool {
        self.known == 0 && self.frames.keys().is_empty()
    }

    /// Whether it holds more than is kept for another block.
    pub(super) fn is_large(&self) -> bool {
        self.known as usize > MOST_KEPT || self.frames.keys().len() > MOST_KEPT
    }

    /// Forgets all stacks. From now on ids are those of a table of this number.
    pub(super) fn clear(&mut self, number: u32) {
        *self = WorkerStacks::new(StackTable { number, ..self.table });
    }

    /// Begins a block.
    pub(super) fn begin(&mut self) {
        self.in_block.fill(0);
        self.most_memory = 0;
    }

    /// Prepares to intern a stack with this hash.
    pub(super) fn expect(&mut self, hash: StackHash) {
        self.ids.expect([hash.key()].into_iter());
    }

    /// The stack with these hashes, one for each frame, of which the outermost `shared` are those
    /// of the base. `frames` gives the others, the outermost first. `None`: it has no frames. The
    /// last hash was expected.
    pub(super) fn intern(
        &mut self,
        hashes: &[StackHash],
        (base, shared): (Option<BaseStack>, usize),
        frames: impl Iterator<Item = FrameKey>,
    ) -> Option<WorkerStackId> {
        let id = self.ids.find_or_add(hashes.last()?.key(), self.known, |_| true);
        let (group, bit) = (id as usize / 64, 1 << (id % 64));
        self.in_block.resize(self.in_block.len().max(group + 1), 0);
        if self.in_block[group] & bit != 0 {
            return Some(WorkerStackId(id));
        }
        self.in_block[group] |= bit;
        self.most_memory += STACK + (hashes.len() - shared) * (FRAME + LISTED);
        if id < self.known {
            return Some(WorkerStackId(id));
        }
        self.known += 1;
        let WorkerStacks { frames: table, new, keys, .. } = self;
        keys.clear();
        keys.extend(frames);
        let listed = |(frame, hash): (FrameId, &StackHash)| ListedFrame { frame, hash: hash.of_node() };
        new.listed.extend(table.intern_all(keys).zip(&hashes[shared..]).map(listed));
        let left = base.map_or(0, |base| (base.len - shared) as u32);
        new.stacks.push(NewStack { base: base.map(|base| base.id), left, end: new.listed.len() as u32 });
        Some(WorkerStackId(id))
    }

    /// Bytes that the stacks of the block take. `is_exact`: none were known when it began;
    /// otherwise, at most.
    pub(super) fn memory(&self, is_exact: bool) -> usize {
        if is_exact {
            self.frames.keys().len() * FRAME + self.new.stacks.len() * STACK + self.new.listed.len() * LISTED
        } else {
            self.most_memory
        }
    }

    /// Ends the block: the stacks and frames that it added.
    pub(super) fn end(&mut self) -> NewStacks {
        let mut new =
            std::mem::replace(&mut self.new, NewStacks { table: self.table, ..NewStacks::default() });
        new.frames.extend_from_slice(&self.frames.keys()[self.frames_before..]);
        self.frames_before = self.frames.keys().len();
        new
    }
}

/// The distinct stacks of a trace, as the nodes of a call tree.
#[derive(Default)]
pub(super) struct TraceStacks {
    pub(super) frames: FrameTable,
    /// The first callee of a node that was found is the node behind it: mostly it has no other.
    pub(super) nodes: Vec<TreeNode>,
    /// Of the other callees.
    index: HashIndex,
    /// By worker.
    workers: Vec<MergedTable>,
    /// How many of the new stacks of the block that was begun last are merged.
    merged: usize,
}

/// What is merged of a worker's table.
#[derive(Default)]
struct MergedTable {
    number: u32,
    /// By frame of the worker.
    keys: Vec<FrameKey>,
    frames: Vec<Option<FrameId>>,
    /// By stack of the worker, as far as they are merged.
    nodes: Vec<NodeId>,
}

impl TraceStacks {
    /// Begins a block with these new stacks. The blocks of a worker come in the order in which it
    /// read them.
    pub(super) fn begin(&mut self, new: &NewStacks) {
        self.merged = 0;
        let NewStacks { table, frames, .. } = new;
        let worker = table.worker as usize;
        if self.workers.len() <= worker {
            self.workers.resize_with(worker + 1, MergedTable::default);
        }
        let worker = &mut self.workers[worker];
        if worker.number != table.number {
            *worker = MergedTable { number: table.number, ..MergedTable::default() };
        }
        worker.keys.extend_from_slice(frames);
        worker.frames.resize(worker.keys.len(), None);
    }

    /// The node of a stack of a block. Stacks that the block found before are merged first.
    pub(super) fn node(&mut self, new: &NewStacks, WorkerStackId(id): WorkerStackId) -> NodeId {
        let worker = new.table.worker as usize;
        loop {
            if let Some(node) = self.workers[worker].nodes.get(id as usize) {
                return *node;
            }
            self.merge_next(new);
        }
    }

    /// Ends a block: merges the stacks that no sample of it has.
    pub(super) fn end(&mut self, new: &NewStacks) {
        while self.merged < new.stacks.len() {
            self.merge_next(new);
        }
    }

    /// Merges the block's next stack.
    fn merge_next(&mut self, new: &NewStacks) {
        let NewStack { base, left, end } = new.stacks[self.merged];
        let first = self.merged.checked_sub(1).map_or(0, |before| new.stacks[before].end);
        self.load_ahead(new, self.merged + AHEAD);
        self.merged += 1;
        let TraceStacks { frames: all, nodes: tree, index, workers, .. } = self;
        let MergedTable { keys, frames, nodes, .. } = &mut workers[new.table.worker as usize];
        let listed = &new.listed[first as usize..end as usize];
        index.reserve(1);
        let mut parent = base.map(|WorkerStackId(base)| nodes[base as usize]);
        for _ in 0..left {
            parent = parent.and_then(|NodeId(node)| tree[node as usize].parent());
        }
        for &ListedFrame { frame: FrameId(frame), hash } in listed {
            let at = frame as usize;
            let frame = *frames[at].get_or_insert_with(|| all.intern(keys[at]));
            let (node, next) = (TreeNode::from(Node { parent, frame }), tree.len() as u32);
            let first = parent.map_or(0, |NodeId(caller)| caller + 1);
            let id = if first == next || tree[first as usize] == node {
                first
            } else {
                index.find_or_add(hash, next, |id| tree[id as usize] == node)
            };
            if id == next {
                tree.push(node);
            }
            parent = Some(NodeId(id));
        }
        // No stack is without frames.
        nodes.push(parent.unwrap_or(NodeId(0)));
    }

    /// Has the processor load what the merge of one of a block's stacks reads.
    fn load_ahead(&self, new: &NewStacks, at: usize) {
        let Some(NewStack { base, end, .. }) = new.stacks.get(at) else { return };
        let nodes = &self.workers[new.table.worker as usize].nodes;
        let base = base.and_then(|WorkerStackId(base)| nodes.get(base as usize));
        base.into_iter().for_each(|NodeId(node)| load_ahead(&self.nodes[*node as usize]));
        let listed = &new.listed[new.stacks[at - 1].end as usize..*end as usize];
        listed.iter().take(LOADED).for_each(|listed| self.index.load_ahead(listed.hash));
    }

    /// The frames and the tree.
    pub(super) fn finish(self) -> (FrameTable, CallTree) {
        (self.frames, CallTree::of_settled(self.nodes))
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

    /// Interns the stacks of a block, each in a slot, as a block does. Gives their ids.
    fn interned(
        worker: &mut WorkerStacks,
        hasher: &StackHasher,
        stacks: &[(usize, &[u32])],
    ) -> (NewStacks, Vec<WorkerStackId>) {
        worker.begin();
        // By slot: its stack before.
        let mut latest: Vec<(Vec<u32>, Option<BaseStack>)> = vec![Default::default(); 2];
        let mut ids = Vec::new();
        for &(slot, stack) in stacks {
            let (before, base) = &mut latest[slot];
            let shared = before.iter().zip(stack).take_while(|(old, new)| old == new).count();
            let keys: Vec<FrameKey> = stack.iter().map(|&rva| frame(rva)).collect();
            let hashes: Vec<StackHash> = (1..=keys.len()).map(|len| hash(hasher, &keys[..len])).collect();
            worker.expect(*hashes.last().unwrap());
            let id = worker.intern(&hashes, (*base, shared), keys[shared..].iter().copied()).unwrap();
            *base = Some(BaseStack { id, len: stack.len() });
            *before = stack.to_vec();
            ids.push(id);
        }
        (worker.end(), ids)
    }

    #[test]
    fn stacks_of_blocks_and_workers_are_merged_to_one_tree() {
        let hasher = StackHasher::new();
        let stacks: [(usize, &[u32]); 7] = [
            (0, &[1, 2, 3]),
            (1, &[1, 2]),
            (0, &[1, 2]),
            (0, &[1, 2, 4, 5]),
            (1, &[1, 2, 3]),
            (1, &[9]),
            (1, &[1, 2, 4]),
        ];
        let mut workers: Vec<WorkerStacks> =
            (0..2).map(|worker| WorkerStacks::new(StackTable { worker, number: 7 + worker })).collect();
        let mut all = TraceStacks::default();
        // Each block has some of the stacks, in an order of its own: the workers' ids differ, and
        // each knows some that the other does not.
        let blocks: [(usize, &[usize]); 5] =
            [(0, &[0, 1, 2]), (1, &[3, 6, 5, 1, 0]), (0, &[5, 4, 0, 3, 4]), (1, &[4, 3]), (0, &[6, 6, 3])];
        let mut found: Vec<(&[u32], NodeId)> = Vec::new();
        for (round, (worker, order)) in blocks.into_iter().enumerate() {
            let of_block: Vec<(usize, &[u32])> = order.iter().map(|&at| stacks[at]).collect();
            if round == 3 {
                workers[worker].clear(20);
            }
            let (new, ids) = interned(&mut workers[worker], &hasher, &of_block);
            all.begin(&new);
            found.extend(of_block.iter().zip(ids).map(|((_, stack), id)| (*stack, all.node(&new, id))));
            all.end(&new);
        }
        let (all_frames, tree) = all.finish();
        for (stack, node) in found {
            let mut frames: Vec<FrameKey> =
                tree.frames(node).map(|frame| all_frames.keys()[frame.0 as usize]).collect();
            frames.reverse();
            assert_eq!(frames, stack.iter().map(|&rva| frame(rva)).collect::<Vec<_>>());
        }
        // 1, 1/2, 1/2/3, 1/2/4, 1/2/4/5, 9.
        assert_eq!((tree.nodes().len(), all_frames.keys().len()), (6, 6));
    }

    #[test]
    fn a_known_stack_is_not_listed_again_but_takes_memory() {
        let hasher = StackHasher::new();
        let mut worker = WorkerStacks::new(StackTable::default());
        let stacks: [(usize, &[u32]); 2] = [(0, &[1, 2, 3]), (0, &[1, 2, 4])];
        assert!(worker.is_empty());
        let (new, _) = interned(&mut worker, &hasher, &stacks);
        assert_eq!((new.stacks.len(), new.listed.len(), new.frames.len()), (2, 4, 4));
        let first = worker.memory(false);
        assert!(worker.memory(true) <= first);
        let (new, _) = interned(&mut worker, &hasher, &stacks);
        assert_eq!((new.stacks.len(), new.listed.len(), new.frames.len()), (0, 0, 0));
        assert_eq!(worker.memory(false), first, "of a block, whatever the worker knows");
    }
}
