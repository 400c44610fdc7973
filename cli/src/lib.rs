//! The library behind `stk`: opens `.stk` traces, rebuilds module timelines, unwinds, symbolizes
//! and writes profiles.
//!
//! Gets the bytes of a trace, folders and servers with symbols; gives files for viewers, tables,
//! texts. "How it works" in the repository's README has the way of the data. One module per
//! concern:
//!
//! ```text
//! trace                 opens a file, reads what was loaded where and when      bytes -> Trace, Timeline
//! image                 what is known of a module                               Trace -> ModuleImage
//! profile               what a conversion produces                              Trace, ModuleImage -> Profile, Runs
//! symbols               names for addresses in modules                          ModuleKey, rvas -> ModuleSymbols
//! runtimes              names for code that a language runtime made             Trace -> Methods
//! output                one writer per format                                   Profile, Runs -> files
//! stats                 where the time went, and what is wrong with the stacks  Profile, Runs -> Stats
//! walks                 compares walks with the system's own                    Trace, ModuleImage -> Comparison
//! commands              the command line
//! map, text, interrupt  files in memory; figures for people; Ctrl-C
//! ```
//!
//! Without the feature `program` there are no `output`, `stats` and `commands`: what the fuzz
//! targets and benchmarks need.
#![deny(unsafe_code)]
// Without the program some of what its commands call is called by nobody.
#![cfg_attr(not(feature = "program"), allow(dead_code, unused_imports))]

#[cfg(feature = "program")]
pub mod commands;
#[cfg(unix)]
mod faults;
pub mod image;
mod interrupt;
pub mod map;
#[cfg(feature = "program")]
pub mod output;
pub mod profile;
pub mod runtimes;
#[cfg(feature = "program")]
pub mod stats;
pub mod symbols;
#[cfg(test)]
mod testing;
pub mod text;
pub mod trace;
pub mod walks;
