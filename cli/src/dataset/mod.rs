//! Questions to a Parquet dataset: what its tables hold of the traces asked for, as a profile and
//! its runs, so that all that answers questions on a trace answers them on thousands.
//!
//! ```text
//! tables        Parquet files, row group by row group
//! traces        the traces of a dataset                           traces -> DatasetTrace
//! samples       sums of the rows of samples, by stack and state   samples -> GroupedSums
//! partial_sums  those of one thread, while it reads
//! sums          what rows that are one sum have in common
//! names         the stacks of these sums, with the names of code  stacks, frames -> Profile
//! ```
//!
//! The rows of `samples` are read once and never held: memory grows with distinct stacks, names and
//! groups, not with samples.

#[cfg(feature = "parquet")]
mod names;
#[cfg(feature = "parquet")]
mod partial_sums;
#[cfg(feature = "parquet")]
mod samples;
#[cfg(feature = "parquet")]
mod sums;
#[cfg(feature = "parquet")]
mod tables;
#[cfg(feature = "parquet")]
mod traces;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use stk_base::files::read_input;
#[cfg(feature = "parquet")]
use stk_output::formats::TableError;
use stk_profile::profile::{Profile, Runs, SampleSum};

/// Why a dataset was not read.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// This build has no Parquet.
    #[error("{}: a Parquet dataset, and this stk was built without Parquet: build it with the feature `parquet`", .0.display())]
    NoParquet(PathBuf),
    /// The tables are of another version.
    #[error(
        "{}: a dataset with tables of version {found}, and this stk has version {}: convert its traces again, into another folder",
        .path.display(), stk_schema::tables::VERSION
    )]
    Version {
        /// The dataset's folder.
        path: PathBuf,
        /// Its version.
        found: String,
    },
    /// Parts were converted, and no tables were made of them.
    #[error("{}: has no tables yet: stk convert and stk batch without --shard make them", .0.display())]
    NoTables(PathBuf),
    /// The system refused to open or list something.
    #[error("{}: cannot be read; if its tables are being made anew, try again", .path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    /// A file is no such table.
    #[cfg(feature = "parquet")]
    #[error(transparent)]
    Table(#[from] TableError),
    /// A temporary file cannot be written.
    #[error("temporary file for sums of samples")]
    Runs(#[from] io::Error),
}

/// Name of the file that makes a folder a dataset.
const VERSION_FILE: &str = "_stk.json";
/// Bytes of it that are read at most.
const MOST_READ: u64 = 4096;

/// Whether a path is a dataset.
pub fn is_dataset(path: &Path) -> bool {
    path.join(VERSION_FILE).is_file()
}

/// A dataset, and those of its traces that are requested.
#[derive(Debug)]
pub struct Dataset {
    folder: PathBuf,
    /// By date, process, host and id.
    traces: Vec<DatasetTrace>,
}

/// A trace, as the table `traces` describes it. Times are nanoseconds.
#[derive(Clone, Default, Debug)]
pub struct DatasetTrace {
    pub trace_id: String,
    /// UTC date of its start: the folder of its rows.
    pub date: String,
    /// Name of its file.
    pub source: String,
    pub host: String,
    pub process: String,
    pub pid: u32,
    /// Since the Unix epoch, to the microsecond.
    pub start_utc_ns: u64,
    pub duration_ns: u64,
    pub interval_ns: u64,
    pub complete: bool,
    pub dropped: u64,
    pub damaged_blocks: u64,
    /// Length of its file.
    pub bytes: u64,
    pub labels: Vec<(String, String)>,
    /// What of its rows lies from this time on, since its start; `None`: all.
    pub from_ns: Option<u64>,
    /// What of them lies before this time; `None`: all.
    pub until_ns: Option<u64>,
}

impl DatasetTrace {
    /// The length of the time asked for.
    pub fn asked_ns(&self) -> u64 {
        let until = self.until_ns.unwrap_or(u64::MAX).min(self.duration_ns);
        until.saturating_sub(self.from_ns.unwrap_or(0))
    }
}

/// A thread of a row, where groups depend on it.
#[derive(Clone, Copy, Debug)]
pub struct DatasetThread<'a> {
    pub instance: u64,
    pub tid: u32,
    /// Empty if it has none.
    pub name: &'a str,
}

