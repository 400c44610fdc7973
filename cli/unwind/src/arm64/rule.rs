//! From unwind data to a rule: where the caller's registers lie.

use std::ops::Range;

use super::info::{self, Arm64Operation};
use super::registers::{FP, LR, NONVOLATILE, Nonvolatile, slot_of};
use crate::engine::{CodeAddress, Position};
use crate::frame::Fault;
use crate::{ImageTables, Trust};

/// An address relative to sp or fp of the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arm64Slot {
    pub(crate) from_fp: bool,
    pub(crate) offset: i64,
}

impl Arm64Slot {
    fn plus(self, bytes: u32) -> Arm64Slot {
        Arm64Slot { offset: self.offset + i64::from(bytes), ..self }
    }
}

/// How the step gets the caller's program counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// lr, as restored.
    Lr,
    /// sp and pc lie at the sp reached.
    MachineFrame,
    /// A CONTEXT lies at the sp reached.
    Context,
}

/// The layout of a function's frame at one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arm64FullRule {
    /// The caller's stack pointer.
    pub(crate) sp: Arm64Slot,
    /// Where the nonvolatile registers lie.
    pub(crate) saved: [Option<Arm64Slot>; NONVOLATILE],
    pub(crate) caller: Caller,
    /// lr carries a pointer authentication code.
    pub(crate) signed: bool,
    /// The caller's address is that of an instruction, not a return address.
    pub(crate) exact: bool,
    pub(crate) trust: Trust,
    pub(crate) thread_start: bool,
}

/// The small form of [`Arm64FullRule`]: everything relative to one register, in words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Arm64Rule {
    pub(crate) sp: i32,
    /// Bit n: nonvolatile register n is saved.
    pub(crate) saved: u32,
    pub(crate) flags: u8,
    /// Words from the caller's stack pointer.
    pub(crate) slots: [i16; NONVOLATILE],
}

pub(crate) const THREAD_START: u8 = 1;
pub(crate) const FROM_FP: u8 = 2;
pub(crate) const SIGNED: u8 = 4;
pub(crate) const LEAF: u8 = 8;

impl Arm64FullRule {
    pub(crate) fn leaf(trust: Trust) -> Arm64FullRule {
        Arm64FullRule {
            sp: Arm64Slot { from_fp: false, offset: 0 },
            saved: [None; NONVOLATILE],
            caller: Caller::Lr,
            signed: false,
            exact: false,
            trust,
            thread_start: false,
        }
    }
}

/// The rule at a place.
pub(crate) fn compile(place: &CodeAddress<'_>) -> Result<Arm64FullRule, Fault> {
    let inside = place.rva.wrapping_sub(place.position.back());
    let Some((function, _)) = info::find(place.image, inside)? else {
        if place.position == Position::Caller {
            return Err(Fault::NoFunction);
        }
        let thread_start = place.image.is_thread_start(place.rva);
        return Ok(Arm64FullRule { thread_start, ..Arm64FullRule::leaf(Trust::Leaf) });
    };
    let sequence = function.sequence(place.image, place.rva.wrapping_sub(function.begin))?;
    let mut full = undo(sequence.operations())?;
    full.thread_start = place.image.is_thread_start(function.begin);
    if place.position == Position::Caller && full.caller == Caller::Lr && full.saved[LR - 19].is_none() {
        // A function that has called another must have saved lr.
        return Err(Fault::BadUnwindInfo);
    }
    Ok(full)
}

/// Carries out the operations symbolically.
fn undo(operations: &[Arm64Operation]) -> Result<Arm64FullRule, Fault> {
    let mut full = Arm64FullRule::leaf(Trust::UnwindInfo);
    let mut more_pairs = 0;
    for &operation in operations {
        let pairs = std::mem::take(&mut more_pairs);
        match operation {
            Arm64Operation::Alloc { size } => full.sp = full.sp.plus(size),
            Arm64Operation::Save { first, count, offset, stride, release } => {
                let at = full.sp.plus(offset);
                for n in 0..count.saturating_add(2 * pairs) {
                    save(&mut full, first.after(n), at.plus(u32::from(n) * stride));
                }
                full.sp = full.sp.plus(release);
            }
            Arm64Operation::SaveWithLr { first, offset, release } => {
                let at = full.sp.plus(offset);
                save(&mut full, first, at);
                save(&mut full, Nonvolatile::X(LR as u8), at.plus(8));
                full.sp = full.sp.plus(release);
            }
            Arm64Operation::SetSp { offset } => {
                if full.saved[FP - 19].is_some() {
                    // fp already holds the caller's value.
                    return Err(Fault::BadUnwindInfo);
                }
                full.sp = Arm64Slot { from_fp: true, offset: -i64::from(offset) };
            }
            Arm64Operation::SaveNext if pairs < 9 => more_pairs = pairs + 1,
            Arm64Operation::SaveNext => return Err(Fault::BadUnwindInfo),
            Arm64Operation::SignedLr => full.signed = true,
            Arm64Operation::ClearUnwoundToCall => full.exact = true,
            Arm64Operation::MachineFrame | Arm64Operation::Context => {
                full.caller = match operation {
                    Arm64Operation::Context => Caller::Context,
                    _ => Caller::MachineFrame,
                };
                full.exact = true;
                full.trust = Trust::MachineFrame;
                return Ok(full);
            }
            Arm64Operation::Nop | Arm64Operation::EndOfScope | Arm64Operation::End => {}
        }
    }
    Ok(full)
}

fn save(full: &mut Arm64FullRule, register: Nonvolatile, at: Arm64Slot) {
    if let Some(n) = slot_of(register) {
        full.saved[n] = Some(at);
    }
}

/// The rule's small form, if it has one.
pub(crate) fn pack(full: &Arm64FullRule) -> Option<Arm64Rule> {
    if full.caller != Caller::Lr || full.exact {
        return None;
    }
    let flag = |on: bool, bit: u8| if on { bit } else { 0 };
    let mut rule = Arm64Rule {
        sp: i32::try_from(full.sp.offset).ok()?,
        flags: flag(full.thread_start, THREAD_START)
            | flag(full.sp.from_fp, FROM_FP)
            | flag(full.signed, SIGNED)
            | flag(full.trust == Trust::Leaf, LEAF),
        ..Arm64Rule::default()
    };
    for (n, slot) in full.saved.iter().enumerate() {
        let Some(slot) = slot else { continue };
        let from_sp = slot.offset - full.sp.offset;
        if slot.from_fp != full.sp.from_fp || from_sp % 8 != 0 {
            return None;
        }
        rule.slots[n] = i16::try_from(from_sp / 8).ok()?;
        rule.saved |= 1 << n;
    }
    Some(rule)
}

/// The extent of the function or fragment that holds `rva`.
pub(crate) fn function_range(image: &ImageTables, rva: u32) -> Option<Range<u32>> {
    let (function, end) = info::find(image, rva).ok()??;
    Some(function.begin..end)
}
