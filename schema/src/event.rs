//! The events of a trace, as plain data.
//!
//! Times are [`Ticks`] of the trace's clock (the file header gives its frequency and its value at
//! the start). Instance ids are counters of one trace, 64 bits wide and never reused, so that an
//! address, a thread id or a name that comes back is never mistaken for the one before. Names and
//! paths are WTF-8 (UTF-8 that can also hold unpaired surrogates).
//!
//! [`SAMPLE`](kind::SAMPLE) is not an [`Event`]. It has a meaning only together with the samples
//! before it in its block, so `stk_format::sample` encodes and decodes it.

use crate::Ticks;
use crate::identity::{ContentHash, Identity};
use alloc::vec::Vec;

/// Numeric event types. Ids above 0x3fff are the vendor range; every reader skips types that it
/// does not know.
pub mod kind {
    #![allow(missing_docs)] // the names are those of `Event`'s variants; format/SPEC.md describes each body
    pub const MODULE_LOAD: u64 = 1;
    pub const MODULE_UNLOAD: u64 = 2;
    pub const MODULE_TABLES: u64 = 3;
    pub const THREAD_START: u64 = 4;
    pub const THREAD_EXIT: u64 = 5;
    pub const THREAD_NAME: u64 = 6;
    pub const SLOT: u64 = 7;
    pub const SAMPLE: u64 = 8;
    pub const IDLE: u64 = 9;
    pub const CHECK_WALK: u64 = 11;
    pub const CODE_ADD: u64 = 12;
    pub const CODE_REMOVE: u64 = 13;
    pub const METHOD_NAME: u64 = 14;
    pub const RUNTIME_INFO: u64 = 15;
    pub const MANAGED_THREAD: u64 = 16;
    pub const MEMORY: u64 = 17;
    pub const NETTRACE: u64 = 18;
    pub const EXCEPTION: u64 = 19;
    pub const MARK: u64 = 20;
    pub const RATE_CHANGE: u64 = 21;
    pub const REDACTION: u64 = 22;
    pub const PARENT: u64 = 23;
    pub const CLOCK: u64 = 24;
    pub const DROPPED: u64 = 25;
    pub const METADATA: u64 = 26;
    pub const BLOB: u64 = 27;
    pub const INDEX: u64 = 28;
    pub const END: u64 = 29;
    pub const THREAD_CPU: u64 = 30;
    pub const FRAME_METHOD: u64 = 31;
    pub const MODULE_STATE: u64 = 32;
    pub const METHOD_BODY: u64 = 33;
    pub const VENDOR_FIRST: u64 = 0x4000;

    /// Whether version 1.1 reserves this type: `format/SPEC.md`, section 12, has its body, and no
    /// recorder writes it yet. Readers skip it without counting it as unknown.
    pub const fn is_reserved(kind: u64) -> bool {
        matches!(kind, 34)
    }
}

/// What a thread was doing when it was sampled, as far as the recorder knew.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum RunState {
    /// Not known: a coarse clock does not prove that a thread ran or waited in one tick.
    #[default]
    Unknown = 0,
    /// Ran since its last sample.
    Running = 1,
    /// Did not run since its last sample.
    Waiting = 2,
}

impl RunState {
    /// The state stored as `code`; unknown codes are [`RunState::Unknown`].
    pub const fn from_code(code: u64) -> RunState {
        match code {
            1 => RunState::Running,
            2 => RunState::Waiting,
            _ => RunState::Unknown,
        }
    }
}

