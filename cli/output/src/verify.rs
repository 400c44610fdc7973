//! Checks a trace block by block. The result as JSON and as text.

use rayon::prelude::*;
use serde::Serialize;
use std::collections::HashSet;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use stk_base::text::{TimeZone, count, counted, moment, since_start, size, span, utc};
use stk_format::{BlockKind, Scratch, Supplement};
use stk_profile::trace::{BlobProblem, Trace};
use stk_schema::text::printable;

/// Version of the JSON that `schema/verify.schema.json` describes. It is raised when the meaning of
/// a field changes or a field is removed. New fields may be added at any time.
pub const VERSION: u32 = 1;

/// A checked trace.
#[derive(Serialize)]
pub struct VerifyReport {
    trace: String,
    state: TraceState,
    bytes: u64,
    blocks: u64,
    sample_blocks: u64,
    samples: u64,
    duration_ns: u64,
    start_utc: String,
    #[serde(skip)]
    start_utc_ns: u64,
    /// What is damaged.
    findings: Vec<String>,
    /// Samples of damaged blocks, at most.
    lost_samples: u64,
    /// Tables of images that were never in the trace: `inject --tables` keeps them in a folder.
    tables_elsewhere: u64,
    /// What was added after the recording: `whole`, `torn` (and ignored), or nothing.
    supplement: Option<&'static str>,
    supplement_bytes: u64,
    /// Whether the recording was finished.
    complete: bool,
    /// Whether the file ends within a block.
    cut: bool,
    /// Whether the index is intact. Nothing depends on it.
    indexed: bool,
    /// What the recorder said at its end; empty if nothing.
    end_detail: String,
}

/// What is wrong with a trace.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum TraceState {
    /// Nothing.
    Whole,
    /// The recording was not finished. No completed block is lost.
    Truncated,
    /// Something of it is lost.
    Damaged,
}

impl VerifyReport {
    fn new(
        trace: &Trace<'_>,
        bytes: u64,
        findings: Vec<String>,
        lost_samples: u64,
        elsewhere: usize,
    ) -> VerifyReport {
        let blocks = trace.blocks();
        let of_kind = |kind| blocks.blocks().iter().filter(|block| block.header.kind == kind).count() as u64;
        let (supplement, range) = match blocks.supplement() {
            Supplement::None => (None, 0..0),
            Supplement::Whole { range } => (Some("whole"), range.clone()),
            Supplement::Torn { range } => (Some("torn"), range.clone()),
        };
        VerifyReport {
            trace: trace.source.clone(),
            state: match (findings.is_empty(), blocks.is_complete()) {
                (false, _) => TraceState::Damaged,
                (true, false) => TraceState::Truncated,
                (true, true) => TraceState::Whole,
            },
            bytes,
            blocks: blocks.blocks().len() as u64,
            sample_blocks: of_kind(BlockKind::Samples),
            samples: trace.samples(),
            duration_ns: trace.clock.ns(trace.last()),
            start_utc: utc(trace.header().utc_start),
            start_utc_ns: trace.header().utc_start,
            findings,
            lost_samples,
            tables_elsewhere: elsewhere as u64,
            supplement,
            supplement_bytes: range.end - range.start,
            complete: blocks.is_complete(),
            cut: blocks.is_cut(),
            indexed: blocks.is_indexed(),
            end_detail: trace.timeline.end.as_ref().map(|end| end.detail.clone()).unwrap_or_default(),
        }
    }

    /// Whether something of the trace is lost.
    pub fn is_damaged(&self) -> bool {
        self.state == TraceState::Damaged
    }

