//! From unwind codes to a rule, without looking at code.

use super::RSP;
use super::forms::{X64FullRule, X64Slot};
use super::info::{self, RuntimeFunction, UnwindInfo, X64Operation};
use super::registers::nonvolatile;
use crate::frame::Fault;
use crate::{ImageTables, Trust};

/// The frame at the start of `rva`'s instruction as the unwind data has it, without looking at
/// code.
pub(crate) fn at_target(image: &ImageTables, rva: u32) -> Result<X64FullRule, Fault> {
    match info::find(image, rva)? {
        Some(function) => from_codes(image, &function, rva, Trust::UnwindInfo),
        None => Ok(X64FullRule::empty(Trust::Leaf)),
    }
}

/// The rule when the code at the instruction pointer is not known. Version 2 describes epilogues
/// even so.
pub(crate) fn without_code(
    image: &ImageTables,
    function: &RuntimeFunction,
    rva: u32,
) -> Result<X64FullRule, Fault> {
    let info = UnwindInfo::parse(image, function.unwind)?;
    let done = if info.chained.is_none() { info.in_epilogue(function, rva) } else { None };
    let Some(done) = done else {
        return from_codes(image, function, rva, Trust::UnwindInfoNoCode);
    };
    // The described epilogue is pops in reverse order of the pushes, then the return. A pop is as
    // long as its push: one byte, or two for r8 to r15. Registers saved by moves have been restored
    // before.
    let mut full = X64FullRule::empty(Trust::UnwindInfo);
    let mut rsp = full.return_address;
    let mut at = 0;
    for code in info.codes() {
        let X64Operation::Push { register } = code?.operation else { continue };
        if at >= done {
            if let Some(n) = nonvolatile(register) {
                full.saved[n] = Some(rsp);
            }
            rsp = rsp.plus(8);
        }
        at += if register < 8 { 1 } else { 2 };
    }
    full.return_address = rsp;
    Ok(full)
}

/// Undoes the prologue up to `rva`, by the unwind codes of `function` and of the functions that it
/// continues.
pub(crate) fn from_codes(
    image: &ImageTables,
    function: &RuntimeFunction,
    rva: u32,
    trust: Trust,
) -> Result<X64FullRule, Fault> {
    let mut full = X64FullRule::empty(trust);
    let mut rsp = X64Slot { register: RSP as u8, offset: 0 };
    let mut frame_base = rsp;
    let mut function = *function;
    let mut done = rva.wrapping_sub(function.begin);
    for _ in 0..info::MAX_CHAIN {
        let info = UnwindInfo::parse(image, function.unwind)?;
        if done >= u32::from(info.prologue) {
            done = u32::MAX;
        }
        if info.frame_register != 0 && frame_register_is_set(&info, done)? {
            frame_base = X64Slot { register: info.frame_register, offset: -i64::from(info.frame_offset) };
        }
        for code in info.codes() {
            let code = code?;
            if u32::from(code.offset) > done {
                continue;
            }
            match code.operation {
                X64Operation::Push { register } => {
                    if let Some(n) = nonvolatile(register) {
                        full.saved[n] = Some(rsp);
                    }
                    rsp = rsp.plus(8);
                }
                X64Operation::Alloc { size } => rsp = rsp.plus(i64::from(size)),
                X64Operation::SetFrameRegister => rsp = frame_base,
                X64Operation::Save { register, offset } => {
                    if let Some(n) = nonvolatile(register) {
                        full.saved[n] = Some(frame_base.plus(i64::from(offset)));
                    }
                }
                X64Operation::MachineFrame { error_code } => {
                    full.machine_frame = true;
                    full.trust = Trust::MachineFrame;
                    full.return_address = rsp.plus(if error_code { 8 } else { 0 });
                    return Ok(full);
                }
                X64Operation::SaveXmm | X64Operation::Epilogue => {}
            }
        }
        match info.chained {
            Some(next) => function = next,
            None => {
                full.return_address = rsp;
                return Ok(full);
            }
        }
        // A function that a fragment continues has completed its prologue.
        done = u32::MAX;
    }
    Err(Fault::BadUnwindInfo)
}

/// Whether the frame register holds the frame's base yet.
fn frame_register_is_set(info: &UnwindInfo<'_>, done: u32) -> Result<bool, Fault> {
    if done == u32::MAX || info.chained.is_some() {
        return Ok(true);
    }
    for code in info.codes() {
        let code = code?;
        if code.operation == X64Operation::SetFrameRegister {
            return Ok(u32::from(code.offset) <= done);
        }
    }
    Ok(false)
}
