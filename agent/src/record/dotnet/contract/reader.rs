//! Reads of memory that fail instead of faulting, and that are bounded together.
//!
//! Under Wine each read is a request to another process and takes as long as suspending a thread
//! does, so whole pages are read and kept for a while: [`Pages`].

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use super::code_header::Range;
use super::metadata::Metadata;
use crate::record::image::Memory;

const PAGE: u64 = 4096;
/// Bytes that are read at once where pages are kept, unless one of them is missing.
const BLOCK: u64 = 8 * PAGE;
/// Most pages that are kept.
const MOST_PAGES: usize = 1024;
/// Most modules whose metadata's layout is kept.
const MOST_MODULES: usize = 256;

/// Most ranges of code that are kept.
const MOST_RANGES: usize = 64;
/// Most types that are kept.
const MOST_TYPES: usize = 1024;

/// A type whose MethodTable and class refer to each other.
#[derive(Debug)]
pub(super) struct Type {
    /// Address of its Module.
    pub module: u64,
    /// Its name with its generic arguments. `None`: it could not be read.
    pub name: Option<String>,
}

type PageMap = BTreeMap<u64, Box<[u8; PAGE as usize]>>;

/// What was read.
#[derive(Default)]
pub(crate) struct Pages {
    /// The runtime's structures, which change as code is made. To be forgotten before code is named
    /// that was seen later: then all that concerns it was complete as it was read.
    fresh: RefCell<PageMap>,
    /// Images, which stay as they are while they are loaded.
    kept: RefCell<PageMap>,
    /// Where code lies.
    ranges: RefCell<Vec<Range>>,
    /// Types by the address of their MethodTable.
    types: RefCell<BTreeMap<u64, Arc<Type>>>,
    /// By address of the runtime's Module.
    modules: RefCell<BTreeMap<u64, Arc<Metadata>>>,
    /// The modules of before [`Pages::check`].
    unchecked: RefCell<BTreeMap<u64, Arc<Metadata>>>,
}

impl Pages {
    /// Forgets the runtime's structures.
    pub(crate) fn refresh(&mut self) {
        self.fresh.get_mut().clear();
    }

    /// An assembly may have been unloaded, and another one loaded in its place: ranges of code and
    /// types are read again, and each module is looked at again before its pages are used again.
    pub(crate) fn check(&mut self) {
        self.ranges.get_mut().clear();
        self.types.get_mut().clear();
        *self.unchecked.get_mut() = core::mem::take(self.modules.get_mut());
    }

    /// Forgets everything.
    pub(crate) fn forget(&mut self) {
        *self = Pages::default();
    }

    pub(super) fn fresh<'a, M: Memory>(&'a self, memory: &'a M, most: u32) -> Reader<'a, M> {
        Reader { memory, pages: &self.fresh, block: PAGE, left: Cell::new(most) }
    }

    pub(super) fn kept<'a, M: Memory>(&'a self, memory: &'a M, most: u32) -> Reader<'a, M> {
        Reader { memory, pages: &self.kept, block: BLOCK, left: Cell::new(most) }
    }

    /// The range that holds `address`, which `read` finds if it is not known.
    pub(super) fn range(&self, address: u64, read: impl FnOnce() -> Option<Range>) -> Option<Range> {
        let mut ranges = self.ranges.borrow_mut();
        if let Some(known) = ranges.iter().find(|range| (range.begin..range.end).contains(&address)) {
            return Some(*known);
        }
        let found = read()?;
        if ranges.len() >= MOST_RANGES {
            ranges.clear();
        }
        ranges.push(found);
        Some(found)
    }

    /// The type with this MethodTable, which `read` finds if it is not known.
    pub(super) fn of_table(&self, table: u64, read: impl FnOnce() -> Option<Type>) -> Option<Arc<Type>> {
        if let Some(known) = self.types.borrow().get(&table) {
            return Some(known.clone());
        }
        let found = Arc::new(read()?);
        let mut types = self.types.borrow_mut();
        if types.len() >= MOST_TYPES {
            types.clear();
        }
        types.insert(table, found.clone());
        Some(found)
    }

    /// The metadata of a module, which `read` finds if it is not known.
    pub(super) fn metadata(
        &self,
        module: u64,
        read: impl FnOnce() -> Option<Metadata>,
    ) -> Option<Arc<Metadata>> {
        if let Some(known) = self.modules.borrow().get(&module) {
            return Some(known.clone());
        }
        let found = Arc::new(read()?);
        let before = self.unchecked.borrow_mut().remove(&module);
        if before.is_some_and(|before| before != found) {
            self.kept.borrow_mut().clear();
        }
        let mut modules = self.modules.borrow_mut();
        if modules.len() >= MOST_MODULES {
            modules.clear();
        }
        modules.insert(module, found.clone());
        Some(found)
    }
}

/// Reads memory until the number of reads is used up.
pub(super) struct Reader<'a, M> {
    memory: &'a M,
    pages: &'a RefCell<PageMap>,
    block: u64,
    left: Cell<u32>,
}

impl<M: Memory> Reader<'_, M> {
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
