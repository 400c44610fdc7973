//! Pages of an image that hold unwind records and names to which its directories only refer.
//! Callers mark ranges. Each page of a marked range is read once, and neighbouring pages are stored
//! as one part.

use super::{Image, ImagePart, Memory, PAGE, bounded};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use stk_schema::bytes::u32_at;
use stk_schema::event::TableKind;
use stk_schema::windows as pe;

/// Pages of an image that are to be stored, read once each.
pub(super) struct Pages<'a, M> {
    image: &'a Image,
    pub(super) memory: &'a M,
    /// `None`: could not be read.
    pages: BTreeMap<u32, Option<Vec<u8>>>,
}

impl<'a, M: Memory> Pages<'a, M> {
    /// No pages yet.
    pub(super) fn new(image: &'a Image, memory: &'a M) -> Pages<'a, M> {
        Pages { image, memory, pages: BTreeMap::new() }
    }

    /// Marks the pages of `rva..rva + len` within the image for storing.
    pub(super) fn mark(&mut self, rva: u32, len: u32) {
        let range = bounded(rva, len, self.image.size);
        if range.is_empty() {
            return;
        }
        let (first, last) = (range.start / PAGE, (range.end - 1) / PAGE);
        for page in first..=last {
            self.page(page);
        }
    }

    /// Marks the zero-terminated text at `rva` for storing.
    pub(super) fn mark_text(&mut self, mut rva: u32) {
        // A text longer than a few pages is not a name.
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

    /// Passes runs of neighbouring pages to `store`, each as one part.
    pub(super) fn store(self, kind: TableKind, store: &mut impl FnMut(ImagePart)) {
        let mut run: Option<ImagePart> = None;
        for (page, bytes) in self.pages {
            let Some(bytes) = bytes else { continue };
            let rva = page * PAGE;
            match &mut run {
                Some(part) if part.rva as usize + part.bytes.len() == rva as usize => {
                    part.bytes.extend_from_slice(&bytes);
                }
                _ => {
                    if let Some(part) = run.replace(ImagePart { kind, rva, bytes }) {
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

/// Marks the UNWIND_INFO records that a x64 exception directory names (x64 exception handling
/// documentation, "struct UNWIND_INFO"), chained ones included.
pub(super) fn mark_x64(functions: &[u8], pages: &mut Pages<'_, impl Memory>) {
    let mut seen = BTreeSet::new();
    for function in functions.chunks_exact(pe::RUNTIME_FUNCTION_X64_SIZE) {
        let mut next = u32_at(function, 8);
        while let Some(rva) = next.take().filter(|&rva| rva != 0 && seen.insert(rva)) {
            if rva & 1 != 0 {
                // The entry shares the record of another RUNTIME_FUNCTION, which lies at this RVA.
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

/// Marks the .xdata records that an arm64 exception directory names (ARM64 exception handling
/// documentation, ".xdata records").
pub(super) fn mark_arm64(functions: &[u8], pages: &mut Pages<'_, impl Memory>) {
    for function in functions.chunks_exact(pe::RUNTIME_FUNCTION_ARM64_SIZE) {
        let Some(data) = u32_at(function, 4) else { continue };
        // Nonzero low two bits mean packed unwind data, which needs no record.
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
