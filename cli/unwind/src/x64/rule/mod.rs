//! From unwind data to a rule: where the return address and the saved registers lie.

use std::ops::Range;

use super::info::{self, RuntimeFunction, UnwindInfo, X64Operation};
use super::registers::{NONVOLATILE, nonvolatile};
use super::run::{self, Run};
use super::{RSP, X64Registers};
use crate::cache::MOST_HINT;
use crate::engine::{Place, Position};
use crate::flow::{self, FlowValue, LOADED, Mode, Start};
use crate::frame::Fault;
use crate::{ImageTables, Trust};

/// An address relative to a register of the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct X64Slot {
    pub(crate) register: u8,
    pub(crate) offset: i64,
}

impl X64Slot {
    pub(crate) fn plus(self, bytes: i64) -> X64Slot {
        X64Slot { offset: self.offset.wrapping_add(bytes), ..self }
    }

    pub(crate) fn address(self, registers: &X64Registers) -> u64 {
        registers.gpr[usize::from(self.register & 15)].wrapping_add(self.offset as u64)
    }

    /// As [`X64Slot::address`], where the register may be the word that the frame keeps
    /// ([`X64FullRule::loaded`]).
    pub(crate) fn address_by(self, registers: &X64Registers, loaded: u64) -> u64 {
        if self.register == LOADED {
            loaded.wrapping_add(self.offset as u64)
        } else {
            self.address(registers)
        }
    }
}

/// The layout of a function's frame at one address, in its full form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct X64FullRule {
    /// Where the return address lies; for a machine frame, the interrupted instruction pointer.
    pub(crate) return_address: X64Slot,
    /// Bytes that the return pops besides the return address (`ret imm16`).
    pub(crate) popped: u32,
    /// The return address is the first word of a machine frame, whose fourth word is the stack
    /// pointer.
    pub(crate) machine_frame: bool,
    /// Where the nonvolatile registers lie, in the order of [`super::registers::NONVOLATILE`].
    pub(crate) saved: [Option<X64Slot>; 8],
    /// Nonvolatile registers whose value another register holds (plus an offset). Only assembler
    /// without unwind data does this.
    pub(crate) moved: [Option<X64Slot>; 8],
    /// The address of a word of the frame to which other places are relative, as the register
    /// [`LOADED`]. Assembler that aligns its stack restores the stack pointer from this word.
    pub(crate) loaded: Option<X64Slot>,
    pub(crate) trust: Trust,
    pub(crate) thread_start: bool,
    /// Assumed to be a leaf, but it may have pushed one register.
    pub(crate) stub: bool,
    /// Its code may change, so the cache must not store the rule.
    pub(crate) volatile: bool,
}

impl X64FullRule {
    /// Nothing is pushed or saved: the state at a function's first instruction, and at each of a
    /// leaf's.
    pub(crate) fn empty(trust: Trust) -> X64FullRule {
        X64FullRule {
            return_address: X64Slot { register: RSP as u8, offset: 0 },
            popped: 0,
            machine_frame: false,
            saved: [None; 8],
            moved: [None; 8],
            loaded: None,
            trust,
            thread_start: false,
            stub: false,
            volatile: false,
        }
    }

    /// Whether the rule depends only on registers that a called function preserves.
    fn survives_a_call(&self) -> bool {
        let mut slots = self.saved.iter().flatten().chain([&self.return_address]);
        slots.all(|slot| slot.register == RSP as u8 || nonvolatile(slot.register).is_some())
    }

    /// Whether the frame holds only its return address.
    pub(crate) fn is_empty(&self) -> bool {
        *self == X64FullRule { thread_start: self.thread_start, ..X64FullRule::empty(self.trust) }
    }
}

/// The small form of [`X64FullRule`]: everything relative to one register, in words, within 256 KB.
/// It consists of whole words, because every step copies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct X64Rule {
    /// From the base register to the stack pointer after the return, in bytes.
    cfa: i64,
    /// From the lowest byte: the base register, which nonvolatile registers are saved (a bit each),
    /// words in use above the stack pointer after the return (saves in the home space), the trust,
    /// whether the function starts threads; and in 16 bits the words that the saved registers reach
    /// below the stack pointer after the return, where the base register is not rsp (by rsp, saves
    /// below the stack pointer are ruled out when the rule is made).
    facts: u64,
    /// Words from the stack pointer after the return to each saved register, 16 bits each.
    slots: [u64; 2],
}

