//! What was where, and when: modules, threads and everything else in META and STATE blocks.
//!
//! `build` makes a [`Timeline`] from events, and `image` makes the record of each distinct image. A
//! [`TimelineCursor`] (`view`) of a timeline shows the modules and the dynamic code at a moment.

mod build;
mod image;
mod text;
mod view;

pub use build::TimelineBuilder;
pub use view::{LiveModule, TimelineCursor};

use super::code::{CodeIndex, CodeRegion, Extent};
use std::collections::BTreeMap;
use stk_base::model::{Image, ImageId};
use stk_schema::Ticks;
use stk_schema::event::{DropReason, Exception, ImageTable, ModuleFlags, ThreadFlags};
use stk_schema::identity::ContentHash;

/// Modules, threads and facts of a trace over time.
#[derive(Default, Debug)]
pub struct Timeline {
    /// Distinct images, in order of first appearance.
    pub images: Vec<ImageRecord>,
    /// Module instances, by load time, then by instance id.
    pub modules: Vec<Module>,
    /// Threads, by instance id.
    pub threads: Vec<Thread>,
    /// Dynamic code, by time, then by instance id.
    pub code: Vec<CodeRegion>,
    /// Marks in stored order.
    pub marks: Vec<Mark>,
    /// METADATA events in stored order, without the copies of the file header.
    pub metadata: Vec<(String, String)>,
    /// Language runtimes found in the process.
    pub runtimes: Vec<Runtime>,
    /// Whether a runtime reported its methods: see [`runtime_events`](super::runtime_events).
    pub has_runtime_events: bool,
    /// Number of METHOD_NAME events, which .NET's data access library gave one by one.
    pub reported_names: u64,
    /// Number of METHOD_NAME events that the recorder read from the runtime's memory.
    pub names_read: u64,
    /// Samples or events that the recorder dropped: when it was noticed, reason, count.
    pub dropped: Vec<(Ticks, u64, u64)>,
    /// The sampling rates that were set after the start: time and millihertz.
    pub rates: Vec<(Ticks, u32)>,
    /// Moments on both clocks: the trace's and nanoseconds since the Unix epoch.
    pub clocks: Vec<(Ticks, u64)>,
    /// Words that were overwritten on purpose, by rule.
    pub redacted: BTreeMap<String, u64>,
    /// Exceptions in stored order.
    pub exceptions: Vec<Exception>,
    /// How the recording ended.
    pub end: Option<RecordingEnd>,
    /// Events of unknown type, skipped.
    pub unknown_events: u64,
    /// Latest time seen.
    pub last: Ticks,
    changes: Vec<ModuleChange>,
    pub(super) code_index: CodeIndex,
}

/// A distinct image and what the trace carries of it.
#[derive(Clone, Debug)]
pub struct ImageRecord {
    /// Its names and identities.
    pub image: Image,
    /// Hash of its headers; none if they were unreadable.
    pub header_hash: ContentHash,
    /// The parts whose bytes are in the trace.
    pub tables: Vec<ImageTable>,
    /// Whether a MODULE_TABLES event states what was recorded (possibly nothing).
    pub tables_reported: bool,
}

/// An image at an address for a time.
#[derive(Clone, Debug)]
pub struct Module {
    /// Instance id of the trace.
    pub instance: u64,
    pub image: ImageId,
    /// Load address.
    pub base: u64,
    /// Bytes mapped.
    pub size: u64,
    /// How it was found.
    pub flags: ModuleFlags,
    /// From when on it is there; with [`ModuleFlags::AT_START`] from the beginning.
    pub load: Ticks,
    /// When it went; `None` = never.
    pub unload: Option<Ticks>,
}

impl Extent for Module {
    fn span(&self) -> (u64, u64) {
        (self.base, self.base.saturating_add(self.size - 1))
    }

    fn comes(&self) -> Ticks {
        self.load
    }

    fn goes(&mut self) -> &mut Option<Ticks> {
        &mut self.unload
    }
}

/// A thread instance.
#[derive(Clone, Debug)]
pub struct Thread {
    /// Instance id of the trace.
    pub instance: u64,
    /// System thread id.
    pub tid: u32,
    /// How it was found.
    pub flags: ThreadFlags,
    /// When the system created it, nanoseconds since the Unix epoch; 0 = unknown.
    pub created_utc_ns: u64,
    /// When it was first seen; with [`ThreadFlags::AT_START`] it ran before.
    pub start: Ticks,
    /// When it ended; `None` = never.
    pub exit: Option<Ticks>,
    /// Last name it had; empty if none.
    pub name: String,
    /// The names that it had before, in order, each with the time at which the next one began.
    pub earlier_names: Vec<(Ticks, String)>,
    /// Win32 start address; 0 if unknown.
    pub start_address: u64,
    /// Highest address of its stack, exclusive; 0 if unknown.
    pub stack_base: u64,
}

