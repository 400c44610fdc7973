//! Records that no available PDB has, written by hand according to Microsoft's cvinfo.h and LLVM's
//! "The PDB File Format": code that a post-link tool has moved, functions folded into one,
//! incremental-link thunks, separated code, /DEBUG:FASTLINK.

use std::path::Path;

use stk_schema::Arch;
use stk_symbols::index::RecordKind;
use stk_symbols::pdb::PdbFile;
use stk_symbols::{Demangle, ModuleKey, Reason, SymbolPath, SymbolStore, Symbolizer};

use stk_tests::pdb_file::{self, NO_STREAM, container, record, words};

/// IMAGE_SCN_CNT_CODE, IMAGE_SCN_MEM_EXECUTE, IMAGE_SCN_MEM_READ.
const CODE: u32 = 0x6000_0020;

/// A PDB of one object file.
#[derive(Default)]
struct Pdb {
    /// Symbol records of the object file.
    symbols: Vec<u8>,
    /// S_PUB32 records.
    publics: Vec<u8>,
    /// (rva, size) of the image's code sections.
    sections: Vec<(u32, u32)>,
    /// The sections in the linker's version, if a tool has moved code since.
    original_sections: Vec<(u32, u32)>,
    /// (rva in the image, rva as linked).
    omap_to_source: Vec<(u32, u32)>,
    fastlink: bool,
}

impl Pdb {
    fn new(sections: &[(u32, u32)]) -> Pdb {
        Pdb { sections: sections.to_vec(), ..Pdb::default() }
    }

    /// S_GPROC32 and its S_END, at an offset in the first section. Returns the record's offset in
    /// the module's stream.
    fn procedure(&mut self, offset: u32, len: u32, name: &str) -> u32 {
        let at = self.symbols.len() as u32 + 4;
        let body = [&words(&[0, 0, 0, len, 0, len, 0, offset])[..], &1u16.to_le_bytes(), &[0]].concat();
        record(&mut self.symbols, 0x1110, &body, name);
        self.symbols.extend([2, 0, 6, 0]);
        at
    }

    /// S_SEPCODE of the procedure whose record is at `parent`, and its S_END.
    fn separated(&mut self, parent: u32, offset: u32, len: u32) {
        let body = [&words(&[parent, 0, len, offset, 0])[..], &[1, 0, 1, 0]].concat();
        record(&mut self.symbols, 0x1132, &body, "");
        self.symbols.extend([2, 0, 6, 0]);
    }

    /// S_TRAMPOLINE of an incremental link.
    fn trampoline(&mut self, offset: u32, len: u16, target: u32) {
        let body = [&[0, 0][..], &len.to_le_bytes(), &words(&[offset, target]), &[1, 0, 1, 0]].concat();
        record(&mut self.symbols, 0x112c, &body, "");
    }

    /// S_PUB32 of a function.
    fn public(&mut self, offset: u32, name: &str) {
        let body = [&words(&[2, offset])[..], &1u16.to_le_bytes()].concat();
        record(&mut self.publics, 0x110e, &body, name);
    }

    fn bytes(&self) -> Vec<u8> {
        let headers = |sections: &[(u32, u32)]| -> Vec<u8> {
            let header = |&(start, size): &(u32, u32)| {
                [&b".text\0\0\0"[..], &words(&[size, start, size, 0x400, 0, 0, 0, CODE])].concat()
            };
            sections.iter().flat_map(header).collect()
        };
        let moved = !self.original_sections.is_empty();
        let omap: Vec<u8> = self.omap_to_source.iter().flat_map(|&(from, to)| words(&[from, to])).collect();
        let module = [&words(&[4])[..], &self.symbols].concat();
        // Old directory, information, types, debug information, ids; then the streams that the
        // debug information refers to.
        let streams = [
            Vec::new(),
            self.information(),
            Vec::new(),
            self.debug_information(module.len() as u32, moved),
            Vec::new(),
            self.publics.clone(),
            headers(&self.sections),
            module,
            omap,
            headers(&self.original_sections),
        ];
        container(&streams)
    }

    /// Version, signature, age, GUID, an empty table of named streams, feature codes.
    fn information(&self) -> Vec<u8> {
        let mut out = [&words(&[20_000_404, 0, 1])[..], &[7; 16], &words(&[0, 0, 0, 0, 0])].concat();
        out.extend(words(&[20_140_508]));
        if self.fastlink {
            out.extend(words(&[0x494e_494d]));
        }
        out
    }

    fn debug_information(&self, symbol_bytes: u32, moved: bool) -> Vec<u8> {
        let mut module = vec![0u8; 64];
        module[34..36].copy_from_slice(&7u16.to_le_bytes());
        module[36..40].copy_from_slice(&symbol_bytes.to_le_bytes());
        module.extend(b"a.obj\0a.obj\0");
        module.resize(module.len().next_multiple_of(4), 0);
        let linked = if moved { &self.original_sections } else { &self.sections };
        let mut contributions = words(&[0xeffe_0000 + 19_970_605]);
        contributions.extend(words(&[1, 0, linked[0].1, CODE, 0, 0, 0]));
        let mut debug = [NO_STREAM; 11];
        debug[5] = 6;
        if moved {
            (debug[3], debug[10]) = (8, 9);
        }
        pdb_file::debug_information(&module, &contributions, debug)
    }
}

