//! Opens a `.stk` file and reads, in a first pass, everything but the samples: which modules were
//! loaded where and when, which threads ran, and where in the trace the parts of images lie.
//! Samples are decoded on demand.
//!
//! ```text
//! timeline          modules, threads and facts over time                events -> Timeline, View
//! code              dynamic code over time                              CODE_ADD -> CodeRegion
//! blobs, tables     the images' parts: in the trace, in shared folders  hash -> bytes
//! runtime_events    what language runtimes reported about their methods
//! managed           what a runtime reported about a thread at a sample
//! snapshot          the stacks of all threads at one moment             time -> Snapshot
//! follow            a trace that is still written: what is new            file -> bytes
//! events            what happened when: captures, marks, loads ...      Trace -> TraceEvent
//! pauses            when the recording was paused                       Trace -> Pauses
//! gaps              when samples are missing, and why                   Trace -> Gap
//! budget            how much of a trace is kept in memory
//! changes           goes along a list of changes in time
//! clock, registers  ticks to nanoseconds; recorded registers as the walker takes them
//! content           what a file holds, whatever its name is             file -> Content
//! known             BLOB blocks that traces before had
//! ```

mod blobs;
mod budget;
mod changes;
mod clock;
mod code;
mod content;
mod events;
mod follow;
mod gaps;
mod known;
mod managed;
mod pauses;
mod registers;
mod runtime_events;
mod snapshot;
mod tables;
mod timeline;

pub use blobs::{BlobPlace, BlobProblem, Blobs};
pub use budget::Budget;
pub use clock::Clock;
pub use code::CodeRegion;
pub use content::{Content, REDACTED_FROM, stand_ins};
pub(crate) use events::{BlockEvents, events_beside};
pub use events::{EventKind, SamplePlace, SeenEvents, TraceEvent, TraceEvents, events};
pub use follow::{Fate, FollowLosses, TraceTail};
pub use gaps::{Gap, gaps};
pub use known::{BlockId, KnownBlocks};
pub use managed::{ManagedState, ManagedTracker, SampleCopy, take as take_managed};
pub use pauses::Pauses;
pub use registers::{registers, walk_input};
pub use runtime_events::{NamedCode, Nettrace, RuntimeEvents, runtime_events};
pub use snapshot::{Snapshot, samples_at, snapshots};
pub use tables::{TableFolders, TableProblem};
pub use timeline::{
    ImageRecord, LiveModule, Mark, Module, RecordingEnd, Runtime, Thread, Timeline, TimelineBuilder,
    TimelineCursor, drop_reason_name,
};

use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stk_base::map::MappedFile;
use stk_base::model::ImageId;
use stk_format::{BlockHeader, BlockKind, BlockRef, Damage, FileHeader, OpenError, Scratch};
use stk_schema::Ticks;
use stk_schema::event::{Event, ModuleFlags};
use stk_schema::text::hex;

/// Why a trace cannot be read at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file cannot be opened or mapped.
    #[error("{}: {cause}", path.display())]
    Io {
        path: PathBuf,
        /// The error of the system.
        cause: io::Error,
    },
    /// The bytes are not a trace that this version reads.
    #[error("{}: {cause}", path.display())]
    Open {
        /// Path of the file.
        path: PathBuf,
        cause: OpenError,
    },
}

/// A trace whose first pass is done. It borrows the file's bytes, which [`TraceFile`] holds.
pub struct Trace<'a> {
    /// Path or name, for messages.
    pub source: String,
    /// Modules, threads and facts.
    pub timeline: Timeline,
    pub clock: Clock,
    /// Parts of images and other byte strings.
    pub blobs: Blobs,
    /// What is wrong with its blocks outside SAMPLES, one sentence each.
    pub damage: Vec<String>,
    /// Whether damage cost completed blocks (a file that only ends early has lost none).
    pub lost_blocks: bool,
    /// Memory that may still be used for it.
    pub budget: Budget,
    blocks: stk_format::Trace<'a>,
    /// Bytes of the file.
    len: u64,
    file: Option<&'a MappedFile>,
}

