//! `stk stats`: where the time was spent, and the problems of the stacks.

use super::traces::Traces;
use super::{
    Exit, Out, ProfileArgs, Progress, check_symbols, each_trace, inputs, load, pool, terminal_columns, warn,
};
use crate::profile::Weight;
use crate::stats::{self, Length, ManyStats, PrintOptions, Stats, StatsOptions};
use std::io::{IsTerminal, stdout};
use std::path::{Path, PathBuf};

/// Says where the time of a trace went. Of several traces: one line each, their sum, and the
/// functions of all.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  stk stats app.stk
  stk stats app.stk --from 2s --until 5s --thread worker --weight wall
  stk stats lab --top 50                        every trace in the folder lab, as one
  stk stats lab/*.stk --each")]
pub(super) struct StatsArgs {
    /// Traces: files, patterns such as *.stk, or folders, whose .stk files are taken
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print everything: functions by callees, modules, threads, why stacks end, how frames were
    /// found, what has no name
    #[arg(long)]
    full: bool,
    /// List the stacks that wait, by what they wait for
    #[arg(long, conflicts_with_all = ["full", "running"])]
    waiting: bool,
    /// Rows of each list; 0 shows all [default: 20]. Without --waiting it implies --full
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// What functions and modules are listed by [default: cpu, or active if the trace tells no CPU
    /// time]
    #[arg(long, value_enum, value_name = "WHAT")]
    weight: Option<Weight>,
    /// Leave out samples of waiting threads in functions, modules and stop reasons
    #[arg(long)]
    running: bool,
    /// Of several traces: the figures of each, as if it were the only one
    #[arg(long)]
    each: bool,
    /// Print one JSON object, as schema/stats.schema.json describes it
    #[arg(long)]
    json: bool,
    /// Worker threads [default: as many as there are processors]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    #[command(flatten)]
    profile: ProfileArgs,
}

/// Runs the command.
///
/// # Errors
///
/// A usage error, or that standard output cannot be written. A trace that cannot be read is
/// reported and skipped.
pub(super) fn run(args: &StatsArgs, out: Out<'_>) -> anyhow::Result<Exit> {
    args.profile.check()?;
    let top = match args.top {
        None => StatsOptions::default().top,
        Some(0) => usize::MAX,
        Some(rows) => rows,
    };
    let length = match args {
        StatsArgs { waiting: true, .. } => Length::Waiting,
        StatsArgs { full: true, .. } | StatsArgs { top: Some(_), .. } => Length::Full,
        _ => Length::Short,
    };
    let (files, exit) = inputs::traces(&args.files);
    let files = args.profile.select.process.traces(files)?;
    let sums_up = files.len() > 1 && !args.each && !args.json;
    let kept = if sums_up { usize::MAX } else { top };
    let options = StatsOptions {
        top: kept,
        running_only: args.running,
        weight: args.weight,
        waiting: args.waiting && !sums_up,
    };
    let pool = pool(args.jobs)?;
    let progress = Progress::new("samples");
    let mut document = Traces::new(stats::VERSION);
    let mut many = ManyStats::default();
    let mut first = true;
    let look = look(args, length);
    let exit = exit.worse(each_trace(&files, out, |path| {
        let (stats, ending) = pool.install(|| of_file(path, args, &options, &progress))?;
        if args.json {
            return Ok((document.next(&stats)?, ending));
        }
        if sums_up {
            many.add(stats);
            return Ok((String::new(), ending));
        }
        let mut text = Vec::new();
        stats::print(&stats, &mut text, &look)?;
        let gap = if std::mem::take(&mut first) { "" } else { "\n" };
        Ok((format!("{gap}{}", String::from_utf8_lossy(&text)), ending))
    })?);
    drop(progress);
    if args.json {
        out(&document.end())?;
    } else if sums_up {
        let mut text = Vec::new();
        many.print(&mut text, &look, top)?;
        out(&String::from_utf8_lossy(&text))?;
    }
    Ok(exit)
}

fn look(args: &StatsArgs, length: Length) -> PrintOptions {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    PrintOptions {
        length,
        color: stdout().is_terminal() && !plain,
        columns: terminal_columns(),
        zone: args.profile.select.tz.tz,
    }
}

fn of_file(
    path: &Path,
    args: &StatsArgs,
    options: &StatsOptions,
    progress: &Progress,
) -> anyhow::Result<(Stats, Exit)> {
    let loaded = load(path, &args.profile, progress)?;
    let bytes = std::fs::metadata(path).ok().map(|file| file.len());
    let mut stats = stats::collect(&loaded.profile, &loaded.runs, bytes, options)?;
    if args.profile.is_part() {
        // The file holds the other samples too.
        stats.totals.bytes_per_sample = None;
    }
    let why = match args.weight {
        Some(_) => "as --weight says",
        None if stats.totals.cpu_ns > 0 => "the trace tells CPU time",
        None if loaded.profile.selection.is_some() => "the selection has no CPU time",
        None => "the trace tells no CPU time",
    };
    log::info!("{}: the lists count {}: {why}", stats.source, stats.weight.title());
    loaded.empty.iter().for_each(|why| warn(why));
    let (symbols, missed) = check_symbols(&loaded, &args.profile);
    missed.into_iter().for_each(|line| eprintln!("{line}"));
    Ok((stats, loaded.exit.worse(symbols)))
}