bitflags::bitflags! {
    /// How a module instance became known.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct ModuleFlags: u64 {
        /// Found by the snapshot at the start: it was loaded at an unknown earlier time.
        const AT_START = 1;
        /// The loader notified its load.
        const NOTIFIED = 2;
        /// Its headers could not be read, or may be another module's, since it was unloaded
        /// meanwhile: identities may be missing.
        const HEADERS_UNREADABLE = 4;
        /// It is the process's main executable.
        const MAIN = 8;
        /// It is the recorder itself.
        const RECORDER = 16;
        /// Restated by a STATE block or a supplement, not new.
        const RESTATED = 32;
        /// The loader's list lacks it. The recorder found it because code ran in it (a hot-patch
        /// image, an unlinked or manually mapped DLL).
        const UNLISTED = 64;
        /// Its identities were read from an image file after the recording had ended.
        const FROM_FILE = 128;
    }

    /// How a thread became known.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct ThreadFlags: u64 {
        /// It ran before the recording started; its start time is unknown.
        const AT_START = 1;
        /// It belongs to the recorder and is never sampled.
        const RECORDER = 2;
        /// Restated by a STATE block, not new.
        const RESTATED = 4;
        /// Its stack bounds could not be read.
        const NO_STACK_BOUNDS = 8;
    }
}

/// An image was mapped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModuleLoad<'a> {
    /// Instance id, never reused.
    pub instance: u64,
    /// When it was loaded (or, with [`ModuleFlags::AT_START`], when the recording started).
    pub time: Ticks,
    /// Load address.
    pub base: u64,
    /// Bytes mapped.
    pub size: u64,
    /// How it became known.
    pub flags: ModuleFlags,
    /// Full path, WTF-8, as the system gives it.
    pub path: &'a [u8],
    /// Its identities; may be empty.
    pub identities: Vec<Identity<'a>>,
}

/// Part of an image that a trace can carry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u64)]
pub enum TableKind {
    /// DOS, PE and section headers.
    Headers = 1,
    /// Exception directory (`.pdata`): RUNTIME_FUNCTION entries.
    ExceptionDirectory = 2,
    /// Bytes that hold unwind info (`.xdata`), possibly with others between.
    UnwindInfo = 3,
    /// Export directory with its tables and names.
    Exports = 4,
    /// Executable bytes.
    Code = 5,
    /// Debug directory and CodeView record.
    Debug = 6,
}

impl TableKind {
    /// The kind stored as `code`, or `None` if this version does not know it.
    pub const fn from_code(code: u64) -> Option<TableKind> {
        Some(match code {
            1 => TableKind::Headers,
            2 => TableKind::ExceptionDirectory,
            3 => TableKind::UnwindInfo,
            4 => TableKind::Exports,
            5 => TableKind::Code,
            6 => TableKind::Debug,
            _ => return None,
        })
    }
}

/// A range of an image's memory whose bytes are a BLOB of the trace (or of a shared table store).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ImageTable {
    /// A [`TableKind`] as a number, which may be unknown to this version.
    pub kind: u64,
    /// Where it starts in the image.
    pub rva: u32,
    /// Length in bytes.
    pub len: u32,
    /// Hash of the bytes: the BLOB's address.
    pub hash: ContentHash,
}

/// The parts of a module that the trace carries; comes after the BLOBs it names were queued for
/// writing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModuleTables {
    /// Module instance.
    pub instance: u64,
    /// The tables recorded; empty when the image has no tables or they could not be read.
    pub tables: Vec<ImageTable>,
}

/// A thread was found or started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadStart {
    /// Instance id, never reused.
    pub instance: u64,
    /// When it was first seen.
    pub time: Ticks,
    /// The system's thread id, which the system does reuse.
    pub tid: u32,
    /// How it became known.
    pub flags: ThreadFlags,
    /// Win32 start address; 0 if unknown.
    pub start_address: u64,
    /// Highest address of its stack, exclusive; 0 if unknown.
    pub stack_base: u64,
    /// When the system created it, nanoseconds since the Unix epoch; 0 if unknown.
    pub created: u64,
}

/// A thread did not run during a part of a block, so its stack is that of its last sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Idle {
    /// Thread instance.
    pub thread: u64,
    /// Sampler passes that found it unchanged.
    pub ticks: u64,
    /// Time of the first such pass.
    pub first: Ticks,
    /// Time of the last such pass.
    pub last: Ticks,
    /// Ordinal (number among the SAMPLES blocks of the trace, from 0) of the block that holds its
    /// last sample.
    pub block: u64,
    /// The thread's state, as far as it is known.
    pub state: RunState,
}