/// A mapped `.stk` file.
#[derive(Debug)]
pub struct TraceFile {
    path: PathBuf,
    bytes: MappedFile,
    memory: Option<u64>,
    known: Option<Arc<KnownBlocks>>,
}

impl TraceFile {
    /// Maps a file.
    pub fn open(path: &Path) -> Result<TraceFile, TraceError> {
        let bytes =
            MappedFile::open(path).map_err(|cause| TraceError::Io { path: path.to_owned(), cause })?;
        Ok(TraceFile::of_map(path, bytes))
    }

    /// A file that is already mapped.
    pub fn of_map(path: &Path, bytes: MappedFile) -> TraceFile {
        TraceFile { path: path.to_owned(), bytes, memory: None, known: None }
    }

    /// Bytes in memory in place of those of the file at `path`.
    pub fn of_bytes(path: &Path, bytes: Vec<u8>) -> TraceFile {
        TraceFile::of_map(path, MappedFile::from(bytes))
    }

    /// Limits the memory for what is kept of the trace. The default is 256 MiB plus 8 bytes for
    /// each byte of the file.
    pub fn within(mut self, memory: Option<u64>) -> TraceFile {
        self.memory = memory;
        self
    }

    /// What is known of the blocks of traces before is used and extended.
    pub fn knowing(mut self, known: Option<Arc<KnownBlocks>>) -> TraceFile {
        self.known = known;
        self
    }

    /// Bytes of the file.
    pub fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it can be opened again by its path. A pipe can be read only once.
    pub fn can_be_reopened(&self) -> bool {
        self.bytes.is_mapped()
    }

    /// Whether the file is empty.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Does the first pass. Damage is not an error as long as there is a header: see
    /// [`Trace::damage`].
    ///
    /// # Errors
    ///
    /// When the file is not a trace that this version reads.
    pub fn read(&self) -> Result<Trace<'_>, TraceError> {
        let budget = self.memory.map_or_else(|| Budget::of_file(self.bytes.len()), Budget::new);
        let source = self.path.display().to_string();
        let mut trace = Trace::read_knowing(&self.bytes, &source, budget, self.known.as_deref())
            .map_err(|cause| TraceError::Open { path: self.path.clone(), cause })?;
        trace.file = Some(&self.bytes);
        if let Some(lost) = trace.lost() {
            trace.damage.push(lost);
            trace.lost_blocks = true;
        }
        trace.release(self.bytes.len());
        Ok(trace)
    }
}

impl<'a> Trace<'a> {
    /// Does the first pass over a trace in memory. `source` names it in messages.
    ///
    /// # Errors
    ///
    /// When the bytes are not a trace that this version reads.
    pub fn read(data: &'a [u8], source: &str) -> Result<Trace<'a>, OpenError> {
        Trace::read_within(data, source, Budget::of_file(data.len()))
    }

    /// [`read`](Self::read) with a memory budget. Content that does not fit counts as damage.
    ///
    /// # Errors
    ///
    /// When the bytes are not a trace that this version reads.
    pub fn read_within(data: &'a [u8], source: &str, budget: Budget) -> Result<Trace<'a>, OpenError> {
        Trace::read_knowing(data, source, budget, None)
    }

    fn read_knowing(
        data: &'a [u8],
        source: &str,
        budget: Budget,
        known: Option<&KnownBlocks>,
    ) -> Result<Trace<'a>, OpenError> {
        let mut blocks = stk_format::Trace::open(data)?;
        let mut damage: Vec<String> = blocks.damage().iter().map(ToString::to_string).collect();
        let opening = damage.len();
        let timeline = read_timeline(&mut blocks, &budget, &mut damage);
        let blobs = Blobs::locate(&blocks, &budget, known, &mut damage);
        Ok(Trace {
            source: source.to_owned(),
            timeline,
            clock: Clock::new(blocks.header()),
            blobs,
            lost_blocks: damage.len() > opening
                || blocks.damage().iter().any(|damage| loses(&blocks, damage)),
            damage,
            budget,
            blocks,
            len: data.len() as u64,
            file: None,
        })
    }

    /// Bytes of the file.
    pub fn file_len(&self) -> u64 {
        self.len
    }

    pub fn header(&self) -> &FileHeader {
        self.blocks.header()
    }

    /// The reader of the trace's blocks.
    pub fn blocks(&self) -> &stk_format::Trace<'a> {
        &self.blocks
    }

