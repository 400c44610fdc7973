//! The groups of the frames of stacks: which frames are in which, and what the samples of stacks
//! come to in each. A sample counts once in a group's total.

use super::Amount;
use super::keys::GroupKey;
use stk_profile::profile::{Activity, FrameId, FunctionId, Functions, NodeId, Profile, Visit};
use stk_profile::stack::{FrameKind, Interner, NamedFrame, StrId};

/// Shown instead of the values of samples that have no frame.
const NO_STACK: &str = "(no stack)";

/// What frames are grouped by; `None` if it is no key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
struct FrameValues {
    has_frame: bool,
    function: Option<FunctionId>,
    /// Index in the table of module names.
    module: Option<u32>,
    line: Option<Line>,
    kind: Option<Kind>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Line {
    Known(StrId, u32),
    /// Index in the table of module names.
    NoneOf(u32),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Code(FrameKind),
    KernelWait,
    SystemCall,
}

/// The groups of all functions of all frames.
pub(super) struct FrameGroups<'a> {
    profile: &'a Profile,
    functions: &'a Functions,
    keys: Vec<GroupKey>,
    groups: Interner<FrameValues>,
    /// By frame: where its groups begin in `of_frames`.
    starts: Vec<u32>,
    /// As [`Functions::of`] has them.
    of_frames: Vec<u32>,
}

impl<'a> FrameGroups<'a> {
    pub(super) fn new(profile: &'a Profile, functions: &'a Functions, keys: &[GroupKey]) -> FrameGroups<'a> {
        let keys: Vec<GroupKey> = keys.iter().filter(|key| key.is_of_frames()).cloned().collect();
        let mut all = FrameGroups {
            profile,
            functions,
            keys,
            groups: Interner::default(),
            starts: vec![0],
            of_frames: Vec::new(),
        };
        for frame in (0..profile.frames.keys().len() as u32).map(FrameId) {
            let of_frame = functions.of(frame);
            for (inner, &function) in of_frame.iter().enumerate() {
                // Names are innermost first, functions outermost first.
                let name = profile.symbols.names(frame).get(of_frame.len() - 1 - inner);
                let values = all.values_of(frame, function, name);
                let group = all.groups.intern(values);
                all.of_frames.push(group);
            }
            all.starts.push(all.of_frames.len() as u32);
        }
        all
    }

    /// The groups of a frame, outermost function first.
    fn of(&self, frame: FrameId) -> &[u32] {
        let at = frame.0 as usize;
        &self.of_frames[self.starts[at] as usize..self.starts[at + 1] as usize]
    }

    /// The group of samples that end in a frame, or have none.
    fn of_end(&mut self, frame: Option<FrameId>, kernel: Kernel) -> u32 {
        let group = frame.and_then(|frame| self.of(frame).last().copied());
        let kind = match (group, kernel) {
            (None, _) => return self.groups.intern(FrameValues::default()),
            (Some(group), Kernel::No) => return group,
            (_, Kernel::Wait) => Kind::KernelWait,
            (_, Kernel::Call) => Kind::SystemCall,
        };
        let values = group.map(|group| self.groups.values[group as usize]).unwrap_or_default();
        self.groups.intern(FrameValues { kind: values.kind.map(|_| kind), ..values })
    }

    fn values_of(&self, frame: FrameId, function: FunctionId, name: Option<&NamedFrame>) -> FrameValues {
        let by = |key| self.keys.contains(&key);
        let module = self.functions.modules().of_frames[frame.0 as usize];
        let line = match name {
            Some(NamedFrame { file: Some(file), line: Some(line), .. }) => Line::Known(*file, *line),
            _ => Line::NoneOf(module),
        };
        FrameValues {
            // Without such keys, samples without a stack are not told apart.
            has_frame: !self.keys.is_empty(),
            function: by(GroupKey::Function).then_some(function),
            module: (by(GroupKey::Module) && !self.is_module_of_function()).then_some(module),
            line: by(GroupKey::Line).then_some(line),
            kind: by(GroupKey::Kind).then(|| Kind::Code(self.profile.kind(frame))),
        }
    }

    /// Whether the module stands behind the function: then it is that of the function, of which
    /// several modules may have code.
    fn is_module_of_function(&self) -> bool {
        let place = |wanted| self.keys.iter().position(|key| *key == wanted);
        matches!((place(GroupKey::Function), place(GroupKey::Module)), (Some(function), Some(module)) if function < module)
    }

    /// The values of a group, in the order of the keys.
    pub(super) fn values(&self, group: u32) -> Vec<String> {
        let FrameValues { has_frame, function, module, line, kind } = self.groups.values[group as usize];
        let function = function.map(|FunctionId(function)| &self.functions.list()[function as usize]);
        let module_name = |module: u32| match self.functions.modules().names[module as usize].as_str() {
            "" => "(no module)".to_owned(),
            name => name.to_owned(),
        };
        let value = |key: &GroupKey| match key {
            _ if !has_frame => NO_STACK.to_owned(),
            GroupKey::Function => function.map(|known| known.name_in_module.clone()).unwrap_or_default(),
            GroupKey::Module => match (module, function) {
                (Some(module), _) => module_name(module),
                (None, Some(function)) => function.module.clone(),
                (None, None) => String::new(),
            },
            GroupKey::Line => match line {
                Some(Line::Known(file, line)) => {
                    format!("{}:{line}", self.profile.symbols.strings.get(file))
                }
                Some(Line::NoneOf(module)) => format!("{} (no line)", module_name(module)),
                None => String::new(),
            },
            _ => match kind {
                Some(Kind::Code(kind)) => kind.as_str().to_owned(),
                Some(Kind::KernelWait) => "kernel-wait".to_owned(),
                Some(Kind::SystemCall) => "system-call".to_owned(),
                None => String::new(),
            },
        };
        self.keys.iter().map(value).collect()
    }
}

