//! One recording, as far as no system is needed to decide.
//!
//! * [`delivery`]: where a trace is written, and where it is moved to.
//! * [`guard`]: when to resume a thread that a dead recorder holds.
//! * [`label`]: labels that the user gives a trace.
//! * [`old_names`]: names for traces that give way to new ones.
//! * [`options`]: options that the agent gets as texts.
//! * [`pattern`]: output names such as `%n-%p-%t.stk`.
//! * [`stall`]: whether a recording has come to a standstill.

pub(crate) mod delivery;
pub(crate) mod guard;
pub(crate) mod label;
pub(crate) mod old_names;
pub(crate) mod options;
pub(crate) mod pattern;
pub(crate) mod stall;
