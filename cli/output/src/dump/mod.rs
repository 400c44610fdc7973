//! Stacks at a moment, or those of captures, as `stk dump` prints them.
//!
//! ```text
//! stack      a thread's stack, walked, named and folded          Stack, Walked
//! choose     which stacks, by state and frames, and which frames
//! text       the styles for people: `k`, `plain` and `merged`
//! clrstack   the style of the .NET debugger extension: managed frames, explicit Frames
//! json       the style for programs
//! print      names stacks and prints them in a style
//! captures   the stacks that the program asked for               events -> Stack
//! modules    what was loaded at a moment
//! at         the code at an address, at a moment or at any       address -> names
//! sources    where the names of a trace come from
//! ```

pub mod at;
pub mod captures;
mod choose;
mod clrstack;
mod json;
mod modules;
pub mod print;
pub mod sources;
mod stack;
#[cfg(test)]
mod tests;
mod text;

pub use stack::DumpInputs;
