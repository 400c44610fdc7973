//! `stk verify`: decodes every block and reports what is lost. With `--walks`, compares our walks
//! with the system's own.

mod walks;

use super::{Exit, Out, Progress, TablesArgs, count, each_trace, size, span, utc};
use crate::trace::{BlobProblem, Trace, TraceError, TraceFile};
use rayon::prelude::*;
use std::collections::HashSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use stk_format::{BlockKind, OpenError, Scratch, Supplement};
use stk_schema::text::printable;

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
    /// Traces
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Compare our walk of each stack with the one that the system's own unwinder made of it
    /// (`inject --check-walks`), frame by frame, and with the explicit Frames of .NET (9 and
    /// later), and say why they differ
    #[arg(long)]
    walks: bool,
    /// Print JSON: {"version":1,"traces":[…]}
    #[arg(long, requires = "walks")]
    json: bool,
    /// Threads to use; by default as many as there are processors
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    #[command(flatten)]
    tables: TablesArgs,
}

pub(super) fn run(args: &VerifyArgs, out: Out<'_>) -> anyhow::Result<Exit> {
    let pool = super::pool(args.jobs)?;
    let progress = Progress::new("blocks");
    if args.walks {
        return walks::run(&args.files, &args.tables, args.json, &pool, &progress, out);
    }
    each_trace(&args.files, out, |path| pool.install(|| verify(path, &args.tables, &progress)))
}

/// The exit code for a trace that cannot be read: `Damaged` if it is damaged, `Failure` if it does
/// not exist or is not a trace.
pub(super) fn exit_of(error: &anyhow::Error) -> Exit {
    match error.downcast_ref::<TraceError>() {
        Some(TraceError::Open { cause: OpenError::Header(stk_format::HeaderError::Damaged), .. }) => {
            Exit::Damaged
        }
        _ => Exit::Failure,
    }
}

fn verify(path: &Path, tables: &TablesArgs, progress: &Progress) -> anyhow::Result<(String, Exit)> {
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
                "{error}; up to {} samples between {} and {} are lost",
                count(block.header.samples.into()),
                span(trace.clock.ns(block.header.first)),
                span(trace.clock.ns(block.header.last)),
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
    Ok(verdict(&trace, &file, &findings, lost_samples, elsewhere))
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

fn verdict(
    trace: &Trace<'_>,
    file: &TraceFile,
    findings: &[String],
    lost_samples: u64,
    elsewhere: usize,
) -> (String, Exit) {
    let mut text = String::new();
    let blocks = trace.blocks();
    let (state, exit) = if !findings.is_empty() {
        ("damaged", Exit::Damaged)
    } else if !blocks.is_complete() {
        ("truncated, no completed block lost", Exit::Ok)
    } else {
        ("whole", Exit::Ok)
    };
    let of_kind = |kind| blocks.blocks().iter().filter(|block| block.header.kind == kind).count() as u64;
    let _ = writeln!(
        text,
        "{}: {state}: {}, {} blocks ({} of samples), {} samples over {} from {}",
        printable(&trace.source),
        size(file.len()),
        count(blocks.blocks().len() as u64),
        count(of_kind(BlockKind::Samples)),
        count(trace.samples()),
        span(trace.clock.ns(trace.last())),
        utc(trace.header().utc_start),
    );
    for finding in findings {
        let _ = writeln!(text, "  {}", printable(finding));
    }
    if lost_samples > 0 {
        let _ = writeln!(text, "  in all up to {} samples lost", count(lost_samples));
    }
    if elsewhere > 0 {
        let tables = count(elsewhere as u64);
        let _ = writeln!(
            text,
            "  {tables} tables of images are not in the trace: name the folder that inject wrote them to with --tables"
        );
    }
    match blocks.supplement() {
        Supplement::None => {}
        Supplement::Whole { range } => {
            let _ = writeln!(
                text,
                "  completed after the recording: a whole supplement of {}",
                size(range.end - range.start)
            );
        }
        Supplement::Torn { range } => {
            let bytes = size(range.end - range.start);
            let _ = writeln!(text, "  a torn supplement of {bytes} behind the recording is ignored");
        }
    }
    if !blocks.is_complete() {
        let how = if blocks.is_cut() {
            "the file ends within a block"
        } else {
            "the file ends after a whole block"
        };
        let _ =
            writeln!(text, "  the recording was not finished ({how}): the target or the recorder was ended");
    }
    if let Some(end) = trace.timeline.end.as_ref().filter(|end| !end.detail.is_empty()) {
        let _ = writeln!(text, "  the recorder said at its end: {}", printable(&end.detail));
    }
    if blocks.is_complete() && !blocks.is_indexed() {
        let _ = writeln!(text, "  the index is missing or damaged; it was rebuilt and nothing depends on it");
    }
    (text, exit)
}
