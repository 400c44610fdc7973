//! The table of functions that every Go program has, stripped or not (pclntab; Go's `debug/gosym`,
//! `runtime/symtab.go` and `runtime/symtabinl.go`, format of Go 1.18 and later): their names and
//! extents, files, lines, and the functions inlined into them.

mod functions;
#[cfg(test)]
mod tests;

pub(crate) use functions::add_functions;

use std::ops::Range;

use object::read::pe::{ImageNtHeaders, ImageOptionalHeader as _, PeFile};
use object::{Object as _, ObjectSection as _, pe};
use stk_base::model::bytes::{c_str_at, u32_at, u64_at};

use crate::coff::code_sections;

/// Limit for the number of functions, against forged counts.
const MAX_FUNCTIONS: usize = 1 << 22;
/// Limit for the headers that are tried. A program has one.
const MAX_HEADERS: usize = 16;
/// The table begins at a multiple of this in the file.
const ALIGNMENT: usize = 16;
/// Magic number, two zeros, the unit of code addresses, the size of a pointer. Eight words follow.
const HEADER_LEN: usize = 8;
const HEADER_WORDS: usize = 8;
/// Names follow the header, at most here.
const NAMES_AT: usize = 256;

/// Words of `runtime.moduledata`, of which the first points to the table and the second to its
/// names.
const MODULE_TEXT: usize = 22;
/// Where the inline trees lie; since Go 1.20 two words later.
const MODULE_TREES: usize = 38;

/// The functions of a Go program whose names are wanted, by their extents; empty for all other
/// images.
pub fn go_functions(image: &[u8], wanted: &dyn Fn(&[u8]) -> bool) -> Vec<(Range<u32>, String)> {
    let found = match object::read::pe::optional_header_magic(image) {
        Ok(pe::IMAGE_NT_OPTIONAL_HDR64_MAGIC) => names::<pe::ImageNtHeaders64>(image, wanted),
        Ok(pe::IMAGE_NT_OPTIONAL_HDR32_MAGIC) => names::<pe::ImageNtHeaders32>(image, wanted),
        _ => None,
    };
    found.unwrap_or_default()
}

fn names<H: ImageNtHeaders>(
    image: &[u8],
    wanted: &dyn Fn(&[u8]) -> bool,
) -> Option<Vec<(Range<u32>, String)>> {
    let file = PeFile::<H>::parse(image).ok()?;
    let table = GoTable::find(&file)?;
    // Names can overlap, so in sum no more is read than the file has.
    let mut room = image.len();
    let functions = table.functions().map_while(|function| {
        room = room.checked_sub(function.name.len() + 1)?;
        Some(function)
    });
    let chosen = functions.filter(|function| wanted(function.name));
    let named = chosen.map(|function| (function.range, String::from_utf8_lossy(function.name).into_owned()));
    Some(named.collect())
}

/// The table, and what of the image its offsets refer to.
pub(crate) struct GoTable<'d> {
    bytes: &'d [u8],
    /// Bytes of a pointer.
    word: usize,
    /// Bytes of the shortest instruction.
    quantum: u32,
    /// Whether the records are those of Go 1.20 and later.
    is_new: bool,
    count: usize,
    /// RVA that the addresses count from.
    text: u32,
    /// Offsets of its parts.
    names: usize,
    units: usize,
    files: usize,
    values: usize,
    records: usize,
    /// The inline trees, and what lies behind them.
    trees: Option<&'d [u8]>,
}

/// A function of the table.
pub(crate) struct GoFunction<'d> {
    pub(crate) range: Range<u32>,
    pub(crate) name: &'d [u8],
    /// Offset of its record in the table.
    record: usize,
}

