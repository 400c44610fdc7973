//! A frame's UNWIND_INFO and rule in words.

use std::fmt::Write;

use super::forms::{X64FullRule, X64Slot};
use super::info::{self, MAX_CHAIN, RuntimeFunction, UnwindInfo};
use super::registers::NONVOLATILE;
use super::rule;
use super::run::{self, Run};
use crate::ImageTables;
use crate::Trust;
use crate::engine::{CodeAddress, Position};
use crate::explanation::{Explanation, fault, sum, word};
use crate::flow::LOADED;

const NAMES: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15",
];

fn name(register: u8) -> &'static str {
    if register == LOADED {
        return "loaded";
    }
    NAMES[usize::from(register & 15)]
}

pub(crate) fn explain(place: &CodeAddress<'_>) -> Explanation {
    let inside = place.rva.wrapping_sub(place.position.back());
    let function = match info::find(place.image, inside) {
        Ok(function) => function,
        Err(error) => {
            return Explanation {
                record: "the exception directory is not known or its entry is damaged".into(),
                rule: fault(error),
            };
        }
    };
    let record = match &function {
        Some(function) => record(place.image, function),
        None => "no RUNTIME_FUNCTION covers the address".to_owned(),
    };
    let rule = match rule::compile(place) {
        Ok(full) => format!("{}; {}", whereabouts(place, function.as_ref(), &full), effect(&full)),
        Err(error) => fault(error),
    };
    Explanation { record, rule }
}

/// The UNWIND_INFO of a function and of the functions that it continues.
fn record(image: &ImageTables, function: &RuntimeFunction) -> String {
    let mut text = String::new();
    let mut next = Some(*function);
    for n in 0..MAX_CHAIN {
        let Some(function) = next else { break };
        if n > 0 {
            text.push_str(", chained to ");
        }
        let info = UnwindInfo::parse(image, function.unwind);
        let version =
            info.as_ref().map_or("UNWIND_INFO".to_owned(), |info| format!("UNWIND_INFO v{}", info.version));
        let RuntimeFunction { begin, end, unwind } = function;
        let _ = write!(text, "{version} at {unwind:#x} of function {begin:#x}..{end:#x}");
        if let Ok(info) = &info {
            let _ = write!(text, ", prologue {:#x}", info.prologue);
            if info.frame_register != 0 {
                let frame = sum("rsp", i64::from(info.frame_offset));
                let _ = write!(text, ", frame register {} = {frame}", name(info.frame_register));
            }
        }
        next = info.ok().and_then(|info| info.chained);
    }
    text
}

/// The part of the function that holds the place, if it matters.
fn whereabouts(place: &CodeAddress<'_>, function: Option<&RuntimeFunction>, full: &X64FullRule) -> String {
    let Some(function) = function else {
        return match run::to_return(place, None) {
            Run::Returns(_) => "leaf, its code followed to the return".to_owned(),
            Run::Stays if !full.is_empty() => {
                "assembler without unwind data, its code followed to the return".to_owned()
            }
            Run::Stays | Run::Unknown => "leaf".to_owned(),
        };
    };
    if full.machine_frame {
        return "pushed by the processor".to_owned();
    }
    let info = UnwindInfo::parse(place.image, function.unwind);
    if info.as_ref().is_ok_and(UnwindInfo::is_known_by_its_handler) {
        return match full.trust {
            Trust::Code => "assembler whose handler alone knows the frame, its code followed to the return",
            _ => "assembler whose handler alone knows the frame, taken for a leaf: its code could not be followed",
        }
        .to_owned();
    }
    let done = place.rva.wrapping_sub(function.begin);
    let prologue = info.map_or(0, |info| u32::from(info.prologue));
    let body = if done < prologue {
        format!("in the prologue, {done:#x} of {prologue:#x} bytes done")
    } else {
        "body".to_owned()
    };
    let root = info::root(place.image, *function).unwrap_or(*function);
    if place.position == Position::Caller {
        return match run::begins_anew(place, function, &root) {
            true => format!("no frame yet: the code at {:#x} begins the function anew", place.rva),
            false => body,
        };
    }
    match run::to_return(place, Some((function, &root))) {
        Run::Returns(_) => format!("epilogue at {:#x}, its code followed to the return", place.rva),
        Run::Stays => body,
        Run::Unknown if full.trust == Trust::UnwindInfo => {
            format!("epilogue at {:#x} by its unwind codes, since the code is not known", place.rva)
        }
        Run::Unknown => format!("{body}, not in an epilogue (taken for granted: the code is not known)"),
    }
}

/// Where the caller's registers lie.
fn effect(full: &X64FullRule) -> String {
    let at = |slot: X64Slot| word(name(slot.register), slot.offset);
    let mut text = if full.machine_frame {
        format!("machine frame at {}", at(full.return_address))
    } else if full.trust.is_exact() {
        format!("entered by the system, the interrupted instruction's address at {}", at(full.return_address))
    } else {
        format!("return address at {}", at(full.return_address))
    };
    if let Some(slot) = full.loaded {
        let _ = write!(text, ", where loaded = {}", at(slot));
    }
    if full.popped > 0 {
        let _ = write!(text, ", {:#x} bytes of arguments popped", full.popped);
    }
    for (n, register) in NONVOLATILE.into_iter().enumerate() {
        if let Some(slot) = full.saved[n] {
            let _ = write!(text, ", {} at {}", name(register), at(slot));
        } else if let Some(slot) = full.moved[n] {
            let _ = write!(text, ", {} = {}", name(register), sum(name(slot.register), slot.offset));
        }
    }
    text
}
