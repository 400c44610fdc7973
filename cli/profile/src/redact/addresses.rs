//! The addresses that a trace knows: what a word of a stack may be without being anybody's data.

use crate::runtimes;
use crate::trace::Trace;
use std::collections::{BTreeMap, HashSet};
use stk_format::{SampleStep, Scratch};
use stk_schema::Arch;
use stk_schema::event::Event;
use stk_schema::pointers::{SMALL, address_of, is_mark};

/// Bytes below the lowest captured word that still count as the thread's stack: a frame pointer may
/// lie there in the middle of a prologue.
const BELOW_STACK: u64 = 4096;

/// Ranges of addresses, and single words.
#[derive(Debug)]
pub struct KnownAddresses {
    arch: Arch,
    /// First and last address of each, sorted, apart from each other.
    ranges: Vec<(u64, u64)>,
    /// MethodDescs of .NET, by which explicit Frames name methods.
    methods: HashSet<u64>,
    /// A .NET runtime describes its Frames, whose kinds are small numbers.
    small: bool,
}

impl KnownAddresses {
    /// The modules, dynamic code, methods and stacks of a trace. Reads all its samples.
    pub fn of(trace: &Trace<'_>) -> KnownAddresses {
        let timeline = &trace.timeline;
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        // A return address may lie behind the last byte of its function. So may a frame pointer.
        let mut add = |base: u64, size: u64| ranges.push((base, base.saturating_add(size)));
        timeline.modules.iter().for_each(|module| add(module.base, module.size));
        timeline.code.iter().for_each(|region| add(region.base, region.size));
        let methods = runtimes::methods(trace);
        methods.map.methods().iter().for_each(|method| add(method.base, u64::from(method.size)));
        let (stacks, memory) = stacks(trace);
        stacks.into_iter().for_each(|(base, start)| add(start, base - start));
        memory.into_iter().for_each(|(address, len)| add(address, len));
        KnownAddresses {
            arch: trace.header().arch,
            ranges: joined(ranges),
            methods: methods.map.methods().iter().map(|method| method.id).filter(|id| *id != 0).collect(),
            small: timeline.runtimes.iter().any(|runtime| !runtime.descriptor.is_empty()),
        }
    }

    /// Whether a word stays: it is an address that the trace knows, or a mark that is nobody's
    /// data.
    pub fn keeps(&self, word: u64) -> bool {
        let address = address_of(self.arch, word);
        let after = self.ranges.partition_point(|(first, _)| *first <= address);
        after.checked_sub(1).is_some_and(|at| address <= self.ranges[at].1)
            || is_mark(self.arch, word)
            || self.small && word < SMALL
            || self.methods.contains(&word)
    }
}

/// The stacks in the samples: base and lowest address. And the memory that was recorded beside
/// them: address and length.
fn stacks(trace: &Trace<'_>) -> (BTreeMap<u64, u64>, Vec<(u64, u64)>) {
    let (mut stacks, mut memory) = (BTreeMap::new(), Vec::new());
    let mut scratch = Scratch::new();
    for block in trace.sample_blocks() {
        let Ok(mut samples) = trace.blocks().samples(block, &mut scratch) else { continue };
        while let Ok(Some(step)) = samples.next() {
            match step {
                SampleStep::Sample(sample) => {
                    let end = sample.stack_start.saturating_add(sample.stack.len() as u64);
                    let base = if sample.stack_base == 0 { end } else { sample.stack_base };
                    let start = sample.stack_start.saturating_sub(BELOW_STACK).min(base);
                    let lowest = stacks.entry(base).or_insert(start);
                    *lowest = start.min(*lowest);
                    memory.extend(sample.extra.map(|(address, bytes)| (address, bytes.len() as u64)));
                }
                SampleStep::Other(Event::Memory(piece)) => {
                    memory.push((piece.address, piece.bytes.len() as u64));
                }
                _ => {}
            }
        }
        memory = joined(memory.iter().map(|(at, len)| (*at, at.saturating_add(*len))).collect())
            .into_iter()
            .map(|(first, last)| (first, last - first))
            .collect();
    }
    (stacks, memory)
}

/// The ranges sorted, those that overlap or touch as one.
fn joined(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (first, last) in ranges {
        match joined.last_mut() {
            Some(before) if first <= before.1 => before.1 = before.1.max(last),
            _ => joined.push((first, last)),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_overlap_become_one() {
        assert_eq!(joined(vec![(50, 60), (10, 20), (20, 30), (12, 14)]), [(10, 30), (50, 60)]);
    }

    #[test]
    fn a_word_stays_if_it_is_an_address_without_its_authentication_bits() {
        let known = |arch, small| KnownAddresses {
            arch,
            ranges: vec![(0x1000, 0x2000), (0x7ff6_0000_0000, 0x7ff6_0001_0000)],
            methods: HashSet::from([0x5008]),
            small,
        };
        let x64 = known(Arch::X64, false);
        for (word, stays) in [
            (0xfff, false),
            (0x1000, true),
            (0x2000, true),
            (0x2001, false),
            (0x5008, true),
            (0x5010, false),
            (0x7ff6_0000_1234, true),
            (0x0023_7ff6_0000_1234, false),
            (5, false),
            (u64::MAX, true),
            (u64::from(u32::MAX), false),
        ] {
            assert_eq!(x64.keeps(word), stays, "{word:#x}");
        }
        let arm64 = known(Arch::Arm64, true);
        assert!(arm64.keeps(0x0023_7ff6_0000_1234) && arm64.keeps(5) && !arm64.keeps(0x0023_7ff7_0000_1234));
        assert!(known(Arch::X86, false).keeps(u64::from(u32::MAX)));
    }
}
