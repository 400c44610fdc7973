//! What the record of a frame's function says of the frame, in numbers.

use crate::frame::Frame;
use crate::frame_facts::FrameFacts;
use crate::input::Modules;
use crate::{Arch, x64, x86};

/// What the record of a frame's function says; `None` without a record that can be read, and of
/// arm64.
pub fn facts<M: Modules>(modules: &M, frame: &Frame) -> Option<FrameFacts> {
    // A return address lies behind the call, so look up one byte lower.
    let back = u32::from(!frame.trust.is_exact());
    let found = modules.find(frame.address.wrapping_sub(back.into()))?;
    let inside = frame.rva.wrapping_sub(back);
    match found.image.arch() {
        Arch::X64 => x64::facts(found.image, inside),
        Arch::X86 => x86::facts(found.image, inside),
        Arch::Arm64 => None,
    }
}
