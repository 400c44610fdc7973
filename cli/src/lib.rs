//! The library behind `stk`: opens `.stk` traces, rebuilds module timelines, unwinds, symbolizes
//! and writes profiles.
//!
//! Gets the bytes of a trace, folders and servers with symbols; gives files for viewers, tables,
//! texts. "How it works" in the repository's README has the way of the data. One module per
//! concern; each uses only those above it, as `tests/tests/architecture.rs` checks by this table:
//!
//! ```text
//! faults     a mapped file that changes under way
//! map        files in memory
//! interrupt  Ctrl-C, temporary files
//! stdout     whether there is a standard output
//! text       figures for people
//! model      what several stages share                         Image, Holder, names, bytes
//! trace      opens a file, reads what was loaded where and when bytes -> Trace, Timeline
//! image      what is known of a module                         Trace -> ModuleImage
//! symbols    names for addresses in modules                    ModuleKey, rvas -> ModuleSymbols
//! runtimes   names for code that a language runtime made       Trace -> Methods
//! stack      a sample becomes a named stack                    Sample -> Frame, End, Names
//! profile    what a conversion produces                        Trace, ModuleImage -> Profile, Runs
//! output     one writer per format                             Profile, Runs -> files
//! stats      where the time went, what is wrong with the stacks Profile, Runs -> Stats
//! walks      compares walks with the system's own              Trace, ModuleImage -> Comparison
//! commands   the command line, and clap with it
//! ```
//!
//! Without the feature `parquet` there is no Parquet output, and polars is not compiled, which
//! takes longer than all the rest.
#![deny(unsafe_code)]
pub mod commands;
#[cfg(unix)]
mod faults;
pub mod image;
mod interrupt;
pub mod map;
pub mod model;
pub mod output;
pub mod profile;
pub mod runtimes;
pub mod stack;
pub mod stats;
mod stdout;
pub mod symbols;
#[cfg(test)]
mod testing;
pub mod text;
pub mod trace;
pub mod walks;
