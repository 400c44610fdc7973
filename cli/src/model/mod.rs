//! What several stages share: what an image is, what holds an address, names and identities of
//! files, reads of bytes. Uses nothing else of the crate.

pub(crate) mod bytes;
mod holder;
mod image;
mod names;

pub use holder::Holder;
pub use image::{Image, ImageId};
pub use names::{file_name, image_id, pdb_id, shortened};

/// What stands for a module's name in outputs where code is in none since it was made at run time.
pub const DYNAMIC_CODE: &str = "[dynamic code]";

/// The walker's name for an architecture.
pub fn arch(arch: stk_schema::Arch) -> stk_unwind::Arch {
    match arch {
        stk_schema::Arch::X64 => stk_unwind::Arch::X64,
        stk_schema::Arch::Arm64 => stk_unwind::Arch::Arm64,
        stk_schema::Arch::X86 => stk_unwind::Arch::X86,
    }
}

/// The recorded name for an architecture of the walker; `None`: no trace has it.
pub fn recorded_arch(arch: stk_unwind::Arch) -> Option<stk_schema::Arch> {
    match arch {
        stk_unwind::Arch::X64 => Some(stk_schema::Arch::X64),
        stk_unwind::Arch::Arm64 => Some(stk_schema::Arch::Arm64),
        stk_unwind::Arch::X86 => Some(stk_schema::Arch::X86),
        _ => None,
    }
}
