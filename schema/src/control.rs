//! The control block: what inject.exe and agent.dll (and any other host of the agent) exchange.
//!
//! Every struct begins with its size and version, holds only fixed-width fields in an order that
//! leaves no padding, and keeps addresses and handles in 64 bits, so that it is the same for 32-
//! and 64-bit targets. `agent/include/stk_agent.h` is the same in C.
//!
//! The agent accepts a config whose `version` it knows and whose `size` is at least that version's;
//! it ignores what follows. A host reads a status only up to the smaller of both sizes. It may
//! request a status of any size that an agent ever had.

/// Version of [`AgentConfig`] and [`AgentStatus`] described here.
pub const CONTROL_VERSION: u32 = 2;

/// Export: `u32 stk_agent_start(AgentConfig*)`, returns a [`StartResult`].
pub const EXPORT_START: &str = "stk_agent_start";
/// Export: `u32 stk_agent_stop(void*)`, returns 0 when the trace is finalised, 1 if nothing was
/// recording.
pub const EXPORT_STOP: &str = "stk_agent_stop";
/// Export: `u32 stk_agent_status(AgentStatus*)`, returns 0, or 1 if the struct's version does not
/// fit or its size is less than [`FIRST_STATUS_SIZE`]. Fills the fields that both know, and sets
/// `size` to their length.
pub const EXPORT_STATUS: &str = "stk_agent_status";
/// Export, data: the live [`AgentStatus`], for readers in another process: no code needs to run in
/// the target. Its `size` and `version` come first. Agents without this export work only with
/// inject of their own version.
pub const EXPORT_STATUS_BLOCK: &str = "stk_agent_status_block";
/// Export: `u32 stk_capture(u64 tag)`: the calling thread records its own stack; returns 0, or 1 if
/// nothing is recording, 2 if the sample was dropped.
pub const EXPORT_CAPTURE: &str = "stk_capture";

/// Export: `u32 stk_capture_context(const CONTEXT*, u64 tag)`: the same from a context of the
/// calling thread, such as an exception's; returns 3 without one that holds control and integer
/// registers.
pub const EXPORT_CAPTURE_CONTEXT: &str = "stk_capture_context";
/// Export: `u32 stk_mark(const char* text)`: a MARK of the calling thread; returns 0, 1 or 2 as
/// [`EXPORT_CAPTURE`], 3 if the text is no UTF-8.
pub const EXPORT_MARK: &str = "stk_mark";
/// Export: `u32 stk_agent_leave(usize step)`: with [`LEAVE_PREPARE`], takes back what the agent has
/// registered with the system; with [`LEAVE_REFERENCES`], gives the caller the references of the
/// module. Between both, the caller sees to it that no thread of the process is in the agent. For
/// hosts in another process: the thread that calls it must not return into the agent's code after
/// the last reference is freed. Older agents lack it.
pub const EXPORT_LEAVE: &str = "stk_agent_leave";
/// Export: `u32 stk_backtrace(const CONTEXT*, void** pcs, u32 max, u32 skip)`: walks the calling
/// thread's stack; returns the number of addresses.
pub const EXPORT_BACKTRACE: &str = "stk_backtrace";
/// Export: `u32 stk_thread_name(const char* text)`: names the calling thread; returns 0, 2 if the
/// system cannot, 3 if the text is no UTF-8.
pub const EXPORT_THREAD_NAME: &str = "stk_thread_name";

