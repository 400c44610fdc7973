//! Other processes.
//!
//! * [`access`]: access to another process's memory that the system refuses for a moment.
//! * [`name_pattern`]: names of programs, plain or as regular expressions.

pub(crate) mod access;
pub(crate) mod name_pattern;
