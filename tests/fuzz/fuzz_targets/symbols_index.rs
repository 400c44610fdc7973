//! Any bytes as an index file, and a real index with any bytes changed and the hashes corrected: an
//! index that opens can be searched.
#![no_main]

use std::io::Write;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use stk_base::map::MappedFile;
use stk_symbols::index::SymbolIndex;
use stk_symbols::pdb::PdbFile;
use stk_fuzz::patch::patched;
use xxhash_rust::xxh3::xxh3_64;

static REAL: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let pdb = include_bytes!("../../../examples/traces/busy.pdb");
    PdbFile::open(pdb).unwrap().index().unwrap().as_bytes().to_vec()
});

/// Where the header's hash lies, where the sections begin, bytes of one hashed chunk, entry of the
/// chunks in the section table.
const HEADER_HASH: usize = 248;
const HEADER: usize = 256;
const CHUNK: usize = 1 << 16;
const CHUNKS: usize = 64 + 9 * 16;

/// Makes every hash of an index that of its contents, as an attacker would.
fn rehash(file: &mut [u8]) {
    let chunks = u64::from_le_bytes(file[CHUNKS..CHUNKS + 8].try_into().unwrap()) as usize;
    let body = file.get(HEADER..chunks).unwrap_or_default();
    let hashes: Vec<u8> = body.chunks(CHUNK).flat_map(|chunk| xxh3_64(chunk).to_le_bytes()).collect();
    if let Some(place) = file.get_mut(chunks..).and_then(|rest| rest.get_mut(..hashes.len())) {
        place.copy_from_slice(&hashes);
    }
    let hash = xxh3_64(&file[..HEADER_HASH]);
    file[HEADER_HASH..HEADER].copy_from_slice(&hash.to_le_bytes());
}

fuzz_target!(|data: &[u8]| {
    // An index begins with `S`. Other bytes are a list of patches.
    let mut bytes = match data.split_first() {
        Some((&first, patches)) if first != b'S' => patched(&REAL, patches),
        _ => data.to_vec(),
    };
    if bytes.len() >= HEADER {
        rehash(&mut bytes);
    }
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&bytes).unwrap();
    let Ok(index) = SymbolIndex::open(MappedFile::from_file(file).unwrap()) else { return };
    for rva in (0..0x1_0000).step_by(61) {
        if let Ok(Some(hit)) = index.lookup(rva) {
            let _ = hit.frames().count();
            let _ = hit.range().map(|range| range.aliases(&index));
        }
    }
    let _ = index.ranges().count();
    let _ = index.verify();
});