/// How samples are summed.
pub struct Grouping<'a> {
    /// The values that make a group, of a trace and, if `by_thread`, of a thread. `None`: the
    /// thread's samples are left out.
    #[allow(clippy::type_complexity)] // it is said once
    pub values: &'a (dyn Fn(&DatasetTrace, Option<DatasetThread<'_>>) -> Option<Vec<String>> + Sync),
    /// Whether these depend on the thread.
    pub by_thread: bool,
    /// Whether each trace is a group of its own: then few rows of different row groups are one sum.
    pub by_trace: bool,
    /// Whether running threads, and those in a system call, are distinguished.
    pub states: bool,
    /// Whether waits are counted.
    pub waits: bool,
    /// Gets the number of rows to read.
    pub rows: &'a (dyn Fn(u64) + Sync),
    /// How many of them are read.
    pub rows_read: &'a AtomicU64,
}

/// Samples of traces with one nominal interval, all with or all without CPU times.
#[derive(Debug)]
pub struct DatasetPart {
    /// Its threads are the groups; its frames and stacks have their names.
    pub profile: Profile,
    /// By group, one run for each stack and state, or several. Their `capture_tag` is an index in
    /// `waits`; times of samples are not known.
    pub runs: Runs,
    /// By thread of the profile: the values of the group.
    pub values: Vec<Vec<String>>,
    /// What the runs sum up of waits; empty unless asked for.
    pub waits: Vec<WaitRuns>,
    /// All samples in the time asked for, of all threads.
    pub whole: SampleSum,
}

/// Waits that begin in one stack.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct WaitRuns {
    /// How many.
    pub waits: u64,
    /// The longest, in nanoseconds.
    pub longest_ns: u64,
}

impl Dataset {
    /// Reads which traces a dataset has. Those that another stands for are left out.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or this build has no Parquet.
    pub fn open(folder: &Path) -> Result<Dataset, DatasetError> {
        check_version(folder)?;
        #[cfg(feature = "parquet")]
        return Ok(Dataset { folder: folder.to_owned(), traces: traces::read(folder)? });
        #[cfg(not(feature = "parquet"))]
        Err(DatasetError::NoParquet(folder.to_owned()))
    }

    /// The dataset's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The requested traces.
    pub fn traces(&self) -> &[DatasetTrace] {
        &self.traces
    }

    /// Leaves traces out, and sets the times of the others.
    pub fn keep(&mut self, is_kept: impl FnMut(&mut DatasetTrace) -> bool) {
        self.traces.retain_mut(is_kept);
    }

    /// Sums up the samples of the traces. Runs in the caller's rayon pool.
    ///
    /// # Errors
    ///
    /// When a table cannot be read.
    #[cfg(feature = "parquet")]
    pub fn load(&self, grouping: &Grouping<'_>) -> Result<Vec<DatasetPart>, DatasetError> {
        let sums = samples::sums(self, grouping)?;
        names::parts(self, sums)
    }

    /// There is no Parquet in this build.
    ///
    /// # Errors
    ///
    /// Always.
    #[cfg(not(feature = "parquet"))]
    pub fn load(&self, _: &Grouping<'_>) -> Result<Vec<DatasetPart>, DatasetError> {
        Err(DatasetError::NoParquet(self.folder.clone()))
    }
}

/// Refuses a dataset whose columns mean something else.
fn check_version(folder: &Path) -> Result<(), DatasetError> {
    let path = folder.join(VERSION_FILE);
    let text = read_input(&path, MOST_READ).map_err(|error| DatasetError::File { path, error })?;
    let version = serde_json::from_slice::<serde_json::Value>(&text).ok();
    match version.as_ref().and_then(|file| file.get("tables_version")) {
        Some(version) if version.as_i64() == Some(stk_schema::tables::VERSION) => Ok(()),
        found => {
            let found = found.map_or("unknown".to_owned(), ToString::to_string);
            Err(DatasetError::Version { path: folder.to_owned(), found })
        }
    }
}
