//! Tests the protocol with a fake system: the tests decide when threads stop, and move the clock.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;
use std::vec::Vec;
use stk_schema::Ticks;

use super::*;
use crate::record::held_times::HeldTimes;

pub(super) const TID: u32 = 400;
pub(super) const LIMITS: Limits = Limits { asked: Ticks(1000), stopped: Ticks(100), walking: Ticks(50) };

/// A barrier that the test opens.
#[derive(Default)]
pub(super) struct Door {
    open: Mutex<bool>,
    changed: Condvar,
}

impl Door {
    pub(super) fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.changed.notify_all();
    }

    pub(super) fn pass(&self) {
        let mut open = self.open.lock().unwrap();
        while !*open {
            open = self.changed.wait(open).unwrap();
        }
    }
}

/// One thread of the target, as the system sees it.
#[derive(Default)]
pub(super) struct FakeThread {
    /// Suspend count.
    pub(super) count: AtomicI32,
    /// SuspendThread takes effect once this is open.
    pub(super) suspend: Door,
    /// GetThreadContext returns once this is open.
    pub(super) context: Door,
    /// The copy ends once this is open.
    pub(super) copy: Door,
    owns_exit_locks_before: AtomicBool,
    owns_exit_locks_after: AtomicBool,
    pub(super) asked_to_suspend: AtomicUsize,
    asked_for_context: AtomicUsize,
    sleeps: AtomicUsize,
    /// The sampler's clock, in microseconds.
    pub(super) clock_us: AtomicU64,
    /// Calls of ResumeThread that are refused before one is not.
    pub(super) refusals: AtomicI32,
    /// The watchdog's ResumeThread returns once this is open.
    pub(super) rescue: Door,
}

impl FakeThread {
    /// A thread that stops at once.
    pub(super) fn obedient() -> Arc<FakeThread> {
        let thread = FakeThread::default();
        for door in [&thread.suspend, &thread.context, &thread.copy, &thread.rescue] {
            door.open();
        }
        Arc::new(thread)
    }

    pub(super) fn resume(&self) -> Option<u32> {
        if self
            .refusals
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| (left > 0).then_some(left - 1))
            .is_ok()
        {
            return None;
        }
        let lower = |count: i32| (count > 0).then_some(count - 1);
        let before = self.count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, lower);
        Some(before.unwrap_or(0) as u32)
    }

    pub(super) fn count(&self) -> i32 {
        self.count.load(Ordering::SeqCst)
    }
}

struct FakeSampler {
    thread: Arc<FakeThread>,
    walks: bool,
}

impl Resume for FakeSampler {
    fn resume(&mut self, _: isize) -> Option<u32> {
        self.thread.resume()
    }

    fn sleep(&mut self, _: u32) {
        self.thread.sleeps.fetch_add(1, Ordering::SeqCst);
        // Until the system's next clock interrupt.
        self.thread.clock_us.fetch_add(16_000, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(1));
    }

    fn now_us(&mut self) -> u64 {
        self.thread.clock_us.load(Ordering::SeqCst)
    }

    fn yield_now(&mut self) {
        self.thread.clock_us.fetch_add(100, Ordering::SeqCst);
    }
}

impl Calls for FakeSampler {
    fn owns_exit_locks(&mut self, _: u32) -> bool {
        let owns = match self.thread.count() {
            0 => &self.thread.owns_exit_locks_before,
            _ => &self.thread.owns_exit_locks_after,
        };
        owns.load(Ordering::SeqCst)
    }

    fn suspend(&mut self, _: isize) -> bool {
        self.thread.asked_to_suspend.fetch_add(1, Ordering::SeqCst);
        self.thread.suspend.pass();
        self.thread.count.fetch_add(1, Ordering::SeqCst);
        true
    }

    fn context(&mut self, _: isize) -> bool {
        self.thread.asked_for_context.fetch_add(1, Ordering::SeqCst);
        self.thread.context.pass();
        true
    }

