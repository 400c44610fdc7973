//! Writes events other than samples into blocks, at once. Its thread may wait for a buffer.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use stk_format::{BlockBuffer, BlockKind, blob};
use stk_schema::Ticks;
use stk_schema::event::{DropReason, Event, Table};
use stk_schema::identity::ContentHash;

use super::image::Part;
use super::modules::Events;
use super::shared::{Counters, Lane};

/// Event bytes that the journal's buffers hold.
pub(crate) const CAPACITY: usize = 2 << 20;
/// Bytes of a BLOB per event: several fit a buffer.
const PIECE: usize = 256 << 10;

/// The clock of the journal's thread, and how it waits.
pub(crate) trait Pace {
    /// Now.
    fn now(&self) -> Ticks;

    /// Waits a little for the writer. False to give up, because the recording is ending without it.
    fn pause(&self) -> bool;
}

/// Writes events into blocks, one block at a time.
pub(crate) struct Journal<P> {
    lane: Arc<Lane>,
    counters: Arc<Counters>,
    pace: P,
    block: Option<Box<BlockBuffer>>,
    kind: BlockKind,
    /// Events about modules and threads that were written.
    listed: u64,
}

impl<P: Pace> Journal<P> {
    /// A journal that takes its buffers, of [`CAPACITY`] bytes, from `lane`.
    pub(crate) fn new(lane: Arc<Lane>, counters: Arc<Counters>, pace: P) -> Journal<P> {
        Journal { lane, counters, pace, block: None, kind: BlockKind::Meta, listed: 0 }
    }

    /// The following events go into blocks of this kind.
    pub(crate) fn switch(&mut self, kind: BlockKind) {
        if kind != self.kind {
            self.flush();
            self.kind = kind;
        }
    }

    /// How many events about modules and threads were written.
    pub(crate) fn listed(&self) -> u64 {
        self.listed
    }

    /// Hands the current block to the writer.
    pub(crate) fn flush(&mut self) {
        if let Some(mut block) = self.block.take() {
            if block.is_empty() {
                self.lane.put_back(block);
            } else {
                block.set_dropped(self.counters.dropped.load(Ordering::Relaxed));
                if self.kind == BlockKind::Meta {
                    self.counters.meta_blocks.fetch_add(1, Ordering::Relaxed);
                }
                self.lane.hand_over(block);
            }
        }
    }

    /// Writes `bytes` as BLOB events.
    pub(crate) fn blob(&mut self, hash: ContentHash, bytes: &[u8]) {
        let Some(pieces) = blob::pieces(hash, bytes, PIECE) else { return };
        let kind = self.kind;
        self.switch(BlockKind::Blob);
        for piece in pieces {
            self.event(&Event::Blob(piece));
        }
        self.switch(kind);
    }

    fn open(&mut self) -> Option<&mut BlockBuffer> {
        if self.block.is_none() {
            let mut block = loop {
                match self.lane.take_free() {
                    Some(block) => break block,
                    None if !self.pace.pause() => return None,
                    None => {}
                }
            };
            block.begin(self.kind, self.pace.now());
            self.block = Some(block);
        }
        self.block.as_deref_mut()
    }
}

impl<P: Pace> Events for Journal<P> {
    fn event(&mut self, event: &Event<'_>) {
        self.listed += u64::from(matches!(
            event,
            Event::ModuleLoad(_)
                | Event::ModuleUnload { .. }
                | Event::ModuleTables(_)
                | Event::ThreadStart(_)
                | Event::ThreadExit { .. }
                | Event::ThreadName { .. }
        ));
        for _ in 0..2 {
            let Some(block) = self.open() else { break };
            if block.push(event).is_ok() {
                return;
            }
            self.flush();
        }
        self.counters.lose(DropReason::EventNotWritten, 1);
    }
}

/// Stores tables outside of the trace.
pub(crate) trait TableStore {
    /// Stores `bytes` once under `hash`. If it returns false, the trace must carry them.
    fn put(&mut self, hash: ContentHash, bytes: &[u8]) -> bool;
}

/// The contents that the trace, or the store beside it, already holds.
#[derive(Default)]
pub(crate) struct Contents {
    known: BTreeSet<[u8; 16]>,
}

impl Contents {
    /// Stores a part once, and returns the entry by which MODULE_TABLES names it.
    pub(crate) fn put<P: Pace>(
        &mut self,
        part: &Part,
        store: Option<&mut impl TableStore>,
        journal: &mut Journal<P>,
    ) -> Table {
        let hash = blob::content_hash(&part.bytes);
        if self.known.insert(hash.0) && !store.is_some_and(|store| store.put(hash, &part.bytes)) {
            journal.blob(hash, &part.bytes);
        }
        Table { kind: part.kind as u64, rva: part.rva, len: part.bytes.len() as u32, hash }
    }
}
