//! Damaged and hostile symbol files must end in an error or in fewer names, never in a panic or in
//! unbounded memory.

use crate::support::kept;
use std::path::{Path, PathBuf};

use stk_base::map::MappedFile;
use stk_schema::Arch;
use stk_schema::identity::CodeView;
use stk_symbols::index::SymbolIndex;
use stk_symbols::pdb::PdbFile;
use stk_symbols::{
    CacheKey, Demangle, ModuleKey, Reason, Source, SymbolCache, SymbolPath, SymbolStore, Symbolizer,
    image_index,
};

fn busy() -> Vec<u8> {
    std::fs::read(kept("busy.pdb")).unwrap()
}

/// xorshift64: the same damage in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// Reads a file that may be damaged, and looks up addresses everywhere in it.
fn use_pdb(data: &[u8]) {
    let Ok(index) = PdbFile::open(data).and_then(|pdb| pdb.index()) else { return };
    for rva in (0..0x40_000).step_by(97) {
        if let Ok(Some(hit)) = index.lookup(rva) {
            assert!(hit.frames().count() <= 1024);
            let _ = hit.range().map(|range| range.aliases(&index));
        }
    }
    // An index cannot be larger than the file's size allows, since every row comes from some bytes
    // of it. Only the table of blocks grows with the last address instead: up to 4 bytes for each
    // 256 of the largest image, 2 GiB.
    let (len, limit) = (index.as_bytes().len(), 64 * data.len() + (33 << 20));
    assert!(len < limit, "{len} from {}", data.len());
}

#[test]
fn a_pdb_cut_anywhere_gives_an_error_or_fewer_names() {
    let data = busy();
    for len in (0..data.len()).step_by(509) {
        use_pdb(&data[..len]);
    }
}

#[test]
fn a_pdb_with_flipped_bytes_gives_an_error_or_fewer_names() {
    let data = busy();
    let mut random = Random(0x5eed);
    for _ in 0..1500 {
        let mut damaged = data.clone();
        for _ in 0..1 + random.below(12) {
            let at = random.below(data.len());
            damaged[at] = [0, 1, 0x7f, 0x80, 0xff, random.below(256) as u8][random.below(6)];
        }
        use_pdb(&damaged);
    }
}

