//! Finds the things of a list by a hash.

use std::hint::black_box;

/// Where things are in a list. What is found is compared with the thing, so that any hash gives the
/// right one; a hash that a trace cannot foresee gives it soon.
#[derive(Clone, Default, Debug)]
pub(crate) struct HashIndex {
    /// By the highest bits of a thing's hash, or behind that place as far as others are in it. Less
    /// than three quarters are taken.
    places: Vec<Place>,
    taken: usize,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    hash: u32,
    /// [`FREE`], or a number in the list.
    id: u32,
}

const FREE: Place = Place { hash: 0, id: u32::MAX };
/// Places at first. A power of two, as any number of places.
const FIRST: usize = 1 << 10;

impl HashIndex {
    /// Makes room for things of these hashes, and reads where they would be: the processor waits
    /// for the memory of all of them at once.
    pub(crate) fn expect(&mut self, hashes: impl ExactSizeIterator<Item = u32>) {
        while (self.taken + hashes.len()) * 4 >= self.places.len() * 3 {
            self.grow();
        }
        let shift = self.shift();
        let read = hashes.fold(0, |sum, hash| sum ^ self.places[(hash >> shift) as usize].id);
        black_box(read);
    }

    /// The number of the thing for which `is_it` says yes; `next` if there is none, which then has
    /// that number. The hash was expected.
    pub(crate) fn find_or_add(&mut self, hash: u32, next: u32, is_it: impl Fn(u32) -> bool) -> u32 {
        let mut at = (hash >> self.shift()) as usize;
        loop {
            let place = &mut self.places[at];
            if place.id == FREE.id {
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
        let before = std::mem::replace(&mut self.places, vec![FREE; size]);
        let shift = self.shift();
        for place in before.into_iter().filter(|place| place.id != FREE.id) {
            let mut at = (place.hash >> shift) as usize;
            while self.places[at].id != FREE.id {
                at = (at + 1) & (size - 1);
            }
            self.places[at] = place;
        }
    }
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
    fn things_of_equal_hashes_have_numbers_of_their_own() {
        numbers_as_a_map_does(1);
        numbers_as_a_map_does(31);
    }
}