/// Sums of equal runs, with both weights that may be listed.
#[derive(Clone, Copy, Default)]
pub(super) struct RunSums {
    pub samples: u64,
    pub weights: [u64; 2],
    pub waits: Amount,
}

impl RunSums {
    pub(super) fn is_nothing(&self) -> bool {
        self.samples == 0 && self.waits.samples == 0
    }

    pub(super) fn add(&mut self, other: &RunSums) {
        self.samples += other.samples;
        for (sum, more) in self.weights.iter_mut().zip(other.weights) {
            *sum = sum.saturating_add(more);
        }
        self.waits.add_amount(other.waits);
    }

    /// With the weight at `at`.
    pub(super) fn amount(&self, at: usize) -> Amount {
        Amount { samples: self.samples, weight_ns: self.weights[at] }
    }
}

/// What the samples of a sum have in common.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Slot {
    /// The group of threads.
    pub thread: u32,
    /// Whether they are in the kernel, if kinds are a key.
    pub kernel: Kernel,
    /// What the threads did, if that is a key.
    pub activity: Option<Activity>,
    /// The stack; `None` comes first.
    pub node: Option<NodeId>,
}

/// Whether a thread is in the kernel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kernel {
    No,
    Wait,
    Call,
}

/// What samples come to in a group.
#[derive(Clone, Copy, Default)]
pub(super) struct GroupSum {
    /// Of those that end in it.
    pub own: RunSums,
    /// Of those that have it anywhere.
    pub total: RunSums,
}

/// Sums samples of stacks up by the groups of their frames. Costs the stacks and their callers
/// once.
pub(super) struct StackSums<'a> {
    profile: &'a Profile,
    /// By node: where its functions begin in `nearest`.
    starts: Vec<u32>,
    /// Whether a function is the first of its group, from the root.
    nearest: Vec<bool>,
    /// By node: what its callees handed on. Nothing between two sums.
    below: Vec<RunSums>,
    /// By node: the sum in which it was last met.
    met: Vec<u32>,
    round: u32,
}

