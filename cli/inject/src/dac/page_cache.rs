//! Remembers pages of another process's memory for a moment.
//!
//! A data access library reads a few bytes at a time, hundreds of times for a name, and each read
//! is a call of the system. It gets the reads and gives them from whole pages, each read once until
//! the cache is cleared.

use std::collections::HashMap;

/// Bytes of a page. No part of a page is readable without the rest.
const PAGE: u64 = 4096;
/// Most pages that are kept (16 MiB).
const MOST_PAGES: usize = 4096;

/// The pages read since the last [`PageCache::clear`].
#[derive(Debug, Default)]
pub(crate) struct PageCache {
    pages: HashMap<u64, Box<[u8]>>,
}

impl PageCache {
    /// Forgets all pages.
    pub(crate) fn clear(&mut self) {
        self.pages.clear();
    }

    /// Reads memory at `address`. `fetch` reads a page of the process, and returns false if it
    /// cannot. Returns how many bytes were read, from the first one on.
    pub(crate) fn read(
        &mut self,
        address: u64,
        into: &mut [u8],
        mut fetch: impl FnMut(u64, &mut [u8]) -> bool,
    ) -> usize {
        let mut done = 0;
        while done < into.len() {
            let Some(at) = address.checked_add(done as u64) else { break };
            let Some(page) = self.page(at - at % PAGE, &mut fetch) else { break };
            let bytes = &page[(at % PAGE) as usize..];
            let len = bytes.len().min(into.len() - done);
            into[done..done + len].copy_from_slice(&bytes[..len]);
            done += len;
        }
        done
    }

    fn page(&mut self, address: u64, fetch: &mut impl FnMut(u64, &mut [u8]) -> bool) -> Option<&[u8]> {
        if !self.pages.contains_key(&address) {
            if self.pages.len() >= MOST_PAGES {
                self.clear();
            }
            let mut page = vec![0; PAGE as usize].into_boxed_slice();
            if !fetch(address, &mut page) {
                return None;
            }
            self.pages.insert(address, page);
        }
        self.pages.get(&address).map(|page| &**page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory of three pages at 1000h, each byte its page's number.
    fn fetch(reads: &mut Vec<u64>, address: u64, page: &mut [u8]) -> bool {
        reads.push(address);
        page.fill((address / PAGE) as u8);
        (0x1000..0x4000).contains(&address)
    }

    #[test]
    fn a_page_is_read_once_until_the_cache_is_cleared() {
        let (mut cache, mut reads, mut bytes) = (PageCache::default(), Vec::new(), [0; 4]);
        for address in [0x1000, 0x1ffc, 0x1234] {
            let done = cache.read(address, &mut bytes, |address, page| fetch(&mut reads, address, page));
            assert_eq!((done, bytes), (4, [1; 4]));
        }
        assert_eq!(reads, [0x1000]);
        cache.clear();
        cache.read(0x1000, &mut bytes, |address, page| fetch(&mut reads, address, page));
        assert_eq!(reads, [0x1000, 0x1000]);
    }

    #[test]
    fn a_read_crosses_pages_and_ends_where_memory_does() {
        let (mut cache, mut reads, mut bytes) = (PageCache::default(), Vec::new(), [9; 6]);
        let done = cache.read(0x1ffe, &mut bytes, |address, page| fetch(&mut reads, address, page));
        assert_eq!((done, bytes), (6, [1, 1, 2, 2, 2, 2]));
        let mut bytes = [9; 6];
        let done = cache.read(0x3ffe, &mut bytes, |address, page| fetch(&mut reads, address, page));
        assert_eq!((done, bytes), (2, [3, 3, 9, 9, 9, 9]));
        assert_eq!(cache.read(u64::MAX - 1, &mut bytes, |address, page| fetch(&mut reads, address, page)), 0);
        assert_eq!(cache.read(0x1000, &mut [], |_, _| false), 0);
    }

    #[test]
    fn the_cache_is_bounded() {
        let (mut cache, mut byte) = (PageCache::default(), [0]);
        for page in 0..2 * MOST_PAGES as u64 {
            assert_eq!(cache.read(page * PAGE, &mut byte, |_, _| true), 1);
            assert!(cache.pages.len() <= MOST_PAGES);
        }
    }
}
