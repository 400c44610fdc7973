//! Distinct frames: where code lies, and how it was found.

use super::hash_index::{HashIndex, ThingHash, random_numbers};
use crate::trace::Timeline;
use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::{BuildHasher, Hash};
use stk_base::model::{CodeOwner, ImageId};
use stk_unwind::{Frame, Trust};

/// Index of a frame in [`FrameTable`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct FrameId(pub u32);

/// Where a frame's address lies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Placement {
    /// In an image, at an RVA.
    Image(ImageId, u32),
    /// In a dynamic code region (index in the timeline's code), at an offset.
    Code(u32, u32),
    /// In no module known at that time; the address as it was.
    Unknown(u64),
}

/// What identifies a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameKey {
    pub place: Placement,
    /// True: `place` is the address of an instruction (context frame). False: it is a return
    /// address, which is looked up at address − 1.
    pub exact: bool,
    /// How it was found.
    pub trust: Trust,
}

/// The [number](FrameKey::number) of a frame, mixed so that its bits depend on all others: no two
/// numbers give the same.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct FrameHash(u64);

impl ThingHash for FrameHash {
    fn bits(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Makes hashes of frames. Keyed at random, so that no trace can force collisions.
#[derive(Clone, Debug)]
struct FrameHasher([u64; 2]);

impl Default for FrameHasher {
    fn default() -> FrameHasher {
        // Odd, so that a multiplication loses nothing.
        FrameHasher(random_numbers().map(|number| number | 1))
    }
}

impl FrameHasher {
    fn hash(&self, key: FrameKey) -> FrameHash {
        let FrameHasher([first, second]) = self;
        let product = key.number().wrapping_mul(*first);
        FrameHash((product ^ product >> 32).wrapping_mul(*second))
    }
}

/// Of the number of a frame: other frames may have it, too.
const SHARED: u64 = 1 << 63;

impl FrameKey {
    /// A number for tables. No two frames of images and regions below 2^24 have one; of others,
    /// several may.
    fn number(self) -> u64 {
        let how = (self.trust as u64) << 1 | u64::from(self.exact);
        match self.place {
            Placement::Image(ImageId(image), rva) if image < 1 << 24 => {
                how << 56 | u64::from(image) << 32 | u64::from(rva)
            }
            Placement::Code(region, offset) if region < 1 << 24 => {
                1 << 62 | how << 56 | u64::from(region) << 32 | u64::from(offset)
            }
            place => {
                let (kind, at) = place.numbers();
                SHARED | (at ^ kind << 40 ^ how.rotate_right(8))
            }
        }
    }
}

/// Distinct frames in order of first appearance.
#[derive(Clone, Default, Debug)]
pub struct FrameTable {
    keys: Vec<FrameKey>,
    index: HashIndex<FrameHash>,
    hasher: FrameHasher,
    /// Of the frames that are interned together. Kept to reuse its memory.
    hashes: Vec<FrameHash>,
}

impl FrameTable {
    /// The id of a frame, new or known.
    pub fn intern(&mut self, key: FrameKey) -> FrameId {
        let hash = self.hasher.hash(key);
        self.index.expect([hash].into_iter());
        self.find_or_add(key, hash)
    }

    /// The ids of several frames.
    pub(crate) fn intern_all<'t>(&'t mut self, keys: &'t [FrameKey]) -> impl Iterator<Item = FrameId> + 't {
        let FrameTable { hashes, index, hasher, .. } = self;
        hashes.clear();
        hashes.extend(keys.iter().map(|key| hasher.hash(*key)));
        index.expect(hashes.iter().copied());
        (0..).zip(keys).map(|(at, key): (usize, _)| self.find_or_add(*key, self.hashes[at]))
    }

    /// The id of a frame whose hash was expected.
    fn find_or_add(&mut self, key: FrameKey, hash: FrameHash) -> FrameId {
        let FrameTable { keys, index, .. } = self;
        let (next, is_shared) = (keys.len() as u32, key.number() & SHARED != 0);
        let id = index.find_or_add(hash, next, |id| !is_shared || keys[id as usize] == key);
        if id == next {
            keys.push(key);
        }
        FrameId(id)
    }

    /// Adds a frame under an id of its own, though another one may have the same key: a part of
    /// that one's names.
    pub fn push(&mut self, key: FrameKey) -> FrameId {
        self.keys.push(key);
        FrameId(self.keys.len() as u32 - 1)
    }

    /// All frames; index = id.
    pub fn keys(&self) -> &[FrameKey] {
        &self.keys
    }
}

impl Placement {
    /// Its kind (below 4) and the place there, for hashes: no two places have both.
    pub(crate) fn numbers(self) -> (u64, u64) {
        match self {
            Placement::Image(image, rva) => (0, u64::from(image.0) << 32 | u64::from(rva)),
            Placement::Code(region, offset) => (1, u64::from(region) << 32 | u64::from(offset)),
            Placement::Unknown(address) => (2, address),
        }
    }

    /// Where a frame of a walk lies.
    pub fn of(timeline: &Timeline, frame: &Frame) -> Placement {
        match frame.module.map(CodeOwner::of) {
            Some(CodeOwner::Module(module)) => {
                Placement::Image(timeline.modules[module as usize].image, frame.rva)
            }
            Some(CodeOwner::Code(region)) => Placement::Code(region, frame.rva),
            None => Placement::Unknown(frame.address),
        }
    }
}

/// Numbers values in order of first appearance. The hash table holds only the numbers, so each
/// value is stored once: there can be millions of nodes. The hasher is seeded at random, so that no
/// trace can force collisions, and nothing depends on its order.
#[derive(Clone, Debug)]
pub struct Interner<T> {
    pub values: Vec<T>,
    ids: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Interner { values: Vec::new(), ids: HashTable::new(), hasher: DefaultHashBuilder::default() }
    }
}

impl<T: Eq + Hash> Interner<T> {
    /// Forgets all values, but keeps their memory.
    pub fn clear(&mut self) {
        self.values.clear();
        self.ids.clear();
    }

