//! The texts of nodes in V8's profiles.

use super::super::json;
use super::super::unfold::incomplete;
use super::stacks::NodeLabel;
use stk_profile::profile::{Function, Functions, Profile};

/// The nodes that every profile has: the root, and the one for times without samples.
pub(super) const ROOT: u32 = 1;
pub(super) const IDLE: u32 = 2;

/// Bytes of the ends of functions' nodes that are kept.
const MOST_KEPT: usize = 8 << 20;

/// The ends of nodes' texts, which nodes of one content have in common: each made once, while there
/// is room.
pub(super) struct LabelTexts {
    functions: Functions,
    /// By function.
    places: Vec<LabelPlace>,
    texts: Vec<u8>,
    /// By why stacks end.
    stops: Vec<Vec<u8>>,
}

struct LabelPlace {
    /// Where the text begins; `None`: it is not kept.
    first: Option<u32>,
    len: usize,
}

impl LabelTexts {
    pub(super) fn new(profile: &Profile, functions: Functions) -> LabelTexts {
        let (mut places, mut texts) = (Vec::with_capacity(functions.list().len()), Vec::new());
        for function in functions.list() {
            let first = texts.len();
            function_end(&mut texts, function);
            let len = texts.len() - first;
            let is_kept = texts.len() <= MOST_KEPT;
            if !is_kept {
                texts.truncate(first);
            }
            places.push(LabelPlace { first: is_kept.then_some(first as u32), len });
        }
        let stop_end = |stop| {
            let mut text = Vec::new();
            node_end(&mut text, &incomplete(stop).unwrap_or_default(), "", None);
            text
        };
        let stops = profile.stops.iter().map(stop_end).collect();
        LabelTexts { functions, places, texts, stops }
    }

    /// The length of a node's text.
    pub(super) fn node_len(&self, id: u32, parent: u32, label: NodeLabel) -> usize {
        let digits = |number: u32| number.checked_ilog10().unwrap_or(0) as usize + 1;
        let end = match label {
            NodeLabel::Function(function) => self.places[function as usize].len,
            NodeLabel::Incomplete(stop) => self.stops[usize::from(stop.0)].len(),
        };
        ID.len() + digits(id) + PARENT.len() + digits(parent) + end
    }

    /// Appends a node.
    pub(super) fn node(&self, out: &mut Vec<u8>, id: u32, parent: u32, label: NodeLabel) {
        node_begin(out, id, Some(parent));
        match label {
            NodeLabel::Function(function) => {
                let LabelPlace { first, len } = self.places[function as usize];
                match first {
                    Some(first) => out.extend_from_slice(&self.texts[first as usize..][..len]),
                    None => function_end(out, &self.functions.list()[function as usize]),
                }
            }
            NodeLabel::Incomplete(stop) => out.extend_from_slice(&self.stops[usize::from(stop.0)]),
        }
    }
}

/// The nodes that every profile has.
pub(super) fn first_nodes() -> Vec<u8> {
    let mut out = Vec::new();
    node_begin(&mut out, ROOT, None);
    node_end(&mut out, "(root)", "", None);
    out.push(b',');
    node_begin(&mut out, IDLE, Some(ROOT));
    node_end(&mut out, "(idle)", "", None);
    out
}

const ID: &[u8] = b"{\"id\":";
const PARENT: &[u8] = b",\"parent\":";

fn node_begin(out: &mut Vec<u8>, id: u32, parent: Option<u32>) {
    out.extend_from_slice(ID);
    json::number(out, id.into());
    if let Some(parent) = parent {
        out.extend_from_slice(PARENT);
        json::number(out, parent.into());
    }
}

fn node_end(out: &mut Vec<u8>, name: &str, file: &str, line: Option<u32>) {
    out.extend_from_slice(b",\"callFrame\":{\"codeType\":\"other\",\"scriptId\":0,\"functionName\":");
    json::string(out, name);
    if !file.is_empty() {
        out.extend_from_slice(b",\"url\":");
        json::string(out, file);
    }
    // V8 counts lines from 0.
    if let Some(line) = line.and_then(|line| line.checked_sub(1)) {
        out.extend_from_slice(b",\"lineNumber\":");
        json::number(out, line.into());
    }
    out.extend_from_slice(b"}}");
}

fn function_end(out: &mut Vec<u8>, function: &Function) {
    node_end(out, &function.name, function.file.as_deref().unwrap_or(""), function.line);
}

#[cfg(test)]
mod tests {
    use super::*;
    use stk_profile::profile::{StopId, StopInfo, TraceInfo};
    use stk_profile::stack::StopReason;

    #[test]
    fn the_length_of_a_node_is_that_of_its_text() {
        let mut profile = Profile::empty(TraceInfo::unknown(stk_schema::Arch::X64));
        profile.stops.push(StopInfo { reason: StopReason::StackLost, module: "a\"b.dll".to_owned() });
        let functions = Functions::new(&profile, false);
        let texts = LabelTexts::new(&profile, functions);
        for (id, parent) in [(1, 0), (10, 9), (99, 100), (u32::MAX, 1_000_000)] {
            let mut text = Vec::new();
            let label = NodeLabel::Incomplete(StopId(0));
            texts.node(&mut text, id, parent, label);
            assert_eq!(texts.node_len(id, parent, label), text.len(), "{}", String::from_utf8_lossy(&text));
        }
    }
}
