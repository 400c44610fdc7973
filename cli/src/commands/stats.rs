//! `stk stats`: where the time was spent, and the problems of the stacks.

use super::traces::Traces;
use super::{Exit, Out, ProfileArgs, Progress, check_symbols, each_trace, load, pool};
use crate::profile::Weight;
use crate::stats::{self, Length, Stats, StatsOptions};
use std::io::{IsTerminal, stdout};
use std::path::{Path, PathBuf};

/// Arguments of `stk stats`.
#[derive(clap::Args, Debug)]
pub(super) struct StatsArgs {
    /// Traces
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
    let options =
        StatsOptions { top, running_only: args.running, weight: args.weight, waiting: args.waiting };
    let pool = pool(args.jobs)?;
    let progress = Progress::new("samples");
    let mut document = Traces::new(stats::VERSION);
    let mut first = true;
    let color = stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let exit = each_trace(&args.files, out, |path| {
        let (stats, ending) = pool.install(|| of_file(path, args, &options, &progress))?;
        if args.json {
            return Ok((document.next(&stats)?, ending));
        }
        let mut text = Vec::new();
        stats::print(&stats, length, &mut text, color)?;
        let gap = if std::mem::take(&mut first) { "" } else { "\n" };
        Ok((format!("{gap}{}", String::from_utf8_lossy(&text)), ending))
    })?;
    drop(progress);
    if args.json {
        out(&document.end())?;
    }
    Ok(exit)
}

fn of_file(
    path: &Path,
    args: &StatsArgs,
    options: &StatsOptions,
    progress: &Progress,
) -> anyhow::Result<(Stats, Exit)> {
    let loaded = load(path, &args.profile, progress)?;
    let bytes = std::fs::metadata(path).ok().map(|file| file.len());
    let stats = stats::collect(&loaded.profile, &loaded.runs, bytes, options)?;
    let (symbols, missed) = check_symbols(&loaded, &args.profile);
    missed.into_iter().for_each(|line| eprintln!("{line}"));
    Ok((stats, loaded.exit.worse(symbols)))
}
