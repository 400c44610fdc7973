//! AArch64: packed and full `.xdata`.
//!
//! Source: "ARM64 exception handling" of the MSVC documentation. Every unwind code stands for one
//! instruction, so the unwinder recognises prologues and epilogues by counting and reads no code.

mod explain;
mod info;
mod registers;
mod rule;
mod step;

pub(crate) use explain::explain;
pub use registers::Arm64Registers;
pub(crate) use rule::{Arm64Rule, function_range};
pub(crate) use step::Arm64Machine;
