//! The data contract descriptor that a runtime exports (dotnet/runtime,
//! docs/design/datacontracts/datacontracts_design.md and contract-descriptor.md). It holds, as
//! JSON, the offsets of the fields of the runtime's structures, and the addresses of its globals.

use alloc::vec;
use alloc::vec::Vec;

use stk_schema::bytes::u32_at;

use super::json::Value;
use super::pointer_at;
use crate::record::image::Memory;

/// Name of the exported variable.
pub(crate) const EXPORT: &[u8] = b"DotNetRuntimeContractDescriptor";

/// `DNCCDAC` and a zero, in memory order.
const MAGIC: [u8; 8] = *b"DNCCDAC\0";
/// Flag: pointers have 4 bytes.
const FLAG_32_BIT: u32 = 2;
/// Most bytes of JSON; that of .NET 10.0.9 has 10,826.
const MAX_JSON: u32 = 1 << 20;
/// Most globals; .NET 10.0.9 has 25.
const MAX_POINTERS: u32 = 16_384;

/// A descriptor, read from memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Descriptor {
    /// Bytes of a pointer.
    pub width: usize,
    pub json: Vec<u8>,
    /// The values of the globals.
    pub pointer_data: Vec<u64>,
}

impl Descriptor {
    /// Reads the descriptor at `address`; `None` if there is no complete one.
    pub(crate) fn read(memory: &impl Memory, address: u64) -> Option<Descriptor> {
        let mut head = [0; 16];
        if !memory.read(address, &mut head) || head[..8] != MAGIC {
            return None;
        }
        let width = if u32_at(&head, 8)? & FLAG_32_BIT == 0 { 8 } else { 4 };
        // descriptor_size u32 (in `head`), descriptor pointer, count u32, padding u32, pointer_data
        // pointer
        let mut rest = [0; 24];
        let rest = rest.get_mut(..2 * width + 8)?;
        if !memory.read(address + 16, rest) {
            return None;
        }
        let (size, count) = (u32_at(&head, 12)?, u32_at(rest, width)?);
        if size > MAX_JSON || count > MAX_POINTERS {
            return None;
        }
        let mut json = vec![0; size as usize];
        let mut pointers = vec![0; count as usize * width];
        if !memory.read(pointer_at(rest, 0, width)?, &mut json)
            || count != 0 && !memory.read(pointer_at(rest, width + 8, width)?, &mut pointers)
        {
            return None;
        }
        let pointer_data =
            pointers.chunks_exact(width).filter_map(|bytes| pointer_at(bytes, 0, width)).collect();
        Some(Descriptor { width, json, pointer_data })
    }

    /// `pointer_data` as RUNTIME_INFO stores it.
    pub(crate) fn pointer_bytes(&self) -> Vec<u8> {
        self.pointer_data.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    /// Offset of the field `field` in the structure `type_name`.
    pub(crate) fn offset(&self, type_name: &str, field: &str) -> Option<usize> {
        let value = Value::parse(&self.json)?.member("types")?.member(type_name)?.member(field)?;
        // `offset` or `[offset, type]`
        let offset = value.integer().or_else(|| value.element(0)?.integer())?;
        usize::try_from(offset).ok().filter(|&offset| offset < 1 << 20)
    }

    /// Version of a contract: a number, or `c` and a number.
    pub(crate) fn contract(&self, name: &str) -> Option<u64> {
        Value::parse(&self.json)?.member("contracts")?.member(name)?.version()
    }

    /// Value of a global that is a number.
    pub(crate) fn number(&self, global: &str) -> Option<u64> {
        let value = Value::parse(&self.json)?.member("globals")?.member(global)?;
        value.integer().or_else(|| value.element(0)?.integer())
    }

    /// Value of a global that is an address: `[[index], type]`.
    pub(crate) fn address(&self, global: &str) -> Option<u64> {
        let value = Value::parse(&self.json)?.member("globals")?.member(global)?;
        let index = value.element(0).and_then(|index| index.element(0)).or_else(|| value.element(0))?;
        self.pointer_data.get(usize::try_from(index.integer()?).ok()?).copied()
    }
}
