//! The module or code region that holds an address, and its number for the walker.

use stk_unwind::ModuleId;

/// The module or code region that holds an address. The walker knows it by a [`ModuleId`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CodeOwner {
    /// A module: index in the timeline's modules.
    Module(u32),
    /// A dynamic code region: index in the timeline's code.
    Code(u32),
}

/// Distinguishes code regions from modules in a [`ModuleId`]. A trace has fewer events than this.
const CODE: u32 = 1 << 31;

impl CodeOwner {
    /// The holder with this id.
    pub fn of(id: ModuleId) -> CodeOwner {
        if id.0 & CODE == 0 { CodeOwner::Module(id.0) } else { CodeOwner::Code(id.0 & !CODE) }
    }

    pub fn id(self) -> ModuleId {
        match self {
            CodeOwner::Module(module) => ModuleId(module),
            CodeOwner::Code(region) => ModuleId(region | CODE),
        }
    }
}
