//! The tests that need no Windows program and cross packages: the rules of the source tree, hostile
//! files under limits, outputs read back by other readers, oracles.

mod architecture;
mod documents;
mod hostile;
mod hostile_symbols;
mod lints_agent;
mod lints_inject;
mod managed_lines;
mod outputs;
mod ratchet;
mod symbols;
mod unwind_truth;
