//! `stk batch`: many traces to one folder, again and again.
//!
//! ```text
//! manifest   traces that a file lists                file -> paths
//! log        one line of JSON a trace                ConvertOutcome -> _batch.jsonl
//! worker     such a process                          orders -> answers
//! ```

mod log;
mod manifest;
pub(super) mod worker;

use super::convert::{self, ConvertArgs, Converter, Finished, Keys, Task};
use super::profile_args::parse_memory;
use super::{Exit, Progress, Usage, inputs, is_quiet, jobs, note, pool, replace};
use crate::batch::{Done, Processes, ReadNow, SeenTraces, TraceResult};
use crate::times;
use anyhow::Context;
use log::{BatchLog, StatusCounts, result_of};
use rayon::prelude::*;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use stk_base::interrupt;
use stk_base::text::{count, counted};
use stk_output::formats::{self, FolderLock, Format, LeftBehind};

/// Converts many traces to one folder: a Parquet dataset, or one file a trace. What was converted
/// before, with the same options, symbol files and stk, is skipped, so a stopped batch resumes when
/// it is run again. No server is contacted: run stk symbols fetch first.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Each conversion depends on the trace's content, the options, the version of stk and the symbol files that are found for
its modules, and on nothing else. That is its key, which is stored beside the output. Outputs are written beside and
renamed: whatever stops a batch, running it again gives the bytes of a batch that was not stopped.

A trace may still be growing or being copied: what it has is converted, and again when it has more.
A trace that is damaged or cannot be read is logged and skipped.

The log has one line of JSON a trace: {\"trace\", \"status\": converted|skipped|copy|prefix|damaged|timeout|memory|failed, \"trace_id\",
\"samples\", \"dropped\", \"damaged_blocks\", \"complete\", \"seconds\", \"reason\"}.

Several machines: --shard 1/8 … --shard 8/8 with the same inputs and the same OUT, then once without --shard, which
finds everything done and makes the tables.

Examples:
  stk batch night/ --to parquet -o lab.parquet -y symbols
  stk batch 'night/*.stk' --to speedscope -o out --max-bad 1%
  stk batch traces.txt --to parquet -o lab.parquet --shard 3/8
  stk batch night/ --to parquet -o lab.parquet --time-limit 5m --memory-limit 2G")]
pub(super) struct BatchArgs {
    #[command(flatten)]
    convert: ConvertArgs,
    /// Take only the I-th of N parts of the traces, by the UUIDs in them
    #[arg(long, value_name = "I/N", value_parser = parse_shard, help_heading = "Batch")]
    shard: Option<Shard>,
    /// Resume a stopped batch. This is always so; the option is for scripts that say it
    #[arg(long, help_heading = "Batch")]
    resume: bool,
    /// Read each trace. Without it, one whose file has the size and the times that it had when it
    /// was converted counts as not changed
    #[arg(long, help_heading = "Batch")]
    checksum: bool,
    /// Where one line a trace is written to [default: OUT/_batch.jsonl, with --shard
    /// OUT/_batch.I-of-N.jsonl]. The log of an earlier batch is replaced, another file only with
    /// --force
    #[arg(long, value_name = "FILE", help_heading = "Batch")]
    log: Option<PathBuf>,
    /// How many traces, or what percentage of them, may be damaged or fail before the exit code is
    /// 4. A trace that only ends early is not damaged
    #[arg(long, value_name = "N|PCT%", default_value = "0", value_parser = parse_most, help_heading = "Batch")]
    max_bad: FailureLimit,
    /// How long the conversion of one trace may take, such as 90s or 10m. A trace that takes longer
    /// is left out, logged as timeout and counted by --max-bad; the next run tries it again. Traces
    /// are converted in processes: one that is not done a second after the limit is ended
    #[arg(long, value_name = "TIME", value_parser = parse_limit, help_heading = "Batch")]
    time_limit: Option<Duration>,
    /// Linux: how much memory of its own the process that converts a trace may have, such as 2G;
    /// files that are only read do not count. A trace that needs more is left out, logged as
    /// memory and counted by --max-bad; the next run tries it again. --max-memory instead leaves
    /// out a part of such a trace
    #[arg(long, value_name = "SIZE", value_parser = parse_memory, help_heading = "Batch")]
    memory_limit: Option<u64>,
    /// Parquet: do not make the dataset's tables of what was converted. --shard implies it
    #[arg(long, help_heading = "Batch")]
    no_compact: bool,
}

/// A part of the traces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shard {
    /// From 1.
    number: u64,
    of: u64,
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-of-{}", self.number, self.of)
    }
}

