//! A table of compiled rules by place. It grows to a limit and then replaces entries.
//!
//! Many places have equal rules (a few hundred shapes of frames make up a program), so a rule is
//! kept once and the table holds its number. An entry is one word of 8 bytes, so the entries that a
//! walk reads stay in the processor's L1 and L2 caches.

use std::collections::HashMap;
use std::hash::Hash;

/// Rules by key: where an image's places begin, plus the RVA, times two, plus one for a context
/// rule.
pub(crate) struct RuleCache<R> {
    /// From the highest bit: the key, the hint, the rule's number.
    places: Vec<u64>,
    used: usize,
    rules: Vec<R>,
    numbers: HashMap<R, u16>,
    /// Where the places of each image begin, by image key. `far_images` holds the keys that are too
    /// large for this index.
    images: Vec<u64>,
    far_images: HashMap<u32, u64>,
    /// The end of the last image's places.
    end: u64,
}

const NUMBER_BITS: u32 = 16;
const HINT_BITS: u32 = 12;
/// The largest hint, for [`crate::engine::Unwinder::hint`].
pub(crate) const MOST_HINT: u16 = (1 << HINT_BITS) - 1;
/// An unused place (its key belongs to no image), or an unknown image.
const NONE: u64 = u64::MAX;
/// The end of all images' places: 32 GB, less the key of [`NONE`].
const IMAGES_END: u64 = (1 << (64 - NUMBER_BITS - HINT_BITS - 1)) - 1;
/// Image keys below this are looked up by index.
const NEAR_IMAGES: u32 = 1 << 16;
/// Initial number of places.
const FIRST: usize = 1 << 10;
/// Maximum number of places. Past this, a new one replaces an old one.
const MOST: usize = 1 << 20;
/// Maximum number of different rules. Past this, new ones are not stored until the next walk clears
/// the cache.
const MOST_RULES: usize = 1 << NUMBER_BITS;
/// Places to check for one key. They are neighbours, so mostly in one or two cache lines.
const PROBES: usize = 6;

impl<R: Copy + Eq + Hash> RuleCache<R> {
    pub(crate) fn new() -> Self {
        RuleCache {
            places: vec![NONE; FIRST],
            used: 0,
            rules: Vec::new(),
            numbers: HashMap::new(),
            images: Vec::new(),
            far_images: HashMap::new(),
            end: 0,
        }
    }

    /// Prepares for a walk. Clears the cache if the rule numbers or the places have run out, and
    /// says whether it did.
    #[inline(always)]
    pub(crate) fn begin(&mut self) -> bool {
        let is_full = self.rules.len() >= MOST_RULES || self.end >= IMAGES_END;
        if is_full {
            *self = RuleCache::new();
        }
        is_full
    }

    /// Where the places of an image begin. Valid until [`begin`](Self::begin); `None` if there is
    /// no room left.
    #[inline]
    pub(crate) fn image(&mut self, image_key: u32, size: u32) -> Option<u64> {
        match self.images.get(image_key as usize) {
            Some(&start) if start != NONE => Some(start),
            _ => self.new_image(image_key, size),
        }
    }

    #[cold]
    fn new_image(&mut self, image_key: u32, size: u32) -> Option<u64> {
        if let Some(&start) = self.far_images.get(&image_key) {
            return Some(start);
        }
        let start = self.end;
        // A return address may lie at the very end of an image.
        self.end = start + u64::from(size) + 1;
        if self.end > IMAGES_END {
            self.end = IMAGES_END;
            return None;
        }
        if image_key < NEAR_IMAGES {
            let index = image_key as usize;
            self.images.resize(self.images.len().max(index + 1), NONE);
            self.images[index] = start;
        } else {
            self.far_images.insert(image_key, start);
        }
        Some(start)
    }

    /// The key of a place: its image's first place plus the RVA, times two, plus one for the
    /// context rule.
    #[inline(always)]
    pub(crate) fn key(place: u64, context: bool) -> u64 {
        place << 1 | u64::from(context)
    }

    /// The rule of a place and its hint.
    #[inline(always)]
    pub(crate) fn get(&self, key: u64) -> Option<(&R, u16)> {
        let home = self.home(key);
        // A branch predictor can learn that one of the two matches, but not which one, so select
        // without a branch.
        let &[first, second] = self.places.get(home..)?.first_chunk()?;
        let mut place = if key_of(second) == key { second } else { first };
        if key_of(place) != key {
            place = self.probe(home, key)?;
        }
        let hint = (place >> NUMBER_BITS) as u16 & MOST_HINT;
        Some((self.rules.get(usize::from(place as u16))?, hint))
    }

    /// The first place where a key may be.
    #[inline(always)]
    pub(crate) fn place_of(&self, key: u64) -> Option<&u64> {
        self.places.get(self.home(key))
    }

    #[inline]
    fn probe(&self, home: usize, key: u64) -> Option<u64> {
        let mask = self.places.len() - 1;
        (2..PROBES).map(|step| self.places[(home + step) & mask]).find(|&place| key_of(place) == key)
    }

