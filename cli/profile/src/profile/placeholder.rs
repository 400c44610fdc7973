//! Frames of stacks that stand for what is not known: why a sample has no stack, and what a thread
//! ran before it waited. With them, such samples are a row in every list, graph and page.

use super::{Activity, CallTree, FrameId, FrameKind, Node, NodeId, Profile, Run, RunFlags, Runs};
use crate::stack::{FrameFacts, FrameKey, NameSource, NamedFrame, Placement};
use crate::trace::Trace;
use std::collections::{HashMap, HashSet};
use std::io;
use stk_base::model::ImageId;
use stk_schema::event::ModuleFlags;
use stk_unwind::Trust;

/// The function of CPU time that a thread used before a wait, where no sample shows what it ran.
const BEFORE_WAIT: &str = "[before this wait]";
/// The function of what the recorder does on a thread of the program.
const RECORDER: &str = "[recorder's own work]";
/// The function of samples whose frames are all left out.
const LEFT_OUT: &str = "[frames left out]";

impl Profile {
    /// Whether a frame stands for what is not known.
    pub fn is_placeholder(&self, frame: FrameId) -> bool {
        self.kind(frame) == FrameKind::Placeholder
    }

    /// By frame: whether it stands for what is not known. For passes over nodes, which read facts
    /// of frames in no order.
    pub fn placeholders(&self) -> Vec<bool> {
        (0..self.frames.keys().len() as u32).map(|frame| self.is_placeholder(FrameId(frame))).collect()
    }

    /// Adds a frame with this text for a name. No code has its key: addresses end before those of
    /// placeholders, which are equal in all profiles.
    pub(super) fn add_placeholder(&mut self, text: &str) -> FrameId {
        let digest = text.bytes().fold(0u16, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        let place = Placement::Unknown(u64::MAX << 16 | u64::from(digest));
        let id = self.frames.push(FrameKey { place, exact: true, trust: Trust::Context });
        let symbols = &mut self.symbols;
        let function = symbols.strings.intern(text);
        symbols.named.push(NamedFrame { function, file: None, line: None, inline: false });
        symbols.starts.push(symbols.named.len() as u32);
        symbols.source.push(NameSource::None);
        symbols.reason.push(None);
        symbols.facts.push(FrameFacts { kind: FrameKind::Placeholder, ..FrameFacts::default() });
        id
    }
}

/// Gives samples without a stack a stack of one frame: `[no stack: REASON]`, or that their frames
/// are left out. The profile has names.
pub fn fill_stacks(profile: &mut Profile, runs: Runs) -> io::Result<Runs> {
    if !runs.lack_stacks()? {
        return Ok(runs);
    }
    let mut nodes: HashMap<String, NodeId> = HashMap::new();
    let mut out = Runs::with_limit(runs.limit());
    runs.for_each(|batch| {
        for run in batch.runs {
            let run = match run.node {
                Some(_) => *run,
                None => {
                    let reason = profile.stops[usize::from(run.stop.0)].reason;
                    let text = match reason.is_without_walk() {
                        true => format!("[no stack: {}]", reason.as_str()),
                        false => LEFT_OUT.to_owned(),
                    };
                    let node = *nodes.entry(text).or_insert_with_key(|text| {
                        let frame = profile.add_placeholder(text);
                        profile.tree.intern(Node { parent: None, frame })
                    });
                    Run { node: Some(node), flags: run.flags | RunFlags::NO_STACK, ..*run }
                }
            };
            out.push(batch.thread, run)?;
        }
        Ok::<(), io::Error>(())
    })?;
    Ok(out)
}

/// Names what the recorder does on the program's own threads, such as in `stk_capture` or as a
/// module is loaded: one function, [`RECORDER`], stands for its code and all that this calls.
pub fn name_recorder(profile: &mut Profile, runs: &mut Runs, trace: &Trace<'_>) {
    let own = trace.timeline.modules.iter().filter(|module| module.flags.contains(ModuleFlags::RECORDER));
    let own: HashSet<ImageId> = own.map(|module| module.image).collect();
    let keys = profile.frames.keys().iter();
    let is_own = |key: &FrameKey| matches!(key.place, Placement::Image(image, _) if own.contains(&image));
    let is_own: Vec<bool> = keys.map(is_own).collect();
    if !is_own.contains(&true) {
        return;
    }
    let recorder = profile.add_placeholder(RECORDER);
    let mut tree = CallTree::default();
    let mut nodes: Vec<NodeId> = Vec::with_capacity(profile.tree.nodes().len());
    for node in profile.tree.nodes() {
        // A parent comes before its children.
        let parent = node.parent().map(|parent| nodes[parent.0 as usize]);
        let below = parent.filter(|parent| tree.nodes()[parent.0 as usize].frame == recorder);
        let frame = if is_own[node.frame.0 as usize] { recorder } else { node.frame };
        nodes.push(below.unwrap_or_else(|| tree.intern(Node { parent, frame })));
    }
    profile.tree = tree;
    runs.map_nodes(nodes.into_iter().map(Some).collect());
}

/// The stacks of what threads ran before they waited: `[before this wait]`, called by the innermost
/// function around the wait that is not the system's.
#[derive(Default)]
pub(super) struct BeforeWaits {
    /// By stack that waits.
    pub(super) nodes: HashMap<NodeId, NodeId>,
}

impl BeforeWaits {
    /// For these waiting stacks, each with that caller.
    pub(super) fn new(profile: &mut Profile, waits: Vec<(NodeId, Option<NodeId>)>) -> BeforeWaits {
        let mut nodes = HashMap::with_capacity(waits.len());
        if !waits.is_empty() {
            let frame = profile.add_placeholder(BEFORE_WAIT);
            let tree: &mut CallTree = &mut profile.tree;
            nodes.extend(waits.into_iter().map(|(wait, parent)| (wait, tree.intern(Node { parent, frame }))));
        }
        BeforeWaits { nodes }
    }

    /// Whether a run waits in one of the stacks.
    pub(super) fn is_of(&self, run: &Run) -> bool {
        run.activity.wait().is_some() && run.node.is_some_and(|node| self.nodes.contains_key(&node))
    }

    /// A run of no time and no samples for the CPU time of a run that waits.
    pub(super) fn run(&self, run: &Run, cpu_ns: u64) -> Option<Run> {
        let node = *self.nodes.get(&run.node?)?;
        Some(Run {
            node: Some(node),
            last_ns: run.first_ns,
            weight_ns: 0,
            samples: 0,
            cpu_ns,
            activity: Activity::OnCpu,
            flags: RunFlags::empty(),
            capture_tag: 0,
            ..*run
        })
    }
}
