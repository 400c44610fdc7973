//! `stk`: the command line, and what questions it puts to profiles.
//!
//! Takes arguments. Returns files, tables, texts and exit codes. `docs/design/architecture.md`
//! describes the flow of the data; the packages `stk-base`, `stk-unwind`, `stk-symbols`,
//! `stk-profile` and `stk-output` below this one do the work, each using only those before it. Each
//! module uses only those above it, which `tests/tests/host/architecture.rs` checks by this table:
//!
//! ```text
//! dataset    questions to a Parquet dataset                    tables -> Profile, Runs
//! batch      conversions in processes of their own             files -> TraceResult
//! diff       what changed between the traces of two builds     Profile, Runs -> Diff
//! times      moments that people write                      text, Trace -> ns
//! commands   the command line; the only user of clap
//! ```
//!
//! Without the feature `parquet` there are no Parquet output and no datasets.
//!
//! ```no_run
//! let code = stk::commands::run();
//! ```
#![deny(unsafe_code)]
// cli/clippy.toml says what is meant. Tests, and the programs for Windows, open files as they like.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod batch;
pub mod commands;
pub mod dataset;
pub mod diff;
pub mod times;
