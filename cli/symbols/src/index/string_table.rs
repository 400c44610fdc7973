//! The strings of an index that is being built.

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64;

use super::layout::StringId;

/// Limit for the string table, which is addressed with 32 bits.
pub(super) const MAX_STRINGS: usize = 1 << 31;

/// Distinct strings, numbered in the order of their first use.
#[derive(Default)]
pub(super) struct StringTable {
    pub(super) bytes: Vec<u8>,
    /// Where each string ends in `bytes`. It begins where the one before it ends.
    pub(super) ends: Vec<u32>,
    pub(super) table: HashTable<StringId>,
}

impl StringTable {
    pub(super) fn intern(&mut self, text: &str) -> StringId {
        let hash = xxh3_64(text.as_bytes());
        let (bytes, ends) = (&self.bytes, &self.ends);
        if let Some(&id) = self.table.find(hash, |&id| at(bytes, ends, id) == text.as_bytes()) {
            return id;
        }
        // Beyond the limit, every new name gets the first id. `finish` refuses such an index.
        if self.bytes.len() >= MAX_STRINGS {
            return 0;
        }
        let id = self.ends.len() as StringId;
        self.bytes.extend_from_slice(text.as_bytes());
        self.ends.push(self.bytes.len() as u32);
        let (bytes, ends) = (&self.bytes, &self.ends);
        self.table.insert_unique(hash, id, |&id| xxh3_64(at(bytes, ends, id)));
        id
    }

    pub(super) fn get(&self, id: StringId) -> &str {
        std::str::from_utf8(at(&self.bytes, &self.ends, id)).unwrap_or("")
    }
}

fn at<'b>(bytes: &'b [u8], ends: &[u32], id: StringId) -> &'b [u8] {
    let n = id as usize;
    let start = n.checked_sub(1).and_then(|before| ends.get(before)).map_or(0, |&end| end as usize);
    let end = ends.get(n).map_or(start, |&end| end as usize);
    bytes.get(start..end).unwrap_or(&[])
}
