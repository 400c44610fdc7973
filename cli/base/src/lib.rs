//! What the packages of `stk` share: how files are opened and outputs replaced, limits, figures for
//! people, and the model: images, names, bytes.
//!
//! Takes paths and bytes. Returns mapped files, texts and numbers. Knows no trace and no symbol.
//! Each module uses only those above it, which `tests/tests/host/architecture.rs` checks by this
//! table:
//!
//! ```text
//! faults     mapped files that change while they are read
//! files      opens files; what outputs replace, and what is below their folders
//! map        files in memory
//! interrupt  Ctrl-C, temporary files
//! panics     a panic as the failure of one piece of work
//! stdout     whether there is a standard output
//! deadline   a limit of time for one piece of work
//! text       figures for people
//! model      what several stages share                         Image, Holder, names, bytes
//! ```
//!
//! ```
//! use stk_base::deadline::Deadline;
//! use stk_base::text::{count, size};
//!
//! assert_eq!(count(3_172), "3,172");
//! assert_eq!(size(328_981), "321.3 KiB");
//! assert!(Deadline::NEVER.check().is_ok());
//! ```
#![deny(unsafe_code)]
// cli/clippy.toml says what is meant. Tests, and the programs for Windows, open files as they like.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod deadline;
#[cfg(unix)]
pub mod faults;
pub mod files;
pub mod interrupt;
pub mod map;
pub mod model;
pub mod panics;
pub mod stdout;
pub mod text;
