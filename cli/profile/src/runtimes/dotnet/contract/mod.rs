//! .NET's data contract "StackWalk", version 1: walks a managed thread through its *explicit
//! Frames*.
//!
//! Wherever managed code calls native code, the runtime puts an object on the stack, a Frame with a
//! capital F, and links these Frames per thread. Each kind of Frame holds, in its own way, the
//! registers of the managed code that made the call. A walk can therefore continue where unwind
//! data ends, and its result can be checked against a native walk.
//!
//! Input: the [`Descriptor`] that the runtime published (recorded as RUNTIME_INFO), [`Memory`]
//! (captured stack bytes, MEMORY fragments, images) and a [`Code`] that knows which addresses are
//! managed and how to unwind them. Output: [`StackWalk`], an iterator of [`StackFrame`]s, and
//! [`Contract`] with the contract's other functions.
//!
//! Source: the .NET design documents `datacontracts/StackWalk.md`, `Thread.md`,
//! `RuntimeTypeSystem.md` and `data_descriptor.md`. Not implemented, and refused by name: arm32,
//! decoding GCInfo (x86 managed code), the FaultingExceptionFrame of Windows x86, interpreter
//! Frames, and FuncEvalFrames, whose context is in memory of the debugger that no trace holds.
//! For the same reason ReportInteropMD is left out: a stub's MethodDesc is in no trace.

mod chain;
mod context;
mod descriptor;
mod memory;
mod method;
mod update;
mod walk;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use chain::{Chain, ExplicitFrame, ExplicitKind};
pub use context::Context;
pub use descriptor::{Descriptor, DescriptorError, TypeInfo};
pub use memory::{Fragments, Memory};
pub use method::MethodRef;
pub use walk::{Code, Contract, ContractError, FrameState, StackFrame, StackWalk};
