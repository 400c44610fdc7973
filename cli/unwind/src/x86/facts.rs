//! A FrameData or FPO record's sizes and properties of a frame.

use super::tables::{FrameRule, Record};
use crate::ImageTables;
use crate::frame_facts::FrameFacts;

/// What the most exact record at `rva` says.
pub(crate) fn facts(image: &ImageTables, rva: u32) -> Option<FrameFacts> {
    let tables = image.x86();
    let record: &Record = tables.record(tables.find(rva)?)?;
    let (frame_type, allocates_base_pointer) = match &record.how {
        FrameRule::Program(program) => ("frame-data", program.begins_at_ebp()),
        FrameRule::Above { uses_ebp, frame_type } => {
            let name = match frame_type {
                0 => "fpo",
                1 => "trap",
                2 => "tss",
                _ => "standard",
            };
            (name, *uses_ebp)
        }
    };
    Some(FrameFacts {
        frame_type,
        function_start: record.rva,
        locals: record.locals,
        parameters: Some(record.params),
        saved_registers: record.saved,
        prologue: record.prologue_bytes,
        has_seh: Some(record.has_seh),
        has_eh: record.has_eh,
        exception_handler: None,
        termination_handler: None,
        allocates_base_pointer,
    })
}
