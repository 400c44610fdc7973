//! From unwind data to a rule: where the return address and the saved registers lie.

use std::ops::Range;

use super::codes::{from_codes, without_code};
use super::forms::{X64FullRule, X64Slot};
use super::info::{self, RuntimeFunction, UnwindInfo};
use super::registers::NONVOLATILE;
use super::run::{self, Run};
use crate::engine::{CodeAddress, Position};
use crate::flow::{self, FlowValue, Mode, Start};
use crate::frame::Fault;
use crate::{ImageTables, Trust};

/// The rule at a place.
pub(crate) fn compile(place: &CodeAddress<'_>) -> Result<X64FullRule, Fault> {
    let image = place.image;
    let inside = place.rva.wrapping_sub(place.position.back());
    let found = info::find(image, inside)?;
    if place.position == Position::Caller && is_replaced(image, place.rva, found.is_some()) {
        return Err(Fault::ReplacedReturnAddress);
    }
    let Some(function) = found else {
        return leaf(place);
    };
    let root = info::root(image, function)?;
    let mut full = match place.position {
        _ if UnwindInfo::parse(image, function.unwind)?.is_known_by_its_handler() => {
            known_by_its_handler(place, &function)?
        }
        Position::Caller if run::begins_anew(place, &function, &root) => {
            X64FullRule::empty(Trust::UnwindInfo)
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

/// Whether a return address cannot be one: it is a function's first byte, and no call comes before
/// it. `follows_function`: a record covers the byte before. Where it does not, and the code there
/// is not known, there is no call, since a function that calls has a record.
fn is_replaced(image: &ImageTables, rva: u32, follows_function: bool) -> bool {
    const LONGEST_CALL: usize = 7;
    let before = image.bytes_before(rva).filter(|before| before.len() >= LONGEST_CALL);
    matches!(info::find(image, rva), Ok(Some(function)) if function.begin == rva)
        && before.map_or(!follows_function, |before| !flow::ends_with_call(before, 64))
}

/// The extent of the function that holds `rva`. For a function in fragments, the extent of the
/// first one. The exception directory has it, whatever the version of the unwind information.
pub(crate) fn function_range(image: &ImageTables, rva: u32) -> Option<Range<u32>> {
    let function = info::find(image, rva).ok()??;
    let root = match info::root(image, function) {
        Err(Fault::UnsupportedVersion(_)) => function,
        root => root.ok()?,
    };
    Some(root.begin..root.end)
}

/// For assembler whose exception handler knows its frame while its unwind codes do not (all of
/// OpenSSL's): follows the code. If that fails, assumes that there is no frame, as the codes say.
fn known_by_its_handler(place: &CodeAddress<'_>, function: &RuntimeFunction) -> Result<X64FullRule, Fault> {
    match followed(place, Some(function.begin..function.end), Trust::Code) {
        Some(full) => Ok(full),
        None if place.position == Position::Caller => Err(Fault::BadUnwindInfo),
        None => from_codes(place.image, function, place.rva, Trust::UnwindInfoNoCode),
    }
}

/// Code without unwind data: only the innermost function may be a leaf.
fn leaf(place: &CodeAddress<'_>) -> Result<X64FullRule, Fault> {
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
fn followed(place: &CodeAddress<'_>, bounds: Option<Range<u32>>, trust: Trust) -> Option<X64FullRule> {
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

#[cfg(test)]
mod tests;