    pub fn text(&self, zone: TimeZone) -> String {
        let state = match self.state {
            TraceState::Whole => "whole",
            TraceState::Truncated => "truncated, no completed block lost",
            TraceState::Damaged => "damaged",
        };
        let mut text = String::new();
        let _ = writeln!(
            text,
            "{}: {state}: {}, {} ({} of samples), {} over {} from {}",
            printable(&self.trace),
            size(self.bytes),
            counted(self.blocks, "block"),
            count(self.sample_blocks),
            counted(self.samples, "sample"),
            span(self.duration_ns),
            moment(self.start_utc_ns, zone),
        );
        for note in self.notes() {
            let _ = writeln!(text, "  {}", printable(&note));
        }
        text
    }

    /// What is to say beside the state.
    fn notes(&self) -> Vec<String> {
        let mut notes = self.findings.clone();
        if self.lost_samples > 0 {
            notes.push(format!("in all up to {} lost", counted(self.lost_samples, "sample")));
        }
        if self.tables_elsewhere > 0 {
            let tables = counted(self.tables_elsewhere, "table");
            notes.push(format!(
                "{tables} of images are not in the trace: name the folder that inject wrote them to with --tables"
            ));
        }
        let bytes = size(self.supplement_bytes);
        match self.supplement {
            Some("whole") => {
                notes.push(format!("completed after the recording: a whole supplement of {bytes}"))
            }
            Some(_) => notes.push(format!("a torn supplement of {bytes} behind the recording is ignored")),
            None => {}
        }
        if !self.complete {
            let how =
                if self.cut { "the file ends within a block" } else { "the file ends after a whole block" };
            notes.push(format!(
                "the recording was not finished ({how}): the target or the recorder was ended"
            ));
        }
        if !self.end_detail.is_empty() {
            notes.push(format!("the recorder said at its end: {}", self.end_detail));
        }
        if self.complete && !self.indexed {
            notes
                .push("the index is missing or damaged; it was rebuilt and nothing depends on it".to_owned());
        }
        notes
    }
}

/// Checks a trace of a file of so many bytes. `done` counts blocks of samples.
pub fn verify(trace: &Trace<'_>, bytes: u64, done: &AtomicU64) -> VerifyReport {
    let mut findings: Vec<String> = trace.damage.clone();
    // The first pass has read the blocks of other kinds as a whole. Their errors are in `damage`.
    let samples: Vec<_> = trace.sample_blocks().collect();
    let errors: Vec<_> = samples
        .par_iter()
        .map_init(Scratch::new, |scratch, block| {
            let result = trace.blocks().verify_block(block, scratch);
            done.fetch_add(1, Ordering::Relaxed);
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
    let elsewhere = table_problems(trace, &mut findings);
    VerifyReport::new(trace, bytes, findings, lost_samples, elsewhere)
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

/// Counts of several traces.
#[derive(Default)]
pub struct StateCounts {
    whole: u64,
    truncated: u64,
    damaged: u64,
    samples: u64,
    lost_samples: u64,
}

impl StateCounts {
    pub fn add(&mut self, report: &VerifyReport) {
        *match report.state {
            TraceState::Whole => &mut self.whole,
            TraceState::Truncated => &mut self.truncated,
            TraceState::Damaged => &mut self.damaged,
        } += 1;
        self.samples = self.samples.saturating_add(report.samples);
        self.lost_samples = self.lost_samples.saturating_add(report.lost_samples);
    }

    /// One line on `files` traces.
    pub fn text(&self, files: usize) -> String {
        let read = self.whole + self.truncated + self.damaged;
        let states = [
            (self.whole, "whole"),
            (self.truncated, "truncated"),
            (self.damaged, "damaged"),
            (files as u64 - read, "not readable"),
        ];
        let states: Vec<String> = states
            .iter()
            .filter(|(number, _)| *number > 0)
            .map(|(number, state)| format!("{} {state}", count(*number)))
            .collect();
        let lost = match self.lost_samples {
            0 => String::new(),
            lost => format!(", up to {} lost", count(lost)),
        };
        let samples = counted(self.samples, "sample");
        format!("{}: {}; {samples}{lost}\n", counted(files as u64, "trace"), states.join(", "))
    }
}
