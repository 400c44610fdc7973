//! What was read of a runtime: pages of memory, and what was made of them.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;

use super::metadata::Metadata;
use super::reader::{BLOCK, PAGE, PageMap, Range, Reader};
use crate::record::image::Memory;

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

/// What was read.
#[derive(Default)]
pub(crate) struct PageCache {
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
    /// The modules of before [`PageCache::check`].
    unchecked: RefCell<BTreeMap<u64, Arc<Metadata>>>,
}

impl PageCache {
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
        *self = PageCache::default();
    }

    pub(super) fn fresh<'a, M: Memory>(&'a self, memory: &'a M, most: u32) -> Reader<'a, M> {
        Reader::new(memory, &self.fresh, PAGE, most)
    }

    pub(super) fn kept<'a, M: Memory>(&'a self, memory: &'a M, most: u32) -> Reader<'a, M> {
        Reader::new(memory, &self.kept, BLOCK, most)
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
