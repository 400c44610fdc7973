//! Ids that are hashes of content. They are equal in every trace, with or without symbols.
//! `stk_schema::tables` defines them.

use super::super::OutputError;
use super::trace_id::trace_id;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use stk_profile::profile::{FrameId, FrameKey, FrameKind, MethodPlace, NodeId, Placement, Profile, StrId};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Ids of a profile's locations, and of its stacks when they are requested.
pub(super) struct Ids {
    /// By frame.
    frames: Vec<StackFrame>,
    /// Each location once, with one of its frames.
    distinct: Vec<(i64, FrameId)>,
    /// By node: its place in `stacks`, plus one; 0 = it was not requested. Most nodes never are.
    places: Vec<u32>,
    stacks: Vec<StackFacts>,
    /// One node for each id.
    nodes: HashMap<i64, NodeId>,
    /// Of the stack that is looked at, innermost frame first.
    stack: Vec<StackFrame>,
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
        let places = vec![0; profile.tree.nodes().len()];
        Ok(Ids { frames, distinct, places, stacks: Vec::new(), nodes: HashMap::new(), stack: Vec::new() })
    }

    /// The location id of a frame.
    pub(super) fn location(&self, frame: FrameId) -> i64 {
        self.frames[frame.0 as usize].location
    }

    /// Every location once, by id.
    pub(super) fn locations(&self) -> &[(i64, FrameId)] {
        &self.distinct
    }

    /// The facts of a stack.
    pub(super) fn stack(&mut self, profile: &Profile, node: NodeId) -> Result<StackFacts, OutputError> {
        if let Some(known) = self.places[node.0 as usize].checked_sub(1) {
            return Ok(self.stacks[known as usize]);
        }
        let Ids { frames, stack, .. } = self;
        stack.clear();
        stack.extend(profile.tree.frames(node).map(|frame| frames[frame.0 as usize]));
        let mut hash = Xxh3::new();
        for frame in stack.iter().rev() {
            hash.update(&frame.location.to_le_bytes());
        }
        let id = hash.digest() as i64;
        let facts = StackFacts {
            id,
            depth: stack.len() as u32,
            named: stack.iter().filter(|frame| frame.named).count() as u32,
            proved: stack.iter().all(|frame| frame.proved),
        };
        self.stacks.push(facts);
        self.places[node.0 as usize] = self.stacks.len() as u32;
        match self.nodes.entry(id) {
            Entry::Vacant(free) => {
                free.insert(node);
            }
            Entry::Occupied(other) => {
                let other = *other.get();
                if !self.same(profile, node, other) {
                    let trace = profile.trace.source.clone();
                    return Err(OutputError::SameId { trace, things: "stacks", id });
                }
            }
        }
        Ok(facts)
    }

    /// Every stack that was requested, once, by id.
    pub(super) fn stacks(&self) -> Vec<(i64, NodeId)> {
        let mut stacks: Vec<(i64, NodeId)> = self.nodes.iter().map(|(&id, &node)| (id, node)).collect();
        stacks.sort_unstable();
        stacks
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