/// CPU time that a thread used where it stood, for which no SAMPLE has a reading yet (version 1.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadCpu {
    /// Thread instance.
    pub thread: u64,
    /// When its clock was read.
    pub time: Ticks,
    /// What it used since the reading before, in the header's unit. It belongs to the event of the
    /// thread that comes before this one: SAMPLE, SAME or IDLE.
    pub cpu: i64,
}

/// Which modules live at a time (version 1.1). A reader that has the same ones has lost no event on
/// modules that matters from then on, even if a block is missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModuleState {
    /// The time: no earlier event about a module follows.
    pub time: Ticks,
    /// Live module instances.
    pub modules: u64,
    /// Content hash of their ids, 8 bytes each, rising.
    pub modules_hash: ContentHash,
    /// Live code ranges.
    pub ranges: u64,
    /// Of theirs, likewise; zero if they are not stated.
    pub ranges_hash: ContentHash,
}

/// The walk of a sample by the system's own unwinder (`inject --check-walks`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckWalk {
    /// Thread instance.
    pub thread: u64,
    /// Time of the sample that it belongs to.
    pub time: Ticks,
    /// Flag bits: [`CheckWalk::DISCARDED`], [`CheckWalk::FRAME_LIMIT`], [`CheckWalk::FAULT`].
    pub flags: u64,
    /// `(instruction pointer, stack pointer)` per frame, leaf first; none if it was discarded.
    pub frames: Vec<(u64, u64)>,
}

impl CheckWalk {
    /// Flag: the watchdog resumed the thread before the walk was done, or the loader lock was taken
    /// and no walk was begun.
    pub const DISCARDED: u64 = 1;
    /// Flag: the recorder's frame limit ended the walk.
    pub const FRAME_LIMIT: u64 = 2;
    /// Flag: the system's unwinder read memory that was not there, behind the last frame.
    pub const FAULT: u64 = 4;
}

/// The kind of a dynamic code region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u64)]
pub enum CodeKind {
    /// Found by RtlLookupFunctionEntry, which does not distinguish a table (RtlAddFunctionTable,
    /// RtlAddGrowableFunctionTable) from a callback.
    TableFunction = 1,
    /// Known to be registered by RtlInstallFunctionTableCallback.
    CallbackFunction = 2,
    /// Compiled at run time and reported by its runtime.
    Jit = 3,
    /// A stub without unwind data.
    Stub = 4,
}

/// A dynamic code region was seen or added.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CodeAdd<'a> {
    /// Instance id, shares its number space with modules.
    pub instance: u64,
    /// When it was seen or added.
    pub time: Ticks,
    /// [`CodeKind`] as a number.
    pub kind: u64,
    /// First address.
    pub base: u64,
    /// Length in bytes.
    pub size: u64,
    /// Address to which the RVAs of `function` and `unwind` are relative.
    pub image_base: u64,
    /// RUNTIME_FUNCTION as found; may be empty.
    pub function: &'a [u8],
    /// UNWIND_INFO up to its handler's address, chains appended as `(rva u32, len u32, bytes)`
    /// records; may be empty.
    pub unwind: &'a [u8],
    /// Code bytes from `base` on; may be empty or shorter than `size`.
    pub code: &'a [u8],
}

/// The source of a method's name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u64)]
pub enum MethodNameSource {
    /// The runtime's data access library, which the host loads.
    DataAccess = 1,
    /// A callback of the runtime's own.
    Callback = 2,
    /// The runtime's own list of methods, restated.
    List = 3,
    /// The runtime's published data contract and the metadata of its assemblies, read in the
    /// process's memory.
    Contract = 4,
}

/// A method's code and name, as a runtime reported them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MethodName<'a> {
    /// When the runtime said it.
    pub time: Ticks,
    /// First address of the code.
    pub base: u64,
    /// Length in bytes.
    pub size: u64,
    /// [`MethodNameSource`] as a number.
    pub source: u64,
    /// The method's name, UTF-8.
    pub name: &'a [u8],
}

