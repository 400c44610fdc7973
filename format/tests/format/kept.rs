//! Reads files of released versions, which all later versions must read.

use crate::kept_list::{BLOB, beside_samples, blob_hash, blocks, registers, reserved};
use stk_format::blob::Assembly;
use stk_format::{BlockKind, CpuUnit, HEADER_KEY, SampleStep, Scratch, Trace};
use stk_schema::event::*;
use stk_schema::{Arch, Os, Ticks};

const V1: &[u8] = include_bytes!("../data/format-v1.stk");
const V1_1: &[u8] = include_bytes!("../data/format-v1.1.stk");

#[test]
fn version_1_header() {
    let trace = Trace::open(V1).unwrap();
    let header = trace.header();
    assert_eq!(header.minor, 0);
    assert_eq!((header.arch, header.os, &header.uuid), (Arch::X64, Os::Windows, b"format version 1"));
    assert_eq!((header.clock_frequency, header.clock_start.0), (10_000_000, 100));
    assert_eq!(
        (header.utc_start, header.process_created),
        (1_700_000_000_000_000_000, 1_699_999_999_000_000_000)
    );
    assert_eq!((header.pid, header.rate_mhz, header.boot_id), (4404, 1_000_000, 99));
    assert_eq!(header.cpu_unit, CpuUnit::Cycles);
    assert!(trace.is_complete() && trace.is_indexed() && trace.damage().is_empty());
}

#[test]
fn version_1_1_header() {
    let trace = Trace::open(V1_1).unwrap();
    let header = trace.header();
    assert_eq!((header.minor, &header.uuid, header.incompatible), (1, b"format vers. 1.1", 0));
    assert!(trace.is_complete() && trace.is_indexed() && trace.damage().is_empty());
}

#[test]
fn version_1_events() {
    assert_events(V1, blocks());
}

#[test]
fn version_1_1_events() {
    let mut all = blocks();
    all.push(reserved());
    assert_events(V1_1, all);
    let (.., events) = reserved();
    let unknown = events.iter().filter(|event| matches!(event, Event::Unknown { .. }));
    assert!(unknown.clone().all(|event| kind::is_reserved(stk_format::event::kind_of(event))));
    assert_eq!(unknown.count(), 1);
    assert!(!kind::is_reserved(kind::THREAD_CPU) && !kind::is_reserved(35));
}