    #[cold]
    pub(crate) fn insert(&mut self, key: u64, rule: R, hint: u16) {
        let Some(number) = self.number(rule) else { return };
        if self.used * 2 >= self.places.len() && self.places.len() < MOST {
            self.grow();
        }
        let hint = u64::from(hint.min(MOST_HINT));
        self.place(key << (NUMBER_BITS + HINT_BITS) | hint << NUMBER_BITS | u64::from(number));
    }

    fn number(&mut self, rule: R) -> Option<u16> {
        if let Some(&number) = self.numbers.get(&rule) {
            return Some(number);
        }
        let number = u16::try_from(self.rules.len()).ok()?;
        self.rules.push(rule);
        self.numbers.insert(rule, number);
        Some(number)
    }

    fn place(&mut self, new: u64) {
        let home = self.home(key_of(new));
        let mask = self.places.len() - 1;
        for step in 0..PROBES {
            let at = &mut self.places[(home + step) & mask];
            if *at == NONE || key_of(*at) == key_of(new) {
                self.used += usize::from(*at == NONE);
                *at = new;
                return;
            }
        }
        self.places[home] = new;
    }

    fn grow(&mut self) {
        let larger = vec![NONE; self.places.len() * 2];
        let old = std::mem::replace(&mut self.places, larger);
        self.used = 0;
        for place in old.into_iter().filter(|&place| place != NONE) {
            self.place(place);
        }
    }

    /// The first of the pair of places where a key belongs.
    #[inline(always)]
    fn home(&self, key: u64) -> usize {
        // Fibonacci hashing; the high bits are the well mixed ones.
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> 40) as usize & (self.places.len() - 2)
    }
}

#[inline(always)]
fn key_of(place: u64) -> u64 {
    place >> (NUMBER_BITS + HINT_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Cache = RuleCache<u64>;

    #[test]
    fn keeps_every_rule_while_it_grows_and_stays_bounded() {
        const PLACES: u32 = 2_000_000;
        let mut cache = Cache::new();
        let start = cache.image(7, PLACES).expect("room");
        let key = |rva: u32| Cache::key(start + u64::from(rva), rva.is_multiple_of(2));
        let rule = |rva: u32| u64::from(rva % 1000);
        let hint = |rva: u32| (rva % 4000) as u16;
        for rva in 0..PLACES {
            cache.insert(key(rva), rule(rva), hint(rva));
        }
        assert_eq!(cache.places.len(), MOST);
        assert_eq!(cache.rules.len(), 1000);
        let mut hits = 0;
        for rva in 0..PLACES {
            let Some((&found, found_hint)) = cache.get(key(rva)) else { continue };
            assert_eq!((found, found_hint), (rule(rva), hint(rva)));
            hits += 1;
        }
        assert!(hits > MOST / 2, "{hits}");
        assert_eq!(cache.get(Cache::key(start + 1, true)), None);
        let other = cache.image(8, 100).expect("room");
        assert_eq!(cache.get(Cache::key(other, true)), None);
    }

    #[test]
    fn images_have_places_of_their_own() {
        let mut cache = Cache::new();
        let starts = [0u32, 5, NEAR_IMAGES, 1 << 29].map(|key| cache.image(key, u32::MAX).expect("room"));
        // The end of one image, where a return address can lie, is not the next one's start.
        assert!(starts.windows(2).all(|pair| pair[1] > pair[0] + u64::from(u32::MAX)));
        assert_eq!(
            starts,
            [0u32, 5, NEAR_IMAGES, 1 << 29].map(|key| cache.image(key, u32::MAX).expect("known"))
        );
        assert_eq!(cache.image(6, u32::MAX), Some(4 * (u64::from(u32::MAX) + 1)));
        cache.insert(Cache::key(starts[1], false), 55, 0);
        // The eighth image gets none, because 32 GB are in use.
        assert!((100..105).filter_map(|key| cache.image(key, u32::MAX)).count() < 3);
        assert_eq!(cache.get(Cache::key(starts[1], false)), Some((&55, 0)));
        cache.begin();
        assert_eq!(cache.get(Cache::key(starts[1], false)), None);
        assert_eq!(cache.image(100, 10), Some(0));
    }

    #[test]
    fn forgets_when_there_are_too_many_different_rules() {
        let mut cache = Cache::new();
        let most = MOST_RULES as u64;
        for rva in 0..=most {
            cache.insert(Cache::key(rva, false), rva, 0);
        }
        assert_eq!(cache.rules.len(), MOST_RULES);
        assert_eq!(cache.get(Cache::key(most - 1, false)), Some((&(most - 1), 0)));
        assert_eq!(cache.get(Cache::key(most, false)), None);
        cache.begin();
        assert_eq!(cache.get(Cache::key(most - 1, false)), None);
        cache.insert(Cache::key(most, false), most, 0);
        assert_eq!(cache.get(Cache::key(most, false)), Some((&most, 0)));
    }
}
