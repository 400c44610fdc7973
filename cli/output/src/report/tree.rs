//! The call tree of a page: functions instead of addresses.

use std::collections::HashMap;
use stk_profile::profile::{Additive, FrameId, FunctionTree, Functions, NodeId, Profile, Visit};

/// A frame whose caller does not follow from what was recorded.
pub(super) const UNPROVED: u32 = 1;
/// A function that the compiler put into the one that calls it.
pub(super) const INLINED: u32 = 2;
/// Bits of the flags in [`PageTree::frames`].
const FLAG_BITS: u32 = 2;

/// Distinct stacks of functions, in the order of a visit from the roots downwards: a node's
/// callees follow it. Only stacks that have samples are in it.
pub(super) struct PageTree {
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

impl PageTree {
    /// `samples`: by node of the profile, those whose innermost frame it is.
    pub(super) fn new(profile: &Profile, functions: &Functions, samples: &[u64]) -> PageTree {
        let mut through = samples.to_vec();
        profile.tree.add_callees(&mut through, Additive::add);
        let is_wanted = |NodeId(node)| through[node as usize] > 0;
        // A function is here one of the profile with flags.
        let keys = profile.frames.keys();
        let with_flags = |frame: FrameId| {
            let proved = keys[frame.0 as usize].trust.is_proved();
            let flags = if proved { 0 } else { UNPROVED };
            let inlined = std::iter::once(0).chain(std::iter::repeat(INLINED));
            functions
                .of(frame)
                .iter()
                .zip(inlined)
                .map(move |(id, inlined)| id.0 << FLAG_BITS | flags | inlined)
        };
        let folded = FunctionTree::fold(&profile.tree, is_wanted, with_flags, |_| false);
        let tree = folded.tree.calls();
        let mut numbers = vec![0; tree.nodes().len()];
        let mut made = PageTree {
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
        let number = |NodeId(stack): NodeId| numbers[stack as usize];
        made.of_nodes = folded.stacks.into_iter().map(|stack| stack.map(number)).collect();
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
