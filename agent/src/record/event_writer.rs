//! Writes events other than samples into blocks, at once. Its thread may wait for a buffer.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use stk_format::{BlockBuffer, BlockKind, blob};
use stk_schema::Ticks;
use stk_schema::event::{DropReason, Event, ImageTable, ModuleFlags, ModuleLoad, ThreadFlags, ThreadStart};
use stk_schema::identity::ContentHash;

use super::files::Files;
use super::image::ImagePart;
use super::modules::Events;
use super::restated::RestatedEvents;
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

/// The block of one file that is being filled.
struct Stream {
    file: u32,
    block: Option<Box<BlockBuffer>>,
    kind: BlockKind,
}

/// Writes events into blocks, one block at a time.
pub(crate) struct EventWriter<P> {
    lane: Arc<Lane>,
    counters: Arc<Counters>,
    pace: P,
    now: Stream,
    /// The file before, while the next one's first blocks are written.
    before: Option<Stream>,
    /// The next file, while each event goes into both.
    next: Option<Stream>,
    /// What the next file restates.
    restated: Option<RestatedEvents>,
    /// Events about modules and threads that were written.
    listed: u64,
}

impl<P: Pace> EventWriter<P> {
    /// A journal that takes its buffers, of [`CAPACITY`] bytes, from `lane`.
    pub(crate) fn new(lane: Arc<Lane>, counters: Arc<Counters>, pace: P) -> EventWriter<P> {
        let now = Stream { file: lane.files().last(), block: None, kind: BlockKind::Meta };
        EventWriter { lane, counters, pace, now, before: None, next: None, restated: None, listed: 0 }
    }

    /// From now on keeps what the next file is to restate.
    pub(crate) fn keep(&mut self) {
        self.restated = Some(RestatedEvents::default());
    }

    /// The files of the recording.
    pub(crate) fn files(&self) -> &Arc<Files> {
        self.lane.files()
    }

    /// The file that events go into.
    pub(crate) fn file(&self) -> u32 {
        self.now.file
    }

    /// The following events go into blocks of this kind.
    pub(crate) fn switch(&mut self, kind: BlockKind) {
        for both in [false, true] {
            if self.stream(both).is_some_and(|stream| stream.kind != kind) {
                self.flush_one(both);
                if let Some(stream) = self.stream(both) {
                    stream.kind = kind;
                }
            }
        }
    }

    /// The following events go into the next file alone, until [`EventWriter::write_both`].
    pub(crate) fn begin_next(&mut self) {
        self.flush();
        let next = Stream { file: self.now.file + 1, block: None, kind: BlockKind::Meta };
        self.before = Some(core::mem::replace(&mut self.now, next));
    }

    /// After [`EventWriter::begin_next`]: the following events go into both files.
    pub(crate) fn write_both(&mut self) {
        self.flush();
        if let Some(before) = self.before.take() {
            self.next = Some(core::mem::replace(&mut self.now, before));
        }
    }

    /// Whether events go into two files.
    pub(crate) fn writes_both(&self) -> bool {
        self.next.is_some()
    }

    /// The following events go into the next file alone.
    pub(crate) fn turn(&mut self) {
        self.flush();
        self.now = match self.next.take() {
            Some(next) => next,
            None => Stream { file: self.now.file + 1, block: None, kind: BlockKind::Meta },
        };
    }

    /// Writes again what was kept.
    pub(crate) fn restate(&mut self) {
        let Some(restated) = self.restated.take() else { return };
        restated.each(|event| self.event(event));
        self.restated = Some(restated);
        self.flush();
    }

    /// How many events about modules and threads were written.
    pub(crate) fn listed(&self) -> u64 {
        self.listed
    }

    /// Hands the current block to the writer.
    pub(crate) fn flush(&mut self) {
        self.flush_one(false);
        self.flush_one(true);
    }