impl Thread {
    /// The name that it had at a time.
    pub fn name_at(&self, time: Ticks) -> &str {
        let earlier = self.earlier_names.iter().find(|(until, _)| time < *until);
        earlier.map_or(&self.name, |(_, name)| name)
    }

    /// The names before and after its renaming with this number.
    pub fn renaming(&self, number: usize) -> [&str; 2] {
        let name = |at: usize| self.earlier_names.get(at).map_or(self.name.as_str(), |(_, name)| name);
        [name(number), name(number.saturating_add(1))]
    }
}

/// A point in time that the user or the target marked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mark {
    /// The marked time.
    pub time: Ticks,
    /// Thread instance; 0 = the process.
    pub thread: u64,
    /// Number given by the caller.
    pub tag: u64,
    pub text: String,
}

/// A language runtime in the process.
#[derive(Clone, Debug)]
pub struct Runtime {
    /// Module instance id, as recorded.
    pub module: u64,
    /// 1 = .NET, 2 = .NET Framework, 3 = single-file .NET host.
    pub kind: u64,
    pub version: String,
    /// What the recorder could not get from it, and why.
    pub note: String,
    /// Its data contract descriptor, JSON; empty if it publishes none.
    pub descriptor: Vec<u8>,
    /// The addresses that the descriptor refers to by number.
    pub pointer_data: Vec<u8>,
}

/// How the recording ended.
#[derive(Clone, Debug)]
pub struct RecordingEnd {
    /// When it ended.
    pub time: Ticks,
    /// `EndReason` as a number.
    pub reason: u64,
    /// Samples written, idle ones included.
    pub samples: u64,
    /// Samples dropped.
    pub dropped: u64,
    /// Text for the user.
    pub detail: String,
}

/// A module is loaded or unloaded.
#[derive(Clone, Copy, Debug)]
struct ModuleChange {
    time: Ticks,
    loads: bool,
    module: u32,
}

impl Timeline {
    /// How much the recorder dropped at such times, by reason, as far as events outside of SAMPLES
    /// blocks say.
    pub fn dropped_when(&self, counts: impl Fn(Ticks) -> bool) -> BTreeMap<u64, u64> {
        let mut sums: BTreeMap<u64, u64> = BTreeMap::new();
        for &(_, reason, count) in self.dropped.iter().filter(|(time, ..)| counts(*time)) {
            let sum = sums.entry(reason).or_default();
            *sum = sum.saturating_add(count);
        }
        sums
    }

    /// The thread of an instance.
    pub fn thread(&self, instance: u64) -> Option<&Thread> {
        let at = self.threads.binary_search_by_key(&instance, |thread| thread.instance).ok()?;
        Some(&self.threads[at])
    }

    /// A view of the modules. It begins before the first of them.
    pub fn view(&self) -> TimelineCursor<'_> {
        TimelineCursor::new(self)
    }

    /// When the first dynamic code that comes after `time` and holds `address` comes.
    pub fn code_after(&self, address: u64, time: Ticks) -> Option<Ticks> {
        self.code_index.next_at(&self.code, address, time)
    }
}

/// Stable short name of a DROPPED reason.
pub fn drop_reason_name(reason: u64) -> &'static str {
    const NAMES: [(DropReason, &str); 14] = [
        (DropReason::BuffersFull, "buffers full"),
        (DropReason::NoContext, "context not readable"),
        (DropReason::Late, "sampler woke late"),
        (DropReason::RingFull, "loader events lost"),
        (DropReason::NoThread, "thread not identified or not suspendable"),
        (DropReason::TableFull, "recorder's table full"),
        (DropReason::CodeUnseen, "dynamic code not looked up"),
        (DropReason::DutyLimit, "passes left out: the sampler's share of a processor"),
        (DropReason::NotStopped, "thread did not stop"),
        (DropReason::OwnsExitLocks, "thread owned the locks of ExitProcess"),
        (DropReason::UnknownThread, "thread of a triggered sample not known"),
        (DropReason::NotStorable, "capture not storable"),
        (DropReason::EventNotWritten, "events not written"),
        (DropReason::TriggerLimit, "triggers beyond their limit a second"),
    ];
    NAMES.iter().find(|(code, _)| *code as u64 == reason).map_or("unknown reason", |(_, name)| name)
}