impl<'d> GoTable<'d> {
    /// Go's linker puts the table into `.rdata`, and writes a section `.symtab` even into stripped
    /// programs.
    pub(crate) fn find<H: ImageNtHeaders>(file: &PeFile<'d, H>) -> Option<GoTable<'d>> {
        file.section_by_name_bytes(b".symtab")?;
        let base = file.nt_headers().optional_header().image_base();
        let (first_code, _) = *code_sections(file, base).first()?;
        let (address, data) = {
            let section = file.section_by_name_bytes(b".rdata")?;
            (section.address(), section.data().ok()?)
        };
        let headers = (0..data.len()).step_by(ALIGNMENT).filter_map(|at| {
            let bytes = data.get(at..)?;
            Some((address.checked_add(at as u64)?, GoTable::parse(bytes)?))
        });
        let sections: Vec<(u64, &[u8])> =
            file.sections().filter_map(|section| Some((section.address(), section.data().ok()?))).collect();
        headers.take(MAX_HEADERS).find_map(|(address, (mut table, stated))| {
            let module = module_data(&sections, address, &table);
            let field =
                |word: usize| module.and_then(|module| pointer(module, word * table.word, table.word));
            // Since Go 1.26 only the module's data has where text begins.
            let text = [field(MODULE_TEXT), Some(stated)].into_iter().flatten();
            let text =
                text.filter_map(|text| u32::try_from(text.checked_sub(base)?).ok()).find(|rva| *rva != 0);
            let trees = field(MODULE_TREES + if table.is_new { 2 } else { 0 });
            table.trees = trees.and_then(|trees| {
                sections.iter().find_map(|(start, data)| {
                    data.get(usize::try_from(trees.checked_sub(*start)?).ok()?..)
                        .filter(|data| !data.is_empty())
                })
            });
            table.text = text.unwrap_or(first_code);
            table.function(0)?;
            Some(table)
        })
    }

    /// Reads a header. Returns also the address of text that it states.
    fn parse(bytes: &'d [u8]) -> Option<(GoTable<'d>, u64)> {
        let [magic @ (0xf0 | 0xf1), 0xff, 0xff, 0xff, 0, 0, quantum @ (1 | 4), word @ (4 | 8)] =
            *bytes.first_chunk::<HEADER_LEN>()?
        else {
            return None;
        };
        let word = usize::from(word);
        let field = |n: usize| pointer(bytes, HEADER_LEN + n * word, word);
        let offset = |n: usize| usize::try_from(field(n)?).ok().filter(|&offset| offset < bytes.len());
        let table = GoTable {
            bytes,
            word,
            quantum: quantum.into(),
            is_new: magic == 0xf1,
            count: usize::try_from(field(0)?).ok().filter(|count| (1..=MAX_FUNCTIONS).contains(count))?,
            text: 0,
            names: offset(3).filter(|names| (HEADER_LEN + HEADER_WORDS * word..=NAMES_AT).contains(names))?,
            units: offset(4)?,
            files: offset(5)?,
            values: offset(6)?,
            records: offset(7)?,
            trees: None,
        };
        Some((table, field(2)?))
    }

    /// The functions, by their number, up to the first that the table lacks.
    pub(crate) fn functions(&self) -> impl Iterator<Item = GoFunction<'d>> + '_ {
        (0..self.count).map_while(|number| self.function(number))
    }

    fn function(&self, number: usize) -> Option<GoFunction<'d>> {
        let entry = self.records.checked_add(8 * number)?;
        let [start, record, end] = [0, 4, 8].map(|at| u32_at(self.bytes, entry + at));
        let record = self.records.checked_add(record? as usize)?;
        let range = self.text.checked_add(start?)?..self.text.checked_add(end?)?;
        Some(GoFunction { range, name: self.name(u32_at(self.bytes, record.checked_add(4)?)?)?, record })
    }

    /// The name at an offset among the names.
    fn name(&self, offset: u32) -> Option<&'d [u8]> {
        c_str_at(self.bytes, self.names.checked_add(offset as usize)?)
    }
}

/// The module's data: what lies at a pointer to the table that a pointer to its names follows.
fn module_data<'d>(sections: &[(u64, &'d [u8])], address: u64, table: &GoTable<'_>) -> Option<&'d [u8]> {
    let word = table.word;
    let names = address.checked_add(table.names as u64)?;
    sections.iter().find_map(|(_, data)| {
        (0..data.len()).step_by(word).find_map(|at| {
            let is_it = pointer(data, at, word)? == address && pointer(data, at + word, word)? == names;
            is_it.then(|| data.get(at..))?
        })
    })
}

/// A little-endian number of `len` bytes, 4 or 8.
fn pointer(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    if len == 8 { u64_at(bytes, at) } else { u32_at(bytes, at).map(u64::from) }
}
