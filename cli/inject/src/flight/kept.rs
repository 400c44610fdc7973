//! What of a recording no STATE block restates: tables, metadata, code, names of methods. It is
//! kept as long as the recording lasts, up to a limit.

use stk_format::{BlockHeader, BlockKind, FileHeader, HEADER_KEY, Rewriter, Scratch, Trace, rewrite_events};
use stk_schema::event::Event;
use stk_schema::flight::KEPT_BYTES;

/// A block, or what is kept of one.
pub(super) enum Piece {
    /// A BLOB block, header and payload.
    Stored(BlockHeader, Vec<u8>),
    /// Events of a META or STATE block, and their number.
    Events(BlockHeader, Vec<u8>, u32),
}

impl Piece {
    pub(super) fn header(&self) -> &BlockHeader {
        match self {
            Piece::Stored(header, _) | Piece::Events(header, ..) => header,
        }
    }
}

/// The pieces, in their order.
#[derive(Default)]
pub(super) struct Kept {
    pub(super) pieces: Vec<Piece>,
    bytes: usize,
    /// Pieces for which there was no room.
    pub(super) left_out: u64,
}

impl Kept {
    /// Keeps a BLOB block.
    pub(super) fn blob(&mut self, header: &BlockHeader, bytes: Vec<u8>) {
        let len = bytes.len();
        self.push(len, Piece::Stored(*header, bytes));
    }

    /// Keeps events of a block. Returns the number of its marks and exceptions.
    pub(super) fn events(
        &mut self,
        header: &FileHeader,
        block: &BlockHeader,
        bytes: &[u8],
        scratch: &mut Scratch,
    ) -> usize {
        let mut file = header.encode().to_vec();
        file.extend_from_slice(bytes);
        let Ok(trace) = Trace::open(&file) else { return 0 };
        let Some(found) = trace.blocks().first() else { return 0 };
        let Ok(raw) = trace.payload(found, scratch) else { return 0 };
        let mut filter = Filter::default();
        let mut out = Vec::new();
        let Ok(events) = rewrite_events(raw, block, header.word(), &mut filter, &mut out) else { return 0 };
        if events != 0 {
            out.shrink_to_fit();
            // A STATE block restates more than is kept of it.
            let block = BlockHeader { kind: BlockKind::Meta, ..*block };
            self.push(out.len(), Piece::Events(block, out, events));
        }
        filter.triggers
    }

    fn push(&mut self, bytes: usize, piece: Piece) {
        let bytes = bytes + size_of::<Piece>();
        if self.bytes + bytes > KEPT_BYTES {
            self.left_out += 1;
            return;
        }
        self.bytes += bytes;
        self.pieces.push(piece);
    }
}

/// Passes on the events that are kept.
#[derive(Default)]
struct Filter {
    triggers: usize,
}

impl Rewriter for Filter {
    fn word(&mut self, word: u64) -> u64 {
        word
    }

    fn event(&mut self, event: &Event<'_>, put: &mut dyn FnMut(&Event<'_>)) {
        match event {
            Event::Metadata(fact) if fact.key == HEADER_KEY => {}
            Event::Metadata(_)
            | Event::RuntimeInfo(_)
            | Event::CodeAdd(_)
            | Event::CodeRemove { .. }
            | Event::MethodName(_)
            | Event::MethodBody(_)
            | Event::FrameMethod(_)
            | Event::Nettrace(_)
            | Event::Redaction(_)
            | Event::Parent(_)
            | Event::RateChange(_) => put(event),
            Event::Mark(_) | Event::Exception(_) => self.triggers += 1,
            _ => {}
        }
    }
}
