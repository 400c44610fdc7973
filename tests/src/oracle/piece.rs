//! A small part of a truth file with the image bytes that it needs, for the repository.
//!
//! Layout (zstd, little-endian): `'STKP'`, u32 arch (0 x64, 1 arm64, 2 x86), u64 image base, u32
//! image size, u32 and u32 exception directory (RVA, length), u32 count of ranges, then each as u32
//! RVA, u32 length, bytes; u32 count of FrameData records, each as u32 rva, len, locals, params,
//! saved, is_function_start, text length, text; then a truth file in its own layout, with fewer
//! records.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use stk_unwind::x86::{FrameData, X86Tables};
use stk_unwind::{Arch, ImageTables};

use super::image::{Image, Parts};
use super::layout::{self, States};
use super::score::code_at;

/// The contents of a piece.
pub struct Piece {
    /// The image, as far as it is known.
    pub image: Image,
    /// The chosen states.
    pub states: States,
}

/// Reads a piece.
pub fn read(path: &Path) -> Result<Piece> {
    let bytes = zstd::decode_all(&std::fs::read(path).with_context(|| path.display().to_string())?[..])?;
    parse(&bytes).with_context(|| path.display().to_string())
}

fn parse(bytes: &[u8]) -> Result<Piece> {
    let mut cursor = layout::Cursor::new(bytes);
    ensure!(cursor.take(4)? == b"STKP", "not a piece of truth");
    let arch = match cursor.u32()? {
        0 => Arch::X64,
        1 => Arch::Arm64,
        2 => Arch::X86,
        other => bail!("architecture {other} is not known"),
    };
    let (base, size) = (cursor.u64()?, cursor.u32()?);
    let directory = (cursor.u32()?, cursor.u32()?);
    let mut builder = ImageTables::new(arch, size).exception_directory(directory.0, directory.1);
    for _ in 0..cursor.u32()? {
        let (rva, len) = (cursor.u32()?, cursor.u32()?);
        builder = builder.range(rva, cursor.take(len as usize)?);
    }
    let mut records = Vec::new();
    for _ in 0..cursor.u32()? {
        let [rva, len, locals, params, saved, is_function_start, text] = cursor.u32s()?;
        let program = String::from_utf8(cursor.take(text as usize)?.to_vec())?;
        let is_function_start = is_function_start != 0;
        records.push(FrameData {
            rva,
            len,
            locals,
            params,
            prologue: 0,
            saved,
            is_function_start,
            has_seh: false,
            has_eh: false,
            program,
        });
    }
    let tables = builder.x86(X86Tables::new(records, [])).build();
    let image = Image { base, size: u64::from(size).next_multiple_of(0x1000), tables };
    Ok(Piece { image, states: layout::parse(cursor.rest())? })
}

/// Chooses about `count` states, equally many of each tag, and writes them with the image bytes
/// that they need.
pub fn write(parts: &Parts, states: &States, raw: &[u8], count: usize, out: &Path) -> Result<usize> {
    let chosen = choose(states, count);
    let mut bytes = Vec::new();
    let arch: u32 = match parts.arch {
        Arch::X64 => 0,
        Arch::Arm64 => 1,
        _ => 2,
    };
    bytes.extend_from_slice(b"STKP");
    bytes.extend(arch.to_le_bytes());
    bytes.extend(parts.base.to_le_bytes());
    bytes.extend(parts.size.to_le_bytes());
    bytes.extend(parts.directory.0.to_le_bytes());
    bytes.extend(parts.directory.1.to_le_bytes());
    let ranges = ranges(parts, states, &chosen);
    bytes.extend((ranges.len() as u32).to_le_bytes());
    for (rva, range) in &ranges {
        bytes.extend(rva.to_le_bytes());
        bytes.extend((range.len() as u32).to_le_bytes());
        bytes.extend_from_slice(range);
    }
    bytes.extend((parts.frame_data.len() as u32).to_le_bytes());
    for record in &parts.frame_data {
        let start = u32::from(record.is_function_start);
        let fields = [record.rva, record.len, record.locals, record.params, record.saved, start];
        bytes.extend(fields.iter().flat_map(|field| field.to_le_bytes()));
        bytes.extend((record.program.len() as u32).to_le_bytes());
        bytes.extend_from_slice(record.program.as_bytes());
    }
    bytes.extend(layout::subset(raw, states, &chosen)?);
    std::fs::write(out, zstd::encode_all(&bytes[..], 19)?)?;
    Ok(chosen.len())
}

/// Chooses states with little stack, spread evenly over each tag (or over all states, if there are
/// no tags).
fn choose(states: &States, count: usize) -> Vec<usize> {
    const STACK: usize = 600;
    let mut by_tag: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, record) in states.records.iter().enumerate().filter(|(_, record)| record.stack.len() <= STACK)
    {
        let tags = states.tags(record);
        for tag in tags.iter().copied().chain(tags.is_empty().then_some("")) {
            by_tag.entry(tag).or_default().push(index);
        }
    }
    let per_tag = count / by_tag.len().max(1);
    let mut chosen: Vec<usize> = by_tag
        .values()
        .flat_map(|indexes| indexes.iter().step_by(indexes.len().div_ceil(per_tag).max(1)))
        .copied()
        .collect();
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

/// The exception directory with the records it points to, and code: 64 bytes at each state, as a
/// recorder takes them (x86: the whole code section, because the unwinder follows the code there).
fn ranges(parts: &Parts, states: &States, chosen: &[usize]) -> Vec<(u32, Vec<u8>)> {
    let whole = &parts.tables;
    if parts.arch == Arch::X86 {
        return parts.code.iter().filter_map(|range| part(whole, range.start, range.len())).collect();
    }
    let mut known = vec![false; parts.size as usize];
    let mut mark = |rva: u32, len: usize| {
        for at in known.iter_mut().skip(rva as usize).take(len) {
            *at = true;
        }
    };
    mark(parts.directory.0, parts.directory.1 as usize);
    for &(rva, len) in &parts.unwind_records {
        mark(rva, len as usize);
    }
    for &index in chosen {
        mark(states.records[index].rva, code_at(whole, states.records[index].rva).map_or(0, <[u8]>::len));
    }
    let mut ranges = Vec::new();
    let mut start = 0;
    while let Some(begin) = (start..known.len()).find(|&at| known[at]) {
        let end = (begin..known.len()).find(|&at| !known[at]).unwrap_or(known.len());
        ranges.extend(part(whole, begin as u32, end - begin));
        start = end;
    }
    ranges
}

fn part(image: &ImageTables, rva: u32, len: usize) -> Option<(u32, Vec<u8>)> {
    let bytes = image.bytes(rva)?;
    Some((rva, bytes.get(..len).unwrap_or(bytes).to_vec()))
}