/// The bounds and the whole code of a method of a runtime (version 1.1), of which a CODE_ADD holds
/// a part only: without function tables (x86) nothing else shows where a method begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MethodBody<'a> {
    /// When the runtime said it.
    pub time: Ticks,
    /// Instance of the CODE_ADD that holds a part of it; the body is true as long as that lives.
    /// 0: the code is a module's.
    pub instance: u64,
    /// First address of the method.
    pub base: u64,
    /// Length of the whole method in bytes.
    pub size: u64,
    /// Flag bits: [`MethodBody::REPORTED`], [`MethodBody::COLD`], [`MethodBody::ENDS_EARLY`].
    pub flags: u64,
    /// [`MethodNameSource`] as a number.
    pub source: u64,
    /// Code bytes from `base` on.
    pub code: &'a [u8],
    /// The runtime's own description of the frame; may be empty.
    pub gc_info: &'a [u8],
}

impl MethodBody<'_> {
    /// Flag: the runtime reported base and size.
    pub const REPORTED: u64 = 1;
    /// Flag: a part of the method that lies apart from it.
    pub const COLD: u64 = 2;
    /// Flag: `code` is shorter than `size`.
    pub const ENDS_EARLY: u64 = 4;
}

/// The method that an explicit Frame of a runtime is about. It has no code of its own that
/// METHOD_NAME could name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameMethod<'a> {
    /// Module instance of the runtime.
    pub module: u64,
    /// When it had that name.
    pub time: Ticks,
    /// [`FrameMethod::DESC`] or [`FrameMethod::SLOT`].
    pub kind: u64,
    /// Address of the MethodDesc or the MethodTable.
    pub address: u64,
    /// Slot of the MethodTable; 0 for a MethodDesc.
    pub slot: u64,
    /// [`MethodNameSource`] as a number.
    pub source: u64,
    /// Its name with its signature.
    pub name: &'a [u8],
}

impl FrameMethod<'_> {
    /// Kind: a MethodDesc.
    pub const DESC: u64 = 1;
    /// Kind: a slot of a MethodTable.
    pub const SLOT: u64 = 2;
}

/// What kind of .NET runtime a module is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum RuntimeKind {
    /// .NET (coreclr.dll, mscordaccore.dll).
    Core = 1,
    /// .NET Framework (clr.dll or mscorwks.dll, mscordacwks.dll).
    Framework = 2,
    /// .NET linked into the program (mscordaccore.dll).
    SingleFile = 3,
}

impl RuntimeKind {
    /// The kind that a trace or the mailbox gives as this number; `None` if it is not known here.
    pub fn from_number(number: u64) -> Option<RuntimeKind> {
        [RuntimeKind::Core, RuntimeKind::Framework, RuntimeKind::SingleFile]
            .into_iter()
            .find(|&kind| u64::from(kind as u32) == number)
    }
}

/// A language runtime was found in the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RuntimeInfo<'a> {
    /// Module instance that holds it.
    pub module: u64,
    /// When it was found.
    pub time: Ticks,
    /// [`RuntimeKind`] as a number.
    pub kind: u64,
    /// Version text, UTF-8.
    pub version: &'a [u8],
    /// Data contract descriptor JSON; may be empty.
    pub descriptor: &'a [u8],
    /// Values of the descriptor's pointer_data, 8 bytes little-endian each.
    pub pointer_data: &'a [u8],
    /// Lines for the user: what the recorder could not get from the runtime, and why.
    pub note: &'a [u8],
}

/// A runtime's own view of a sampled thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ManagedThread {
    /// Thread instance.
    pub thread: u64,
    /// Time of the sample that it belongs to.
    pub time: Ticks,
    /// Address of the runtime's Thread object.
    pub address: u64,
    /// Thread::State.
    pub state: u64,
    /// PreemptiveGCDisabled: 1 = cooperative mode.
    pub preemptive_disabled: u64,
    /// Head of the explicit Frame chain.
    pub frame: u64,
    /// ExceptionTracker; 0 if none.
    pub exception: u64,
}

