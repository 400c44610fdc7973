//! The rule at an address: everything that is known without the stack.

use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};

use super::layout::{RegisterSource, Return, X86Slot};
use super::managed;
use super::prologue::{self, Prologue};
use super::registers::NONVOLATILE;
use crate::ImageTables;
use crate::engine::{CodeAddress, Position};
use crate::flow::{self, FlowValue, Mode, Outcome, Start};
use crate::frame::Fault;

/// The methods that may find the caller of one address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct X86Rule {
    /// By following the code, or by GCInfo.
    pub(crate) code: Option<Return>,
    /// `code` is by GCInfo.
    pub(crate) by_gc_info: bool,
    /// By the record of that number.
    pub(crate) record: Option<u32>,
    /// Bytes of arguments that the function's return pops, where known.
    pub(crate) popped: Option<u16>,
    /// `popped` comes from the next return in the code, which is probably the function's own.
    pub(crate) popped_ahead: bool,
    pub(crate) thread_start: bool,
    /// What the function's first instructions did.
    pub(crate) prologue: Prologue,
    /// How many bytes before the instruction pointer to look up its code.
    pub(crate) back: u32,
}

const MODE: Mode = Mode { bits: 32, nonvolatile: &NONVOLATILE };

/// The rule at a place.
pub(crate) fn compile(place: &CodeAddress<'_>) -> Result<X86Rule, Fault> {
    let image = place.image;
    let inside = place.rva.wrapping_sub(place.position.back());
    let method = managed::method(image, inside);
    let known = image.x86().function(inside);
    let bounds = known.or_else(|| method.as_ref().map(|method| method.range.clone()));
    let by_gc_info = method.as_ref().and_then(|method| method.frame(image, place.rva));
    let start = Start {
        image,
        mode: MODE,
        rva: place.rva,
        bounds: bounds.clone(),
        after_call: place.position == Position::Caller,
        code: place.code,
    };
    let outcome = if by_gc_info.is_some() { None } else { flow::follow(&start) };
    let popped = match (&method, &bounds) {
        // A handler's return pops nothing.
        (Some(method), _) if !method.header.handlers => method.header.popped(),
        (_, Some(bounds)) => popped_by(image, bounds),
        (_, None) => None,
    };
    let code = by_gc_info.or(outcome.as_ref().and_then(returns));
    let popped = popped.or(outcome.and_then(|outcome| u16::try_from(outcome.popped?).ok()));
    let ahead = if popped.is_none() && bounds.is_none() { popped_ahead(image, place.rva) } else { None };
    let prologue = prologue::follow(image, place.rva, bounds.as_ref());
    // A function that called has run more than its first instructions.
    let pushed = prologue.pushed.filter(|_| place.position == Position::Context);
    Ok(X86Rule {
        code,
        by_gc_info: by_gc_info.is_some(),
        record: image.x86().find(inside).and_then(|index| u32::try_from(index).ok()),
        popped: popped.or(ahead),
        popped_ahead: ahead.is_some(),
        thread_start: image.is_thread_start(inside),
        prologue: Prologue { pushed, ..prologue },
        back: place.position.back(),
    })
}

fn returns(outcome: &Outcome) -> Option<Return> {
    let slot =
        |(register, offset): (u8, i64)| Some(X86Slot::new(register.into(), i32::try_from(offset).ok()?));
    let mut saved = [RegisterSource::Kept; 4];
    for (n, place) in saved.iter_mut().enumerate() {
        *place = match outcome.registers[usize::from(NONVOLATILE[n])] {
            FlowValue::Start(register, 0) if register == NONVOLATILE[n] => RegisterSource::Kept,
            FlowValue::Start(register, offset) => RegisterSource::Computed(slot((register, offset))?),
            FlowValue::Word(register, offset) => RegisterSource::Word(slot((register, offset))?),
            FlowValue::Unknown | FlowValue::Constant(_) => return None,
        };
    }
    Some(Return { return_address: slot(outcome.return_address)?, sp: slot(outcome.sp)?, saved })
}

/// The bytes that the next return behind `rva` pops, for a function of unknown extent. The return
/// is the function's own if its code is in one piece and ends in a return. Compilers put int3
/// between functions.
fn popped_ahead(image: &ImageTables, rva: u32) -> Option<u16> {
    const MOST: usize = 1 << 13;
    let code = image.bytes(rva)?;
    let code = code.get(..MOST).unwrap_or(code);
    let mut decoder = Decoder::with_ip(32, code, u64::from(rva), DecoderOptions::NONE);
    while decoder.can_decode() {
        let instruction = decoder.decode();
        if instruction.is_invalid() || instruction.mnemonic() == Mnemonic::Int3 {
            return None;
        }
        if instruction.flow_control() == FlowControl::Return {
            return Some(popped_bytes(&instruction));
        }
    }
    None
}

/// Bytes of arguments that a return instruction pops.
fn popped_bytes(instruction: &Instruction) -> u16 {
    if instruction.op_count() == 0 { 0 } else { instruction.immediate16() }
}

/// The bytes that the returns of a function pop, if they agree. Decodes the function from start to
/// end, jump tables included. If these decode to a return of another count, there is no result.
fn popped_by(image: &ImageTables, bounds: &Range<u32>) -> Option<u16> {
    // Far more bytes than a function has.
    const MOST: usize = 1 << 16;
    let code = image.bytes(bounds.start)?;
    let code = code.get(..bounds.len()).unwrap_or(code);
    let code = code.get(..MOST).unwrap_or(code);
    let mut decoder = Decoder::with_ip(32, code, u64::from(bounds.start), DecoderOptions::NONE);
    let mut popped = None;
    while decoder.can_decode() {
        let instruction = decoder.decode();
        if instruction.flow_control() == FlowControl::Return {
            let bytes = popped_bytes(&instruction);
            if popped.is_some_and(|popped| popped != bytes) {
                return None;
            }
            popped = Some(bytes);
        }
    }
    popped
}
