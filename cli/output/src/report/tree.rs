//! The call tree of a page: functions instead of addresses.

use stk_profile::profile::{CallTree, FrameId, Functions, Node, NodeId, Profile, Visit};
use std::collections::HashMap;

/// A frame whose caller does not follow from what was recorded.
pub(super) const UNPROVED: u32 = 1;
/// A function that the compiler put into the one that calls it.
pub(super) const INLINED: u32 = 2;
/// Bits of the flags in [`FunctionTree::frames`].
const FLAG_BITS: u32 = 2;

/// Distinct stacks of functions, in the order of a visit from the roots downwards: a node's
/// callees follow it. Only stacks that have samples are in it.
pub(super) struct FunctionTree {
    /// By node: how many callers it has.
    pub depths: Vec<u32>,
    /// By node: number of the function in the page, and flags.
    pub frames: Vec<u64>,
    /// By node of the profile: the node here; `None` if no sample goes through it.
    pub of_nodes: Vec<Option<u32>>,
    /// The functions of the page by their ids in the profile; `None` if no sample shows them.
    pub functions: Vec<Option<u32>>,
    /// How many functions the page has.
    pub function_count: u32,
}

impl FunctionTree {
    /// `samples`: by node of the profile, those whose innermost frame it is.
    pub(super) fn new(profile: &Profile, functions: &Functions, samples: &[u64]) -> FunctionTree {
        let mut through = samples.to_vec();
        profile.tree.add_callees(&mut through, |sum, more| *sum = sum.saturating_add(more));
        let (tree, ends) = by_function(profile, functions, &through);
        let mut numbers = vec![0; tree.nodes().len()];
        let mut made = FunctionTree {
            depths: Vec::with_capacity(numbers.len()),
            frames: Vec::with_capacity(numbers.len()),
            of_nodes: Vec::new(),
            functions: vec![None; functions.list().len()],
            function_count: 0,
        };
        let mut depth = 0;
        tree.visit(|NodeId(id), when| {
            if when == Visit::Leave {
                depth -= 1;
                return true;
            }
            numbers[id as usize] = made.depths.len() as u32;
            let FrameId(packed) = tree.nodes()[id as usize].frame;
            let number = made.number(packed >> FLAG_BITS);
            made.depths.push(depth);
            made.frames.push(u64::from(number) << FLAG_BITS | u64::from(packed % (1 << FLAG_BITS)));
            depth += 1;
            true
        });
        made.of_nodes = ends.into_iter().map(|end| end.map(|NodeId(id)| numbers[id as usize])).collect();
        made
    }

    /// The page's number of a function: in the order in which they are met.
    fn number(&mut self, function: u32) -> u32 {
        *self.functions[function as usize].get_or_insert_with(|| {
            self.function_count += 1;
            self.function_count - 1
        })
    }
}

/// The call tree by function and flags, and the node there of each node of the profile through
/// which samples go. A "frame" of this tree is a function with flags.
fn by_function(profile: &Profile, functions: &Functions, through: &[u64]) -> (CallTree, Vec<Option<NodeId>>) {
    let mut tree = CallTree::default();
    let mut ends: Vec<Option<NodeId>> = Vec::with_capacity(through.len());
    let keys = profile.frames.keys();
    // Callers come before their callees.
    for (node, through) in profile.tree.nodes().iter().zip(through) {
        let mut parent = node.parent.and_then(|NodeId(parent)| ends[parent as usize]);
        if *through > 0 {
            let proved = keys[node.frame.0 as usize].trust.is_proved();
            let mut flags = if proved { 0 } else { UNPROVED };
            for function in functions.of(node.frame) {
                let frame = FrameId(function.0 << FLAG_BITS | flags);
                parent = Some(tree.intern(Node { parent, frame }));
                flags |= INLINED;
            }
            ends.push(parent);
        } else {
            ends.push(None);
        }
    }
    (tree, ends)
}

/// Numbers texts in the order of their first use.
#[derive(Default)]
pub(super) struct Texts {
    pub list: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Texts {
    pub(super) fn number(&mut self, text: &str) -> u32 {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let number = self.list.len() as u32;
        self.list.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }
}
