//! The JSON document of `stk info`. The text is made from it too.

use super::code::DynamicCode;
use super::methods::MethodNames;
use serde::Serialize;
use std::collections::BTreeMap;

/// Version of the JSON output. It is raised when the meaning of a field changes or a field is
/// removed. New fields may be added at any time.
pub const VERSION: u32 = 1;

/// A trace in the JSON output.
#[derive(Serialize)]
pub struct Info {
    pub file: String,
    pub bytes: u64,
    pub trace_id: String,
    pub process: String,
    pub pid: u32,
    pub arch: &'static str,
    pub start_utc: String,
    /// The same in nanoseconds since the epoch, for the text.
    #[serde(skip)]
    pub start_utc_ns: u64,
    pub duration_ns: u64,
    pub interval_ns: u64,
    /// Rates that the recorder changed to, to limit its share of a processor.
    pub rates: Vec<RateInfo>,
    /// Times in which the recording was paused.
    pub pauses: Vec<PauseInfo>,
    /// Of a file of `inject --rotate`: its place in the recording.
    pub rotation: Option<RotationInfo>,
    pub complete: bool,
    pub end: Option<EndInfo>,
    pub samples: u64,
    pub dropped: u64,
    pub drops: BTreeMap<String, u64>,
    pub damage: Vec<String>,
    pub unknown_events: u64,
    pub unread_ns: u64,
    pub supplement: Option<SupplementInfo>,
    pub blocks: BTreeMap<&'static str, BlockInfo>,
    pub embedded: EmbeddedTables,
    pub metadata: Vec<(String, String)>,
    pub runtimes: Vec<RuntimeInfo>,
    /// Names that the recorder got from .NET's data access library.
    pub data_access_names: u64,
    /// Number of names that the recorder read from the runtime's memory.
    pub contract_names: u64,
    pub marks: usize,
    pub exceptions: u64,
    pub dynamic_code: DynamicCode,
    pub methods: Option<MethodNames>,
    pub redacted_words: BTreeMap<String, u64>,
    pub threads: Vec<ThreadSummary>,
    pub modules: Vec<ModuleInfo>,
}

/// Additions to the trace after the recording had ended.
#[derive(Serialize)]
pub struct SupplementInfo {
    /// False: it is incomplete and ignored.
    pub whole: bool,
    /// Bytes of the file that it takes.
    pub bytes: u64,
    /// Bytes of an incomplete block that were cut off before it.
    pub cut_bytes: u64,
    /// Module instances that got tables or identities.
    pub modules: u64,
    /// Module instances that got none: path and reason.
    pub left: Vec<String>,
}

#[derive(Serialize)]
pub struct PauseInfo {
    pub from_ns: u64,
    pub to_ns: u64,
}

#[derive(Serialize)]
pub struct RotationInfo {
    /// The same in all files of a recording.
    pub id: String,
    /// From 1.
    pub index: u64,
    /// From the end of the file before to the first look at the threads in this one; 0 where it
    /// continues without a gap, `None` in the first file.
    pub gap_ns: Option<u64>,
}

#[derive(Serialize)]
pub struct RateInfo {
    pub at_ns: u64,
    /// Looks at each thread a second.
    pub hz: f64,
}

#[derive(Serialize)]
pub struct EndInfo {
    pub reason: &'static str,
    pub detail: String,
}

#[derive(Default, Serialize)]
pub struct BlockInfo {
    pub blocks: u64,
    pub stored_bytes: u64,
    pub raw_bytes: u64,
}

/// The parts of images in the trace. A table that several images share counts once.
#[derive(Default, Serialize)]
pub struct EmbeddedTables {
    /// Bytes by kind of table.
    pub tables: BTreeMap<&'static str, u64>,
    /// Bytes that these parts take in the file.
    pub stored_bytes: u64,
    /// Images with, and without, the data that unwinding needs, in the trace or in a folder of
    /// tables.
    pub images_with_unwind_data: usize,
    pub images_without: usize,
    /// Tables that are not in the trace itself: those in a folder given with --tables, and those
    /// that are in neither.
    pub in_folders: TableTotals,
    pub not_at_hand: TableTotals,
}

#[derive(Default, Serialize)]
pub struct TableTotals {
    pub tables: u64,
    pub bytes: u64,
}

#[derive(Serialize)]
pub struct RuntimeInfo {
    pub kind: &'static str,
    pub version: String,
    pub note: String,
}

#[derive(Serialize)]
pub struct ThreadSummary {
    pub tid: u32,
    pub name: String,
    pub earlier_names: Vec<EarlierName>,
    pub start_ns: Option<u64>,
    pub exit_ns: Option<u64>,
    pub recorder: bool,
}

#[derive(Serialize)]
pub struct EarlierName {
    pub name: String,
    pub until_ns: u64,
}

#[derive(Serialize)]
pub struct ModuleInfo {
    pub name: String,
    pub path: String,
    pub base: String,
    pub size: u64,
    pub debug_id: String,
    pub code_id: String,
    pub pdb: String,
    /// Whether its identities were read from an image file after the recording ended.
    pub identity_from_file: bool,
    /// Whether it was missing in the loader's list.
    pub unlisted: bool,
    pub load_ns: Option<u64>,
    pub unload_ns: Option<u64>,
    /// Bytes of its tables that are in the trace.
    pub embedded_bytes: u64,
    /// `here` (in the trace or a folder given with --tables), `elsewhere` (in a folder that was not
    /// given) or `none`.
    pub unwind_data: &'static str,
}
