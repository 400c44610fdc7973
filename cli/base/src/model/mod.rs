//! Types and functions that several stages share: images, holders of addresses, names and
//! identities of files, what functions are called in every build, and reads of bytes. Uses no other
//! module of the crate.

pub mod bytes;
mod function;
mod holder;
mod image;
mod names;
mod starts;

pub use function::{function_key, stable_name};
pub use holder::CodeOwner;
pub use image::{Image, ImageId};
pub use names::{file_name, image_id, parse_image_id, parse_pdb_id, pdb_id, shortened};
pub use starts::{THREAD_STARTS, is_thread_start};

/// Shown instead of a module's name for code that was made at run time and so is in no module.
pub const DYNAMIC_CODE: &str = "[dynamic code]";

/// The walker's value for an architecture.
pub fn arch(arch: stk_schema::Arch) -> stk_unwind::Arch {
    match arch {
        stk_schema::Arch::X64 => stk_unwind::Arch::X64,
        stk_schema::Arch::Arm64 => stk_unwind::Arch::Arm64,
        stk_schema::Arch::X86 => stk_unwind::Arch::X86,
    }
}

/// The recorded value for an architecture of the walker; `None` if traces cannot have it.
pub fn recorded_arch(arch: stk_unwind::Arch) -> Option<stk_schema::Arch> {
    match arch {
        stk_unwind::Arch::X64 => Some(stk_schema::Arch::X64),
        stk_unwind::Arch::Arm64 => Some(stk_schema::Arch::Arm64),
        stk_unwind::Arch::X86 => Some(stk_schema::Arch::X86),
        _ => None,
    }
}
