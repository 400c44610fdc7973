//! The library behind `stk`: opens `.stk` traces, rebuilds module timelines, unwinds, symbolizes
//! and writes profiles.
//!
//! Takes the bytes of a trace, and folders and servers with symbols. Returns files for viewers,
//! tables and texts. "How it works" in the repository's README describes the flow of the data.
//! There is one module per concern. Each uses only those above it, which
//! `tests/tests/host/architecture.rs` checks by this table:
//!
//! ```text
//! faults     mapped files that change while they are read
//! files      opens files; what outputs replace, and what is below their folders
//! map        files in memory
//! interrupt  Ctrl-C, temporary files
//! panics     a panic as the failure of one piece of work
//! stdout     whether there is a standard output
//! deadline   a limit of time for one piece of work
//! local_time the zone of this machine
//! text       figures for people
//! model      what several stages share                         Image, Holder, names, bytes
//! trace      opens a file, reads what was loaded where and when bytes -> Trace, Timeline
//! image      facts about a module                              Trace -> ModuleImage
//! symbols    names for addresses in modules                    ModuleKey, rvas -> ModuleSymbols
//! runtimes   names for code that a language runtime made       Trace -> Methods
//! redact     copies a trace without what stacks and texts hold     Trace -> a trace
//! stack      turns a sample into a named stack                 Sample -> Frame, End, Names
//! profile    the result of a conversion                        Trace, ModuleImage -> Profile, Runs
//! pipeline   from a trace to a profile with names                Trace -> Profile, Runs
//! output     one writer per format                             Profile, Runs -> files
//! dataset    questions to a Parquet dataset                 tables -> Profile, Runs
//! stats      times, and the problems of the stacks             Profile, Runs -> Stats
//! diff       what changed between the traces of two builds      Profile, Runs -> Diff
//! report     one page with what there is of traces              Profile, Runs, Stats -> HTML
//! walks      compares walks with the system's own              Trace, ModuleImage -> Comparison
//! commands   the command line; the only user of clap
//! ```
//!
//! Without the feature `parquet` there is no Parquet output. Then polars is not compiled, which
//! takes longer than all the rest.
#![deny(unsafe_code)]
// cli/clippy.toml says what is meant. Tests, and the programs for Windows, open files as they like.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
pub mod commands;
pub mod dataset;
pub mod deadline;
pub mod diff;
#[cfg(unix)]
mod faults;
mod files;
pub mod image;
mod interrupt;
mod local_time;
pub mod map;
pub mod model;
pub mod output;
mod panics;
pub mod pipeline;
pub mod profile;
pub mod redact;
pub mod report;
pub mod runtimes;
pub mod stack;
pub mod stats;
mod stdout;
pub mod symbols;
mod text;
pub mod trace;
mod walks;
