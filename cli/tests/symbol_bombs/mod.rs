//! Small symbol files that need much time or memory to read.

pub(crate) mod image;
pub(crate) mod pdb;

/// A bomb: its name, and the function that makes it.
pub(crate) type Bomb = (&'static str, fn() -> Vec<u8>);
