//! Contains only its build script, which builds agent.dll on Windows.
//!
//! agent.dll is built without `std`; stk.exe and inject.exe use it. In one cargo call they would
//! share their dependencies' features, including `std`. That would link `std` into the agent, with
//! imports that a target must not be made to load. So `cargo build` builds this package, and its
//! build script builds the agent in a separate call and puts it beside the programs.
#![no_std]
