//! Finds the method that a Frame belongs to (the contract's GetMethodDescPtr), and the facts in a
//! MethodDesc.

use stk_schema::Arch;

use super::update::{FieldReader, field_path};
use super::{ContractError, Descriptor, ExplicitFrame, ExplicitKind, Memory};

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
    let datum = reader
        .pointer_if_described(address, field_path!("InlinedCallFrame", "Datum"))?
        .ok_or(ContractError::NotDescribed("InlinedCallFrame.Datum"))?;
    let is_method = if reader.descriptor.arch() == Arch::X86 {
        // A small number is the size of the arguments.
        datum & !0xffff != 0
    } else {
        // The lowest bit marks the target of an indirect call.
        datum != 0 && datum & 1 == 0
    };
    Ok(is_method.then_some(datum & !(reader.descriptor.pointer_size() - 1)))
}

/// The metadata token (0x06…) of a MethodDesc. The MethodDesc states one half of it, and its
/// chunk, which lies before it, the other.
///
/// # Errors
///
/// The descriptor lacks a field, or the memory was not recorded.
pub fn token_of<M: Memory>(
    descriptor: &Descriptor,
    memory: &M,
    method_desc: u64,
) -> Result<u32, ContractError> {
    let reader = FieldReader { descriptor, memory };
    let global = |name: &'static str| descriptor.number(name).ok_or(ContractError::NotDescribed(name));
    let bits = global("MethodDescTokenRemainderBitCount")?.min(24);
    let alignment = global("MethodDescAlignment")?;
    let chunk_size =
        descriptor.size("MethodDescChunk").ok_or(ContractError::NotDescribed("MethodDescChunk"))?;
    let index = reader.read(method_desc, field_path!("MethodDesc", "ChunkIndex"), 1)?;
    let chunk = method_desc.wrapping_sub(chunk_size).wrapping_sub(index.wrapping_mul(alignment));
    let remainder = reader.read(method_desc, field_path!("MethodDesc", "Flags3AndTokenRemainder"), 2)?;
    let range = reader.read(chunk, field_path!("MethodDescChunk", "FlagsAndTokenRange"), 2)?;
    let remainder = remainder & (0xff_ffff >> (24 - bits));
    let range = (range & (0xff_ffff >> bits)) << bits;
    // Both halves together have 24 bits.
    Ok(0x0600_0000 | (range | remainder) as u32)
}

/// Whether a method takes an interop MethodDesc as a hidden argument. Stubs from managed code to
/// COM do, and P/Invoke stubs that no delegate made. `None` if its MethodDesc was not recorded.
pub(super) fn has_md_context_arg<M: Memory>(reader: &FieldReader<'_, M>, method_desc: u64) -> Option<bool> {
    const CLASSIFICATION: u64 = 7;
    const DYNAMIC: u64 = 7;
    const STATIC: u64 = 0x1000;
    const IL_STUB: u64 = 0x8000;
    const DELEGATE: u64 = 0x1_0000;
    const CALLI: u64 = 0x2_0000;
    /// The low bits, which hold the kind of stub.
    const STUB_KIND: u64 = 0x7ff;
    const CLR_TO_NATIVE: u64 = 1;
    const CLR_TO_COM: u64 = 2;

    let flags = reader.read(method_desc, field_path!("MethodDesc", "Flags"), 2).ok()?;
    if flags & CLASSIFICATION != DYNAMIC {
        return Some(false);
    }
    let flags = reader.read(method_desc, field_path!("StoredSigMethodDesc", "ExtendedFlags"), 4).ok()?;
    let has = |bit: u64| flags & bit != 0;
    let to_com = !has(STATIC) && flags & STUB_KIND == CLR_TO_COM;
    let to_native = has(STATIC) && !has(CALLI) && !has(DELEGATE) && flags & STUB_KIND == CLR_TO_NATIVE;
    Some(has(IL_STUB) && (to_com || to_native))
}
