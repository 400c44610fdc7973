//! Compiled rules by place: a table that grows to a limit and then forgets.

/// Rules by key. A key is never 0.
pub(crate) struct RuleCache<R> {
    entries: Vec<Entry<R>>,
    used: usize,
}

#[derive(Clone, Copy)]
struct Entry<R> {
    key: u64,
    rule: R,
}

/// Entries at first; 32 bytes each for x64.
const FIRST: usize = 1 << 10;
/// Entries at most. Past this a new rule takes the place of an old one.
const MOST: usize = 1 << 18;
/// Places looked at for one key: neighbours, hence mostly one cache line or two.
const PROBES: usize = 4;

impl<R: Copy + Default> RuleCache<R> {
    pub(crate) fn new() -> Self {
        RuleCache { entries: vec![Entry { key: 0, rule: R::default() }; FIRST], used: 0 }
    }

    /// The key of a place: what it is (31 bits), whether its context or its caller rule is meant, its RVA.
    #[inline(always)]
    pub(crate) fn key(image_key: u32, context: bool, rva: u32) -> u64 {
        // The low bit keeps a key from being 0.
        (u64::from(image_key) << 34) | (u64::from(context) << 33) | (u64::from(rva) << 1) | 1
    }

    #[inline(always)]
    pub(crate) fn get(&self, key: u64) -> Option<&R> {
        let home = self.home(key);
        let entry = self.entries.get(home)?;
        if entry.key == key { Some(&entry.rule) } else { self.probe(home, key) }
    }

    #[inline]
    fn probe(&self, home: usize, key: u64) -> Option<&R> {
        let mask = self.entries.len() - 1;
        (1..PROBES)
            .map(|step| &self.entries[(home + step) & mask])
            .find(|entry| entry.key == key)
            .map(|entry| &entry.rule)
    }

    #[cold]
    pub(crate) fn insert(&mut self, key: u64, rule: R) {
        if self.used * 2 >= self.entries.len() && self.entries.len() < MOST {
            self.grow();
        }
        self.place(Entry { key, rule });
    }

    fn place(&mut self, entry: Entry<R>) {
        let home = self.home(entry.key);
        let mask = self.entries.len() - 1;
        for step in 0..PROBES {
            let at = &mut self.entries[(home + step) & mask];
            if at.key == 0 || at.key == entry.key {
                self.used += usize::from(at.key == 0);
                *at = entry;
                return;
            }
        }
        self.entries[home] = entry;
    }

    fn grow(&mut self) {
        let larger = vec![Entry { key: 0, rule: R::default() }; self.entries.len() * 2];
        let old = std::mem::replace(&mut self.entries, larger);
        self.used = 0;
        for entry in old.into_iter().filter(|entry| entry.key != 0) {
            self.place(entry);
        }
    }

    #[inline(always)]
    fn home(&self, key: u64) -> usize {
        // Fibonacci hashing; the high bits are the well mixed ones.
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> 40) as usize & (self.entries.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_every_rule_while_it_grows_and_stays_bounded() {
        let mut cache = RuleCache::<u64>::new();
        for rva in 0..600_000u32 {
            cache.insert(RuleCache::<u64>::key(7, rva % 2 == 0, rva), u64::from(rva));
        }
        assert_eq!(cache.entries.len(), MOST);
        let hit = (0..600_000u32).filter_map(|rva| {
            cache.get(RuleCache::<u64>::key(7, rva % 2 == 0, rva)).map(|&rule| (rva, rule))
        });
        let mut hits = 0;
        for (rva, rule) in hit {
            assert_eq!(rule, u64::from(rva));
            hits += 1;
        }
        assert!(hits > MOST / 2, "{hits}");
        assert_eq!(cache.get(RuleCache::<u64>::key(7, true, 1)), None);
        assert_eq!(cache.get(RuleCache::<u64>::key(8, true, 0)), None);
    }
}
