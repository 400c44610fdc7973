//! `stk verify`: decodes every block and reports what is lost. With `--walks`, compares our walks
//! with the system's own.

mod walk_check;

use super::{Exit, Out, Progress, TablesArgs, TzArgs, each_trace, inputs, is_usage};
use std::path::{Path, PathBuf};
use stk_format::OpenError;
use stk_output::traces::Traces;
use stk_output::verify::{StateCounts, VERSION, VerifyReport, verify};
use stk_profile::trace::TraceError;

/// Checks traces block by block. Exit code 0: whole, or only cut off at the end with no completed
/// block lost; 4: damaged; with --walks 6: a walk differs from the system's own, and nothing
/// explains it.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  stk verify app.stk
  stk verify *.stk && echo all whole
  stk verify --walks checked.stk    (recorded with inject --check-walks, or of a .NET process)")]
pub(super) struct VerifyArgs {
    /// Traces: files, patterns such as *.stk, or folders, whose .stk files are taken
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Compare our walk of each stack with the one that the system's own unwinder made of it
    /// (`inject --check-walks`), frame by frame, and with the explicit Frames of .NET (9 and
    /// later), and say why they differ
    #[arg(long)]
    walks: bool,
    /// Print JSON, as schema/verify.schema.json describes it; with --walks schema/walks.schema.json
    #[arg(long)]
    json: bool,
    /// Threads to use; by default as many as there are processors
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    #[command(flatten)]
    tables: TablesArgs,
    #[command(flatten)]
    tz: TzArgs,
}

pub(super) fn run(args: &VerifyArgs, out: Out<'_>) -> anyhow::Result<Exit> {
    let pool = super::pool(args.jobs)?;
    let progress = Progress::new("blocks");
    let (files, exit) = inputs::traces(&args.files);
    if args.walks {
        let ending = walk_check::run(&files, &args.tables, args.json, &pool, &progress, out)?;
        return Ok(exit.worse(ending));
    }
    let mut document = Traces::new(VERSION);
    let mut tally = StateCounts::default();
    let exit = exit.worse(each_trace(&files, out, |path| {
        let report = pool.install(|| of_file(path, &args.tables, &progress))?;
        tally.add(&report);
        let text = if args.json { document.next(&report)? } else { report.text(args.tz.tz) };
        Ok((text, if report.is_damaged() { Exit::Damaged } else { Exit::Ok }))
    })?);
    if args.json {
        out(&document.end())?;
    } else if files.len() > 1 {
        out(&tally.text(files.len()))?;
    }
    Ok(exit)
}

/// The exit code for a trace that cannot be read: `Damaged` if it is damaged, `Failure` if it does
/// not exist or is not a trace.
pub(super) fn exit_of(error: &anyhow::Error) -> Exit {
    if is_usage(error) {
        return Exit::Usage;
    }
    match error.downcast_ref::<TraceError>() {
        Some(TraceError::Open { cause: OpenError::Header(stk_format::HeaderError::Damaged), .. }) => {
            Exit::Damaged
        }
        _ => Exit::Failure,
    }
}

fn of_file(path: &Path, tables: &TablesArgs, progress: &Progress) -> anyhow::Result<VerifyReport> {
    let file = tables.open(path)?;
    let mut trace = file.read()?;
    tables.give(&mut trace);
    progress.add_total(trace.blocks().blocks().len() as u64);
    Ok(verify(&trace, file.len(), progress.done()))
}
