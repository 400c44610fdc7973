//! What crosses crates: oracles, golden outputs, end to end under Wine.

pub mod oracle;
