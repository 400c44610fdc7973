//! Texts of stacks that several profiles have.

use stk_profile::profile::{ChainId, Chains, NodeId};

/// Bytes of the texts of stacks that are kept.
const MOST_KEPT: usize = 32 << 20;
/// Bytes of the text of a frame, about.
const FRAME: u64 = 6;

/// Texts of stacks above which nothing stands, made once for all profiles.
#[derive(Default)]
pub(super) struct KeptTexts {
    /// By chain: where the text of the stack that it ends with is; 0 = it is not kept.
    places: Vec<u32>,
    /// Texts, each behind its length in two bytes. The first byte belongs to none.
    texts: Vec<u8>,
}

/// Texts that are to be kept: those of a part of the stacks.
#[derive(Default)]
pub(super) struct NewTexts {
    /// Nodes, and where their text is.
    places: Vec<(NodeId, u32)>,
    texts: Vec<u8>,
}

impl NewTexts {
    /// Adds the text of some nodes.
    pub(super) fn add(&mut self, nodes: &[NodeId], text: &[u8]) {
        let Ok(len) = u16::try_from(text.len()) else { return };
        if self.texts.len() + text.len() <= MOST_KEPT {
            let place = self.texts.len() as u32;
            self.places.extend(nodes.iter().map(|&node| (node, place)));
            self.texts.extend_from_slice(&len.to_le_bytes());
            self.texts.extend_from_slice(text);
        }
    }
}

impl KeptTexts {
    /// Whether many of the stacks that have so many frames together could be kept.
    pub(super) fn are_worth_it(frames: u64) -> bool {
        frames.saturating_mul(FRAME) <= 4 * MOST_KEPT as u64
    }

    /// For a profile of so many chains.
    pub(super) fn new(chains: usize) -> KeptTexts {
        KeptTexts { places: vec![0; chains], texts: vec![0] }
    }

    /// Keeps these while there is room. The chains are those of the profile.
    pub(super) fn keep(&mut self, chains: &Chains, new: &NewTexts) {
        if self.texts.len() + new.texts.len() <= MOST_KEPT {
            let first = self.texts.len() as u32;
            self.texts.extend_from_slice(&new.texts);
            for &(node, place) in new.places.iter().filter(|(node, _)| chains.is_last(*node)) {
                self.places[chains.of_node(node).0 as usize] = first + place;
            }
        }
    }

    /// The text of the stack that a chain ends with.
    pub(super) fn get(&self, ChainId(chain): ChainId) -> Option<&[u8]> {
        let place = self.places.get(chain as usize).filter(|place| **place > 0)?;
        let (len, text) = self.texts[*place as usize..].split_first_chunk()?;
        text.get(..usize::from(u16::from_le_bytes(*len)))
    }
}
