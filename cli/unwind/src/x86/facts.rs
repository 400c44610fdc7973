//! A FrameData or FPO record's, or GCInfo's, sizes and properties of a frame.

use super::gc_info::FrameKind;
use super::managed;
use super::tables::{FrameRule, Record};
use crate::ImageTables;
use crate::frame_facts::FrameFacts;

/// What the most exact record at `rva` says; GCInfo's header in managed code.
pub(crate) fn facts(image: &ImageTables, rva: u32) -> Option<FrameFacts> {
    let tables = image.x86();
    let Some(found) = tables.find(rva) else { return of_managed(image, rva) };
    let record: &Record = tables.record(found)?;
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

fn of_managed(image: &ImageTables, rva: u32) -> Option<FrameFacts> {
    let method = managed::method(image, rva)?;
    let header = &method.header;
    Some(FrameFacts {
        frame_type: "gc-info",
        function_start: method.range.start,
        locals: header.locals,
        parameters: Some(header.arguments),
        saved_registers: header.saved_bytes(),
        prologue: header.prologue,
        has_seh: None,
        has_eh: None,
        exception_handler: None,
        termination_handler: None,
        allocates_base_pointer: header.kind != FrameKind::Esp,
    })
}
