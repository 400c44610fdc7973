//! What a batch and the processes that convert its traces say to each other: one JSON value a
//! line, on the process's standard input and output.

use super::seen::SeenTrace;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use stk_output::formats::ConversionFacts;

/// The first line to a process.
#[derive(Serialize, Deserialize)]
pub struct Setup {
    /// The command line of the batch, of which the process takes the options.
    pub args: Vec<OsString>,
    /// How many threads to use.
    pub threads: u16,
}

/// The lines after it: files to convert, all those of one recording for a dataset.
#[derive(Serialize, Deserialize)]
pub struct Order {
    pub files: Vec<OsString>,
    /// At what processes ended that had this order before. That is not tried again.
    pub lost: Vec<Lost>,
}

/// A step at which a process ended.
#[derive(Clone, Serialize, Deserialize)]
pub struct Lost {
    /// Place in the order.
    pub file: usize,
    pub stage: Stage,
    pub result: TraceResult,
}

/// What a process answers.
#[derive(Serialize, Deserialize)]
pub enum Answer {
    /// It takes orders.
    Ready,
    /// It has begun this step of the file at this place of the order.
    Begun { file: usize, stage: Stage },
    /// The order is done. One result for each file, by its place.
    Done(Vec<(usize, TraceResult)>),
}

/// A step of a conversion that can take long.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum Stage {
    /// Its content is compared with that of others.
    Read,
    /// It is converted.
    Convert,
}

/// How a trace was dealt with.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "lowercase")]
pub enum TraceStatus {
    Converted,
    Skipped,
    Copy,
    Prefix,
    Damaged,
    Timeout,
    Memory,
    Failed,
}

/// What a trace came to. As an error: that of a trace which is not tried again.
#[derive(Clone, Serialize, Deserialize, Debug, thiserror::Error)]
#[error("{}", reason.as_deref().unwrap_or_default())]
pub struct TraceResult {
    pub status: TraceStatus,
    pub trace_id: Option<String>,
    pub facts: Option<ConversionFacts>,
    pub reason: Option<String>,
    /// What it is known by where it is not read again; `None` if it is to be.
    pub seen: Option<Box<SeenTrace>>,
}

impl TraceResult {
    /// That of a trace whose conversion gave nothing.
    pub fn lost(status: TraceStatus, reason: String) -> TraceResult {
        TraceResult { status, trace_id: None, facts: None, reason: Some(reason), seen: None }
    }
}