/// A time in the form of other options' spans.
fn parse_limit(text: &str) -> Result<Duration, String> {
    times::parse_span(text.trim()).map(Duration::from_nanos)
}

fn parse_shard(text: &str) -> Result<Shard, String> {
    let (number, of) = text.split_once('/').ok_or("give a part as 3/8")?;
    match (number.parse(), of.parse()) {
        (Ok(number), Ok(of)) if 1 <= number && number <= of => Ok(Shard { number, of }),
        _ => Err("give a part as 3/8: from 1/8 to 8/8".to_owned()),
    }
}

/// How many traces may be bad.
#[derive(Clone, Copy, PartialEq, Debug)]
enum FailureLimit {
    Traces(u64),
    Percent(f64),
}

fn parse_most(text: &str) -> Result<FailureLimit, String> {
    let wrong = || "give a number of traces, or a percentage such as 1%".to_owned();
    match text.strip_suffix('%') {
        Some(percent) => match percent.trim().parse() {
            Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(FailureLimit::Percent(percent)),
            _ => Err(wrong()),
        },
        None => text.parse().map(FailureLimit::Traces).map_err(|_| wrong()),
    }
}

impl FailureLimit {
    fn allows(self, bad: u64, all: u64) -> bool {
        match self {
            FailureLimit::Traces(most) => bad <= most,
            FailureLimit::Percent(percent) => bad as f64 * 100.0 <= percent * all as f64,
        }
    }
}

impl BatchArgs {
    /// The options of the conversions, and the folder of their outputs.
    fn conversion(&self) -> anyhow::Result<(ConvertArgs, PathBuf)> {
        let mut convert = self.convert.clone();
        convert.profile.symbols.options.offline = true;
        convert.profile.check()?;
        match convert.output.clone().filter(|path| path != Path::new("-")) {
            Some(out) => Ok((convert, out)),
            None => Err(Usage("name the folder of the outputs with -o".into()).into()),
        }
    }

    /// Whether traces are converted in processes of their own.
    fn has_limits(&self) -> bool {
        self.time_limit.is_some() || self.memory_limit.is_some()
    }
}

