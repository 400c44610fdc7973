//! Events that each file of a recording states, for a trace of several files that states them once.

use std::collections::HashSet;
use stk_format::{BlockKind, FILE_HEADER_LEN, HEADER_KEY, Rewriter, event};
use stk_schema::Ticks;
use stk_schema::event::{Event, Metadata};
use xxhash_rust::xxh3::xxh3_128;

/// Most events that are remembered; later ones come again.
const MOST: usize = 4 << 20;
/// The metadata of one file's place in its recording.
const OF_ONE_FILE: [&[u8]; 5] =
    [b"rotation.id", b"rotation.index", b"rotation.previous_end", b"rotation.continued", b"rotation.turned"];

/// Passes on what the trace does not have yet, and its own header in place of a file's.
pub(super) struct Once {
    header: [u8; FILE_HEADER_LEN],
    /// Hashes of the events that came.
    known: HashSet<u128>,
    /// Whether the present block is of a file that continues another.
    continues: bool,
    /// Whether it is a STATE block.
    state: bool,
}

impl Once {
    pub(super) fn new(header: [u8; FILE_HEADER_LEN]) -> Once {
        Once { header, known: HashSet::new(), continues: false, state: false }
    }

    /// The following events are those of such a block.
    pub(super) fn begin_block(&mut self, kind: BlockKind, continues: bool) {
        (self.state, self.continues) = (kind == BlockKind::State, continues);
    }

    /// Takes note of an event; whether the trace has it.
    fn has(&mut self, event: &Event<'_>) -> bool {
        // A time in it is the same in each file.
        let hash = xxh3_128(&event::encode(event, Ticks::ZERO));
        if self.known.contains(&hash) {
            return true;
        }
        if self.known.len() < MOST {
            self.known.insert(hash);
        }
        false
    }
}

impl Rewriter for Once {
    fn word(&mut self, word: u64) -> u64 {
        word
    }

    fn event(&mut self, event: &Event<'_>, put: &mut dyn FnMut(&Event<'_>)) {
        match event {
            Event::Metadata(fact) if fact.key == HEADER_KEY => {
                put(&Event::Metadata(Metadata { key: HEADER_KEY, value: &self.header }));
            }
            Event::Metadata(fact) if OF_ONE_FILE.contains(&fact.key) => {}
            // The rate and the pause in force, which the file before said.
            Event::RateChange(_) if self.state && self.continues => {}
            Event::Metadata(_)
            | Event::RuntimeInfo(_)
            | Event::CodeAdd(_)
            | Event::MethodName(_)
            | Event::MethodBody(_)
            | Event::FrameMethod(_)
            | Event::Nettrace(_)
            | Event::Blob(_) => {
                // Within a file, what is said twice is meant twice.
                if !self.has(event) || !self.continues {
                    put(event);
                }
            }
            _ => put(event),
        }
    }
}
