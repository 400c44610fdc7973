//! Images with DWARF, COFF symbols or exports.

const BASE: u64 = 0x1_4000_0000;
pub const TEXT: u32 = 0x1000;
pub const TEXT_SIZE: u32 = 0x10_0000;
/// IMAGE_SCN_CNT_CODE, IMAGE_SCN_MEM_EXECUTE, IMAGE_SCN_MEM_READ.
const CODE: u32 = 0x6000_0020;

/// A PE32+ image: `.text` without contents, further sections, COFF symbols.
#[derive(Default)]
pub struct Image {
    /// Name and contents.
    pub sections: Vec<(&'static str, Vec<u8>)>,
    /// Records of 18 bytes.
    pub symbols: Vec<u8>,
    /// Contents of the string table behind its length.
    pub strings: Vec<u8>,
    /// Rva and length of the export directory.
    pub exports: (u32, u32),
}

/// Offsets in the image file (PE format).
const HEADERS: usize = 0x40;
const OPTIONAL: usize = HEADERS + 24;
const SECTIONS: usize = OPTIONAL + 240;

impl Image {
    pub fn bytes(&self) -> Vec<u8> {
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
    pub fn symbol(&mut self, name: [u8; 8], offset: u32) {
        self.symbols.extend(name);
        self.symbols.extend(offset.to_le_bytes());
        self.symbols.extend(1u16.to_le_bytes());
        self.symbols.extend(0x20u16.to_le_bytes());
        self.symbols.extend([2, 0]);
    }
}

/// All, by name.
pub const ALL: [super::Bomb; 15] = [
    ("coff symbols at one address", coff_symbols_at_one_address),
    ("overlapping coff names", overlapping_coff_names),
    ("overlapping exported names", overlapping_exported_names),
    ("deep inlined functions", deep_inlined_functions),
    ("nested functions", nested_functions),
    ("references to other units", references_to_other_units),
    ("overlapping abbreviations", overlapping_abbreviations),
    ("attributes without bytes", attributes_without_bytes),
    ("shared ranges", shared_ranges),
    ("shared line program", shared_line_program),
    ("millions of files", millions_of_files),
    ("claimed files", claimed_files),
    ("files of one long folder", files_of_one_long_folder),
    ("cyclic references", cyclic_references),
    ("many rows", many_rows),
];

/// 100,000 COFF symbols at one address.
pub fn coff_symbols_at_one_address() -> Vec<u8> {
    let mut image = Image::default();
    (0..100_000u32).for_each(|n| image.symbol(format!("f{n:07}").into_bytes().try_into().unwrap(), 0));
    image.symbol(*b"g\0\0\0\0\0\0\0", 0x100);
    image.bytes()
}

/// 100,000 COFF names that overlap.
pub fn overlapping_coff_names() -> Vec<u8> {
    let mut image = Image { strings: [&vec![b'x'; 3 << 20][..], &[0]].concat(), ..Image::default() };
    for n in 0..100_000u32 {
        let name: Vec<u8> = [0, 4 + n].iter().flat_map(|word| word.to_le_bytes()).collect();
        image.symbol(name.try_into().unwrap(), n * 8);
    }
    image.bytes()
}

/// 50,000 exported names that overlap.
pub fn overlapping_exported_names() -> Vec<u8> {
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
    Image { sections: vec![(".edata", directory)], exports, ..Image::default() }.bytes()
}

/// Abbreviations: 1 a unit; 2 a function (name, address, length) with children; 3 an inlined one
/// without attributes, with children; 4 an inlined one (name of the entry at an offset of
/// `.debug_info`, address, length); 5 only a function's name; 6 a function with ranges (name,
/// offset); 7 a unit with a line program.
pub fn abbreviations() -> Vec<u8> {
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
pub fn unit(abbreviations: u32, entries: &[u8]) -> Vec<u8> {
    let len = entries.len() as u32 + 7;
    [&len.to_le_bytes()[..], &4u16.to_le_bytes(), &abbreviations.to_le_bytes(), &[8], entries].concat()
}

/// Entry 2 of those abbreviations: a function from the beginning of `.text` on.
pub fn function(name: &str, len: u32) -> Vec<u8> {
    let start = BASE + u64::from(TEXT);
    [&[2][..], name.as_bytes(), &[0], &start.to_le_bytes(), &len.to_le_bytes()].concat()
}

pub fn image(sections: &[(&'static str, Vec<u8>)]) -> Image {
    Image { sections: sections.to_vec(), ..Image::default() }
}

/// Inlined functions 100,000 deep.
pub fn deep_inlined_functions() -> Vec<u8> {
    let entries = [&[1][..], &function("f", 0x100), &[3; 100_000]].concat();
    let image = image(&[(".debug_info", unit(0, &entries)), (".debug_abbrev", abbreviations())]);
    image.bytes()
}

/// Functions in functions, without end.
pub fn nested_functions() -> Vec<u8> {
    let entries = [&[1][..], &function("f", 0x100).repeat(20_000)].concat();
    image(&[(".debug_info", unit(0, &entries)), (".debug_abbrev", abbreviations())]).bytes()
}

/// 10,000 references to the last of 20,000 units.
pub fn references_to_other_units() -> Vec<u8> {
    // The last of many units has the name that all refer to.
    let mut info = Vec::new();
    (0..20_000).for_each(|_| info.extend(unit(0, &[1, 0])));
    let target = info.len() as u32 + 12;
    info.extend(unit(0, &[&[1, 5][..], b"inlined\0", &[0]].concat()));
    let start = BASE + u64::from(TEXT);
    let site = [&[4][..], &target.to_le_bytes(), &start.to_le_bytes(), &8u32.to_le_bytes()].concat();
    info.extend(unit(0, &[&[1][..], &function("f", 0x100), &site.repeat(10_000), &[0, 0]].concat()));
    image(&[(".debug_info", info), (".debug_abbrev", abbreviations())]).bytes()
}

/// 60,000 units whose tables of abbreviations overlap.
pub fn overlapping_abbreviations() -> Vec<u8> {
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
    image(&[(".debug_info", info), (".debug_abbrev", table)]).bytes()
}

/// 20,000 entries with 100,000 attributes that take no bytes.
pub fn attributes_without_bytes() -> Vec<u8> {
    // 100,000 flags that take no byte.
    let abbreviation = [&[8, 0x2e, 0][..], &[0x3f, 0x19].repeat(100_000), &[0, 0, 0]].concat();
    let mut table = abbreviations();
    table.pop();
    table.extend(abbreviation);
    let entries = [&[1][..], &function("f", 0x100), &[0], &[8; 20_000], &[0]].concat();
    image(&[(".debug_info", unit(0, &entries)), (".debug_abbrev", table)]).bytes()
}

/// 10,000 functions that share one list of 20,000 ranges.
pub fn shared_ranges() -> Vec<u8> {
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
    image.bytes()
}

/// 5,000 units that share one line program.
pub fn shared_line_program() -> Vec<u8> {
    let lines = line_program(&[0x20; 200_000]);
    let mut info = unit(0, &[&[1][..], &function("f", 0x100), &[0, 0]].concat());
    (0..5_000).for_each(|_| info.extend(unit(0, &[7, 0, 0, 0, 0, 0])));
    image(&[(".debug_info", info), (".debug_abbrev", abbreviations()), (".debug_line", lines)]).bytes()
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

/// A table of files with six million entries of one byte.
pub fn millions_of_files() -> Vec<u8> {
    // Each file takes one byte: DW_FORM_strx1.
    with_lines(file_table(b"src", 0x25, 6 << 20, &[0])).bytes()
}

/// A table that claims more files than it has.
pub fn claimed_files() -> Vec<u8> {
    let mut lines = file_table(b"src", 0x08, 1, b"x\0");
    let count = lines.len() - 6;
    lines[count..count + 4].copy_from_slice(&[0xff, 0xff, 0xff, 0x7f]);
    with_lines(lines).bytes()
}

/// 200,000 files in one folder with a long name.
pub fn files_of_one_long_folder() -> Vec<u8> {
    let image = with_lines(file_table(&[b'x'; 500_000], 0x08, 200_000, b"x\0"));
    image.bytes()
}

/// A line program of DWARF 4, without folders and files, with these special opcodes, which each
/// make a row.
fn line_program(opcodes: &[u8]) -> Vec<u8> {
    let header = [&[1, 1, 1, 0xfb, 14, 1][..], &[0], &[0]].concat();
    let start = [&[0, 9, 2][..], &(BASE + u64::from(TEXT)).to_le_bytes()].concat();
    let program = [&start[..], opcodes, &[0, 1, 1]].concat();
    let body = [&4u16.to_le_bytes()[..], &(header.len() as u32).to_le_bytes(), &header, &program].concat();
    [&(body.len() as u32).to_le_bytes()[..], &body].concat()
}

/// 100,000 inlined functions that have the name of an entry that refers to itself twice.
pub fn cyclic_references() -> Vec<u8> {
    // An entry with DW_AT_abstract_origin and DW_AT_specification (DW_FORM_ref4).
    let mut table = abbreviations();
    table.pop();
    table.extend([8, 0x2e, 0, 0x31, 0x13, 0x47, 0x13, 0, 0, 0]);
    // The unit's header has 11 bytes, its own entry one.
    let own = 12u32.to_le_bytes();
    let start = BASE + u64::from(TEXT);
    let site = [&[4][..], &own, &start.to_le_bytes(), &8u32.to_le_bytes()].concat();
    // A function without them is in front.
    let functions = [&function("f", 0x100)[..], &[0], &function("g", 0x200)].concat();
    let entries = [&[1, 8][..], &own, &own, &functions, &site.repeat(100_000), &[0, 0]].concat();
    image(&[(".debug_info", unit(0, &entries)), (".debug_abbrev", table)]).bytes()
}

/// A line program of 2,000,000 rows.
pub fn many_rows() -> Vec<u8> {
    with_lines(line_program(&[0x20; 2_000_000])).bytes()
}
