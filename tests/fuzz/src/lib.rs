//! What fuzz targets share: for the unwinder an image, registers and a stack from arbitrary bytes,
//! and what must hold of every walk; for symbols real files with arbitrary places overwritten; for
//! commands real traces changed behind right checksums.

pub mod command;
pub mod patch;
pub mod unwind;
