//! Which parts of the address space hold code outside of modules. Each region costs one system call
//! and is then remembered for a while.

use alloc::vec::Vec;
use stk_schema::Ticks;

/// Most regions remembered; when there are more, all are forgotten.
const MOST: usize = 1024;
/// Milliseconds for which the use of a region is remembered. Unused memory has the shortest time,
/// because new code may appear there.
const CODE_MS: u64 = 1000;
const DATA_MS: u64 = 250;
const NOTHING_MS: u64 = 5;

/// The use of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RegionUse {
    /// Executable memory that belongs to no image.
    Code,
    /// Executable memory of the image that is mapped at `base`.
    Image { base: u64 },
    /// The same, of an image with precompiled code.
    Precompiled { instance: u64 },
    /// Memory that cannot be executed.
    Other,
    /// No memory, or memory that is only reserved.
    Nothing,
}

impl RegionUse {
    /// Whether it is an image's code.
    pub(super) fn is_image(self) -> bool {
        matches!(self, RegionUse::Image { .. } | RegionUse::Precompiled { .. })
    }

    /// Whether an instruction pointer may lie there.
    fn is_executable(self) -> bool {
        !matches!(self, RegionUse::Other | RegionUse::Nothing)
    }
}

/// Addresses `start..end` of the same use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Region {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// The use of these addresses.
    pub used: RegionUse,
}

#[derive(Clone, Copy)]
struct KnownRegion {
    region: Region,
    expires: Ticks,
    /// An instruction pointer in it was reported.
    executed: bool,
    /// When an address in it was first met after the query.
    met: Option<Ticks>,
}

/// The result of looking up an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RegionLook {
    /// The use of its region.
    pub used: RegionUse,
    /// Whether the region was queried now, or an instruction pointer is in it for the first time
    /// since.
    pub new: bool,
    /// When a sample first showed an address in it. Earlier than the query if the answer before was
    /// another one, and at most [`NOTHING_MS`] earlier.
    pub since: Ticks,
}

/// The regions seen lately, sorted. It allocates only in [`Regions::new`].
pub(super) struct Regions {
    known: Vec<KnownRegion>,
    last: usize,
    ticks_per_ms: u64,
}

impl Regions {
    pub(super) fn new(ticks_per_ms: u64) -> Regions {
        Regions { known: Vec::with_capacity(MOST), last: 0, ticks_per_ms }
    }

    /// What `address` is in at `now`, and whether that is news; `query` asks the system. `executed`
    /// is true for an instruction pointer and false for any other word. Where the remembered answer
    /// says that nothing can be executed, an instruction pointer shows that the memory has changed
    /// since.
    pub(super) fn look(
        &mut self,
        address: u64,
        executed: bool,
        now: Ticks,
        query: impl FnOnce(u64) -> Region,
    ) -> RegionLook {
        let at = self.find(address);
        if let Some(known) = at.and_then(|at| self.known.get_mut(at)) {
            let first = *known.met.get_or_insert(now);
            let executable = known.region.used.is_executable();
            if now < known.expires && (executable || !executed) {
                self.last = at.unwrap_or_default();
                let new = executed && !known.executed;
                known.executed |= executed;
                return RegionLook { used: known.region.used, new, since: now };
            }
            let recent = now.saturating_sub(first).0 <= NOTHING_MS * self.ticks_per_ms;
            let since = if recent && !executable { first } else { now };
            let region = self.ask(address, executed, now, query);
            return RegionLook { used: region.used, new: true, since };
        }
        let region = self.ask(address, executed, now, query);
        RegionLook { used: region.used, new: true, since: now }
    }

    /// Forgets what is remembered of images.
    pub(super) fn forget_images(&mut self) {
        self.known.retain(|known| !known.region.used.is_image());
        self.last = 0;
    }

    fn ask(&mut self, address: u64, executed: bool, now: Ticks, query: impl FnOnce(u64) -> Region) -> Region {
        let region = query(address);
        if (region.start..region.end).contains(&address) {
            self.learn(region, executed, now);
        }
        region
    }

    fn find(&self, address: u64) -> Option<usize> {
        let holds = |at: &usize| {
            self.known.get(*at).is_some_and(|known| (known.region.start..known.region.end).contains(&address))
        };
        Some(self.last).filter(holds).or_else(|| {
            let after = self.known.partition_point(|known| known.region.start <= address);
            after.checked_sub(1).filter(holds)
        })
    }

