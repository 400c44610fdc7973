//! Sums the weights of equal stacks, and gives them in order, several parts at once.

use super::unfold::{OriginSums, StackOrigin};
use rayon::prelude::*;
use std::cmp::Reverse;
use stk_profile::profile::{
    Additive, CallTree, ChainId, Chains, Children, FrameId, FunctionId, FunctionTree, Functions, NodeId,
    Profile,
};

/// Weights of distinct stacks of numbered functions. Stacks above which nothing stands are those of
/// the profile's call tree, whose equal ones meet when they are visited: it is not built again.
pub(super) struct WeighedStacks<'p> {
    profile: &'p Profile,
    /// By frame: where the numbers of its functions begin, outermost first.
    starts: Vec<u32>,
    numbers: Vec<u32>,
    /// By frame: the number of its only function, or [`OTHERS`].
    only: Vec<u32>,
    chains: &'p Chains,
    /// By chain.
    weighed: Vec<WeighedChain>,
    /// By chain: the weight of the stack that it ends with, above which nothing stands.
    weights: Vec<u64>,
    /// The first chain of the list of those without a caller.
    first: u32,
    rooted: RootedStacks,
    /// The outermost calls.
    roots: Vec<Call>,
}

/// What a visit reads of a chain: in one place in memory, since chains are visited in another
/// order.
#[derive(Clone, Copy)]
struct WeighedChain {
    /// Frames of the stacks with weight that go through it, a measure of their text.
    size: u32,
    /// The number of the only function of its first frame, or [`OTHERS`].
    function: u32,
    /// The first chain of the list of its callees, or [`NONE`].
    callee: u32,
    /// The next chain of the list that it is in, or [`NONE`].
    next: u32,
}

/// The chains of a profile with the lists of their callees. Only when they are summed up have they
/// weights and functions.
pub(super) struct WeighedChains {
    /// Up to that, the size of each is how many frames its stack has.
    weighed: Vec<WeighedChain>,
    /// The first chain of the list of those without a caller.
    first: u32,
    deepest: u32,
}

impl WeighedChains {
    pub(super) fn new(tree: &CallTree) -> WeighedChains {
        let chains = tree.chains();
        let depths = chains.depths();
        let deepest = depths.iter().copied().max().unwrap_or(0);
        let new = |depth| WeighedChain { size: depth, function: 0, callee: NONE, next: NONE };
        let mut weighed: Vec<WeighedChain> = depths.into_iter().map(new).collect();
        let mut first = NONE;
        for (id, _) in chains.iter() {
            let list = match chains.caller(id) {
                Some(ChainId(caller)) => &mut weighed[caller as usize].callee,
                None => &mut first,
            };
            weighed[id.0 as usize].next = std::mem::replace(list, id.0);
        }
        WeighedChains { weighed, first, deepest }
    }

    /// How many frames the deepest stack has.
    pub(super) fn deepest(&self) -> usize {
        self.deepest as usize
    }
}

/// In place of a chain: a list ends here.
const NONE: u32 = u32::MAX;

/// In place of the number of a function: there are none or several.
const OTHERS: u32 = u32::MAX;

/// Stacks above which something stands: why they are incomplete, or what they wait for.
#[derive(Default)]
struct RootedStacks {
    tree: FunctionTree,
    /// By stack.
    weights: Vec<u64>,
    /// By stack: as of chains.
    sizes: Vec<u32>,
    callees: Option<Children>,
}

/// A call of a function that is to be visited.
#[derive(Clone, Copy)]
struct Call {
    function: u32,
    /// How many callers it has.
    depth: u32,
    place: StackNode,
}

#[derive(Clone, Copy)]
enum StackNode {
    /// The first node of a chain, whose frame has one function.
    Chain(ChainId),
    /// Of the functions of a node's frame, the one of this number.
    Node(ChainNode, u32),
    Rooted(NodeId),
}

/// A node of a chain.
#[derive(Clone, Copy)]
struct ChainNode {
    chain: ChainId,
    node: NodeId,
}

