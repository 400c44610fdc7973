//! Reads the parts of an image that a trace stores: headers, identities, and the tables that
//! offline work needs. The agent reads them from the target's memory. The program that completes a
//! trace after its end reads them from an image file ([`ImageFile`]).
//!
//! Everything goes through [`Memory`], whose reads fail instead of faulting: a module can be
//! unmapped at any moment, and headers can hold anything. Sizes are bounded, ranges are checked
//! against the mapped size, and unreadable parts are left out, never invented. (The `object` crate
//! reads files; here only memory is available, in pieces.)

mod file;
mod pages;

pub use file::ImageFile;

use crate::blob::content_hash;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use pages::{Pages, mark_arm64, mark_x64};
use stk_schema::bytes::{u16_at, u32_at};
use stk_schema::event::TableKind;
use stk_schema::identity::{ContentHash, PeIdentity};
use stk_schema::windows as pe;

/// The target's memory. An implementation must not let a fault reach the target's handlers.
pub trait Memory {
    /// Fills `into` from `address`; false if any byte of it could not be read.
    fn read(&self, address: u64, into: &mut [u8]) -> bool;
}

/// Most bytes of headers that are read (the specification's file alignment bounds real ones far
/// lower).
const MAX_HEADERS: u32 = 64 << 10;
/// Most bytes of one table.
const MAX_TABLE: u32 = 256 << 20;
/// Most sections; the loader itself refuses more than 96.
const MAX_SECTIONS: usize = 96;
/// Most exported names that are followed outside the export directory.
const MAX_NAMES: u32 = 1 << 20;
/// Longest export name that can be searched for, with its terminator.
const MAX_EXPORT_NAME: usize = 128;
/// Most bytes per read. Reading a large module stops at the first chunk that fails, so a module
/// that is unloaded meanwhile costs little.
const READ_CHUNK: usize = 256 << 10;
const PAGE: u32 = 4096;

/// IMAGE_SCN_MEM_EXECUTE.
const SECTION_EXECUTE: u32 = 0x2000_0000;
/// IMAGE_DEBUG_TYPE_CODEVIEW.
const DEBUG_CODEVIEW: u32 = 2;

/// The headers of an image as found in memory.
#[derive(Debug)]
pub struct Image {
    /// Load address.
    pub base: u64,
    /// Bytes mapped: the smaller of what the loader said and SizeOfImage.
    pub size: u32,
    /// IMAGE_FILE_HEADER.Machine.
    pub machine: u16,
    /// Header fields that name the image.
    pub identity: PeIdentity,
    /// Hash of the headers with ImageBase zeroed (the one field that loading changes).
    pub header_hash: ContentHash,
    /// CodeView record, if the image has one.
    pub code_view: Option<CodeViewRecord>,
    headers: Vec<u8>,
    executable: Vec<Range<u32>>,
    exports: Range<u32>,
    exceptions: Range<u32>,
    debug: Range<u32>,
}

/// An `RSDS` record with the place that it was read from.
#[derive(Debug)]
pub struct CodeViewRecord {
    /// GUID as stored.
    pub guid: [u8; 16],
    /// Age: how often the PDB was rewritten under this GUID.
    pub age: u32,
    /// PDB path or name as the linker wrote it.
    pub pdb_name: Vec<u8>,
    range: Range<u32>,
}

