//! Finds where Go's stacks start. A goroutine's outermost function is `runtime.goexit`, a system
//! stack's is `runtime.mstart`. Neither has a caller or unwind data. Their addresses are in the
//! table of functions that every Go program has, stripped or not (pclntab; Go's `debug/gosym` and
//! `runtime/symtab.go`, format of Go 1.18 and later).

use std::ops::Range;

/// Functions that have no caller on their stack. The scheduler switches to a thread's system stack
/// through `mcall`, which leaves no return address.
const STACK_STARTS: [&[u8]; 4] = [b"runtime.goexit", b"runtime.mstart", b"runtime.rt0_go", b"runtime.mcall"];

/// Upper limit for the number of functions, against forged counts.
const MAX_FUNCTIONS: usize = 1 << 22;
/// The table begins at a multiple of this in the file.
const ALIGNMENT: usize = 16;
/// Magic number, two zeros, the unit of code addresses, the size of a pointer. Eight words follow.
const HEADER_LEN: usize = 8;

/// Facts about the image that holds a table, which the table's addresses need.
#[derive(Clone, Copy)]
pub(super) struct GoPlacement {
    /// Preferred load address, since the table's start of text is absolute.
    pub image_base: u64,
    /// RVA of the first executable section, since from Go 1.26 on the table does not state where
    /// text starts.
    pub text: u32,
}

/// The code ranges (RVAs) of the functions that stacks start in, by the table in `data`, a section
/// of a Go program. Empty if there is no valid table.
pub(super) fn stack_starts(data: &[u8], placement: GoPlacement) -> Vec<Range<u32>> {
    let candidates = (0..data.len()).step_by(ALIGNMENT);
    // A section can be full of headers that share one table.
    let mut room = data.len();
    candidates
        .filter_map(|at| GoTable::parse(&data[at..]))
        .map_while(|table| {
            room = room.checked_sub(table.functions.min(data.len() / 8) + 1)?;
            Some(table.starts(placement))
        })
        .flatten()
        .next()
        .unwrap_or_default()
}

/// The table of functions.
struct GoTable<'a> {
    bytes: &'a [u8],
    functions: usize,
    text_start: u64,
    /// Offset of the names.
    names: usize,
    /// Offset of the function table. Its entries count from its start.
    table: usize,
}

