//! From a MethodDesc to a name: contracts RuntimeTypeSystem and Loader.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::layout::Contract;
use super::metadata::{METHOD_DEF, Metadata, TYPE_DEF};
use super::pages::{PageCache, Type};
use super::reader::Reader;
use super::signature::SignatureText;
use crate::record::image::Memory;

/// Module of methods without metadata, under the name that the lists use.
const DYNAMIC: &str = "dynamicClass";
/// MethodDesc.Flags: mask of the kind, and the kind of a method without metadata.
const KIND: u16 = 7;
const KIND_DYNAMIC: u16 = 7;
/// MethodTable.MTFlags: a string or array, whose low word is a size; kinds of arrays.
const HAS_COMPONENTS: u32 = 0x8000_0000;
const ARRAY_MASK: u32 = 0xc_0000;
const ARRAY: u32 = 0x8_0000;
const ARRAY_OF_ONE: u32 = 0x2_0000;
/// MethodTable.MTFlags: whether the type is generic.
const GENERIC_MASK: u32 = 0x30;
/// TypeDef.Flags: mask of the visibility, and the first value of nested types.
const VISIBILITY: u32 = 7;
const NESTED: u32 = 2;
/// Most types around a nested one.
const MOST_NESTED: usize = 16;
/// Deepest nesting of generic arguments.
const MOST_DEPTH: u32 = 8;
/// Most generic arguments of a type.
const MOST_ARGUMENTS: u16 = 32;
/// Most bytes of a name. The runtime's lists are read up to the same length.
const MOST_NAME: usize = 8 << 10;
/// Most bytes of the name of a dynamic method, and units of a path.
const MOST_DYNAMIC: usize = 1024;
const MOST_PATH: usize = 1024;
/// Most bytes of a stored signature.
const MOST_SIGNATURE: u32 = 4096;

/// Reads names.
pub(super) struct Namer<'a, 'b, M> {
    pub contract: &'a Contract,
    /// Reads the runtime's structures.
    pub reader: &'a Reader<'b, M>,
    /// Reads images, which stay as they are.
    pub kept: &'a Reader<'b, M>,
    pub pages: &'a PageCache,
}

impl<M: Memory> Namer<'_, '_, M> {
    /// The name of the method whose MethodDesc is at `method`.
    pub(super) fn method(&self, method: u64) -> Option<String> {
        let (at, reader) = (&self.contract.methods, self.reader);
        if !method.is_multiple_of(at.alignment) {
            return None;
        }
        let index = reader.u8(method.checked_add(at.chunk_index))?;
        let chunk = method.checked_sub(at.chunk_size + u64::from(index) * at.alignment)?;
        let table = reader.pointer(chunk.checked_add(at.chunk_table))?;
        let class = self.pages.of_table(table, || {
            let module = self.module_of(table)?;
            let mut name = String::new();
            let whole = self.type_name(table, &mut name, 0).is_some();
            Some(Type { module, name: whole.then_some(name) })
        })?;
        let module = class.module;
        let flags = reader.u16(method.checked_add(at.flags))?;
        if flags & KIND == KIND_DYNAMIC {
            return self.dynamic(method, module);
        }
        let remainder = u32::from(reader.u16(method.checked_add(at.remainder))?);
        let range = u32::from(reader.u16(chunk.checked_add(at.chunk_range))?);
        let bits = at.remainder_bits;
        let row = (range & ((1 << (24 - bits)) - 1)) << bits | remainder & ((1 << bits) - 1);

        let metadata = self.metadata(module)?;
        let mut name = format!("{}!", metadata.stem);
        let class = class.name.as_ref()?;
        if !class.is_empty() {
            name.push_str(class);
            name.push('.');
        }
        let row = (METHOD_DEF, row);
        let own = metadata.name(self.kept, row, 3)?;
        name.push_str(&String::from_utf8_lossy(&own));
        let arguments = metadata.blob(self.kept, row, 4).and_then(|blob| self.arguments(module, &blob));
        if let Some(arguments) = arguments {
            name.push_str(&arguments);
        }
        (name.len() <= MOST_NAME).then_some(name)
    }

