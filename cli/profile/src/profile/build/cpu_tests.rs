//! Where the CPU time of a thread goes: to the stacks that used it, also to those that stood still.

use super::tests::{names, profile, profile_with, runs_of};
use super::{BuildOptions, unread_ns};
use crate::profile::{Profile, RunSelection, Runs, part};
use crate::trace::Trace;
use std::collections::BTreeMap;
use stk_format::{CpuUnit, FileHeader, RawSample};
use stk_schema::event::{Clock, Event, Metadata, RunState};
use stk_schema::registers::{IP, RegisterSet, SP};
use stk_schema::{Arch, Os, Ticks};
use stk_tests::synth::{Random, TraceBuilder};
use stk_tests::traces::{self, TestImage, in_function};

const BASE: u64 = 0x1_4000_0000;
const STACK: u64 = 0x10_0000;
/// Ticks, and units of the threads' clocks, in a millisecond.
const MS: u64 = 10_000;
const SPIN: u32 = 1;
const NEXT: u32 = 2;

/// A builder for a trace of format version 1.`minor` whose threads have clocks in units of 100 ns,
/// sampled each millisecond.
fn builder(minor: u16) -> TraceBuilder {
    let mut header = FileHeader::new(Arch::X64, Os::Windows, [minor as u8 + 1; 16], 1000 * MS);
    (header.minor, header.cpu_unit, header.rate_mhz) = (minor, CpuUnit::Time100ns, 1_000_000);
    let mut builder = TraceBuilder::with_header(header);
    traces::load_system(&mut builder);
    TestImage::new(r"C:\app\app.exe", 8).load(&mut builder, 0, BASE);
    builder
}

/// A pass at `ms` that finds the thread in a function. `cpu`: its clock, if it was read.
fn pass(builder: &mut TraceBuilder, thread: u64, ms: u64, function: u32, cpu: Option<u64>, state: RunState) {
    let ([ip, sp], words) = traces::stack(STACK, &[in_function(BASE, function)]);
    let mut registers = [0; RegisterSet::X64.len()];
    (registers[IP], registers[SP]) = (ip, sp);
    let stack: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    builder.raw(&RawSample {
        thread,
        time: Ticks(ms * MS),
        set: RegisterSet::X64,
        registers: &registers,
        stack_base: STACK,
        stack_start: sp,
        stack: &stack,
        // No return: the thread is not behind a system call.
        code: Some(&[0xeb, 0xfe]),
        cpu,
        state,
        tag: None,
        tables_pending: false,
        context_reply: None,
        extra: &[],
    });
}

/// CPU time by innermost function, in milliseconds.
fn cpu_ms(file: &[u8], options: &BuildOptions) -> BTreeMap<String, u64> {
    let (profile, runs) = profile_with(file, options);
    cpu_of(&profile, &runs)
}

fn cpu_of(profile: &Profile, runs: &Runs) -> BTreeMap<String, u64> {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for run in runs_of(profile, runs, 1) {
        *sums.entry(names(profile, run.node)[0].clone()).or_default() += run.cpu_ns;
    }
    sums.into_iter().map(|(name, ns)| (name, ns / 1_000_000)).collect()
}

fn whole() -> BuildOptions {
    BuildOptions::default()
}

/// A thread that spins for 5 s with unchanged registers, then is elsewhere for 10 ms. `read`:
/// whether its clock is read at each pass, or only where it is not as before.
fn spins_then_continues(minor: u16, read: bool) -> Vec<u8> {
    let mut builder = builder(minor);
    let thread = builder.thread(0, 1, "", STACK);
    for ms in 1..=5_000 {
        let cpu = (read || ms <= 1_000).then_some(ms * MS);
        pass(&mut builder, thread, ms, SPIN, cpu, RunState::Running);
        if ms % 1_000 == 0 {
            builder.cut();
        }
    }
    for ms in 5_001..=5_010 {
        pass(&mut builder, thread, ms, NEXT, Some(ms * MS), RunState::Running);
    }
    builder.finish()
}

