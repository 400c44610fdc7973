//! The library behind `stk`: opens `.stk` traces, rebuilds module timelines, unwinds, symbolizes and writes profiles.
//!
//! See DESIGN in the repository's README for the way of the data. One module per concern:
//! [`profile`] is what a conversion produces, [`output`] has one writer per format.

pub mod map;
pub mod output;
pub mod profile;
pub mod symbols;