    fn copy(&mut self, held: &dyn Fn() -> bool) -> bool {
        self.thread.copy.pass();
        held()
    }

    fn walks(&self) -> bool {
        self.walks
    }

    fn walk(&mut self, held: &dyn Fn() -> bool) {
        while held() {
            thread::yield_now();
        }
    }
}

pub(super) struct FakeWatchdog(pub(super) Arc<FakeThread>);

impl Resume for FakeWatchdog {
    fn resume(&mut self, _: isize) -> Option<u32> {
        let before = self.0.resume();
        self.0.rescue.pass();
        before
    }

    fn sleep(&mut self, _: u32) {
        thread::yield_now();
    }

    fn now_us(&mut self) -> u64 {
        panic!("the watchdog calls ResumeThread once a look");
    }

    fn yield_now(&mut self) {
        panic!("the watchdog calls ResumeThread once a look");
    }
}

pub(super) fn all() -> &'static Suspensions {
    std::boxed::Box::leak(std::boxed::Box::new(Suspensions::new()))
}

/// Lets `slot`'s sampler capture `target` on a separate thread.
pub(super) fn capture(
    all: &'static Suspensions,
    slot: usize,
    target: &Arc<FakeThread>,
    walks: bool,
) -> thread::JoinHandle<Verdict> {
    let mut calls = FakeSampler { thread: target.clone(), walks };
    thread::spawn(move || all.hold(slot, 1, TID, &mut calls))
}

fn wait_for(what: impl Fn() -> bool) {
    for _ in 0..30_000 {
        if what() {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("it never came to that");
}

pub(super) fn wait_for_phase(all: &Suspensions, slot: usize, phase: u8) {
    wait_for(|| all.word(slot).phase() == phase);
}

#[test]
fn a_thread_that_stops_is_captured_and_resumed_and_the_word_ends_free() {
    let (all, target) = (all(), FakeThread::obedient());
    for sequence in 1..4 {
        assert_eq!(capture(all, 0, &target, false).join().unwrap(), Verdict::Whole);
        assert_eq!(all.word(0), SuspensionWord::new(TID, sequence, FREE));
        assert_eq!(target.count(), 0);
    }
}

/// Between the stop and the resumption only the copy and the call that resumes take time: no sleep,
/// no yield, no other call. Prices of calls vary, as on a real system.
#[test]
fn a_thread_is_held_for_less_than_1_ms_beyond_the_systems_price() {
    struct PricedCalls<'a> {
        ns: u64,
        stopped: u64,
        price: u64,
        beyond: &'a HeldTimes,
    }
    impl Resume for PricedCalls<'_> {
        fn resume(&mut self, _: isize) -> Option<u32> {
            self.ns += self.price;
            self.beyond.add(self.ns - self.stopped - self.price);
            Some(1)
        }
        fn sleep(&mut self, milliseconds: u32) {
            self.ns += u64::from(milliseconds).next_multiple_of(16) * 1_000_000;
        }
        fn now_us(&mut self) -> u64 {
            self.ns / 1_000
        }
        fn yield_now(&mut self) {
            self.ns += 1_000_000;
        }
    }
    impl Calls for PricedCalls<'_> {
        fn owns_exit_locks(&mut self, _: u32) -> bool {
            false
        }
        fn suspend(&mut self, _: isize) -> bool {
            self.ns += self.price;
            true
        }
        fn context(&mut self, _: isize) -> bool {
            self.ns += self.price;
            self.stopped = self.ns;
            true
        }
        fn copy(&mut self, held: &dyn Fn() -> bool) -> bool {
            // 256 KB at 1 GB/s.
            self.ns += 256 << 10;
            held()
        }
        fn walks(&self) -> bool {
            false
        }
        fn walk(&mut self, _: &dyn Fn() -> bool) {}
    }
    let (all, beyond) = (all(), HeldTimes::default());
    for round in 0..5_000u64 {
        let price = 300 + round * round % 90_000;
        let mut calls = PricedCalls { ns: 0, stopped: 0, price, beyond: &beyond };
        assert_eq!(all.hold(0, 1, TID, &mut calls), Verdict::Whole);
    }
    let held = beyond.summary();
    assert!(0 < held.p50 && held.max < 1_000_000, "{held:?}");
}

