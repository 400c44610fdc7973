//! The tables of a Parquet dataset: one folder a table, one file a trace in it
//! (`samples/<uuid>-<trace_id>.parquet`). The version of the tables stands in `_stk.json`.
//!
//! Whole numbers are signed 64-bit (Spark reads unsigned ones as decimals), times of day are
//! microseconds in UTC (Spark does not read nanoseconds), times within a trace are nanoseconds
//! since its start. Ids are hashes of content, not counters, and do not depend on symbols, so that
//! files of many traces can be read as one table. Rows that describe (all tables but `samples`)
//! repeat between traces: join on (`trace_id`, id).
//!
//! How ids are made, all with xxh3-64 over the bytes named, numbers in little endian, the result
//! taken as a signed number:
//!
//! * `image_id`: the image's identity (CodeView GUID and age, or header fields).
//! * `location_id`: `image_id` (8 bytes), then `rva` (8 bytes). For an address in no module: the
//!   text `address:`, the trace id as text, the address (8 bytes): it has no meaning outside its
//!   trace.
//! * `stack_id`: for each frame, root first: its `location_id` (8 bytes), then its trust as text
//!   and a zero byte.

use self::ColumnType::{
    Boolean, Int64, KeyValues, ListInt64, ListText, NamedFrames, Text, TimestampMicrosUtc,
};

/// Version of these tables, in each file of `traces`. It increases when a column changes its
/// meaning or is removed, not when one is added.
pub const VERSION: i64 = 2;

/// Type of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ColumnType {
    /// Signed 64-bit number.
    Int64,
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
    /// List of structs `{function: Text, file: Text, line: Int64, module: Text, rva: Int64, trust:
    /// Text, inline: Boolean}`.
    NamedFrames,
    /// List of structs `{key: Text, value: Text}`.
    KeyValues,
}

/// A column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Column {
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
    /// The meaning of a row.
    pub doc: &'static str,
    /// Columns in order.
    pub columns: &'static [Column],
}

const fn column(name: &'static str, kind: ColumnType, doc: &'static str) -> Column {
    Column { name, kind, nullable: false, doc }
}

const fn nullable(name: &'static str, kind: ColumnType, doc: &'static str) -> Column {
    Column { name, kind, nullable: true, doc }
}

const TRACE_ID: Column = column("trace_id", Text, "The trace, by its content: 32 hex digits");

/// The table `samples`: one row a sample.
pub const SAMPLES: ParquetTable = ParquetTable {
    name: "samples",
    doc: "Consecutive samples of one thread with the same stack, state and flags (`samples` says how many; mostly 1 in a \
          busy thread)",
    columns: &[
        TRACE_ID,
        column("host", Text, "Host name; empty if unknown"),
        column("process", Text, "Executable's file name"),
        column("pid", Int64, "Process id"),
        column("thread", Int64, "Thread instance, unique in the trace; see `threads`"),
        column("tid", Int64, "System thread id; the system uses it again after the thread's end"),
        column("thread_name", Text, "Last name of the thread; empty if it has none"),
        column("ts_ns", Int64, "Time of the first sample, nanoseconds since the trace's start"),
        column("last_ns", Int64, "Time of the last sample, nanoseconds since the trace's start"),
        column("ts_utc", TimestampMicrosUtc, "Time of day of the first sample"),
        nullable("stack_id", Int64, "See `stacks`; null if the sample has no frames"),
        column("samples", Int64, "Number of samples"),
        column("weight_ns", Int64, "Time that the row stands for: up to the thread's next sample"),
        column("cpu_ns", Int64, "CPU time used in it; 0 if not recorded"),
        nullable("running", Boolean, "True: ran; false: waited; null: not known"),
        column("depth", Int64, "Frames of the stack, inlined functions not counted"),
        column("truncated", Boolean, "The captured bytes did not reach the stack's base"),
        column("triggered", Boolean, "Asked for by the program itself (stk_capture), not by the clock"),
        column("tables_pending", Boolean, "Taken before a module's unwind tables were recorded"),
        column("stop_reason", Text, "Why the stack ends; `thread-start` is a complete one"),
        column("stop_module", Text, "Module to blame for an incomplete stack; empty if none"),
    ],
};

/// The further column of `samples` with names in place (`--denormalized`).
pub const SAMPLES_FRAMES: Column = column("frames", NamedFrames, "The stack with names, root first");

/// `stacks`.
pub const STACKS: ParquetTable = ParquetTable {
    name: "stacks",
    doc: "A distinct stack",
    columns: &[
        TRACE_ID,
        column("stack_id", Int64, "Hash of the locations and trusts"),
        column("location_ids", ListInt64, "Locations, root first; see `frames`"),
        column("trusts", ListText, "How each frame was found, parallel to `location_ids`"),
        column("depth", Int64, "Length of these lists"),
    ],
};

/// `frames`.
pub const FRAMES: ParquetTable = ParquetTable {
    name: "frames",
    doc: "A name at a location: the function itself or one inlined into it",
    columns: &[
        TRACE_ID,
        column("location_id", Int64, "Hash of the image's identity and the RVA"),
        column("inline_index", Int64, "0 = innermost; each is inlined into the next"),
        column(
            "inlined",
            Boolean,
            "Whether it is inlined into the next (false: the function that holds the address)",
        ),
        column("function", Text, "Name; `module.dll+0x1234` without a symbol"),
        nullable("file", Text, "Source file"),
        nullable("line", Int64, "Line in `file`; null if no line row covers the address"),
        nullable(
            "module",
            Text,
            "Module's file name (of a managed method: its assembly's); null for an address in no module",
        ),
        nullable("debug_id", Text, "GUID and age as symbol servers write them"),
        nullable("image_id", Int64, "Hash of the image's identity"),
        column(
            "rva",
            Int64,
            "Address that was looked up, relative to the module: the instruction itself in a stack's innermost frame, the \
             return address minus 1 in its callers. Absolute if `image_id` is null",
        ),
        column(
            "kind",
            Text,
            "`native`; `managed` (a method of a language runtime), `stub` (code that a runtime made for itself), `runtime` \
             (native code of a runtime); `dynamic` for other code made at run time; `unknown` for an address in neither",
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
            "Further functions that the linker folded into this one: which of them ran cannot be told. Empty for inlined ones",
        ),
    ],
};

/// `modules`.
pub const MODULES: ParquetTable = ParquetTable {
    name: "modules",
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
    doc: "A trace; its file is written last, so that a trace listed here is complete in the other tables",
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
        column("labels", KeyValues, "Everything else that the recorder noted"),
    ],
};

/// All tables of a dataset.
pub const ALL: [ParquetTable; 6] = [SAMPLES, STACKS, FRAMES, MODULES, THREADS, TRACES];
