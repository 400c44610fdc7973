//! A system, or a hook, that refuses to resume threads.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use stk_schema::Ticks;

use super::tests::{FakeThread, FakeWatchdog, LIMITS, TID, all, capture, wait_for_phase};
use super::*;

#[test]
fn a_resumption_that_is_refused_at_first_is_tried_again() {
    let (all, target) = (all(), FakeThread::obedient());
    target.refusals.store(3, Ordering::SeqCst);
    assert_eq!(capture(all, 0, &target, false).join().unwrap(), Verdict::Whole);
    assert_eq!((target.count(), all.word(0).phase()), (0, FREE));
    assert!(!all.is_resume_refused());
}

/// The time is the clock's: a sleep of 2 ms can last 15.6 ms, and the thread stands still.
#[test]
fn the_guard_is_needed_after_6_ms_by_a_coarse_clock() {
    let (all, target) = (all(), FakeThread::obedient());
    target.refusals.store(4, Ordering::SeqCst);
    assert_eq!(capture(all, 0, &target, false).join().unwrap(), Verdict::Whole);
    assert!(all.is_resume_refused());
    let held = target.clock_us.load(Ordering::SeqCst);
    assert!((RESUME_US..=RESUME_US + 100).contains(&held), "{held} us");
}

#[test]
fn a_thread_whose_resumption_is_refused_is_left_to_the_guard_and_none_is_suspended_after_it() {
    let (all, target) = (all(), FakeThread::obedient());
    target.refusals.store(i32::MAX, Ordering::SeqCst);
    let sampler = capture(all, 0, &target, false);
    wait_for_phase(all, 0, REFUSED);
    assert_eq!((target.count(), all.word(0).tid()), (1, TID));
    assert!(all.is_resume_refused());
    // The watchdog cannot resume the thread either, and leaves the word to the guard.
    let (mut watch, mut watchdog) = (SlotWatchdog::default(), FakeWatchdog(target.clone()));
    for time in [0, 5_000] {
        assert_eq!(watch.look(all, 0, Ticks(time), &LIMITS, true, &mut watchdog), Rescue::None);
    }
    let other = FakeThread::obedient();
    assert_eq!(capture(all, 1, &other, false).join().unwrap(), Verdict::Refused);
    assert_eq!(other.asked_to_suspend.load(Ordering::SeqCst), 0);
    // The guard resumes the thread from outside and frees the word.
    target.count.store(0, Ordering::SeqCst);
    all.board.samplers[0].word.store(all.word(0).with_phase(FREE).0, Ordering::SeqCst);
    assert_eq!(sampler.join().unwrap(), Verdict::Whole);
    assert_eq!((target.count(), all.word(0).phase()), (0, FREE));
}

#[test]
fn a_resumption_that_is_refused_for_long_succeeds_without_a_guard_when_it_is_not_refused_any_more() {
    let (all, target) = (all(), FakeThread::obedient());
    target.refusals.store(24, Ordering::SeqCst);
    assert_eq!(capture(all, 0, &target, false).join().unwrap(), Verdict::Whole);
    assert_eq!((target.count(), all.word(0).phase()), (0, FREE));
    assert!(all.is_resume_refused(), "it was refused too often to continue");
}

#[test]
fn a_rescue_that_is_refused_leaves_the_thread_to_its_sampler_and_is_tried_again() {
    let (all, target) = (all(), Arc::new(FakeThread::default()));
    target.suspend.open();
    target.context.open();
    target.rescue.open();
    target.refusals.store(1, Ordering::SeqCst);
    let sampler = capture(all, 0, &target, false);
    wait_for_phase(all, 0, STOPPED);
    let (mut watch, mut watchdog) = (SlotWatchdog::default(), FakeWatchdog(target.clone()));
    assert_eq!(watch.look(all, 0, Ticks(0), &LIMITS, true, &mut watchdog), Rescue::None);
    assert_eq!(watch.look(all, 0, Ticks(100), &LIMITS, true, &mut watchdog), Rescue::Refused);
    assert_eq!((target.count(), all.word(0).phase()), (1, STOPPED));
    watch.look(all, 0, Ticks(101), &LIMITS, true, &mut watchdog);
    assert_eq!(watch.look(all, 0, Ticks(300), &LIMITS, true, &mut watchdog), Rescue::WhileStopped);
    assert_eq!((target.count(), all.word(0).phase()), (0, FREE));
    target.copy.open();
    assert_eq!(sampler.join().unwrap(), Verdict::NoContext);
    assert_eq!(target.count(), 0);
}

/// A thread whose sampler stands still in ResumeThread, as in a hook that waits there.
#[test]
fn three_slow_resumptions_in_a_row_are_reported() {
    struct Slow(Arc<FakeThread>);
    impl Resume for Slow {
        fn resume(&mut self, _: isize) -> Option<u32> {
            let before = self.0.resume();
            self.0.rescue.pass();
            before
        }
        fn sleep(&mut self, _: u32) {}
        fn now_us(&mut self) -> u64 {
            0
        }
        fn yield_now(&mut self) {}
    }
    impl Calls for Slow {
        fn owns_exit_locks(&mut self, _: u32) -> bool {
            false
        }
        fn suspend(&mut self, _: isize) -> bool {
            self.0.count.fetch_add(1, Ordering::SeqCst);
            true
        }
        fn context(&mut self, _: isize) -> bool {
            true
        }
        fn copy(&mut self, _: &dyn Fn() -> bool) -> bool {
            true
        }
        fn walks(&self) -> bool {
            false
        }
        fn walk(&mut self, _: &dyn Fn() -> bool) {}
    }
    let (all, mut watch, mut time) = (all(), SlotWatchdog::default(), 0);
    let mut suspend = |slow: bool| {
        let target = Arc::new(FakeThread::default());
        if !slow {
            target.rescue.open();
        }
        let mut calls = Slow(target.clone());
        let sampler = std::thread::spawn(move || all.hold(0, 1, TID, &mut calls));
        let mut rescue = Rescue::None;
        if slow {
            wait_for_phase(all, 0, RESUMING);
            let mut watchdog = FakeWatchdog(FakeThread::obedient());
            watch.look(all, 0, Ticks(time), &LIMITS, true, &mut watchdog);
            rescue = watch.look(all, 0, Ticks(time + 100), &LIMITS, true, &mut watchdog);
            target.rescue.open();
        }
        time += 1_000;
        assert_eq!(sampler.join().unwrap(), Verdict::Whole);
        assert_eq!(all.word(0).phase(), FREE);
        rescue
    };
    let rescues: [Rescue; 7] = [true, true, false, true, true, true, true].map(&mut suspend);
    let none = Rescue::None;
    assert_eq!(rescues, [none, none, none, none, none, Rescue::ResumeSlow, Rescue::ResumeSlow]);
}
