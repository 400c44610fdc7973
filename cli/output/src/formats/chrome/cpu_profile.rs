//! The profile of one thread, in the order in which V8 writes it: chunks of new nodes and of
//! samples. Their text is made later, of several chunks at once.

use super::labels::{IDLE, LabelTexts, ROOT, first_nodes};
use super::stacks::{NodeLabel, NodeNumbers, StackSource};
use std::sync::{Mutex, PoisonError};
use stk_profile::profile::{Folded, Profile};

/// Samples per chunk.
const CHUNK: usize = 4096;
/// Bytes of nodes per chunk: a deep stack of long names may have hundreds of megabytes.
const NODE_BYTES: usize = 256 << 10;
/// Nodes of the chunks that are held of a profile.
const MOST_NODES: usize = 1 << 20;
/// Where a thread is from a time on, in nanoseconds; without a source: not sampled.
#[derive(Clone, Copy)]
pub(super) struct Stay {
    pub source: Option<StackSource>,
    pub at_ns: u64,
}

/// A `ProfileChunk` event, and the `Profile` event if it is the first.
#[derive(Default)]
pub(super) struct ProfileChunk {
    pub pid: u32,
    pub tid: u32,
    /// The profile's id.
    pub profile: u32,
    /// When the profile starts, if this is its first chunk, which has the nodes of all profiles.
    pub start_ns: Option<u64>,
    /// The number of its first other node. The others follow it.
    pub first_node: u32,
    /// The parent and the content of each node.
    pub nodes: Vec<(u32, NodeLabel)>,
    /// Nodes with the nanoseconds since the sample before.
    pub samples: Vec<(u32, u64)>,
    /// When it is written.
    pub at_ns: u64,
    /// When the profile ends, if it is the last.
    pub end_ns: Option<u64>,
}

/// A profile in the making.
pub(super) struct CpuProfile {
    /// From its first node to its last.
    numbers: Option<NodeNumbers>,
    /// What the thread did, as far as it is known, and how much of it is in chunks.
    stays: Vec<Stay>,
    next: usize,
    /// When the profile ends, once that is known.
    end_ns: Option<u64>,
    /// The chunk that is being filled, and the bytes of its nodes' text.
    open: ProfileChunk,
    bytes: usize,
    /// The last number that a node got.
    last_node: u32,
    /// The node of the last sample, and its time.
    last: Option<u32>,
    last_ns: u64,
    /// Full chunks, and how many nodes they have.
    full: Vec<ProfileChunk>,
    nodes: usize,
    is_done: bool,
}

impl CpuProfile {
    /// Begins the profile of this id for a thread.
    pub(super) fn new(profile: u32, (pid, tid): (u32, u32), start_ns: u64) -> CpuProfile {
        let open = ProfileChunk { pid, tid, profile, start_ns: Some(start_ns), ..ProfileChunk::default() };
        CpuProfile {
            numbers: None,
            stays: Vec::new(),
            next: 0,
            end_ns: None,
            open: ProfileChunk { first_node: IDLE + 1, ..open },
            bytes: first_nodes().len(),
            last_node: IDLE,
            last: None,
            last_ns: start_ns,
            full: Vec::new(),
            nodes: 0,
            is_done: false,
        }
    }

    pub(super) fn push(&mut self, stay: Stay) {
        self.stays.push(stay);
    }

    /// No more follows.
    pub(super) fn end(&mut self, end_ns: u64) {
        self.end_ns = Some(end_ns);
    }

    /// Whether all of it is in chunks.
    pub(super) fn is_done(&self) -> bool {
        self.is_done
    }

    /// Makes chunks of what is known, until they are as many as are held. Numbers are taken from
    /// `spare` and given back.
    pub(super) fn fill(
        &mut self,
        profile: &Profile,
        folded: &Folded,
        texts: &LabelTexts,
        spare: &Mutex<Vec<NodeNumbers>>,
    ) {
        let spare = || spare.lock().unwrap_or_else(PoisonError::into_inner);
        let mut numbers = self.numbers.take().unwrap_or_else(|| {
            let mut numbers = spare().pop().unwrap_or_default();
            numbers.begin(ROOT);
            numbers
        });
        while self.nodes < MOST_NODES
            && let Some(&Stay { source, at_ns }) = self.stays.get(self.next)
        {
            self.next += 1;
            let node = source.map_or(IDLE, |source| {
                let new = |parent, label| self.new_node(parent, label, texts);
                numbers.node_of(profile, folded, source, new)
            });
            if self.last != Some(node) {
                self.sample(node, at_ns);
            }
        }
        if self.next == self.stays.len() {
            self.stays.clear();
            self.next = 0;
            if let Some(end_ns) = self.end_ns {
                // Readers give the last sample no time, so an extra one ends the profile.
                self.sample(IDLE, end_ns);
                self.open.end_ns = Some(end_ns);
                self.close(end_ns);
                self.is_done = true;
                return spare().push(numbers);
            }
        }
        self.numbers = Some(numbers);
    }

    /// Takes the full chunks.
    pub(super) fn take(&mut self) -> Vec<ProfileChunk> {
        self.nodes = 0;
        std::mem::take(&mut self.full)
    }

    /// Adds a sample: the thread is at `node` from `at_ns` on.
    fn sample(&mut self, node: u32, at_ns: u64) {
        self.open.samples.push((node, at_ns - self.last_ns));
        (self.last, self.last_ns) = (Some(node), at_ns);
        if self.open.samples.len() >= CHUNK {
            self.close(at_ns);
        }
    }

    /// Adds a node. Returns its number.
    fn new_node(&mut self, parent: u32, label: NodeLabel, texts: &LabelTexts) -> u32 {
        self.last_node += 1;
        self.open.nodes.push((parent, label));
        self.bytes += usize::from(self.bytes > 0) + texts.node_len(self.last_node, parent, label);
        if self.bytes > NODE_BYTES {
            self.close(self.last_ns);
        }
        self.last_node
    }

    /// Ends the open chunk at a time.
    fn close(&mut self, at_ns: u64) {
        let ProfileChunk { pid, tid, profile, .. } = self.open;
        let next = ProfileChunk { pid, tid, profile, first_node: self.last_node + 1, ..Default::default() };
        let full = std::mem::replace(&mut self.open, next);
        self.nodes += full.nodes.len();
        self.bytes = 0;
        self.full.push(ProfileChunk { at_ns, ..full });
    }
}
