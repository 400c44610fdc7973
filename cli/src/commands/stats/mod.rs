//! `stk stats`: where the time was spent, and the problems of the stacks.

mod dataset;
mod question;

use super::datasets::DatasetArg;
use super::profile_args::{MissingSum, load_file};
use super::values::choice;
use super::{
    Exit, Out, ProfileArgs, Progress, TraceChoice, TraceProgress, WorkerArgs, check_symbols, each_trace,
    inputs, pool, print_line, terminal_columns,
};
use question::QuestionArgs;
use serde::Serialize;
use std::io::{IsTerminal, stdout};
use std::path::{Path, PathBuf};
use stk_output::stats::{
    self, Answer, AnswerSums, Length, ManyStats, PrintOptions, Question, Stats, StatsOptions, TimeZone,
};
use stk_output::traces::Traces;
use stk_profile::profile::{CpuSource, MissingSymbols, Weight};

/// Says where the time of a trace went. Of several traces: one line each, their sum, and the
/// functions of all.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  stk stats app.stk
  stk stats app.stk --from 2s --until 5s --thread worker --weight wall
  stk stats app.stk --tree --depth 12
  stk stats app.stk --callers '^memcpy$'
  stk stats app.stk --group-by thread-name,function --top 50
  stk stats app.stk --group-by line --format csv -q > lines.csv
  stk stats lab --top 50                        every trace in the folder lab, as one
  stk stats lab/*.stk --group-by host,function
  stk stats lab/*.stk --each
  stk stats lab.parquet --group-by host,function --label build=1234
  stk stats 'lab.parquet?build=1234' --from 2026-11-24T00:00Z --group-by label:lab,thread-name

A Parquet dataset answers from its tables, without its traces: what its conversion left out (names, --scan) it cannot
answer.")]
pub(super) struct StatsArgs {
    /// Traces: files, patterns such as *.stk, or folders, whose .stk files are taken; or one
    /// Parquet dataset
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print everything: functions by callees, modules, threads, why stacks end, how frames were
    /// found, what has no name
    #[arg(long)]
    full: bool,
    /// List the stacks that wait, by what they wait for
    #[arg(long, conflicts_with_all = ["full", "running"])]
    waiting: bool,
    #[command(flatten)]
    question: QuestionArgs,
    /// Rows of each list, functions of a tree; 0 shows all [default: 12 functions, with --full and
    /// in answers 20, or what fits the terminal]
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// What functions and modules are listed by [default: cpu; active if the trace has no CPU
    /// times]
    #[arg(long, value_parser = choice::<Weight>(), value_name = "WHAT")]
    weight: Option<Weight>,
    /// Leave out samples of waiting threads in functions, modules and stop reasons
    #[arg(long)]
    running: bool,
    /// Of several traces: the figures of each, as if it were the only one
    #[arg(long)]
    each: bool,
    /// How to print [default: table]
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<Format>,
    /// The same as --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
    #[command(flatten)]
    workers: WorkerArgs,
    #[command(flatten)]
    profile: ProfileArgs,
}

/// How figures are printed.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Format {
    /// Text for people
    #[default]
    Table,
    /// One JSON object: `stk schema stats` describes it
    Json,
    /// Comma-separated values (RFC 4180) of the answer to a question, without one of the functions;
    /// of several traces their sum. Control characters in names are escaped, and names that a
    /// spreadsheet takes for formulas have ' before them; json has them as they are
    Csv,
}

/// Runs the command.
pub(super) fn run(args: &StatsArgs, out: Out<'_>) -> anyhow::Result<Exit> {
    args.profile.check()?;
    if let Some(named) = DatasetArg::only(&args.files)? {
        return dataset::run(&named, args, out);
    }
    let (files, exit) = inputs::traces(&args.files);
    let files = args.profile.select.process.traces(files)?;
    let format = if args.json { Format::Json } else { args.format.unwrap_or_default() };
    let together = if args.each && format == Format::Table { 1 } else { files.len() };
    let question = args.question.question(format, args.top, together)?;
    let top = match args.top {
        None => StatsOptions::default().top,
        Some(0) => usize::MAX,
        Some(rows) => rows,
    };
    let sums_up = together > 1 || format == Format::Csv;
    let shows_each = !sums_up || format == Format::Json;
    let options = StatsOptions {
        top: if shows_each { top } else { usize::MAX },
        running_only: args.running,
        weight: args.weight,
        waiting: args.waiting && shows_each,
    };
    let pool = pool(args.workers.jobs)?;
    let progress = TraceProgress::new(files.len());
    let mut pages = Pages {
        format,
        look: look(args),
        question,
        document: Traces::new(stats::VERSION),
        many: sums_up.then(ManyStats::default),
        begun: false,
    };
    let mut choice = TraceChoice::new(args.profile.is_part());
    let mut missing = MissingSum::default();
    let exit = exit.worse(each_trace(&files, out, |path| {
        let read = || of_file(path, args, &options, pages.question.as_ref(), progress.samples());
        let read = pool.install(read);
        progress.end_trace();
        let StatsOfTrace { stats, sums, empty, missing: lacking, exit } = read?;
        choice.add(&stats.source, empty);
        missing.add(&stats.source, &lacking);
        Ok((pages.of_trace(stats, sums)?, exit))
    })?);
    drop(progress);
    let exit = exit.worse(choice.finish());
    if format == Format::Table {
        missing.print(&args.profile.symbols.options);
    }
    out(&pages.end(top)?)?;
    Ok(exit)
}

/// What is printed, trace by trace.
struct Pages {
    format: Format,
    look: PrintOptions,
    question: Option<Question>,
    document: Traces,
    /// The sum of several traces, if one is wanted.
    many: Option<ManyStats>,
    /// Whether anything was printed.
    begun: bool,
}

/// A trace in JSON.
#[derive(Serialize)]
struct TraceDocument<'a> {
    #[serde(flatten)]
    stats: &'a Stats,
    #[serde(flatten)]
    answer: Option<Answer>,
}

impl Pages {
    /// The text of a trace.
    fn of_trace(&mut self, stats: Stats, sums: Option<AnswerSums>) -> anyhow::Result<String> {
        let asked = self.question.as_ref().zip(sums.as_ref());
        let answer = asked.map(|(question, sums)| sums.answer(question));
        if let (Some(many), Some(sums)) = (&mut self.many, sums) {
            many.add_to_answer(sums);
        }
        if self.format == Format::Json {
            let text = self.document.next(&TraceDocument { stats: &stats, answer })?;
            self.many.iter_mut().for_each(|many| many.add_totals(&stats));
            return Ok(text);
        }
        if let Some(many) = &mut self.many {
            many.add(stats);
            return Ok(String::new());
        }
        let mut text = Vec::new();
        match &answer {
            Some(answer) => stats::print_answer(&stats, answer, &mut text, &self.look)?,
            None => stats::print(&stats, &mut text, &self.look)?,
        }
        let gap = if std::mem::replace(&mut self.begun, true) { "\n" } else { "" };
        Ok(format!("{gap}{}", String::from_utf8_lossy(&text)))
    }

    /// The text behind all traces.
    fn end(self, top: usize) -> anyhow::Result<String> {
        let asked = self.question.as_ref().zip(self.many.as_ref());
        let mut text = Vec::new();
        match (self.format, asked, &self.many) {
            (Format::Json, Some((question, many)), _) => {
                return Ok(self.document.end_with("sum", &many.sum(question))?);
            }
            (Format::Json, ..) => return Ok(self.document.end()),
            (Format::Csv, Some((question, many)), _) => {
                return Ok(many.sum(question).answer.map(|answer| answer.csv()).unwrap_or_default());
            }
            (Format::Table, Some((question, many)), _) => {
                many.print_answer(&mut text, &self.look, question)?;
            }
            (_, None, Some(many)) => many.print(&mut text, &self.look, top)?,
            (_, _, None) => {}
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

fn look(args: &StatsArgs) -> PrintOptions {
    let length = match args {
        StatsArgs { waiting: true, .. } => Length::Waiting,
        StatsArgs { full: true, .. } => Length::Full,
        _ => Length::Short,
    };
    let rows = args.top.map(|top| if top == 0 { usize::MAX } else { top });
    print_options(length, rows, args.profile.select.tz.tz)
}

/// How figures are printed on standard output.
pub(super) fn print_options(length: Length, rows: Option<usize>, zone: TimeZone) -> PrintOptions {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let is_terminal = stdout().is_terminal();
    PrintOptions {
        length,
        rows,
        color: is_terminal && !plain,
        columns: terminal_columns(),
        zone,
        ascii: is_terminal && !shows_unicode(),
    }
}

/// Whether the terminal shows more than ASCII: Windows' does, another if the locale says UTF-8.
fn shows_unicode() -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(|name| {
        std::env::var(name).ok().filter(|value| !value.is_empty()).map(|value| value.to_ascii_lowercase())
    });
    cfg!(windows) || locale.is_some_and(|name| name.contains("utf-8") || name.contains("utf8"))
}

/// What a trace gave.
struct StatsOfTrace {
    stats: Stats,
    sums: Option<AnswerSums>,
    /// Why nothing of it is chosen.
    empty: Option<String>,
    missing: MissingSymbols,
    exit: Exit,
}

fn of_file(
    path: &Path,
    args: &StatsArgs,
    options: &StatsOptions,
    question: Option<&Question>,
    progress: &Progress,
) -> anyhow::Result<StatsOfTrace> {
    let loaded = load_file(&args.profile.tables.open(path)?, &args.profile, progress)?;
    let bytes = std::fs::metadata(path).ok().map(|file| file.len());
    let (mut stats, sums) = stats::collect_with(&loaded.profile, &loaded.runs, bytes, options, question)?;
    if args.profile.is_part() {
        // The file holds the other samples too.
        stats.totals.bytes_per_sample = None;
    }
    let why = match args.weight {
        Some(_) => "as --weight says",
        None if stats.weight == Weight::Cpu => "the trace has CPU times",
        None if stats.totals.cpu_source == CpuSource::None => "the trace has no CPU times",
        None => "no thread used CPU time",
    };
    log::info!("{}: the lists count {}: {why}", stats.source, stats.weight.title());
    let (symbols, missed) = check_symbols(&loaded, &args.profile);
    missed.iter().for_each(|line| print_line(line));
    let exit = loaded.exit.worse(symbols);
    Ok(StatsOfTrace { stats, sums, empty: loaded.empty, missing: loaded.missing, exit })
}
