//! One module per output format.
//!
//! Every writer gets a finished, symbolized [`Profile`] and then its runs, thread by thread, each
//! in time order. Its output depends on nothing else. [`create`] makes a writer, and [`write`] runs
//! it from beginning to end.
//!
//! A format is one file with a `FORMAT` and one row of the table below. CONTRIBUTING.md describes
//! how to add one. Where viewers need something special or silently drop something, a comment in
//! the writer says so.

mod column;
mod compress;
mod counted_time;
mod error;
mod flame_svg;
mod folded_stacks;
mod json;
mod left_behind;
mod lock;
mod protobuf;
mod sink;
mod source;
mod stack_sums;
mod strings;
mod threads;
mod unfold;

/// The formats: declares the module of each, `mod module;`, and the enum [`Format`].
macro_rules! formats {
    ($($format:ident = $module:ident;)+) => {
        $(mod $module;)+

        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Format {
            $(
                #[doc = concat!("What the module `", stringify!($module), "` writes.")]
                $format,
            )+
        }

        impl Format {
            /// Every format, in the order in which help texts list them.
            pub const ALL: &[Format] = &[$(Format::$format),+];

            fn description(self) -> &'static Description {
                match self {
                    $(Format::$format => &$module::FORMAT,)+
                }
            }
        }
    };
}

formats! {
    Speedscope = speedscope;
    Chrome = chrome;
    Parquet = parquet;
    Folded = folded;
    Flamegraph = flamegraph;
    Firefox = firefox;
    Perfetto = perfetto;
    Pprof = pprof;
}

pub use compress::Compression;
pub use error::OutputError;
pub use flame_svg::draw_difference;
pub use flamegraph::in_xml;
pub use folded_stacks::field as folded_field;
pub use left_behind::{LeftBehind, remove_left_behind};
pub use lock::{FolderLock, lock_holder};
pub use parquet::{
    AppliedModule, ConversionFacts, DatasetEntry, DatasetIndex, apply_symbols, compact, dataset_modules,
};
#[cfg(feature = "parquet")]
pub use parquet::{TableError, TableFile};
pub use perfetto::PerfettoStyle;
pub use sink::{Sink, named as named_file, temporary};
pub(crate) use source::exporter_of;
pub use source::{SourceMark, source_mark};
#[cfg(test)]
pub(crate) use stack_sums::tests::{chain, profile as profile_of};
pub use stk_base::files::Refusal;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use stk_base::deadline::Deadline;
use stk_base::files::Below;
use stk_base::model::Image;
use stk_profile::profile::{Batch, Profile, RunWeigher, Runs, Weight};

/// Size above which viewers of JSON files become slow or fail, in bytes.
const LARGE_FILE: u64 = 256 << 20;

type CreateWriter = fn(Destination, &Options) -> Result<Box<dyn Writer>, OutputError>;

/// Description of a format by its module.
struct Description {
    /// Its name on the command line.
    name: &'static str,
    /// A line for help texts.
    help: &'static str,
    /// End of the names of its outputs, in lower case: `.speedscope.json`.
    suffix: &'static str,
    /// Other ends of names that select this format.
    other_suffixes: &'static [&'static str],
    /// Whether the output is a folder of several files.
    is_folder: bool,
    /// Whether the output holds [`source::exporter`].
    names_source: bool,
    /// Whether it counts [`Options::weights`]. Others hold every weight.
    takes_weight: bool,
    /// Whether it shows when what ran, process by process.
    has_time_line: bool,
    /// Makes a writer. Refuses a destination that is not possible for the format.
    create: CreateWriter,
}

impl Format {
    /// The format of a path by its extensions, or `None`: `*.speedscope.json`, `*.chrome.json`,
    /// `*.parquet` and so on, those with `.gz` or `.zst` behind them too.
    pub fn from_path(path: &Path) -> Option<Format> {
        let lower = |name: &OsStr| name.to_string_lossy().to_lowercase();
        let whole = lower(path.file_name()?);
        let unpacked = match Compression::of(path) {
            Compression::None => whole.clone(),
            _ => lower(path.file_stem()?),
        };
        let named = |format: &Format| {
            let Description { suffix, other_suffixes, .. } = format.description();
            let mut suffixes = std::iter::once(suffix).chain(*other_suffixes);
            // `.pb.gz` is an ending of its own.
            suffixes.any(|suffix| unpacked.ends_with(suffix) || whole.ends_with(suffix))
        };
        Format::ALL.iter().copied().find(named)
    }

