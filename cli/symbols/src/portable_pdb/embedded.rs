//! The symbols of an assembly (a PE image with IL): the GUID of its PDB, and the PDB itself if it
//! is embedded ("PE/COFF Specification", debug directory; dotnet/runtime, "PE/COFF debug
//! directory", entries CodeView and Embedded Portable PDB).

use object::pod::slice_from_bytes;
use object::read::pe::{ImageNtHeaders, optional_header_magic};
use object::{LittleEndian as LE, pe};
use std::io::Read;
use stk_base::model::bytes::{slice_at, u32_at};

/// Type of the debug directory entry that holds a PDB.
const EMBEDDED_PORTABLE_PDB: u32 = 17;

/// Limit for an unpacked PDB.
const LARGEST: u64 = 256 << 20;
/// Limit for the text of a source file, in bytes.
const LARGEST_SOURCE: u64 = 16 << 20;
/// Limit for the ratio of a PDB's unpacked size to its packed size. Compilers' PDBs are packed to a
/// third.
const EXPANSION: u64 = 64;
/// Limit for the debug directory entries that are read.
const MOST_ENTRIES: usize = 64;

/// The debug directory of an assembly file.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct AssemblyDebug<'a> {
    /// GUID of its PDB.
    pub guid: Option<[u8; 16]>,
    /// Its PDB, packed: the input of [`inflate`].
    pub embedded: Option<&'a [u8]>,
}

/// Reads the debug directory of an image file. `None`: the bytes are not an image.
pub fn assembly_debug(file: &[u8]) -> Option<AssemblyDebug<'_>> {
    match optional_header_magic(file).ok()? {
        pe::IMAGE_NT_OPTIONAL_HDR64_MAGIC => debug_directory::<pe::ImageNtHeaders64>(file),
        pe::IMAGE_NT_OPTIONAL_HDR32_MAGIC => debug_directory::<pe::ImageNtHeaders32>(file),
        _ => None,
    }
}

fn debug_directory<H: ImageNtHeaders>(file: &[u8]) -> Option<AssemblyDebug<'_>> {
    let mut at = pe::ImageDosHeader::parse(file).ok()?.nt_headers_offset().into();
    let (headers, directories) = H::parse(file, &mut at).ok()?;
    let mut found = AssemblyDebug::default();
    let directory = directories.get(pe::IMAGE_DIRECTORY_ENTRY_DEBUG);
    let Some(directory) = directory.filter(|directory| directory.virtual_address.get(LE) != 0) else {
        return Some(found);
    };
    let data = directory.data(file, &headers.sections(file, at).ok()?).ok()?;
    let count = data.len() / size_of::<pe::ImageDebugDirectory>();
    let (entries, _) = slice_from_bytes::<pe::ImageDebugDirectory>(data, count.min(MOST_ENTRIES)).ok()?;
    for entry in entries {
        let (at, len) = (entry.pointer_to_raw_data.get(LE), entry.size_of_data.get(LE));
        match (entry.typ.get(LE), slice_at(file, at as usize, len as usize)) {
            (pe::IMAGE_DEBUG_TYPE_CODEVIEW, Some(bytes)) if bytes.starts_with(b"RSDS") => {
                found.guid = bytes.get(4..20).and_then(|guid| guid.try_into().ok());
            }
            (EMBEDDED_PORTABLE_PDB, Some(bytes)) => found.embedded = Some(bytes),
            _ => {}
        }
    }
    Some(found)
}

/// Unpacks an embedded PDB: `MPDB`, u32 unpacked size, DEFLATE. `None`: it is damaged, larger than
/// stated, or larger than any PDB of that packed size.
pub fn inflate(packed: &[u8]) -> Option<Vec<u8>> {
    let data = packed.strip_prefix(b"MPDB")?;
    let size = u64::from(u32_at(data, 0)?);
    if size > LARGEST.min((1 << 16) + EXPANSION * data.len() as u64) {
        return None;
    }
    unpack(&data[4..], size)
}

/// Unpacks the text of a source file in a PDB: u32 unpacked size, DEFLATE; or 0, the bytes. `None`:
/// it is damaged or larger than a source file may be.
pub(super) fn source(packed: &[u8]) -> Option<Vec<u8>> {
    let (size, data) = (u64::from(u32_at(packed, 0)?), &packed[4..]);
    match size {
        0 => (data.len() as u64 <= LARGEST_SOURCE).then(|| data.to_vec()),
        _ => (size <= LARGEST_SOURCE).then(|| unpack(data, size)).flatten(),
    }
}

fn unpack(data: &[u8], size: u64) -> Option<Vec<u8>> {
    let mut unpacked = Vec::new();
    // One byte more, to detect that it is larger than stated.
    flate2::read::DeflateDecoder::new(data).take(size + 1).read_to_end(&mut unpacked).ok()?;
    (unpacked.len() as u64 == size).then_some(unpacked)
}
