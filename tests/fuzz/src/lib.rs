//! What the fuzz targets of the unwinder share: an image, registers and a stack from arbitrary bytes, and what must
//! hold of every walk.

pub mod unwind;
