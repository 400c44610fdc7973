//! Shared code of the fuzz targets: for the unwinder an image, registers and a stack from arbitrary
//! bytes, and the checks of every walk; for symbols real files with arbitrary bytes overwritten;
//! for commands real traces that are changed and get correct checksums.

pub mod command;
pub mod format;
pub mod mutated;
pub mod patch;
pub mod unwind;
