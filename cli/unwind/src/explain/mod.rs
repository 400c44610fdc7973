//! Says in words which record describes a frame's function and by which rule its caller was found.
//!
//! [`explain`] takes a frame of a walk, the walk's sample and its modules, and returns an
//! [`Explanation`]. It compiles the rule again from the same tables and code, so the walk itself
//! need not record it.

use crate::engine::{CodeAddress, Position};
use crate::explanation::{Explanation, no_rule};
use crate::input::{Modules, Sample};
use crate::{Arch, Frame, Trust, arm64, x64, x86};

/// Explains the step from `frame` to `caller`, the next frame of the same walk (`None`: the walk
/// ended with `frame`). Allocates and compiles each time, so it is too slow for many samples.
pub fn explain<M: Modules>(
    modules: &M,
    sample: &Sample<'_>,
    frame: &Frame,
    caller: Option<&Frame>,
) -> Explanation {
    let position = if frame.trust.is_exact() { Position::Context } else { Position::Caller };
    let arch = sample.registers.arch();
    let found_by = caller.map(|caller| caller.trust);
    let found = modules.find(frame.address.wrapping_sub(u64::from(position.back())));
    let mut explanation = match found {
        None => outside(arch, position),
        Some(found) if found.image.arch() != arch => {
            Explanation { record: "the module's code is of another architecture".into(), rule: no_rule() }
        }
        Some(found) => {
            let code = if frame.trust == Trust::Context { sample.code_at_ip } else { None };
            let place = CodeAddress { image: found.image, rva: frame.rva, position, code };
            match arch {
                Arch::X64 => x64::explain(&place),
                Arch::Arm64 => arm64::explain(&place),
                Arch::X86 => x86::explain(&place, found_by),
            }
        }
    };
    let instead = match found_by {
        Some(Trust::Scan) => "scan: the stack was searched upward for a word behind a call",
        Some(Trust::ExplicitFrame | Trust::ExplicitContext) => {
            "explicit Frame: the runtime's own record on the stack says where its code continues"
        }
        _ => return explanation,
    };
    explanation.rule = format!("{} (led nowhere); {instead}", explanation.rule);
    explanation
}

/// A frame whose address no module holds.
fn outside(arch: Arch, position: Position) -> Explanation {
    let record = "no known module holds the address".to_owned();
    let rule = match (position, arch) {
        (Position::Caller, _) => no_rule(),
        (Position::Context, Arch::X64) => "taken to be a leaf: return address at [rsp]".to_owned(),
        (Position::Context, Arch::X86) => "taken to be a leaf: return address at [esp]".to_owned(),
        (Position::Context, Arch::Arm64) => "taken to be a leaf: return address in lr".to_owned(),
    };
    Explanation { record, rule }
}

#[cfg(test)]
mod tests;
