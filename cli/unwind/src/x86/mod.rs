//! 32-bit x86: the PDB's FrameData and FPO, the code itself, chained frame pointers.
//!
//! Windows has no unwind tables for x86 in its images. What there is: FrameData programs ("New
//! FPO") and FPO records in the PDB, which hold for function bodies but not for epilogues, nor
//! while arguments are being pushed; the code, which says all if it can be followed to the
//! function's return; and, for what keeps one, the chain of frame pointers. Each caller says by its
//! [`Trust`](crate::Trust) which of them it was found by.

mod explain;
mod program;
mod registers;
mod rule;
mod step;
mod tables;

pub(crate) use explain::explain;
pub use registers::{EBP, EBX, EDI, ESI, ESP, X86Registers};
pub(crate) use rule::X86Rule;
pub(crate) use step::{X86Machine, X86State};
pub use tables::{Fpo, FrameData, X86Tables};
