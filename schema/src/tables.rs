//! The tables of a Parquet dataset: one folder a table. `docs/reference/dataset.md` describes the
//! files. The version of the tables is in `_stk.json`.
//!
//! Whole numbers are signed 64-bit (Spark reads unsigned ones as decimals), times of day are
//! microseconds in UTC (Spark does not read nanoseconds), times within a trace are nanoseconds
//! since its start. Ids are hashes of content, not counters, and do not depend on symbols, so that
//! files of many traces can be read as one table. `stacks` and `frames` have each id once for all
//! traces; the rows of all other tables belong to a trace. Every column can hold nulls: what a
//! trace does not record is null. Columns are read by name: later versions may add some anywhere.
//!
//! How ids are made, all with xxh3-64 over the bytes named, numbers in little endian, the result
//! taken as a signed number:
//!
//! * `image_id`: the image's identity (CodeView GUID and age, or header fields).
//! * `location_id` in an image: `image_id` (8 bytes), then `rva` (8 bytes).
//! * `location_id` in a managed method that was compiled at run time: the text `il:`, the GUID of
//!   its module's build (16 bytes: that of its portable PDB; of System.Private.CoreLib, which runs
//!   only with the runtime of its build, that of the runtime's PDB), the method's metadata token (4
//!   bytes), the IL offset (4 bytes, signed), and the method's name as text if it has `[`, since
//!   the instances of a generic method share their token. The native code at an IL offset is the
//!   same location wherever it lies and however often the runtime compiles it.
//! * `location_id` elsewhere: the text `code:` (code made at run time) or `address:` (in nothing
//!   known), the trace id as text, for code its instance (8 bytes), the address (8 bytes). It has
//!   no meaning outside its trace: `portable` is false.
//! * `function_id` in an image: the text `function:`, `image_id` (8 bytes), the RVA of the
//!   function's beginning (8 bytes). Of a managed method: as its `location_id`, with the text
//!   `method:` and no IL offset.
//! * `function_key`: the module's file name in lower case, a zero byte, the function's name without
//!   what changes from build to build.
//! * `stack_id`: the `location_id` (8 bytes) of each frame, root first.

use self::ColumnType::{
    Boolean, Float64, Int64, KeyValues, ListInt64, ListText, NamedFrames, Text, TimestampMicrosUtc,
};

/// Version of these tables: in `_stk.json`, in each row of `traces`, and at the end of every file
/// (`stk.tables_version`). It increases when a column changes its meaning or is removed, or an id
/// is made otherwise, not when a column is added.
pub const VERSION: i64 = 3;

/// Version of the way in which stacks are walked. It increases when walks of the same trace may
/// give other stacks than before.
pub const WALK_VERSION: i64 = 1;

/// Type of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ColumnType {
    /// Signed 64-bit number.
    Int64,
    /// 64-bit floating point number.
    Float64,
    /// True or false.
    Boolean,
    /// UTF-8.
    Text,
    /// TIMESTAMP(MICROS, isAdjustedToUTC).
    TimestampMicrosUtc,
    /// List of signed 64-bit numbers.
    ListInt64,
    /// List of texts.
    ListText,
    /// List of structs `{function: Text, file: Text, line: Int64, module: Text, rva: Int64,
    /// address: Int64, trust: Text, inline: Boolean}`.
    NamedFrames,
    /// List of structs `{key: Text, value: Text}`.
    KeyValues,
}

/// A column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableColumn {
    /// The column's name.
    pub name: &'static str,
    /// The type of the column's values.
    pub kind: ColumnType,
    /// Whether a value can be missing.
    pub nullable: bool,
    /// The meaning of the column's values.
    pub doc: &'static str,
}

/// A table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParquetTable {
    /// The table's name, which is also that of its folder.
    pub name: &'static str,
    /// Whether its rows belong to a trace: its files are in a folder for each date
    /// (`date=2026-11-24`, of the traces' starts, in UTC). Otherwise it has each id once for all
    /// traces.
    pub by_date: bool,
    /// The meaning of a row.
    pub doc: &'static str,
    /// Columns in order.
    pub columns: &'static [TableColumn],
}

const fn column(name: &'static str, kind: ColumnType, doc: &'static str) -> TableColumn {
    TableColumn { name, kind, nullable: false, doc }
}

const fn nullable(name: &'static str, kind: ColumnType, doc: &'static str) -> TableColumn {
    TableColumn { name, kind, nullable: true, doc }
}

const RESOLVED_BY: TableColumn =
    column("resolved_by", Text, "What the row was taken from: `trace` and the trace_id of a conversion");

