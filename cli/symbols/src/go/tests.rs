use super::*;
use crate::index::build::IndexBuilder;
use crate::index::layout::Origin;
use crate::index::{IndexHeader, SymbolIndex};

const BASE: u64 = 0x1_4000_0000;
const TEXT: u32 = 0x1000;
const RDATA: u32 = 0x3000;
const DATA: u32 = 0x5000;

/// A function: where it begins, its name, its values by address as (end, value), and its inlined
/// calls (name, offset of the call's line).
struct Function {
    start: u32,
    name: &'static str,
    files: &'static [(u32, i32)],
    lines: &'static [(u32, i32)],
    inlined: &'static [(u32, i32)],
    calls: &'static [(&'static str, u32)],
}

const FUNCTIONS: [Function; 4] = [
    Function { start: 0, name: "runtime.mcall", files: &[], lines: &[], inlined: &[], calls: &[] },
    Function {
        start: 0x40,
        name: "main.outer",
        files: &[(0x8, 0), (0x18, 1), (0x40, 0)],
        lines: &[(0x8, 10), (0x10, 3), (0x18, 7), (0x20, 11), (0x40, 12)],
        inlined: &[(0x8, -1), (0x10, 0), (0x18, 1), (0x40, -1)],
        // The second one is inlined into the first one, at its line 3.
        calls: &[("main.helper", 0x18), ("main.deep", 0x8)],
    },
    Function { start: 0x80, name: "runtime.goexit", files: &[], lines: &[], inlined: &[], calls: &[] },
    Function { start: 0xa0, name: "runtime.goexit1", files: &[], lines: &[], inlined: &[], calls: &[] },
];
const END: u32 = 0x100;

fn varint(value: u32) -> Vec<u8> {
    let (bytes, len) = stk_schema::bytes::leb128(value.into());
    bytes[..len].to_vec()
}

fn encoded(values: &[(u32, i32)]) -> Vec<u8> {
    let (mut at, mut before, mut out) = (0, -1, Vec::new());
    for &(end, value) in values {
        let change: i32 = value - before;
        let change = if change < 0 { (!(change as u32)) << 1 | 1 } else { (change as u32) << 1 };
        out.extend(varint(change).into_iter().chain(varint(end - at)));
        (at, before) = (end, value);
    }
    out.push(0);
    out
}

