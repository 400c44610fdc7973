//! Finds the things of a list by a hash.

use std::hash::{BuildHasher, RandomState};

/// Where things are in a list. What is found is compared with the thing, unless the hash is so long
/// that no two things have the same. Any hash gives the right one; a hash that a trace cannot
/// foresee gives it soon.
#[derive(Clone, Default, Debug)]
pub(crate) struct HashIndex<H = u32> {
    /// By the highest bits of a thing's hash, or behind that place as far as others are in it. Less
    /// than three quarters are taken.
    places: Vec<Place<H>>,
    taken: usize,
}

/// A hash of a thing in a list.
pub(crate) trait ThingHash: Copy + Default + Eq {
    /// 32 of its bits.
    fn bits(self) -> u32;
}

impl ThingHash for u32 {
    fn bits(self) -> u32 {
        self
    }
}

#[derive(Clone, Copy, Debug)]
struct Place<H> {
    hash: H,
    /// [`FREE`], or a number in the list.
    id: u32,
}

/// In place of a number.
const FREE: u32 = u32::MAX;
/// Places at first. A power of two, as any number of places.
const FIRST: usize = 1 << 10;

impl<H: ThingHash> HashIndex<H> {
    /// Makes room for things of these hashes, and has the processor load the memory where they
    /// would be.
    pub(crate) fn expect(&mut self, hashes: impl ExactSizeIterator<Item = H>) {
        self.reserve(hashes.len());
        hashes.for_each(|hash| self.load_ahead(hash));
    }

    /// Makes room for so many things.
    pub(crate) fn reserve(&mut self, more: usize) {
        while (self.taken + more) * 4 >= self.places.len() * 3 {
            self.grow();
        }
    }

    /// Has the processor load the memory where the thing of a hash would be.
    pub(crate) fn load_ahead(&self, hash: H) {
        if !self.places.is_empty() {
            load_ahead(&self.places[(hash.bits() >> self.shift()) as usize]);
        }
    }

    /// The number of the thing for which `is_it` says yes; `next` if there is none, which then has
    /// that number. There is room for it.
    pub(crate) fn find_or_add(&mut self, hash: H, next: u32, is_it: impl Fn(u32) -> bool) -> u32 {
        let mut at = (hash.bits() >> self.shift()) as usize;
        loop {
            let place = &mut self.places[at];
            if place.id == FREE {
                *place = Place { hash, id: next };
                self.taken += 1;
                return next;
            }
            if place.hash == hash && is_it(place.id) {
                return place.id;
            }
            at = (at + 1) & (self.places.len() - 1);
        }
    }

    /// By how many bits a hash is more than the number of a place.
    fn shift(&self) -> u32 {
        u32::BITS - self.places.len().trailing_zeros()
    }

    fn grow(&mut self) {
        let size = (2 * self.places.len()).max(FIRST);
        let before = std::mem::replace(&mut self.places, vec![Place { hash: H::default(), id: FREE }; size]);
        let shift = self.shift();
        for place in before.into_iter().filter(|place| place.id != FREE) {
            let mut at = (place.hash.bits() >> shift) as usize;
            while self.places[at].id != FREE {
                at = (at + 1) & (size - 1);
            }
            self.places[at] = place;
        }
    }
}

/// Keys for hashes, random anew each time.
pub(crate) fn random_numbers<const N: usize>() -> [u64; N] {
    let random = RandomState::new();
    std::array::from_fn(|number| random.hash_one(number))
}

/// Has the processor load a place in memory, while it continues.
#[cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "the standard library has no other way to the instruction")
)]
pub(crate) fn load_ahead<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: it has no effect but on time, whatever the address is.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use stk_tests::synth::Random;

    /// Numbers random things with hashes of `bits` bits, beside a map.
    fn numbers_as_a_map_does(bits: u32) {
        let mut random = Random::new(u64::from(bits));
        let (mut index, mut list): (HashIndex, Vec<usize>) = Default::default();
        let mut known: HashMap<usize, u32> = HashMap::new();
        for _ in 0..400 {
            let things: Vec<usize> = (0..random.below(20)).map(|_| random.below(3_000)).collect();
            let hash_of =
                |thing: &usize| (*thing as u32).wrapping_mul(0x9E37_79B9) >> (32 - bits) << (32 - bits);
            index.expect(things.iter().map(hash_of));
            for thing in things {
                let next = list.len() as u32;
                let id = index.find_or_add(hash_of(&thing), next, |id| list[id as usize] == thing);
                if id == next {
                    list.push(thing);
                }
                assert_eq!(*known.entry(thing).or_insert(id), id);
            }
        }
        assert_eq!(list.len(), known.len());
        assert!(list.len() > FIRST, "it grew");
    }

    #[test]
    fn an_index_without_places_has_nothing_to_load() {
        HashIndex::<u32>::default().load_ahead(7);
    }

    #[test]
    fn things_of_equal_hashes_have_numbers_of_their_own() {
        numbers_as_a_map_does(1);
        numbers_as_a_map_does(31);
    }
}
