//! `stk convert`: traces to other formats.
//!
//! ```text
//! tasks      which traces go where               arguments -> Task
//! recording  files of one recording to a dataset: copies, beginnings of others
//! one        a trace to its output
//! finished   what a batch need not read again        Task -> Converted
//! key        what a conversion of a batch depends on  trace, options, symbol files -> text
//! split      a trace to several outputs
//! ```

mod finished;
mod key;
mod one;
mod recording;
mod split;
mod tasks;

use super::profile_args::MissingSum;
use super::values::{choice, default_name};
use super::{
    Exit, ProfileArgs, Progress, TraceChoice, Usage, guarded, inputs, note_line, print_error, print_line,
    replace, verify,
};
use crate::batch::SeenTrace;
pub(super) use finished::Finished;
pub(super) use key::Keys;
pub(super) use one::{Converter, StepObserver, shared_images, weights};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use stk_output::formats::{self, Compression, ConversionFacts, Destination, Format, PerfettoStyle};
use stk_profile::profile::{MissingSymbols, ThreadMerge, Weight};
use stk_schema::identity::ContentHash;
pub(super) use tasks::{Task, dataset_of_batch, tasks_of_batch, uuid};
use tasks::{is_folder, tasks};

/// Converts traces. Several at once are converted in parallel; a damaged one is reported and passed
/// over.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
Where the output goes:
  one trace         -o FILE, or the trace's name with another ending in the current folder:
                    app.speedscope.json, app.chrome.json, app.parquet, app.folded,
                    app.flamegraph.svg, app.firefox.json, app.perfetto-trace, app.pb.gz
  several traces    -o FOLDER, one file a trace there; to Parquet one dataset folder for all
  -o -              standard output (not for Parquet, which is a folder)
  -o NAME.gz        compressed, by gzip or, with .zst, by Zstandard: app.chrome.json.gz
  --denormalized    one trace to Parquet gives one file, app.samples.parquet
What is there already is replaced if stk made it of the same recording. Any other file, and each
folded one, which does not name its source, needs --force. Traces and other inputs are never
replaced. A link that -o names is followed; one in a folder of outputs is an error. A dataset keeps
its other traces.

Examples:
  stk convert app.stk
  stk convert app.stk -o app.chrome.json.gz --from 2s --until 5s --thread worker
  stk convert app.stk --from 03:14:05Z --until 03:14:10Z
  stk convert app.stk --my-code --focus handle_request
  stk convert app.stk --to speedscope --merge-threads=name
  stk convert app.stk --to chrome --split time=10s
  stk convert lab --to parquet -o lab.parquet -y 'srv*symbols'")]
pub(super) struct ConvertArgs {
    /// Traces: files, patterns such as *.stk, or folders, whose .stk files are taken
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Output format; by default that of the output's name, or speedscope
    #[arg(short, long, value_parser = choice::<Format>(), value_name = "FORMAT")]
    pub to: Option<Format>,
    /// Output file or folder, or - for standard output
    #[arg(short, long, value_name = "FILE|FOLDER|-")]
    pub output: Option<PathBuf>,
    /// Replace a file that is there, unless it is a trace or an input. Without it, only stk's own
    /// output of the same recording is replaced
    #[arg(long)]
    pub force: bool,
    /// Threads to use; by default as many as there are processors. The output does not depend on it
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub jobs: Option<u16>,
    /// Unit of flame-graph widths [default: cpu; active if the trace has no CPU times; speedscope
    /// has wall, too]. Parquet and pprof hold all times, chrome has wall
    #[arg(long, value_parser = choice::<Weight>(), value_name = "WHAT", help_heading = "Output")]
    pub weight: Option<Weight>,
    /// Perfetto: which of its forms to write
    #[arg(long, value_parser = choice::<PerfettoStyle>(), default_value = default_name::<PerfettoStyle>(), value_name = "STYLE", help_heading = "Output")]
    pub perfetto_style: PerfettoStyle,
    /// Flame graphs: one frame per source line instead of one per function
    #[arg(long, help_heading = "Output")]
    pub lines: bool,
    /// Flame graphs: make one thread of all, or with =name one of those whose names differ in a
    /// number at their end only. Threads are concatenated, so timestamps are lost
    #[arg(long, value_parser = choice::<ThreadMerge>(), num_args = 0..=1, require_equals = true, default_missing_value = "all",
        value_name = "WHICH", help_heading = "Output")]
    pub merge_threads: Option<ThreadMerge>,
    /// Speedscope: threads with fewer than four samples have profiles too. Without it they are
    /// counted in the sum of all threads alone
    #[arg(long, help_heading = "Output")]
    pub all_threads: bool,
    /// Write several files, each with a thread (app.worker-12.speedscope.json) or a span of time
    /// since the trace's start (app.0.speedscope.json): thread, or time=10s
    #[arg(long, value_parser = split::parse, value_name = "thread|time=LENGTH", help_heading = "Output")]
    pub split: Option<split::Split>,
    /// Parquet: samples carry the names of their frames, so that one file answers queries alone;
    /// one trace then gives one file
    #[arg(long, help_heading = "Output")]
    pub denormalized: bool,
    #[command(flatten)]
    pub profile: ProfileArgs,
}