    /// The Module of a MethodTable, if MethodTable and class refer to each other.
    fn module_of(&self, table: u64) -> Option<u64> {
        let (at, reader) = (&self.contract.types, self.reader);
        let class = reader.pointer(table.checked_add(at.class))?;
        // Bit 0: this is not the class, but the MethodTable that has it.
        let (owner, class) = match class & 1 {
            0 => (table, class),
            _ => {
                let owner = class & !1;
                (owner, reader.pointer(owner.checked_add(at.class)).filter(|class| class & 1 == 0)?)
            }
        };
        if reader.u64(class.checked_add(at.class_table))? != owner {
            return None;
        }
        reader.pointer(table.checked_add(at.module))
    }

    /// A method that the program or the runtime made without metadata.
    fn dynamic(&self, method: u64, module: u64) -> Option<String> {
        let (at, reader) = (&self.contract.methods, self.reader);
        let text = reader.pointer(method.checked_add(at.dynamic_name))?;
        let mut name = format!("{DYNAMIC}!");
        let own = reader.text(text, MOST_DYNAMIC)?;
        if own.is_empty() {
            return None;
        }
        name.push_str(&String::from_utf8_lossy(&own));
        let signature = reader.u64(method.checked_add(at.signature))?;
        let size = reader.u32(method.checked_add(at.signature_size))?;
        if signature != 0 && size <= MOST_SIGNATURE {
            let mut blob = alloc::vec![0; size as usize];
            if reader.fill(signature, &mut blob).is_some()
                && let Some(arguments) = self.arguments(module, &blob)
            {
                name.push_str(&arguments);
            }
        }
        Some(name)
    }

    fn arguments(&self, module: u64, blob: &[u8]) -> Option<String> {
        let metadata = self.metadata(module);
        let text = SignatureText { metadata: metadata.as_deref(), reader: self.kept, out: String::new() };
        text.arguments(blob)
    }

    /// Appends the name of the type with the MethodTable `table`, with its generic arguments.
    fn type_name(&self, table: u64, out: &mut String, depth: u32) -> Option<()> {
        if depth > MOST_DEPTH || out.len() > MOST_NAME {
            return None;
        }
        let (at, reader) = (&self.contract.types, self.reader);
        let flags = reader.u32(table.checked_add(at.flags))?;
        if flags & ARRAY_MASK == ARRAY {
            // Arrays have the type of their elements where others have their arguments.
            let element = reader.pointer(table.checked_add(at.instantiation))?;
            self.argument(element, out, depth + 1)?;
            let rank = if flags & ARRAY_OF_ONE != 0 {
                0
            } else {
                let class = reader.pointer(table.checked_add(at.class))?;
                let owner = if class & 1 == 0 { table } else { class & !1 };
                let class = reader.pointer(owner.checked_add(at.class)).filter(|class| class & 1 == 0)?;
                reader.u8(class.checked_add(at.rank))?
            };
            match rank {
                0 => out.push_str("[]"),
                1 => out.push_str("[*]"),
                2..=32 => {
                    out.push('[');
                    (1..rank).for_each(|_| out.push(','));
                    out.push(']');
                }
                _ => return None,
            }
            return Some(());
        }
        let module = reader.pointer(table.checked_add(at.module))?;
        let row = reader.u32(table.checked_add(at.flags2))? >> 8;
        self.definition(module, row, out)?;
        if flags & HAS_COMPONENTS == 0 && flags & GENERIC_MASK != 0 {
            self.instantiation(table, out, depth)?;
        }
        Some(())
    }

    /// Appends `[A,B]`, the generic arguments of a type.
    fn instantiation(&self, table: u64, out: &mut String, depth: u32) -> Option<()> {
        let (at, reader) = (&self.contract.types, self.reader);
        let dictionaries = reader.pointer(table.checked_add(at.instantiation))?;
        // The counts lie before the list of dictionaries; the last one is the type's own.
        let info = dictionaries.checked_sub(8)?;
        let count = reader.u16(info.checked_add(at.argument_count))?;
        let lists = u64::from(reader.u16(info.checked_add(at.dictionary_count))?);
        if count > MOST_ARGUMENTS {
            return None;
        }
        let own = reader.pointer(dictionaries.checked_add(8 * lists.checked_sub(1)?))?;
        for number in 0..u64::from(count) {
            out.push(if number == 0 { '[' } else { ',' });
            let argument = reader.pointer(own.checked_add(8 * number))?;
            self.argument(argument, out, depth + 1)?;
        }
        if count != 0 {
            out.push(']');
        }
        Some(())
    }

