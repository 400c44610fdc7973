//! The module or code region that holds an address, and its number for the walker.

use stk_unwind::ModuleId;

/// The module or code region that holds an address. The walker knows it by a [`ModuleId`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holder {
    /// A module: index in the timeline's modules.
    Module(u32),
    /// A dynamic code region: index in the timeline's code.
    Code(u32),
}

/// Distinguishes code regions from modules in a [`ModuleId`]. A trace has fewer events than this.
const CODE: u32 = 1 << 31;

impl Holder {
    /// The holder with this id.
    pub fn of(id: ModuleId) -> Holder {
        if id.0 & CODE == 0 { Holder::Module(id.0) } else { Holder::Code(id.0 & !CODE) }
    }

    pub fn id(self) -> ModuleId {
        match self {
            Holder::Module(module) => ModuleId(module),
            Holder::Code(region) => ModuleId(region | CODE),
        }
    }
}
