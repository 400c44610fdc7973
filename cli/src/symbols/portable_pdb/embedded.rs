//! The symbols of an assembly (a PE image with IL): the GUID of its PDB, and the PDB itself if it
//! is embedded ("PE/COFF Specification", debug directory; dotnet/runtime, "PE/COFF debug
//! directory", entries CodeView and Embedded Portable PDB).

use crate::model::bytes::{slice_at, u16_at, u32_at};
use std::io::Read;

/// Types of debug directory entries.
const CODE_VIEW: u32 = 2;
const EMBEDDED_PORTABLE_PDB: u32 = 17;

/// Limit for an unpacked PDB.
const LARGEST: u64 = 256 << 20;
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
    let header = u32_at(file, 0x3C)? as usize;
    if !file.starts_with(b"MZ") || slice_at(file, header, 4)? != b"PE\0\0" {
        return None;
    }
    let sections = usize::from(u16_at(file, header + 6)?);
    let optional = header + 24;
    let optional_size = usize::from(u16_at(file, header + 20)?);
    // The data directories begin behind the fields of PE32 (0x10b) or PE32+ (0x20b).
    let directories = optional + if u16_at(file, optional)? == 0x20B { 112 } else { 96 };
    let (rva, size) = (u32_at(file, directories + 6 * 8)?, u32_at(file, directories + 6 * 8 + 4)? as usize);
    let mut found = AssemblyDebug::default();
    if rva == 0 {
        return Some(found);
    }
    let at = (0..sections).find_map(|n| {
        let section = optional + optional_size + 40 * n;
        let (start, len) = (u32_at(file, section + 12)?, u32_at(file, section + 16)?);
        let offset = rva.checked_sub(start).filter(|&offset| offset < len)?;
        Some(u32_at(file, section + 20)? as usize + offset as usize)
    })?;
    for n in 0..(size / 28).min(MOST_ENTRIES) {
        let entry = at + 28 * n;
        let kind = u32_at(file, entry + 12)?;
        let bytes = slice_at(file, u32_at(file, entry + 24)? as usize, u32_at(file, entry + 16)? as usize);
        match (kind, bytes) {
            (CODE_VIEW, Some(bytes)) if bytes.starts_with(b"RSDS") => {
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
    let mut unpacked = Vec::new();
    // One byte more, to detect that the PDB is larger than stated.
    flate2::read::DeflateDecoder::new(&data[4..]).take(size + 1).read_to_end(&mut unpacked).ok()?;
    (unpacked.len() as u64 == size).then_some(unpacked)
}