/// The table in the format of Go 1.20 (`is_new`) or 1.18, and the inlined calls.
fn table(functions: &[Function], is_new: bool, stated_text: u64) -> (Vec<u8>, Vec<u8>) {
    let mut names = vec![0];
    let mut name = |text: &str| {
        names.extend(text.bytes().chain([0]));
        (names.len() - text.len() - 1) as u32
    };
    let (mut values, mut records, mut entries, mut trees) = (vec![0], Vec::new(), Vec::new(), Vec::new());
    let words = |values: &[u32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    for function in functions {
        let mut offset = |list: &[(u32, i32)]| {
            let at = values.len() as u32;
            values.extend(if list.is_empty() { Vec::new() } else { encoded(list) });
            if list.is_empty() { 0 } else { at }
        };
        let [files, lines, inlined] = [function.files, function.lines, function.inlined].map(&mut offset);
        entries.extend(words(&[function.start, (functions.len() * 8 + 4 + records.len()) as u32]));
        let name_at = name(function.name);
        records.extend(words(&[function.start, name_at, 0, 0, 0, files, lines, 3, 1]));
        records.extend(words(if is_new { &[1, 4 << 24] } else { &[4 << 24] }));
        let calls = if function.calls.is_empty() { u32::MAX } else { trees.len() as u32 };
        records.extend(words(&[0, 0, inlined, u32::MAX, u32::MAX, u32::MAX, calls]));
        for (callee, at) in function.calls {
            let callee = name(callee);
            trees.extend(words(if is_new { &[0, 0, 0, 0][..1] } else { &[0, 0, 0][..] }));
            trees.extend(words(&[callee, *at]));
            trees.extend(words(if is_new { &[1] } else { &[] }));
        }
    }
    entries.extend(words(&[END]));
    let files = b"unused\0main.go\0other.go\0";
    let units = words(&[u32::MAX, 7, 15]);
    let mut bytes = vec![if is_new { 0xf1 } else { 0xf0 }, 0xff, 0xff, 0xff, 0, 0, 1, 8];
    let parts = [&names[..], &units, files, &values, &entries];
    let mut at = 96u64;
    let mut offsets = Vec::new();
    for part in parts {
        offsets.push(at);
        at = (at + part.len() as u64).next_multiple_of(8);
    }
    let fields = [functions.len() as u64, 2, stated_text].into_iter().chain(offsets.iter().copied());
    bytes.extend(fields.flat_map(u64::to_le_bytes));
    for (part, offset) in parts.iter().zip(&offsets) {
        bytes.resize(*offset as usize, 0);
        bytes.extend(*part);
    }
    bytes.extend(records);
    (bytes, trees)
}

/// A program with the table, whose module's data is at `.data`.
fn image(table: &[u8], trees: &[u8], is_new: bool) -> Vec<u8> {
    let table_at = 0x20;
    let mut rdata = vec![0; table_at];
    rdata.extend(table);
    let trees_at = rdata.len();
    rdata.extend(trees);
    let mut module = [0u64; 48];
    let address = BASE + u64::from(RDATA) + table_at as u64;
    (module[0], module[1]) = (address, address + 96);
    module[MODULE_TEXT] = BASE + u64::from(TEXT);
    module[MODULE_TREES + if is_new { 2 } else { 0 }] = BASE + u64::from(RDATA) + trees_at as u64;
    let data: Vec<u8> = [0u64; 4].iter().chain(&module).flat_map(|word| word.to_le_bytes()).collect();
    let sections: [(&[u8], u32, &[u8], u32); 4] = [
        (b".text", TEXT, &[0xcc; 0x200], pe::IMAGE_SCN_MEM_EXECUTE),
        (b".rdata", RDATA, &rdata, 0),
        (b".data", DATA, &data, 0),
        (b".symtab", 0x7000, &[0; 4], 0),
    ];
    let mut image = vec![0u8; 0x400];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"MZ");
    put(0x3c, &0x40u32.to_le_bytes());
    put(0x40, b"PE\0\0");
    put(0x44, &0x8664u16.to_le_bytes());
    put(0x46, &4u16.to_le_bytes());
    put(0x54, &240u16.to_le_bytes());
    put(0x58, &0x20bu16.to_le_bytes());
    put(0x58 + 24, &BASE.to_le_bytes());
    put(0x58 + 56, &0x8000u32.to_le_bytes());
    put(0x58 + 108, &16u32.to_le_bytes());
    let mut stored = 0x400u32;
    for (n, (name, rva, data, flags)) in sections.iter().enumerate() {
        let at = 0x58 + 240 + 40 * n;
        put(at, name);
        for (field, value) in
            [(8, data.len() as u32), (12, *rva), (16, data.len() as u32), (20, stored), (36, *flags)]
        {
            put(at + field, &value.to_le_bytes());
        }
        stored += data.len() as u32;
    }
    sections.iter().for_each(|section| image.extend(section.2));
    image
}

fn program(is_new: bool) -> Vec<u8> {
    let (table, trees) = table(&FUNCTIONS, is_new, 0);
    image(&table, &trees, is_new)
}

fn index(image: &[u8]) -> Option<SymbolIndex> {
    let file = PeFile::<pe::ImageNtHeaders64>::parse(image).ok()?;
    let table = GoTable::find(&file)?;
    let mut builder = IndexBuilder::new(image.len());
    let header = IndexHeader {
        guid: [0; 16],
        age: 0,
        machine: 0,
        time_date_stamp: 0,
        size_of_image: 0,
        origin: Origin::Dwarf,
        damaged_parts: add_functions(&mut builder, &table),
    };
    builder.finish(header).ok()
}

/// The frames at an offset in the text, as `name file:line`, innermost first.
fn frames(index: &SymbolIndex, offset: u32) -> Vec<String> {
    let hit = index.lookup(TEXT + offset).unwrap();
    let frames = hit.iter().flat_map(|hit| hit.frames());
    frames.map(|f| format!("{} {}:{}", f.name, f.file.unwrap_or("?"), f.line.unwrap_or(0))).collect()
}

