//! The sections of a PE image that its symbols are in, and symbols without a size: the COFF symbol
//! table and exported names.

use std::collections::HashMap;

use object::read::pe::{ImageNtHeaders, PeFile};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SectionFlags, SymbolKind, pe};

use super::index::build::IndexBuilder;
use super::index::layout::{FunctionRecord, LineRow, RecordKind};

/// Contents of sections by name. Names can be in the string table, where they can overlap.
pub(super) fn sections<'d, H: ImageNtHeaders>(
    file: &PeFile<'d, H>,
    builder: &mut IndexBuilder,
) -> HashMap<&'d [u8], &'d [u8]> {
    let mut sections = HashMap::new();
    for section in file.sections() {
        let Ok(name) = section.name_bytes() else {
            builder.spend_endless();
            continue;
        };
        if !builder.spend(name.len()) {
            break;
        }
        // Of sections with equal names, the first counts.
        if let Ok(data) = section.data() {
            sections.entry(name).or_insert(data);
        }
    }
    sections
}

/// Functions of the COFF symbol table (rva and name), and whether these are all. Names can overlap,
/// so in sum at most four times the file's length is read.
pub(super) fn coff_symbols<'d, H: ImageNtHeaders>(
    file: &PeFile<'d, H>,
    base: u64,
    stored: usize,
) -> (Vec<(u32, &'d [u8])>, bool) {
    let mut room = stored.saturating_mul(4);
    let mut found = Vec::new();
    let symbols = file.symbols().filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text);
    for symbol in symbols {
        let name = symbol.name_bytes().ok();
        // For a name without an end, the rest of the file was searched, so it costs a share of the
        // file's length.
        let Some(left) = room.checked_sub(name.map_or(stored / 16, <[u8]>::len)) else {
            return (found, false);
        };
        room = left;
        let rva = symbol.address().checked_sub(base).and_then(|rva| u32::try_from(rva).ok());
        found.extend(rva.zip(name).filter(|(_, name)| !name.is_empty()));
    }
    (found, true)
}

/// Executable sections as rva ranges, sorted.
pub(super) fn code_sections<H: ImageNtHeaders>(file: &PeFile<'_, H>, base: u64) -> Vec<(u32, u32)> {
    let sections = file.sections();
    let mut code: Vec<(u32, u32)> = sections
        .filter(|section| match section.flags() {
            SectionFlags::Coff { characteristics } => characteristics & pe::IMAGE_SCN_MEM_EXECUTE != 0,
            _ => false,
        })
        .filter_map(|section| {
            let start = u32::try_from(section.address().checked_sub(base)?).ok()?;
            Some((start, start.checked_add(u32::try_from(section.size()).ok()?)?))
        })
        .collect();
    code.sort_unstable();
    code
}

/// Adds names without a size. Each extends to the next one or to the section's end. `lines` are the
/// rows, sorted, of code that no function with a size covers.
pub(super) fn add_sizeless(
    builder: &mut IndexBuilder,
    mut names: Vec<(u32, &[u8])>,
    code: &[(u32, u32)],
    kind: RecordKind,
    lines: &[LineRow],
) {
    names.sort_unstable();
    // For each name, the next higher address.
    let mut next = vec![u32::MAX; names.len()];
    for n in (1..names.len()).rev() {
        next[n - 1] = if names[n].0 > names[n - 1].0 { names[n].0 } else { next[n] };
    }
    for (&(start, name), &next) in names.iter().zip(&next) {
        let after = code.partition_point(|section| section.0 <= start);
        let Some(section) = code[..after].last().filter(|section| start < section.1) else { continue };
        let name = builder.string(name);
        let end = next.min(section.1);
        builder.add(&FunctionRecord { start, end, name, kind, lines, sites: &[], inlined: &[] });
    }
}
