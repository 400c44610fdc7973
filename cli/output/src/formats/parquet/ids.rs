//! Ids that are hashes of content. They are equal in every trace, with or without symbols.
//! `stk_schema::tables` defines them.

use super::super::OutputError;
use super::trace_id::trace_id;
use hashbrown::HashMap;
use rayon::prelude::*;
use stk_profile::profile::{
    CallTree, ChainId, FrameId, FrameKey, FrameKind, MethodPlace, NodeId, Placement, Profile, StrId, Visit,
};
use xxhash_rust::xxh3::xxh3_64;

/// Ids of a profile's locations, and of the stacks that are wanted.
pub(super) struct Ids {
    /// By frame.
    frames: Vec<StackFrame>,
    /// Each location once, with one of its frames.
    distinct: Vec<(i64, FrameId)>,
    /// By chain: its place in `facts`, plus one; 0 = it is not wanted.
    places: Vec<u32>,
    facts: Vec<StackFacts>,
    /// One stack for each id, by id.
    stacks: Vec<StackRow>,
}

/// A stack, its outermost frame first, with something of each frame. Kept from stack to stack,
/// since the next one mostly begins alike.
pub(super) struct StackPath<T> {
    nodes: Vec<NodeId>,
    frames: Vec<T>,
    /// Nodes that are to be added, the last one first.
    missing: Vec<NodeId>,
}

impl<T> Default for StackPath<T> {
    fn default() -> Self {
        StackPath { nodes: Vec::new(), frames: Vec::new(), missing: Vec::new() }
    }
}

impl<T> StackPath<T> {
    /// What `of` gives for each frame of a stack.
    pub(super) fn go(&mut self, tree: &CallTree, stack: NodeId, of: impl Fn(FrameId) -> T) -> &[T] {
        let StackPath { nodes, frames, missing } = self;
        let mut next = Some(stack);
        while let Some(node) = next {
            // A caller's number is smaller than those of its callees.
            while nodes.pop_if(|known| *known > node).is_some() {}
            if nodes.last() == Some(&node) {
                break;
            }
            missing.push(node);
            next = tree.nodes()[node.0 as usize].parent();
        }
        if next.is_none() {
            nodes.clear();
        }
        frames.truncate(nodes.len());
        while let Some(node) = missing.pop() {
            nodes.push(node);
            frames.push(of(tree.nodes()[node.0 as usize].frame));
        }
        frames
    }
}

/// A stack for the table of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StackRow {
    pub id: i64,
    pub node: NodeId,
    /// Number of frames.
    pub depth: u32,
}

/// What a stack needs to know of a frame.
#[derive(Clone, Copy)]
struct StackFrame {
    location: i64,
    /// It has a name from symbols.
    named: bool,
    /// It follows from recorded data.
    proved: bool,
}

/// What the rows of a stack's samples say of it.
#[derive(Clone, Copy)]
pub(super) struct StackFacts {
    pub id: i64,
    /// Number of frames.
    pub depth: u32,
    /// How many of them have a name from symbols.
    pub named: u32,
    /// Whether each frame follows from recorded data.
    pub proved: bool,
}

/// The content of a location id.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LocationKey {
    Image(u64, u32),
    /// In a managed method; the id of the function's name if it is an instance of a generic one.
    Method(MethodPlace, Option<u32>),
    /// In code made at run time: its instance, and the address.
    Code(u64, u64),
    Address(u64),
}

impl Ids {
    pub(super) fn new(profile: &Profile) -> Result<Ids, OutputError> {
        let trace_id = trace_id(profile);
        let mut known: HashMap<i64, LocationKey> = HashMap::new();
        let mut distinct = Vec::new();
        let mut frames = Vec::with_capacity(profile.frames.keys().len());
        for (i, &key) in profile.frames.keys().iter().enumerate() {
            let (location, id) = location(profile, &trace_id, FrameId(i as u32), key);
            match known.insert(id, location) {
                None => distinct.push((id, FrameId(i as u32))),
                Some(other) if other == location => {}
                Some(_) => {
                    let trace = profile.trace.source.clone();
                    return Err(OutputError::SameId { trace, things: "code locations", id });
                }
            }
            let named = profile.symbols.source[i].is_certain();
            frames.push(StackFrame { location: id, named, proved: key.trust.is_proved() });
        }
        distinct.sort_unstable();
        let places = vec![0; profile.tree.chains().len()];
        Ok(Ids { frames, distinct, places, facts: Vec::new(), stacks: Vec::new() })
    }

