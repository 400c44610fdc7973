//! Signatures as text, in the form of the runtime's own lists of methods: `int32  (class
//! System.String,!0)`. The lists have the form of `PrettyPrintSigInternalLegacy` (dotnet/runtime,
//! src/coreclr/utilcode/prettyprintsig.cpp).

use alloc::format;
use alloc::string::String;

use super::metadata::{Metadata, TYPE_DEF, TYPE_REF, TYPE_SPEC, compressed};
use super::reader::Reader;
use crate::record::image::Memory;

/// Deepest nesting of types in a signature.
const MOST_DEPTH: u32 = 16;
/// Most bytes of a signature's text.
const MOST_TEXT: usize = 4096;
/// Most dimensions of an array.
const MOST_RANK: u32 = 32;

/// Calling conventions by number.
const CONVENTIONS: [&str; 12] = [
    "",
    "unmanaged cdecl ",
    "unmanaged stdcall ",
    "unmanaged thiscall ",
    "unmanaged fastcall ",
    "vararg ",
    "<error> ",
    "<error> ",
    "",
    "",
    "",
    "native vararg ",
];
const HAS_THIS: u32 = 0x20;
const GENERIC: u32 = 0x10;
/// `...` before the further arguments of a call.
const SENTINEL: u8 = 0x41;

/// Reads a signature.
pub(super) struct SignatureText<'a, 'b, M> {
    pub metadata: Option<&'a Metadata>,
    pub reader: &'a Reader<'b, M>,
    pub out: String,
}

impl<M: Memory> SignatureText<'_, '_, M> {
    /// The text of the method signature `blob` from its first parenthesis on.
    pub(super) fn arguments(mut self, blob: &[u8]) -> Option<String> {
        self.method(&mut Blob(blob), " ", 0)?;
        let from = self.out.find('(')?;
        self.out.get(from..).map(String::from)
    }

    fn method(&mut self, blob: &mut Blob<'_>, name: &str, depth: u32) -> Option<()> {
        let convention = blob.number()?;
        if convention & HAS_THIS != 0 {
            self.put("instance ")?;
        }
        if convention & GENERIC != 0 {
            self.put("generic ")?;
            blob.number()?;
        }
        self.put(CONVENTIONS.get((convention & 0xf) as usize).copied().unwrap_or(""))?;
        let mut left = blob.number()?;
        self.value(blob, depth)?;
        if !name.is_empty() {
            self.put(" ")?;
            self.put(name)?;
        }
        self.put("(")?;
        let mut comma = false;
        while left != 0 && !blob.0.is_empty() {
            if comma {
                self.put(",")?;
            }
            if blob.0.first() == Some(&SENTINEL) {
                blob.byte()?;
                self.put("...")?;
            } else {
                self.value(blob, depth)?;
                left -= 1;
            }
            comma = true;
        }
        self.put(")")
    }

    /// One type.
    fn value(&mut self, blob: &mut Blob<'_>, depth: u32) -> Option<()> {
        if depth > MOST_DEPTH {
            return None;
        }
        let deeper = depth + 1;
        let plain = match blob.byte()? {
            0x01 => "void",
            0x02 => "bool",
            0x03 => "wchar",
            0x04 => "int8",
            0x05 => "unsigned int8",
            0x06 => "int16",
            0x07 => "unsigned int16",
            0x08 => "int32",
            0x09 => "unsigned int32",
            0x0a => "int64",
            0x0b => "unsigned int64",
            0x0c => "float32",
            0x0d => "float64",
            0x0e => "class System.String",
            0x16 => "refany",
            0x18 => "int",
            0x19 => "unsigned int",
            0x1c => "class System.Object",
            0x3e => "class System.__Canon",
            0x0f => return self.with(blob, deeper, "*"),
            0x10 => return self.with(blob, deeper, "&"),
            0x1d => return self.with(blob, deeper, "[]"),
            0x45 => return self.with(blob, deeper, " pinned"),
            0x11 => {
                self.put("value class ")?;
                return self.class(blob, deeper);
            }
            0x12 => {
                self.put("class ")?;
                return self.class(blob, deeper);
            }
            modifier @ (0x1f | 0x20) => {
                self.put(if modifier == 0x1f { "required_modifier " } else { "optional_modifier " })?;
                self.class(blob, deeper)?;
                self.put(" ")?;
                return self.value(blob, deeper);
            }
            0x13 => return self.variable(blob, "!"),
            0x1e => return self.variable(blob, "!!"),
            0x14 => return self.array(blob, deeper),
            0x15 => return self.generic(blob, deeper),
            0x1b => {
                self.put("fnptr ")?;
                return self.method(blob, "", deeper);
            }
            0x21 => {
                let address = u64::from_le_bytes(*blob.take(8)?.first_chunk()?);
                return self.put(&format!("pMT: {address:016X}"));
            }
            0x3d => {
                self.put("native ")?;
                return self.value(blob, deeper);
            }
            _ => return None,
        };
        self.put(plain)
    }

