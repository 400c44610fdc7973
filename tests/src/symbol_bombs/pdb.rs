//! PDBs.

use crate::pdb_file::{self, NO_STREAM, container, record, words};

/// IMAGE_SCN_CNT_CODE, IMAGE_SCN_MEM_EXECUTE, IMAGE_SCN_MEM_READ.
const CODE: u32 = 0x6000_0020;
const IDS: u32 = 0x1000;
/// Offset of a module's symbols in its stream.
const SYMBOLS: u32 = 4;

/// A PDB with the given number of modules, which all share one stream.
pub struct Pdb {
    pub symbols: Vec<u8>,
    pub c13: Vec<u8>,
    /// The `/names` stream's text.
    pub names: Vec<u8>,
    /// Records of the stream of ids, from their length on.
    pub ids: Vec<Vec<u8>>,
    /// Entries of its skip list: index, offset.
    pub skips: Vec<(u32, u32)>,
    pub publics: Vec<u8>,
    pub sections: Vec<(u32, u32)>,
    pub modules: usize,
}

impl Pdb {
    /// One module without symbols, in a section of a megabyte.
    pub fn of_one_module() -> Pdb {
        Pdb {
            symbols: Vec::new(),
            c13: Vec::new(),
            names: b"\0".to_vec(),
            ids: Vec::new(),
            skips: Vec::new(),
            publics: Vec::new(),
            sections: vec![(0x1000, 0x10_0000)],
            modules: 1,
        }
    }

    /// S_GPROC32 at an offset in the first section, without its S_END. Returns the record's offset
    /// in the module.
    pub fn procedure(&mut self, offset: u32, len: u32, name: &str) -> u32 {
        let at = self.symbols.len() as u32 + SYMBOLS;
        let body = [&words(&[0, 0, 0, len, 0, len, 0, offset])[..], &1u16.to_le_bytes(), &[0]].concat();
        record(&mut self.symbols, 0x1110, &body, name);
        at
    }

    pub fn end(&mut self) {
        self.symbols.extend([2, 0, 6, 0]);
    }

    /// S_INLINESITE of the function with this id, without its end.
    pub fn inline_site(&mut self, id: u32, annotations: &[u8]) {
        let mut bytes = [&0x114du16.to_le_bytes()[..], &words(&[0, 0, id]), annotations].concat();
        bytes.resize((bytes.len() + 2).next_multiple_of(4) - 2, 0);
        self.symbols.extend((bytes.len() as u16).to_le_bytes());
        self.symbols.extend(bytes);
    }

    pub fn inline_site_end(&mut self) {
        self.symbols.extend([2, 0, 0x4e, 0x11]);
    }

    /// A subsection of the C13 data.
    pub fn subsection(&mut self, kind: u32, body: &[u8]) {
        self.c13.extend(words(&[kind, body.len() as u32]));
        self.c13.extend(body);
        self.c13.resize(self.c13.len().next_multiple_of(4), 0);
    }

    pub fn id(&mut self, kind: u16, body: &[u8]) -> u32 {
        let mut bytes = [&kind.to_le_bytes()[..], body].concat();
        bytes.resize((bytes.len() + 2).next_multiple_of(4) - 2, 0);
        self.ids.push([&(bytes.len() as u16).to_le_bytes()[..], &bytes].concat());
        IDS + self.ids.len() as u32 - 1
    }

    pub fn bytes(&self) -> Vec<u8> {
        let header = |&(start, size): &(u32, u32)| {
            [&b".text\0\0\0"[..], &words(&[size, start, size, 0x400, 0, 0, 0, CODE])].concat()
        };
        let module = [&words(&[4])[..], &self.symbols, &self.c13].concat();
        let names = [&words(&[0xeffe_effe, 1, self.names.len() as u32])[..], &self.names].concat();
        let skips: Vec<u8> = self.skips.iter().flat_map(|&(index, offset)| words(&[index, offset])).collect();
        container(&[
            Vec::new(),
            information(),
            Vec::new(),
            self.debug_information(),
            self.id_stream(),
            self.publics.clone(),
            self.sections.iter().flat_map(header).collect(),
            module,
            names,
            skips,
        ])
    }

    pub fn debug_information(&self) -> Vec<u8> {
        let mut module = vec![0u8; 64];
        module[34..36].copy_from_slice(&7u16.to_le_bytes());
        module[36..40].copy_from_slice(&(self.symbols.len() as u32 + SYMBOLS).to_le_bytes());
        module[44..48].copy_from_slice(&(self.c13.len() as u32).to_le_bytes());
        module.extend(b"a\0a\0");
        let modules = module.repeat(self.modules);
        let mut debug = [NO_STREAM; 11];
        debug[5] = 6;
        pdb_file::debug_information(&modules, &[], debug)
    }

