//! Shared code of the fuzz targets: for the unwinder an image, registers and a stack from arbitrary
//! bytes, and the checks of every walk; for symbols real files with arbitrary bytes overwritten;
//! for commands real traces that are changed and get correct checksums; for datasets, followers and
//! records files of stk with changes.

pub mod command;
#[cfg(feature = "datasets")]
pub mod dataset;
pub mod follow;
pub mod format;
pub mod mutated;
pub mod patch;
pub mod records;
pub mod unwind;
