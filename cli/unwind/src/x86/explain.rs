//! A frame's FrameData or FPO record, or GCInfo, and rule in words.

use std::fmt::Write;

use super::gc_info::FrameKind;
use super::layout::{RegisterSource, Return, X86Slot};
use super::managed::{self, Method};
use super::prologue::FramePointer;
use super::registers::{ESP, NONVOLATILE};
use super::rule::{self, X86Rule};
use super::tables::{FrameRule, Record};
use crate::Trust;
use crate::engine::CodeAddress;
use crate::explanation::{Explanation, fault, sum, word};

const NAMES: [&str; 8] = ["eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi"];

fn name(register: u8) -> &'static str {
    NAMES[usize::from(register & 7)]
}

/// Explains a step. `found_by` is the method by which the walk found the caller.
pub(crate) fn explain(place: &CodeAddress<'_>, found_by: Option<Trust>) -> Explanation {
    let compiled = rule::compile(place);
    let rule = match &compiled {
        Ok(rule) => rule,
        Err(error) => return Explanation { record: String::new(), rule: fault(*error) },
    };
    let described = rule.record.and_then(|index| place.image.x86().record(index as usize));
    let inside = place.rva.wrapping_sub(place.position.back());
    let record = match described {
        Some(described) => record(described),
        None => match managed::method(place.image, inside) {
            Some(method) => gc_info(&method),
            None => "no FrameData or FPO record covers the address".to_owned(),
        },
    };
    Explanation { record, rule: way(rule, found_by) }
}

fn record(record: &Record) -> String {
    let Record { rva, len, locals, saved, params, prologue_bytes, has_seh, has_eh, .. } = record;
    let end = u64::from(*rva) + u64::from(*len);
    let seh = if *has_seh { ", SEH" } else { "" };
    let eh = if *has_eh == Some(true) { ", C++ EH" } else { "" };
    let sizes = format!(
        "{rva:#x}..{end:#x}, locals {locals:#x}, saved {saved:#x}, parameters {params:#x}, \
         prologue {prologue_bytes:#x}{seh}{eh}"
    );
    match &record.how {
        FrameRule::Program(program) => format!("FrameData {sizes}, program `{program}`"),
        FrameRule::Above { uses_ebp: true, .. } => format!("FPO {sizes}, with ebp"),
        FrameRule::Above { uses_ebp: false, .. } => format!("FPO {sizes}"),
    }
}

fn gc_info(Method { range, header }: &Method) -> String {
    let frame = match header.kind {
        FrameKind::Esp => "without ebp",
        FrameKind::Ebp => "with ebp",
        FrameKind::DoubleAligned => "with ebp, aligned to 8 bytes",
    };
    let handlers = if header.handlers { ", handlers" } else { "" };
    format!(
        "GCInfo {:#x}..{:#x}, frame {frame}, locals {:#x}, saved {:#x}, parameters {:#x}, prologue {:#x}{handlers}",
        range.start,
        range.end,
        header.locals,
        header.saved_bytes(),
        header.arguments,
        header.prologue
    )
}

fn way(rule: &X86Rule, found_by: Option<Trust>) -> String {
    match found_by {
        Some(Trust::Code) => match &rule.code {
            Some(code) => format!("code followed to its return; {}", effect(code)),
            None => rule.prologue.pushed.map_or("code followed to its return".to_owned(), |pushed| {
                let at = word(name(ESP as u8), pushed.into());
                format!("code followed from the function's start; return address at {at}")
            }),
        },
        Some(Trust::UnwindInfo) => {
            rule.code.map_or(String::new(), |code| format!("by GCInfo; {}", effect(&code)))
        }
        Some(Trust::FrameData) => "by the record".to_owned(),
        Some(Trust::FrameDataSearch) => "by the record, with a search for the return address".to_owned(),
        Some(Trust::FramePointer) => {
            let how = match rule.prologue.frame_pointer {
                FramePointer::Set => "set up by the function's first instructions",
                FramePointer::Absent | FramePointer::Unknown => {
                    "not checked: the function's start is not known"
                }
            };
            format!("frame pointer chain, {how}; return address at [ebp+0x4], ebp at [ebp]")
        }
        _ => {
            let mut tried = match rule.prologue.frame_pointer {
                FramePointer::Absent => vec!["no frame pointer, by the function's first instructions"],
                FramePointer::Set | FramePointer::Unknown => vec!["the frame pointer"],
            };
            tried.extend(rule.record.map(|_| "the record"));
            tried.extend(rule.code.map(|_| "the code"));
            format!("no rule: tried {}", tried.join(", "))
        }
    }
}

/// Where the caller's registers lie.
fn effect(code: &Return) -> String {
    let at = |slot: X86Slot| word(name(slot.register()), i64::from(slot.offset()));
    let mut text = format!("return address at {}", at(code.return_address));
    for (n, saved) in code.saved.iter().enumerate() {
        let register = name(NONVOLATILE[n]);
        let _ = match saved {
            RegisterSource::Kept => Ok(()),
            RegisterSource::Word(slot) => write!(text, ", {register} at {}", at(*slot)),
            RegisterSource::Computed(slot) => {
                write!(text, ", {register} = {}", sum(name(slot.register()), i64::from(slot.offset())))
            }
        };
    }
    text
}