impl<'a> StackSums<'a> {
    pub(super) fn new(profile: &'a Profile, frames: &FrameGroups<'_>) -> StackSums<'a> {
        let nodes = profile.tree.nodes();
        let mut starts = Vec::with_capacity(nodes.len() + 1);
        let mut functions = 0u32;
        for node in nodes {
            starts.push(functions);
            functions += frames.of(node.frame).len() as u32;
        }
        starts.push(functions);
        let mut nearest = vec![false; functions as usize];
        let mut open = vec![0u32; frames.groups.values.len()];
        profile.tree.visit(|NodeId(node), when| {
            let start = starts[node as usize] as usize;
            for (inner, &group) in frames.of(nodes[node as usize].frame).iter().enumerate() {
                let open = &mut open[group as usize];
                if when == Visit::Leave {
                    *open -= 1;
                    continue;
                }
                nearest[start + inner] = *open == 0;
                *open += 1;
            }
            true
        });
        let below = vec![RunSums::default(); nodes.len()];
        StackSums { profile, starts, nearest, below, met: vec![0; nodes.len()], round: 0 }
    }

    /// The sums of samples of different stacks, sorted by stack, that are alike otherwise.
    pub(super) fn sums(
        &mut self,
        stacks: &[(Slot, RunSums)],
        frames: &mut FrameGroups<'_>,
        kernel: Kernel,
    ) -> Vec<(u32, GroupSum)> {
        let nodes = self.profile.tree.nodes();
        let mut sums = Sparse::default();
        let mut ends = stacks.iter().rev().peekable();
        for node in self.reached(stacks) {
            let at = node.0 as usize;
            let own = match ends.peek() {
                Some((slot, own)) if slot.node == Some(node) => {
                    ends.next();
                    *own
                }
                _ => RunSums::default(),
            };
            let below = std::mem::take(&mut self.below[at]);
            let mut through = below;
            through.add(&own);
            if let Some(NodeId(parent)) = nodes[at].parent {
                self.below[parent as usize].add(&through);
            }
            let groups = frames.of(nodes[at].frame);
            for (inner, &group) in groups.iter().enumerate() {
                if !self.nearest[self.starts[at] as usize + inner] {
                    continue;
                }
                // Samples in the kernel are in another group than the code that they end in.
                let is_end = inner + 1 == groups.len() && kernel != Kernel::No;
                let amount = if is_end { below } else { through };
                if !amount.is_nothing() {
                    sums.of(group).total.add(&amount);
                }
            }
            if !own.is_nothing() {
                let group = frames.of_end(Some(nodes[at].frame), kernel);
                let sum = sums.of(group);
                sum.own.add(&own);
                if kernel != Kernel::No {
                    sum.total.add(&own);
                }
            }
        }
        for (_, own) in ends.filter(|(_, own)| !own.is_nothing()) {
            let sum = sums.of(frames.of_end(None, kernel));
            sum.own.add(own);
            sum.total.add(own);
        }
        sums.list
    }

    /// The nodes of stacks and those of their callers, callees first.
    fn reached(&mut self, stacks: &[(Slot, RunSums)]) -> Vec<NodeId> {
        self.round += 1;
        let nodes = self.profile.tree.nodes();
        let mut reached = Vec::new();
        for (slot, _) in stacks {
            let mut next = slot.node;
            while let Some(node) = next.filter(|node| self.met[node.0 as usize] != self.round) {
                self.met[node.0 as usize] = self.round;
                reached.push(node);
                next = nodes[node.0 as usize].parent;
            }
        }
        // A parent's id is smaller than its children's.
        reached.sort_unstable_by(|a, b| b.cmp(a));
        reached
    }
}

/// Sums of some of the groups.
#[derive(Default)]
struct Sparse {
    list: Vec<(u32, GroupSum)>,
    places: std::collections::HashMap<u32, usize>,
}

impl Sparse {
    fn of(&mut self, group: u32) -> &mut GroupSum {
        let place = *self.places.entry(group).or_insert_with(|| {
            self.list.push((group, GroupSum::default()));
            self.list.len() - 1
        });
        &mut self.list[place].1
    }
}
