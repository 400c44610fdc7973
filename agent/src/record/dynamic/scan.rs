//! Finds addresses of dynamic code in a sample. Runs on the sampler's thread, after the sampled
//! thread was resumed. It never waits and allocates nothing.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use core::sync::atomic::Ordering;

use super::regions::{Region, RegionUse, Regions};
use super::{CodeSample, Shared, UnnamedCode};
use crate::record::shared::Counters;
use stk_schema::Ticks;
use stk_schema::event::DropReason;

/// Number of remembered addresses that were handed over; a power of two. An address that shares its
/// slot with another is handed over again.
const PLACES: usize = 8192;
/// Milliseconds after which an address is handed over again: its code may have been freed and the
/// memory reused.
const AGAIN_MS: u64 = 250;
/// Words compared at once.
const LINE: usize = 64;

#[derive(Clone, Copy)]
struct RecentAddress {
    inside: u64,
    due: Ticks,
}

/// A sample as the scan sees it.
#[derive(Clone, Copy)]
pub(crate) struct ScannedSample<'a> {
    /// When it was taken.
    pub time: Ticks,
    /// Instruction pointer.
    pub ip: u64,
    /// Address of the first byte of `stack`.
    pub stack_start: u64,
    /// Highest address of the stack, exclusive.
    pub stack_base: u64,
    /// The captured bytes.
    pub stack: &'a [u8],
    /// The thread's previous sample: its first address and bytes. Words that did not change were
    /// already scanned.
    pub before: Option<(u64, &'a [u8])>,
}

/// Finds addresses of dynamic code.
pub(crate) struct Scanner {
    regions: Regions,
    places: Box<[RecentAddress]>,
    shared: Arc<Shared>,
    counters: Arc<Counters>,
    word: usize,
    again: Ticks,
    /// Of the images with precompiled code, as last seen.
    generation: u32,
    /// Until then whole stacks are searched: words that were of no use may be since.
    whole_until: Ticks,
    found: bool,
}

impl Scanner {
    /// A scanner for stacks of words of `word` bytes.
    pub(crate) fn new(
        shared: Arc<Shared>,
        counters: Arc<Counters>,
        word: usize,
        ticks_per_ms: u64,
    ) -> Scanner {
        Scanner {
            regions: Regions::new(ticks_per_ms),
            places: vec![RecentAddress { inside: 0, due: Ticks::ZERO }; PLACES].into_boxed_slice(),
            shared,
            counters,
            word,
            again: Ticks(AGAIN_MS * ticks_per_ms),
            generation: 0,
            whole_until: Ticks::ZERO,
            found: false,
        }
    }

    /// Whether any address was handed over since the last call.
    pub(crate) fn take_found(&mut self) -> bool {
        core::mem::take(&mut self.found)
    }

    /// Scans a sample; `query` asks the system for an address's region.
    pub(crate) fn sample(&mut self, view: &ScannedSample<'_>, mut query: impl FnMut(u64) -> Region) {
        let generation = self.shared.precompiled.generation();
        if generation != self.generation {
            self.generation = generation;
            self.regions.forget_images();
            self.whole_until = view.time + self.again;
        }
        let view = &ScannedSample { before: view.before.filter(|_| view.time >= self.whole_until), ..*view };
        self.address(view.ip, true, view, &mut query);
        let stack = view.stack;
        let mut at = 0;
        while at < stack.len() {
            let line = stack.get(at..at + LINE);
            if line.is_some() && line == before(view, at, LINE) {
                at += LINE;
                continue;
            }
            let end = (at + LINE).min(stack.len());
            while let Some(word) = stack.get(at..at + self.word).filter(|_| at < end) {
                if before(view, at, self.word) != Some(word) {
                    let mut bytes = [0; 8];
                    bytes[..self.word].copy_from_slice(word);
                    // A return address may lie after the end of its function, so use the byte
                    // before it.
                    self.address(u64::from_le_bytes(bytes).wrapping_sub(1), false, view, &mut query);
                }
                at += self.word;
            }
            at = at.max(end);
        }
    }