/// Name and record kind of the outermost function at an rva.
fn at(pdb: &[u8], rva: u32) -> Option<(String, RecordKind)> {
    let index = PdbFile::open(pdb).unwrap().index().unwrap();
    assert_eq!(index.header().damaged_parts, 0);
    let hit = index.lookup(rva).unwrap()?;
    let range = hit.range().unwrap();
    assert_eq!(hit.frames().last().unwrap().name, range.name);
    Some((range.name.to_owned(), range.kind))
}

fn procedure(name: &str) -> Option<(String, RecordKind)> {
    Some((name.to_owned(), RecordKind::Procedure))
}

#[test]
fn moved_code_is_found_by_its_address_in_the_image() {
    let mut pdb = Pdb::new(&[(0x1000, 0x2000)]);
    pdb.original_sections = vec![(0x1000, 0x1000)];
    pdb.procedure(0x100, 0x40, "early");
    pdb.procedure(0x200, 0x40, "late");
    // The tool has exchanged the two and added code of its own behind them (target 0).
    pdb.omap_to_source =
        vec![(0x1000, 0x1000), (0x2100, 0x1200), (0x2140, 0x1100), (0x2180, 0), (0x2200, 0x1240)];
    let bytes = pdb.bytes();
    assert_eq!(at(&bytes, 0x2100), procedure("late"));
    assert_eq!(at(&bytes, 0x213f), procedure("late"));
    assert_eq!(at(&bytes, 0x2140), procedure("early"));
    assert_eq!(at(&bytes, 0x217f), procedure("early"));
    assert_eq!(at(&bytes, 0x2180), None, "code of the tool has no symbol");
    assert_eq!(at(&bytes, 0x2200), None);
    assert_eq!(at(&bytes, 0xfff), None, "before the first entry nothing is known");
}

#[test]
fn an_incremental_link_thunk_is_named_after_its_target() {
    let mut pdb = Pdb::new(&[(0x1000, 0x1000)]);
    pdb.procedure(0x300, 0x20, "target");
    pdb.trampoline(5, 5, 0x300);
    pdb.trampoline(10, 5, 0x400);
    let bytes = pdb.bytes();
    assert_eq!(at(&bytes, 0x1004), None);
    for rva in [0x1005, 0x1009] {
        assert_eq!(at(&bytes, rva), Some(("ILT(target)".to_owned(), RecordKind::Thunk)));
    }
    assert_eq!(at(&bytes, 0x100a), Some(("ILT(?)".to_owned(), RecordKind::Thunk)));
    assert_eq!(at(&bytes, 0x1300), procedure("target"));
}

#[test]
fn separated_code_has_the_name_of_its_procedure() {
    let mut pdb = Pdb::new(&[(0x1000, 0x1000)]);
    let parent = pdb.procedure(0x100, 0x20, "hot");
    pdb.separated(parent, 0x800, 0x10);
    let bytes = pdb.bytes();
    assert_eq!(at(&bytes, 0x1110), procedure("hot"));
    assert_eq!(at(&bytes, 0x180f), Some(("hot".to_owned(), RecordKind::SeparatedCode)));
    assert_eq!(at(&bytes, 0x1810), None);
}

fn key() -> ModuleKey<'static> {
    let path = r"C:\x\a.exe";
    let code_view = None;
    ModuleKey { path, code_view, time_date_stamp: 0, size_of_image: 0, arch: Arch::X64 }
}

#[test]
fn the_first_of_folded_functions_is_shown_and_all_are_kept() {
    let mut pdb = Pdb::new(&[(0x1000, 0x1000)]);
    for name in ["zebra::size", "apple::size", "mango::size", "pair<int,int> ::size"] {
        pdb.procedure(0x100, 0x20, name);
    }
    pdb.public(0x100, "?size@zebra@@QEAAHXZ");
    pdb.public(0x100, "?size@plum@@QEAAHXZ");
    // pair<int, int>::size: the procedure's name, with other spaces.
    pdb.public(0x100, "?size@?$pair@HH@@QEAAHXZ");
    let bytes = pdb.bytes();
    assert_eq!(at(&bytes, 0x1105), procedure("zebra::size"));
    let symbolizer = Symbolizer::new(SymbolStore::new(SymbolPath::default()), Demangle::Short);
    let index = symbolizer.pdb_index(Path::new("a.pdb"), &bytes.into(), false).unwrap();
    let resolved = symbolizer.resolve_in(&key(), &[0x1105, 0x1200], Path::new("a.pdb"), &index).unwrap();
    let folded = resolved.get(0).unwrap();
    assert_eq!(folded.frames().next().unwrap().function, "zebra::size");
    let mut aliases: Vec<&str> = folded.aliases().collect();
    aliases.sort_unstable();
    assert_eq!(aliases, ["apple::size", "mango::size", "pair<int,int> ::size", "plum::size"]);
    assert_eq!(resolved.get(1).unwrap().aliases().len(), 0);
}

#[test]
fn a_fastlink_pdb_is_reported_with_advice() {
    let mut pdb = Pdb::new(&[(0x1000, 0x1000)]);
    pdb.procedure(0, 0x20, "f");
    let symbolizer = Symbolizer::new(SymbolStore::new(SymbolPath::default()), Demangle::Short);
    assert!(symbolizer.pdb_index(Path::new("a.pdb"), &pdb.bytes().into(), false).is_ok());
    pdb.fastlink = true;
    let reason = symbolizer.pdb_index(Path::new("a.pdb"), &pdb.bytes().into(), false).unwrap_err();
    assert!(matches!(reason, Reason::FastLink { .. }));
    let text = reason.to_string();
    assert!(
        text.contains("/DEBUG:FASTLINK") && text.contains("/DEBUG:FULL") && text.contains("mspdbcmf"),
        "{text}"
    );
}