    /// The file name of an output of this format before and from its known ending on: `app` and
    /// `.speedscope.json.gz`. Another name is cut before its last extension.
    pub fn split_name(self, path: &Path) -> (String, String) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let packed = match Compression::of(path) {
            Compression::None => 0,
            _ => path.extension().map_or(0, |extension| 1 + extension.len()),
        };
        let plain = &name[..name.len() - packed];
        let Description { suffix, other_suffixes, .. } = self.description();
        let lower = plain.to_ascii_lowercase();
        let known = std::iter::once(suffix).chain(*other_suffixes).find(|suffix| lower.ends_with(**suffix));
        let at = match known {
            Some(suffix) => plain.len() - suffix.len(),
            None => plain.rfind('.').filter(|at| *at > 0).unwrap_or(plain.len()),
        };
        (name[..at].to_owned(), name[at..].to_owned())
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        self.description().name
    }

    /// A line about it for help texts.
    pub fn help(self) -> &'static str {
        self.description().help
    }

    /// The end of the names of its outputs, such as `.speedscope.json`.
    pub fn suffix(self) -> &'static str {
        self.description().suffix
    }

    /// Name of the output in the current folder if none is given. `stem` is the trace's name
    /// without its extension.
    pub fn default_name(self, stem: &str) -> String {
        format!("{stem}{}", self.suffix())
    }

    /// Whether its outputs say of which trace they were made.
    pub fn names_source(self) -> bool {
        self.description().names_source
    }

    /// Whether its outputs count a weight that is chosen.
    pub fn takes_weight(self) -> bool {
        self.description().takes_weight
    }

    /// Functions of a stack beyond which its viewer does not open an output.
    pub fn most_functions(self) -> Option<usize> {
        (self == Format::Speedscope).then_some(speedscope::MOST_FUNCTIONS)
    }

    /// Whether it shows when what ran, so that several processes can stand beside each other.
    pub fn has_time_line(self) -> bool {
        self.description().has_time_line
    }

    /// Whether the output is a folder of several files.
    pub fn is_folder(self) -> bool {
        self.description().is_folder
    }
}

/// The destination of an output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Destination {
    /// A file that the user names, which appears under this name when it is complete. Of a link,
    /// what it leads to.
    File(PathBuf),
    /// A file of this name in a folder of outputs, likewise. A link is an error.
    InFolder {
        /// The folder.
        folder: PathBuf,
        /// The name.
        name: String,
    },
    /// A folder, which is made if it does not exist.
    Dir(PathBuf),
    Stdout,
}

impl Destination {
    /// The path of a file.
    pub fn file(&self) -> Option<PathBuf> {
        match self {
            Destination::File(path) => Some(path.clone()),
            Destination::InFolder { folder, name } => Some(folder.join(name)),
            Destination::Dir(_) | Destination::Stdout => None,
        }
    }
}

/// Options for the outputs.
#[derive(Clone, Default, Debug)]
pub struct Options {
    /// One frame per source line instead of one per function.
    pub lines: bool,
    /// Perfetto: the form to write.
    pub perfetto_style: PerfettoStyle,
    /// Parquet: samples have their frames' names, so that one file is enough for queries.
    pub denormalized: bool,
    /// Parquet: what the conversion depends on, for the dataset to know it again.
    pub key: Option<String>,
    /// Parquet: bytes that rows may take in memory before they are written; `None` = as many as a
    /// full row group takes.
    pub rows_memory: Option<u64>,
    /// Speedscope: what its profiles count, one profile of each thread for each. Other flame
    /// graphs: the first of them. Empty = the time that samples cover.
    pub weights: Vec<Weight>,
    /// Speedscope: threads with few samples have profiles of their own too.
    pub all_threads: bool,
    /// Which part of the trace was chosen, in words for titles; empty = all of it.
    pub selection: String,
}

impl Options {
    /// What flame graphs count: at least one.
    fn weights(&self) -> &[Weight] {
        if self.weights.is_empty() { &[Weight::Wall] } else { &self.weights }
    }
}