    fn address(
        &mut self,
        inside: u64,
        executed: bool,
        view: &ScannedSample<'_>,
        query: &mut impl FnMut(u64) -> Region,
    ) {
        // The lowest 64 KB are never mapped, and user addresses have 47 bits at most.
        if !(0x1_0000..0x7fff_ffff_0000).contains(&inside)
            || (view.stack_start..view.stack_base).contains(&inside)
        {
            return;
        }
        let precompiled = &self.shared.precompiled;
        let look = self.regions.look(inside, executed, view.time, |address| {
            let region = query(address);
            let RegionUse::Image { base } = region.used else { return region };
            let used = precompiled.instance(base).map(|instance| RegionUse::Precompiled { instance });
            Region { used: used.unwrap_or(region.used), ..region }
        });
        if look.used.is_image() && look.new {
            // If there is no room, it is pushed again when the region is next queried.
            let _ = self.shared.images.push(CodeSample { inside, time: look.since, executed });
        }
        if !matches!(look.used, RegionUse::Code | RegionUse::Precompiled { .. }) {
            return;
        }
        let place = (inside.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 51) as usize % PLACES;
        let Some(place) = self.places.get_mut(place) else { return };
        // An address that was only a stack word before may now be executed, which is stronger
        // evidence.
        if place.inside == (inside << 1 | u64::from(executed)) && view.time < place.due {
            return;
        }
        if let RegionUse::Precompiled { instance } = look.used {
            *place = RecentAddress { inside: inside << 1 | u64::from(executed), due: view.time + self.again };
            let (address, base, size) = (inside, inside, 1);
            let code = UnnamedCode { instance, address, base, size, executed, precompiled: true };
            if self.shared.unnamed.push(code).is_err() {
                self.shared.costs.unasked.fetch_add(1, Ordering::Relaxed);
            }
            return;
        }
        if self.shared.sight(CodeSample { inside, time: view.time, executed }) {
            *place = RecentAddress { inside: inside << 1 | u64::from(executed), due: view.time + self.again };
            self.shared.costs.sightings.fetch_add(1, Ordering::Relaxed);
        } else {
            self.shared.costs.lost.fetch_add(1, Ordering::Relaxed);
            self.counters.lose(DropReason::CodeUnseen, 1);
        }
        self.found = true;
    }
}

