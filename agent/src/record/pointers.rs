//! `--stack-words pointers`: takes the program's data out of a capture. Runs on the sampler's
//! thread, after the sampled thread was resumed. It never waits and allocates nothing.
//!
//! Every word of the stack, every register (but instruction and stack pointer) and every word of
//! memory beside the stack becomes zero, unless it is an address of memory that the process has
//! mapped at that moment, or a mark (`stk_schema::pointers`). The system is queried for mapped
//! memory and remembered for a while; that an address is *not* mapped never is, so that new code is
//! not missed.

use alloc::vec::Vec;

use stk_schema::pointers::{SMALL, address_of, is_mark};
use stk_schema::registers::MAX_REGISTERS;
use stk_schema::{Arch, Ticks};

use super::dynamic::{Region, RegionUse};

/// The rule, as the trace states it.
pub(crate) const RULE: &str =
    "inject --stack-words pointers: words and registers that were no addresses of mapped memory";

/// Most regions remembered; when there are more, all are forgotten.
const MOST: usize = 1024;
/// Milliseconds for which mapped memory is remembered.
const MAPPED_MS: u64 = 250;
/// Bytes below the stack pointer that count as the thread's stack: a frame pointer may lie there in
/// the middle of a prologue.
const BELOW_STACK: u64 = 4096;
/// The lowest 64 KB are never mapped, and user addresses have 47 bits at most.
const LOWEST: u64 = 0x1_0000;
const HIGHEST: u64 = 0x7fff_ffff_0000;
/// Words compared at once.
const LINE: usize = 64;

/// Memory that is known to be mapped.
struct Mapped {
    /// First address and the one behind the last, sorted, apart from each other.
    known: Vec<(u64, u64)>,
    last: usize,
    expires: Ticks,
    ticks_per_ms: u64,
    /// The loader's events when it was learnt: what they unmapped is not known.
    generation: u32,
}

impl Mapped {
    /// Forgets what may have changed until `now`.
    fn renew(&mut self, now: Ticks, generation: u32) {
        if now >= self.expires || generation != self.generation {
            self.known.clear();
            self.expires = now + Ticks(MAPPED_MS * self.ticks_per_ms);
            self.generation = generation;
        }
    }

    fn holds(&mut self, address: u64, query: &mut impl FnMut(u64) -> Region) -> bool {
        let is_in = |known: &(u64, u64)| (known.0..known.1).contains(&address);
        if self.known.get(self.last).is_some_and(is_in) {
            return true;
        }
        let after = self.known.partition_point(|known| known.0 <= address);
        if let Some(at) = after.checked_sub(1)
            && self.known.get(at).is_some_and(is_in)
        {
            self.last = at;
            return true;
        }
        let region = query(address);
        if region.used == RegionUse::Nothing || !(region.start..region.end).contains(&address) {
            return false;
        }
        let first = self.known.partition_point(|known| known.1 <= region.start);
        let last = self.known.partition_point(|known| known.0 < region.end);
        self.known.drain(first..last.max(first));
        if self.known.len() == MOST {
            self.known.clear();
        }
        let at = first.min(self.known.len());
        self.known.insert(at, (region.start, region.end));
        self.last = at;
        true
    }
}

/// What is filtered of a capture.
pub(crate) struct CapturedWords<'a> {
    /// Registers in the order of the register set.
    pub registers: &'a mut [u64; MAX_REGISTERS],
    /// The captured stack.
    pub stack: &'a mut [u8],
    /// Address of its first byte.
    pub stack_start: u64,
    /// Highest address of the thread's stack, exclusive; 0 if it is on a foreign one.
    pub stack_base: u64,
    /// Whole words that were read beside the stack.
    pub memory: &'a mut [u8],
    /// Whether a runtime describes the Frames on the stack.
    pub managed: bool,
}

/// The moment of a capture, and what is known beside it.
pub(crate) struct CaptureMoment<'a> {
    /// Now.
    pub now: Ticks,
    /// The number of the loader's events so far.
    pub generation: u32,
    /// The thread's stored sample before: its first address and its words, which are pointers.
    pub before: Option<(u64, &'a [u8])>,
}

/// Takes the program's data out of captures.
pub(crate) struct PointerFilter {
    arch: Arch,
    mapped: Mapped,
}

