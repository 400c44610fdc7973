//! Times in which samples are missing: what the recorder says that it dropped, pauses, and blocks
//! that are lost or damaged.

use super::{Pauses, Trace, TraceEvents, drop_reason_name};
use std::collections::HashMap;
use stk_format::{BlockKind, Scratch};
use stk_schema::event::{Dropped, Event};

/// A time in which samples are missing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gap {
    /// Why; a stable text.
    pub reason: &'static str,
    /// Thread instance; `None` = any.
    pub thread: Option<u64>,
    /// When it began, nanoseconds since trace start. Of a drop, whose report has the end alone,
    /// the earliest time possible: `count` sample intervals before, and not before the last report
    /// of this reason and thread.
    pub start_ns: u64,
    /// When it was noticed, or when the next block begins.
    pub end_ns: u64,
    /// Samples, passes over all threads or events that were left out; blocks; 1 for a pause.
    pub count: u64,
}

/// The reason of a gap where blocks are missing in the file.
const LOST: &str = "block lost";
/// The reason of a gap where a block cannot be read to its end.
const DAMAGED: &str = "block damaged";
/// The reason of a gap in which the recording was paused.
const PAUSED: &str = "paused";

/// Bytes of memory that a gap takes with the rows that are made of it.
const GAP: usize = 256;

/// The gaps of a trace, by beginning. `events` are those of the same trace.
pub fn gaps(trace: &Trace<'_>, events: &TraceEvents) -> Vec<Gap> {
    let mut gaps = missing_blocks(trace);
    for block in events.damaged_blocks.iter().filter_map(|&at| trace.sample_blocks().nth(at as usize)) {
        let ns = |time| trace.clock.ns(time);
        let (start_ns, end_ns) = (ns(block.header.first), ns(block.header.last));
        gaps.push(Gap { reason: DAMAGED, thread: None, start_ns, end_ns, count: 1 });
    }
    for pause in Pauses::of(trace).times() {
        let (start_ns, end_ns) = (pause.start, pause.end);
        gaps.push(Gap { reason: PAUSED, thread: None, start_ns, end_ns, count: 1 });
    }
    let mut drops = drops_beside_samples(trace);
    drops.extend(events.dropped.iter().copied());
    drops.sort_by_key(|drop| (drop.time, drop.reason, drop.thread));
    let interval = trace.interval_ns();
    let mut last: HashMap<(u64, u64), u64> = HashMap::new();
    for drop in drops {
        let end_ns = trace.clock.ns(drop.time);
        let before = last.insert((drop.reason, drop.thread), end_ns).unwrap_or(0);
        let start_ns = end_ns.saturating_sub(drop.count.saturating_mul(interval)).max(before);
        let thread = (drop.thread != 0).then_some(drop.thread);
        let reason = drop_reason_name(drop.reason);
        gaps.push(Gap { reason, thread, start_ns, end_ns, count: drop.count });
    }
    gaps.retain(|_| trace.budget.take(GAP));
    gaps.sort_by(|a, b| {
        let key = |gap: &Gap| (gap.start_ns, gap.end_ns, gap.thread, gap.reason, gap.count);
        key(a).cmp(&key(b))
    });
    gaps
}

/// A gap for each place in the file where blocks are missing.
fn missing_blocks(trace: &Trace<'_>) -> Vec<Gap> {
    let mut gaps = Vec::new();
    let (mut next, mut end_ns) = (0, 0);
    for block in trace.blocks().blocks() {
        let first = trace.clock.ns(block.header.first);
        if block.header.seq > next {
            let (start_ns, count) = (end_ns.min(first), block.header.seq - next);
            gaps.push(Gap { reason: LOST, thread: None, start_ns, end_ns: first, count });
        }
        next = block.header.seq.saturating_add(1);
        end_ns = end_ns.max(trace.clock.ns(block.header.last));
    }
    gaps
}