const TRACE_ID: TableColumn = column("trace_id", Text, "The trace, by its content: 32 hex digits");

/// The table `samples`.
pub const SAMPLES: ParquetTable = ParquetTable {
    name: "samples",
    by_date: true,
    doc: "Consecutive samples of one thread with the same stack, state and flags within a second of UTC; without CPU time, \
          whole minutes, hours and days are a row each, and a run longer than a day is cut less often (`samples` says how many; mostly 1 in a busy thread)",
    columns: &[
        TRACE_ID,
        column("host", Text, "Host name; empty if unknown"),
        column("process", Text, "Executable's file name"),
        column("pid", Int64, "Process id"),
        column("thread", Int64, "Thread instance, unique in the trace; see `threads`"),
        column("tid", Int64, "System thread id; the system uses it again after the thread's end"),
        column("thread_name", Text, "Last name of the thread; empty if it has none"),
        column("ts_ns", Int64, "Time of the first sample, nanoseconds since the trace's start"),
        column("ts_utc", TimestampMicrosUtc, "Time of day of the first sample"),
        column(
            "duration_ns",
            Int64,
            "Time that the row stands for: up to the thread's next sample, or the end of the second (minute, …)",
        ),
        column(
            "run_id",
            Int64,
            "Joins the rows of one stack and state that whole seconds (minutes, …) of UTC cut apart, such as those of a long wait. Unique in \
             the trace",
        ),
        nullable("stack_id", Int64, "See `stacks`; null if the sample has no frames"),
        column("samples", Int64, "Number of samples; 0 if none fell into a part that a whole second cut off"),
        column(
            "state",
            Text,
            "What the thread did: `running` (on a processor, or ready to run), `waiting`, `system-call` (another system \
             call, which may work or wait), `unknown`",
        ),
        nullable(
            "wait_reason",
            Text,
            "What a waiting thread waits for, by its outermost function that waits",
        ),
        nullable("wait_class", Text, "`idle` (it has nothing to do), `blocked` (it has), `unknown`"),
        nullable(
            "cpu_ns",
            Int64,
            "The row's share of the CPU time of its thread, without what being sampled cost it: the sum over a thread is the \
             thread's CPU time",
        ),
        nullable(
            "cpu_source",
            Text,
            "Where `cpu_ns` is from: `thread-times` (the system's clock of each thread) or `cycles` (the processor's count)",
        ),
        nullable(
            "tag",
            Int64,
            "Number that the program gave with stk_capture, if it asked for the sample (as a signed number)",
        ),
        nullable("event_id", Int64, "The capture that took the sample; see `events`"),
        column("depth", Int64, "Frames of the stack, inlined functions not counted"),
        column(
            "proved",
            Boolean,
            "Whether each frame follows from recorded data; false: some frame is an assumption",
        ),
        column("truncated", Boolean, "The captured bytes did not reach the stack's base"),
        column("tables_pending", Boolean, "Taken before a module's unwind tables were recorded"),
        column("stop_reason", Text, "Why the stack ends; `thread-start` is a complete one"),
        column("stop_module", Text, "Module to blame for an incomplete stack; empty if none"),
    ],
};

/// The further column of `samples` with names in place (`--denormalized`).
pub const SAMPLES_FRAMES: TableColumn = column("frames", NamedFrames, "The stack with names, root first");

/// `stacks`.
pub const STACKS: ParquetTable = ParquetTable {
    name: "stacks",
    by_date: false,
    doc: "A distinct stack",
    columns: &[
        column("stack_id", Int64, "Hash of the locations"),
        column("walk_version", Int64, "Version of the way in which stacks are walked"),
        column("location_ids", ListInt64, "Locations, root first; see `frames`"),
        column(
            "trusts",
            ListText,
            "How each frame was found, parallel to `location_ids`, in the first sample of the trace in `resolved_by` that has \
             the stack",
        ),
        column("depth", Int64, "Length of these lists"),
        RESOLVED_BY,
    ],
};