#[test]
fn a_stack_that_stands_still_has_its_cpu_time() {
    let cpu = cpu_ms(&spins_then_continues(1, true), &whole());
    assert_eq!(cpu, BTreeMap::from([("app.exe:1".to_owned(), 4_999), ("app.exe:2".to_owned(), 10)]));
}

#[test]
fn in_version_1_0_the_next_function_does_not_get_it() {
    let cpu = cpu_ms(&spins_then_continues(0, false), &whole());
    assert_eq!(cpu, BTreeMap::from([("app.exe:1".to_owned(), 4_999), ("app.exe:2".to_owned(), 10)]));
}

#[test]
fn a_window_has_its_part_of_an_idle_spans_cpu_time() {
    let file = spins_then_continues(1, true);
    let spin = |from: u64, until: u64| {
        let (mut profile, runs) = profile_with(&file, &whole());
        let window = RunSelection::Span(from * 1_000_000, until * 1_000_000);
        let runs = part(&mut profile, &runs, window).unwrap();
        cpu_of(&profile, &runs)["app.exe:1"]
    };
    // It spins from 1 ms, its first sample, to 5,001 ms and uses 4,999 ms.
    assert_eq!(spin(2_500, 3_500), 999);
    assert_eq!(spin(4_900, 6_000), 100);
}

/// A thread that spins to the end of the recording.
fn spins_to_the_end(minor: u16, read: bool, state: RunState) -> Vec<u8> {
    let mut builder = builder(minor);
    let thread = builder.thread(0, 1, "", STACK);
    for ms in 1..=5_000 {
        let cpu = (read || ms <= 1_000).then_some(ms * MS);
        pass(&mut builder, thread, ms, SPIN, cpu, state);
        if ms % 1_000 == 0 {
            builder.cut();
        }
    }
    builder.finish()
}

#[test]
fn cpu_time_up_to_the_end_is_that_of_the_last_stack() {
    let file = spins_to_the_end(1, true, RunState::Running);
    assert_eq!(cpu_ms(&file, &whole())["app.exe:1"], 4_999);
    assert_eq!(profile(&file).0.losses.unread_ns, 0);
}

#[test]
fn a_reading_behind_a_threads_last_sample_counts() {
    let mut builder = builder(1);
    let thread = builder.thread(0, 1, "", STACK);
    for ms in 1..=10 {
        pass(&mut builder, thread, ms, NEXT, Some(ms * MS), RunState::Running);
    }
    builder.cut();
    builder.clock(thread, 30 * MS);
    builder.exit(30 * MS, thread);
    let file = builder.finish();
    assert_eq!(cpu_ms(&file, &whole())["app.exe:2"], 29);
}

#[test]
fn version_1_0_says_how_much_cpu_time_has_no_reading() {
    for (state, unread) in [(RunState::Running, 4_000), (RunState::Unknown, 4_000), (RunState::Waiting, 0)] {
        let file = spins_to_the_end(0, false, state);
        assert_eq!(cpu_ms(&file, &whole())["app.exe:1"], 999);
        let (profile, _) = profile(&file);
        assert_eq!(profile.losses.unread_ns / 1_000_000, unread, "{state:?}");
        let trace = Trace::read(&file, "unread.stk").unwrap();
        assert_eq!(unread_ns(&trace), profile.losses.unread_ns, "what stk info says");
    }
    assert_eq!(profile(&spins_then_continues(0, false)).0.losses.unread_ns, 0, "read in the end");
}