#[test]
fn the_word_names_the_thread_from_before_the_suspension_until_after_the_resumption() {
    struct CheckedCalls<'a> {
        all: &'a Suspensions,
        phases: Vec<u8>,
    }
    impl CheckedCalls<'_> {
        fn note(&mut self) {
            assert_eq!(self.all.word(1).tid(), TID);
            self.phases.push(self.all.word(1).phase());
        }
    }
    impl Resume for CheckedCalls<'_> {
        fn resume(&mut self, _: isize) -> Option<u32> {
            self.note();
            Some(1)
        }
        fn sleep(&mut self, _: u32) {
            panic!("a sampler that holds a thread does not sleep");
        }
        fn now_us(&mut self) -> u64 {
            panic!("a sampler that holds a thread does not read the clock");
        }
        fn yield_now(&mut self) {
            panic!("a sampler that holds a thread does not yield");
        }
    }
    impl Calls for CheckedCalls<'_> {
        fn owns_exit_locks(&mut self, _: u32) -> bool {
            false
        }
        fn suspend(&mut self, _: isize) -> bool {
            self.note();
            true
        }
        fn context(&mut self, _: isize) -> bool {
            self.note();
            true
        }
        fn copy(&mut self, _: &dyn Fn() -> bool) -> bool {
            self.note();
            true
        }
        fn walks(&self) -> bool {
            true
        }
        fn walk(&mut self, _: &dyn Fn() -> bool) {
            self.note();
        }
    }
    let all = all();
    let mut calls = CheckedCalls { all, phases: Vec::new() };
    assert_eq!(all.hold(1, 1, TID, &mut calls), Verdict::Whole);
    assert_eq!(calls.phases, [ASKING, ASKED, STOPPED, WALKING, RESUMING]);
    assert_eq!(all.word(1).phase(), FREE);
}

#[test]
fn a_thread_that_owns_both_exit_locks_is_not_suspended() {
    let (all, target) = (all(), FakeThread::obedient());
    target.owns_exit_locks_before.store(true, Ordering::SeqCst);
    assert_eq!(capture(all, 0, &target, false).join().unwrap(), Verdict::OwnsExitLocks);
    assert_eq!(all.word(0), SuspensionWord(0), "no suspension was announced");
}

#[test]
fn a_thread_that_owns_both_exit_locks_after_suspension_is_resumed_at_once() {
    let (all, target) = (all(), FakeThread::obedient());
    target.owns_exit_locks_after.store(true, Ordering::SeqCst);
    assert_eq!(capture(all, 0, &target, false).join().unwrap(), Verdict::OwnsExitLocks);
    assert_eq!((target.count(), target.asked_for_context.load(Ordering::SeqCst)), (0, 0));
    assert_eq!(all.word(0).phase(), FREE);
}

#[test]
fn a_thread_that_is_merely_not_scheduled_keeps_its_sample() {
    let (all, target) = (all(), Arc::new(FakeThread::default()));
    target.suspend.open();
    target.copy.open();
    let sampler = capture(all, 0, &target, false);
    wait_for_phase(all, 0, ASKED);
    let (mut watch, mut watchdog) = (SlotWatchdog::default(), FakeWatchdog(target.clone()));
    for now in [0, 100, 500, 999] {
        assert_eq!(watch.look(all, 0, Ticks(now), &LIMITS, true, &mut watchdog), Rescue::None, "at {now}");
    }
    target.context.open();
    assert_eq!(sampler.join().unwrap(), Verdict::Whole);
}

