//! From an `.stk` trace to a profile: which stacks each thread had, when, and what it did.
//!
//! Takes the bytes of a trace, and a place to look for symbols. Returns a call tree in which each
//! stack is stored once, and runs of equal samples of each thread; a file of any size in bounded
//! memory. Each module uses only those above it, which `tests/tests/host/architecture.rs` checks by
//! this table:
//!
//! ```text
//! trace      opens a file, reads what was loaded where and when bytes -> Trace, Timeline
//! image      facts about a module                              Trace -> ModuleImage
//! runtimes   names for code that a language runtime made       Trace -> Methods
//! redact     copies a trace without what stacks and texts hold     Trace -> a trace
//! stack      turns a sample into a named stack                 Sample -> Frame, End, Names
//! profile    the result of a conversion                        Trace, ModuleImage -> Profile, Runs
//! pipeline   from a trace to a profile with names              Trace -> Profile, Runs
//! merge      places traces of one machine on one time line    Trace -> Anchor, MergedTimeline
//! walk_check compares walks with the system's own              Trace, ModuleImage -> Comparison
//! ```
//!
//! ```no_run
//! use stk_profile::pipeline::{LoadOptions, load};
//!
//! let loaded = load("app.stk".as_ref(), &LoadOptions::default())?;
//! for thread in &loaded.profile.threads {
//!     println!("{}: {} samples", thread.name, thread.samples);
//! }
//! # Ok::<(), stk_profile::pipeline::LoadError>(())
//! ```
#![deny(unsafe_code)]
// cli/clippy.toml says what is meant. Tests, and the programs for Windows, open files as they like.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod image;
pub mod merge;
pub mod pipeline;
pub mod profile;
pub mod redact;
pub mod runtimes;
pub mod stack;
pub mod trace;
pub mod walk_check;