impl PointerFilter {
    /// A filter for this architecture.
    pub(crate) fn new(arch: Arch, ticks_per_ms: u64) -> PointerFilter {
        let known = Vec::with_capacity(MOST);
        let mapped = Mapped { known, last: 0, expires: Ticks::ZERO, ticks_per_ms, generation: 0 };
        PointerFilter { arch, mapped }
    }

    /// Zeroes the words that are no pointers. `query` asks the system for an address's region.
    /// Returns how many words were zeroed.
    pub(crate) fn apply(
        &mut self,
        capture: CapturedWords<'_>,
        moment: &CaptureMoment<'_>,
        mut query: impl FnMut(u64) -> Region,
    ) -> u64 {
        self.mapped.renew(moment.now, moment.generation);
        let end = capture.stack_start.saturating_add(capture.stack.len() as u64);
        let own = capture.stack_start.saturating_sub(BELOW_STACK)..=capture.stack_base.max(end);
        // A runtime that describes its Frames names their kinds by small numbers.
        let small = if capture.managed { SMALL } else { 0 };
        let (arch, mapped) = (self.arch, &mut self.mapped);
        let mut stays = |word: u64| {
            if word < LOWEST || is_mark(arch, word) {
                return word < small || is_mark(arch, word);
            }
            let address = address_of(arch, word);
            own.contains(&address)
                || (LOWEST..HIGHEST).contains(&address) && mapped.holds(address, &mut query)
        };
        let mut zeroed = 0;
        for register in capture.registers.iter_mut().skip(2).filter(|value| **value != 0) {
            if !stays(*register) {
                *register = 0;
                zeroed += 1;
            }
        }
        let width = arch.pointer_size();
        let start = capture.stack_start;
        zeroed += filter(capture.stack, width, |at, len| before(moment, start, at, len), &mut stays);
        zeroed += filter(capture.memory, width, |_, _| None, &mut stays);
        zeroed
    }
}

/// Zeroes the words of `memory` that do not stay. What equals `before`, the thread's stored sample
/// before, was found to stay then.
fn filter<'a>(
    memory: &mut [u8],
    width: usize,
    before: impl Fn(usize, usize) -> Option<&'a [u8]>,
    stays: &mut impl FnMut(u64) -> bool,
) -> u64 {
    let mut zeroed = 0;
    for (n, line) in memory.chunks_mut(LINE).enumerate() {
        let at = n * LINE;
        if before(at, line.len()) == Some(&*line) {
            continue;
        }
        for (n, bytes) in line.chunks_exact_mut(width).enumerate() {
            let word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
            if word == 0 || before(at + n * width, width) == Some(&*bytes) || stays(word) {
                continue;
            }
            bytes.fill(0);
            zeroed += 1;
        }
    }
    zeroed
}

