//! Checks the unwinder against true states from a processor emulator.
//!
//! The emulator scripts write the layouts: one header, then records of registers, the true caller
//! and stack bytes; little-endian, zstd.

mod image;
mod layout;
pub mod piece;
mod score;

pub use image::{Image, Known, Parts, load as load_image, parts as take_apart};
pub use layout::{Header, Record, States, Truth, decompress, parse, read};
pub use score::{Score, Walk, Wrong, at, score, walks};