#[test]
fn a_thread_that_does_not_stop_is_resumed_and_a_spare_samples_the_others() {
    let (all, target, other) = (all(), Arc::new(FakeThread::default()), FakeThread::obedient());
    target.suspend.open();
    target.rescue.open();
    let stuck = capture(all, 0, &target, false);
    wait_for(|| target.asked_for_context.load(Ordering::SeqCst) == 1);
    let (mut watch, mut watchdog) = (SlotWatchdog::default(), FakeWatchdog(target.clone()));
    assert_eq!(watch.look(all, 0, Ticks(5000), &LIMITS, true, &mut watchdog), Rescue::None);
    assert_eq!(watch.look(all, 0, Ticks(6000), &LIMITS, true, &mut watchdog), Rescue::Deposed);

    // The stuck sampler is still in its call: no thread is held, and the others are still captured.
    assert_eq!((all.word(0).phase(), target.count()), (FREE, 0));
    for _ in 0..100 {
        assert_eq!(capture(all, 1, &other, false).join().unwrap(), Verdict::Whole);
    }
    // It is reported once, with the time of the request, and left alone for as long as
    // the call lasts.
    assert_eq!(all.take_missed().collect::<Vec<_>>(), [(TID, Ticks(5000))]);
    assert_eq!(all.take_missed().count(), 0);
    assert!(all.leaves_alone(TID, Ticks(u64::MAX - 1)) && !all.leaves_alone(TID + 4, Ticks(6000)));

    target.context.open();
    assert_eq!(stuck.join().unwrap(), Verdict::Deposed);
    assert_eq!((all.word(0).phase(), target.count()), (FREE, 0));
    all.returned(0, Ticks(11_000));
    assert!(all.leaves_alone(TID, Ticks(10_999)) && !all.leaves_alone(TID, Ticks(11_000)));
}

#[test]
fn without_a_spare_the_thread_is_resumed_and_its_sampler_keeps_its_slot() {
    let (all, target) = (all(), Arc::new(FakeThread::default()));
    target.suspend.open();
    target.rescue.open();
    let stuck = capture(all, 0, &target, false);
    wait_for(|| target.asked_for_context.load(Ordering::SeqCst) == 1);
    let (mut watch, mut watchdog) = (SlotWatchdog::default(), FakeWatchdog(target.clone()));
    watch.look(all, 0, Ticks(0), &LIMITS, false, &mut watchdog);
    assert_eq!(watch.look(all, 0, Ticks(1000), &LIMITS, false, &mut watchdog), Rescue::NotStopped);
    assert_eq!(target.count(), 0);
    target.context.open();
    assert_eq!(stuck.join().unwrap(), Verdict::NotStopped);
    target.copy.open();
    assert_eq!(capture(all, 0, &target, false).join().unwrap(), Verdict::Whole);
}

#[test]
fn a_suspension_that_takes_effect_after_its_rescue_is_undone_by_the_sampler() {
    let (all, target) = (all(), Arc::new(FakeThread::default()));
    target.rescue.open();
    let late = capture(all, 0, &target, false);
    wait_for_phase(all, 0, ASKING);
    let (mut watch, mut watchdog) = (SlotWatchdog::default(), FakeWatchdog(target.clone()));
    watch.look(all, 0, Ticks(0), &LIMITS, true, &mut watchdog);
    assert_eq!(watch.look(all, 0, Ticks(1000), &LIMITS, true, &mut watchdog), Rescue::Deposed);
    assert_eq!((all.word(0).phase(), target.count()), (UNDO, 0));
    target.suspend.open();
    assert_eq!(late.join().unwrap(), Verdict::Deposed);
    assert_eq!((all.word(0).phase(), target.count()), (FREE, 0));
}

