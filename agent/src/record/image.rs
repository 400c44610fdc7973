//! What is read of an image in the target's memory: headers, identities, the tables that offline work needs.
//!
//! Everything goes through [`Memory`], whose reads fail instead of faulting: a module can be unmapped at any moment,
//! and headers can hold anything. Sizes are bounded, ranges are checked against the mapped size, and what cannot be
//! read is left out, never invented. (The `object` crate reads files; here only memory is at hand, piecewise.)

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use stk_format::blob::content_hash;
use stk_schema::event::TableKind;
use stk_schema::identity::{ContentHash, PeIdentity};
use stk_schema::windows as pe;

/// The target's memory, read so that a fault cannot reach the target's handlers.
pub trait Memory {
    /// Fills `into` from `address`; false if any byte of it could not be read.
    fn read(&self, address: u64, into: &mut [u8]) -> bool;
}

/// Most bytes of headers that are read (the specification's file alignment bounds real ones far lower).
const MAX_HEADERS: u32 = 64 << 10;
/// Most bytes of one table.
const MAX_TABLE: u32 = 256 << 20;
/// Most sections; the loader itself refuses more than 96.
const MAX_SECTIONS: usize = 96;
/// Most exported names that are followed outside the export directory.
const MAX_NAMES: u32 = 1 << 20;
/// Longest export name that can be searched for, with its terminator.
const MAX_EXPORT_NAME: usize = 128;
/// Most bytes read at once, so that a change in the middle of a large module costs little.
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
    /// Age.
    pub age: u32,
    /// PDB path or name as the linker wrote it.
    pub pdb_name: Vec<u8>,
    range: Range<u32>,
}

