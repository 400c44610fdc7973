//! A frame's .xdata and rule in words.

use std::fmt::Write;

use super::info;
use super::registers::NONVOLATILE;
use super::rule::{self, Arm64FullRule, Arm64Slot, Caller};
use crate::Trust;
use crate::engine::CodeAddress;
use crate::explanation::{Explanation, fault, sum, word};

pub(crate) fn explain(place: &CodeAddress<'_>) -> Explanation {
    let inside = place.rva.wrapping_sub(place.position.back());
    let record = match info::find(place.image, inside) {
        Ok(Some((function, end))) => {
            let begin = function.begin;
            match function.unwind() {
                info::Unwind::Full { rva } => format!(".xdata at {rva:#x} of function {begin:#x}..{end:#x}"),
                info::Unwind::Packed { data, fragment } => {
                    let of = if fragment { "fragment" } else { "function" };
                    format!("packed unwind data {data:#010x} of {of} {begin:#x}..{end:#x}")
                }
            }
        }
        Ok(None) => "no record of the exception directory covers the address".to_owned(),
        Err(_) => "the exception directory or .xdata is not known or damaged".to_owned(),
    };
    let rule = match rule::compile(place) {
        Ok(full) if full.trust == Trust::Leaf => "leaf; return address in lr".to_owned(),
        Ok(full) => effect(&full),
        Err(error) => fault(error),
    };
    Explanation { record, rule }
}

/// Where the caller's registers lie.
fn effect(full: &Arm64FullRule) -> String {
    let base = |slot: Arm64Slot| if slot.from_fp { "fp" } else { "sp" };
    let mut text = format!("caller's sp = {}", sum(base(full.sp), full.sp.offset));
    text.push_str(match full.caller {
        Caller::Lr => ", return address in lr",
        Caller::MachineFrame => ", whence sp and pc of the machine frame",
        Caller::Context => ", whence the CONTEXT",
    });
    if full.signed {
        text.push_str(" (signed)");
    }
    for n in 0..NONVOLATILE {
        if let Some(slot) = full.saved[n] {
            let register = match n {
                10 => "fp".to_owned(),
                11 => "lr".to_owned(),
                0..10 => format!("x{}", n + 19),
                _ => format!("d{}", n - 12 + 8),
            };
            let _ = write!(text, ", {register} at {}", word(base(slot), slot.offset));
        }
    }
    text
}
