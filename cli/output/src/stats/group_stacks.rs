//! The groups of the frames of stacks: which frames are in which, and the stacks as stacks of
//! groups.

use super::Amount;
use super::keys::GroupKey;
use stk_profile::profile::{
    Activity, Additive, Category, Folded, FrameId, FunctionId, FunctionTree, Functions, NodeId, Profile,
};
use stk_profile::stack::{FrameKind, Interner, NamedFrame, StrId};

/// Shown instead of the values of samples that have no frame.
pub(super) const NO_STACK: &str = "(no stack)";

/// What frames are grouped by; `None` if it is no key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
struct FrameValues {
    has_frame: bool,
    function: Option<FunctionId>,
    /// Index in the table of module names.
    module: Option<u32>,
    line: Option<SourceLine>,
    kind: Option<Kind>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum SourceLine {
    Known(StrId, u32),
    /// Index in the table of module names.
    NoneOf(u32),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Code(FrameKind),
    Kernel(KernelKind),
}

/// The groups of all functions of all frames.
pub(super) struct FrameGroups<'a> {
    profile: &'a Profile,
    functions: &'a Functions,
    keys: Vec<GroupKey>,
    groups: Interner<FrameValues>,
}

impl<'a> FrameGroups<'a> {
    /// The groups, and the stacks of the profile as stacks of groups.
    pub(super) fn new(
        profile: &'a Profile,
        functions: &'a Functions,
        keys: &[GroupKey],
    ) -> (FrameGroups<'a>, Folded) {
        let keys: Vec<GroupKey> = keys.iter().filter(|key| key.is_of_frames()).cloned().collect();
        // Samples in the kernel leave the group of their innermost function alone.
        let by_kind = keys.contains(&GroupKey::Kind);
        let mut all = FrameGroups { profile, functions, keys, groups: Interner::default() };
        let frames = (0..profile.frames.keys().len() as u32).map(FrameId);
        let of_frames: Vec<Vec<u32>> = frames.map(|frame| all.groups_of(frame)).collect();
        let groups = |frame: FrameId| of_frames[frame.0 as usize].iter().copied();
        let folded = FunctionTree::fold(&profile.tree, |_| true, groups, |_| !by_kind);
        (all, folded)
    }

    /// The groups of a frame, outermost function first.
    fn groups_of(&mut self, frame: FrameId) -> Vec<u32> {
        let of_frame = self.functions.of(frame);
        // Names are innermost first, functions outermost first.
        let names = self.profile.symbols.names(frame);
        let group = |(inner, &function): (usize, &FunctionId)| {
            let values = self.values_of(frame, function, names.get(of_frame.len() - 1 - inner));
            self.groups.intern(values)
        };
        of_frame.iter().enumerate().map(group).collect()
    }

    /// The group of samples that have no stack.
    pub(super) fn of_none(&mut self) -> u32 {
        self.groups.intern(FrameValues::default())
    }

    /// The group of samples that end in code of a group, in the kernel.
    pub(super) fn of_kernel(&mut self, group: u32, kind: KernelKind) -> u32 {
        let values = self.groups.values[group as usize];
        self.groups.intern(FrameValues { kind: Some(Kind::Kernel(kind)), ..values })
    }

    fn values_of(&self, frame: FrameId, function: FunctionId, name: Option<&NamedFrame>) -> FrameValues {
        let by = |key| self.keys.contains(&key);
        let module = self.functions.modules().of_frames[frame.0 as usize];
        let line = match name {
            Some(NamedFrame { file: Some(file), line: Some(line), .. }) => SourceLine::Known(*file, *line),
            _ => SourceLine::NoneOf(module),
        };
        FrameValues {
            // Without such keys, samples without a stack are one group.
            has_frame: !self.keys.is_empty(),
            function: by(GroupKey::Function).then_some(function),
            module: by(GroupKey::Module).then_some(module),
            line: by(GroupKey::Line).then_some(line),
            kind: by(GroupKey::Kind).then(|| Kind::Code(self.profile.kind(frame))),
        }
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
            GroupKey::Module => module.map(module_name).unwrap_or_default(),
            GroupKey::Line => match line {
                Some(SourceLine::Known(file, line)) => {
                    format!("{}:{line}", self.profile.symbols.strings.get(file))
                }
                Some(SourceLine::NoneOf(module)) => format!("{} (no line)", module_name(module)),
                None => String::new(),
            },
            _ => match kind {
                Some(Kind::Code(kind)) => kind.as_str().to_owned(),
                Some(Kind::Kernel(KernelKind::Wait)) => "kernel-wait".to_owned(),
                Some(Kind::Kernel(KernelKind::Call)) => "system-call".to_owned(),
                None => String::new(),
            },
        };
        self.keys.iter().map(value).collect()
    }
}

/// By stack: the innermost function that is neither the system's nor a runtime's.
pub(super) fn callers(profile: &Profile, functions: &Functions) -> Vec<Option<FunctionId>> {
    let is_own = |frame| {
        let whose = profile.category(frame);
        matches!(whose, Category::User | Category::Unknown) && !profile.is_placeholder(frame)
    };
    let of_frame = |frame: FrameId| functions.of(frame).last().filter(|_| is_own(frame)).copied();
    let of_frames: Vec<_> = (0..profile.frames.keys().len() as u32).map(FrameId).map(of_frame).collect();
    let mut callers: Vec<Option<FunctionId>> = Vec::with_capacity(profile.tree.nodes().len());
    for node in profile.tree.nodes() {
        // Callers come before their callees.
        let above = node.parent().and_then(|NodeId(parent)| callers[parent as usize]);
        callers.push(of_frames[node.frame.0 as usize].or(above));
    }
    callers
}

/// Sums of equal runs, with both weights that may be listed.
#[derive(Clone, Copy, PartialEq, Default)]
pub(super) struct RunSums {
    pub samples: u64,
    pub weights: [u64; 2],
    pub waits: Amount,
}

impl Additive for RunSums {
    fn add(&mut self, more: RunSums) {
        self.samples.add(more.samples);
        self.weights.iter_mut().zip(more.weights).for_each(|(sum, more)| sum.add(more));
        self.waits.add(more.waits);
    }
}

impl RunSums {
    /// With the weight at `at`.
    pub(super) fn amount(&self, at: usize) -> Amount {
        Amount { samples: self.samples, weight_ns: self.weights[at] }
    }
}

/// What the samples of a sum have in common.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(super) struct Slot {
    /// The group of threads.
    pub thread: u32,
    /// What the threads did, if that is a key.
    pub activity: Option<Activity>,
    /// The number of the span of time, if that is a key.
    pub span: u64,
    /// The innermost own function, if that is a key.
    pub caller: Option<FunctionId>,
    /// What they do in the kernel, if they are there and kinds are a key.
    pub kernel: Option<KernelKind>,
    /// The stack of groups.
    pub stack: Option<NodeId>,
}

/// What a thread does in the kernel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum KernelKind {
    Wait,
    Call,
}