    /// Appends the name of the type behind a TypeHandle. Bit 1 marks a TypeDesc: a pointer, a
    /// reference, a variable or a function pointer.
    fn argument(&self, handle: u64, out: &mut String, depth: u32) -> Option<()> {
        if handle & 2 == 0 {
            return self.type_name(handle, out, depth);
        }
        let (at, reader) = (&self.contract.types, self.reader);
        let description = handle & !2;
        let suffix = match reader.u32(description.checked_add(at.description))? & 0xff {
            0x0f => "*",
            0x10 => "&",
            _ => return None,
        };
        if depth > MOST_DEPTH {
            return None;
        }
        let inner = reader.pointer(description.checked_add(at.parameter))?;
        self.argument(inner, out, depth + 1)?;
        out.push_str(suffix);
        Some(())
    }

    /// Appends the name of the type in a row of TypeDef, with those around it: `Ns.A+B`.
    fn definition(&self, module: u64, row: u32, out: &mut String) -> Option<()> {
        let (reader, metadata) = (self.kept, self.metadata(module)?);
        let mut rows = alloc::vec![row];
        if metadata.cell(reader, (TYPE_DEF, row), 0)? & VISIBILITY >= NESTED {
            let mut inner = row;
            while rows.len() < MOST_NESTED
                && let Some(outer) = metadata.encloser(reader, inner)
            {
                rows.push(outer);
                inner = outer;
            }
        }
        for (number, &row) in rows.iter().rev().enumerate() {
            if number != 0 {
                out.push('+');
            }
            let name = metadata.name(reader, (TYPE_DEF, row), 1)?;
            let namespace = metadata.name(reader, (TYPE_DEF, row), 2)?;
            if !namespace.is_empty() {
                escape(&namespace, out);
                out.push('.');
            }
            escape(&name, out);
        }
        Some(())
    }

    fn metadata(&self, module: u64) -> Option<Arc<Metadata>> {
        self.pages.metadata(module, || {
            let stem = self.stem(module)?;
            Metadata::of_module(self.contract, (self.reader, self.kept), module, stem)
        })
    }

    /// The name of a module's file without its extension.
    fn stem(&self, module: u64) -> Option<String> {
        let at = &self.contract.modules;
        let text = |at| self.wide_text(module.checked_add(at)).filter(|text| !text.is_empty());
        let path = text(at.path).or_else(|| text(at.file_name))?;
        let file = path.rsplit(['\\', '/']).next()?;
        let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem);
        (!stem.is_empty()).then(|| stem.into())
    }

    /// The zero-terminated UTF-16 text behind the pointer at `variable`.
    fn wide_text(&self, variable: Option<u64>) -> Option<String> {
        let address = self.reader.pointer(variable)?;
        let mut units = Vec::new();
        while units.len() < MOST_PATH {
            let mut piece = [0; 64];
            let at = address.checked_add(2 * units.len() as u64)?;
            let len = (4096 - at % 4096).min(64) as usize & !1;
            let piece = piece.get_mut(..len.max(2))?;
            self.reader.fill(at, piece)?;
            let read = piece.chunks_exact(2).map(|unit| u16::from_le_bytes([unit[0], unit[1]]));
            let before = units.len();
            units.extend(read.take_while(|&unit| unit != 0));
            if units.len() - before < piece.len() / 2 {
                return Some(String::from_utf16_lossy(&units));
            }
        }
        None
    }
}

/// Appends a name of metadata. Characters that have a meaning in names of types get a backslash.
fn escape(name: &[u8], out: &mut String) {
    for char in String::from_utf8_lossy(name).chars() {
        if matches!(char, ',' | '[' | ']' | '&' | '*' | '+' | '\\') {
            out.push('\\');
        }
        out.push(char);
    }
}
