//! What crosses crates: oracles, golden outputs, end to end under Wine.
//!
//! Without the feature `analysis` there is only what end-to-end tests of the recorder need; they
//! then build in a minute, also for Windows.
//!
//! * [`arrows`]: which module of a crate uses which.
//! * `oracle`: emulator truth for the unwinders.
//! * [`wine`]: Windows programs, under Wine or natively, and inject.exe recording them.
//! * `peers`: what other readers say of a PDB, settled by its records.
//! * [`hostile`]: traces that a hostile hand would write, and limits to run stk under.
//! * [`pe`]: what a built DLL imports, exports and carries.
//! * [`weights`]: stk's profile beside that of Linux' own sampler.
//! * [`recorded`]: a trace as the format's own reader sees it, without stk's analysis.
//! * [`schema`]: whether JSON follows the schemas in schema/.
//! * [`stk`]: the host's `stk` and what it writes.

pub mod arrows;
pub mod hostile;
#[cfg(feature = "analysis")]
pub mod oracle;
pub mod pe;
#[cfg(feature = "analysis")]
pub mod peers;
pub mod recorded;
pub mod schema;
pub mod stk;
pub mod weights;
pub mod wine;