/// Checks the events outside of the two SAMPLES blocks that both files have.
#[track_caller]
fn assert_events(file: &[u8], expected: Vec<(BlockKind, u64, Vec<Event<'_>>)>) {
    let trace = Trace::open(file).unwrap();
    let mut scratch = Scratch::new();
    let mut found = trace.blocks().iter();
    let mut next = |scratch: &mut Scratch| {
        let block = found.next().unwrap();
        // The writer itself adds the first event.
        let own = |event: &Event| matches!(event, Event::Metadata(fact) if fact.key == HEADER_KEY);
        let events = trace.events(block, scratch).unwrap().map(Result::unwrap);
        let events: Vec<String> =
            events.filter(|event| !own(event)).map(|event| format!("{event:?}")).collect();
        (block.header.kind, block.header.first.0, events)
    };
    let text =
        |events: &[Event]| -> Vec<String> { events.iter().map(|event| format!("{event:?}")).collect() };
    let clock = Event::Clock(Clock { time: Ticks(100), utc: 1_700_000_000_000_000_000 });
    assert_eq!(next(&mut scratch), (BlockKind::State, 100, text(&[clock])));
    for (kind, first, events) in expected {
        assert_eq!(next(&mut scratch), (kind, first, text(&events)));
    }
    assert_eq!(next(&mut scratch).0, BlockKind::Samples);
    assert_eq!(next(&mut scratch).0, BlockKind::Samples);
    let end = Event::End(End { time: Ticks(300), reason: 1, samples: 6, dropped: 12, detail: b"done" });
    assert_eq!(next(&mut scratch), (BlockKind::End, 300, text(&[end])));
    assert_eq!(next(&mut scratch).0, BlockKind::Index);
    assert!(found.next().is_none());
}

#[test]
fn version_1_blob() {
    let trace = Trace::open(V1).unwrap();
    let mut scratch = Scratch::new();
    let block = trace.blocks().iter().find(|block| block.header.kind == BlockKind::Blob).unwrap();
    let mut assembly = Assembly::new(blob_hash());
    for event in trace.events(block, &mut scratch).unwrap() {
        if let Event::Blob(piece) = event.unwrap() {
            assembly.add(&piece).unwrap();
        }
    }
    assert_eq!(assembly.finish().unwrap(), BLOB);
}

#[test]
fn version_1_samples() {
    let trace = Trace::open(V1).unwrap();
    let mut scratch = Scratch::new();
    let registers = registers(0x7ff6_0000_1234, 0x1f_ffe0);
    let words = |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    let mut blocks = trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Samples);

    let mut samples = trace.samples(blocks.next().unwrap(), &mut scratch).unwrap();
    let Some(SampleStep::Sample(s)) = samples.next().unwrap() else { panic!() };
    assert_eq!(
        (s.thread, s.time.0, s.registers, s.stack),
        (5, 201, &registers[..], &words(&[1, 2, 3, 4])[..])
    );
    assert_eq!((s.stack_start, s.stack_base, s.unchanged_from), (0x1f_ffe0, 0x20_0000, 0x20_0000));
    assert_eq!(s.changed, s.stack);
    assert_eq!(
        (s.code_at_ip, s.cpu_delta, s.state),
        (Some(&[0x48, 0x89, 0xc3][..]), None, RunState::Running)
    );
    assert_eq!((s.tag, s.tables_pending, s.context_reply, s.truncated), (None, false, None, false));
    let Some(SampleStep::Same(s)) = samples.next().unwrap() else { panic!() };
    assert_eq!((s.thread, s.first.0, s.last.0, s.ticks, s.state), (5, 202, 203, 2, RunState::Waiting));
    let Some(SampleStep::Sample(s)) = samples.next().unwrap() else { panic!() };
    assert_eq!(
        (s.thread, s.time.0, s.registers, s.stack),
        (5, 204, &registers[..], &words(&[1, 9, 3, 4])[..])
    );
    assert_eq!((s.unchanged_from, s.cpu_delta, s.state), (0x1f_fff0, Some(500), RunState::Unknown));
    assert_eq!(s.changed, words(&[9]));
    assert_eq!((s.tag, s.tables_pending, s.context_reply), (Some(42), true, Some(0x1000_0000)));
    assert_eq!(s.code_at_ip, Some(&[0x48, 0x89, 0xc3][..]));
    assert_eq!(s.extra.collect::<Vec<_>>(), [(0x7000, &b"beside the stack"[..])]);
    assert!(samples.next().unwrap().is_none());

    let mut samples = trace.samples(blocks.next().unwrap(), &mut scratch).unwrap();
    for event in beside_samples() {
        let Some(SampleStep::Other(found)) = samples.next().unwrap() else { panic!() };
        assert_eq!(found, event);
    }
    let Some(SampleStep::Idle(idle)) = samples.next().unwrap() else { panic!() };
    let waiting = RunState::Waiting;
    assert_eq!(
        idle,
        Idle { thread: 5, ticks: 1, first: Ticks(209), last: Ticks(209), block: 0, state: waiting }
    );
    let Some(SampleStep::Sample(s)) = samples.next().unwrap() else { panic!() };
    assert_eq!((s.time.0, s.stack, s.truncated), (220, &words(&[1, 9])[..], true));
    assert_eq!((s.stack_start, s.stack_base), (0x1f_ffe0, 0x20_0000));
    assert!(samples.next().unwrap().is_none());
}

/// The thread's clock stands at 1000, 1500, 1800 during the IDLE, 2000 and 2100.
#[test]
fn version_1_1_cpu_time() {
    let trace = Trace::open(V1_1).unwrap();
    let mut scratch = Scratch::new();
    let block = trace.blocks().iter().rfind(|block| block.header.kind == BlockKind::Samples).unwrap();
    let mut samples = trace.samples(block, &mut scratch).unwrap();
    let Some(SampleStep::Idle(idle)) = samples.next().unwrap() else { panic!() };
    let running = RunState::Running;
    assert_eq!(
        idle,
        Idle { thread: 5, ticks: 1, first: Ticks(209), last: Ticks(209), block: 0, state: running }
    );
    let Some(SampleStep::Other(found)) = samples.next().unwrap() else { panic!() };
    assert_eq!(found, Event::ThreadCpu(ThreadCpu { thread: 5, time: Ticks(209), cpu: 300 }));
    for event in beside_samples() {
        let Some(SampleStep::Other(found)) = samples.next().unwrap() else { panic!() };
        assert_eq!(found, event);
    }
    let Some(SampleStep::Sample(s)) = samples.next().unwrap() else { panic!() };
    assert_eq!((s.time.0, s.cpu_delta), (220, Some(200)));
    let Some(SampleStep::Other(found)) = samples.next().unwrap() else { panic!() };
    assert_eq!(found, Event::ThreadCpu(ThreadCpu { thread: 5, time: Ticks(230), cpu: 100 }));
    assert!(samples.next().unwrap().is_none());
}