    /// The SAMPLES blocks in file order.
    pub fn sample_blocks(&self) -> impl Iterator<Item = &BlockRef> {
        self.blocks.blocks().iter().filter(|block| block.header.kind == BlockKind::Samples)
    }

    /// When threads were looked at first and last, in nanoseconds since trace start, by the blocks'
    /// headers; `None` = never.
    pub fn sampled_ns(&self) -> Option<(u64, u64)> {
        let first = self.sample_blocks().map(|block| block.header.first).min()?;
        let last = self.sample_blocks().map(|block| block.header.last).max()?;
        Some((self.clock.ns(first), self.clock.ns(last)))
    }

    /// Number of samples, by the blocks' headers.
    pub fn samples(&self) -> u64 {
        self.sample_blocks().map(|block| u64::from(block.header.samples)).sum()
    }

    /// Time of the last event.
    pub fn last(&self) -> Ticks {
        let blocks = self.blocks.blocks().iter().map(|block| block.header.last).max().unwrap_or_default();
        blocks.max(self.timeline.last).max(self.header().clock_start)
    }

    /// Nominal time between two samples of a thread, in nanoseconds; a millisecond if the trace
    /// does not state it.
    pub fn interval_ns(&self) -> u64 {
        match self.header().rate_mhz {
            0 => 1_000_000,
            rate => 1_000_000_000_000 / u64::from(rate),
        }
    }

    /// UUID of the trace, 32 hex digits.
    pub fn id(&self) -> String {
        hex(&self.header().uuid)
    }

