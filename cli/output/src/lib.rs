//! What becomes of a profile: files for viewers, tables, summaries, one page.
//!
//! Takes a `Profile` and its runs. Returns files, and sums that commands print. Each module uses
//! only those above it, which `tests/tests/host/architecture.rs` checks by this table:
//!
//! ```text
//! formats    one writer per format                             Profile, Runs -> files
//! stats      times, and the problems of the stacks             Profile, Runs -> Stats
//! annotate   lines and instructions of functions              Profile, Runs, Trace -> text, JSON
//! info       what was recorded                                 Trace -> text, JSON
//! tag        tags of captures and marks                      text -> number -> text
//! traces     one document of several traces                   JSON of each -> JSON
//! dump       stacks at a moment                              Trace -> text, JSON
//! events     what happened, in time                           Trace -> text, JSON
//! verify     what of a trace is damaged                       Trace -> text, JSON
//! addresses  names of single addresses                       Resolution -> text, JSON
//! walk_check a comparison of walks, shown                      Comparison -> text, JSON
//! report     one page with what there is of traces             Profile, Runs, Stats -> HTML
//! ```
//!
//! Without the feature `parquet` there is no Parquet output. Then polars is not compiled, which
//! takes longer than all the rest.
//!
//! ```no_run
//! use stk_output::stats::{StatsOptions, collect};
//! use stk_profile::pipeline::{LoadOptions, load};
//!
//! let loaded = load("app.stk".as_ref(), &LoadOptions::default())?;
//! let stats = collect(&loaded.profile, &loaded.runs, None, &StatsOptions::default())?;
//! println!("{} ns of CPU time", stats.totals.cpu_ns);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]
// cli/clippy.toml says what is meant. Tests, and the programs for Windows, open files as they like.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod addresses;
pub mod annotate;
pub mod dump;
pub mod events;
pub mod formats;
pub mod info;
pub mod report;
pub mod stats;
pub mod tag;
pub mod traces;
pub mod verify;
pub mod walk_check;
