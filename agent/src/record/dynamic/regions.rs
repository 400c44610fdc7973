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
pub enum RegionUse {
    /// Executable memory that belongs to no image.
    Code,
    /// Executable memory of a mapped image.
    Image,
    /// Memory that cannot be executed.
    Other,
    /// No memory, or memory that is only reserved.
    Nothing,
}

/// Addresses `start..end` of the same use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
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
    /// An instruction pointer in it was told of.
    executed: bool,
}

/// The result of looking up an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionLook {
    /// The use of its region.
    pub used: RegionUse,
    /// Whether the region was queried now, or an instruction pointer lies in it for the first time
    /// since.
    pub new: bool,
}

/// The regions seen lately, sorted. It allocates only in [`Regions::new`].
pub struct Regions {
    known: Vec<KnownRegion>,
    last: usize,
    ticks_per_ms: u64,
}

impl Regions {
    pub fn new(ticks_per_ms: u64) -> Regions {
        Regions { known: Vec::with_capacity(MOST), last: 0, ticks_per_ms }
    }

    /// What `address` lies in at `now`, and whether that is news; `query` asks the system.
    /// `executed` tells an instruction pointer from any word.
    pub fn look(
        &mut self,
        address: u64,
        executed: bool,
        now: Ticks,
        query: impl FnOnce(u64) -> Region,
    ) -> RegionLook {
        if let Some(at) = self.find(address, now) {
            self.last = at;
            let Some(known) = self.known.get_mut(at) else {
                return RegionLook { used: RegionUse::Nothing, new: false };
            };
            let new = executed && !known.executed;
            known.executed |= executed;
            return RegionLook { used: known.region.used, new };
        }
        let region = query(address);
        if (region.start..region.end).contains(&address) {
            self.learn(region, executed, now);
        }
        RegionLook { used: region.used, new: true }
    }

    fn find(&self, address: u64, now: Ticks) -> Option<usize> {
        let holds = |at: &usize| {
            self.known.get(*at).is_some_and(|known| {
                (known.region.start..known.region.end).contains(&address) && now < known.expires
            })
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
            RegionUse::Image | RegionUse::Other => DATA_MS,
            RegionUse::Nothing => NOTHING_MS,
        };
        let at = first.min(self.known.len());
        self.known.insert(at, KnownRegion { region, expires: now + Ticks(ms * self.ticks_per_ms), executed });
        self.last = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_region_is_new_when_it_is_queried_and_when_it_is_first_executed() {
        let mut regions = Regions::new(1);
        let mut new = |executed, now| {
            let look =
                regions.look(0x1800, executed, Ticks(now), |_| region(0x1000, 0x3000, RegionUse::Image));
            assert_eq!(look.used, RegionUse::Image);
            look.new
        };
        assert!(new(false, 0) && !new(false, 1));
        assert!(new(true, 2) && !new(true, 3) && !new(false, 4));
        assert!(new(true, DATA_MS) && !new(true, DATA_MS + 1));
    }
}