/// The bytes of the previous sample at the addresses of `at..at + len`.
fn before<'a>(view: &ScannedSample<'a>, at: usize, len: usize) -> Option<&'a [u8]> {
    let (start, bytes) = view.before?;
    let offset = usize::try_from((view.stack_start + at as u64).checked_sub(start)?).ok()?;
    bytes.get(offset..offset.checked_add(len)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const MS: u64 = 10;
    const BASE: u64 = 0x7000_0000;
    const CODE: u64 = 0x2000_0000;
    const IMAGE: u64 = 0x3000_0000;

    fn region(address: u64) -> Region {
        let used = if (CODE..CODE + 0x1_0000).contains(&address) {
            RegionUse::Code
        } else if (IMAGE..IMAGE + 0x1_0000).contains(&address) {
            RegionUse::Image { base: IMAGE }
        } else {
            RegionUse::Other
        };
        Region { start: address & !0xffff, end: (address & !0xffff) + 0x1_0000, used }
    }

    fn scanner() -> (Scanner, Arc<Shared>) {
        let shared = Shared::new();
        (Scanner::new(shared.clone(), Arc::new(Counters::default()), 8, MS), shared)
    }

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn view(stack: &[u8], time: u64) -> ScannedSample<'_> {
        let stack_start = BASE - stack.len() as u64;
        ScannedSample { time: Ticks(time), ip: 0x40_0000, stack_start, stack_base: BASE, stack, before: None }
    }

    fn drain(shared: &Shared) -> Vec<(u64, bool)> {
        core::iter::from_fn(|| shared.next_sighting()).map(|found| (found.inside, found.executed)).collect()
    }

    #[test]
    fn the_instruction_pointer_and_every_word_in_dynamic_code_is_found() {
        let (mut scanner, shared) = scanner();
        let stack = bytes(&[1, CODE + 0x100, BASE - 8, 0x40_1234, u64::MAX, CODE + 0x1_0000, CODE, 0]);
        scanner.sample(&ScannedSample { ip: CODE + 0x40, ..view(&stack, 5) }, region);
        // The last word in the region stands for the call before it. The first byte of the region
        // is no return address here.
        assert_eq!(drain(&shared), [(CODE + 0x40, true), (CODE + 0xff, false), (CODE + 0xffff, false)]);
        assert!(scanner.take_found() && !scanner.take_found());
    }

    #[test]
    fn unchanged_words_are_skipped_and_changed_ones_are_found_anywhere() {
        let (mut scanner, shared) = scanner();
        let old: Vec<u64> = (0..40).map(|n| CODE + 0x10 * n + 1).collect();
        for changed in 0..40 {
            let mut new = old.clone();
            new[changed] = CODE + 0x8001;
            let (old, new) = (bytes(&old), bytes(&new));
            let (mut scanner, shared) = self::scanner();
            // The new stack is five words deeper.
            let deeper = [bytes(&[0; 5]), new].concat();
            let start = BASE - old.len() as u64;
            scanner.sample(&ScannedSample { before: Some((start, &old)), ..view(&deeper, 5) }, region);
            assert_eq!(drain(&shared), [(CODE + 0x8000, false)], "word {changed}");
        }
        let old = bytes(&old);
        scanner.sample(&view(&old, 5), region);
        assert_eq!(drain(&shared).len(), 40, "without a sample before all are new");
    }

    #[test]
    fn an_address_is_handed_over_once_until_its_code_may_have_changed() {
        let (mut scanner, shared) = scanner();
        let stack = bytes(&[CODE + 0x100]);
        for time in [0, 1, AGAIN_MS * MS - 1, AGAIN_MS * MS] {
            scanner.sample(&view(&stack, time), region);
        }
        assert_eq!(drain(&shared).len(), 2);
    }

    #[test]
    fn an_image_is_reported_once_for_stack_words_and_once_when_executed() {
        let (mut scanner, shared) = scanner();
        let stack = bytes(&[IMAGE + 0x101, IMAGE + 0x201]);
        scanner.sample(&view(&stack, 5), region);
        scanner.sample(&ScannedSample { ip: IMAGE + 0x40, ..view(&stack, 6) }, region);
        scanner.sample(&ScannedSample { ip: IMAGE + 0x50, ..view(&stack, 7) }, region);
        let reported: Vec<CodeSample> = core::iter::from_fn(|| shared.images.pop()).collect();
        let sighting = |inside, time, executed| CodeSample { inside, time, executed };
        assert_eq!(
            reported,
            [sighting(IMAGE + 0x100, Ticks(5), false), sighting(IMAGE + 0x40, Ticks(6), true)]
        );
        assert_eq!(drain(&shared), [], "an image is no dynamic code");
    }

    #[test]
    fn addresses_that_the_queue_cannot_hold_are_counted_and_come_again() {
        let (mut scanner, shared) = scanner();
        let words: Vec<u64> = (0..9000).map(|n| CODE + 1 + n).collect();
        scanner.sample(&view(&bytes(&words), 0), region);
        let first = drain(&shared).len();
        assert_eq!(first as u64 + shared.costs.lost.load(Ordering::Relaxed), 9000);
        assert!(first < 9000 && scanner.counters.lost(DropReason::CodeUnseen as usize) > 0);
        scanner.sample(&view(&bytes(&words[first..]), 1), region);
        assert!(drain(&shared).contains(&(words[8999] - 1, false)));
    }

    #[test]
    fn words_leave_room_for_instruction_pointers() {
        let (mut scanner, shared) = scanner();
        let words: Vec<u64> = (0..9000).map(|n| CODE + 1 + n).collect();
        let stack = bytes(&words);
        scanner.sample(&ScannedSample { ip: CODE + 0x8040, ..view(&stack, 0) }, region);
        scanner.sample(&ScannedSample { ip: CODE + 0x8050, ..view(&stack, 1) }, region);
        let executed: Vec<(u64, bool)> = drain(&shared).into_iter().filter(|found| found.1).collect();
        assert_eq!(executed, [(CODE + 0x8040, true), (CODE + 0x8050, true)]);
    }

    /// Otherwise a CODE_ADD would have the time of a later sample, and the first stacks with that
    /// code would end there.
    #[test]
    fn addresses_are_handed_over_in_the_order_of_samples() {
        let (mut scanner, shared) = scanner();
        let stack = bytes(&[CODE + 0x101]);
        scanner.sample(&view(&stack, 5), region);
        scanner.sample(&ScannedSample { ip: CODE + 0x100, ..view(&[], 6) }, region);
        assert_eq!(drain(&shared), [(CODE + 0x100, false), (CODE + 0x100, true)]);
    }
}