/// The words of the sample before at `at..at + len` of a stack that begins at `start`.
fn before<'a>(moment: &CaptureMoment<'a>, start: u64, at: usize, len: usize) -> Option<&'a [u8]> {
    let (old, bytes) = moment.before?;
    let offset = usize::try_from(start.checked_add(at as u64)?.checked_sub(old)?).ok()?;
    bytes.get(offset..offset.checked_add(len)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const HEAP: u64 = 0x2000_0000;
    const IMAGE: u64 = 0x7ff6_0000_0000;
    const STACK: u64 = 0x60_0000;

    fn region(address: u64) -> Region {
        let page = address & !0xffff;
        let used = match page {
            HEAP => RegionUse::Other,
            IMAGE => RegionUse::Image { base: 0x1000 },
            _ => RegionUse::Nothing,
        };
        Region { start: page, end: page + 0x1_0000, used }
    }

    fn moment(now: u64) -> CaptureMoment<'static> {
        CaptureMoment { now: Ticks(now), generation: 0, before: None }
    }

    /// A thread's words, filtered in place.
    struct Words {
        registers: [u64; MAX_REGISTERS],
        stack: Vec<u64>,
        memory: Vec<u64>,
        managed: bool,
        zeroed: u64,
    }

    impl Words {
        fn of(stack: &[u64]) -> Words {
            let stack = stack.to_vec();
            Words { registers: [0; MAX_REGISTERS], stack, memory: vec![], managed: false, zeroed: 0 }
        }

        fn filtered(
            mut self,
            filter: &mut PointerFilter,
            moment: &CaptureMoment<'_>,
            query: impl FnMut(u64) -> Region,
        ) -> Words {
            let bytes =
                |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
            let words = |bytes: &[u8]| -> Vec<u64> {
                bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
            };
            let (mut stack, mut memory) = (bytes(&self.stack), bytes(&self.memory));
            let captured = CapturedWords {
                registers: &mut self.registers,
                stack_start: STACK - stack.len() as u64,
                stack: &mut stack,
                stack_base: STACK,
                memory: &mut memory,
                managed: self.managed,
            };
            self.zeroed = filter.apply(captured, moment, query);
            (self.stack, self.memory) = (words(&stack), words(&memory));
            self
        }
    }

    fn filter() -> PointerFilter {
        PointerFilter::new(Arch::X64, 10)
    }

    #[test]
    fn words_stay_that_are_addresses_of_mapped_memory_and_marks() {
        let stack = [HEAP + 8, IMAGE + 0x123, STACK - 8, STACK, u64::MAX];
        let data = [5, 0x1234_5678, 0x4065_6667_6869_6a6b, HEAP + 0x1_0000, 0x0023_7ff6_0000_0123];
        let mut words = Words::of(&[&stack[..], &data].concat());
        words.registers[..6].copy_from_slice(&[1, 2, 3, IMAGE, 0x4242_4242, HEAP]);
        words.memory = vec![IMAGE, 0x1234_5678];
        let words = words.filtered(&mut filter(), &moment(0), region);
        assert_eq!(words.stack, [&stack[..], &[0; 5]].concat());
        // Instruction and stack pointer stay whatever they are.
        assert_eq!(words.registers[..6], [1, 2, 0, IMAGE, 0, HEAP]);
        assert_eq!(words.memory, [IMAGE, 0]);
        assert_eq!(words.zeroed, 5 + 2 + 1);
    }

    #[test]
    fn authentication_bits_of_arm64_are_taken_off_to_judge_a_word() {
        let signed = 0x0023_0000_0000_0000 | IMAGE | 0x123;
        let mut filter = PointerFilter::new(Arch::Arm64, 10);
        let words = Words::of(&[signed, signed + 0x1_0000_0000]).filtered(&mut filter, &moment(0), region);
        assert_eq!(words.stack, [signed, 0]);
    }

    #[test]
    fn small_numbers_stay_where_a_runtime_names_its_frames_by_them() {
        let words = Words { managed: true, ..Words::of(&[7, 64]) };
        assert_eq!(words.filtered(&mut filter(), &moment(0), region).stack, [7, 0]);
    }

    #[test]
    fn unmapped_memory_is_queried_again_at_once() {
        let mut filter = filter();
        for (used, stays) in [(RegionUse::Nothing, 0), (RegionUse::Code, HEAP + 8)] {
            let asked = |address| Region { used, ..region(address) };
            assert_eq!(Words::of(&[HEAP + 8]).filtered(&mut filter, &moment(0), asked).stack, [stays]);
        }
    }

    #[test]
    fn mapped_memory_is_queried_once_until_it_may_be_gone() {
        let mut filter = filter();
        let mut asked = 0;
        for (now, generation) in [(0, 0), (1, 0), (2, 1), (MAPPED_MS * 10, 1), (MAPPED_MS * 10 + 2, 1)] {
            let moment = CaptureMoment { now: Ticks(now), generation, before: None };
            let words = [HEAP + 8, HEAP + 16, HEAP];
            let filtered = Words::of(&words).filtered(&mut filter, &moment, |address| {
                asked += 1;
                region(address)
            });
            assert_eq!(filtered.stack, words);
        }
        assert_eq!(asked, 3);
    }

    #[test]
    fn what_stayed_in_the_sample_before_is_not_judged_again() {
        let stack: Vec<u64> = (0..40).map(|n| HEAP + 8 * n).collect();
        let old: Vec<u8> = stack.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut changed = stack.clone();
        changed[17] = 0x5555_5555_5555;
        let before = Some((STACK - old.len() as u64, &old[..]));
        let moment = CaptureMoment { now: Ticks(0), generation: 0, before };
        let mut asked = Vec::new();
        let words = Words::of(&[&[1, 2, 3], &changed[..]].concat());
        let words = words.filtered(&mut filter(), &moment, |address| {
            asked.push(address);
            region(address)
        });
        changed[17] = 0;
        assert_eq!(words.stack, [&[0, 0, 0], &changed[..]].concat());
        assert_eq!(asked, [0x5555_5555_5555]);
    }
}