    fn id_stream(&self) -> Vec<u8> {
        let records = self.ids.concat();
        let end = IDS + self.ids.len() as u32;
        let mut header = words(&[20_040_203, 56, IDS, end, records.len() as u32]);
        let hash = if self.skips.is_empty() { NO_STREAM } else { 9 };
        header.extend(hash.to_le_bytes());
        header.extend(NO_STREAM.to_le_bytes());
        // Key size, buckets, hash values, skip list (offset, length), hash adjustments.
        header.extend(words(&[4, 0, 0, 0, 0, self.skips.len() as u32 * 8, 0, 0]));
        [header, records].concat()
    }
}

/// Version, signature, age, GUID, a table of named streams that has only `/names`, a feature code.
pub fn information() -> Vec<u8> {
    let strings = b"/names\0\0";
    let mut out = [&words(&[20_000_404, 0, 1])[..], &[7; 16], &words(&[strings.len() as u32])].concat();
    out.extend(strings);
    // Size, capacity, one word of present entries, none of deleted ones; the entry: name, stream.
    out.extend(words(&[1, 1, 1, 1, 0, 0, 8, 20_140_508]));
    out
}

/// DEBUG_S_LINES for the beginning of the first section, with its blocks of (file, rows, stated
/// length, rows of 8 bytes).
pub fn lines(blocks: &[u8]) -> Vec<u8> {
    [&words(&[0])[..], &1u16.to_le_bytes(), &0u16.to_le_bytes(), &words(&[0x10_0000]), blocks].concat()
}

/// All, by name.
pub const ALL: [super::Bomb; 21] = [
    ("overlapping line blocks", overlapping_line_blocks),
    ("procedures over all lines", procedures_over_all_lines),
    ("deep inline sites", deep_inline_sites),
    ("modules of one stream", modules_of_one_stream),
    ("separated code", separated_code),
    ("nested lists", nested_lists),
    ("useless skip list", useless_skip_list),
    ("overlapping file names", overlapping_file_names),
    ("publics in sections", publics_in_sections),
    ("overlapping stream names", overlapping_stream_names),
    ("cyclic scopes", cyclic_scopes),
    ("endless inline sites", endless_inline_sites),
    ("folded procedures", folded_procedures),
    ("many lines", many_lines),
    ("claimed lines", claimed_lines),
    ("huge pages", huge_pages),
    ("empty pages", empty_pages),
    ("huge directory", huge_directory),
    ("claimed streams", claimed_streams),
    ("huge streams", huge_streams),
    ("absent streams", absent_streams),
];

/// Each block of lines claims all bytes behind it.
pub fn overlapping_line_blocks() -> Vec<u8> {
    let mut pdb = Pdb::of_one_module();
    pdb.procedure(0, 0x100, "main");
    pdb.end();
    // Each block claims all bytes behind it, and the next one begins behind its header.
    let count = 40_000u32;
    let blocks: Vec<u8> = (0..count).flat_map(|n| words(&[0, (count - n - 1) * 12 / 8, 12])).collect();
    pdb.subsection(0xf2, &lines(&blocks));
    pdb.bytes()
}

/// 20,000 procedures, each of which claims all of 50,000 lines.
pub fn procedures_over_all_lines() -> Vec<u8> {
    let mut pdb = Pdb::of_one_module();
    (0..20_000).for_each(|_| {
        pdb.procedure(0, 0x10_0000, "f");
        pdb.end();
    });
    let rows: Vec<u8> = (0..50_000u32).flat_map(|n| words(&[n * 16, n % 1000 + 1])).collect();
    let block = [&words(&[0, 50_000, 12 + rows.len() as u32])[..], &rows].concat();
    pdb.subsection(0xf2, &lines(&block));
    pdb.bytes()
}

/// 500 nested inline sites over 60,000 lines.
pub fn deep_inline_sites() -> Vec<u8> {
    let mut pdb = Pdb::of_one_module();
    pdb.procedure(0, 0x10_0000, "f");
    // BA_OP_ChangeCodeLengthAndCodeOffset: a row of the largest length, at the beginning.
    (0..500).for_each(|_| pdb.inline_site(1, &[12, 0xc0, 0x0f, 0xff, 0xff, 0]));
    (0..500).for_each(|_| pdb.inline_site_end());
    pdb.end();
    let rows: Vec<u8> = (0..60_000u32).flat_map(|n| words(&[n * 16, n % 0x0f_0000 + 1])).collect();
    let block = [&words(&[0, 60_000, 12 + rows.len() as u32])[..], &rows].concat();
    pdb.subsection(0xf2, &lines(&block));
    pdb.bytes()
}