/// `frames`.
pub const FRAMES: ParquetTable = ParquetTable {
    name: "frames",
    by_date: false,
    doc: "A name at a location: the function itself or one inlined into it",
    columns: &[
        column("location_id", Int64, "Hash of the place in an image, or in a managed method"),
        column("portable", Boolean, "Whether the same place has the same `location_id` in other traces"),
        column("inline_index", Int64, "0 = innermost; each is inlined into the next"),
        column(
            "inlined",
            Boolean,
            "Whether it is inlined into the next (false: the function that holds the address)",
        ),
        column("function", Text, "Name; `module.dll+0x1234` without a symbol"),
        nullable(
            "function_id",
            Int64,
            "Hash of the image and the function's beginning, or of the managed method; null for inlined functions, and \
             where the beginning is unknown",
        ),
        nullable(
            "function_rva",
            Int64,
            "The function's beginning, relative to its image; null as `function_id`",
        ),
        nullable(
            "function_key",
            Int64,
            "Hash of the module's name and the function's, the same in other builds; null without a name",
        ),
        nullable("file", Text, "Source file"),
        nullable("line", Int64, "Line in `file`; null if no line row covers the address"),
        nullable(
            "module",
            Text,
            "Module's file name (of a managed method: its assembly's); null for an address in no module",
        ),
        nullable("debug_id", Text, "GUID and age as symbol servers write them"),
        nullable("image_id", Int64, "Hash of the image's identity"),
        nullable(
            "rva",
            Int64,
            "Address that was looked up, relative to the image: the instruction itself in a stack's innermost frame, the \
             return address minus 1 in its callers. Null outside of images",
        ),
        nullable(
            "address",
            Int64,
            "The address that was looked up, where it is in no image (as a signed number); of several at one place, the \
             first in the trace of `resolved_by`",
        ),
        column(
            "kind",
            Text,
            "`native`; `managed` (a method of a language runtime), `stub` (code that a runtime made for itself), `runtime` \
             (native code of a runtime); `dynamic` for other code made at run time; `unknown` for an address in neither; \
             `placeholder` for what is no code, such as `[no stack: REASON]`",
        ),
        column(
            "category",
            Text,
            "Whose code it is: `user`, `system` (Windows), `framework` (.NET's class library), `runtime`, `jit`, `gc` (parts \
             of a language runtime), `unknown`",
        ),
        column("name_source", Text, "`pdb`, `dwarf`, `export`, `runtime` or `none`"),
        nullable(
            "unresolved",
            Text,
            "Why there is no (better) name; of a managed method: why there is no line",
        ),
        nullable("tier", Text, "How far a managed method's code is optimised, as its runtime calls it"),
        column(
            "aliases",
            ListText,
            "Further functions that the linker folded into this one: which of them ran is unknown. Of a managed method: the name that the runtime gave it. Empty for inlined ones",
        ),
        RESOLVED_BY,
    ],
};

/// `events`.
pub const EVENTS: ParquetTable = ParquetTable {
    name: "events",
    by_date: true,
    doc: "Something that happened at one time. Every event of the trace is here, whatever part of it was converted",
    columns: &[
        TRACE_ID,
        column("event_id", Int64, "Number among all events of the trace, from 1, as in `stk events`"),
        column(
            "kind",
            Text,
            "`capture` (stk_capture), `mark` (stk_mark), `exception`, `load`, `unload` (of a module), `thread-start`, \
             `thread-name` (a thread got another name: `text`), `thread-exit`",
        ),
        column("ts_ns", Int64, "Nanoseconds since the trace's start"),
        column("ts_utc", TimestampMicrosUtc, "Time of day"),
        nullable("thread", Int64, "Thread instance; see `threads`. Null: the process"),
        nullable("tid", Int64, "System thread id"),
        nullable("tag", Int64, "Number that the program gave a capture or mark (as a signed number)"),
        nullable("text", Text, "Text of a mark; the module's path"),
        nullable("module", Int64, "The module's `instance`; see `modules`"),
        nullable("code", Int64, "Code of the exception"),
        nullable("address", Int64, "Where the exception was raised (as a signed number)"),
    ],
};

/// `gaps`.
pub const GAPS: ParquetTable = ParquetTable {
    name: "gaps",
    by_date: true,
    doc: "A time in which samples are missing, and why. Every gap of the trace is here, whatever part of it was converted",
    columns: &[
        TRACE_ID,
        column(
            "reason",
            Text,
            "As the recorder says (`sampler woke late`, `all buffers were full` …), or `block lost`, `block damaged`",
        ),
        nullable("thread", Int64, "Thread instance; null: any thread"),
        nullable("tid", Int64, "System thread id"),
        column(
            "start_ns",
            Int64,
            "When it began, nanoseconds since the trace's start. The recorder reports the end alone: then it is the earliest \
             time possible, `count` sample intervals before and not before the last gap of this reason and thread",
        ),
        column("end_ns", Int64, "When it was noticed, or the next block begins"),
        column("start_utc", TimestampMicrosUtc, "Time of day of `start_ns`"),
        column(
            "count",
            Int64,
            "Samples, passes over all threads or events that the recorder left out; blocks",
        ),
    ],
};

