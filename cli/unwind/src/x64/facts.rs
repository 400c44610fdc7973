//! An UNWIND_INFO's sizes and properties of a frame.

use super::info::{self, MAX_CHAIN, UnwindInfo, X64Operation};
use crate::ImageTables;
use crate::frame_facts::FrameFacts;

/// What the UNWIND_INFO of the function at `rva` and of those that it continues say.
pub(crate) fn facts(image: &ImageTables, rva: u32) -> Option<FrameFacts> {
    let mut function = info::find(image, rva).ok()??;
    let mut facts = FrameFacts {
        frame_type: "unwind-info",
        function_start: function.begin,
        locals: 0,
        parameters: None,
        saved_registers: 0,
        prologue: 0,
        has_seh: None,
        has_eh: None,
        exception_handler: None,
        termination_handler: None,
        allocates_base_pointer: false,
    };
    let mut handlers = [false; 2];
    for _ in 0..MAX_CHAIN {
        let info = UnwindInfo::parse(image, function.unwind).ok()?;
        facts.function_start = function.begin;
        facts.prologue = info.prologue.into();
        facts.allocates_base_pointer |= info.frame_register != 0;
        for code in info.codes() {
            match code.ok()?.operation {
                X64Operation::Push { .. } | X64Operation::Save { .. } => facts.saved_registers += 8,
                X64Operation::Alloc { size } => facts.locals = facts.locals.saturating_add(size),
                X64Operation::MachineFrame { .. } => facts.frame_type = "machine-frame",
                X64Operation::SetFrameRegister | X64Operation::SaveXmm | X64Operation::Epilogue => {}
            }
        }
        let [exception, termination] = info.handlers();
        handlers = [handlers[0] || exception, handlers[1] || termination];
        let Some(next) = info.chained else {
            let [exception_handler, termination_handler] = handlers.map(Some);
            return Some(FrameFacts { exception_handler, termination_handler, ..facts });
        };
        function = next;
    }
    None
}
