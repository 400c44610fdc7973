//! Unwinding truth from a processor emulator, and the check of the unwinder against it.
//!
//! The layouts are those that the emulator scripts write: one header, then records of registers,
//! the true caller and stack bytes; little-endian, zstd.

mod image;
mod layout;
pub mod piece;
mod score;

pub use image::{Image, Known, Parts, load as load_image, parts as take_apart};
pub use layout::{Header, Record, States, Truth, decompress, parse, read};
pub use score::{Score, Wrong, score};
