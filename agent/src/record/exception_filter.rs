//! Which exceptions are recorded (`--trigger exception`, `--trigger breakpoint`), and how many a
//! second. Asked on the thread that raised one: no allocation, no lock, no loop without a bound.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use stk_schema::Ticks;
use stk_schema::options::MAX_CODES;

/// STATUS_BREAKPOINT, and the one of a 32-bit program on a 64-bit system.
const BREAKPOINTS: [u32; 2] = [0x8000_0003, 0x4000_001f];
/// Codes with these bits are errors: the system's faults, C++'s and .NET's exceptions.
const ERROR: u32 = 0xc000_0000;

/// The exceptions to record.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExceptionFilter {
    errors: bool,
    breakpoints: bool,
    codes: [u32; MAX_CODES],
    count: usize,
}

impl ExceptionFilter {
    /// Every exception that is an error.
    pub(crate) fn add_errors(&mut self) {
        self.errors = true;
    }

    /// Breakpoints.
    pub(crate) fn add_breakpoints(&mut self) {
        self.breakpoints = true;
    }

    /// Exceptions with this code. False if there is no room for more codes.
    pub(crate) fn add_code(&mut self, code: u32) -> bool {
        let Some(place) = self.codes.get_mut(self.count) else { return false };
        *place = code;
        self.count += 1;
        true
    }

    /// Whether nothing is recorded.
    pub(crate) fn is_empty(&self) -> bool {
        !self.errors && !self.breakpoints && self.count == 0
    }

    /// Whether exceptions with this code are recorded.
    pub(crate) fn takes(&self, code: u32) -> bool {
        self.errors && code & ERROR == ERROR
            || self.breakpoints && BREAKPOINTS.contains(&code)
            || self.codes.iter().take(self.count).any(|&one| one == code)
    }
}

/// Threads that are in the handler of exceptions now, each at most once.
pub(crate) struct InHandler<const AT_ONCE: usize>([AtomicU32; AT_ONCE]);

impl<const AT_ONCE: usize> InHandler<AT_ONCE> {
    /// None.
    pub(crate) const fn new() -> InHandler<AT_ONCE> {
        InHandler([const { AtomicU32::new(0) }; AT_ONCE])
    }

    /// Thread `tid` enters; false if it is within, or if there is no room.
    pub(crate) fn enter(&self, tid: u32) -> bool {
        let free = |place: &AtomicU32| place.compare_exchange(0, tid, Ordering::AcqRel, Ordering::Relaxed);
        !self.0.iter().any(|place| place.load(Ordering::Acquire) == tid)
            && self.0.iter().any(|place| free(place).is_ok())
    }

    /// Thread `tid` leaves.
    pub(crate) fn leave(&self, tid: u32) {
        let left = |place: &AtomicU32| place.compare_exchange(tid, 0, Ordering::AcqRel, Ordering::Relaxed);
        // It is in one place at most.
        let _ = self.0.iter().any(|place| left(place).is_ok());
    }

    /// A recording begins: forgets threads that were terminated within. The system gives their ids
    /// to other threads.
    pub(crate) fn forget(&self) {
        self.0.iter().for_each(|place| place.store(0, Ordering::Release));
    }
}

/// Lets at most so many through in each second.
#[derive(Debug)]
pub(crate) struct RateLimit {
    most: u64,
    ticks_per_second: u64,
    /// The second that is counted, and how many came in it.
    second: AtomicU64,
    count: AtomicU64,
}

impl RateLimit {
    pub(crate) fn new(most: u64, ticks_per_second: u64) -> RateLimit {
        let (second, count) = (AtomicU64::new(u64::MAX), AtomicU64::new(0));
        RateLimit { most, ticks_per_second: ticks_per_second.max(1), second, count }
    }

    /// Whether one at `now` may pass. Threads that meet in the moment in which a second begins may
    /// let a few more through.
    pub(crate) fn admits(&self, now: Ticks) -> bool {
        let second = now.0 / self.ticks_per_second;
        if self.second.swap(second, Ordering::AcqRel) != second {
            self.count.store(0, Ordering::Release);
        }
        self.count.fetch_add(1, Ordering::AcqRel) < self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_terminated_in_the_handler_is_forgotten_by_the_next() {
        let within = InHandler::<2>::new();
        assert!(within.enter(7) && !within.enter(7), "an exception within the handler");
        // Thread 7 is terminated there; a later thread gets its id.
        within.forget();
        assert!(within.enter(7));
        within.leave(7);
        assert!(within.enter(8) && within.enter(9) && !within.enter(10), "no room");
        // A thread that was within as the recording began takes no other's place.
        within.leave(7);
        assert!(!within.enter(8) && !within.enter(9));
    }

    #[test]
    fn all_exceptions_are_the_errors_and_neither_breakpoints_nor_messages() {
        let mut filter = ExceptionFilter::default();
        assert!(filter.is_empty() && !filter.takes(0xc000_0005));
        filter.add_errors();
        // Access violation, stack overflow, C++, .NET.
        for code in [0xc000_0005, 0xc000_00fd, 0xe06d_7363, 0xe043_4352] {
            assert!(filter.takes(code), "{code:x}");
        }
        // Breakpoint, single step, guard page, debug text, a thread's name.
        for code in [0x8000_0003, 0x8000_0004, 0x8000_0001, 0x4001_0006, 0x406d_1388] {
            assert!(!filter.takes(code), "{code:x}");
        }
    }

    #[test]
    fn codes_and_breakpoints_are_taken_alone() {
        let mut filter = ExceptionFilter::default();
        filter.add_breakpoints();
        assert!(filter.takes(0x8000_0003) && filter.takes(0x4000_001f) && !filter.takes(0xc000_0005));
        for code in 0..MAX_CODES as u32 {
            assert!(filter.add_code(0x1000 + code));
        }
        assert!(!filter.add_code(1) && !filter.takes(1));
        assert!(filter.takes(0x1000) && filter.takes(0x100f) && !filter.takes(0));
    }

    #[test]
    fn so_many_pass_in_each_second() {
        let limit = RateLimit::new(3, 1000);
        let passed = |from: u64| (0..10).filter(|n| limit.admits(Ticks(from + n))).count();
        assert_eq!((passed(5000), passed(5100), passed(6000)), (3, 0, 3));
    }
}