pub(super) fn run(args: &BatchArgs) -> anyhow::Result<Exit> {
    if args.memory_limit.is_some() && !cfg!(target_os = "linux") {
        return Err(Usage("--memory-limit is for Linux: no other system keeps it".into()).into());
    }
    let (convert, out) = args.conversion()?;
    let format = convert::format(&convert, false)?;
    check(&convert, format)?;
    let (files, exit) = inputs::traces(&manifest::expanded(&convert.files)?);
    replace::check(&out)?;
    args.log.as_deref().map_or(Ok(()), replace::check)?;
    let mut files = convert.profile.select.process.traces(files)?;
    files.retain(|file| args.shard.is_none_or(|shard| is_in(shard, file)));
    std::fs::create_dir_all(&out).with_context(|| format!("{}: cannot be made", out.display()))?;
    let owner = Owner::of(args.shard, &out)?;
    let dataset = convert::dataset_of_batch(&out, format)?;
    let seen = SeenTraces::read(&out, owner.part.as_deref()).with_context(|| out.display().to_string())?;
    let keys = Keys::new(&convert, format);
    let batch = Batch { args, convert: &convert, format, out: &out, files: &files, keys: &keys };
    let finished = Finished::of(&keys, &seen, if args.checksum { &[] } else { &files });
    let tasks =
        convert::tasks_of_batch(&out, &files, format, dataset.as_ref(), &|place| finished.uuid(place));
    tasks.iter().try_for_each(Task::check)?;
    let log = BatchLog::create(args.log.as_deref(), &out, &log_name(args.shard), convert.force)?;
    let read = Mutex::new(ReadNow::default());
    let done = |place: usize, result: &TraceResult, time| {
        log.add(&files[place], result, time);
        if let Some(seen) = &result.seen {
            read.lock().unwrap_or_else(PoisonError::into_inner).add(&files[place], seen);
        }
    };
    batch.convert_files(&finished, tasks, &done, &owner)?;
    let read = read.into_inner().unwrap_or_else(PoisonError::into_inner);
    seen.save(&out, owner.part.as_deref(), &read).with_context(|| out.display().to_string())?;
    let tally = log.finish()?;
    if format == Format::Parquet && !args.no_compact && args.shard.is_none() && !files.is_empty() {
        pool(convert.jobs)?.install(|| formats::compact(&out))?;
    }
    print_summary(&tally, &out);
    let bad = args.max_bad.allows(tally.bad(), tally.all());
    Ok(exit.worse(if bad { Exit::Ok } else { Exit::Damaged }))
}

/// Whose temporary files a batch makes.
struct Owner {
    /// The part of the traces; `None`: the batch is alone in its folder.
    part: Option<String>,
    /// While it is held, no other process has this part.
    _lock: Option<FolderLock>,
}

impl Owner {
    /// Waits for a living batch with the same part, and removes what killed ones left.
    fn of(shard: Option<Shard>, out: &Path) -> anyhow::Result<Owner> {
        let part = shard.map(|shard| shard.to_string());
        let lock = part.as_ref().map(|part| FolderLock::of_part(out, part)).transpose()?;
        part.iter().for_each(|part| interrupt::set_owner(part));
        let owner = Owner { part, _lock: lock };
        owner.remove_left_behind(out)?;
        Ok(owner)
    }

    fn remove_left_behind(&self, out: &Path) -> anyhow::Result<()> {
        let whose = self.part.as_deref().map_or(LeftBehind::OfAll, LeftBehind::Of);
        Ok(formats::remove_left_behind(out, whose)?)
    }
}

/// What a batch converts to where.
struct Batch<'a> {
    args: &'a BatchArgs,
    convert: &'a ConvertArgs,
    format: Format,
    out: &'a Path,
    files: &'a [PathBuf],
    keys: &'a Keys,
}

impl Batch<'_> {
    /// Converts the files that are not finished, in this process or in others with limits. `done`
    /// takes what became of each.
    fn convert_files(
        &self,
        finished: &Finished<'_>,
        tasks: Vec<Task<'_>>,
        done: Done<'_>,
        owner: &Owner,
    ) -> anyhow::Result<()> {
        let Batch { args, convert, format, files, keys, .. } = *self;
        let progress = Progress::new("traces");
        progress.add_total(files.len() as u64);
        let done = |place: usize, result: &TraceResult, time| {
            done(place, result, time);
            progress.done().fetch_add(1, Ordering::Relaxed);
        };
        let begun = Instant::now();
        let outcomes: Vec<_> =
            pool(convert.jobs)?.install(|| tasks.par_iter().map(|task| finished.outcome(task)).collect());
        let each = begun.elapsed() / u32::try_from(tasks.len().max(1)).unwrap_or(u32::MAX);
        let mut left = Vec::new();
        for (task, outcome) in tasks.into_iter().zip(outcomes) {
            match outcome {
                Some((place, outcome)) => done(place, &result_of(&Ok(outcome)), each),
                None => left.push(task),
            }
        }
        let tasks = left;
        if args.has_limits() {
            let jobs = jobs(convert.jobs);
            let processes = Processes { files, messages: messages(), jobs, limit: args.time_limit };
            let tasks: Vec<Vec<usize>> = tasks.iter().map(Task::places).collect();
            processes.convert_all(&tasks, &done)?;
            // Of processes that were ended.
            return owner.remove_left_behind(self.out);
        }
        let silent = Progress::silent();
        let converter = Converter {
            args: convert,
            format,
            progress: &silent,
            keys: Some(keys),
            images: convert::shared_images(files.len(), convert),
            limit: None,
            watch: None,
        };
        convert::convert_all(&converter, &tasks, &|place, outcome, time| {
            done(place, &result_of(&outcome), time);
        })
    }
}