    /// The latest value of a METADATA key.
    pub fn fact(&self, key: &str) -> Option<&str> {
        self.timeline.metadata.iter().rev().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    /// The image of the executable, if it is known.
    pub fn executable(&self) -> Option<ImageId> {
        let mut modules = self.timeline.modules.iter();
        Some(modules.find(|module| module.flags.contains(ModuleFlags::MAIN))?.image)
    }

    /// File name of the executable, or `pid N` if it is not known.
    pub fn process(&self) -> String {
        let name = self.executable().map(|image| self.timeline.images[image.0 as usize].image.name.clone());
        name.unwrap_or_else(|| format!("pid {}", self.header().pid))
    }

    /// Samples that the recorder dropped: the running total in the block headers.
    pub fn dropped(&self) -> u64 {
        let blocks = self.blocks.blocks().iter().map(|block| block.header.dropped).max().unwrap_or(0);
        blocks.max(self.timeline.end.as_ref().map_or(0, |end| end.dropped))
    }

    /// Says in one sentence that the file became shorter or unreadable after it was opened.
    pub fn lost(&self) -> Option<String> {
        let lost = self.file?.lost()?;
        Some(format!("the file was shortened or became unreadable from byte {lost} on while stk read it"))
    }

    /// Advises the system that the file's bytes before `end` are not needed in memory for now.
    pub fn release(&self, end: usize) {
        if let Some(file) = self.file {
            file.release(0..end);
        }
    }
}

/// META, STATE and END blocks, in order.
fn read_timeline(blocks: &mut stk_format::Trace<'_>, budget: &Budget, damage: &mut Vec<String>) -> Timeline {
    let arch = stk_base::model::arch(blocks.header().arch);
    let mut builder = TimelineBuilder::new(arch).within(budget.clone());
    let reported = reported_when_opened(blocks);
    let mut scratch = Scratch::new();
    let mut next = 0;
    // Whether a block that could hold events on modules or threads is missing since the last STATE.
    let mut lost = false;
    // Whether one is that could hold events on dynamic code, which only a STATE block restates: it
    // is wherever `lost` is.
    let mut code_lost = false;
    // From which block to which, and from which time on, modules are known again before a STATE
    // block restates them.
    let mut confirmed: Vec<(Range<u64>, Ticks)> = Vec::new();
    for block in blocks.blocks() {
        let BlockHeader { seq, kind, .. } = block.header;
        let mut loses = seq != next;
        next = seq.saturating_add(1);
        let holds_events = !matches!(kind, BlockKind::Samples | BlockKind::Blob | BlockKind::Index);
        let events = holds_events.then(|| blocks.events(block, &mut scratch));
        let events = match events {
            Some(Err(error)) => {
                loses = true;
                note(damage, &reported, block, error);
                None
            }
            events => events.and_then(Result::ok),
        };
        let mut lose = |builder: &mut TimelineBuilder| {
            builder.begin_restating();
            confirmed.last_mut().into_iter().for_each(|(blocks, _)| blocks.end = blocks.end.min(seq));
        };
        if loses {
            lose(&mut builder);
            (lost, code_lost) = (true, true);
        }
        let Some(events) = events else { continue };
        let renews = kind == BlockKind::State && code_lost;
        if renews {
            (lost, code_lost) = (false, false);
            builder.begin_restating();
        }
        let mut state = None;
        for event in events {
            match event {
                Ok(Event::ModuleState(latest)) => state = Some(latest),
                Ok(event) => builder.add(&event),
                Err(error) => {
                    // What a STATE block restates before its damage is there.
                    if !renews {
                        lose(&mut builder);
                    }
                    (lost, code_lost) = (true, true);
                    note(damage, &reported, block, error);
                }
            }
        }
        if renews {
            builder.end_state(block.header.first);
        }
        if let Some(state) = state.filter(|state| lost && builder.is_confirmed_by(state)) {
            lost = false;
            confirmed.push((next..u64::MAX, state.time));
        }
    }
    for (range, time) in confirmed {
        blocks.confirm_metadata(range, time);
    }
    if builder.left_out() > 0 {
        damage.push(beyond_memory(builder.left_out(), "events on modules, threads and facts", budget));
    }
    builder.finish()
}

/// Says in one sentence that part of a trace is left out because it exceeds the memory budget.
pub fn beyond_memory(count: u64, what: &str, budget: &Budget) -> String {
    let all = stk_base::text::size(budget.all());
    format!("{count} {what} are left out: the trace takes more memory than {all} (--max-memory)")
}

/// Says in one sentence that samples are left out because walking a trace's stacks takes too long
/// for its size.
pub fn beyond_cost(samples: u64, trace: &Trace<'_>) -> String {
    let len = stk_base::text::size(trace.file_len());
    format!(
        "{samples} samples are left out: stacks of a trace of {len} may not take so long to walk (a greater --max-memory allows more)"
    )
}

/// Whether damage cost a completed block. Behind END there are only the index and the tail, and
/// nothing depends on them.
fn loses(blocks: &stk_format::Trace<'_>, damage: &Damage) -> bool {
    let end = blocks.blocks().iter().find(|block| block.header.kind == BlockKind::End);
    match damage {
        Damage::FileHeader { .. } => false,
        Damage::Bytes { range } => end.is_none_or(|end| range.start < end.offset),
        _ => true,
    }
}

/// Sequence numbers of the blocks whose damage was reported when the trace was opened.
fn reported_when_opened(blocks: &stk_format::Trace<'_>) -> HashSet<u64> {
    let reported = blocks.damage().iter().filter_map(|damage| match damage {
        Damage::Payload { seq, .. } => Some(*seq),
        _ => None,
    });
    reported.collect()
}

/// Adds a block's error unless it was reported when the trace was opened.
fn note(damage: &mut Vec<String>, reported: &HashSet<u64>, block: &BlockRef, error: stk_format::BlockError) {
    if !reported.contains(&block.header.seq) {
        damage.push(error.to_string());
    }
}