/// [`AgentConfig::flags`]: take one sample of every thread, then stop.
pub const FLAG_ONCE: u32 = 1;
/// [`AgentConfig::flags`]: also walk each sample in the target while it is suspended (a diagnostic
/// that breaks the recorder's rule: it may take locks).
pub const FLAG_CHECK_WALKS: u32 = 2;
/// [`AgentConfig::flags`]: record without a guard process. The host promises to call
/// `stk_agent_stop` before the process exits; the trace says so. Without this flag and without
/// [`AgentConfig::guard`] a start is refused ([`StartResult::NoGuard`]).
pub const FLAG_UNGUARDED: u32 = 4;
/// [`AgentConfig::flags`]: leave the process's command line out of the trace's metadata.
pub const FLAG_NO_COMMAND_LINE: u32 = 8;
/// [`AgentConfig::flags`]: store only words of stacks, and registers, that are addresses of mapped
/// memory ([`crate::pointers`]); the others are zero.
pub const FLAG_POINTERS_ONLY: u32 = 16;
/// [`AgentConfig::flags`]: [`AgentConfig::options`] are there. Agents without options refuse this
/// flag.
pub const FLAG_OPTIONS: u32 = 32;
/// [`AgentConfig::flags`]: the files are a ring of which traces are made when something asks for
/// it: [`AgentStatus::flight`] is there.
pub const FLAG_FLIGHT: u32 = 64;
/// [`AgentConfig::flags`]: begin paused: no thread is sampled until a host asks for it
/// ([`crate::requests::REQUEST_RESUME`]). `duration_ms` begins then.
pub const FLAG_PAUSED: u32 = 128;
/// [`AgentConfig::flags`]: the host has loaded the agent by LoadLibrary for this recording. That
/// reference of the module now belongs to the agent, which gives it up when it leaves
/// ([`EXPORT_LEAVE`]). Counted also if the start fails.
pub const FLAG_LOADED: u32 = 256;
/// [`AgentConfig::flags`]: the recording is to continue in other files
/// ([`crate::requests::REQUEST_FILE`]): what they restate is kept in memory.
pub const FLAG_ROTATES: u32 = 512;
/// [`AgentConfig::flags`]: fault injection for the tests: a phase of [`crate::guard`] (shifted by
/// [`TEST_FREEZE_SHIFT`]) in which the sampler stops for ever, after the first second; 0 = none.
/// The watchdog leaves such a suspension alone. [`TEST_FREEZE_WRITER`] stops the writer instead,
/// and with the `TEST_PANIC_` values nothing stops.
pub const FLAG_TEST_FREEZE: u32 = 0x0f00_0000;
/// Bits below [`FLAG_TEST_FREEZE`].
pub const TEST_FREEZE_SHIFT: u32 = 24;
/// Value of [`FLAG_TEST_FREEZE`]: the writer stops for ever, between two blocks.
pub const TEST_FREEZE_WRITER: u8 = 8;
/// Value of [`FLAG_TEST_FREEZE`]: the agent panics in the thread that ends the process.
pub const TEST_PANIC_AT_EXIT: u8 = 9;
/// Value of [`FLAG_TEST_FREEZE`]: the agent panics in each [`EXPORT_CAPTURE`].
pub const TEST_PANIC_IN_CAPTURE: u8 = 10;
/// Value of [`FLAG_TEST_FREEZE`]: the agent panics in each of the loader's notifications.
pub const TEST_PANIC_IN_NOTIFICATION: u8 = 11;
/// [`AgentConfig::flags`]: fault injection for the tests: panic in the sampler after the first
/// second.
pub const FLAG_TEST_PANIC: u32 = 0x8000_0000;

/// [`AgentConfig::embed`]: no image tables.
pub const EMBED_NONE: u32 = 0;
/// [`AgentConfig::embed`]: headers, exception directory, unwind info, exports (the default).
pub const EMBED_UNWIND: u32 = 1;
/// [`AgentConfig::embed`]: executable sections too.
pub const EMBED_FULL: u32 = 2;

/// Argument of [`EXPORT_LEAVE`]: prepare. Returns a `LEAVE_` value.
pub const LEAVE_PREPARE: usize = 0;
/// Argument of [`EXPORT_LEAVE`]: hand over the references of the module. Returns
/// [`LEAVE_HANDED_OVER`] plus their number, or a `LEAVE_` value.
pub const LEAVE_REFERENCES: usize = 1;

/// What [`EXPORT_LEAVE`] returns: nothing of the process calls the agent any more.
pub const LEAVE_READY: u32 = 0;
/// What [`EXPORT_LEAVE`] returns: as [`LEAVE_READY`], but a recording had an exception handler, and
/// the system does not say when the last thread has left it. [`AgentStatus::handler_begun`] helps.
pub const LEAVE_WATCH: u32 = 1;
/// What [`EXPORT_LEAVE`] returns: a recording runs.
pub const LEAVE_RECORDING: u32 = 2;
/// What [`EXPORT_LEAVE`] returns: the agent has panicked; a thread of its own is parked for ever.
pub const LEAVE_FAILED: u32 = 3;
/// What [`EXPORT_LEAVE`] returns: a thread of the agent's own has not ended within 10 s.
pub const LEAVE_THREADS: u32 = 4;
/// What [`EXPORT_LEAVE`] returns: the program itself has called the agent, and may do so again.
pub const LEAVE_USED: u32 = 5;
/// What [`EXPORT_LEAVE`] returns: the system did not take the loader's notifications back.
pub const LEAVE_NOTIFIED: u32 = 6;
/// What [`EXPORT_LEAVE`] returns for [`LEAVE_REFERENCES`]: this, plus their number.
pub const LEAVE_HANDED_OVER: u32 = 0x100;