    fn with(&mut self, blob: &mut Blob<'_>, depth: u32, suffix: &str) -> Option<()> {
        self.value(blob, depth)?;
        self.put(suffix)
    }

    fn variable(&mut self, blob: &mut Blob<'_>, mark: &str) -> Option<()> {
        let number = blob.number()?;
        self.put(&format!("{mark}{number}"))
    }

    fn generic(&mut self, blob: &mut Blob<'_>, depth: u32) -> Option<()> {
        self.value(blob, depth)?;
        let count = blob.number()?;
        self.put("<")?;
        for number in 0..count {
            if number != 0 {
                self.put(",")?;
            }
            self.value(blob, depth)?;
        }
        self.put(">")
    }

    fn array(&mut self, blob: &mut Blob<'_>, depth: u32) -> Option<()> {
        self.value(blob, depth)?;
        let rank = blob.number()?;
        if rank == 0 || rank > MOST_RANK {
            return None;
        }
        let mut numbers = [[0u32; MOST_RANK as usize]; 2];
        for list in &mut numbers {
            let count = blob.number()?;
            for slot in list.get_mut(..count as usize)? {
                *slot = blob.number()?;
            }
        }
        let [sizes, bounds] = numbers;
        self.put("[")?;
        for (number, (&size, &bound)) in sizes.iter().zip(&bounds).take(rank as usize).enumerate() {
            if number != 0 {
                self.put(",")?;
            }
            if size != 0 && bound != 0 {
                self.put(&format!("{bound}...{}", u64::from(bound) + u64::from(size) + 1))?;
            }
        }
        self.put("]")
    }

    /// The name of a type by its coded token.
    fn class(&mut self, blob: &mut Blob<'_>, depth: u32) -> Option<()> {
        let token = blob.number()?;
        let (table, row) = match token & 3 {
            0 => (TYPE_DEF, token >> 2),
            1 => (TYPE_REF, token >> 2),
            2 => (TYPE_SPEC, token >> 2),
            _ => return None,
        };
        let metadata = self.metadata?;
        if table == TYPE_SPEC {
            let blob = metadata.blob(self.reader, (table, row), 0)?;
            return self.value(&mut Blob(&blob), depth);
        }
        // Both tables have the name in column 1 and the namespace in column 2.
        let name = metadata.name(self.reader, (table, row), 1)?;
        let namespace = metadata.name(self.reader, (table, row), 2)?;
        if !namespace.is_empty() {
            self.put(&String::from_utf8_lossy(&namespace))?;
            self.put(".")?;
        }
        self.put(&String::from_utf8_lossy(&name))
    }

    fn put(&mut self, text: &str) -> Option<()> {
        if self.out.len() + text.len() > MOST_TEXT {
            return None;
        }
        self.out.push_str(text);
        Some(())
    }
}

/// The rest of a blob.
struct Blob<'a>(&'a [u8]);

impl<'a> Blob<'a> {
    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (now, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(now)
    }

    fn number(&mut self) -> Option<u32> {
        let (number, used) = compressed(self.0)?;
        self.take(used)?;
        Some(number)
    }
}