    /// The location id of a frame.
    fn location(&self, frame: FrameId) -> i64 {
        self.frames[frame.0 as usize].location
    }

    /// By frame: the place of its location among [`locations`](Self::locations).
    pub(super) fn places_of_frames(&self) -> Vec<u32> {
        let place = |frame: &StackFrame| self.distinct.partition_point(|(id, _)| *id < frame.location);
        self.frames.iter().map(|frame| place(frame) as u32).collect()
    }

    /// Every location once, by id.
    pub(super) fn locations(&self) -> &[(i64, FrameId)] {
        &self.distinct
    }

    /// Notes that the stack is wanted that a chain ends with.
    pub(super) fn want(&mut self, ChainId(chain): ChainId) {
        self.places[chain as usize] = 1;
    }

    /// Makes the ids of the stacks that are wanted. No other one is wanted later.
    pub(super) fn make_stacks(&mut self, profile: &Profile) -> Result<(), OutputError> {
        let Ids { frames, places, facts, .. } = self;
        let (chains, nodes) = (profile.tree.chains(), profile.tree.nodes());
        // Of the stack that is visited: its locations, in the bytes that its id is a hash of, and
        // how many of them have a name and are not proved.
        let (mut bytes, mut named, mut unproved) = (Vec::new(), 0, 0);
        let wanted = places.iter().filter(|place| **place > 0).count();
        let mut stacks = Vec::with_capacity(wanted);
        facts.reserve_exact(wanted);
        chains.callees().visit(|NodeId(chain), when| {
            let of_chain = &nodes[chains.nodes(ChainId(chain))];
            let frames = of_chain.iter().map(|node| frames[node.frame.0 as usize]);
            if when == Visit::Leave {
                bytes.truncate(bytes.len() - of_chain.len() * size_of::<i64>());
                for frame in frames {
                    (named, unproved) = (named - u32::from(frame.named), unproved - u32::from(!frame.proved));
                }
                return true;
            }
            for frame in frames {
                bytes.extend_from_slice(&frame.location.to_le_bytes());
                (named, unproved) = (named + u32::from(frame.named), unproved + u32::from(!frame.proved));
            }
            let place = &mut places[chain as usize];
            if *place > 0 {
                let (id, depth) = (xxh3_64(&bytes) as i64, (bytes.len() / size_of::<i64>()) as u32);
                facts.push(StackFacts { id, depth, named, proved: unproved == 0 });
                *place = facts.len() as u32;
                let node = chains.last(ChainId(chain));
                stacks.push(StackRow { id, node, depth });
            }
            true
        });
        stacks.par_sort_unstable();
        let mut same = None;
        stacks.dedup_by(|row, before| {
            let is_equal = row.id == before.id;
            if is_equal && !self.same(profile, row.node, before.node) {
                same = Some(row.id);
            }
            is_equal
        });
        self.stacks = stacks;
        let trace = || profile.trace.source.clone();
        same.map_or(Ok(()), |id| Err(OutputError::SameId { trace: trace(), things: "stacks", id }))
    }

    /// The facts of the stack that a chain ends with; `None` of one that is not wanted.
    pub(super) fn stack(&self, ChainId(chain): ChainId) -> Option<StackFacts> {
        let place = self.places[chain as usize].checked_sub(1)?;
        self.facts.get(place as usize).copied()
    }

    /// Every stack that is wanted, once, by id.
    pub(super) fn stacks(&self) -> &[StackRow] {
        &self.stacks
    }

    /// Whether two nodes are the same stack. They may differ in parts that do not count: images of
    /// equal identity, how frames were found, where a method's code lies.
    fn same(&self, profile: &Profile, a: NodeId, b: NodeId) -> bool {
        let content = |node| profile.tree.frames(node).map(|frame| self.location(frame));
        content(a).eq(content(b))
    }
}

/// Whether a frame's location has the same id in other traces.
pub(super) fn is_portable(profile: &Profile, frame: FrameId) -> bool {
    matches!(profile.frames.keys()[frame.0 as usize].place, Placement::Image(..))
        || il_place(profile, frame).is_some()
}

/// The place of code in a managed method that was compiled at run time, if its IL is known.
fn il_place(profile: &Profile, frame: FrameId) -> Option<MethodPlace> {
    let facts = profile.symbols.facts.get(frame.0 as usize)?;
    facts.method.filter(|place| facts.kind == FrameKind::Managed && place.il_offset.is_some())
}

/// The name of an instance of a generic method: all instances have the token of the method.
fn instance_name(profile: &Profile, frame: FrameId) -> Option<StrId> {
    let name = profile.symbols.names(frame).last()?.function;
    profile.symbols.strings.get(name).contains('[').then_some(name)
}