/// 20,000 modules that share one stream.
pub fn modules_of_one_stream() -> Vec<u8> {
    let mut pdb = Pdb::of_one_module();
    pdb.modules = 20_000;
    (0..20_000).for_each(|n| {
        pdb.procedure(n * 16, 16, "f");
        pdb.end();
    });
    pdb.bytes()
}

/// 60,000 procedures with rows in separated code that does not exist.
pub fn separated_code() -> Vec<u8> {
    let mut pdb = Pdb::of_one_module();
    (0..60_000).for_each(|n| {
        pdb.procedure(n * 16, 16, "f");
        // A row in the first chunk of separated code, which does not exist.
        pdb.inline_site(1, &[2, 1, 12, 4, 0]);
        pdb.inline_site_end();
        pdb.end();
    });
    pdb.bytes()
}

/// A scope of lists of lists that add no character.
pub fn nested_lists() -> Vec<u8> {
    let mut pdb = Pdb::of_one_module();
    let empty = pdb.id(0x1605, &[&words(&[0])[..], b"\0"].concat());
    // Each list refers a thousand times to the one before (LF_SUBSTR_LIST). None adds a character.
    let mut list = empty;
    for _ in 0..6 {
        list = pdb.id(0x1604, &words(&[&[1000][..], &[list; 1000]].concat()));
    }
    let scope = pdb.id(0x1605, &[&words(&[list])[..], b"\0"].concat());
    let function = pdb.id(0x1601, &[&words(&[scope, 0])[..], b"f\0"].concat());
    pdb.procedure(0, 0x100, "main");
    pdb.inline_site(function, &[12, 4, 0]);
    pdb.inline_site_end();
    pdb.end();
    pdb.bytes()
}

/// A skip list that skips nothing.
pub fn useless_skip_list() -> Vec<u8> {
    let mut pdb = Pdb::of_one_module();
    let functions: Vec<u32> =
        (0..60_000).map(|n| pdb.id(0x1601, format!("\0\0\0\0\0\0\0\0f{n}\0").as_bytes())).collect();
    pdb.skips = vec![(IDS, 0)];
    pdb.procedure(0, 0x10_0000, "main");
    for (n, &function) in functions.iter().enumerate() {
        // The code offset as a number of four bytes, then a row of four bytes of code.
        let at = 0xc000_0000 | (n as u32 * 8);
        pdb.inline_site(function, &[&[12, 4][..], &at.to_be_bytes()].concat());
        pdb.inline_site_end();
    }
    pdb.end();
    pdb.bytes()
}

/// 50,000 file names that overlap.
pub fn overlapping_file_names() -> Vec<u8> {
    let mut pdb = Pdb::of_one_module();
    pdb.procedure(0, 0x10_0000, "main");
    pdb.end();
    pdb.names = vec![b'x'; 1 << 20];
    let count = 50_000u32;
    let checksums: Vec<u8> = (0..count).flat_map(|n| words(&[n, 0])).collect();
    // A block of one row for each file.
    let blocks: Vec<u8> = (0..count).flat_map(|n| words(&[n * 8, 1, 20, n * 16, 1])).collect();
    pdb.subsection(0xf4, &checksums);
    pdb.subsection(0xf2, &lines(&blocks));
    pdb.bytes()
}

/// 60,000 publics in 60,000 sections.
pub fn publics_in_sections() -> Vec<u8> {
    let mut pdb = Pdb::of_one_module();
    pdb.sections = (0..60_000).map(|n| (0x1000 + n * 16, 16)).collect();
    for n in 0..60_000u32 {
        let body = [&words(&[2, 0])[..], &(60_000 - n as u16).to_le_bytes()].concat();
        record(&mut pdb.publics, 0x110e, &body, "p");
    }
    pdb.bytes()
}

/// 100,000 names of streams that overlap.
pub fn overlapping_stream_names() -> Vec<u8> {
    let pdb = Pdb::of_one_module();
    let mut information = information();
    information.truncate(28);
    let (text, entries) = (1u32 << 20, 100_000u32);
    information.extend(words(&[text]));
    information.extend(vec![b'x'; text as usize]);
    information.extend(words(&[entries, entries, 0, 0]));
    (0..entries).for_each(|n| information.extend(words(&[n, 5])));
    let streams = [Vec::new(), information, Vec::new(), pdb.debug_information()];
    container(&streams)
}