/// The options that have a process say as much as this one.
fn messages() -> Vec<&'static str> {
    match ::log::max_level() {
        _ if is_quiet() => vec!["-q"],
        ::log::LevelFilter::Debug | ::log::LevelFilter::Trace => vec!["-vv"],
        ::log::LevelFilter::Info => vec!["-v"],
        _ => Vec::new(),
    }
}

/// Checks the options that a batch has of stk convert.
fn check(args: &ConvertArgs, format: Format) -> anyhow::Result<()> {
    if args.split.is_some() {
        let why = "a batch makes one output of a trace: for --split use stk convert";
        return Err(Usage(why.to_owned()).into());
    }
    if args.profile.require_symbols.is_some() {
        let why = "a batch passes over what is done, whose names it does not count again: for \
            --require-symbols use stk convert";
        return Err(Usage(why.to_owned()).into());
    }
    convert::check_output(args, format)
}

/// Name of the log in the folder of the outputs.
fn log_name(shard: Option<Shard>) -> String {
    match shard {
        None => "_batch.jsonl".to_owned(),
        Some(shard) => format!("_batch.{shard}.jsonl"),
    }
}

/// Whether a trace is in a part: all files of a recording are in the same.
fn is_in(shard: Shard, file: &Path) -> bool {
    let hash = match convert::uuid(file) {
        Some(uuid) => xxhash_rust::xxh3::xxh3_64(&uuid),
        None => xxhash_rust::xxh3::xxh3_64(file.as_os_str().as_encoded_bytes()),
    };
    hash % shard.of == shard.number - 1
}

fn print_summary(tally: &StatusCounts, out: &Path) {
    let mut parts = Vec::new();
    for (number, what) in tally.parts() {
        if number > 0 {
            parts.push(format!("{} {what}", count(number)));
        }
    }
    let all = counted(tally.all(), "trace");
    let parts = if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) };
    note(&format!("{}: {all}{parts}", out.display()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_the_traces_are_numbered_from_one() {
        assert_eq!(parse_shard("3/8"), Ok(Shard { number: 3, of: 8 }));
        for wrong in ["0/8", "9/8", "3", "a/b", "1/0", "-1/3"] {
            assert!(parse_shard(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_trace_is_in_one_part() {
        for name in ["a.stk", "b.stk", "c.stk", "d.stk"] {
            let within = (1..=3).filter(|&number| is_in(Shard { number, of: 3 }, Path::new(name)));
            assert_eq!(within.count(), 1, "{name}");
        }
    }

    #[test]
    fn bad_traces_are_allowed_by_number_or_share() {
        assert!(parse_most("0").unwrap().allows(0, 10) && !parse_most("0").unwrap().allows(1, 10));
        assert!(parse_most("2").unwrap().allows(2, 2));
        let percent = parse_most("10%").unwrap();
        assert!(percent.allows(1, 10) && !percent.allows(2, 10) && percent.allows(0, 0));
        for wrong in ["-1", "101%", "x", "%", "NaN%"] {
            assert!(parse_most(wrong).is_err(), "{wrong}");
        }
    }
}
