//! Keeps one value for each string of an index, for a reader of many addresses.
//!
//! The caller provides the index and, for each frame, the numbers of its strings
//! ([`super::RawFrame`]). The value that the caller makes of a string (the text itself, its index
//! in a table of names) is made when the string is first needed. From then on it is found by the
//! string's number, without reading the string again.

use super::symbol_index::{SymbolIndex, TextId};

/// Strings per page. Strings of one page were first used in the same functions.
const PAGE: usize = 64;

/// A value for each string of one index that was needed so far. Memory grows with these strings,
/// not with the index.
#[derive(Debug)]
pub struct TextMap<T> {
    pages: Vec<Box<[Option<T>]>>,
}

impl<T: Copy> TextMap<T> {
    /// A map without values.
    pub fn new(index: &SymbolIndex) -> TextMap<T> {
        TextMap { pages: (0..index.text_count().div_ceil(PAGE)).map(|_| Box::default()).collect() }
    }

    /// The value of the string with this number. If the number is of another index, the value is
    /// made anew each time.
    #[inline]
    pub fn get_or_insert_with(&mut self, id: TextId, make: impl FnOnce() -> T) -> T {
        let (page, n) = (id.0 as usize / PAGE, id.0 as usize % PAGE);
        match self.pages.get(page).and_then(|page| page.get(n)) {
            Some(&Some(value)) => value,
            _ => self.insert(page, n, make()),
        }
    }

    #[cold]
    fn insert(&mut self, page: usize, n: usize, value: T) -> T {
        if let Some(page) = self.pages.get_mut(page) {
            if page.is_empty() {
                *page = vec![None; PAGE].into();
            }
            page[n] = Some(value);
        }
        value
    }
}