/// The settings of a recording. They are in the target's memory during the `stk_agent_start` call.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AgentConfig {
    /// Size of this struct in bytes.
    pub size: u32,
    /// [`CONTROL_VERSION`].
    pub version: u32,
    /// Output file handle, valid in the target, opened for writing at the end of an empty file. The
    /// agent closes it when the recording ends (also when the start fails).
    pub output: u64,
    /// Nominal sampling rate in millihertz (1,000,000 = 1 kHz); 1 to 20,000,000.
    pub rate_mhz: u32,
    /// Most stack bytes to capture per sample; 0 = the format's limit (8 MiB).
    pub max_stack_bytes: u32,
    /// `FLAG_*` bits.
    pub flags: u32,
    /// `EMBED_*`.
    pub embed: u32,
    /// Milliseconds to wait before the first sample.
    pub delay_ms: u32,
    /// Milliseconds to record; 0 = until stopped.
    pub duration_ms: u32,
    /// Random UUID of the trace; also salts its blocks.
    pub uuid: [u8; 16],
    /// Address of the metadata to store: `key 0 value 0 …`, UTF-8; 0 = none.
    pub metadata: u64,
    /// Bytes of metadata.
    pub metadata_len: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Address of a zero-terminated UTF-16 path of a folder in which tables are stored once by
    /// hash; 0 = in the trace.
    pub tables_dir: u64,
    /// Handle (valid in the target) of an event that the agent signals when the recording has
    /// ended; 0 = none. The agent closes it.
    pub ended_event: u64,
    /// Written by the agent: address of its live [`AgentStatus`], which stays valid until the
    /// process ends or the agent leaves.
    pub status_address: u64,
    /// Written by the agent: the system's error code when the start failed; else 0.
    pub system_error: u32,
    /// Must be 0.
    pub reserved2: u32,
    /// Handle (valid in the target, SYNCHRONIZE) of the guard process; 0 = none, see
    /// [`FLAG_UNGUARDED`]. When it is signalled the recording ends. The agent closes it.
    pub guard: u64,
    /// Most bytes of the trace: the recording ends before they are exceeded; 0 = no limit.
    pub max_bytes: u64,
    /// With [`FLAG_OPTIONS`]: address of the options, `key 0 value 0 …` ([`crate::options`]). The
    /// config of the first agents ends before this field.
    pub options: u64,
    /// Bytes of the options, at most [`crate::options::MAX_BYTES`].
    pub options_len: u32,
    /// Must be 0.
    pub reserved3: u32,
}

impl AgentConfig {
    /// All zero, to be filled from a host's bytes.
    pub const BLANK: AgentConfig = AgentConfig {
        size: 0,
        version: 0,
        output: 0,
        rate_mhz: 0,
        max_stack_bytes: 0,
        flags: 0,
        embed: 0,
        delay_ms: 0,
        duration_ms: 0,
        uuid: [0; 16],
        metadata: 0,
        metadata_len: 0,
        reserved: 0,
        tables_dir: 0,
        ended_event: 0,
        status_address: 0,
        system_error: 0,
        reserved2: 0,
        guard: 0,
        max_bytes: 0,
        options: 0,
        options_len: 0,
        reserved3: 0,
    };
}

/// Bytes of the [`AgentConfig`] of the first hosts of this version: the least that an agent takes.
pub const FIRST_CONFIG_SIZE: usize = core::mem::offset_of!(AgentConfig, options);

/// What `stk_agent_start` returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum StartResult {
    /// The recording has started.
    Ok = 0,
    /// A recording is running already.
    AlreadyRecording = 1,
    /// The config's size or version does not fit, or a field is out of range.
    BadConfig = 2,
    /// The output handle cannot be written.
    BadOutput = 3,
    /// The system gave no memory for the recorder.
    NoMemory = 4,
    /// A thread or timer could not be made.
    NoThread = 5,
    /// The agent failed before (it panicked in this process and stays off).
    Disabled = 6,
    /// The processor architecture is not what the agent was built for (emulation).
    WrongArchitecture = 7,
    /// Neither a guard process nor [`FLAG_UNGUARDED`] was given.
    NoGuard = 8,
}

impl StartResult {
    /// The result with this code.
    pub const fn from_code(code: u32) -> Option<StartResult> {
        Some(match code {
            0 => StartResult::Ok,
            1 => StartResult::AlreadyRecording,
            2 => StartResult::BadConfig,
            3 => StartResult::BadOutput,
            4 => StartResult::NoMemory,
            5 => StartResult::NoThread,
            6 => StartResult::Disabled,
            7 => StartResult::WrongArchitecture,
            8 => StartResult::NoGuard,
            _ => return None,
        })
    }
}

