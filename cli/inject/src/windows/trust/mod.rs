//! What the system says of files and users.
//!
//! * [`local`]: the real path of an open file, and whether it is on this machine.
//! * [`signature`]: signatures of files.
//! * [`token`]: access tokens, and which files they allow a process to read.

pub(crate) mod local;
pub(crate) mod signature;
pub(crate) mod token;