/// The base register of most rules.
const RSP_BASE: u8 = RSP as u8;
/// The trusts that a rule can have.
const TRUSTS: [Trust; 3] = [Trust::UnwindInfo, Trust::UnwindInfoNoCode, Trust::Leaf];

impl X64Rule {
    #[inline(always)]
    pub(crate) fn base(&self) -> u8 {
        self.facts as u8 & 15
    }

    /// Bit n: nonvolatile register n is saved.
    #[inline(always)]
    pub(crate) fn saved(&self) -> u8 {
        (self.facts >> 8) as u8
    }

    /// The end of the saved registers above the stack pointer after the return, in bytes.
    #[inline(always)]
    pub(crate) fn end(&self) -> u64 {
        (self.facts >> 16 & 0xff) * 8
    }

    #[inline(always)]
    pub(crate) fn trust(&self) -> Trust {
        match self.facts >> 24 & 3 {
            0 => TRUSTS[0],
            1 => TRUSTS[1],
            _ => TRUSTS[2],
        }
    }

    #[inline(always)]
    pub(crate) fn starts_thread(&self) -> bool {
        self.facts >> 32 & 1 != 0
    }

    /// The start of the saved registers below the stack pointer after the return, in bytes.
    #[inline(always)]
    pub(crate) fn reach(&self) -> u64 {
        (self.facts >> 40 & 0xffff) * 8
    }

    /// Words from the stack pointer to that after the return; 0 where the base is another register,
    /// or they are many.
    pub(crate) fn hint(&self) -> u16 {
        let words = u16::try_from(self.cfa / 8).unwrap_or(0);
        if self.base() == RSP_BASE && self.cfa % 8 == 0 && words <= MOST_HINT { words } else { 0 }
    }

    /// The stack pointer after the return, from the base register's value.
    #[inline(always)]
    pub(crate) fn cfa(&self, base: u64) -> u64 {
        base.wrapping_add(self.cfa as u64)
    }

    /// Where nonvolatile register `n` lies.
    #[inline(always)]
    pub(crate) fn slot(&self, n: usize, cfa: u64) -> u64 {
        let words = (self.slots[n >> 2 & 1] >> ((n & 3) * 16)) as i16;
        cfa.wrapping_add((i64::from(words) * 8) as u64)
    }
}

/// The rule at a place.
pub(crate) fn compile(place: &Place<'_>) -> Result<X64FullRule, Fault> {
    let image = place.image;
    let inside = place.rva.wrapping_sub(place.position.back());
    let Some(function) = info::find(image, inside)? else {
        return leaf(place);
    };
    let root = info::root(image, function)?;
    let mut full = match place.position {
        _ if UnwindInfo::parse(image, function.unwind)?.is_told_by_its_handler() => {
            told_by_its_handler(place, &function)?
        }
        Position::Caller => {
            let full = from_codes(image, &function, place.rva, Trust::UnwindInfo)?;
            if !full.survives_a_call() {
                return Err(Fault::BadUnwindInfo);
            }
            full
        }
        Position::Context => match run::to_return(place, Some((&function, &root))) {
            Run::Returns(full) => full,
            Run::Stays => match run::before_frame(place).filter(|_| image.is_many()) {
                Some(full) => full,
                None => from_codes(image, &function, place.rva, Trust::UnwindInfo)?,
            },
            Run::Unknown => without_code(image, &function, place.rva)?,
        },
    };
    full.thread_start = image.is_thread_start(root.begin);
    if image.is_interruption(root.begin) {
        full.trust = Trust::MachineFrame;
    }
    full.volatile = image.is_many() && place.position == Position::Context;
    Ok(full)
}

/// The rule's small form, if it has one.
pub(crate) fn pack(full: &X64FullRule) -> Option<X64Rule> {
    if full.machine_frame
        || full.stub
        || full.volatile
        || full.popped != 0
        || full.moved != [None; 8]
        || full.loaded.is_some()
    {
        return None;
    }
    let base = full.return_address.register;
    let cfa = full.return_address.offset.checked_add(8)?;
    let trust = TRUSTS.iter().position(|&trust| trust == full.trust)?;
    let (mut saved, mut above, mut below, mut slots) = (0u8, 0u8, 0u16, [0u64; 2]);
    for (n, slot) in full.saved.iter().enumerate() {
        let Some(slot) = slot else { continue };
        let from_cfa = slot.offset.checked_sub(cfa)?;
        // Below the stack pointer nothing is saved.
        if slot.register != base || from_cfa % 8 != 0 || (base == RSP_BASE && slot.offset < 0) {
            return None;
        }
        let words = i16::try_from(from_cfa / 8).ok()?;
        slots[n >> 2] |= u64::from(words as u16) << ((n & 3) * 16);
        saved |= 1 << n;
        match u16::try_from(words) {
            Ok(words) => above = above.max(u8::try_from(words + 1).ok()?),
            Err(_) if base != RSP_BASE => below = below.max(words.unsigned_abs()),
            Err(_) => {}
        }
    }
    let facts = u64::from(base & 15)
        | u64::from(saved) << 8
        | u64::from(above) << 16
        | (trust as u64) << 24
        | u64::from(full.thread_start) << 32
        | u64::from(below) << 40;
    let rule = X64Rule { cfa: i64::from(i32::try_from(cfa).ok()?), facts, slots };
    Some(rule)
}