/// [`AgentStatus::state`]: nothing was recorded yet.
pub const STATE_IDLE: u32 = 0;
/// [`AgentStatus::state`]: recording (or waiting for its delay).
pub const STATE_RECORDING: u32 = 1;
/// [`AgentStatus::state`]: writing the end of the trace.
pub const STATE_STOPPING: u32 = 2;
/// [`AgentStatus::state`]: the trace is finalised; another recording may start.
pub const STATE_STOPPED: u32 = 3;
/// [`AgentStatus::state`]: the recorder failed; `message` says why. It stays off in this process.
pub const STATE_FAILED: u32 = 4;

/// [`AgentStatus::rotation`]: the recording ends with its file.
pub const ROTATION_NONE: u32 = 0;
/// [`AgentStatus::rotation`]: a host continues the recording in another file when this one has
/// ended. What has ended and has this value is between two files.
pub const ROTATION_CONTINUES: u32 = 1;
/// [`AgentStatus::rotation`]: another host wants the recording to end.
pub const ROTATION_STOP: u32 = 2;

/// The status of a recording. The agent updates it in place. A reader in another process sees each
/// field whole, but the fields may be of slightly different moments.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AgentStatus {
    /// Size of this struct in bytes.
    pub size: u32,
    /// [`CONTROL_VERSION`].
    pub version: u32,
    /// `STATE_*`.
    pub state: u32,
    /// `event::EndReason` of the last recording that ended; 0 = none yet.
    pub end_reason: u32,
    /// Live threads known, without the recorder's own.
    pub threads: u32,
    /// Live modules known.
    pub modules: u32,
    /// Samples taken, idle ones included.
    pub samples: u64,
    /// Samples dropped.
    pub dropped: u64,
    /// Bytes appended to the output.
    pub bytes: u64,
    /// Sampler passes.
    pub passes: u64,
    /// Milliseconds since the recording started.
    pub elapsed_ms: u64,
    /// The system's error code of the last failure; 0 = none.
    pub system_error: u32,
    /// Bytes of `message`.
    pub message_len: u32,
    /// Text of the last failure, UTF-8.
    pub message: [u8; 256],
    /// Address of the agent's [mailbox for names](crate::mailbox); 0 = none yet. The status of the
    /// first agents ends before this field.
    pub names: u64,
    /// Address of the agent's [board](crate::guard::GuardBoard) for its guard process; 0 = none
    /// yet.
    pub guard_board: u64,
    /// Address of the desk for requests of a `--flight` recording ([`crate::flight::FlightDesk`]);
    /// 0 = it is none.
    pub flight: u64,
    /// Address of the agent's [mailbox for requests](crate::requests); 0 = none yet. Older agents'
    /// status ends before this field.
    pub requests: u64,
    /// 1 while the recording is paused, and after it ended in a pause.
    pub paused: u32,
    /// Calls of the agent's exception handler that have begun, modulo 2^32. Older agents have 0.
    pub handler_begun: u32,
    /// Those of them that have ended. Older agents' status ends before this field.
    pub handler_ended: u32,
    /// Threads that the recording has met, without the recorder's own. Older agents have 0.
    pub threads_met: u32,
    /// `ROTATION_*`. Hosts write it; the agent only sets it back when the guard process has ended.
    ///
    /// It shares its eight bytes with nothing that the agent writes: Wine writes to another process
    /// by whole words, and puts what it has read before in the place of the rest.
    pub rotation: u32,
    /// 0.
    pub reserved_for_hosts: u32,
    /// While `rotation` is not [`ROTATION_NONE`]: the present file's place in the recording; the
    /// first one's is 1. The host that records writes this and what follows before the first file,
    /// and where a recording ends and continues in another file; the agent, when it has continued
    /// itself ([`crate::requests::REQUEST_FILE`]) and the file before is whole. The status of older
    /// agents ends before this field.
    pub file_index: u32,
    /// The number in the present file's name.
    pub file_number: u32,
    /// Samples of the recording's files before the present one, as [`AgentStatus::samples`].
    pub earlier_samples: u64,
    /// Samples that they lost, as [`AgentStatus::dropped`].
    pub earlier_dropped: u64,
    /// Their bytes, as [`AgentStatus::bytes`].
    pub earlier_bytes: u64,
    /// Their milliseconds, as [`AgentStatus::elapsed_ms`].
    pub earlier_ms: u64,
    /// What each of the recorder's threads does, in the order of [`RECORDER_THREADS`]. The status
    /// of older agents ends before this field: they say nothing of their threads.
    pub activity: [ThreadActivity; RECORDER_THREADS.len()],
    /// Nanoseconds for which a sampled thread stood still: median; 0 without a sample. The status
    /// of older agents ends before this field.
    pub held_p50_ns: u64,
    /// The 99.9th percentile of these times.
    pub held_p999_ns: u64,
    /// The longest of these times.
    pub held_max_ns: u64,
}

