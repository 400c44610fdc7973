//! A real runtime's layouts over memory that holds anything: names of the methods that explicit
//! Frames are about. The structures of one method are there; the input overwrites words of them, of
//! the assembly's metadata and of the stack.
#![no_main]

use std::sync::LazyLock;

use agent::fuzz::{FrameNames, Pieces};
use libfuzzer_sys::fuzz_target;

const JSON: &[u8] = include_bytes!("../../../agent/src/record/tests/data/contract-10.0.9.json");
const ASSEMBLY: &[u8] = include_bytes!("../../data/dotnet/lines.dll");
/// The descriptor's pointers: number 21 is that of the map of code, which is not read here.
static NAMES: LazyLock<FrameNames> = LazyLock::new(|| FrameNames::new(JSON, &[1; 64]));
const STACK: u64 = 0x7_0000;
/// MethodDescChunk, MethodTable, EEClass, Module, PEAssembly, PEImage, PEImageLayout, the file's
/// name, its image.
const PLACES: [u64; 9] = [
    0x2600_0000, 0x2700_0000, 0x2800_0000, 0x2900_0000, 0x2a00_0000, 0x2b00_0000, 0x2c00_0000, 0x2d00_0000,
    0x1e74_5000,
];
/// The second MethodDesc of the chunk.
const METHOD: u64 = PLACES[0] + 24 + 2 * 8;

fn set(pieces: &mut [(u64, Vec<u8>)], address: u64, bytes: &[u8]) {
    let piece = pieces.iter_mut().find(|(start, piece)| (*start..start + piece.len() as u64).contains(&address));
    let (start, piece) = piece.expect("a piece");
    let at = (address - *start) as usize;
    piece[at..at + bytes.len()].copy_from_slice(bytes);
}

/// The structures of row 1 of MethodDef in the type of row 2, at the offsets of the descriptor.
fn structures() -> Vec<(u64, Vec<u8>)> {
    let [chunk, table, class, module, assembly, image, layout, file_name, base] = PLACES;
    let mut pieces: Vec<(u64, Vec<u8>)> = PLACES[..8].iter().map(|&place| (place, vec![0; 0x1000])).collect();
    let mut file = ASSEMBLY.to_vec();
    file.resize(file.len().next_multiple_of(4096), 0);
    pieces.push((base, file));
    let mut pointer = |address, value: u64| set(&mut pieces, address, &value.to_le_bytes());
    pointer(chunk, table);
    pointer(METHOD, 1 | 2 << 16);
    pointer(table + 8, 2 << 8);
    pointer(table + 24, module);
    pointer(table + 40, class);
    pointer(class + 16, table);
    pointer(module + 192, assembly);
    pointer(assembly + 8, image);
    pointer(image + 128, layout);
    pointer(layout + 8, base);
    pointer(layout + 16, ASSEMBLY.len() as u64);
    pointer(module + 184, file_name);
    let name: Vec<u8> = "lines.dll\0".encode_utf16().flat_map(u16::to_le_bytes).collect();
    set(&mut pieces, file_name, &name);
    pieces
}

fuzz_target!(|data: &[u8]| {
    let mut pieces = structures();
    let mut stack = vec![0; 0x200];
    // InlinedCallFrame: identifier, next, Datum, CallSiteSP, CallerReturnAddress.
    for (n, word) in [1u64, u64::MAX, METHOD, STACK, 1].into_iter().enumerate() {
        stack[n * 8..n * 8 + 8].copy_from_slice(&word.to_le_bytes());
    }
    let mut methods = Vec::new();
    for patch in data.chunks_exact(11) {
        let at = usize::from(u16::from_le_bytes([patch[1], patch[2]]));
        let value: [u8; 8] = patch[3..].try_into().unwrap();
        match usize::from(patch[0]) % 11 {
            9 => methods.push(u64::from_le_bytes(value)),
            10 => stack[at % 0x1f8..][..8].copy_from_slice(&value),
            place => {
                let bytes = &mut pieces[place].1;
                let at = at % (bytes.len() - 8);
                bytes[at..at + 8].copy_from_slice(&value);
            }
        }
    }
    let names = NAMES.names(&Pieces(&pieces), (STACK, STACK, &stack), &methods);
    assert!(names.iter().all(|&len| len <= 16 << 10));
    assert!(!data.is_empty() || names.len() == 1, "the method itself is named");
});