#[test]
fn a_suspension_that_takes_effect_after_its_rescue_is_undone_by_the_watchdog() {
    let (all, target) = (all(), Arc::new(FakeThread::default()));
    target.rescue.open();
    let late = capture(all, 0, &target, false);
    wait_for_phase(all, 0, ASKING);
    let (mut watch, mut watchdog) = (SlotWatchdog::default(), FakeWatchdog(target.clone()));
    watch.look(all, 0, Ticks(0), &LIMITS, false, &mut watchdog);
    watch.look(all, 0, Ticks(1000), &LIMITS, false, &mut watchdog);
    assert_eq!(all.word(0).phase(), UNDO);
    // The system call takes effect, but the sampler is not scheduled to notice it.
    target.count.store(1, Ordering::SeqCst);
    watch.look(all, 0, Ticks(1010), &LIMITS, false, &mut watchdog);
    watch.look(all, 0, Ticks(1110), &LIMITS, false, &mut watchdog);
    assert_eq!((all.word(0).phase(), target.count()), (FREE, 0));
    // The fake's own call would count a second time.
    target.count.store(-1, Ordering::SeqCst);
    target.suspend.open();
    assert_eq!(late.join().unwrap(), Verdict::NotStopped);
    assert_eq!(target.count(), 0);
}

#[test]
fn the_watchdog_resumes_the_thread_that_a_stuck_sampler_holds() {
    let (all, target) = (all(), Arc::new(FakeThread::default()));
    for door in [&target.suspend, &target.context, &target.rescue] {
        door.open();
    }
    let stuck = capture(all, 0, &target, false);
    wait_for_phase(all, 0, STOPPED);
    let (mut watch, mut watchdog) = (SlotWatchdog::default(), FakeWatchdog(target.clone()));
    watch.look(all, 0, Ticks(0), &LIMITS, true, &mut watchdog);
    assert_eq!(watch.look(all, 0, Ticks(99), &LIMITS, true, &mut watchdog), Rescue::None);
    assert_eq!(watch.look(all, 0, Ticks(100), &LIMITS, true, &mut watchdog), Rescue::WhileStopped);
    assert_eq!(target.count(), 0);
    target.copy.open();
    assert_eq!(stuck.join().unwrap(), Verdict::NoContext, "not deposed: it stays the sampler");
    assert_eq!(target.count(), 0);
}

#[test]
fn only_the_walk_is_lost_when_it_takes_too_long() {
    let (all, target) = (all(), FakeThread::obedient());
    let walking = capture(all, 0, &target, true);
    wait_for_phase(all, 0, WALKING);
    let (mut watch, mut watchdog) = (SlotWatchdog::default(), FakeWatchdog(target.clone()));
    watch.look(all, 0, Ticks(0), &LIMITS, true, &mut watchdog);
    assert_eq!(watch.look(all, 0, Ticks(50), &LIMITS, true, &mut watchdog), Rescue::WhileWalking);
    assert_eq!(walking.join().unwrap(), Verdict::WalkLost);
    assert_eq!(target.count(), 0);
}

/// On one processor, a sampler that spins at a higher priority would keep the watchdog from
/// running.
#[test]
fn a_sampler_that_waits_for_the_watchdog_sleeps() {
    let (all, target) = (all(), Arc::new(FakeThread::default()));
    target.suspend.open();
    let sampler = capture(all, 0, &target, false);
    wait_for(|| target.asked_for_context.load(Ordering::SeqCst) == 1);
    let (mut watch, mut watchdog) = (SlotWatchdog::default(), FakeWatchdog(target.clone()));
    watch.look(all, 0, Ticks(0), &LIMITS, false, &mut watchdog);
    let rescue = thread::spawn(move || watch.look(all, 0, Ticks(1000), &LIMITS, false, &mut watchdog));
    wait_for_phase(all, 0, RESCUING);
    target.context.open();
    wait_for(|| target.sleeps.load(Ordering::SeqCst) > 3);
    target.rescue.open();
    assert_eq!(rescue.join().unwrap(), Rescue::NotStopped);
    assert_eq!(sampler.join().unwrap(), Verdict::NotStopped);
    assert_eq!(target.count(), 0);
}

