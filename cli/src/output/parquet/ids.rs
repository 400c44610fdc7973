//! Ids that are hashes of content. They are equal in every trace, with or without symbols.
//! `stk_schema::tables` defines them.

use super::super::OutputError;
use super::dataset::trace_id;
use crate::profile::{FrameId, FrameKey, NodeId, Placement, Profile};
use std::collections::HashMap;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Ids of a profile's locations, and of its stacks when they are requested.
pub(super) struct Ids {
    /// By frame.
    locations: Vec<i64>,
    /// Each location once, with one of its frames.
    distinct: Vec<(i64, FrameId)>,
    /// Id and depth by node, 0 = not yet known (no stack has a depth of 0).
    stacks: Vec<(i64, u32)>,
    /// One node for each id.
    nodes: HashMap<i64, NodeId>,
    frames: Vec<FrameId>,
}

/// The content of a location id.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LocationKey {
    Image(u64, u32),
    /// In code made at run time: its instance, and the address.
    Code(u64, u64),
    Address(u64),
}

impl Ids {
    pub(super) fn new(profile: &Profile) -> Result<Ids, OutputError> {
        let trace_id = trace_id(profile);
        let mut known: HashMap<i64, LocationKey> = HashMap::new();
        let mut distinct = Vec::new();
        let mut locations = Vec::with_capacity(profile.frames.keys().len());
        for (i, &key) in profile.frames.keys().iter().enumerate() {
            let (location, id) = location(profile, &trace_id, key);
            match known.insert(id, location) {
                None => distinct.push((id, FrameId(i as u32))),
                Some(other) if other == location => {}
                Some(_) => {
                    let trace = profile.trace.source.clone();
                    return Err(OutputError::SameId { trace, things: "code locations", id });
                }
            }
            locations.push(id);
        }
        distinct.sort_unstable();
        let stacks = vec![(0, 0); profile.tree.nodes().len()];
        Ok(Ids { locations, distinct, stacks, nodes: HashMap::new(), frames: Vec::new() })
    }

    /// The location id of a frame.
    pub(super) fn location(&self, frame: FrameId) -> i64 {
        self.locations[frame.0 as usize]
    }

    /// Every location once, by id.
    pub(super) fn locations(&self) -> &[(i64, FrameId)] {
        &self.distinct
    }

    /// The stack id and the depth of a stack.
    pub(super) fn stack(&mut self, profile: &Profile, node: NodeId) -> Result<(i64, u32), OutputError> {
        let known = self.stacks[node.0 as usize];
        if known.1 != 0 {
            return Ok(known);
        }
        self.frames.clear();
        self.frames.extend(profile.tree.frames(node));
        let mut hash = Xxh3::new();
        for &frame in self.frames.iter().rev() {
            hash.update(&self.locations[frame.0 as usize].to_le_bytes());
            hash.update(profile.frames.keys()[frame.0 as usize].trust.as_str().as_bytes());
            hash.update(&[0]);
        }
        let id = hash.digest() as i64;
        let result = (id, self.frames.len() as u32);
        self.stacks[node.0 as usize] = result;
        if let Some(other) = self.nodes.insert(id, node)
            && !self.same(profile, node, other)
        {
            let trace = profile.trace.source.clone();
            return Err(OutputError::SameId { trace, things: "stacks", id });
        }
        Ok(result)
    }

    /// Every stack that was requested, once, by id.
    pub(super) fn stacks(&self) -> Vec<(i64, NodeId)> {
        let mut stacks: Vec<(i64, NodeId)> = self.nodes.iter().map(|(&id, &node)| (id, node)).collect();
        stacks.sort_unstable();
        stacks
    }

    /// Whether two nodes are the same stack. They may differ in parts that do not count (images of
    /// equal identity).
    fn same(&self, profile: &Profile, a: NodeId, b: NodeId) -> bool {
        let content = |node| {
            profile.tree.frames(node).map(|frame| {
                (self.locations[frame.0 as usize], profile.frames.keys()[frame.0 as usize].trust.as_str())
            })
        };
        content(a).eq(content(b))
    }
}

/// The address at which a frame's symbol is looked up, relative to its module if it has one. A
/// return address belongs to the call before it.
pub(super) fn looked_up(profile: &Profile, key: FrameKey) -> u64 {
    let back = u64::from(!key.exact);
    match key.place {
        Placement::Image(_, rva) => u64::from(rva).saturating_sub(back),
        Placement::Code(region, offset) => {
            profile.code[region as usize].base.wrapping_add(offset.into()).saturating_sub(back)
        }
        Placement::Unknown(address) => address.saturating_sub(back),
    }
}

fn location(profile: &Profile, trace_id: &str, key: FrameKey) -> (LocationKey, i64) {
    let at = looked_up(profile, key);
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
            // Such an address is only valid in this trace.
            let mut bytes = b"address:".to_vec();
            bytes.extend_from_slice(trace_id.as_bytes());
            bytes.extend_from_slice(&at.to_le_bytes());
            (LocationKey::Address(at), xxh3_64(&bytes) as i64)
        }
    }
}