#[test]
fn a_pdb_with_forged_words_gives_an_error_or_fewer_names() {
    let data = busy();
    let mut random = Random(0xf046ed);
    for _ in 0..1500 {
        let mut damaged = data.clone();
        for _ in 0..1 + random.below(6) {
            let at = random.below(data.len() / 4) * 4;
            let word = [0u32, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX, 0xffff, 0x1000][random.below(7)];
            damaged[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        use_pdb(&damaged);
    }
}

#[test]
fn a_directory_that_repeats_pages_does_not_expand_to_gigabytes() {
    // A stream of 2 GiB claims one page repeatedly: 128 Ki entries, all for page 3.
    let page = 4096usize;
    let entries = 1usize << 17;
    let directory_len = 4 + 4 + entries * 4;
    let directory_pages = directory_len.div_ceil(page);
    let mut data = vec![0u8; (4 + directory_pages + 1) * page];
    data[..32].copy_from_slice(b"Microsoft C/C++ MSF 7.00\r\n\x1aDS\0\0\0");
    let mut put = |at: usize, value: u32| data[at..at + 4].copy_from_slice(&value.to_le_bytes());
    put(32, page as u32);
    put(44, directory_len as u32);
    put(52, 3);
    for n in 0..directory_pages {
        put(3 * page + n * 4, 4 + n as u32);
    }
    put(4 * page, 1);
    put(4 * page + 4, (entries * page) as u32);
    for n in 0..entries {
        put(4 * page + 8 + n * 4, 3);
    }
    assert!(PdbFile::open(&data).is_err());
}

#[test]
fn an_index_with_a_flipped_byte_never_gives_a_wrong_answer() {
    let data = busy();
    let index = PdbFile::open(&data).unwrap().index().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.stksym");
    let intact = index.as_bytes().to_vec();
    let answers = |index: &SymbolIndex, rva: u32| -> Option<Option<Vec<String>>> {
        match index.lookup(rva) {
            Ok(hit) => Some(hit.map(|hit| hit.frames().map(|frame| format!("{frame:?}")).collect())),
            Err(_) => None,
        }
    };
    let mut random = Random(0x1dea);
    let mut noticed = 0;
    for _ in 0..200 {
        let mut damaged = intact.clone();
        let at = random.below(damaged.len());
        damaged[at] ^= 1 << random.below(8);
        std::fs::write(&path, &damaged).unwrap();
        let Ok(opened) = SymbolIndex::open(MappedFile::open(&path).unwrap()) else {
            noticed += 1;
            continue;
        };
        for rva in (0x1000..0x8000).step_by(61) {
            // The lookup reports that the index is damaged, or its answer is correct.
            match answers(&opened, rva) {
                None => noticed += 1,
                Some(answer) => assert_eq!(Some(answer), answers(&index, rva), "byte {at}"),
            }
        }
        assert!(opened.verify().is_err(), "byte {at}");
    }
    assert!(noticed > 0);
}

#[test]
fn a_damaged_index_in_the_cache_is_built_again() {
    let folder = tempfile::tempdir().unwrap();
    let cache = SymbolCache::new(folder.path().to_path_buf());
    let data = busy();
    let pdb = PdbFile::open(&data).unwrap();
    let identity = *pdb.identity();
    let mut store = SymbolStore::new(SymbolPath::from(kept("").as_path()));
    store.set_cache(cache.clone());
    let symbolizer = Symbolizer::new(store, Demangle::Short);
    let module = ModuleKey {
        path: r"C:\x\busy.exe",
        code_view: Some(CodeView { guid: identity.guid, age: identity.age, pdb_name: br"C:\x\busy.pdb" }),
        time_date_stamp: 0,
        size_of_image: 0,
        arch: Arch::X64,
    };
    let rvas: Vec<u32> = (0x1000..0x3000).step_by(13).collect();
    let names = |symbolizer: &Symbolizer| -> Vec<String> {
        let symbols = symbolizer.resolve(&module, &rvas);
        (0..rvas.len())
            .filter_map(|n| symbols.get(n)?.frames().last().map(|l| l.function.to_owned()))
            .collect()
    };
    let first = names(&symbolizer);
    assert!(first.iter().any(|name| !name.contains("+0x")));
    let stored = |dir: &Path| -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![dir.to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().flatten() {
                if entry.path().is_dir() { folders.push(entry.path()) } else { found.push(entry.path()) }
            }
        }
        found
    };
    let files = stored(folder.path());
    assert_eq!(files.len(), 1, "{files:?}");
    for damage in [0, 100, 300, 5000] {
        let mut bytes = std::fs::read(&files[0]).unwrap();
        bytes[damage] ^= 0x55;
        std::fs::write(&files[0], bytes).unwrap();
        assert_eq!(names(&symbolizer), first);
        let key = CacheKey {
            name: "busy.pdb",
            id: &stk_symbols::pdb_id(&identity.guid, identity.age),
            fingerprint: pdb.fingerprint(),
        };
        assert!(
            cache.get(&key).is_some_and(|index| index.verify().is_ok()),
            "byte {damage} was left damaged"
        );
    }
    assert_eq!(stored(folder.path()), files, "no temporary file stays");
}

#[test]
fn a_pdb_of_another_build_is_reported_and_never_used() {
    let data = busy();
    let identity = *PdbFile::open(&data).unwrap().identity();
    let mut guid = identity.guid;
    guid[7] ^= 1;
    let symbolizer = Symbolizer::new(SymbolStore::new(SymbolPath::from(kept("").as_path())), Demangle::Short);
    let module = ModuleKey {
        path: r"C:\x\busy.exe",
        code_view: Some(CodeView { guid, age: identity.age, pdb_name: b"busy.pdb" }),
        time_date_stamp: 0,
        size_of_image: 0,
        arch: Arch::X64,
    };
    let symbols = symbolizer.resolve(&module, &[0x1000]);
    let resolved = symbols.get(0).unwrap();
    assert_eq!(resolved.source, Source::None);
    assert_eq!(resolved.frames().len(), 0);
    assert!(matches!(resolved.reason, Some(Reason::PdbMismatch { .. })), "{:?}", resolved.reason);
}

#[test]
fn a_damaged_image_gives_an_error_or_fewer_names() {
    let mut random = Random(0xd0a4f);
    let exe = minimal_image();
    assert!(matches!(image_index(&exe), Ok(None)));
    for _ in 0..2000 {
        let mut damaged = exe.clone();
        for _ in 0..1 + random.below(6) {
            let at = random.below(exe.len());
            damaged[at] = random.below(256) as u8;
        }
        let _ = image_index(&damaged);
    }
    for len in 0..exe.len() {
        let _ = image_index(&exe[..len]);
    }
}

/// The smallest PE32+ with one section and no symbols (PE format).
fn minimal_image() -> Vec<u8> {
    let mut image = vec![0u8; 0x400];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"MZ");
    put(0x3c, &0x40u32.to_le_bytes());
    put(0x40, b"PE\0\0");
    put(0x44, &0x8664u16.to_le_bytes());
    put(0x46, &1u16.to_le_bytes());
    put(0x54, &240u16.to_le_bytes());
    put(0x58, &0x20bu16.to_le_bytes());
    put(0x58 + 24, &0x1_4000_0000u64.to_le_bytes());
    put(0x58 + 56, &0x2000u32.to_le_bytes());
    put(0x58 + 108, &16u32.to_le_bytes());
    let section = 0x58 + 240;
    put(section, b".text\0\0\0");
    put(section + 8, &0x100u32.to_le_bytes());
    put(section + 12, &0x1000u32.to_le_bytes());
    put(section + 16, &0x200u32.to_le_bytes());
    put(section + 20, &0x200u32.to_le_bytes());
    put(section + 36, &0x6000_0020u32.to_le_bytes());
    image
}