    fn learn(&mut self, region: Region, executed: bool, now: Ticks) {
        let first = self.known.partition_point(|known| known.region.end <= region.start);
        let last = self.known.partition_point(|known| known.region.start < region.end);
        self.known.drain(first..last.max(first));
        if self.known.len() == MOST {
            self.known.clear();
        }
        let ms = match region.used {
            RegionUse::Code => CODE_MS,
            RegionUse::Image { .. } | RegionUse::Precompiled { .. } | RegionUse::Other => DATA_MS,
            RegionUse::Nothing => NOTHING_MS,
        };
        let at = first.min(self.known.len());
        let expires = now + Ticks(ms * self.ticks_per_ms);
        self.known.insert(at, KnownRegion { region, expires, executed, met: None });
        self.last = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: RegionUse = RegionUse::Image { base: 0x1000 };

    impl Regions {
        fn is_code(&mut self, address: u64, now: u64, query: impl FnOnce(u64) -> Region) -> bool {
            self.look(address, false, Ticks(now), query).used == RegionUse::Code
        }
    }

    fn region(start: u64, end: u64, used: RegionUse) -> Region {
        Region { start, end, used }
    }

    #[test]
    fn a_region_is_queried_once_until_it_expires() {
        let mut regions = Regions::new(1);
        let mut asked = 0;
        let mut is_code = |address, now| {
            regions.is_code(address, now, |_| {
                asked += 1;
                region(0x1000, 0x3000, RegionUse::Code)
            })
        };
        assert!(is_code(0x1000, 0) && is_code(0x2fff, 1) && is_code(0x1800, CODE_MS - 1));
        assert!(is_code(0x1000, CODE_MS));
        assert_eq!(asked, 2);
    }

    #[test]
    fn reserved_memory_is_queried_again_soon() {
        let mut regions = Regions::new(1);
        let query = |used| move |_: u64| region(0x1000, 0x9000, used);
        assert!(!regions.is_code(0x2000, 0, query(RegionUse::Nothing)));
        assert!(!regions.is_code(0x2000, NOTHING_MS - 1, query(RegionUse::Code)));
        assert!(regions.is_code(0x2000, NOTHING_MS, query(RegionUse::Code)));
    }

    #[test]
    fn a_new_answer_replaces_every_region_that_it_overlaps() {
        let mut regions = Regions::new(1);
        for page in 0..4u64 {
            let start = 0x1000 * (page + 1);
            regions.is_code(start, 0, |_| region(start, start + 0x1000, RegionUse::Other));
        }
        assert!(regions.is_code(0x2800, DATA_MS, |_| region(0x1000, 0x4000, RegionUse::Code)));
        assert_eq!(regions.known.len(), 2);
        assert!(regions.is_code(0x1000, DATA_MS, |_| unreachable!("known")));
        assert!(!regions.is_code(0x4000, DATA_MS - 1, |_| unreachable!("known")));
    }

    #[test]
    fn the_number_of_remembered_regions_is_limited() {
        let mut regions = Regions::new(1);
        for page in 0..10_000u64 {
            let start = 0x1000 * (page * 7919 % 10_000);
            regions.is_code(start, page, |_| region(start, start + 0x1000, RegionUse::Other));
            assert!(regions.known.len() <= MOST && regions.known.capacity() == MOST);
            assert!(regions.known.is_sorted_by_key(|known| known.region.start));
        }
    }

    #[test]
    fn an_instruction_pointer_in_memory_that_held_nothing_is_queried_at_once() {
        for before in [RegionUse::Nothing, RegionUse::Other] {
            let mut regions = Regions::new(1);
            let answer = |used| move |_: u64| region(0x1000, 0x9000, used);
            regions.look(0x2000, false, Ticks(10), answer(before));
            let word = regions.look(0x2100, false, Ticks(12), |_| unreachable!("remembered"));
            assert_eq!((word.used, word.new), (before, false));
            let pointer = regions.look(0x2200, true, Ticks(14), answer(IMAGE));
            // The word at 12 was the first that showed the image.
            assert_eq!(pointer, RegionLook { used: IMAGE, new: true, since: Ticks(12) });
            assert!(!regions.look(0x2300, true, Ticks(15), |_| unreachable!("remembered")).new);
        }
    }

    #[test]
    fn a_word_of_long_ago_does_not_show_an_image_of_now() {
        let mut regions = Regions::new(1);
        let answer = |used| move |_: u64| region(0x1000, 0x9000, used);
        regions.look(0x2000, false, Ticks(0), answer(RegionUse::Nothing));
        regions.look(0x2000, false, Ticks(1), |_| unreachable!("remembered"));
        let now = Ticks(2 + NOTHING_MS);
        assert_eq!(regions.look(0x2000, true, now, answer(IMAGE)).since, now);
    }

    #[test]
    fn a_region_is_new_when_it_is_queried_and_when_it_is_first_executed() {
        let mut regions = Regions::new(1);
        let mut new = |executed, now| {
            let look = regions.look(0x1800, executed, Ticks(now), |_| region(0x1000, 0x3000, IMAGE));
            assert_eq!(look.used, IMAGE);
            look.new
        };
        assert!(new(false, 0) && !new(false, 1));
        assert!(new(true, 2) && !new(true, 3) && !new(false, 4));
        assert!(new(true, DATA_MS) && !new(true, DATA_MS + 1));
    }
}
