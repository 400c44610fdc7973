//! Small symbol files whose records expand to far more than their size. Reading must take time and
//! memory in proportion to the file, and count the excess as damage.
//!
//! No test checks a time: without the limits, each of these takes minutes or more memory than there
//! is.

mod pdb_file;

use stk::symbols::index::SymbolIndex;
use stk::symbols::pdb::PdbFile;

use pdb_file::{container, record, words};

const NO_STREAM: u16 = u16::MAX;
/// IMAGE_SCN_CNT_CODE, IMAGE_SCN_MEM_EXECUTE, IMAGE_SCN_MEM_READ.
const CODE: u32 = 0x6000_0020;
const IDS: u32 = 0x1000;
/// Offset of a module's symbols in its stream.
const SYMBOLS: u32 = 4;

/// A PDB with the given number of modules, which all share one stream.
struct Pdb {
    symbols: Vec<u8>,
    c13: Vec<u8>,
    /// The `/names` stream's text.
    names: Vec<u8>,
    /// Records of the stream of ids, from their length on.
    ids: Vec<Vec<u8>>,
    /// Entries of its skip list: index, offset.
    skips: Vec<(u32, u32)>,
    publics: Vec<u8>,
    sections: Vec<(u32, u32)>,
    modules: usize,
}

impl Pdb {
    fn new() -> Pdb {
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
    fn procedure(&mut self, offset: u32, len: u32, name: &str) -> u32 {
        let at = self.symbols.len() as u32 + SYMBOLS;
        let body = [&words(&[0, 0, 0, len, 0, len, 0, offset])[..], &1u16.to_le_bytes(), &[0]].concat();
        record(&mut self.symbols, 0x1110, &body, name);
        at
    }

    fn end(&mut self) {
        self.symbols.extend([2, 0, 6, 0]);
    }

    /// S_INLINESITE of the function with this id, without its end.
    fn inline_site(&mut self, id: u32, annotations: &[u8]) {
        let mut bytes = [&0x114du16.to_le_bytes()[..], &words(&[0, 0, id]), annotations].concat();
        bytes.resize((bytes.len() + 2).next_multiple_of(4) - 2, 0);
        self.symbols.extend((bytes.len() as u16).to_le_bytes());
        self.symbols.extend(bytes);
    }

    fn inline_site_end(&mut self) {
        self.symbols.extend([2, 0, 0x4e, 0x11]);
    }

    /// A subsection of the C13 data.
    fn subsection(&mut self, kind: u32, body: &[u8]) {
        self.c13.extend(words(&[kind, body.len() as u32]));
        self.c13.extend(body);
        self.c13.resize(self.c13.len().next_multiple_of(4), 0);
    }

    fn id(&mut self, kind: u16, body: &[u8]) -> u32 {
        let mut bytes = [&kind.to_le_bytes()[..], body].concat();
        bytes.resize((bytes.len() + 2).next_multiple_of(4) - 2, 0);
        self.ids.push([&(bytes.len() as u16).to_le_bytes()[..], &bytes].concat());
        IDS + self.ids.len() as u32 - 1
    }

    fn bytes(&self) -> Vec<u8> {
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

    fn debug_information(&self) -> Vec<u8> {
        let mut module = vec![0u8; 64];
        module[34..36].copy_from_slice(&7u16.to_le_bytes());
        module[36..40].copy_from_slice(&(self.symbols.len() as u32 + SYMBOLS).to_le_bytes());
        module[44..48].copy_from_slice(&(self.c13.len() as u32).to_le_bytes());
        module.extend(b"a\0a\0");
        let modules = module.repeat(self.modules);
        let mut debug = [NO_STREAM; 11];
        debug[5] = 6;
        let debug: Vec<u8> = debug.iter().flat_map(|number| number.to_le_bytes()).collect();
        let mut out = vec![0u8; 64];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &words(&[u32::MAX, 19_990_903, 1]));
        put(12, &NO_STREAM.to_le_bytes());
        put(16, &NO_STREAM.to_le_bytes());
        put(20, &5u16.to_le_bytes());
        put(24, &words(&[modules.len() as u32]));
        put(48, &words(&[debug.len() as u32]));
        put(58, &0x8664u16.to_le_bytes());
        [out, modules, debug].concat()
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

    fn index(&self) -> SymbolIndex {
        PdbFile::open(&self.bytes()).unwrap().index().unwrap()
    }
}

/// Version, signature, age, GUID, a table of named streams that has only `/names`, a feature code.
fn information() -> Vec<u8> {
    let strings = b"/names\0\0";
    let mut out = [&words(&[20_000_404, 0, 1])[..], &[7; 16], &words(&[strings.len() as u32])].concat();
    out.extend(strings);
    // Size, capacity, one word of present entries, none of deleted ones; the entry: name, stream.
    out.extend(words(&[1, 1, 1, 1, 0, 0, 8, 20_140_508]));
    out
}

fn name_at(index: &SymbolIndex, rva: u32) -> Option<String> {
    let hit = index.lookup(rva).unwrap()?;
    hit.frames().next().map(|frame| frame.name.to_owned())
}

/// DEBUG_S_LINES for the beginning of the first section, with its blocks of (file, rows, stated
/// length, rows of 8 bytes).
fn lines(blocks: &[u8]) -> Vec<u8> {
    [&words(&[0])[..], &1u16.to_le_bytes(), &0u16.to_le_bytes(), &words(&[0x10_0000]), blocks].concat()
}

#[test]
fn line_blocks_that_overlap_are_damage() {
    let mut pdb = Pdb::new();
    pdb.procedure(0, 0x100, "main");
    pdb.end();
    // Each block claims all bytes behind it, and the next one begins behind its header.
    let count = 40_000u32;
    let blocks: Vec<u8> = (0..count).flat_map(|n| words(&[0, (count - n - 1) * 12 / 8, 12])).collect();
    pdb.subsection(0xf2, &lines(&blocks));
    let index = pdb.index();
    assert_eq!(index.header().damaged_parts, 1);
    assert_eq!(name_at(&index, 0x1010).as_deref(), Some("main"));
}

#[test]
fn procedures_that_each_claim_all_lines_expand_only_to_the_limit() {
    let mut pdb = Pdb::new();
    (0..20_000).for_each(|_| {
        pdb.procedure(0, 0x10_0000, "f");
        pdb.end();
    });
    let rows: Vec<u8> = (0..50_000u32).flat_map(|n| words(&[n * 16, n % 1000 + 1])).collect();
    let block = [&words(&[0, 50_000, 12 + rows.len() as u32])[..], &rows].concat();
    pdb.subsection(0xf2, &lines(&block));
    let index = pdb.index();
    assert_eq!(index.header().damaged_parts, 2, "the module and the file");
    assert_eq!(name_at(&index, 0x1010).as_deref(), Some("f"));
    assert!(index.as_bytes().len() < 16 * pdb.bytes().len());
}

#[test]
fn deep_inline_sites_over_many_lines_expand_only_to_the_limit() {
    let mut pdb = Pdb::new();
    pdb.procedure(0, 0x10_0000, "f");
    // BA_OP_ChangeCodeLengthAndCodeOffset: a row of the largest length, at the beginning.
    (0..500).for_each(|_| pdb.inline_site(1, &[12, 0xc0, 0x0f, 0xff, 0xff, 0]));
    (0..500).for_each(|_| pdb.inline_site_end());
    pdb.end();
    let rows: Vec<u8> = (0..60_000u32).flat_map(|n| words(&[n * 16, n % 0x0f_0000 + 1])).collect();
    let block = [&words(&[0, 60_000, 12 + rows.len() as u32])[..], &rows].concat();
    pdb.subsection(0xf2, &lines(&block));
    let index = pdb.index();
    assert_ne!(index.header().damaged_parts, 0);
    assert!(index.as_bytes().len() < 16 * pdb.bytes().len() + (4 << 20));
}

#[test]
fn modules_that_share_one_stream_are_read_once() {
    let mut pdb = Pdb::new();
    pdb.modules = 20_000;
    (0..20_000).for_each(|n| {
        pdb.procedure(n * 16, 16, "f");
        pdb.end();
    });
    let index = pdb.index();
    assert_eq!(index.header().damaged_parts, 19_999);
    assert_eq!(index.ranges().count(), 20_000);
}

#[test]
fn separated_code_is_searched_once_per_module() {
    let mut pdb = Pdb::new();
    (0..60_000).for_each(|n| {
        pdb.procedure(n * 16, 16, "f");
        // A row in the first chunk of separated code, which does not exist.
        pdb.inline_site(1, &[2, 1, 12, 4, 0]);
        pdb.inline_site_end();
        pdb.end();
    });
    assert_eq!(pdb.index().ranges().count(), 60_000);
}

#[test]
fn a_scope_of_nested_lists_gives_no_name() {
    let mut pdb = Pdb::new();
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
    assert_eq!(name_at(&pdb.index(), 0x1000).as_deref(), Some("<inline function>"));
}

#[test]
fn a_skip_list_that_skips_nothing_is_rebuilt() {
    let mut pdb = Pdb::new();
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
    let index = pdb.index();
    assert_eq!(name_at(&index, 0x1000 + 59_999 * 8).as_deref(), Some("f59999"));
}

#[test]
fn file_names_that_overlap_are_damage() {
    let mut pdb = Pdb::new();
    pdb.procedure(0, 0x10_0000, "main");
    pdb.end();
    pdb.names = vec![b'x'; 1 << 20];
    let count = 50_000u32;
    let checksums: Vec<u8> = (0..count).flat_map(|n| words(&[n, 0])).collect();
    // A block of one row for each file.
    let blocks: Vec<u8> = (0..count).flat_map(|n| words(&[n * 8, 1, 20, n * 16, 1])).collect();
    pdb.subsection(0xf4, &checksums);
    pdb.subsection(0xf2, &lines(&blocks));
    let index = pdb.index();
    assert_ne!(index.header().damaged_parts, 0);
    assert!(index.as_bytes().len() < 16 * pdb.bytes().len() + (4 << 20));
}

#[test]
fn publics_are_located_without_a_walk_over_all_sections() {
    let mut pdb = Pdb::new();
    pdb.sections = (0..60_000).map(|n| (0x1000 + n * 16, 16)).collect();
    for n in 0..60_000u32 {
        let body = [&words(&[2, 0])[..], &(60_000 - n as u16).to_le_bytes()].concat();
        record(&mut pdb.publics, 0x110e, &body, "p");
    }
    assert_eq!(pdb.index().ranges().count(), 60_000);
}

#[test]
fn overlapping_stream_names_are_compared_only_at_their_beginning() {
    let pdb = Pdb::new();
    let mut information = information();
    information.truncate(28);
    let (text, entries) = (1u32 << 20, 100_000u32);
    information.extend(words(&[text]));
    information.extend(vec![b'x'; text as usize]);
    information.extend(words(&[entries, entries, 0, 0]));
    (0..entries).for_each(|n| information.extend(words(&[n, 5])));
    let streams = [Vec::new(), information, Vec::new(), pdb.debug_information()];
    assert_eq!(PdbFile::open(&container(&streams)).unwrap().identity().guid, [7; 16]);
}