    pub fn intern(&mut self, value: T) -> u32 {
        let Interner { values, ids, hasher } = self;
        let entry = ids.entry(
            hasher.hash_one(&value),
            |&id| values[id as usize] == value,
            |&id| hasher.hash_one(&values[id as usize]),
        );
        match entry {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(free) => {
                let id = values.len() as u32;
                free.insert(id);
                values.push(value);
                id
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(rva: u32, trust: Trust) -> FrameKey {
        FrameKey { place: Placement::Image(ImageId(0), rva), exact: false, trust }
    }

    #[test]
    fn frames_differ_by_place_exactness_and_trust() {
        let mut table = FrameTable::default();
        let first = table.intern(frame(1, Trust::Context));
        let keys = [
            frame(2, Trust::Context),
            FrameKey { exact: true, ..frame(1, Trust::Context) },
            FrameKey { place: Placement::Unknown(1), ..frame(1, Trust::Context) },
            FrameKey { place: Placement::Code(0, 1), ..frame(1, Trust::Context) },
            frame(1, Trust::Assumed),
            // These have numbers of several frames.
            FrameKey { place: Placement::Image(ImageId(1 << 24), 1), ..frame(1, Trust::Context) },
            FrameKey { place: Placement::Unknown(1 << 56 | 1), ..frame(1, Trust::Context) },
        ];
        for &key in &keys {
            assert_ne!(table.intern(key), first);
        }
        assert_eq!(table.intern(frame(1, Trust::Context)), first);
        assert_eq!(table.keys().len(), keys.len() + 1);
    }

    #[test]
    fn ids_stay_when_the_table_grows() {
        let mut table = FrameTable::default();
        let ids: Vec<FrameId> = (0..10_000).map(|rva| table.intern(frame(rva, Trust::Context))).collect();
        assert!(ids.iter().enumerate().all(|(i, id)| id.0 as usize == i));
        assert!((0..10_000).all(|rva| table.intern(frame(rva, Trust::Context)) == ids[rva as usize]));
    }
}
