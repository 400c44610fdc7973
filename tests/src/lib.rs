//! What crosses crates: oracles, golden outputs, end to end under Wine.
//!
//! * [`oracle`]: emulator truth for the unwinders.
//! * [`weights`]: stk's profile beside that of Linux' own sampler.
//! * [`wine`]: Windows programs under Wine, and inject.exe recording them.
//! * [`pe`]: what a built DLL imports, exports and carries.
//! * [`peers`]: what other readers say of a PDB, settled by its records.
//! * [`recorded`]: a trace as the format's own reader sees it, without stk's analysis.
//! * [`schema`]: whether JSON follows the schemas in schema/.
//! * [`stk`]: the host's `stk` and what it writes.
//! * [`symbols`]: what a PDB's records say of every address, without the index.

pub mod oracle;
pub mod pe;
pub mod peers;
pub mod recorded;
pub mod schema;
pub mod stk;
pub mod symbols;
pub mod weights;
pub mod wine;