/// A string whose list has the string itself, a thousand times; 20,000 inlined functions in it.
pub fn cyclic_scopes() -> Vec<u8> {
    let mut pdb = Pdb::of_one_module();
    let string = pdb.id(0x1605, &[&words(&[IDS + 1])[..], b"x\0"].concat());
    pdb.id(0x1604, &words(&[&[1000][..], &[string; 1000]].concat()));
    let function = pdb.id(0x1601, &[&words(&[string, 0])[..], b"f\0"].concat());
    pdb.procedure(0, 0x10_0000, "main");
    (0..20_000).for_each(|_| {
        pdb.inline_site(function, &[12, 4, 0]);
        pdb.inline_site_end();
    });
    pdb.end();
    pdb.bytes()
}

/// Inlined functions 60,000 deep, without their ends; each has a row of its own.
pub fn endless_inline_sites() -> Vec<u8> {
    let mut pdb = Pdb::of_one_module();
    pdb.procedure(0, 0x10_0000, "main");
    for n in 0..60_000u32 {
        let at = 0xc000_0000 | (n * 8);
        pdb.inline_site(1, &[&[12, 4][..], &at.to_be_bytes()].concat());
    }
    pdb.bytes()
}

/// 60,000 procedures at one address, each with another name.
pub fn folded_procedures() -> Vec<u8> {
    let mut pdb = Pdb::of_one_module();
    (0..60_000).for_each(|n| {
        pdb.procedure(0, 0x100, &format!("f{n}"));
        pdb.end();
    });
    pdb.bytes()
}

/// 500,000 lines of one procedure.
pub fn many_lines() -> Vec<u8> {
    let mut pdb = Pdb::of_one_module();
    pdb.procedure(0, 0x10_0000, "main");
    pdb.end();
    let rows: Vec<u8> = (0..500_000u32).flat_map(|n| words(&[n * 2, n % 0xff_ffff + 1])).collect();
    let block = [&words(&[0, 500_000, 12 + rows.len() as u32])[..], &rows].concat();
    pdb.subsection(0xf2, &lines(&block));
    pdb.bytes()
}

/// A block that claims 2^32 - 1 lines and has none.
pub fn claimed_lines() -> Vec<u8> {
    let mut pdb = Pdb::of_one_module();
    pdb.procedure(0, 0x100, "main");
    pdb.end();
    pdb.subsection(0xf2, &lines(&words(&[0, u32::MAX, 12])));
    pdb.bytes()
}

/// A container without contents except one word of its header (offset in the file, value).
fn absurd_header(at: usize, value: u32) -> Vec<u8> {
    let mut file = Pdb::of_one_module().bytes();
    file[at..at + 4].copy_from_slice(&value.to_le_bytes());
    file
}

/// Pages of 2 GiB.
pub fn huge_pages() -> Vec<u8> {
    absurd_header(32, 1 << 31)
}

/// Pages of no byte.
pub fn empty_pages() -> Vec<u8> {
    absurd_header(32, 0)
}

/// A directory of 4 GiB.
pub fn huge_directory() -> Vec<u8> {
    absurd_header(44, u32::MAX)
}

/// A directory of one page that claims these streams.
fn absurd_directory(count: u32, sizes: impl Iterator<Item = u32>) -> Vec<u8> {
    let mut file = container(&[]);
    // The directory's page lies before that of the list of its pages.
    let at = file.len() - 2 * 4096;
    let words = words(&[&[count][..], &sizes.collect::<Vec<_>>()].concat());
    file[at..at + words.len()].copy_from_slice(&words);
    file[44..48].copy_from_slice(&4096u32.to_le_bytes());
    file
}

/// A directory that claims 2^32 - 1 streams.
pub fn claimed_streams() -> Vec<u8> {
    absurd_directory(u32::MAX, std::iter::empty())
}

/// A directory that claims a thousand streams of nearly 4 GiB.
pub fn huge_streams() -> Vec<u8> {
    absurd_directory(1000, std::iter::repeat_n(u32::MAX - 1, 1000))
}

/// 200,000 streams, all absent, and no other.
pub fn absent_streams() -> Vec<u8> {
    let directory = words(&[&[200_000][..], &vec![u32::MAX; 200_000]].concat());
    // A container whose only stream is the directory, which takes the place of its own.
    let mut file = container(std::slice::from_ref(&directory));
    let pages = directory.len().div_ceil(4096) as u32;
    let list = file.len();
    file.extend(words(&(3..3 + pages).collect::<Vec<_>>()));
    file.resize(list.next_multiple_of(4096) + 4096, 0);
    let count = (file.len() / 4096) as u32;
    file[40..48].copy_from_slice(&words(&[count, directory.len() as u32]));
    file[52..56].copy_from_slice(&words(&[(list / 4096) as u32]));
    file
}
