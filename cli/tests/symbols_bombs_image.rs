//! Small images whose symbols expand to far more than their size: like `symbols_bombs`, for DWARF,
//! COFF and exported names.

use stk::symbols::index::{Origin, SymbolIndex};
use stk::symbols::{ImageFile, image_index};

const BASE: u64 = 0x1_4000_0000;
const TEXT: u32 = 0x1000;
const TEXT_SIZE: u32 = 0x10_0000;
/// IMAGE_SCN_CNT_CODE, IMAGE_SCN_MEM_EXECUTE, IMAGE_SCN_MEM_READ.
const CODE: u32 = 0x6000_0020;

/// A PE32+ image: `.text` without contents, further sections, COFF symbols.
#[derive(Default)]
struct Image {
    /// Name and contents.
    sections: Vec<(&'static str, Vec<u8>)>,
    /// Records of 18 bytes.
    symbols: Vec<u8>,
    /// Contents of the string table behind its length.
    strings: Vec<u8>,
    /// Rva and length of the export directory.
    exports: (u32, u32),
}

/// Offsets in the image file (PE format).
const HEADERS: usize = 0x40;
const OPTIONAL: usize = HEADERS + 24;
const SECTIONS: usize = OPTIONAL + 240;

impl Image {
    fn bytes(&self) -> Vec<u8> {
        let count = self.sections.len() + 1;
        let mut out = vec![0u8; (SECTIONS + 40 * count).next_multiple_of(512)];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, b"MZ");
        put(0x3c, &(HEADERS as u32).to_le_bytes());
        put(HEADERS, b"PE\0\0");
        put(HEADERS + 4, &0x8664u16.to_le_bytes());
        put(HEADERS + 6, &(count as u16).to_le_bytes());
        put(HEADERS + 20, &240u16.to_le_bytes());
        put(OPTIONAL, &0x20bu16.to_le_bytes());
        put(OPTIONAL + 24, &BASE.to_le_bytes());
        put(OPTIONAL + 56, &0x1000_0000u32.to_le_bytes());
        put(OPTIONAL + 108, &16u32.to_le_bytes());
        put(OPTIONAL + 112, &self.exports.0.to_le_bytes());
        put(OPTIONAL + 116, &self.exports.1.to_le_bytes());
        let mut strings = self.strings.clone();
        let mut header = |out: &mut Vec<u8>, n: usize, name: &str, place: [u32; 4], flags: u32| {
            let at = SECTIONS + 40 * n;
            let mut short = name.as_bytes().to_vec();
            if short.len() > 8 {
                short = format!("/{}", strings.len() + 4).into_bytes();
                strings.extend(name.bytes().chain([0]));
            }
            out[at..at + short.len()].copy_from_slice(&short);
            let words = place.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
            out[at + 8..at + 24].copy_from_slice(&words);
            out[at + 36..at + 40].copy_from_slice(&flags.to_le_bytes());
        };
        header(&mut out, 0, ".text", [TEXT_SIZE, TEXT, 0, 0], CODE);
        for (n, (name, contents)) in self.sections.iter().enumerate() {
            let (start, len) = (out.len() as u32, contents.len() as u32);
            header(&mut out, n + 1, name, [len, 0x20_0000 + 0x100_0000 * n as u32, len, start], 0x4000_0040);
            out.extend(contents);
        }
        let symbols = out.len() as u32;
        out[HEADERS + 12..HEADERS + 16].copy_from_slice(&symbols.to_le_bytes());
        let number = (self.symbols.len() / 18) as u32;
        out[HEADERS + 16..HEADERS + 20].copy_from_slice(&number.to_le_bytes());
        out.extend(&self.symbols);
        out.extend((strings.len() as u32 + 4).to_le_bytes());
        out.extend(&strings);
        out
    }

    /// Adds a function of the COFF symbol table, in `.text`. `name` is in the record's form.
    fn symbol(&mut self, name: [u8; 8], offset: u32) {
        self.symbols.extend(name);
        self.symbols.extend(offset.to_le_bytes());
        self.symbols.extend(1u16.to_le_bytes());
        self.symbols.extend(0x20u16.to_le_bytes());
        self.symbols.extend([2, 0]);
    }