/// `modules`.
pub const MODULES: ParquetTable = ParquetTable {
    name: "modules",
    by_date: true,
    doc: "An image at an address for a time",
    columns: &[
        TRACE_ID,
        column("instance", Int64, "Unique in the trace"),
        column("image_id", Int64, "Hash of the image's identity"),
        column("name", Text, "File name"),
        column("path", Text, "Full path as recorded"),
        nullable("debug_id", Text, "GUID and age as symbol servers write them"),
        nullable("code_id", Text, "TimeDateStamp and SizeOfImage as symbol servers write them"),
        nullable("pdb_name", Text, "PDB file name as the image gives it"),
        column("base", Int64, "Load address (as a signed number)"),
        column("size", Int64, "Bytes mapped"),
        nullable("load_ns", Int64, "Nanoseconds since the trace's start; null: before"),
        nullable("unload_ns", Int64, "Nanoseconds since the trace's start; null: never"),
    ],
};

/// `threads`.
pub const THREADS: ParquetTable = ParquetTable {
    name: "threads",
    by_date: true,
    doc: "A thread from its start to its end",
    columns: &[
        TRACE_ID,
        column("thread", Int64, "Thread instance, unique in the trace"),
        column("tid", Int64, "System thread id"),
        column("name", Text, "Last name; empty if it has none"),
        nullable("start_ns", Int64, "Nanoseconds since the trace's start; null: before"),
        nullable("exit_ns", Int64, "Nanoseconds since the trace's start; null: never"),
        column("samples", Int64, "Samples"),
        column("active_samples", Int64, "Samples in which it did not wait, as far as is known"),
    ],
};

/// `traces`.
pub const TRACES: ParquetTable = ParquetTable {
    name: "traces",
    by_date: true,
    doc: "A trace",
    columns: &[
        TRACE_ID,
        column(
            "uuid",
            Text,
            "UUID that the recorder gave the recording; different traces can have the same one",
        ),
        nullable(
            "content_digest",
            Text,
            "xxh3-128 of the .stk file up to the end of its last whole block. It is the trace_id",
        ),
        nullable("content_bytes", Int64, "Length of that content"),
        nullable(
            "content_beginnings",
            ListInt64,
            "First 8 bytes of the hash of each beginning of that content which ends with a block: by them a shorter copy is \
             known for one",
        ),
        nullable(
            "superseded_by",
            Text,
            "The trace that stands for this one, since it begins with all of it and is longer. Then no other column \
             and no other table says anything of this trace",
        ),
        column("tables_version", Int64, "Version of these tables"),
        nullable("source", Text, "Name of the .stk file"),
        column("host", Text, "Host name; empty if unknown"),
        column("process", Text, "Executable's file name"),
        column("pid", Int64, "Process id"),
        column("arch", Text, "`x64`, `arm64` or `x86`"),
        nullable("os_build", Text, "Operating system's version"),
        nullable("command_line", Text, "Command line of the process"),
        nullable("recorder_version", Text, "Version of the recorder"),
        column("stk_version", Text, "Version of stk that wrote the dataset"),
        column("start_utc", TimestampMicrosUtc, "Time of day of the trace's start"),
        column("duration_ns", Int64, "Time of the last event since the start"),
        column("interval_ns", Int64, "Nominal time between two samples of a thread"),
        column("complete", Boolean, "Whether the recorder finished the trace"),
        column("samples", Int64, "Samples in the trace"),
        column("dropped", Int64, "Samples that the recorder dropped"),
        column("damaged_blocks", Int64, "Blocks that could not be read"),
        nullable("machine_id", Text, "Identity of the machine"),
        nullable("boot_id", Text, "Identity of the system's boot: 16 hex digits"),
        nullable("session_id", Text, "Session that the process ran in"),
        nullable("exe_version", Text, "File version of the executable"),
        nullable("exe_debug_id", Text, "GUID and age of the executable, as symbol servers write them"),
        nullable("cpu_count", Int64, "Processors"),
        nullable("tz_offset", Int64, "Local time less UTC, in minutes"),
        nullable("achieved_hz", Float64, "How often each thread was looked at in fact, per second"),
        nullable("missed_ticks", Int64, "How often the sampler came late or left threads out"),
        nullable("named_pct", Float64, "Percentage of the samples' frames with names from symbols"),
        column(
            "labels",
            KeyValues,
            "What the user noted: METADATA whose keys begin with `label.`, without that",
        ),
        column("facts", KeyValues, "Everything else that the recorder noted"),
    ],
};

/// All tables of a dataset.
pub const ALL: [ParquetTable; 8] = [SAMPLES, EVENTS, GAPS, STACKS, FRAMES, MODULES, THREADS, TRACES];