pub(super) fn run(args: &ConvertArgs) -> anyhow::Result<Exit> {
    args.profile.check()?;
    let (files, exit) = inputs::traces(&args.files);
    let files = args.profile.select.process.traces(files)?;
    let format = format(args, files.len() > 1)?;
    check_output(args, format)?;
    if files.is_empty() {
        return Ok(exit);
    }
    args.output.as_deref().filter(|path| *path != Path::new("-")).map_or(Ok(()), replace::check)?;
    let tasks = tasks(args, &files, format)?;
    tasks.iter().try_for_each(Task::check)?;
    let progress = Progress::new("samples");
    let endings: Mutex<Vec<(usize, ConvertOutcome)>> = Mutex::new(Vec::new());
    let images = shared_images(files.len(), args);
    let converter =
        Converter { args, format, progress: &progress, keys: None, images, limit: None, watch: None };
    convert_all(&converter, &tasks, &|place, outcome, _| {
        endings.lock().unwrap_or_else(PoisonError::into_inner).push((place, outcome));
    })?;
    compact(&tasks, args.jobs)?;
    drop(progress);
    let mut endings = endings.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    endings.sort_by_key(|(i, _)| *i);
    let mut sum = MissingSum::default();
    let mut choice = TraceChoice::new(args.profile.is_part());
    let exit = endings.iter().fold(exit, |exit, (_, ending)| match ending {
        Ok(converted) => {
            converted.lines.iter().for_each(|line| note_line(line));
            converted.failed.iter().for_each(|line| print_line(line));
            if let Some((source, missing)) = &converted.missing {
                choice.add(source, converted.empty.clone());
                sum.add(source, missing);
            }
            exit.worse(converted.exit)
        }
        Err(error) => {
            print_error(error);
            exit.worse(verify::exit_of(error))
        }
    });
    sum.print(&args.profile.symbols.options);
    Ok(exit.worse(choice.finish()))
}

/// Checks the options that say how outputs look.
pub(super) fn check_output(args: &ConvertArgs, format: Format) -> anyhow::Result<()> {
    let name = format.name();
    let wrong = if args.weight.is_some() && !format.takes_weight() {
        let takes_weight = Format::ALL.iter().filter(|format| format.takes_weight());
        let names: Vec<_> = takes_weight.map(|format| format.name()).collect();
        format!("--weight is for {}; {name} does not depend on it", names.join(", "))
    } else if args.merge_threads.is_some() && !format.takes_weight() {
        format!("--merge-threads is for flame graphs; {name} shows what each thread did in time")
    } else if args.split.is_some() && format.is_folder() {
        format!("--split makes files, and {name} is a folder that queries split")
    } else if args.split.is_some() && args.output.as_deref() == Some(Path::new("-")) {
        "--split makes files, which cannot all go to standard output: name one with -o".to_owned()
    } else if args.split.is_some() && args.merge_threads.is_some() {
        "--split needs the threads and times that --merge-threads gives up: choose one of them".to_owned()
    } else {
        return Ok(());
    };
    Err(Usage(wrong).into())
}

