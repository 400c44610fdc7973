//! The library behind `stk`: opens `.stk` traces, rebuilds module timelines, unwinds, symbolizes and writes profiles.
//!
//! See DESIGN in the repository's README for the way of the data. One module per concern:
//! [`trace`] opens a file and reads what was loaded where and when, [`image`] is what is known of a module, [`profile`] is
//! what a conversion produces, [`symbols`] names its frames, [`runtimes`] those in code that a language runtime made,
//! [`output`] has one writer per format, [`walks`] compares walks with the system's own, [`commands`] is the
//! command line.
#![deny(unsafe_code)]
// Without the program some of what its commands call is called by nobody.
#![cfg_attr(not(feature = "program"), allow(dead_code, unused_imports))]

#[cfg(feature = "program")]
pub mod commands;
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
