//! x86-64: UNWIND_INFO, and the code itself for epilogues.
//!
//! Sources: "x64 exception handling" and "x64 prolog and epilog" of the MSVC documentation; version
//! 2 of UNWIND_INFO from the epilogue codes that MSVC (`/d2epilogunwind`) and LLVM emit.

mod codes;
mod explain;
mod facts;
mod forms;
mod info;
mod lazy;
mod registers;
mod rule;
mod run;
mod step;

pub(crate) use explain::explain;
pub(crate) use facts::facts;
pub(crate) use forms::X64Rule;
pub(crate) use lazy::{X64LazyMachine, X64State, X64Step};
pub use registers::{R10, RBP, RBX, RDI, RSI, RSP, X64Registers};
pub(crate) use rule::function_range;
pub(crate) use step::X64Machine;