/// A writer of one output.
pub trait Writer: Send {
    /// The order in which this writer prefers the threads (indices in [`Profile::threads`]). Any
    /// order gives a correct output.
    fn thread_order(&self, profile: &Profile) -> Vec<u32> {
        (0..profile.threads.len() as u32).collect()
    }
    /// The passes over all runs that the writer wants, each with what it counts. In a pass, a run's
    /// `weight_ns` is in that weight, as [`RunWeigher`] says.
    fn passes(&self) -> Vec<Weight> {
        vec![Weight::Wall]
    }
    /// Writes the part before the samples.
    fn begin(&mut self, profile: &Profile) -> Result<(), OutputError>;
    /// Begins one of [`passes`](Writer::passes), by its index.
    fn begin_pass(&mut self, _profile: &Profile, _pass: usize) -> Result<(), OutputError> {
        Ok(())
    }
    /// Takes runs of one thread. Threads follow each other, each in time order.
    fn samples(&mut self, profile: &Profile, batch: &Batch<'_>) -> Result<(), OutputError>;
    /// Writes the rest and gives the output its name. Without this call, no output appears.
    fn finish(&mut self, profile: &Profile) -> Result<Summary, OutputError>;
}

/// The result of a writer.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Summary {
    /// Files with their sizes in bytes; empty for standard output.
    pub files: Vec<(PathBuf, u64)>,
    /// Sentences for the user, such as that the file is too large for its viewer.
    pub warnings: Vec<String>,
    /// Sentences on what was done as usual, such as what is left out.
    pub notes: Vec<String>,
}

/// Makes a writer of `format` to `destination`.
///
/// # Errors
///
/// When the destination cannot be written, or is not possible for the format.
pub fn create(
    format: Format,
    destination: Destination,
    options: &Options,
) -> Result<Box<dyn Writer>, OutputError> {
    (format.description().create)(destination, options)
}

/// Writes a whole profile.
///
/// # Errors
///
/// When the output cannot be written or the runs cannot be read.
pub fn write(writer: &mut dyn Writer, profile: &Profile, runs: &Runs) -> Result<Summary, OutputError> {
    write_within(writer, profile, runs, Deadline::NEVER)
}

/// [`write`], within a time.
///
/// # Errors
///
/// As there, or that the time is up: no output appears then.
pub fn write_within(
    writer: &mut dyn Writer,
    profile: &Profile,
    runs: &Runs,
    deadline: Deadline,
) -> Result<Summary, OutputError> {
    writer.begin(profile)?;
    for (pass, weight) in writer.passes().into_iter().enumerate() {
        writer.begin_pass(profile, pass)?;
        let mut weigher = RunWeigher::new(profile, weight);
        runs.for_threads(writer.thread_order(profile), |batch| {
            deadline.check().map_err(OutputError::OverTime)?;
            writer.samples(profile, &weigher.weigh(&batch))
        })?;
    }
    deadline.check().map_err(OutputError::OverTime)?;
    writer.finish(profile)
}

/// The sink of an output that is one file. Its name says how it is compressed.
fn single(format: Format, destination: Destination) -> Result<Sink, OutputError> {
    let compression = match &destination {
        Destination::File(path) => Compression::of(path),
        Destination::InFolder { name, .. } => Compression::of(Path::new(name)),
        _ => Compression::None,
    };
    single_as(format, destination, compression)
}

/// The sink of an output that is one file and compressed in this way, whatever its name.
fn single_as(
    format: Format,
    destination: Destination,
    compression: Compression,
) -> Result<Sink, OutputError> {
    match destination {
        Destination::File(path) => Sink::file_as(&path, compression),
        Destination::InFolder { folder, name } => {
            let at = Below::folder(&folder).map_err(OutputError::at(&folder, "cannot be opened"))?;
            Sink::below(at.join(name), compression)
        }
        Destination::Stdout => Sink::stdout(compression),
        Destination::Dir(path) => Err(OutputError::OneFile { path, format }),
    }
}

/// Where an image's file was; its name if the path was not recorded.
fn path_of(image: &Image) -> &str {
    if image.path.is_empty() { &image.name } else { &image.path }
}

/// Ends a file that `viewer` reads as a whole. Warns if it is too large for that.
fn finish_for(viewer: &str, sink: &mut Sink) -> Result<Summary, OutputError> {
    let bytes = sink.len();
    let mut summary = sink.finish()?;
    if bytes > LARGE_FILE {
        summary.warnings.push(format!(
            "the output is {} MiB large; {viewer} grows slow above 256 MiB and fails above 1 to 2 GiB: \
             write several files (--split time=10s, --split thread), choose a part (--from, --until, \
             --thread) or use --to parquet; speedscope: put threads together (--merge-threads)",
            bytes >> 20
        ));
    }
    Ok(summary)
}