#[test]
fn names_lines_and_inlined_functions_are_those_of_the_table() {
    for is_new in [false, true] {
        let index = index(&program(is_new)).unwrap();
        assert_eq!(index.header().damaged_parts, 0);
        assert_eq!(frames(&index, 0), ["runtime.mcall ?:0"]);
        assert_eq!(frames(&index, 0x40), ["main.outer main.go:10"]);
        assert_eq!(frames(&index, 0x48), ["main.helper other.go:3", "main.outer main.go:11"]);
        let deep = ["main.deep other.go:7", "main.helper other.go:3", "main.outer main.go:11"];
        assert_eq!(frames(&index, 0x57), deep);
        assert_eq!(frames(&index, 0x58), ["main.outer main.go:11"]);
        assert_eq!(frames(&index, 0x7f), ["main.outer main.go:12"]);
        assert_eq!(frames(&index, END), [""; 0]);
    }
}

#[test]
fn lines_of_unknown_inlined_functions_are_left_out() {
    let (table, trees) = table(&FUNCTIONS, true, BASE + u64::from(TEXT));
    let mut image = image(&table, &trees, true);
    // Without the module's data, the inlined calls are not found.
    let address = (BASE + u64::from(RDATA) + 0x20).to_le_bytes();
    let at = image.windows(8).position(|bytes| bytes == address).unwrap();
    image[at] ^= 0x40;
    let index = index(&image).unwrap();
    assert_eq!(frames(&index, 0x40), ["main.outer main.go:10"]);
    assert_eq!(frames(&index, 0x48), ["main.outer ?:0"]);
}

#[test]
fn functions_are_listed_by_their_whole_names() {
    let names: Vec<_> = go_functions(&program(true), &|_| true)
        .into_iter()
        .map(|(range, name)| (range.start, name))
        .collect();
    let expected = FUNCTIONS.map(|function| (TEXT + function.start, function.name.to_owned()));
    assert_eq!(names, expected);
    assert!(go_functions(b"MZ", &|_| true).is_empty() && go_functions(&[0; 4096], &|_| true).is_empty());
}

#[test]
fn a_call_inlined_into_itself_is_damage() {
    let calls = [("main.loop", 0x8)];
    let looped = Function { calls: Box::leak(Box::new(calls)), ..FUNCTIONS[1] };
    let (table, trees) = table(&[looped], true, 0);
    let index = index(&image(&table, &trees, true)).unwrap();
    assert_eq!(index.header().damaged_parts, 1);
    assert_eq!(frames(&index, 0x48), ["main.outer ?:0"]);
}

#[test]
fn only_a_few_headers_are_tried() {
    let (table, trees) = table(&FUNCTIONS, true, 0);
    let behind = |headers: usize| {
        // Each is whole, and leads to no function.
        let mut rdata = Vec::new();
        for _ in 0..headers {
            rdata.extend(&table[..96]);
            rdata.resize(rdata.len() + 256 - 96, 0);
        }
        let at = rdata.len();
        rdata.extend(&table);
        let trees_at = rdata.len() - at;
        (rdata, at, trees_at)
    };
    for (headers, found) in [(MAX_HEADERS - 1, true), (MAX_HEADERS, false)] {
        let (mut rdata, at, _) = behind(headers);
        // Their first record lies behind the end.
        (0..at)
            .step_by(256)
            .for_each(|header| rdata[header + 64..header + 72].copy_from_slice(&[0xf8, 0, 0, 0, 0, 0, 0, 0]));
        (0..at).step_by(256).for_each(|header| rdata[header + 0xf8 + 4..header + 0x100].fill(0xff));
        assert_eq!(!go_functions(&image(&rdata, &trees, true), &|_| true).is_empty(), found, "{headers}");
    }
}

#[test]
fn a_truncated_or_forged_table_does_not_panic() {
    let whole = program(true);
    for len in (0..whole.len()).step_by(3) {
        let _ = index(&whole[..len]);
    }
    for at in 0x400..whole.len() {
        for value in [0, 0x7f, 0xff] {
            let mut forged = whole.clone();
            forged[at] = value;
            let _ = (index(&forged), go_functions(&forged, &|_| true));
        }
    }
}
