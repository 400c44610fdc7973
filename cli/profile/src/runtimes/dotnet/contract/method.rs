//! Finds the method that a Frame belongs to (the contract's GetMethodDescPtr).

use stk_schema::Arch;

use super::update::{FieldReader, field_path};
use super::{ContractError, ExplicitFrame, ExplicitKind, Memory};

/// What identifies a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MethodRef {
    /// Address of its MethodDesc: the MethodID of the runtime's events.
    MethodDesc(u64),
    /// A slot of a type's method table, if the Frame holds nothing else (StubDispatchFrame).
    Slot {
        /// Address of the MethodTable.
        method_table: u64,
        /// Number of the slot.
        slot: u64,
    },
}

/// The method that a Frame names; `None` if its kind names none, or this Frame does not at this
/// moment.
///
/// # Errors
///
/// The descriptor lacks a field that the Frame must have, or its memory was not captured.
pub(super) fn of_frame<M: Memory>(
    reader: &FieldReader<'_, M>,
    frame: ExplicitFrame,
) -> Result<Option<MethodRef>, ContractError> {
    let method_desc = |value: u64| (value != 0).then_some(MethodRef::MethodDesc(value));
    match frame.kind {
        Some(ExplicitKind::PInvokeCalliFrame) => Ok(None),
        Some(ExplicitKind::StubDispatchFrame) => stub_dispatch(reader, frame.address),
        Some(ExplicitKind::InlinedCallFrame) => {
            Ok(inlined_datum(reader, frame.address)?.map(MethodRef::MethodDesc))
        }
        Some(kind) if kind.is_transition() => {
            let pointer = reader
                .pointer_if_described(frame.address, field_path!("FramedMethodFrame", "MethodDescPtr"))?;
            pointer.map(method_desc).ok_or(ContractError::NotDescribed("FramedMethodFrame.MethodDescPtr"))
        }
        _ => Ok(None),
    }
}

/// The Frame's MethodDesc or, if that is null, the slot that is being dispatched.
fn stub_dispatch<M: Memory>(
    reader: &FieldReader<'_, M>,
    address: u64,
) -> Result<Option<MethodRef>, ContractError> {
    let field = field_path!("StubDispatchFrame", "MethodDescPtr");
    let method_desc = match reader.pointer_if_described(address, field)? {
        Some(value) => Some(value),
        // A StubDispatchFrame is a FramedMethodFrame.
        None => reader.pointer_if_described(address, field_path!("FramedMethodFrame", "MethodDescPtr"))?,
    };
    if let Some(value @ 1..) = method_desc {
        return Ok(Some(MethodRef::MethodDesc(value)));
    }
    match reader.pointer_if_described(address, field_path!("StubDispatchFrame", "RepresentativeMTPtr"))? {
        None if method_desc.is_none() => Err(ContractError::NotDescribed("StubDispatchFrame.MethodDescPtr")),
        None | Some(0) => Ok(None),
        Some(method_table) => {
            let slot = reader.read(address, field_path!("StubDispatchFrame", "RepresentativeSlot"), 4)?;
            Ok(Some(MethodRef::Slot { method_table, slot }))
        }
    }
}

/// The MethodDesc in an InlinedCallFrame's datum, which can also hold other values.
fn inlined_datum<M: Memory>(reader: &FieldReader<'_, M>, address: u64) -> Result<Option<u64>, ContractError> {
    if !reader.has_active_call(address)? {
        return Ok(None);
    }
    let datum = match reader.pointer_if_described(address, field_path!("InlinedCallFrame", "Datum"))? {
        Some(datum) => datum,
        // 10.0 does not describe it. It is the field before CallSiteSP in every version.
        None => reader.pointer_before(address, field_path!("InlinedCallFrame", "CallSiteSP"))?,
    };
    let is_method = if reader.descriptor.arch() == Arch::X86 {
        // A small number is the size of the arguments.
        datum & !0xffff != 0
    } else {
        // The lowest bit marks the target of an indirect call.
        datum != 0 && datum & 1 == 0
    };
    Ok(is_method.then_some(datum & !(reader.descriptor.pointer_size() - 1)))
}