/// One range of an image that is to be stored.
#[derive(Debug, PartialEq, Eq)]
pub struct ImagePart {
    /// Kind of its contents.
    pub kind: TableKind,
    /// Where it starts in the image.
    pub rva: u32,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl Image {
    /// Reads headers and identities of the image mapped at `base`; `None` if it is not a readable
    /// PE image.
    pub fn read(memory: &impl Memory, base: u64, mapped: u64) -> Option<Image> {
        let mapped = u32::try_from(mapped).unwrap_or(u32::MAX);
        let mut dos = [0; 64];
        if !memory.read(base, &mut dos) || dos[..2] != *b"MZ" {
            return None;
        }
        let nt = u32_at(&dos, 0x3c)?;
        // Signature, file header and the largest optional header's fixed part, to learn
        // SizeOfHeaders.
        let mut start = [0; 24 + 112];
        if nt > MAX_HEADERS || !memory.read(base + u64::from(nt), &mut start) || start[..4] != *b"PE\0\0" {
            return None;
        }
        let size_of_headers = u32_at(&start, 24 + 60)?.clamp(nt + start.len() as u32, MAX_HEADERS);
        let mut headers = vec![0; size_of_headers as usize];
        if !memory.read(base, &mut headers) {
            return None;
        }
        let nt = nt as usize;
        let plus = match u16_at(&headers, nt + 24)? {
            0x20b => true,
            0x10b => false,
            _ => return None,
        };
        let optional = nt + 24;
        let identity = PeIdentity {
            time_date_stamp: u32_at(&headers, nt + 8)?,
            size_of_image: u32_at(&headers, optional + 56)?,
            check_sum: u32_at(&headers, optional + 64)?,
        };
        let size = if mapped == 0 { identity.size_of_image } else { identity.size_of_image.min(mapped) };
        let (count_at, directories) = if plus { (108, optional + 112) } else { (92, optional + 96) };
        let count = u32_at(&headers, optional + count_at)? as usize;
        let directory = |index: usize| {
            let at = directories + index * 8;
            if index >= count {
                return 0..0;
            }
            match (u32_at(&headers, at), u32_at(&headers, at + 4)) {
                (Some(rva), Some(len)) => bounded(rva, len, size),
                _ => 0..0,
            }
        };
        let (exports, exceptions, debug) = (
            directory(pe::DIRECTORY_EXPORT),
            directory(pe::DIRECTORY_EXCEPTION),
            directory(pe::DIRECTORY_DEBUG),
        );
        let sections = optional + usize::from(u16_at(&headers, nt + 20)?);
        let section_count = usize::from(u16_at(&headers, nt + 6)?).min(MAX_SECTIONS);
        let executable = (0..section_count)
            .map(|index| sections + index * 40)
            .filter(|&at| u32_at(&headers, at + 36).is_some_and(|flags| flags & SECTION_EXECUTE != 0))
            .filter_map(|at| Some(bounded(u32_at(&headers, at + 12)?, u32_at(&headers, at + 8)?, size)))
            .filter(|range| !range.is_empty())
            .collect();
        let image_base = if plus { optional + 24..optional + 32 } else { optional + 28..optional + 32 };
        let mut neutral = headers.clone();
        neutral.get_mut(image_base)?.fill(0);
        let mut image = Image {
            base,
            size,
            machine: u16_at(&headers, nt + 4)?,
            identity,
            header_hash: content_hash(&neutral),
            code_view: None,
            headers,
            executable,
            exports,
            exceptions,
            debug,
        };
        image.code_view = image.read_code_view(memory);
        Some(image)
    }

    /// Whether `rva` is in a section that can be executed.
    pub fn is_code(&self, rva: u32) -> bool {
        self.executable.iter().any(|range| range.contains(&rva))
    }

    /// The data directory `index`, as far as it is in the image; empty if there is none.
    pub fn directory(&self, index: usize) -> Range<u32> {
        let field = |at: usize| u32_at(&self.headers, at);
        let find = || {
            let optional = field(0x3c)? as usize + 24;
            let plus = u16_at(&self.headers, optional)? == 0x20b;
            let (count, directories) =
                if plus { (optional + 108, optional + 112) } else { (optional + 92, optional + 96) };
            let at = directories + index * 8;
            (index < field(count)? as usize).then_some(bounded(field(at)?, field(at + 4)?, self.size))
        };
        find().unwrap_or(0..0)
    }

    /// Address of the export `name`: a search in the sorted list of names, a few small reads.
    /// Forwarded exports count too.
    pub fn export(&self, memory: &impl Memory, name: &[u8]) -> Option<u64> {
        let read_u32 = |rva: u32| {
            let mut bytes = [0; 4];
            let inside = rva.checked_add(4).is_some_and(|end| end <= self.size);
            (inside && memory.read(self.base + u64::from(rva), &mut bytes)).then(|| u32::from_le_bytes(bytes))
        };
        if self.exports.len() < 40 {
            return None;
        }
        let field = |at: u32| read_u32(self.exports.start + at);
        let (functions, names) = (field(20)?, field(24)?.min(MAX_NAMES));
        let (addresses, name_list, ordinals) = (field(28)?, field(32)?, field(36)?);
        let (mut low, mut high) = (0, names);
        let mut text = [0; MAX_EXPORT_NAME];
        let text = text.get_mut(..name.len() + 1)?;
        while low < high {
            let middle = low + (high - low) / 2;
            let rva = read_u32(name_list.checked_add(middle * 4)?)?;
            let len = text.len().min(self.size.checked_sub(rva)? as usize);
            let text = text.get_mut(..len)?;
            if !memory.read(self.base + u64::from(rva), text) {
                return None;
            }
            let len = text.iter().position(|&byte| byte == 0).unwrap_or(len);
            match text.get(..len)?.cmp(name) {
                core::cmp::Ordering::Less => low = middle + 1,
                core::cmp::Ordering::Greater => high = middle,
                core::cmp::Ordering::Equal => {
                    // The ordinal is a u16; the two bytes before it are in the image too.
                    let ordinal = read_u32(ordinals.checked_add(middle * 2)?.checked_sub(2)?)? >> 16;
                    let rva = read_u32(addresses.checked_add(ordinal * 4)?)?;
                    return (ordinal < functions && rva < self.size).then(|| self.base + u64::from(rva));
                }
            }
        }
        None
    }

    /// Reads what unwinding and naming need from the image, one part at a time, into `store`.
    ///
    /// Parts that cannot be read are left out. The offline side reports the missing data.
    pub fn unwind_parts(&self, memory: &impl Memory, store: &mut impl FnMut(ImagePart)) {
        store(ImagePart { kind: TableKind::Headers, rva: 0, bytes: self.headers.clone() });
        if !self.debug.is_empty() {
            self.store_range(memory, TableKind::Debug, self.debug.clone(), store);
            if let Some(record) = &self.code_view {
                self.store_range(memory, TableKind::Debug, record.range.clone(), store);
            }
        }
        if let Some(functions) = self.bytes(memory, self.exceptions.clone()) {
            let mut pages = Pages::new(self, memory);
            match self.machine {
                pe::MACHINE_X64 => mark_x64(&functions, &mut pages),
                pe::MACHINE_ARM64 => mark_arm64(&functions, &mut pages),
                _ => {}
            }
            store(ImagePart {
                kind: TableKind::ExceptionDirectory,
                rva: self.exceptions.start,
                bytes: functions,
            });
            pages.store(TableKind::UnwindInfo, store);
        }
        if let Some(exports) = self.bytes(memory, self.exports.clone()) {
            let mut pages = Pages::new(self, memory);
            self.mark_exports(&exports, &mut pages);
            store(ImagePart { kind: TableKind::Exports, rva: self.exports.start, bytes: exports });
            pages.store(TableKind::Exports, store);
        }
    }

    /// Reads the executable sections into `store`.
    pub fn code_parts(&self, memory: &impl Memory, store: &mut impl FnMut(ImagePart)) {
        for range in &self.executable {
            self.store_range(memory, TableKind::Code, range.clone(), store);
        }
    }

    fn store_range(
        &self,
        memory: &impl Memory,
        kind: TableKind,
        range: Range<u32>,
        store: &mut impl FnMut(ImagePart),
    ) {
        let rva = range.start;
        if let Some(bytes) = self.bytes(memory, range) {
            store(ImagePart { kind, rva, bytes });
        }
    }

    /// The bytes of a range, or `None` if it is empty or any part of it cannot be read.
    fn bytes(&self, memory: &impl Memory, range: Range<u32>) -> Option<Vec<u8>> {
        if range.is_empty() || range.len() as u32 > MAX_TABLE {
            return None;
        }
        let mut bytes = vec![0; range.len()];
        let mut address = self.base + u64::from(range.start);
        for chunk in bytes.chunks_mut(READ_CHUNK) {
            if !memory.read(address, chunk) {
                return None;
            }
            address += chunk.len() as u64;
        }
        Some(bytes)
    }

    fn read_code_view(&self, memory: &impl Memory) -> Option<CodeViewRecord> {
        let directory =
            self.bytes(memory, self.debug.start..self.debug.end.min(self.debug.start + 28 * 64))?;
        let entry = directory.chunks_exact(28).find(|entry| u32_at(entry, 12) == Some(DEBUG_CODEVIEW))?;
        let range = bounded(u32_at(entry, 20)?, u32_at(entry, 16)?.min(PAGE), self.size);
        let record = self.bytes(memory, range.clone())?;
        if record.get(..4)? != b"RSDS" {
            return None;
        }
        let name = record.get(24..)?;
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        Some(CodeViewRecord {
            guid: record.get(4..20)?.try_into().ok()?,
            age: u32_at(&record, 20)?,
            pdb_name: name.get(..end)?.to_vec(),
            range,
        })
    }

    /// Marks the arrays and names of the export directory that lie outside of it (some linkers put
    /// them elsewhere).
    fn mark_exports(&self, directory: &[u8], pages: &mut Pages<'_, impl Memory>) {
        let field = |at| u32_at(directory, at).unwrap_or(0);
        let (functions, names) = (field(20).min(MAX_NAMES), field(24).min(MAX_NAMES));
        let arrays =
            [(field(28), functions.saturating_mul(4)), (field(32), names * 4), (field(36), names * 2)];
        let inside = |rva: u32, len: u32| {
            rva >= self.exports.start && rva.checked_add(len).is_some_and(|end| end <= self.exports.end)
        };
        for (rva, len) in arrays {
            if !inside(rva, len) {
                pages.mark(rva, len);
            }
        }
        if field(12) != 0 && !inside(field(12), 1) {
            pages.mark_text(field(12));
        }
        let array = bounded(field(32), names * 4, self.size);
        let own;
        let name_rvas = if inside(array.start, array.len() as u32) {
            let from = (array.start - self.exports.start) as usize;
            directory.get(from..from + array.len()).unwrap_or(&[])
        } else {
            own = self.bytes(pages.memory, array).unwrap_or_default();
            &own
        };
        for rva in name_rvas.chunks_exact(4).filter_map(|bytes| u32_at(bytes, 0)) {
            if !inside(rva, 1) {
                pages.mark_text(rva);
            }
        }
    }
}

/// `rva..rva + len`, cut at `size`; empty if it starts beyond.
fn bounded(rva: u32, len: u32, size: u32) -> Range<u32> {
    let end = rva.saturating_add(len).min(size);
    if rva == 0 || rva >= end { 0..0 } else { rva..end }
}

#[cfg(test)]
mod tests;
