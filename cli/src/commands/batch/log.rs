//! One line of JSON for each trace of a batch, written as soon as the trace is done.

use super::super::convert::{ConvertOutcome, Status};
use super::super::{Exit, verify};
use crate::deadline::is_over;
use anyhow::Context;
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A line.
#[derive(Serialize)]
struct Line<'a> {
    trace: String,
    status: &'static str,
    trace_id: Option<&'a str>,
    samples: Option<u64>,
    dropped: Option<u64>,
    damaged_blocks: Option<u64>,
    complete: Option<bool>,
    seconds: f64,
    reason: Option<String>,
}

/// How many traces had which status.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Tally {
    converted: u64,
    skipped: u64,
    copies: u64,
    prefixes: u64,
    damaged: u64,
    timeouts: u64,
    failed: u64,
}

impl Tally {
    /// How many are damaged, took too long or failed.
    pub(super) fn bad(&self) -> u64 {
        self.damaged + self.timeouts + self.failed
    }

    pub(super) fn all(&self) -> u64 {
        self.parts().iter().map(|(number, _)| number).sum()
    }

    /// Numbers with their words.
    pub(super) fn parts(&self) -> [(u64, &'static str); 7] {
        [
            (self.converted, "converted"),
            (self.skipped, "done before"),
            (self.copies, "copies"),
            (self.prefixes, "prefixes of others"),
            (self.damaged, "damaged (what could be read is there)"),
            (self.timeouts, "took longer than --time-limit"),
            (self.failed, "failed"),
        ]
    }
}

/// The log of a batch.
pub(super) struct BatchLog {
    path: PathBuf,
    state: Mutex<LogState>,
}

struct LogState {
    file: File,
    tally: Tally,
    error: Option<std::io::Error>,
}

impl BatchLog {
    /// A new log, which replaces that of the last run.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    pub(super) fn create(path: &Path) -> anyhow::Result<BatchLog> {
        let file = File::create(path).with_context(|| format!("{}: cannot be made", path.display()))?;
        let state = LogState { file, tally: Tally::default(), error: None };
        Ok(BatchLog { path: path.to_owned(), state: Mutex::new(state) })
    }

    /// Adds the outcome of a trace.
    pub(super) fn add(&self, trace: &Path, outcome: &ConvertOutcome, time: Duration) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let tally = &mut state.tally;
        let (status, counter) = match outcome {
            Err(error) if error.chain().any(is_over) => ("timeout", &mut tally.timeouts),
            Err(error) if verify::exit_of(error) == Exit::Damaged => ("damaged", &mut tally.damaged),
            Err(_) => ("failed", &mut tally.failed),
            Ok(done) => match done.status {
                Status::Copy => ("copy", &mut tally.copies),
                Status::Prefix => ("prefix", &mut tally.prefixes),
                _ if done.exit == Exit::Damaged => ("damaged", &mut tally.damaged),
                Status::Skipped => ("skipped", &mut tally.skipped),
                Status::Converted => ("converted", &mut tally.converted),
            },
        };
        *counter += 1;
        let done = outcome.as_ref().ok();
        let facts = done.and_then(|done| done.facts);
        let reason = match outcome {
            Ok(done) if done.lines.is_empty() => None,
            Ok(done) => Some(done.lines.join("\n")),
            Err(error) => Some(format!("{error:#}")),
        };
        let line = Line {
            trace: trace.display().to_string(),
            status,
            trace_id: done.and_then(|done| done.trace_id.as_deref()),
            samples: facts.map(|facts| facts.samples),
            dropped: facts.map(|facts| facts.dropped),
            damaged_blocks: facts.map(|facts| facts.damaged_blocks),
            complete: facts.map(|facts| facts.complete),
            seconds: (time.as_secs_f64() * 1000.0).round() / 1000.0,
            reason,
        };
        let written = serde_json::to_string(&line).map_err(std::io::Error::from);
        let written = written.and_then(|text| writeln!(state.file, "{text}"));
        state.error = state.error.take().or(written.err());
    }

    /// What the traces came to.
    ///
    /// # Errors
    ///
    /// When a line could not be written.
    pub(super) fn finish(self) -> anyhow::Result<Tally> {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        match state.error {
            Some(error) => Err(error).with_context(|| format!("{}: cannot be written", self.path.display())),
            None => Ok(state.tally),
        }
    }
}
