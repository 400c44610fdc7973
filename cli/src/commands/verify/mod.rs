//! `stk verify`: decodes every block and reports what is lost. With `--walks`, compares our walks
//! with the system's own.
//!
//! ```text
//! report     the result of a trace as JSON and as text       VerifyReport
//! walks      the comparison of walks, as JSON and as text
//! ```

mod report;
mod walks;

use super::traces::Traces;
use super::{Exit, Out, Progress, TablesArgs, TzArgs, count, each_trace, inputs, is_usage};
use rayon::prelude::*;
use report::{StateCounts, VerifyReport};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use stk_base::text::{counted, since_start};
use stk_format::{OpenError, Scratch};
use stk_profile::trace::{BlobProblem, Trace, TraceError};

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
        let ending = walks::run(&files, &args.tables, args.json, &pool, &progress, out)?;
        return Ok(exit.worse(ending));
    }
    let mut document = Traces::new(report::VERSION);
    let mut tally = StateCounts::default();
    let exit = exit.worse(each_trace(&files, out, |path| {
        let report = pool.install(|| verify(path, &args.tables, &progress))?;
        tally.add(&report);
        let text = if args.json { document.next(&report)? } else { report.text(args.tz.tz) };
        Ok((text, report.exit()))
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

fn verify(path: &Path, tables: &TablesArgs, progress: &Progress) -> anyhow::Result<VerifyReport> {
    let file = tables.open(path)?;
    let mut trace = file.read()?;
    tables.give(&mut trace);
    let blocks = trace.blocks().blocks();
    progress.add_total(blocks.len() as u64);
    let mut findings: Vec<String> = trace.damage.clone();
    // The first pass has read the blocks of other kinds as a whole. Their errors are in `damage`.
    let samples: Vec<_> = trace.sample_blocks().collect();
    let errors: Vec<_> = samples
        .par_iter()
        .map_init(Scratch::new, |scratch, block| {
            let result = trace.blocks().verify_block(block, scratch);
            progress.done().fetch_add(1, Ordering::Relaxed);
            result.err()
        })
        .collect();
    let mut lost_samples = 0;
    for (block, error) in samples.iter().zip(errors) {
        if let Some(error) = error {
            lost_samples += u64::from(block.header.samples);
            let what = format!(
                "{error}; up to {} between {} and {} are lost",
                counted(block.header.samples.into(), "sample"),
                since_start(trace.clock.ns(block.header.first)),
                since_start(trace.clock.ns(block.header.last)),
            );
            findings.push(what);
        }
    }
    let unknown: u64 = trace
        .sample_blocks()
        .filter(|block| !block.metadata_known)
        .map(|block| u64::from(block.header.samples))
        .sum();
    if unknown > 0 {
        findings.push(format!(
            "{} samples have no known modules, up to the next STATE block: a META block before them is lost",
            count(unknown)
        ));
    }
    let elsewhere = table_problems(&trace, &mut findings);
    Ok(VerifyReport::new(&trace, file.len(), findings, lost_samples, elsewhere))
}

/// Checks the tables of images against their hashes. Returns the number of tables that were not
/// found. If the trace has lost no block, those were never in it: `inject --tables` stores them in
/// a folder.
fn table_problems(trace: &Trace<'_>, findings: &mut Vec<String>) -> usize {
    let records = &trace.timeline.images;
    let wanted = records.iter().flat_map(|record| record.tables.iter().map(|table| table.hash));
    let blobs = trace.blobs.read(trace.blocks(), wanted);
    let mut elsewhere = HashSet::new();
    for record in records {
        for table in &record.tables {
            match blobs.get(&table.hash) {
                Some(Err(BlobProblem::Missing(hash))) if !trace.lost_blocks => {
                    elsewhere.insert(*hash);
                }
                Some(Err(problem)) => findings.push(format!("{}: {problem}", record.image.name)),
                _ => {}
            }
        }
    }
    elsewhere.len()
}
