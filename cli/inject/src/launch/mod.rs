//! Programs that inject starts.
//!
//! * [`readiness`]: whether a process that inject has started is initialised.

pub(crate) mod readiness;