/// Random recordings: passes that find a thread as before or not, in few or many blocks, with
/// STATE blocks between, the clock read at all of them or at some.
#[test]
fn the_cpu_time_of_a_thread_is_the_sum_of_its_readings() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let mut builder = builder(1);
        let thread = builder.thread(0, 1, "", STACK);
        let (mut cpu, mut function, mut first, mut last) = (0, SPIN, None, 0);
        for ms in 1..=300 {
            cpu += random.below(MS as usize) as u64;
            if random.below(4) == 0 {
                function = random.below(4) as u32;
            }
            let read = first.is_none() || random.below(3) > 0;
            let state = RunState::from_code(random.below(3) as u64);
            pass(&mut builder, thread, ms, function, read.then_some(cpu), state);
            if read {
                first = first.or(Some(cpu));
                last = cpu;
            }
            match random.below(20) {
                0..3 => builder.cut(),
                3 => builder.state(),
                _ => {}
            }
        }
        let ends = random.below(2) == 0;
        if ends {
            cpu += 7;
            builder.clock(thread, cpu);
            last = cpu;
        }
        let (profile, runs) = profile(&builder.finish());
        let sum: u64 = runs_of(&profile, &runs, 1).iter().map(|run| run.cpu_ns).sum();
        assert_eq!(sum, 100 * (last - first.unwrap_or(0)), "seed {seed}");
    }
}

/// The CPU time of all threads, readings that were bounded, and what was left out, in milliseconds.
fn bounded(file: &[u8]) -> [u64; 3] {
    let (profile, runs) = profile(file);
    let cpu: u64 =
        [1, 2].into_iter().flat_map(|tid| runs_of(&profile, &runs, tid)).map(|run| run.cpu_ns).sum();
    [cpu / 1_000_000, profile.losses.clock_jumps, profile.losses.clock_excess_ns / 1_000_000]
}

#[test]
fn threads_use_no_more_than_the_processors_have() {
    let of = |processors: Option<&str>| {
        let mut builder = builder(1);
        if let Some(value) = processors {
            let fact = Metadata { key: b"cpu.count", value: value.as_bytes() };
            builder.meta(1000 * MS, &Event::Metadata(fact));
        }
        let threads = [1, 2].map(|tid| builder.thread(1000 * MS, tid, "", STACK));
        for ms in 1000..=1100 {
            for thread in threads {
                pass(&mut builder, thread, ms, SPIN, Some((ms - 1000) * MS), RunState::Running);
            }
        }
        bounded(&builder.finish())
    };
    // Each says 100 ms in 100 ms. One processor has those and a tick.
    assert_eq!([of(Some("2")), of(None), of(Some("0"))], [[200, 0, 0]; 3]);
    let [cpu, jumps, left_out] = of(Some("1"));
    assert_eq!((cpu, left_out), (120, 80));
    assert!(jumps > 0);
}

#[test]
fn a_clock_that_goes_back_takes_no_time_away() {
    let mut builder = builder(1);
    let thread = builder.thread(1000 * MS, 1, "", STACK);
    // Of samples that are the same, the trace has the sum alone.
    for (ms, function, cpu) in [(1000, SPIN, 50), (1010, NEXT, 60), (1020, SPIN, 5), (1030, NEXT, 15)] {
        pass(&mut builder, thread, ms, function, Some(cpu * MS), RunState::Running);
    }
    assert_eq!(bounded(&builder.finish()), [20, 1, 0]);
}

#[test]
fn a_system_clock_that_was_set_is_reported() {
    let set = |ms: i64| {
        let mut builder = builder(1);
        let thread = builder.thread(1000 * MS, 1, "", STACK);
        pass(&mut builder, thread, 1001, SPIN, None, RunState::Running);
        let utc = (2_000_000_000 + ms * 1_000_000) as u64;
        builder.meta(2000 * MS, &Event::Clock(Clock { time: Ticks(2000 * MS), utc }));
        profile(&builder.finish()).0.losses
    };
    assert_eq!([set(0).clock_set_ns, set(-400).clock_set_ns], [0; 2]);
    let back = set(-900);
    assert_eq!(back.clock_set_ns, -900_000_000);
    assert!(back.notes().iter().any(|note| note.contains("was set back by 900 ms")), "{:?}", back.notes());
    assert_eq!(set(3_600_000).clock_set_ns, 3_600_000_000_000);
}
