//! Texts of stacks that several profiles have.

use super::super::stack_sums::WeighedStacks;
use stk_profile::profile::NodeId;

/// Bytes of the texts of stacks that are kept.
const MOST_KEPT: usize = 16 << 20;

/// Texts of stacks above which nothing stands, made once for all profiles.
#[derive(Default)]
pub(super) struct KeptTexts {
    /// By stack, and once all are kept by node of the profile: where its text is; 0 = it is not
    /// kept.
    places: Vec<u32>,
    /// Texts, each behind its length in two bytes. The first byte belongs to none.
    texts: Vec<u8>,
}

impl KeptTexts {
    pub(super) fn of(stacks: &WeighedStacks) -> KeptTexts {
        KeptTexts { places: vec![0; stacks.len()], texts: vec![0] }
    }

    /// Keeps the text of a stack while there is room.
    pub(super) fn keep(&mut self, NodeId(stack): NodeId, text: &[u8]) {
        let Ok(len) = u16::try_from(text.len()) else { return };
        if self.texts.len() + text.len() <= MOST_KEPT {
            self.places[stack as usize] = self.texts.len() as u32;
            self.texts.extend_from_slice(&len.to_le_bytes());
            self.texts.extend_from_slice(text);
        }
    }

    /// All are kept: from now on they are found by the nodes of the profile.
    pub(super) fn close(&mut self, stacks: &WeighedStacks) {
        let place = |stack: &Option<NodeId>| stack.map_or(0, |NodeId(stack)| self.places[stack as usize]);
        self.places = stacks.of_nodes().iter().map(place).collect();
    }

    pub(super) fn get(&self, NodeId(node): NodeId) -> Option<&[u8]> {
        let place = self.places.get(node as usize).filter(|place| **place > 0)?;
        let (len, text) = self.texts[*place as usize..].split_first_chunk()?;
        text.get(..usize::from(u16::from_le_bytes(*len)))
    }
}
