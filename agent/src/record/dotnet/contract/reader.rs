//! Reads of memory that fail instead of faulting, and that are bounded together.
//!
//! Under Wine each read is a request to another process and takes as long as suspending a thread
//! does, so whole pages are read and kept for a while: `pages`.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use crate::record::image::Memory;

pub(super) const PAGE: u64 = 4096;
/// Bytes that are read at once where pages are kept, unless one of them is missing.
pub(super) const BLOCK: u64 = 8 * PAGE;
/// Most pages that are kept.
const MOST_PAGES: usize = 1024;

pub(super) type PageMap = BTreeMap<u64, Box<[u8; PAGE as usize]>>;

/// A part of the address space with code in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub begin: u64,
    pub end: u64,
    pub kind: RangeKind,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum RangeKind {
    Stubs,
    /// Jitted code: its first address, and the nibble map with the address that it begins at.
    Heap {
        first: u64,
        base: u64,
        units: u64,
    },
    /// An image with precompiled code: the Module.
    Image {
        module: u64,
    },
}

/// Reads memory until the number of reads is used up.
pub(super) struct Reader<'a, M> {
    memory: &'a M,
    pages: &'a RefCell<PageMap>,
    block: u64,
    left: Cell<u32>,
}

impl<'a, M: Memory> Reader<'a, M> {
    /// At most `most` reads, of `block` bytes each where they can be made. `pages` keeps what was
    /// read.
    pub(super) fn new(memory: &'a M, pages: &'a RefCell<PageMap>, block: u64, most: u32) -> Reader<'a, M> {
        Reader { memory, pages, block, left: Cell::new(most) }
    }

    /// Fills `into` from `address`, from kept pages where possible.
    pub(super) fn fill(&self, mut address: u64, mut into: &mut [u8]) -> Option<()> {
        let mut pages = self.pages.borrow_mut();
        while !into.is_empty() {
            let (page, at) = (address / PAGE * PAGE, (address % PAGE) as usize);
            if !pages.contains_key(&page) {
                self.read(&mut pages, page)?;
            }
            let bytes = pages.get(&page)?.get(at..)?;
            let len = bytes.len().min(into.len());
            let (now, rest) = into.split_at_mut_checked(len)?;
            now.copy_from_slice(bytes.get(..len)?);
            into = rest;
            address = address.checked_add(len as u64)?;
        }
        Some(())
    }

    /// Fills `into` from memory itself.
    pub(super) fn direct(&self, address: u64, into: &mut [u8]) -> Option<()> {
        self.left.set(self.left.get().checked_sub(1)?);
        self.memory.read(address, into).then_some(())
    }

    /// Reads the page at `page`, and its neighbours if that can be done at once.
    fn read(&self, pages: &mut PageMap, page: u64) -> Option<()> {
        if pages.len() + (self.block / PAGE) as usize > MOST_PAGES {
            pages.clear();
        }
        if self.block > PAGE {
            let start = page / self.block * self.block;
            let mut block = alloc::vec![0; self.block as usize];
            if self.direct(start, &mut block).is_some() {
                for (number, bytes) in (0..).zip(block.chunks_exact(PAGE as usize)) {
                    pages.insert(start + number * PAGE, Box::new(bytes.try_into().ok()?));
                }
                return Some(());
            }
        }
        let mut bytes = Box::new([0; PAGE as usize]);
        self.direct(page, &mut bytes[..])?;
        pages.insert(page, bytes);
        Some(())
    }

    pub(super) fn bytes<const N: usize>(&self, address: Option<u64>) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(address?, &mut bytes)?;
        Some(bytes)
    }

    pub(super) fn u8(&self, address: Option<u64>) -> Option<u8> {
        self.bytes(address).map(u8::from_le_bytes)
    }

    pub(super) fn u16(&self, address: Option<u64>) -> Option<u16> {
        self.bytes(address).map(u16::from_le_bytes)
    }

    pub(super) fn u32(&self, address: Option<u64>) -> Option<u32> {
        self.bytes(address).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&self, address: Option<u64>) -> Option<u64> {
        self.bytes(address).map(u64::from_le_bytes)
    }

    /// A pointer that is not null.
    pub(super) fn pointer(&self, address: Option<u64>) -> Option<u64> {
        self.u64(address).filter(|&pointer| pointer != 0)
    }

    /// The bytes from `address` to the first zero, which is among the first `most`.
    pub(super) fn text(&self, address: u64, most: usize) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        while text.len() < most {
            let mut piece = [0; 64];
            let at = address.checked_add(text.len() as u64)?;
            // Not beyond the page: the next one may be missing.
            let len = ((PAGE - at % PAGE) as usize).min(piece.len()).min(most - text.len());
            let piece = piece.get_mut(..len)?;
            self.fill(at, piece)?;
            match piece.iter().position(|&byte| byte == 0) {
                Some(end) => {
                    text.extend_from_slice(piece.get(..end)?);
                    return Some(text);
                }
                None => text.extend_from_slice(piece),
            }
        }
        None
    }
}