/// Does the tasks, several at once. Calls `done` with the place and the outcome of each trace, and
/// how long its task took.
pub(super) fn convert_all(
    converter: &Converter<'_>,
    tasks: &[Task<'_>],
    done: &(dyn Fn(usize, ConvertOutcome, Duration) + Sync),
) -> anyhow::Result<()> {
    let jobs = super::jobs(converter.args.jobs);
    // A task keeps its conversion in memory, so no more tasks run at once than there are threads.
    // The remaining threads help within the tasks.
    let lanes = tasks.len().min(jobs).max(1);
    let next = AtomicUsize::new(0);
    let work = || -> anyhow::Result<()> {
        let pool = super::pool(u16::try_from(jobs.div_ceil(lanes)).ok())?;
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(task) = tasks.get(i) else { return Ok(()) };
            let begun = Instant::now();
            let outcomes = pool.install(|| run_task(converter, task));
            outcomes.into_iter().for_each(|(place, outcome)| done(place, outcome, begun.elapsed()));
        }
    };
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(work)).collect();
        lanes.into_iter().try_for_each(|lane| match lane.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

/// Makes the tables of a dataset of what was converted to it and what it had before.
fn compact(tasks: &[Task<'_>], jobs: Option<u16>) -> anyhow::Result<()> {
    let dataset = tasks.iter().find_map(|task| match task {
        Task::Recording { dataset, .. } => Some(&dataset.path),
        Task::File { .. } => None,
    });
    // Nothing was converted to a folder that is not there.
    if let Some(path) = dataset.filter(|path| path.is_dir()) {
        super::pool(jobs)?.install(|| formats::compact(path))?;
    }
    Ok(())
}

/// The result of the conversion of one trace.
pub(super) type ConvertOutcome = anyhow::Result<Converted>;

/// What was done with a trace.
pub(super) struct Converted {
    pub status: Status,
    pub exit: Exit,
    /// Notes and warnings, printable.
    pub lines: Vec<String>,
    /// Why nothing of it is chosen.
    empty: Option<String>,
    /// What still lets the command fail.
    failed: Option<String>,
    /// The trace and the names that it lacks, if it was converted.
    missing: Option<(String, MissingSymbols)>,
    /// Digest of the trace's content, if it was read.
    pub trace_id: Option<String>,
    /// What the conversion came to, now or before.
    pub facts: Option<ConversionFacts>,
    /// For a batch: what its trace is known by where it is not read again.
    pub seen: Option<SeenTrace>,
}

/// How a trace was dealt with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Status {
    Converted,
    /// Its conversion is there already.
    Skipped,
    /// Another file has the same content.
    Copy,
    /// Another file begins with all of it.
    Prefix,
}

impl Converted {
    /// A trace whose conversion is there already.
    fn skipped(digest: ContentHash, facts: Option<ConversionFacts>) -> Converted {
        let damaged = facts.is_some_and(|facts| facts.damaged_blocks > 0);
        Converted {
            status: Status::Skipped,
            exit: if damaged { Exit::Damaged } else { Exit::Ok },
            lines: Vec::new(),
            empty: None,
            failed: None,
            missing: None,
            trace_id: Some(digest.to_string()),
            facts,
            seen: None,
        }
    }

    fn seen(self, seen: Option<SeenTrace>) -> Converted {
        Converted { seen, ..self }
    }
}

/// The results of a task, each with the trace's place on the command line.
pub(super) fn run_task(converter: &Converter<'_>, task: &Task<'_>) -> Vec<(usize, ConvertOutcome)> {
    match task {
        Task::File { place, file, destination } => {
            vec![(*place, guarded(file, || converter.file(file, destination)))]
        }
        Task::Recording { files, dataset } => recording::convert(converter, files, dataset),
    }
}

/// The format that the options name. `several`: the output is a folder.
pub(super) fn format(args: &ConvertArgs, several: bool) -> anyhow::Result<Format> {
    let named = args.output.as_deref().filter(|path| *path != Path::new("-"));
    let by_name = named.and_then(Format::from_path);
    let known = args.to.or(by_name);
    let compressed = named.filter(|path| Compression::of(path) != Compression::None);
    if let (Some(format), Some(path)) = (known, compressed)
        && format.is_folder()
    {
        let text = format!("{}: Parquet compresses by itself: leave out the last ending", path.display());
        return Err(Usage(text).into());
    }
    let why = match (args.to, by_name) {
        (Some(_), _) => "as --to says",
        (None, Some(_)) => "by the output's name",
        (None, None) => "as nothing says another",
    };
    log::info!("format {}, {why}", known.unwrap_or(Format::Speedscope).name());
    match (known, named) {
        (Some(format), _) => Ok(format),
        (None, Some(path)) if !several && !is_folder(path) => {
            Err(Usage(format!("{}: the name has no known format: give one with --to", path.display())).into())
        }
        (None, _) => Ok(Format::Speedscope),
    }
}