#[test]
fn a_frozen_sampler_stays_in_each_phase_and_the_watchdog_leaves_it_alone() {
    for phase in [ASKING, ASKED, STOPPED, UNDO, WALKING, RESUMING] {
        let (all, target) = (all(), FakeThread::obedient());
        all.freeze(phase);
        let sampler = capture(all, 0, &target, phase == WALKING);
        let (mut watch, mut watchdog) = (SlotWatchdog::default(), FakeWatchdog(target.clone()));
        if phase == UNDO {
            wait_for_phase(all, 0, ASKING);
            watch.look(all, 0, Ticks(1), &LIMITS, true, &mut watchdog);
            watch.look(all, 0, Ticks(1001), &LIMITS, true, &mut watchdog);
        }
        wait_for(|| all.word(0).phase() == phase && target.count() == 1);
        for now in [2000, 10_000, 20_000] {
            assert_eq!(watch.look(all, 0, Ticks(now), &LIMITS, true, &mut watchdog), Rescue::None);
        }
        assert_eq!((all.word(0).phase(), target.count()), (phase, 1));
        all.freeze(FREE);
        if phase == WALKING {
            watch.look(all, 0, Ticks(30_000), &LIMITS, true, &mut watchdog);
        }
        sampler.join().unwrap();
        assert_eq!((all.word(0).phase(), target.count()), (FREE, 0));
    }
}

#[test]
fn a_suspension_continues_if_freezing_in_undo_begins_during_its_call() {
    let (all, target) = (all(), Arc::new(FakeThread::default()));
    for door in [&target.context, &target.copy] {
        door.open();
    }
    let sampler = capture(all, 0, &target, false);
    wait_for(|| target.asked_to_suspend.load(Ordering::SeqCst) == 1);
    all.freeze(UNDO);
    target.suspend.open();
    assert_eq!(sampler.join().unwrap(), Verdict::Whole);
    assert_eq!((all.word(0).phase(), target.count()), (FREE, 0));
}

/// Sampler and watchdog race in all phases. Whichever wins, each suspension is undone once.
#[test]
fn every_suspension_is_undone_once_whichever_side_wins() {
    let (all, target) = (all(), FakeThread::obedient());
    let done = AtomicBool::new(false);
    let mut outcomes = [0u32; 2];
    thread::scope(|scope| {
        scope.spawn(|| {
            let none = Limits { asked: Ticks(0), stopped: Ticks(0), walking: Ticks(0) };
            let (mut watch, mut watchdog) = (SlotWatchdog::default(), FakeWatchdog(target.clone()));
            let mut now = 0;
            while !done.load(Ordering::SeqCst) {
                now += 1;
                watch.look(all, 0, Ticks(now), &none, false, &mut watchdog);
                if now % 7 == 0 {
                    thread::yield_now();
                }
            }
        });
        // Runs until the watchdog has won often, however the two are scheduled.
        let mut round = 0;
        while outcomes.iter().any(|count| *count < 300) {
            round += 1;
            let mut calls = FakeSampler { thread: target.clone(), walks: round % 5 == 0 };
            let verdict = all.hold(0, 1, TID, &mut calls);
            outcomes[usize::from(verdict == Verdict::Whole)] += 1;
            // The word is free and the sampler has returned: no thread is held.
            assert_eq!((all.word(0).phase(), target.count()), (FREE, 0), "{verdict:?}");
        }
        done.store(true, Ordering::SeqCst);
    });
}

#[test]
fn the_board_lists_the_watchdog_and_the_samplers() {
    let all = all();
    all.name_threads(8, [12, 16, 20]);
    // SAFETY: the board, of which only the words change; nothing changes them here.
    let board = unsafe { (all.board_address() as usize as *const GuardBoard).read() };
    assert_eq!((board.size as usize, board.version), (size_of::<GuardBoard>(), GUARD_VERSION));
    assert_eq!((board.watchdog, board.samplers.map(|slot| slot.sampler)), (8, [12, 16, 20]));
    assert_eq!((all.slot_of(16), all.slot_of(24)), (Some(1), None));
    all.reset();
    assert_eq!((all.slot_of(16), all.slot_of(0)), (None, None), "0 is no thread");
}