/// The bytes that identify a managed method.
fn method_bytes(profile: &Profile, frame: FrameId, what: &str, place: &MethodPlace) -> Vec<u8> {
    let mut bytes = what.as_bytes().to_vec();
    bytes.extend_from_slice(&place.module);
    bytes.extend_from_slice(&place.token.to_le_bytes());
    if let Some(offset) = place.il_offset {
        bytes.extend_from_slice(&offset.to_le_bytes());
    }
    if let Some(name) = instance_name(profile, frame) {
        bytes.extend_from_slice(profile.symbols.strings.get(name).as_bytes());
    }
    bytes
}

/// The function that holds a frame's address: its id, and its RVA if it is in an image.
pub(super) fn function(profile: &Profile, frame: FrameId) -> Option<(i64, Option<u32>)> {
    let facts = profile.symbols.facts.get(frame.0 as usize)?;
    let place = profile.frames.keys()[frame.0 as usize].place;
    let begin = match (place, facts.displacement) {
        (Placement::Image(image, rva), Some(displacement)) => Some((image, rva.checked_sub(displacement)?)),
        _ => None,
    };
    let rva = begin.map(|(_, rva)| rva);
    if let Some(method) = facts.method {
        let bytes = method_bytes(profile, frame, "method:", &MethodPlace { il_offset: None, ..method });
        return Some((xxh3_64(&bytes) as i64, rva));
    }
    let (image, begin) = begin?;
    let mut bytes = b"function:".to_vec();
    bytes.extend_from_slice(&profile.images[image.0 as usize].identity_hash.to_le_bytes());
    bytes.extend_from_slice(&u64::from(begin).to_le_bytes());
    Some((xxh3_64(&bytes) as i64, rva))
}

/// The address at which a frame's symbol is looked up, relative to its module if it has one. A
/// return address belongs to the call before it.
fn looked_up(profile: &Profile, key: FrameKey) -> u64 {
    let back = u64::from(!key.exact);
    match key.place {
        Placement::Image(_, rva) => u64::from(rva).saturating_sub(back),
        Placement::Code(region, offset) => {
            profile.code[region as usize].base.wrapping_add(offset.into()).saturating_sub(back)
        }
        Placement::Unknown(address) => address.saturating_sub(back),
    }
}

/// [`looked_up`] in an image.
pub(super) fn rva(profile: &Profile, key: FrameKey) -> Option<i64> {
    matches!(key.place, Placement::Image(..)).then(|| looked_up(profile, key) as i64)
}

/// [`looked_up`] outside of images.
pub(super) fn address(profile: &Profile, key: FrameKey) -> Option<i64> {
    (!matches!(key.place, Placement::Image(..))).then(|| looked_up(profile, key) as i64)
}

fn location(profile: &Profile, trace_id: &str, frame: FrameId, key: FrameKey) -> (LocationKey, i64) {
    let at = looked_up(profile, key);
    if !matches!(key.place, Placement::Image(..))
        && let Some(place) = il_place(profile, frame)
    {
        let bytes = method_bytes(profile, frame, "il:", &place);
        let name = instance_name(profile, frame).map(|name| name.0);
        return (LocationKey::Method(place, name), xxh3_64(&bytes) as i64);
    }
    match key.place {
        Placement::Image(image, _) => {
            let identity = profile.images[image.0 as usize].identity_hash;
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&identity.to_le_bytes());
            bytes[8..].copy_from_slice(&at.to_le_bytes());
            (LocationKey::Image(identity, at as u32), xxh3_64(&bytes) as i64)
        }
        Placement::Code(region, _) => {
            // Such an address is only valid in this trace, and only for this code: other code may
            // replace it at the same address.
            let instance = profile.code[region as usize].instance;
            let mut bytes = b"code:".to_vec();
            bytes.extend_from_slice(trace_id.as_bytes());
            bytes.extend_from_slice(&instance.to_le_bytes());
            bytes.extend_from_slice(&at.to_le_bytes());
            (LocationKey::Code(instance, at), xxh3_64(&bytes) as i64)
        }
        Placement::Unknown(_) => {
            let mut bytes = b"address:".to_vec();
            // An address is only valid in this trace; placeholders have one in all.
            if !profile.is_placeholder(frame) {
                bytes.extend_from_slice(trace_id.as_bytes());
            }
            bytes.extend_from_slice(&at.to_le_bytes());
            (LocationKey::Address(at), xxh3_64(&bytes) as i64)
        }
    }
}