/// What blocks without samples say of drops.
fn drops_beside_samples(trace: &Trace<'_>) -> Vec<Dropped> {
    let mut drops = Vec::new();
    let mut scratch = Scratch::new();
    for block in trace.blocks().blocks() {
        if matches!(block.header.kind, BlockKind::Samples | BlockKind::Blob | BlockKind::Index) {
            continue;
        }
        // Damage of these blocks was reported when the trace was opened.
        let Ok(events) = trace.blocks().events(block, &mut scratch) else { continue };
        for event in events.map_while(Result::ok) {
            if let Event::Dropped(dropped) = event {
                drops.push(dropped);
            }
        }
    }
    drops
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Trace, events};
    use stk_format::BlockKind;
    use stk_schema::Ticks;
    use stk_schema::event::DropReason;
    use stk_tests::traces;

    fn gaps_of(file: &[u8]) -> Vec<Gap> {
        let trace = Trace::read(file, "a.stk").expect("a trace");
        gaps(&trace, &events(&trace))
    }

    /// A trace with ten samples of a thread, 1 ms apart, each in a block of its own.
    fn ten_blocks() -> Vec<u8> {
        let mut builder = traces::trace();
        let thread = builder.thread(0, 11, "main", 0x10_0000);
        for i in 1..=10 {
            traces::sample(&mut builder, thread, i * 1_000, 0x10_0000, &[]);
            builder.cut();
        }
        builder.finish()
    }

    #[test]
    fn a_whole_trace_has_no_gap() {
        assert_eq!(gaps_of(&ten_blocks()), []);
    }

    #[test]
    fn drops_reach_back_to_the_last_one_of_their_reason_and_thread() {
        let mut builder = traces::trace();
        let thread = builder.thread(0, 11, "main", 0x10_0000);
        let late = |time, count| {
            Event::Dropped(Dropped { time: Ticks(time), reason: DropReason::Late as u64, thread: 0, count })
        };
        traces::sample(&mut builder, thread, 1_000, 0x10_0000, &[]);
        builder.push(&late(9_000, 3));
        builder.push(&late(10_000, 5));
        builder.push(&Event::Dropped(Dropped {
            time: Ticks(9_500),
            reason: DropReason::NoContext as u64,
            thread,
            count: 1,
        }));
        let file = builder.finish();
        let trace = Trace::read(&file, "a.stk").expect("a trace");
        let (interval, ns) = (trace.interval_ns(), |time| trace.clock.ns(Ticks(time)));
        let gap = |reason, thread, start_ns, end_ns, count| Gap { reason, thread, start_ns, end_ns, count };
        let mut expected = vec![
            gap("sampler woke late", None, ns(9_000).saturating_sub(3 * interval), ns(9_000), 3),
            gap(
                "sampler woke late",
                None,
                ns(10_000).saturating_sub(5 * interval).max(ns(9_000)),
                ns(10_000),
                5,
            ),
            gap("context not readable", Some(thread), ns(9_500).saturating_sub(interval), ns(9_500), 1),
        ];
        expected.sort_by_key(|gap| (gap.start_ns, gap.end_ns));
        assert_eq!(gaps_of(&file), expected);
    }

    #[test]
    fn missing_and_damaged_blocks_are_gaps_between_their_neighbours() {
        let file = ten_blocks();
        let mut parts = stk_tests::synth::Parts::take_apart(&file).expect("a trace");
        let samples: Vec<usize> = (0..parts.blocks.len())
            .filter(|&at| parts.blocks[at].header.kind == BlockKind::Samples)
            .collect();
        parts.blocks.remove(samples[4]);
        let cut = parts.to_file();
        let trace = Trace::read(&cut, "a.stk").expect("a trace");
        let ns = |time| trace.clock.ns(Ticks(time));
        let lost = Gap { reason: LOST, thread: None, start_ns: ns(4_000), end_ns: ns(6_000), count: 1 };
        assert_eq!(gaps_of(&cut), [lost]);
    }
}
