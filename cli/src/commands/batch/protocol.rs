//! What a batch and the processes that convert its traces say to each other: one JSON value a
//! line, on the process's standard input and output.

use super::super::convert::Stage;
use super::log::TraceResult;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;

/// The first line to a process.
#[derive(Serialize, Deserialize)]
pub(super) struct Setup {
    /// The command line of the batch, of which the process takes the options.
    pub args: Vec<OsString>,
    /// How many threads to use.
    pub threads: u16,
}

/// The lines after it: files to convert, all those of one recording for a dataset.
#[derive(Serialize, Deserialize)]
pub(super) struct Order {
    pub files: Vec<OsString>,
    /// At what processes ended that had this order before. That is not tried again.
    pub lost: Vec<Lost>,
}

/// A step at which a process ended.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Lost {
    /// Place in the order.
    pub file: usize,
    pub stage: Stage,
    pub result: TraceResult,
}

/// What a process answers.
#[derive(Serialize, Deserialize)]
pub(super) enum Answer {
    /// It takes orders.
    Ready,
    /// It has begun this step of the file at this place of the order.
    Begun { file: usize, stage: Stage },
    /// The order is done. One result for each file, by its place.
    Done(Vec<(usize, TraceResult)>),
}
