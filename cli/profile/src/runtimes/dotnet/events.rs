//! The events of the .NET runtime's two providers that state where methods are (dotnet/runtime,
//! `ClrEtwAll.man`).
//!
//! Takes an event's type and payload and returns plain data. A payload may be longer than
//! described. A shorter one gives `None`.

use super::nettrace::EventType;
use stk_base::model::bytes::Cursor;

/// Provider of the events while the process runs.
const RUNTIME: &str = "Microsoft-Windows-DotNETRuntime";
/// Provider of the rundown: all that exists, reported at once.
const RUNDOWN: &str = "Microsoft-Windows-DotNETRuntimeRundown";

/// An event on methods.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// A method's code was loaded (`loaded`), or exists.
    Method { loaded: bool, method: Box<MethodCode> },
    /// A method's code was unloaded.
    MethodUnload { start: u64 },
    /// How a method's code maps to its IL. It has no address: it is sent beside the method's event.
    IlMap(IlMap),
    /// A module was loaded, or exists.
    Module(ModuleEvent),
    /// The version of the runtime.
    Runtime { version: [u16; 4] },
}

/// MethodLoadVerbose, MethodDCEndVerbose and their kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct MethodCode {
    pub id: u64,
    pub module: u64,
    pub start: u64,
    pub size: u32,
    pub token: u32,
    pub flags: u32,
    /// Namespace and type.
    pub type_name: String,
    pub name: String,
    pub signature: String,
}

/// MethodILToNativeMap and its kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct IlMap {
    pub method: u64,
    /// True: sent after the event of its method (as it is compiled). False: sent before it (in a
    /// rundown).
    pub after: bool,
    /// `(native, IL)`, sorted.
    pub offsets: Vec<(u32, i32)>,
}

/// ModuleLoad, DomainModuleLoad and their kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ModuleEvent {
    pub id: u64,
    pub il_path: String,
    /// GUID and path of the portable PDB (or the Windows PDB). Events of a domain's modules do not
    /// have them.
    pub pdb: Option<([u8; 16], String)>,
}

impl MethodCode {
    /// `MethodFlags`, bit 0: the method was made at run time and has no token.
    pub(super) fn is_dynamic(&self) -> bool {
        self.flags & 1 != 0
    }

    /// Whether it is a helper of the runtime, not a method (bit 4).
    pub(super) fn is_helper(&self) -> bool {
        self.flags & 0x10 != 0
    }

    /// Bits 28 to 31: which piece of the method it is (0 hot, 1 cold).
    pub(super) fn extent(&self) -> u32 {
        self.flags >> 28
    }

    /// Bits 7 to 9 (`MethodFlagsJitOptimizationTier`); empty if unknown.
    pub(super) fn tier(&self) -> &'static str {
        const TIERS: [&str; 8] = [
            "",
            "minimally-optimized",
            "optimized",
            "tier-0",
            "tier-1",
            "tier-1-osr",
            "tier-0-instrumented",
            "tier-1-instrumented",
        ];
        TIERS[(self.flags >> 7 & 7) as usize]
    }
}

/// Reads an event; `None` if it is not an event on methods or is too short.
pub(super) fn decode(kind: &EventType, payload: &[u8]) -> Option<Event> {
    let rundown = match kind.provider.as_str() {
        RUNTIME => false,
        RUNDOWN => true,
        _ => return None,
    };
    let cursor = Cursor::new(payload);
    match (rundown, kind.id) {
        // MethodDCStartVerbose, MethodDCEndVerbose.
        (true, 143 | 144) => method(cursor, false),
        (false, 143) => method(cursor, true),
        // MethodUnload, MethodUnloadVerbose.
        (false, 142 | 144) => method_unload(cursor),
        // MethodDCStartILToNativeMap, MethodDCEndILToNativeMap; MethodILToNativeMap.
        (true, 149 | 150) | (false, 190) => il_map(cursor, !rundown),
        // ModuleDCStart, ModuleDCEnd; ModuleLoad.
        (true, 153 | 154) | (false, 152) => module(cursor, 8 + 4 + 4, kind.version >= 2),
        // DomainModuleDCStart, DomainModuleDCEnd; DomainModuleLoad.
        (true, 151 | 152) | (false, 151) => module(cursor, 8 + 8 + 4 + 4, false),
        (_, 187) => runtime(cursor),
        _ => None,
    }
}

fn method(mut cursor: Cursor<'_>, loaded: bool) -> Option<Event> {
    let method = MethodCode {
        id: cursor.u64()?,
        module: cursor.u64()?,
        start: cursor.u64()?,
        size: cursor.u32()?,
        token: cursor.u32()?,
        flags: cursor.u32()?,
        type_name: cursor.utf16z()?,
        name: cursor.utf16z()?,
        signature: cursor.utf16z()?,
    };
    Some(Event::Method { loaded, method: Box::new(method) })
}

fn method_unload(mut cursor: Cursor<'_>) -> Option<Event> {
    cursor.bytes(16)?;
    Some(Event::MethodUnload { start: cursor.u64()? })
}

fn il_map(mut cursor: Cursor<'_>, after: bool) -> Option<Event> {
    let method = cursor.u64()?;
    // ReJIT id, extent.
    cursor.bytes(9)?;
    let count = usize::from(cursor.u16()?);
    let mut il = Cursor::new(cursor.bytes(4 * count)?);
    let mut native = Cursor::new(cursor.bytes(4 * count)?);
    let mut offsets = Vec::with_capacity(count);
    for _ in 0..count {
        offsets.push((native.u32()?, il.i32()?));
    }
    // Of several entries at one address, the one with an IL offset counts. After sorting it is the
    // last.
    offsets.sort_by_key(|&(native, il)| (native, il));
    offsets.dedup();
    Some(Event::IlMap(IlMap { method, after, offsets }))
}

/// `between`: bytes from the module's id to its path.
fn module(mut cursor: Cursor<'_>, between: usize, has_pdb: bool) -> Option<Event> {
    let id = cursor.u64()?;
    cursor.bytes(between)?;
    let il_path = cursor.utf16z()?;
    let _native_path = cursor.utf16z()?;
    let pdb = if has_pdb {
        let _instance = cursor.u16()?;
        let guid = cursor.guid()?;
        let _age = cursor.u32()?;
        Some((guid, cursor.utf16z()?))
    } else {
        None
    };
    Some(Event::Module(ModuleEvent { id, il_path, pdb }))
}

/// RuntimeInformationStart, RuntimeInformationDCStart.
fn runtime(mut cursor: Cursor<'_>) -> Option<Event> {
    let _instance = cursor.u16()?;
    let _sku = cursor.u16()?;
    // Version of the base class library.
    cursor.bytes(8)?;
    let version = [cursor.u16()?, cursor.u16()?, cursor.u16()?, cursor.u16()?];
    Some(Event::Runtime { version })
}
