//! Small symbol files that need much time or memory to read.

pub(crate) mod image;
pub(crate) mod pdb;
