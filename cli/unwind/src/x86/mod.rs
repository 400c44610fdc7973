//! 32-bit x86: the PDB's FrameData and FPO, the code itself, chained frame pointers.
//!
//! Windows has no unwind tables for x86 in its images. It has FrameData programs ("New FPO") and
//! FPO records in the PDB, which are valid in function bodies but not in epilogues, nor while
//! arguments are being pushed. The code gives everything if it can be followed to the function's
//! return. Code of .NET has GCInfo, whose header gives the frame of a method's body.
//! Functions that keep a frame pointer form a chain, which is followed where the function's first
//! instructions set ebp up, or are not known. Each caller's [`Trust`](crate::Trust) says which of
//! these methods found it.

mod explain;
mod facts;
mod gc_info;
mod layout;
mod managed;
mod program;
mod prologue;
mod registers;
mod rule;
mod step;
mod tables;

pub(crate) use explain::explain;
pub(crate) use facts::facts;
pub(crate) use gc_info::GcHeader;
pub(crate) use managed::{FUNCTION_BYTES, functions, method};
pub use registers::{EBP, EBX, EDI, ESI, ESP, X86Registers};
pub(crate) use rule::X86Rule;
pub(crate) use step::{X86Machine, X86State};
pub use tables::{Fpo, FrameData, X86Tables};
