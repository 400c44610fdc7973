//! Small symbol files that need much time or memory to read.

pub mod image;
pub mod pdb;

/// A bomb: its name, and the function that makes it.
pub type Bomb = (&'static str, fn() -> Vec<u8>);
