//! One line of JSON for each trace of a batch, written as soon as the trace is done.

use super::super::convert::{ConvertOutcome, Status};
use super::super::{Exit, verify};
use crate::batch::{TraceResult, TraceStatus};
use crate::commands::replace::replaces_own;
use anyhow::Context;
use serde::Serialize;
use std::error::Error;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use stk_base::deadline::is_over;
use stk_base::files::{Below, MayReplace, look_at, open_device};
use stk_output::formats;
use stk_profile::trace::TraceError;

/// A line.
#[derive(Serialize)]
struct Line<'a> {
    trace: String,
    status: TraceStatus,
    trace_id: Option<&'a str>,
    samples: Option<u64>,
    dropped: Option<u64>,
    damaged_blocks: Option<u64>,
    complete: Option<bool>,
    seconds: f64,
    reason: Option<&'a str>,
}

/// What a conversion came to.
pub(super) fn result_of(outcome: &ConvertOutcome) -> TraceResult {
    let done = match outcome {
        Ok(done) => done,
        Err(error) => {
            let before = error.chain().find_map(|error| error.downcast_ref::<TraceResult>());
            let status = match before {
                Some(before) => before.status,
                None if error.chain().any(is_over) => TraceStatus::Timeout,
                None if error.chain().any(is_short) => TraceStatus::Memory,
                None if verify::exit_of(error) == Exit::Damaged => TraceStatus::Damaged,
                None => TraceStatus::Failed,
            };
            return TraceResult::lost(status, format!("{error:#}"));
        }
    };
    let status = match done.status {
        Status::Copy => TraceStatus::Copy,
        Status::Prefix => TraceStatus::Prefix,
        _ if done.exit == Exit::Damaged => TraceStatus::Damaged,
        Status::Skipped => TraceStatus::Skipped,
        Status::Converted => TraceStatus::Converted,
    };
    let reason = (!done.lines.is_empty()).then(|| done.lines.join("\n"));
    TraceResult {
        status,
        trace_id: done.trace_id.clone(),
        facts: done.facts,
        reason,
        seen: done.seen.clone().map(Box::new),
    }
}

/// Whether an error is that the system has no more memory.
fn is_short(error: &(dyn Error + 'static)) -> bool {
    let of_trace = match error.downcast_ref::<TraceError>() {
        // Its text has the cause, so the cause is no further error of the chain.
        Some(TraceError::Io { cause, .. }) => Some(cause),
        _ => None,
    };
    let io = of_trace.or_else(|| error.downcast_ref::<io::Error>());
    io.is_some_and(|error| error.kind() == io::ErrorKind::OutOfMemory)
}

/// How many traces had which status.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct StatusCounts {
    converted: u64,
    skipped: u64,
    copies: u64,
    prefixes: u64,
    damaged: u64,
    timeouts: u64,
    short: u64,
    failed: u64,
}

impl StatusCounts {
    /// How many are damaged, took too long or too much memory, or failed.
    pub(super) fn bad(&self) -> u64 {
        self.damaged + self.timeouts + self.short + self.failed
    }

    pub(super) fn all(&self) -> u64 {
        self.parts().iter().map(|(number, _)| number).sum()
    }

    /// Numbers with their words.
    pub(super) fn parts(&self) -> [(u64, &'static str); 8] {
        [
            (self.converted, "converted"),
            (self.skipped, "done before"),
            (self.copies, "copies"),
            (self.prefixes, "prefixes of others"),
            (self.damaged, "damaged (what could be read is there)"),
            (self.timeouts, "took longer than --time-limit"),
            (self.short, "ran out of memory"),
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
    tally: StatusCounts,
    error: Option<io::Error>,
}

impl BatchLog {
    /// A new log, which replaces that of the last run, and with `force` another file. `named`: the
    /// file that the command line names, else it has the name `usual` in the folder of the outputs.
    ///
    /// # Errors
    ///
    /// A usage error if it is an input or a trace. That another file is there, or that it cannot be
    /// made.
    pub(super) fn create(
        named: Option<&Path>,
        out: &Path,
        usual: &str,
        force: bool,
    ) -> anyhow::Result<BatchLog> {
        let path = named.map_or_else(|| out.join(usual), Path::to_owned);
        let file = new_file(named, out, &path, force);
        let file = file.with_context(|| format!("{}: cannot be made", path.display()))?;
        let state = LogState { file, tally: StatusCounts::default(), error: None };
        Ok(BatchLog { path, state: Mutex::new(state) })
    }

    /// Adds the result of a trace.
    pub(super) fn add(&self, trace: &Path, result: &TraceResult, time: Duration) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let tally = &mut state.tally;
        *match result.status {
            TraceStatus::Converted => &mut tally.converted,
            TraceStatus::Skipped => &mut tally.skipped,
            TraceStatus::Copy => &mut tally.copies,
            TraceStatus::Prefix => &mut tally.prefixes,
            TraceStatus::Damaged => &mut tally.damaged,
            TraceStatus::Timeout => &mut tally.timeouts,
            TraceStatus::Memory => &mut tally.short,
            TraceStatus::Failed => &mut tally.failed,
        } += 1;
        let facts = result.facts;
        let line = Line {
            trace: trace.display().to_string(),
            status: result.status,
            trace_id: result.trace_id.as_deref(),
            samples: facts.map(|facts| facts.samples),
            dropped: facts.map(|facts| facts.dropped),
            damaged_blocks: facts.map(|facts| facts.damaged_blocks),
            complete: facts.map(|facts| facts.complete),
            seconds: (time.as_secs_f64() * 1000.0).round() / 1000.0,
            reason: result.reason.as_deref(),
        };
        let written = serde_json::to_string(&line).map_err(io::Error::from);
        let written = written.and_then(|text| writeln!(state.file, "{text}"));
        state.error = state.error.take().or(written.err());
    }

    /// What the traces came to.
    ///
    /// # Errors
    ///
    /// When a line could not be written.
    pub(super) fn finish(self) -> anyhow::Result<StatusCounts> {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        match state.error {
            Some(error) => Err(error).with_context(|| format!("{}: cannot be written", self.path.display())),
            None => Ok(state.tally),
        }
    }
}

fn new_file(named: Option<&Path>, out: &Path, path: &Path, force: bool) -> anyhow::Result<File> {
    let is_device = |path: &&Path| path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir());
    if let Some(device) = named.filter(is_device) {
        return Ok(open_device(device)?);
    }
    let at = match named {
        Some(path) => formats::named_file(path)?,
        None => Below::folder(out)?.join(path.file_name().unwrap_or_default()),
    };
    // A link below the folder of the outputs is an error.
    at.kind()?;
    replaces_own((path, MayReplace::NoTrace), force, " and is no log of stk batch", is_log)?;
    Ok(formats::temporary(&at.parent())?.persist(&at, MayReplace::NoTrace)?)
}

/// Whether a file begins as logs do.
fn is_log(path: &Path) -> bool {
    const BEGIN: &[u8] = br#"{"trace":""#;
    let mut begin = [0; BEGIN.len()];
    look_at(path).and_then(|mut file| file.read_exact(&mut begin)).is_ok() && begin == BEGIN
}