/// The callees of a node.
#[derive(Clone, Copy)]
enum Callees {
    /// The next one of its chain.
    Only(ChainNode),
    /// Of the last node of a chain: the first chain of the list, or [`NONE`].
    List(u32),
}

/// A stack with weight.
pub(super) struct WeighedStack<'v> {
    /// Its functions, outermost first.
    pub functions: &'v [u32],
    /// The nodes of the profile that have this stack, where nothing stands above it.
    pub nodes: &'v [NodeId],
    pub weight: u64,
}

/// Frames of the stacks of a part that is visited as one.
const PART: u64 = 1 << 16;

impl<'p> WeighedStacks<'p> {
    /// The sums of a profile's stacks; they may have the profile's chains with them. `number` gives
    /// a function's number; `roots` those that stand above the functions of a stack with this end
    /// and wait, outermost first; `empty` the number of what stands for a stack without any.
    pub(super) fn of(
        profile: &'p Profile,
        functions: &Functions,
        (sums, chains): (OriginSums, Option<WeighedChains>),
        number: impl Fn(FunctionId) -> u32,
        roots: impl Fn(StackOrigin) -> [Option<u32>; 2],
        empty: Option<u32>,
    ) -> WeighedStacks<'p> {
        let (mut starts, mut numbers) = (vec![0], Vec::new());
        for frame in (0..profile.frames.keys().len() as u32).map(FrameId) {
            numbers.extend(functions.of(frame).iter().map(|&function| number(function)));
            starts.push(numbers.len() as u32);
        }
        let only = starts.windows(2).map(|pair| match &numbers[pair[0] as usize..pair[1] as usize] {
            [function] => *function,
            _ => OTHERS,
        });
        let only: Vec<u32> = only.collect();
        let mut all = WeighedStacks {
            profile,
            starts,
            numbers,
            only,
            chains: profile.tree.chains(),
            weighed: Vec::new(),
            weights: Vec::new(),
            first: NONE,
            rooted: RootedStacks::default(),
            roots: Vec::new(),
        };
        let (mut without_functions, mut rooted) = (0u64, RootedStacks::default());
        for (origin, weight) in sums.others() {
            let mut stack =
                roots(origin).into_iter().flatten().fold(None, |at, root| Some(rooted.call(at, root)));
            let frames = origin.node.into_iter().flat_map(|node| profile.tree.frames(node));
            let frames: Vec<FrameId> = frames.collect();
            for &function in frames.into_iter().rev().flat_map(|frame| all.numbers_of(frame)) {
                stack = Some(rooted.call(stack, function));
            }
            match stack {
                Some(stack) => rooted.add(stack, weight),
                None => without_functions.add(weight),
            }
        }
        if sums.has_chains() {
            all.weigh(chains.unwrap_or_else(|| WeighedChains::new(&profile.tree)), sums.into_chains());
        }
        let (mut calls, mut ends) = (Vec::new(), Vec::new());
        without_functions.add(all.enter(Callees::List(all.first), 0, &mut calls, &mut ends));
        if let Some(empty) = empty.filter(|_| without_functions > 0) {
            let stack = rooted.call(None, empty);
            rooted.add(stack, without_functions);
        }
        rooted.close(&mut calls);
        all.rooted = rooted;
        calls.sort_unstable_by_key(|call| Reverse(call.function));
        all.roots = calls;
        all
    }

    /// Gives chains their functions and these weights, and measures the stacks that go through
    /// each.
    fn weigh(&mut self, WeighedChains { mut weighed, first, .. }: WeighedChains, weights: Vec<u64>) {
        let nodes = self.profile.tree.nodes();
        for (((_, of_chain), weighed), &weight) in self.chains.iter().zip(&mut weighed).zip(&weights) {
            weighed.function = self.only[nodes[of_chain.start].frame.0 as usize];
            weighed.size = if weight > 0 { weighed.size } else { 0 };
        }
        self.chains.add_callees(&mut weighed, |caller, callee| {
            caller.size = caller.size.saturating_add(callee.size);
        });
        (self.weighed, self.weights, self.first) = (weighed, weights, first);
    }

    /// Frames of all stacks with weight.
    pub(super) fn frames(&self) -> u64 {
        self.roots.iter().map(|call| self.size(call)).sum()
    }

    fn numbers_of(&self, FrameId(frame): FrameId) -> &[u32] {
        let frame = frame as usize;
        &self.numbers[self.starts[frame] as usize..self.starts[frame + 1] as usize]
    }

    fn frame_of(&self, NodeId(node): NodeId) -> FrameId {
        self.profile.tree.nodes()[node as usize].frame
    }

    /// Of the functions of a node, the one of this number.
    fn function_of(&self, node: NodeId, at: u32) -> Option<u32> {
        let frame = self.frame_of(node);
        match self.only[frame.0 as usize] {
            OTHERS => self.numbers_of(frame).get(at as usize).copied(),
            function => (at == 0).then_some(function),
        }
    }

    /// The first node of a chain.
    fn first_of(&self, chain: ChainId) -> ChainNode {
        ChainNode { chain, node: NodeId(self.chains.nodes(chain).start as u32) }
    }

    /// The weight of a node as a stack, and its callees.
    fn at(&self, ChainNode { chain, node }: ChainNode) -> (u64, Callees) {
        if self.chains.last(chain) != node {
            return (0, Callees::Only(ChainNode { chain, node: NodeId(node.0 + 1) }));
        }
        let chain = chain.0 as usize;
        (self.weights[chain], Callees::List(self.weighed[chain].callee))
    }

    /// Adds the calls of callees, as far as they lead to weight. A node without functions is the
    /// same stack as its caller: adds it to the ends of that, and returns their weight.
    fn enter(&self, mut callees: Callees, depth: u32, calls: &mut Vec<Call>, ends: &mut Vec<NodeId>) -> u64 {
        let mut todo = ends.len();
        let mut weight = 0u64;
        let add = |at: ChainNode, calls: &mut Vec<Call>, ends: &mut Vec<NodeId>| match self
            .function_of(at.node, 0)
        {
            Some(function) => calls.push(Call { function, depth, place: StackNode::Node(at, 0) }),
            None => ends.push(at.node),
        };
        loop {
            match callees {
                // Of a node that leads to weight.
                Callees::Only(at) => add(at, calls, ends),
                Callees::List(mut next) => {
                    while let Some(&WeighedChain { size, function, next: other, .. }) =
                        self.weighed.get(next as usize)
                    {
                        let chain = ChainId(std::mem::replace(&mut next, other));
                        match function {
                            _ if size == 0 => {}
                            OTHERS => add(self.first_of(chain), calls, ends),
                            _ => calls.push(Call { function, depth, place: StackNode::Chain(chain) }),
                        }
                    }
                }
            }
            let Some(&node) = ends.get(todo) else { return weight };
            let (more, next) = self.at(ChainNode { chain: self.chains.of_node(node), node });
            weight.add(more);
            callees = next;
            todo += 1;
        }
    }

    /// From a node inwards to the first one that has weight, several callees or not one function.
    /// Adds the functions of the nodes behind it.
    fn only_callee(&self, mut at: ChainNode, functions: &mut Vec<u32>) -> ChainNode {
        let nodes = self.profile.tree.nodes();
        loop {
            let NodeId(last) = self.chains.last(at.chain);
            for of_chain in &nodes[at.node.0 as usize + 1..=last as usize] {
                let function = self.only[of_chain.frame.0 as usize];
                if function == OTHERS {
                    return at;
                }
                functions.push(function);
                at.node.0 += 1;
            }
            let ChainId(chain) = at.chain;
            let callee = self.weighed[chain as usize].callee;
            match self.weighed.get(callee as usize) {
                Some(&WeighedChain { function, next: NONE, .. })
                    if self.weights[chain as usize] == 0 && function != OTHERS =>
                {
                    functions.push(function);
                    at = self.first_of(ChainId(callee));
                }
                _ => return at,
            }
        }
    }

    /// Frames of the stacks that a call leads to.
    fn size(&self, call: &Call) -> u64 {
        u64::from(match call.place {
            StackNode::Chain(ChainId(chain))
            | StackNode::Node(ChainNode { chain: ChainId(chain), .. }, _) => {
                self.weighed[chain as usize].size
            }
            StackNode::Rooted(NodeId(stack)) => self.rooted.sizes[stack as usize],
        })
    }

    /// Calls `each` with every stack that has functions and weight: callers before their callees,
    /// otherwise by the functions' numbers. Several parts are visited at once, each with a value
    /// that `new` makes; `done` gets these in order.
    pub(super) fn visit<S: Send, E: Send>(
        &self,
        new: impl Fn() -> S + Sync,
        each: impl Fn(&mut S, WeighedStack<'_>) + Sync,
        mut done: impl FnMut(S) -> Result<(), E> + Send,
    ) -> Result<(), E> {
        let mut plan = Plan { visit: Visit::new(&self.roots), next: Vec::new() };
        let mut ready: Vec<S> = Vec::new();
        loop {
            let parts: Vec<StackChunk> =
                std::iter::from_fn(|| plan.part(self)).take(2 * rayon::current_num_threads()).collect();
            let is_end = parts.is_empty();
            let written = std::mem::take(&mut ready);
            let (made, written) = rayon::join(
                || {
                    let make = |part: StackChunk| {
                        let mut made = new();
                        part.into_iter().for_each(|piece| self.visit_piece(piece, &mut made, &each));
                        made
                    };
                    parts.into_par_iter().map(make).collect()
                },
                || written.into_iter().try_for_each(&mut done),
            );
            written?;
            ready = made;
            if is_end {
                return Ok(());
            }
        }
    }

    fn visit_piece<S>(&self, piece: CallerGroup, made: &mut S, each: &impl Fn(&mut S, WeighedStack<'_>)) {
        let CallerGroup { functions, calls, own } = piece;
        if let Some((nodes, weight)) = &own {
            each(made, WeighedStack { functions: &functions, nodes, weight: *weight });
        }
        let mut visit = Visit { functions, ..Visit::new(&calls) };
        while let Some(weight) = visit.next(self) {
            if weight > 0 {
                each(made, WeighedStack { functions: &visit.functions, nodes: &visit.ends, weight });
            }
        }
    }
}

impl RootedStacks {
    fn call(&mut self, caller: Option<NodeId>, function: u32) -> NodeId {
        self.tree.call(caller, function)
    }

    fn add(&mut self, NodeId(stack): NodeId, weight: u64) {
        self.weights.resize(self.tree.len(), 0);
        self.weights[stack as usize].add(weight);
    }

    /// All are added. Adds the calls of the outermost ones.
    fn close(&mut self, calls: &mut Vec<Call>) {
        self.weights.resize(self.tree.len(), 0);
        let mut depths: Vec<u32> = Vec::with_capacity(self.tree.len());
        for stack in (0..self.tree.len() as u32).map(NodeId) {
            depths.push(self.tree.caller(stack).map_or(1, |NodeId(caller)| depths[caller as usize] + 1));
        }
        let own = self.weights.iter().zip(depths).map(|(weight, depth)| if *weight > 0 { depth } else { 0 });
        self.sizes = own.collect();
        self.tree.calls().add_callees(&mut self.sizes, |size, more| *size = size.saturating_add(more));
        let callees = self.callees.insert(self.tree.callees());
        let call =
            |stack| Call { function: self.tree.function(stack), depth: 0, place: StackNode::Rooted(stack) };
        calls.extend(callees.roots().map(call));
    }
}

/// A visit of stacks in their order.
struct Visit {
    /// Calls to visit, the next one last; those of one caller are by their functions' numbers.
    calls: Vec<Call>,
    /// The stack that was visited last.
    functions: Vec<u32>,
    /// Its nodes.
    ends: Vec<NodeId>,
    /// Calls of one function by one caller.
    same: Vec<Call>,
}

impl Visit {
    fn new(calls: &[Call]) -> Visit {
        Visit { calls: calls.to_vec(), functions: Vec::new(), ends: Vec::new(), same: Vec::new() }
    }

    /// Goes to the next stack. Returns its weight, which may be 0.
    fn next(&mut self, all: &WeighedStacks<'_>) -> Option<u64> {
        let Visit { calls, functions, ends, same } = self;
        let Call { function, depth, .. } = *calls.last()?;
        same.clear();
        // Only calls of one caller have the same depth: deeper ones are visited before.
        while let Some(call) = calls.pop_if(|call| (call.function, call.depth) == (function, depth)) {
            same.push(call);
        }
        functions.truncate(depth as usize);
        functions.push(function);
        ends.clear();
        let (first, depth) = (calls.len(), depth + 1);
        let mut weight = 0u64;
        for call in &*same {
            let at = match call.place {
                StackNode::Chain(chain) => all.first_of(chain),
                StackNode::Node(at, number) => {
                    if let Some(function) = all.function_of(at.node, number + 1) {
                        calls.push(Call { function, depth, place: StackNode::Node(at, number + 1) });
                        continue;
                    }
                    at
                }
                StackNode::Rooted(stack) => {
                    weight.add(all.rooted.weights[stack.0 as usize]);
                    let callees = all.rooted.callees.iter().flat_map(|callees| callees.of(stack));
                    calls.extend(callees.map(|stack| Call {
                        function: all.rooted.tree.function(stack),
                        depth,
                        place: StackNode::Rooted(stack),
                    }));
                    continue;
                }
            };
            let at = if same.len() == 1 { all.only_callee(at, functions) } else { at };
            let (own, callees) = all.at(at);
            weight.add(own);
            ends.push(at.node);
            weight.add(all.enter(callees, functions.len() as u32, calls, ends));
        }
        if calls.len() > first + 1 {
            calls[first..].sort_unstable_by_key(|call| Reverse(call.function));
        }
        Some(weight)
    }

    /// Frames of the stacks that the next calls lead to, which are those of one function by one
    /// caller.
    fn size_of_next(&self, all: &WeighedStacks<'_>) -> u64 {
        let Some(last) = self.calls.last() else { return 0 };
        let next = self.calls.iter().rev();
        let next = next.take_while(|call| (call.function, call.depth) == (last.function, last.depth));
        next.map(|call| all.size(call)).sum()
    }
}

/// Cuts stacks into parts that can be visited at once.
struct Plan {
    /// Visits the stacks that more than a part goes through.
    visit: Visit,
    /// The part that is being put together.
    next: StackChunk,
}

type StackChunk = Vec<CallerGroup>;

/// Stacks that follow each other, with the same callers.
struct CallerGroup {
    /// The callers.
    functions: Vec<u32>,
    /// What they call, the next one last.
    calls: Vec<Call>,
    /// Before that, the callers as a stack: its nodes and its weight.
    own: Option<(Vec<NodeId>, u64)>,
}

impl Plan {
    fn part(&mut self, all: &WeighedStacks<'_>) -> Option<StackChunk> {
        let mut size = 0;
        while size < PART && !self.visit.calls.is_empty() {
            let next = self.visit.size_of_next(all);
            if next > PART {
                let weight = self.visit.next(all)?;
                let Visit { functions, ends, .. } = &self.visit;
                let own = (weight > 0).then(|| (ends.clone(), weight));
                self.next.push(CallerGroup { functions: functions.clone(), calls: Vec::new(), own });
                size += 1;
                continue;
            }
            size += next.max(1);
            self.take();
        }
        self.next.iter_mut().for_each(|piece| piece.calls.reverse());
        Some(std::mem::take(&mut self.next)).filter(|part| !part.is_empty())
    }

    /// Adds the next calls to the part.
    fn take(&mut self) {
        let Visit { calls, functions, .. } = &mut self.visit;
        let Some(&Call { function, depth, .. }) = calls.last() else { return };
        let callers = &functions[..depth as usize];
        if self.next.last().is_none_or(|piece| piece.functions != callers) {
            let functions = callers.to_vec();
            self.next.push(CallerGroup { functions, calls: Vec::new(), own: None });
        }
        let Some(piece) = self.next.last_mut() else { return };
        while let Some(call) = calls.pop_if(|call| (call.function, call.depth) == (function, depth)) {
            piece.calls.push(call);
        }
    }
}

/// The text of the last stack. Kept, since the next one mostly begins alike.
#[derive(Default)]
pub(super) struct StackLine {
    separator: u8,
    text: Vec<u8>,
    /// The stack, each function with the length of the text up to its end.
    functions: Vec<(u32, usize)>,
}

impl StackLine {
    pub(super) fn new(separator: u8) -> StackLine {
        StackLine { separator, text: Vec::new(), functions: Vec::new() }
    }

    /// The text of a stack, outermost function first. `write` appends the text of a function.
    pub(super) fn of(&mut self, stack: &[u32], write: impl Fn(u32, &mut Vec<u8>)) -> &[u8] {
        let same = self.functions.iter().zip(stack).take_while(|((last, _), next)| last == *next).count();
        self.functions.truncate(same);
        self.text.truncate(self.functions.last().map_or(0, |(_, end)| *end));
        for &function in &stack[same..] {
            if !self.functions.is_empty() {
                self.text.push(self.separator);
            }
            write(function, &mut self.text);
            self.functions.push((function, self.text.len()));
        }
        &self.text
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::convert::Infallible;
    use stk_profile::profile::{
        Activity, FrameFacts, FrameKey, NameSource, NamedFrame, Node, Placement, Run, RunFlags, Runs, StopId,
        StopInfo, StopReason, TraceInfo,
    };
    use stk_schema::event::RunState;
    use stk_tests::synth::Random;
    use stk_unwind::Trust;

    /// A profile whose frame `i` has these functions, outermost first.
    pub(crate) fn profile(frames: &[&[u32]]) -> Profile {
        let mut profile = Profile::empty(TraceInfo::unknown(stk_schema::Arch::X64));
        for (at, functions) in (0..).zip(frames) {
            let place = Placement::Unknown(at);
            profile.frames.intern(FrameKey { place, exact: true, trust: Trust::Context });
            let symbols = &mut profile.symbols;
            for function in functions.iter().rev() {
                let function = symbols.strings.intern(&function.to_string());
                symbols.named.push(NamedFrame { function, file: None, line: None, inline: false });
            }
            symbols.starts.push(symbols.named.len() as u32);
            symbols.source.push(NameSource::Pdb);
            symbols.reason.push(None);
            symbols.facts.push(FrameFacts::default());
        }
        profile
    }

    /// Makes the chains of a profile whose samples have these stacks.
    pub(crate) fn chain(profile: &mut Profile, stacks: impl Iterator<Item = NodeId>) {
        let mut runs = Runs::default();
        for (at, node) in (0..).zip(stacks) {
            let run = Run {
                node: Some(node),
                stop: StopId(0),
                first_ns: at,
                last_ns: at,
                weight_ns: 1,
                samples: 1,
                cpu_ns: 0,
                state: RunState::Unknown,
                activity: Activity::Unknown,
                flags: RunFlags::empty(),
                capture_tag: 0,
            };
            runs.push(0, run).unwrap();
        }
        profile.tree.chain(&runs).unwrap();
    }

    /// Above the functions of stacks that end so.
    fn roots(origin: StackOrigin) -> [Option<u32>; 2] {
        match origin.stop {
            Some(StopId(1)) => [Some(900), None],
            Some(StopId(2)) => [Some(3), Some(901)],
            _ => [None, None],
        }
    }

    const EMPTY: u32 = 999;

    #[test]
    fn equal_stacks_are_one_and_come_by_their_functions() {
        // Several frames of a function, two functions of a frame, and frames of none.
        let frames: [&[u32]; 10] = [&[1], &[2], &[1], &[3, 1], &[], &[2, 5], &[5], &[3], &[4], &[]];
        let mut profile = profile(&frames);
        for reason in
            [StopReason::COMPLETE, StopReason::StackLost, StopReason::StackLost, StopReason::COMPLETE]
        {
            profile.stops.push(StopInfo { reason, module: String::new() });
        }
        let mut random = Random::new(7);
        let mut origins: Vec<(StackOrigin, u64)> = Vec::new();
        let mut expected: BTreeMap<Vec<u32>, u64> = BTreeMap::new();
        let mut stack: Vec<usize> = Vec::new();
        // So many that there are several parts.
        for weight in 1..20_000 {
            stack.truncate(random.below(stack.len() + 1));
            let depth = random.below(30);
            while stack.len() < depth {
                stack.push(random.below(frames.len()));
            }
            let call = |parent, frame: &usize| {
                Some(profile.tree.intern(Node { parent, frame: FrameId(*frame as u32) }))
            };
            let node = stack.iter().fold(None, call);
            let origin = StackOrigin { node, stop: Some(StopId(random.below(4) as u16)), wait: None };
            origins.push((origin, weight));
            let mut functions: Vec<u32> = roots(origin).into_iter().flatten().collect();
            functions.extend(stack.iter().flat_map(|&frame| frames[frame]));
            if functions.is_empty() {
                functions.push(EMPTY);
            }
            *expected.entry(functions).or_default() += weight;
        }
        chain(&mut profile, origins.iter().filter_map(|(origin, _)| origin.node));
        let (chains, nodes) = (profile.tree.chains().len(), profile.tree.nodes().len());
        assert!(chains < nodes, "{chains} of {nodes}");
        let functions = Functions::new(&profile, false);
        let number = |FunctionId(function)| functions.list()[function as usize].name.parse().unwrap();
        let sums = || {
            let mut sums = OriginSums::new(&profile);
            for origins in origins.chunks(8_000) {
                sums.add(profile.tree.chains(), origins.len(), origins.iter().copied());
            }
            (sums, None)
        };
        let stacks = WeighedStacks::of(&profile, &functions, sums(), number, roots, Some(EMPTY));
        let mut parts: Vec<Vec<(Vec<u32>, u64)>> = Vec::new();
        let each = |part: &mut Vec<_>, stack: WeighedStack<'_>| {
            for &node in stack.nodes {
                let mut frames: Vec<FrameId> = profile.tree.frames(node).collect();
                frames.reverse();
                let functions = frames.iter().flat_map(|frame| stacks.numbers_of(*frame));
                assert!(functions.eq(stack.functions), "{node:?}");
            }
            part.push((stack.functions.to_vec(), stack.weight));
        };
        let done = |part| {
            parts.push(part);
            Ok::<(), Infallible>(())
        };
        stacks.visit(Vec::new, each, done).unwrap();
        assert!(parts.len() > 2, "{}", parts.len());
        let seen = parts.concat();
        // Vectors compare as stacks are ordered.
        assert_eq!(seen, expected.into_iter().collect::<Vec<_>>());
        // Without a name for them, stacks without functions are left out.
        let stacks = WeighedStacks::of(&profile, &functions, sums(), number, roots, None);
        let mut last = Vec::new();
        let each = |part: &mut Vec<u32>, stack: WeighedStack<'_>| *part = stack.functions.to_vec();
        let done = |part| {
            last = part;
            Ok::<(), Infallible>(())
        };
        stacks.visit(Vec::new, each, done).unwrap();
        assert!(last[0] < EMPTY, "{last:?}");
    }

    #[test]
    fn a_line_keeps_what_stacks_have_in_common() {
        let mut line = StackLine::new(b';');
        let mut of = |stack: &[u32]| {
            let text =
                line.of(stack, |function, out| out.extend_from_slice(format!("f{function}").as_bytes()));
            String::from_utf8(text.to_vec()).unwrap()
        };
        let texts = [&[1, 22, 3][..], &[1, 22], &[1, 2, 3], &[], &[4]].map(&mut of);
        assert_eq!(texts, ["f1;f22;f3", "f1;f22", "f1;f2;f3", "", "f4"]);
    }
}