    fn index(&self) -> SymbolIndex {
        image_index(&self.bytes()).unwrap().expect("there are symbols")
    }
}

#[test]
fn many_coff_symbols_at_one_address_take_linear_time() {
    let mut image = Image::default();
    (0..100_000u32).for_each(|n| image.symbol(format!("f{n:07}").into_bytes().try_into().unwrap(), 0));
    image.symbol(*b"g\0\0\0\0\0\0\0", 0x100);
    let index = image.index();
    assert_eq!((index.header().origin, index.header().damaged_parts), (Origin::Coff, 0));
    assert_eq!(
        index.ranges().map(|range| (range.start, range.end)).collect::<Vec<_>>(),
        [(TEXT, TEXT + 0x100), (TEXT + 0x100, TEXT + TEXT_SIZE)]
    );
}

#[test]
fn coff_names_that_overlap_are_damage() {
    let mut image = Image { strings: [&vec![b'x'; 3 << 20][..], &[0]].concat(), ..Image::default() };
    for n in 0..100_000u32 {
        let name: Vec<u8> = [0, 4 + n].iter().flat_map(|word| word.to_le_bytes()).collect();
        image.symbol(name.try_into().unwrap(), n * 8);
    }
    let bytes = image.bytes();
    let index = image.index();
    assert_ne!(index.header().damaged_parts, 0);
    assert!(index.as_bytes().len() < 16 * bytes.len());
}

#[test]
fn overlapping_exported_names_take_no_more_memory_than_the_file() {
    let count = 50_000u32;
    let start = 0x20_0000u32;
    let tables = start + 40;
    // Behind the directory: addresses, names, ordinals, and the text that holds all names.
    let text = tables + count * 10;
    let mut directory: Vec<u8> =
        [0, 0, 0, 0, 1, count, count, tables, tables + count * 4, tables + count * 8]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
    (0..count).for_each(|n| directory.extend((TEXT + n).to_le_bytes()));
    (0..count).for_each(|n| directory.extend((text + n).to_le_bytes()));
    (0..count).for_each(|n| directory.extend((n as u16).to_le_bytes()));
    directory.extend(vec![b'x'; 1 << 20]);
    directory.push(0);
    let exports = (start, directory.len() as u32);
    let bytes = Image { sections: vec![(".edata", directory)], exports, ..Image::default() }.bytes();
    let names: usize = ImageFile::parse(&bytes).unwrap().exports.iter().map(|(_, name)| name.len()).sum();
    assert!(names != 0 && names <= bytes.len(), "{names}");
}

/// Abbreviations: 1 a unit; 2 a function (name, address, length) with children; 3 an inlined one
/// without attributes, with children; 4 an inlined one (name of the entry at an offset of
/// `.debug_info`, address, length); 5 only a function's name; 6 a function with ranges (name,
/// offset); 7 a unit with a line program.
fn abbreviations() -> Vec<u8> {
    [
        &[1, 0x11, 1, 0, 0][..],
        &[2, 0x2e, 1, 0x03, 0x08, 0x11, 0x01, 0x12, 0x06, 0, 0],
        &[3, 0x1d, 1, 0, 0],
        &[4, 0x1d, 0, 0x31, 0x10, 0x11, 0x01, 0x12, 0x06, 0, 0],
        &[5, 0x2e, 0, 0x03, 0x08, 0, 0],
        &[6, 0x2e, 0, 0x03, 0x08, 0x55, 0x17, 0, 0],
        &[7, 0x11, 1, 0x10, 0x17, 0, 0],
        &[0],
    ]
    .concat()
}

/// A unit of DWARF 4 with a table of abbreviations.
fn unit(abbreviations: u32, entries: &[u8]) -> Vec<u8> {
    let len = entries.len() as u32 + 7;
    [&len.to_le_bytes()[..], &4u16.to_le_bytes(), &abbreviations.to_le_bytes(), &[8], entries].concat()
}

/// Entry 2 of those abbreviations: a function from the beginning of `.text` on.
fn function(name: &str, len: u32) -> Vec<u8> {
    let start = BASE + u64::from(TEXT);
    [&[2][..], name.as_bytes(), &[0], &start.to_le_bytes(), &len.to_le_bytes()].concat()
}