/// One range of an image that is to be stored.
#[derive(Debug, PartialEq, Eq)]
pub struct Part {
    /// What it holds.
    pub kind: TableKind,
    /// Where it starts in the image.
    pub rva: u32,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl Image {
    /// Reads headers and identities of the image mapped at `base`; `None` if it is not a readable PE image.
    pub fn read(memory: &impl Memory, base: u64, mapped: u64) -> Option<Image> {
        let mapped = u32::try_from(mapped).unwrap_or(u32::MAX);
        let mut dos = [0; 64];
        if !memory.read(base, &mut dos) || dos[..2] != *b"MZ" {
            return None;
        }
        let nt = u32_at(&dos, 0x3c)?;
        // Signature, file header and the largest optional header's fixed part, to learn SizeOfHeaders.
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

    /// Whether `rva` lies in a section that can be executed.
    pub fn is_code(&self, rva: u32) -> bool {
        self.executable.iter().any(|range| range.contains(&rva))
    }

    /// The data directory `index`, as far as it lies in the image; empty if there is none.
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

    /// Address of the export `name`: a search in the sorted list of names, a few small reads. Forwarded exports count too.
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
    /// Parts that cannot be read are left out: the offline side says which data is missing.
    pub fn unwind_parts(&self, memory: &impl Memory, store: &mut impl FnMut(Part)) {
        store(Part { kind: TableKind::Headers, rva: 0, bytes: self.headers.clone() });
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
            store(Part { kind: TableKind::ExceptionDirectory, rva: self.exceptions.start, bytes: functions });
            pages.store(TableKind::UnwindInfo, store);
        }
        if let Some(exports) = self.bytes(memory, self.exports.clone()) {
            let mut pages = Pages::new(self, memory);
            self.mark_exports(&exports, &mut pages);
            store(Part { kind: TableKind::Exports, rva: self.exports.start, bytes: exports });
            pages.store(TableKind::Exports, store);
        }
    }

    /// Reads the executable sections into `store`.
    pub fn code_parts(&self, memory: &impl Memory, store: &mut impl FnMut(Part)) {
        for range in &self.executable {
            self.store_range(memory, TableKind::Code, range.clone(), store);
        }
    }

    fn store_range(
        &self,
        memory: &impl Memory,
        kind: TableKind,
        range: Range<u32>,
        store: &mut impl FnMut(Part),
    ) {
        let rva = range.start;
        if let Some(bytes) = self.bytes(memory, range) {
            store(Part { kind, rva, bytes });
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

    /// Marks the arrays and names of the export directory that lie outside of it (some linkers put them elsewhere).
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

/// Pages of an image that are to be stored, read once each.
struct Pages<'a, M> {
    image: &'a Image,
    memory: &'a M,
    /// `None`: could not be read.
    pages: BTreeMap<u32, Option<Vec<u8>>>,
}

impl<'a, M: Memory> Pages<'a, M> {
    fn new(image: &'a Image, memory: &'a M) -> Pages<'a, M> {
        Pages { image, memory, pages: BTreeMap::new() }
    }

    /// Has the pages of `rva..rva + len` stored, as far as the image reaches.
    fn mark(&mut self, rva: u32, len: u32) {
        let range = bounded(rva, len, self.image.size);
        if range.is_empty() {
            return;
        }
        let (first, last) = (range.start / PAGE, (range.end - 1) / PAGE);
        for page in first..=last {
            self.page(page);
        }
    }

    /// Has the zero-terminated text at `rva` stored.
    fn mark_text(&mut self, mut rva: u32) {
        // A name longer than a few pages is no name.
        for _ in 0..4 {
            if rva >= self.image.size {
                return;
            }
            let offset = (rva % PAGE) as usize;
            match self.page(rva / PAGE).and_then(|page| page.get(offset..)) {
                Some(rest) if !rest.contains(&0) => rva += rest.len() as u32,
                _ => return,
            }
        }
    }

    /// `N` bytes at `rva`, marked as they are read.
    fn get<const N: usize>(&mut self, rva: u32) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        for (rva, byte) in (rva..).zip(&mut bytes) {
            *byte = *self.page(rva / PAGE)?.get((rva % PAGE) as usize)?;
        }
        Some(bytes)
    }

    fn page(&mut self, page: u32) -> Option<&[u8]> {
        let (image, memory) = (self.image, self.memory);
        self.pages
            .entry(page)
            .or_insert_with(|| {
                let start = page.checked_mul(PAGE)?;
                image.bytes(memory, start..start.saturating_add(PAGE).min(image.size))
            })
            .as_deref()
    }

    /// Hands over runs of neighbouring pages.
    fn store(self, kind: TableKind, store: &mut impl FnMut(Part)) {
        let mut run: Option<Part> = None;
        for (page, bytes) in self.pages {
            let Some(bytes) = bytes else { continue };
            let rva = page * PAGE;
            match &mut run {
                Some(part) if part.rva as usize + part.bytes.len() == rva as usize => {
                    part.bytes.extend_from_slice(&bytes);
                }
                _ => {
                    if let Some(part) = run.replace(Part { kind, rva, bytes }) {
                        store(part);
                    }
                }
            }
        }
        if let Some(part) = run {
            store(part);
        }
    }
}

/// Marks the UNWIND_INFO records that a x64 exception directory names (x64 exception handling documentation,
/// "struct UNWIND_INFO"), chained ones included.
fn mark_x64(functions: &[u8], pages: &mut Pages<'_, impl Memory>) {
    let mut seen = BTreeSet::new();
    for function in functions.chunks_exact(pe::RUNTIME_FUNCTION_X64_SIZE) {
        let mut next = u32_at(function, 8);
        while let Some(rva) = next.take().filter(|&rva| rva != 0 && seen.insert(rva)) {
            if rva & 1 != 0 {
                // The entry shares that of another RUNTIME_FUNCTION, which lies at this RVA.
                next = pages.get::<12>(rva & !1).and_then(|entry| u32_at(&entry, 8));
                continue;
            }
            let Some([flags, _prologue, codes, _frame]) = pages.get::<4>(rva) else { break };
            let flags = flags >> 3;
            // The array of codes always has an even number of places.
            let codes = u32::from(codes).div_ceil(2) * 4;
            pages.mark(rva, 4 + codes);
            let after = rva.saturating_add(4 + codes);
            if flags & pe::UNW_FLAG_CHAININFO != 0 {
                next = pages.get::<12>(after).and_then(|entry| u32_at(&entry, 8));
            } else if flags & (pe::UNW_FLAG_EHANDLER | pe::UNW_FLAG_UHANDLER) != 0 {
                pages.mark(after, 4);
            }
        }
    }
}

/// Marks the .xdata records that an arm64 exception directory names (ARM64 exception handling documentation,
/// ".xdata records").
fn mark_arm64(functions: &[u8], pages: &mut Pages<'_, impl Memory>) {
    for function in functions.chunks_exact(pe::RUNTIME_FUNCTION_ARM64_SIZE) {
        let Some(data) = u32_at(function, 4) else { continue };
        // The low two bits tell packed unwind data, which needs no record.
        if data & 3 != 0 || data == 0 {
            continue;
        }
        let Some(first) = pages.get::<4>(data).map(u32::from_le_bytes) else { continue };
        let (mut epilogues, mut words, mut header) = (first >> 22 & 0x1f, first >> 27, 4);
        if epilogues == 0 && words == 0 {
            let Some(second) = pages.get::<4>(data.saturating_add(4)).map(u32::from_le_bytes) else {
                continue;
            };
            (epilogues, words, header) = (second & 0xffff, second >> 16 & 0xff, 8);
        }
        let scopes = if first >> 21 & 1 != 0 { 0 } else { epilogues };
        let handler = if first >> 20 & 1 != 0 { 4 } else { 0 };
        pages.mark(data, header + scopes * 4 + words * 4 + handler);
    }
}

/// `rva..rva + len`, cut at `size`; empty if it starts beyond.
fn bounded(rva: u32, len: u32, size: u32) -> Range<u32> {
    let end = rva.saturating_add(len).min(size);
    if rva == 0 || rva >= end { 0..0 } else { rva..end }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x1_4000_0000;
    const NT: usize = 0x80;
    const OPTIONAL: usize = NT + 24;

    /// An image in memory, built field by field after the PE specification.
    struct Fake {
        bytes: Vec<u8>,
        /// Pages that cannot be read.
        holes: BTreeSet<u32>,
    }

    impl Memory for Fake {
        fn read(&self, address: u64, into: &mut [u8]) -> bool {
            let Some(start) = address.checked_sub(BASE).map(|start| start as usize) else { return false };
            let Some(bytes) = self.bytes.get(start..start.saturating_add(into.len())) else { return false };
            let pages = start as u32 / PAGE..=(start + into.len()).saturating_sub(1) as u32 / PAGE;
            if pages.clone().any(|page| self.holes.contains(&page)) {
                return false;
            }
            into.copy_from_slice(bytes);
            true
        }
    }

    impl Fake {
        /// A 64 KiB x64 image with an executable section at 0x1000..0x2000.
        fn new(machine: u16) -> Fake {
            let mut fake = Fake { bytes: vec![0; 0x1_0000], holes: BTreeSet::new() };
            fake.put(0, b"MZ");
            fake.put(0x3c, &(NT as u32).to_le_bytes());
            fake.put(NT, b"PE\0\0");
            fake.put(NT + 4, &machine.to_le_bytes());
            fake.put(NT + 6, &1u16.to_le_bytes());
            fake.put(NT + 8, &0x1234_5678u32.to_le_bytes());
            fake.put(NT + 20, &240u16.to_le_bytes());
            fake.put(OPTIONAL, &0x20bu16.to_le_bytes());
            fake.put(OPTIONAL + 24, &BASE.to_le_bytes());
            fake.put(OPTIONAL + 56, &0x1_0000u32.to_le_bytes());
            fake.put(OPTIONAL + 60, &0x400u32.to_le_bytes());
            fake.put(OPTIONAL + 64, &0xabcdu32.to_le_bytes());
            fake.put(OPTIONAL + 108, &16u32.to_le_bytes());
            let section = OPTIONAL + 240;
            fake.put(section, b".text");
            fake.put(section + 8, &0x1000u32.to_le_bytes());
            fake.put(section + 12, &0x1000u32.to_le_bytes());
            fake.put(section + 36, &0x6000_0020u32.to_le_bytes());
            fake
        }

        fn put(&mut self, at: usize, bytes: &[u8]) {
            self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        }

        fn words(&mut self, at: usize, words: &[u32]) {
            for (index, word) in words.iter().enumerate() {
                self.put(at + index * 4, &word.to_le_bytes());
            }
        }

        fn directory(&mut self, index: usize, rva: u32, len: u32) {
            self.words(OPTIONAL + 112 + index * 8, &[rva, len]);
        }

        fn image(&self) -> Image {
            Image::read(self, BASE, 0x1_0000).unwrap()
        }

        fn parts(&self) -> Vec<Part> {
            let mut parts = Vec::new();
            self.image().unwind_parts(self, &mut |part| parts.push(part));
            parts
        }

        /// Start and end of every stored range of a kind.
        fn ranges(&self, kind: TableKind) -> Vec<(u32, u32)> {
            let parts = self.parts();
            for part in &parts {
                let at = part.rva as usize;
                assert!(part.bytes == self.bytes[at..at + part.bytes.len()], "the bytes at {at:#x}");
            }
            let of_kind = parts.iter().filter(|part| part.kind == kind);
            of_kind.map(|part| (part.rva, part.rva + part.bytes.len() as u32)).collect()
        }
    }

    #[test]
    fn identity_fields_and_code_view_are_those_of_the_headers() {
        let mut fake = Fake::new(pe::MACHINE_X64);
        fake.directory(pe::DIRECTORY_DEBUG, 0x2000, 56);
        // IMAGE_DEBUG_DIRECTORY: characteristics, stamp, version, type, size, rva, file offset. The second is CodeView.
        fake.words(0x2000, &[0, 0, 0, 13, 8, 0x2200, 0]);
        fake.words(0x2000 + 28, &[0, 0, 0, 2, 24 + 8, 0x2100, 0]);
        fake.put(0x2100, b"RSDS");
        fake.put(0x2104, &[7; 16]);
        fake.put(0x2114, &3u32.to_le_bytes());
        fake.put(0x2118, b"app.pdb\0");
        let image = fake.image();
        assert_eq!(
            image.identity,
            PeIdentity { time_date_stamp: 0x1234_5678, size_of_image: 0x1_0000, check_sum: 0xabcd }
        );
        let record = image.code_view.as_ref().unwrap();
        assert_eq!((record.guid, record.age, &*record.pdb_name), ([7; 16], 3, &b"app.pdb"[..]));
        assert_eq!(fake.ranges(TableKind::Debug), [(0x2000, 0x2038), (0x2100, 0x2120)]);
        assert!(image.is_code(0x1000) && image.is_code(0x1fff) && !image.is_code(0x2000));
    }

    #[test]
    fn the_header_hash_is_the_same_at_every_load_address_and_differs_between_images() {
        let mut fake = Fake::new(pe::MACHINE_X64);
        let hash = fake.image().header_hash;
        fake.put(OPTIONAL + 24, &0x7ffe_0000_0000u64.to_le_bytes());
        assert_eq!(fake.image().header_hash, hash);
        fake.put(OPTIONAL + 240, b".text2");
        assert_ne!(fake.image().header_hash, hash);
    }

    #[test]
    fn unwind_info_is_followed_through_chains_and_shared_entries_even_in_circles() {
        let mut fake = Fake::new(pe::MACHINE_X64);
        fake.directory(pe::DIRECTORY_EXCEPTION, 0x4000, 36);
        // The first is chained to another page, the second shares a RUNTIME_FUNCTION elsewhere, the third is plain.
        fake.words(0x4000, &[0x1000, 0x1010, 0x5000]);
        fake.words(0x400c, &[0x1010, 0x1020, 0x4801]);
        fake.words(0x4018, &[0x1020, 0x1030, 0x8ff8]);
        fake.put(0x5000, &[1 | 4 << 3, 0, 1, 0]);
        fake.words(0x5008, &[0x1000, 0x1010, 0x6000]);
        // Chained back to the first.
        fake.put(0x6000, &[1 | 4 << 3, 0, 0, 0]);
        fake.words(0x6004, &[0x1000, 0x1010, 0x5000]);
        fake.words(0x4800, &[0x1010, 0x1020, 0x7000]);
        fake.put(0x7000, &[1, 0, 0, 0]);
        // Four codes at the end of a page, then a handler on the next.
        fake.put(0x8ff8, &[1 | 1 << 3, 0, 4, 0]);
        assert_eq!(fake.ranges(TableKind::ExceptionDirectory), [(0x4000, 0x4024)]);
        assert_eq!(fake.ranges(TableKind::UnwindInfo), [(0x4000, 0xa000)]);
    }

    #[test]
    fn a_page_that_cannot_be_read_is_left_out_and_the_rest_is_kept() {
        let mut fake = Fake::new(pe::MACHINE_X64);
        fake.directory(pe::DIRECTORY_EXCEPTION, 0x4000, 24);
        fake.words(0x4000, &[0x1000, 0x1010, 0x5000]);
        fake.words(0x400c, &[0x1010, 0x1020, 0x6000]);
        fake.put(0x5000, &[1, 0, 0, 0]);
        fake.put(0x6000, &[1, 0, 0, 0]);
        fake.holes.insert(5);
        assert_eq!(fake.ranges(TableKind::UnwindInfo), [(0x6000, 0x7000)]);
        fake.holes.insert(4);
        assert_eq!(fake.ranges(TableKind::ExceptionDirectory), []);
        assert_eq!(fake.ranges(TableKind::Headers), [(0, 0x400)]);
    }

    #[test]
    fn arm64_records_are_stored_with_all_their_words_and_packed_data_needs_none() {
        let mut fake = Fake::new(pe::MACHINE_ARM64);
        fake.directory(pe::DIRECTORY_EXCEPTION, 0x4000, 24);
        fake.words(0x4000, &[0x1000, 0x5ffc]);
        // Packed unwind data: flag 1.
        fake.words(0x4008, &[0x1010, 0x9001]);
        fake.words(0x4010, &[0x1020, 0x7ff8]);
        // 2 epilogue scopes, 1 code word: 4 + 8 + 4 bytes from 0x5ffc, so into the next page.
        fake.words(0x5ffc, &[2 << 22 | 1 << 27]);
        // Extended header: no epilogue scopes, 3 code words: 8 + 12 bytes from 0x7ff8.
        fake.words(0x7ff8, &[0, 3 << 16]);
        assert_eq!(fake.ranges(TableKind::UnwindInfo), [(0x5000, 0x9000)]);
    }

    #[test]
    fn export_names_and_arrays_outside_of_the_directory_are_stored_too() {
        let mut fake = Fake::new(pe::MACHINE_X64);
        fake.directory(pe::DIRECTORY_EXPORT, 0x2000, 0x100);
        // Of the directory: DLL name inside, 1 function, 2 names; functions and ordinals inside, names' array outside.
        fake.words(0x2000 + 12, &[0x2080, 1, 1, 2, 0x2040, 0x5000, 0x2050]);
        fake.words(0x5000, &[0x2090, 0x7ffe]);
        fake.put(0x2090, b"inside\0");
        fake.put(0x7ffe, b"across_pages\0");
        assert_eq!(fake.ranges(TableKind::Exports), [(0x2000, 0x2100), (0x5000, 0x6000), (0x7000, 0x9000)]);
    }

    #[test]
    fn an_export_is_found_by_its_name_alone() {
        let mut fake = Fake::new(pe::MACHINE_X64);
        fake.directory(pe::DIRECTORY_EXPORT, 0x2000, 0x200);
        // Three functions, three names in order, whose ordinals are 2, 0, 1.
        fake.words(0x2000 + 20, &[3, 3, 0x2040, 0x2060, 0x2080]);
        fake.words(0x2040, &[0x1010, 0x1020, 0x1030]);
        fake.words(0x2060, &[0x2090, 0x20a0, 0x20b0]);
        fake.words(0x2080, &[2, 1]);
        for (at, name) in [(0x2090, &b"Alpha\0"[..]), (0x20a0, b"Beta\0"), (0x20b0, b"Betamax\0")] {
            fake.put(at, name);
        }
        let image = Image::read(&fake, BASE, 0x1_0000).expect("an image");
        let found = |name: &[u8]| image.export(&fake, name).map(|address| address - BASE);
        assert_eq!(
            [found(b"Alpha"), found(b"Beta"), found(b"Betamax")],
            [Some(0x1030), Some(0x1010), Some(0x1020)]
        );
        assert_eq!([found(b"Bet"), found(b"Betamaxx"), found(b""), found(&[b'x'; 500])], [None; 4]);
    }

    #[test]
    fn what_is_no_image_is_refused() {
        let good = Fake::new(pe::MACHINE_X64);
        assert!(Image::read(&good, BASE + 0x1000, 0x1000).is_none());
        assert!(Image::read(&good, 0, 0x1000).is_none());
        for (at, byte) in [(0, b'N'), (NT, b'Q'), (OPTIONAL, 0), (0x3d, 0xff)] {
            let mut bad = Fake::new(pe::MACHINE_X64);
            bad.bytes[at] = byte;
            assert!(Image::read(&bad, BASE, 0x1_0000).is_none(), "byte {at:#x}");
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(300))]

        /// Headers and tables of arbitrary content end in stored ranges inside the image, or in nothing.
        #[test]
        fn arbitrary_images_neither_panic_nor_leave_the_image(
            arm64: bool,
            changes in proptest::collection::vec((0usize..0x1_0000, proptest::prelude::any::<u32>()), 0..60),
            directories in proptest::collection::vec((0usize..16, 0u32..0x1_2000, 0u32..0x1_2000), 0..6),
            holes in proptest::collection::btree_set(1u32..16, 0..4),
        ) {
            let mut fake = Fake::new(if arm64 { pe::MACHINE_ARM64 } else { pe::MACHINE_X64 });
            for (index, rva, len) in directories {
                fake.directory(index, rva, len);
            }
            for (at, value) in changes {
                // Half of them point into the image, as RVAs would.
                let value = if value & 1 == 0 { value % 0x1_0000 } else { value };
                fake.words(at.min(0x1_0000 - 4), &[value]);
            }
            fake.holes = holes;
            if let Some(image) = Image::read(&fake, BASE, 0x1_0000) {
                let mut check = |part: Part| {
                    let at = part.rva as usize;
                    assert!(part.bytes == fake.bytes[at..at + part.bytes.len()]);
                };
                image.unwind_parts(&fake, &mut check);
                image.code_parts(&fake, &mut check);
            }
        }
    }
}