/// What one of the recorder's threads does. The fields may be of slightly different moments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct ThreadActivity {
    /// Thread id; 0 = there is no such thread.
    pub tid: u32,
    /// `STEP_*`.
    pub step: u32,
    /// Rounds of its loop since the recording began, modulo 2^32. It grows at least once a second,
    /// except for the code, runtimes and spare threads, which may have nothing to do.
    pub rounds: u32,
    /// 0.
    pub reserved: u32,
}

/// The names of the recorder's threads. The last one is what samples, whichever thread that is.
pub const RECORDER_THREADS: [&str; 8] =
    ["writer", "watchdog", "tables", "code", "runtimes", "spare sampler", "spare sampler", "sampler"];
/// Index in [`RECORDER_THREADS`].
pub const THREAD_WRITER: usize = 0;
/// Index in [`RECORDER_THREADS`].
pub const THREAD_WATCHDOG: usize = 1;
/// Index in [`RECORDER_THREADS`].
pub const THREAD_TABLES: usize = 2;
/// Index in [`RECORDER_THREADS`].
pub const THREAD_CODE: usize = 3;
/// Index in [`RECORDER_THREADS`].
pub const THREAD_RUNTIMES: usize = 4;
/// Index in [`RECORDER_THREADS`].
pub const THREAD_SAMPLER: usize = 7;

/// [`ThreadActivity::step`]: nothing yet, or not reported.
pub const STEP_NONE: u32 = 0;
/// [`ThreadActivity::step`]: waits for work, or until it is due.
pub const STEP_WAITING: u32 = 1;
/// [`ThreadActivity::step`]: does its work.
pub const STEP_WORKING: u32 = 2;
/// [`ThreadActivity::step`]: the system writes a block to the trace.
pub const STEP_WRITING: u32 = 3;
/// [`ThreadActivity::step`]: waits for the tables thread to list the threads.
pub const STEP_AWAITING_TABLES: u32 = 4;
/// [`ThreadActivity::step`]: measures what a suspension costs.
pub const STEP_CALIBRATING: u32 = 5;
/// [`ThreadActivity::step`]: rests in a pause.
pub const STEP_PAUSED: u32 = 6;
/// [`ThreadActivity::step`]: lists threads and reads their names.
pub const STEP_LISTING: u32 = 7;
/// [`ThreadActivity::step`]: reads a module's headers and tables.
pub const STEP_READING_IMAGE: u32 = 8;
/// [`ThreadActivity::step`]: looks up a function, which may call a runtime in the process.
pub const STEP_LOOKING_UP: u32 = 9;
/// [`ThreadActivity::step`]: talks to a runtime through its pipe.
pub const STEP_ASKING_RUNTIME: u32 = 10;
/// [`ThreadActivity::step`]: hands over its last blocks, or ends the trace.
pub const STEP_ENDING: u32 = 11;

/// The words for each `STEP_*`, by its number.
pub const STEPS: [&str; 12] = [
    "nothing yet",
    "waits",
    "works",
    "in the system's write",
    "waits for the list of threads",
    "measures the cost of a suspension",
    "paused",
    "lists threads",
    "reads a module",
    "looks up a function",
    "talks to a runtime",
    "ends the recording",
];

/// Bytes of the [`AgentStatus`] of the first agents, which is the least that a host may ask for.
pub const FIRST_STATUS_SIZE: usize = core::mem::offset_of!(AgentStatus, names);

const _: () = assert!(FIRST_CONFIG_SIZE == 120);
const _: () = assert!(size_of::<AgentConfig>() == 136);
const _: () =
    assert!(size_of::<AgentStatus>() == 24 + 5 * 8 + 8 + 256 + 8 + 8 + 8 + 32 + 40 + 8 * 16 + 3 * 8);
const _: () = assert!(core::mem::offset_of!(AgentStatus, rotation) % 8 == 0);
const _: () = assert!(core::mem::offset_of!(AgentStatus, file_index) % 8 == 0);
const _: () = assert!(FIRST_STATUS_SIZE == 328);