    fn stream(&mut self, next: bool) -> Option<&mut Stream> {
        if next { self.next.as_mut() } else { Some(&mut self.now) }
    }

    fn flush_one(&mut self, next: bool) {
        let Some(stream) = self.stream(next) else { return };
        let (file, kind) = (stream.file, stream.kind);
        if let Some(block) = stream.block.take() {
            if block.is_empty() {
                self.lane.put_back(block);
            } else {
                if kind == BlockKind::Meta {
                    self.counters.meta_blocks.fetch_add(1, Ordering::Relaxed);
                }
                self.lane.hand_over(file, block, self.counters.dropped.load(Ordering::Relaxed));
            }
        }
    }

    /// Writes `bytes` as BLOB events.
    pub(crate) fn blob(&mut self, hash: ContentHash, bytes: &[u8]) {
        let Some(pieces) = blob::pieces(hash, bytes, PIECE) else { return };
        let kind = self.now.kind;
        self.switch(BlockKind::Blob);
        for piece in pieces {
            self.event(&Event::Blob(piece));
        }
        self.switch(kind);
    }

    fn open(&mut self, next: bool) -> Option<&mut BlockBuffer> {
        let (file, kind, is_open) =
            self.stream(next).map(|stream| (stream.file, stream.kind, stream.block.is_some()))?;
        if !is_open {
            let mut block = loop {
                match self.lane.take_free(file) {
                    Some(block) => break block,
                    None if !self.pace.pause() => return None,
                    None => {}
                }
            };
            block.begin(kind, self.pace.now());
            self.stream(next)?.block = Some(block);
        }
        self.stream(next)?.block.as_deref_mut()
    }

    fn write(&mut self, event: &Event<'_>, next: bool) -> bool {
        for _ in 0..2 {
            let Some(block) = self.open(next) else { break };
            if block.push(event).is_ok() {
                return true;
            }
            self.flush_one(next);
        }
        false
    }
}

impl<P: Pace> Events for EventWriter<P> {
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
        if let Some(restated) = &mut self.restated {
            restated.note(event);
        }
        let mut written = self.write(event, false);
        if self.next.is_some() {
            written &= self.write(at_start(event).as_ref().unwrap_or(event), true);
        }
        if !written {
            self.counters.lose(DropReason::EventNotWritten, 1);
        }
    }
}

/// As a file states a thread or module that came before the file's samples begin.
fn at_start<'a>(event: &Event<'a>) -> Option<Event<'a>> {
    match event {
        Event::ThreadStart(start) => {
            Some(Event::ThreadStart(ThreadStart { flags: start.flags | ThreadFlags::AT_START, ..*start }))
        }
        Event::ModuleLoad(load) => {
            let flags = load.flags | ModuleFlags::AT_START;
            Some(Event::ModuleLoad(ModuleLoad { flags, ..load.clone() }))
        }
        _ => None,
    }
}

/// Stores tables outside of the trace.
pub(crate) trait TableStore {
    /// Stores `bytes` once under `hash`. If it returns false, the trace must carry them.
    fn put(&mut self, hash: ContentHash, bytes: &[u8]) -> bool;
}

/// The contents that the trace, or the store beside it, already holds.
#[derive(Default)]
pub(crate) struct StoredBlobs {
    known: BTreeSet<[u8; 16]>,
}

impl StoredBlobs {
    /// Stores a part once, and returns the entry by which MODULE_TABLES names it.
    pub(crate) fn put<P: Pace>(
        &mut self,
        part: &ImagePart,
        store: Option<&mut impl TableStore>,
        journal: &mut EventWriter<P>,
    ) -> ImageTable {
        let hash = blob::content_hash(&part.bytes);
        if self.known.insert(hash.0) && !store.is_some_and(|store| store.put(hash, &part.bytes)) {
            journal.blob(hash, &part.bytes);
        }
        ImageTable { kind: part.kind as u64, rva: part.rva, len: part.bytes.len() as u32, hash }
    }
}
