//! Limits the cost of reading the header of a line program before it is read.
//!
//! A header of DWARF 5 states the number of its folders and files, and an entry may take as little
//! as one byte. `gimli` reads them all into a table with some 90 bytes for each. There every form
//! takes at least one byte, so the header's length limits the table.

use super::{Dwarf, DwarfEntry};
use gimli::{AttributeValue, DebugLineOffset, Reader as _, Section as _};

/// Limit for the length of a header, in bytes. The longest real ones have some thousand files and a
/// tenth of this length.
const MOST: usize = 1 << 20;

/// Checks the headers of the line programs of a unit's first entry.
///
/// # Errors
///
/// When a header is too long or damaged.
pub(super) fn check(dwarf: &Dwarf<'_>, root: &DwarfEntry<'_>) -> gimli::Result<()> {
    for attribute in root.attrs() {
        if let AttributeValue::DebugLineRef(offset) = attribute.value()
            && length(dwarf, offset)? > MOST
        {
            return Err(gimli::Error::OffsetOutOfBounds(offset.0 as u64));
        }
    }
    Ok(())
}

/// Length of the header at an offset (DWARF 5, 6.2.4: unit_length, version, from version 5 on
/// address_size and segment_selector_size, header_length).
fn length(dwarf: &Dwarf<'_>, offset: DebugLineOffset) -> gimli::Result<usize> {
    let mut input = *dwarf.debug_line.reader();
    input.skip(offset.0)?;
    let (_, format) = input.read_initial_length()?;
    if input.read_u16()? >= 5 {
        input.skip(2)?;
    }
    input.read_length(format)
}