/// Bytes of the target's memory outside the captured stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory<'a> {
    /// Thread instance of the sample that needs them; 0 = the process.
    pub thread: u64,
    /// When they were read.
    pub time: Ticks,
    /// Address of the first byte.
    pub address: u64,
    /// The bytes.
    pub bytes: &'a [u8],
}

/// A piece of an EventPipe stream, as received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nettrace<'a> {
    /// Session: pieces of one session follow each other by `offset`.
    pub session: u64,
    /// When it was received.
    pub time: Ticks,
    /// Offset of the piece in its stream.
    pub offset: u64,
    /// The bytes.
    pub bytes: &'a [u8],
}

/// An exception was seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exception {
    /// Thread instance.
    pub thread: u64,
    /// When it was seen.
    pub time: Ticks,
    /// Exception code.
    pub code: u32,
    /// Address of the faulting or throwing instruction.
    pub address: u64,
}

/// A point in time that the user or the target marked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark<'a> {
    /// The marked time.
    pub time: Ticks,
    /// Thread instance; 0 = the process.
    pub thread: u64,
    /// Number given by the caller.
    pub tag: u64,
    /// Text, UTF-8.
    pub text: &'a [u8],
}

/// The sampling rate changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RateChange {
    /// When it changed.
    pub time: Ticks,
    /// New nominal rate, in millihertz.
    pub rate_mhz: u32,
}

/// Stack words were overwritten deliberately (privacy).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Redaction<'a> {
    /// What was redacted and by which rule, UTF-8.
    pub rule: &'a [u8],
    /// Words overwritten.
    pub words: u64,
}

/// The process that started this one, or whose recording this one continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parent {
    /// Its process id.
    pub pid: u32,
    /// Its creation time, nanoseconds since the Unix epoch.
    pub created: u64,
    /// UUID of its trace; zero if it has none.
    pub trace: [u8; 16],
}

/// One moment on the trace's clock and on the system's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clock {
    /// On the trace's clock.
    pub time: Ticks,
    /// Nanoseconds since the Unix epoch.
    pub utc: u64,
}

/// Why samples or events are missing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u64)]
pub enum DropReason {
    /// All block buffers were waiting for the disk.
    BuffersFull = 1,
    /// The thread's context could not be read.
    NoContext = 2,
    /// The sampler woke late and skipped passes.
    Late = 3,
    /// The loader ring overflowed: module events were lost (the next STATE block has the truth).
    RingFull = 4,
    /// The system refused to suspend the thread, or to say which thread it is.
    NoThread = 5,
    /// A fixed table of the recorder was full.
    TableFull = 6,
    /// Addresses in dynamic code were not looked up: no sample is missing, but such code may be
    /// unknown.
    CodeUnseen = 7,
    /// Passes were skipped so that the sampler uses at most a quarter of a processor.
    DutyLimit = 8,
    /// The thread did not stop within a second. A spare sampler continued with the others.
    NotStopped = 9,
    /// The thread owned the loader lock and the PEB lock (ExitProcess, or a module load that reads
    /// the environment), so it was resumed without a sample.
    OwnsExitLocks = 10,
    /// A thread asked for a sample of itself but was never enumerated.
    UnknownThread = 11,
    /// The captured data breaks a limit of the format, so it could not be stored.
    NotStorable = 12,
    /// Events of threads, modules, code or names were not written: the writer had ended, or the
    /// event was larger than a block.
    EventNotWritten = 13,
    /// More exceptions came, or modules were loaded, than triggers record a second: no sample of a
    /// pass is missing.
    TriggerLimit = 14,
}

impl DropReason {
    /// Reasons for which no sample is missing: skipped passes, other events than samples, addresses
    /// of dynamic code.
    pub const WITHOUT_SAMPLES: [DropReason; 6] = [
        DropReason::Late,
        DropReason::RingFull,
        DropReason::CodeUnseen,
        DropReason::DutyLimit,
        DropReason::EventNotWritten,
        DropReason::TriggerLimit,
    ];
}