/// The extent of the function that holds `rva`. For a function in fragments, the extent of the
/// first one.
pub(crate) fn function_range(image: &ImageTables, rva: u32) -> Option<Range<u32>> {
    let function = info::find(image, rva).ok()??;
    let root = info::root(image, function).ok()?;
    Some(root.begin..root.end)
}

/// The frame at the start of `rva`'s instruction as the unwind data has it, without looking at
/// code.
pub(crate) fn at_target(image: &ImageTables, rva: u32) -> Result<X64FullRule, Fault> {
    match info::find(image, rva)? {
        Some(function) => from_codes(image, &function, rva, Trust::UnwindInfo),
        None => Ok(X64FullRule::empty(Trust::Leaf)),
    }
}

/// For assembler whose exception handler knows its frame while its unwind codes do not (all of
/// OpenSSL's): follows the code. If that fails, assumes that there is no frame, as the codes say.
fn told_by_its_handler(place: &Place<'_>, function: &RuntimeFunction) -> Result<X64FullRule, Fault> {
    match followed(place, Some(function.begin..function.end), Trust::Code) {
        Some(full) => Ok(full),
        None if place.position == Position::Caller => Err(Fault::BadUnwindInfo),
        None => from_codes(place.image, function, place.rva, Trust::UnwindInfoNoCode),
    }
}

/// Code without unwind data: only the innermost function may be a leaf.
fn leaf(place: &Place<'_>) -> Result<X64FullRule, Fault> {
    if place.position == Position::Caller {
        return Err(Fault::NoFunction);
    }
    let mut full = match run::to_return(place, None) {
        Run::Returns(full) => X64FullRule { trust: Trust::Leaf, ..full },
        // Assembler without unwind data is not always the leaf that the ABI says it is.
        Run::Stays => followed(place, None, Trust::Leaf).unwrap_or(X64FullRule::empty(Trust::Leaf)),
        Run::Unknown => X64FullRule::empty(Trust::Leaf),
    };
    full.thread_start = place.image.is_thread_start(place.rva);
    full.stub = place.image.is_stub();
    Ok(full)
}

/// The frame that follows from the code up to its return. `bounds` are the function's, where they
/// are known.
fn followed(place: &Place<'_>, bounds: Option<Range<u32>>, trust: Trust) -> Option<X64FullRule> {
    const MODE: Mode = Mode { bits: 64, nonvolatile: &NONVOLATILE };
    let outcome = flow::follow(&Start {
        image: place.image,
        mode: MODE,
        rva: place.rva,
        bounds,
        after_call: place.position == Position::Caller,
        code: place.code,
    })?;
    let slot = |(register, offset)| X64Slot { register, offset };
    let mut full = X64FullRule::empty(trust);
    full.loaded = outcome.loaded.map(slot);
    full.return_address = slot(outcome.return_address);
    full.popped = outcome.popped.unwrap_or(0);
    if outcome.sp != (outcome.return_address.0, outcome.return_address.1.wrapping_add(8)) {
        return None;
    }
    for (n, register) in NONVOLATILE.into_iter().enumerate() {
        match outcome.registers[usize::from(register)] {
            FlowValue::Start(same, 0) if same == register => {}
            FlowValue::Start(base, offset) => full.moved[n] = Some(slot((base, offset))),
            FlowValue::Word(base, offset) => full.saved[n] = Some(slot((base, offset))),
            FlowValue::Unknown | FlowValue::Constant(_) => return None,
        }
    }
    Some(full)
}

/// The rule when the code at the instruction pointer is not known. Version 2 describes epilogues
/// even so.
fn without_code(image: &ImageTables, function: &RuntimeFunction, rva: u32) -> Result<X64FullRule, Fault> {
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

#[cfg(test)]
mod tests;
