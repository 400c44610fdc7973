//! Figures of the sampler without the system's calls, which a fake process answers at once. With
//! STK_LONG they are printed, for docs/measured/recorder.md; times are not asserted. Run them alone
//! and optimised: `STK_LONG=1 cargo test --release -p stk-agent --lib figures -- --nocapture`.

use std::hint::black_box;
use std::time::Instant;

use super::*;
use crate::record::stack_bounds::{Bounds, CheckedBounds, Pages, Run, plan};
use crate::record::suspension::{Calls, Resume, Suspensions, Verdict};
use stk_tests::wine::{long, measured};

/// Bytes of the stacks.
const STACK: usize = 8 << 10;
/// The best of so many pieces of work is reported: the machine may be loaded.
const BEST_OF: u64 = 200;

/// 60 threads wait, four run in every pass with another leaf of their stack.
#[test]
fn of_sixty_four_threads_those_that_wait_are_not_suspended() {
    const THREADS: u64 = 64;
    const BUSY: u64 = 4;
    const SETTLED: u64 = 100;
    const PASSES: u64 = 100;
    let mut rig = Rig::new(4);
    for thread in 0..THREADS {
        rig.add(thread, STACK / 8);
        rig.thread(thread, |fake| (fake.cycles, fake.capture_cycles) = (Some(7), 12_000));
    }
    let pieces = if long() { BEST_OF } else { 2 };
    let mut ms = 0;
    let mut run = |rig: &mut Rig, busy: u64, passes: u64| {
        let start = Instant::now();
        let mut beside = start.elapsed();
        for _ in 0..passes {
            let work = Instant::now();
            for thread in 0..busy {
                rig.thread(thread, |fake| {
                    fake.cycles = fake.cycles.map(|cycles| cycles + 1_000_000);
                    fake.stack[..64].fill(ms as u8);
                });
            }
            beside += work.elapsed();
            rig.pass(ms);
            ms += 1;
        }
        let passed = start.elapsed() - beside;
        rig.write();
        passed.as_secs_f64() * 1e6 / passes as f64
    };
    run(&mut rig, BUSY, SETTLED);
    let captures = |rig: &Rig| -> u32 {
        rig.world.borrow().threads.range(BUSY..).map(|(_, thread)| thread.captures).sum()
    };
    let before = captures(&rig);
    let best = |run: &mut dyn FnMut() -> f64| (0..pieces).map(|_| run()).fold(f64::MAX, f64::min);
    let mixed = best(&mut || run(&mut rig, BUSY, PASSES));
    let idle = best(&mut || run(&mut rig, 0, PASSES));
    assert_eq!(captures(&rig), before, "a thread that waits was suspended");
    let samples = rig.counters.samples.load(Ordering::Relaxed);
    assert_eq!(samples, THREADS * (SETTLED + 2 * pieces * PASSES), "a sample is missing");
    measured(&format!(
        "64 threads at 1 kHz, without the system's calls, best of {pieces} × {PASSES} passes: all wait {:.2} % of a core \
         ({idle:.1} µs a pass), 60 wait and 4 run {:.2} % ({mixed:.1} µs)",
        idle / 10.0,
        mixed / 10.0,
    ));
}

/// Eight threads run one of ten milliseconds each, in turn, for a minute of the fake
/// clock.
#[test]
fn of_eight_threads_that_run_a_tenth_of_the_time_no_sample_is_lost() {
    const THREADS: u64 = 8;
    const PASSES: u64 = 60_000;
    let mut rig = Rig::new(4);
    // What a look costs the sampler on a Windows: a microsecond or two.
    rig.world.borrow_mut().look_cpu = 2;
    for thread in 0..THREADS {
        rig.add(thread, STACK / 8);
        rig.thread(thread, |fake| (fake.cycles, fake.capture_cycles) = (Some(7), 12_000));
    }
    for ms in 0..PASSES {
        for thread in (0..THREADS).filter(|thread| (ms + thread) % 10 == 0) {
            rig.thread(thread, |fake| {
                fake.cycles = fake.cycles.map(|cycles| cycles + 1_000_000);
                fake.stack[..256].fill((ms / 10) as u8);
            });
        }
        rig.pass(ms);
        rig.write();
        rig.world.borrow_mut().looks.clear();
    }
    let samples = rig.counters.samples.load(Ordering::Relaxed);
    assert_eq!(rig.counters.dropped.load(Ordering::Relaxed), 0);
    assert_eq!(samples, THREADS * PASSES);
    let suspended: u32 = rig.world.borrow().threads.values().map(|thread| thread.captures).sum();
    measured(&format!(
        "8 threads at 10 % each, 60 s at 1 kHz: {samples} samples, {suspended} suspensions, 0 dropped"
    ));
}

/// A thread that stands still at once, and its stack.
struct Still<'a> {
    stack: &'a [u8],
    checked: CheckedBounds,
    into: &'a mut [u8],
}

impl Resume for Still<'_> {
    fn resume(&mut self, _: isize) -> Option<u32> {
        Some(1)
    }

    fn sleep(&mut self, _: u32) {}

    fn now_us(&mut self) -> u64 {
        0
    }

    fn yield_now(&mut self) {}
}

impl Calls for Still<'_> {
    fn owns_exit_locks(&mut self, _: u32) -> bool {
        false
    }

    fn suspend(&mut self, _: isize) -> bool {
        true
    }

    fn context(&mut self, _: isize) -> bool {
        true
    }

    fn copy(&mut self, held: &dyn Fn() -> bool) -> bool {
        let seen = Bounds { limit: STACK_BASE - self.stack.len() as u64, base: STACK_BASE };
        let plan = plan(seen.limit, seen, &self.checked, self.into.len(), 8);
        if plan.plain != self.stack.len() || !held() {
            return false;
        }
        black_box(&mut self.into[..plan.plain]).copy_from_slice(black_box(self.stack));
        true
    }

    fn walks(&self) -> bool {
        false
    }

    fn walk(&mut self, _: &dyn Fn() -> bool) {}
}

/// One run of committed memory.
struct Committed;

impl Pages for Committed {
    fn run(&self, _: u64) -> Option<Run> {
        Some(Run { end: STACK_BASE, allocation: 1, readable: true })
    }
}

/// All that the sampler does from SuspendThread to ResumeThread, for a stack of 8 KB: the board's
/// words, the plan of the copy and the copy.
#[test]
fn a_suspension_copies_the_stack_and_reports_its_own_work() {
    const ROUNDS: u32 = 1_000;
    let all = Suspensions::new();
    let stack = vec![7; STACK];
    let mut copied = vec![0; MAX_STACK];
    let mut checked = CheckedBounds::default();
    checked.check(&Committed, Bounds { limit: STACK_BASE - STACK as u64, base: STACK_BASE });
    let pieces = if long() { BEST_OF } else { 2 };
    let mut best = f64::MAX;
    for _ in 0..pieces {
        let start = Instant::now();
        for _ in 0..ROUNDS {
            let mut calls = Still { stack: &stack, checked, into: &mut copied };
            assert_eq!(all.hold(0, 1, 400, &mut calls), Verdict::Whole);
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS));
    }
    assert_eq!(copied[..STACK], stack);
    measured(&format!(
        "the recorder's own work between SuspendThread and ResumeThread, 8 KB: {best:.2} µs (best of {pieces} × {ROUNDS})"
    ));
}