impl<'a> GoTable<'a> {
    fn parse(bytes: &'a [u8]) -> Option<GoTable<'a>> {
        let [0xf0 | 0xf1, 0xff, 0xff, 0xff, 0, 0, 1 | 4, word @ (4 | 8)] =
            *bytes.first_chunk::<HEADER_LEN>()?
        else {
            return None;
        };
        let word = usize::from(word);
        let field = |n: usize| read(bytes, HEADER_LEN + n * word, word);
        let functions = usize::try_from(field(0)?).ok().filter(|&count| count <= MAX_FUNCTIONS)?;
        let offset = |n: usize| usize::try_from(field(n)?).ok().filter(|&offset| offset < bytes.len());
        Some(GoTable { bytes, functions, text_start: field(2)?, names: offset(3)?, table: offset(7)? })
    }

    fn starts(&self, placement: GoPlacement) -> Option<Vec<Range<u32>>> {
        let text = match self.text_start {
            0 => placement.text,
            absolute => u32::try_from(absolute.checked_sub(placement.image_base)?).ok()?,
        };
        let mut found = Vec::new();
        for n in 0..self.functions {
            let entry = self.table + 8 * n;
            let (start, record) = (self.u32(entry)?, self.u32(entry + 4)?);
            let name = self.u32(self.table.checked_add(record as usize)?.checked_add(4)?)?;
            let name = self.bytes.get(self.names.checked_add(name as usize)?..)?;
            let named =
                |wanted: &&[u8]| name.strip_prefix(*wanted).is_some_and(|rest| rest.first() == Some(&0));
            if STACK_STARTS.iter().any(named) {
                let end = self.u32(entry + 8)?;
                found.push(text.checked_add(start)?..text.checked_add(end)?);
            }
        }
        (!found.is_empty()).then_some(found)
    }

    fn u32(&self, at: usize) -> Option<u32> {
        read(self.bytes, at, 4).and_then(|value| u32::try_from(value).ok())
    }
}

/// A little-endian number of `len` bytes.
fn read(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(len)?)?;
    Some(bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table in the format of `runtime/symtab.go`, of functions (offset, name). `end` is the end
    /// of the last one.
    fn table(functions: &[(u32, &str)], end: u32, text_start: u64) -> Vec<u8> {
        let mut names = vec![0];
        let mut records = Vec::new();
        let mut entries = Vec::new();
        let entries_len = functions.len() * 8 + 4;
        for (start, name) in functions {
            entries
                .extend([*start, (entries_len + records.len()) as u32].iter().flat_map(|v| v.to_le_bytes()));
            records.extend([*start, names.len() as u32].iter().flat_map(|v| v.to_le_bytes()));
            records.extend([0; 36]);
            names.extend(name.bytes().chain([0]));
        }
        entries.extend(end.to_le_bytes());
        names.resize(names.len().next_multiple_of(8), 0);
        let names_at = HEADER_LEN + 8 * 8;
        let mut bytes = vec![0xf1, 0xff, 0xff, 0xff, 0, 0, 1, 8];
        let fields = [
            functions.len() as u64,
            0,
            text_start,
            names_at as u64,
            0,
            0,
            0,
            (names_at + names.len()) as u64,
        ];
        bytes.extend(fields.iter().flat_map(|v| v.to_le_bytes()));
        bytes.extend(names);
        bytes.extend(entries);
        bytes.extend(records);
        bytes
    }

    const FUNCTIONS: [(u32, &str); 5] = [
        (0, "main.main"),
        (0x40, "runtime.mcall"),
        (0x80, "runtime.goexit"),
        (0xa0, "runtime.goexit1"),
        (0xc0, "x"),
    ];
    const PLACEMENT: GoPlacement = GoPlacement { image_base: 0x1_4000_0000, text: 0x1000 };

    #[test]
    fn start_functions_are_found_by_their_whole_names() {
        let expected = [0x1040..0x1080, 0x1080..0x10a0];
        let mut section = vec![0xf1; 64];
        section.extend(table(&FUNCTIONS, 0x100, 0));
        assert_eq!(stack_starts(&section, PLACEMENT), expected);
        // Up to Go 1.25 the table states where text starts.
        let stated = table(&FUNCTIONS, 0x100, 0x1_4000_3000);
        assert_eq!(stack_starts(&stated, PLACEMENT), [0x3040..0x3080, 0x3080..0x30a0]);
        assert_eq!(stack_starts(&[0; 256], PLACEMENT), []);
    }

    #[test]
    fn the_work_on_headers_that_share_one_table_is_limited() {
        let functions: Vec<(u32, &str)> = (0..20_000).map(|n| (n * 16, "x")).collect();
        let shared = table(&functions, 20_000 * 16, 0);
        // In front of the table lie copies of its header. Their offsets lead to it too.
        let copies = 20_000;
        let mut section = Vec::new();
        for n in (1..=copies).rev() {
            let mut header = shared[..HEADER_LEN + 8 * 8].to_vec();
            for field in [3, 7] {
                let at = HEADER_LEN + 8 * field;
                let offset = u64::from_le_bytes(header[at..at + 8].try_into().unwrap()) + n * 80;
                header[at..at + 8].copy_from_slice(&offset.to_le_bytes());
            }
            header.resize(80, 0);
            section.extend(header);
        }
        section.extend(shared);
        assert_eq!(stack_starts(&section, PLACEMENT), []);
    }

    #[test]
    fn a_truncated_or_forged_table_gives_nothing_and_does_not_panic() {
        let whole = table(&FUNCTIONS, 0x100, 0);
        for len in 0..whole.len() {
            let _ = stack_starts(&whole[..len], PLACEMENT);
        }
        for at in 0..whole.len() {
            for value in [0, 0x7f, 0xff] {
                let mut forged = whole.clone();
                forged[at] = value;
                let _ = stack_starts(&forged, PLACEMENT);
            }
        }
    }
}
