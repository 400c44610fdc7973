//! The result of checking a trace, as JSON and as text.

use super::super::Exit;
use serde::Serialize;
use std::fmt::Write;
use stk_base::text::{TimeZone, count, counted, moment, size, span, utc};
use stk_format::{BlockKind, Supplement};
use stk_profile::trace::Trace;
use stk_schema::text::printable;

/// Version of the JSON that `schema/verify.schema.json` describes. It is raised when the meaning of
/// a field changes or a field is removed. New fields may be added at any time.
pub(super) const VERSION: u32 = 1;

/// A checked trace.
#[derive(Serialize)]
pub(super) struct VerifyReport {
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
    pub(super) fn new(
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

    pub(super) fn exit(&self) -> Exit {
        if self.state == TraceState::Damaged { Exit::Damaged } else { Exit::Ok }
    }

    pub(super) fn text(&self, zone: TimeZone) -> String {
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

/// Counts of several traces.
#[derive(Default)]
pub(super) struct StateCounts {
    whole: u64,
    truncated: u64,
    damaged: u64,
    samples: u64,
    lost_samples: u64,
}

impl StateCounts {
    pub(super) fn add(&mut self, report: &VerifyReport) {
        *match report.state {
            TraceState::Whole => &mut self.whole,
            TraceState::Truncated => &mut self.truncated,
            TraceState::Damaged => &mut self.damaged,
        } += 1;
        self.samples = self.samples.saturating_add(report.samples);
        self.lost_samples = self.lost_samples.saturating_add(report.lost_samples);
    }

    /// One line on `files` traces.
    pub(super) fn text(&self, files: usize) -> String {
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