/// Something was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dropped {
    /// When it was noticed.
    pub time: Ticks,
    /// [`DropReason`] as a number.
    pub reason: u64,
    /// Thread instance; 0 = any.
    pub thread: u64,
    /// How many samples or events since the last report for this reason.
    pub count: u64,
}

/// A fact about the recording, such as `host`, `os.build`, `command_line`, `recorder.version`,
/// `wine`. SPEC.md lists the keys that readers use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metadata<'a> {
    /// Key, UTF-8, lower case with dots.
    pub key: &'a [u8],
    /// Value, WTF-8.
    pub value: &'a [u8],
}

/// A piece of a BLOB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blob<'a> {
    /// Hash of the whole BLOB.
    pub hash: ContentHash,
    /// Length of the whole BLOB, in bytes.
    pub total: u64,
    /// Offset of this piece.
    pub offset: u64,
    /// The piece's bytes.
    pub bytes: &'a [u8],
}

/// Why a recording ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u64)]
pub enum EndReason {
    /// Stopped by request.
    Stopped = 1,
    /// The process was exiting.
    ProcessExit = 2,
    /// The duration had passed.
    Duration = 3,
    /// The watchdog resumed a thread that was suspended too long.
    Watchdog = 4,
    /// The recorder panicked; `detail` says where.
    Panic = 5,
    /// The output could not be written.
    WriteError = 6,
    /// A size limit was reached.
    SizeLimit = 7,
    /// The guard process ended.
    GuardGone = 8,
}

/// The last event of a finished trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End<'a> {
    /// When the recording ended.
    pub time: Ticks,
    /// [`EndReason`] as a number.
    pub reason: u64,
    /// Samples written, idle ones included.
    pub samples: u64,
    /// Samples dropped.
    pub dropped: u64,
    /// Text for the user; may be empty.
    pub detail: &'a [u8],
}

/// One block as the INDEX lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexEntry {
    /// Offset of the block header from the start of the file.
    pub offset: u64,
    /// Sequence number of the block.
    pub seq: u64,
    /// Block kind as a number.
    pub kind: u8,
    /// Time of its first event.
    pub first: Ticks,
    /// Time of its last event.
    pub last: Ticks,
}

/// Any event but SAMPLE and SLOT.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[allow(missing_docs)] // each variant is the struct of its name
pub enum Event<'a> {
    ModuleLoad(ModuleLoad<'a>),
    ModuleUnload {
        instance: u64,
        time: Ticks,
    },
    ModuleTables(ModuleTables),
    ThreadStart(ThreadStart),
    ThreadExit {
        instance: u64,
        time: Ticks,
    },
    ThreadName {
        instance: u64,
        time: Ticks,
        name: &'a [u8],
    },
    Idle(Idle),
    CheckWalk(CheckWalk),
    CodeAdd(CodeAdd<'a>),
    CodeRemove {
        instance: u64,
        time: Ticks,
    },
    MethodName(MethodName<'a>),
    RuntimeInfo(RuntimeInfo<'a>),
    ManagedThread(ManagedThread),
    Memory(Memory<'a>),
    Nettrace(Nettrace<'a>),
    Exception(Exception),
    Mark(Mark<'a>),
    RateChange(RateChange),
    Redaction(Redaction<'a>),
    Parent(Parent),
    Clock(Clock),
    Dropped(Dropped),
    Metadata(Metadata<'a>),
    Blob(Blob<'a>),
    Index(Vec<IndexEntry>),
    End(End<'a>),
    ThreadCpu(ThreadCpu),
    ModuleState(ModuleState),
    MethodBody(MethodBody<'a>),
    FrameMethod(FrameMethod<'a>),
    /// A type that this version does not know. Readers skip and count it.
    Unknown {
        kind: u64,
        body: &'a [u8],
    },
}
