//! Nothing but its build script, which builds agent.dll on Windows.
//!
//! agent.dll does without `std`; stk.exe and inject.exe do not. In one cargo call they would share
//! their dependencies' features, `std` among them, and `std` would come into the agent, with
//! imports that a target must not be made to load. So `cargo build` builds this package, whose
//! build script builds the agent in a call of its own and puts it beside the programs.
#![no_std]
