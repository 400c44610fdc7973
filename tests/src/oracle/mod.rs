//! Unwinding truth from a processor emulator, and the check of the unwinder against it.
//!
//! The layouts are those that the emulator scripts write: one header, then records of registers, the true caller
//! and stack bytes; little-endian, zstd.

mod image;
mod layout;
mod score;

pub use image::{Image, Known, load as load_image};
pub use layout::{Header, Record, States, Truth, parse, read};
pub use score::{Score, Wrong, score};