fn image(sections: &[(&'static str, Vec<u8>)]) -> Image {
    Image { sections: sections.to_vec(), ..Image::default() }
}

fn name_at(index: &SymbolIndex, rva: u32) -> Option<String> {
    let hit = index.lookup(rva).unwrap()?;
    hit.frames().next().map(|frame| frame.name.to_owned())
}

#[test]
fn inlined_functions_a_hundred_thousand_deep_take_linear_time() {
    let entries = [&[1][..], &function("f", 0x100), &[3; 100_000]].concat();
    let image = image(&[(".debug_info", unit(0, &entries)), (".debug_abbrev", abbreviations())]);
    assert_eq!(name_at(&image.index(), TEXT).as_deref(), Some("f"));
}

#[test]
fn endlessly_nested_functions_are_damage() {
    let entries = [&[1][..], &function("f", 0x100).repeat(20_000)].concat();
    let index = image(&[(".debug_info", unit(0, &entries)), (".debug_abbrev", abbreviations())]).index();
    assert_ne!(index.header().damaged_parts, 0);
    assert_eq!(name_at(&index, TEXT).as_deref(), Some("f"));
}

#[test]
fn references_to_other_units_do_not_scan_all_units() {
    // The last of many units has the name that all refer to.
    let mut info = Vec::new();
    (0..20_000).for_each(|_| info.extend(unit(0, &[1, 0])));
    let target = info.len() as u32 + 12;
    info.extend(unit(0, &[&[1, 5][..], b"inlined\0", &[0]].concat()));
    let start = BASE + u64::from(TEXT);
    let site = [&[4][..], &target.to_le_bytes(), &start.to_le_bytes(), &8u32.to_le_bytes()].concat();
    info.extend(unit(0, &[&[1][..], &function("f", 0x100), &site.repeat(10_000), &[0, 0]].concat()));
    let index = image(&[(".debug_info", info), (".debug_abbrev", abbreviations())]).index();
    assert_eq!(name_at(&index, TEXT).as_deref(), Some("inlined"));
}

#[test]
fn tables_of_abbreviations_that_overlap_are_damage() {
    // A long table. For each of its entries there is a unit that reads from there on.
    let entry = [1, 0x11, 0, 0, 0];
    let count = 60_000u32;
    let table: Vec<u8> = (0..count)
        .flat_map(|n| {
            // Numbers of three bytes (ULEB128).
            let code = [0x80 | n as u8, 0x80 | (n >> 7) as u8, 1 + (n >> 14) as u8];
            [&code[..], &entry[1..]].concat()
        })
        .chain([0])
        .collect();
    let mut info = unit(count * 7 + 1, &[&[1][..], &function("f", 0x100), &[0, 0]].concat());
    (0..count).for_each(|n| info.extend(unit(n * 7, &[0x80, 0x80, 1])));
    let table = [table, abbreviations()].concat();
    let index = image(&[(".debug_info", info), (".debug_abbrev", table)]).index();
    assert_ne!(index.header().damaged_parts, 0);
    assert_eq!(name_at(&index, TEXT).as_deref(), Some("f"));
}

#[test]
fn entries_with_attributes_that_take_no_bytes_are_damage() {
    // 100,000 flags that take no byte.
    let abbreviation = [&[8, 0x2e, 0][..], &[0x3f, 0x19].repeat(100_000), &[0, 0, 0]].concat();
    let mut table = abbreviations();
    table.pop();
    table.extend(abbreviation);
    let entries = [&[1][..], &function("f", 0x100), &[0], &[8; 20_000], &[0]].concat();
    let index = image(&[(".debug_info", unit(0, &entries)), (".debug_abbrev", table)]).index();
    assert_ne!(index.header().damaged_parts, 0);
    assert_eq!(name_at(&index, TEXT).as_deref(), Some("f"));
}

#[test]
fn functions_that_share_one_list_of_ranges_expand_only_to_the_limit() {
    let start = BASE + u64::from(TEXT);
    // Pairs of addresses; behind them the end.
    let mut ranges: Vec<u8> = (0..20_000u64)
        .flat_map(|n| [start + n * 16, start + n * 16 + 8])
        .flat_map(u64::to_le_bytes)
        .collect();
    ranges.extend([0; 16]);
    let shared = [&[6][..], b"g\0", &0u32.to_le_bytes()].concat().repeat(10_000);
    let entries = [&[1][..], &function("f", 0x100), &[0], &shared, &[0]].concat();
    let image = image(&[
        (".debug_info", unit(0, &entries)),
        (".debug_abbrev", abbreviations()),
        (".debug_ranges", ranges),
    ]);
    let index = image.index();
    assert_ne!(index.header().damaged_parts, 0);
    assert!(index.as_bytes().len() < 16 * image.bytes().len() + (4 << 20));
}

#[test]
fn units_that_share_one_line_program_expand_only_to_the_limit() {
    // Version 4, without folders and files, then special opcodes that each make a row.
    let header = [&[1, 1, 1, 0xfb, 14, 1][..], &[0], &[0]].concat();
    let start = [&[0, 9, 2][..], &(BASE + u64::from(TEXT)).to_le_bytes()].concat();
    let program = [&start[..], &[0x20; 200_000], &[0, 1, 1]].concat();
    let body = [&4u16.to_le_bytes()[..], &(header.len() as u32).to_le_bytes(), &header, &program].concat();
    let lines = [&(body.len() as u32).to_le_bytes()[..], &body].concat();
    let mut info = unit(0, &[&[1][..], &function("f", 0x100), &[0, 0]].concat());
    (0..5_000).for_each(|_| info.extend(unit(0, &[7, 0, 0, 0, 0, 0])));
    let index =
        image(&[(".debug_info", info), (".debug_abbrev", abbreviations()), (".debug_line", lines)]).index();
    assert_ne!(index.header().damaged_parts, 0);
    assert_eq!(name_at(&index, TEXT).as_deref(), Some("f"));
}

/// A line program of DWARF 5 without rows: one folder, and `files` files in it with the same name.
/// `file` is the entry of each, in the form `form`.
fn file_table(folder: &[u8], form: u8, files: u32, file: &[u8]) -> Vec<u8> {
    let count =
        [0x80 | files as u8, 0x80 | (files >> 7) as u8, 0x80 | (files >> 14) as u8, (files >> 21) as u8];
    let header = [
        // Of instructions, then no opcode has operands; DW_LNCT_path as DW_FORM_string.
        &[1, 1, 1, 0xfb, 14, 1, 1, 1, 0x08, 1][..],
        folder,
        &[0, 1, 1, form],
        &count,
        &file.repeat(files as usize),
    ]
    .concat();
    let body = [&5u16.to_le_bytes()[..], &[8, 0], &(header.len() as u32).to_le_bytes(), &header].concat();
    [&(body.len() as u32).to_le_bytes()[..], &body].concat()
}

/// An image with one unit for a function and, behind it, one for a line program.
fn with_lines(lines: Vec<u8>) -> Image {
    let mut info = unit(0, &[&[1][..], &function("f", 0x100), &[0, 0]].concat());
    info.extend(unit(0, &[7, 0, 0, 0, 0, 0]));
    image(&[(".debug_info", info), (".debug_abbrev", abbreviations()), (".debug_line", lines)])
}

#[test]
fn a_file_table_of_millions_of_files_is_damage() {
    // Each file takes one byte: DW_FORM_strx1.
    let index = with_lines(file_table(b"src", 0x25, 6 << 20, &[0])).index();
    assert_eq!(index.header().damaged_parts, 1);
    assert_eq!(name_at(&index, TEXT).as_deref(), Some("f"));
}

#[test]
fn a_file_table_that_claims_more_files_than_it_has_is_damage() {
    let mut lines = file_table(b"src", 0x08, 1, b"x\0");
    let count = lines.len() - 6;
    lines[count..count + 4].copy_from_slice(&[0xff, 0xff, 0xff, 0x7f]);
    let index = with_lines(lines).index();
    assert_eq!(index.header().damaged_parts, 1);
    assert_eq!(name_at(&index, TEXT).as_deref(), Some("f"));
}

#[test]
fn files_that_share_one_long_folder_expand_only_to_the_limit() {
    let image = with_lines(file_table(&[b'x'; 500_000], 0x08, 200_000, b"x\0"));
    let index = image.index();
    assert_ne!(index.header().damaged_parts, 0);
    assert!(index.as_bytes().len() < 16 * image.bytes().len() + (4 << 20));
}
