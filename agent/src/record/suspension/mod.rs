//! Decides who resumes a suspended thread: the sampler, the watchdog or the guard process. Each
//! suspension is resumed once.
//!
//! **What the caller provides**: the system's calls ([`Calls`]), one [`Suspensions`] for the
//! process, one thread per slot that captures, and a watchdog that calls [`SlotWatchdog::look`]
//! every few milliseconds.
//!
//! **What it solves**: the word of a suspension {thread id, sequence, phase} is on the
//! [board](stk_schema::guard) from before SuspendThread until after ResumeThread. Sampler and
//! watchdog change it by compare-and-swap only, and the winner calls ResumeThread:
//!
//! ```text
//! FREE -> ASKING -> ASKED -> STOPPED [-> WALKING] -> RESUMING -> FREE      the sampler
//!         any of these, after a limit -> RESCUING -> FREE                  the watchdog
//!         ASKING -> RESCUING -> UNDO -> RESUMING or RESCUING -> FREE       late SuspendThread
//!         RESUMING -> REFUSED -> FREE                                      ResumeThread is refused
//! ```
//!
//! In the third row, SuspendThread takes effect after the watchdog's ResumeThread. In the last row,
//! the sampler tries on, and the guard resumes the thread from outside. No thread is suspended
//! after that.
//!
//! A thread that is merely not scheduled can stay in ASKED for long, and its sample is still good,
//! so that phase has a limit of its own. After that limit a spare sampler takes over, if there is
//! one: the watchdog marks the slot as deposed before it frees the word. The deposed sampler gets
//! [`Verdict::Deposed`] and must then not touch what it shared with the others.

use core::sync::atomic::{AtomicBool, AtomicIsize, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

use stk_schema::Ticks;
use stk_schema::guard::{
    ASKED, ASKING, FREE, GUARD_VERSION, GuardBoard, REFUSED, RESCUING, RESUMING, SAMPLERS, STOPPED,
    SamplerSlot, SuspensionWord, UNDO, WALKING,
};

#[cfg(test)]
mod refusal_tests;
#[cfg(test)]
mod tests;
mod watch;
pub(crate) use watch::{Limits, Rescue, SlotWatchdog};

/// Spins on a word that the watchdog is about to change before the sampler sleeps between its
/// looks.
const SPINS: u32 = 200;
/// Milliseconds of each such sleep. The watchdog may run at a lower priority on the same processor.
const SETTLE_MS: u32 = 1;
/// Microseconds for which ResumeThread may be refused before the guard must help, and between two
/// calls.
const RESUME_US: u64 = 6_000;
const RETRY_US: u64 = 2_000;
/// Milliseconds between two calls while the guard is expected to resume the thread.
const RETRY_MS: u32 = 2;
/// Milliseconds between looks of a sampler that a test has frozen.
const FROZEN_MS: u32 = 1000;

/// System calls that both sides of a suspension need.
pub(crate) trait Resume {
    /// ResumeThread. Returns the suspend count before the call; `None` if the call failed.
    fn resume(&mut self, thread: isize) -> Option<u32>;

    /// Sleep. Never called by a sampler that holds a thread, unless ResumeThread was refused or a
    /// test freezes it.
    fn sleep(&mut self, milliseconds: u32);

    /// The clock, in microseconds. Not read while a thread is held, unless ResumeThread was
    /// refused.
    fn now_us(&mut self) -> u64;

    /// Lets another thread run that can, without the sleep's wait for the system's clock interrupt.
    fn yield_now(&mut self);
}

/// System calls that a sampler needs for one suspension.
pub(crate) trait Calls: Resume {
    /// Whether thread `tid` owns the loader lock and the PEB lock. Plain reads; takes no lock.
    fn owns_exit_locks(&mut self, tid: u32) -> bool;

    /// SuspendThread; false if it is refused.
    fn suspend(&mut self, thread: isize) -> bool;

    /// GetThreadContext: returns when the thread stands still, however long that takes. False if it
    /// fails.
    fn context(&mut self, thread: isize) -> bool;

    /// Copies the stack while `held` returns true; false if the copy is incomplete.
    fn copy(&mut self, held: &dyn Fn() -> bool) -> bool;

    /// Whether to walk the stack too.
    fn walks(&self) -> bool;

    /// Walks the stack while `held` returns true.
    fn walk(&mut self, held: &dyn Fn() -> bool);
}

/// How a suspension ended for its sampler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Context and stack are whole, and the walk, if one was made.
    Whole,
    /// Context and stack are whole; the watchdog resumed the thread during the walk.
    WalkLost,
    /// The thread could not be suspended, or no thread is suspended any more.
    Refused,
    /// The thread owned the loader lock and the PEB lock and was resumed.
    OwnsExitLocks,
    /// The context could not be read, or the watchdog resumed the thread while it stood still.
    NoContext,
    /// The thread did not stop in time and the watchdog resumed it; no spare sampler was left.
    NotStopped,
    /// As [`Verdict::NotStopped`], and a spare sampler has taken this one's place.
    Deposed,
}

/// [`SamplerSlot`] with atomic fields.
#[repr(C)]
struct LiveSamplerSlot {
    sampler: AtomicU32,
    reserved: u32,
    word: AtomicU64,
}

/// [`GuardBoard`] with atomic fields.
#[repr(C)]
struct LiveBoard {
    size: u32,
    version: u32,
    watchdog: AtomicU32,
    reserved: u32,
    samplers: [LiveSamplerSlot; SAMPLERS],
}

const _: () = {
    assert!(size_of::<LiveBoard>() == size_of::<GuardBoard>());
    assert!(size_of::<LiveSamplerSlot>() == size_of::<SamplerSlot>());
    assert!(core::mem::offset_of!(LiveBoard, samplers) == core::mem::offset_of!(GuardBoard, samplers));
    assert!(core::mem::offset_of!(LiveBoard, watchdog) == core::mem::offset_of!(GuardBoard, watchdog));
    assert!(core::mem::offset_of!(LiveSamplerSlot, word) == core::mem::offset_of!(SamplerSlot, word));
};

impl LiveSamplerSlot {
    const fn new() -> LiveSamplerSlot {
        LiveSamplerSlot { sampler: AtomicU32::new(0), reserved: 0, word: AtomicU64::new(0) }
    }

    fn word(&self) -> SuspensionWord {
        SuspensionWord(self.word.load(Ordering::Acquire))
    }

    /// Moves the suspension `from` to another phase; false if the other side has changed it.
    fn change(&self, from: SuspensionWord, phase: u8) -> bool {
        let to = from.with_phase(phase);
        self.word.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// State of a slot that only this process needs.
struct SlotState {
    /// Handle of the thread in the word.
    thread: AtomicIsize,
    /// A spare has taken this sampler's place.
    deposed: AtomicBool,
    /// The last thread that did not stop for this sampler; 0 = none.
    stuck: AtomicU32,
    /// When it may be sampled again, in ticks.
    stuck_until: AtomicU64,
    /// When it was requested to stop, in ticks, until [`Suspensions::take_missed`] has reported it;
    /// 0 = nothing to report.
    missed_since: AtomicU64,
}

impl SlotState {
    const fn new() -> SlotState {
        SlotState {
            thread: AtomicIsize::new(0),
            deposed: AtomicBool::new(false),
            stuck: AtomicU32::new(0),
            stuck_until: AtomicU64::new(0),
            missed_since: AtomicU64::new(0),
        }
    }
}

/// All suspensions of the recorder, at most one per sampler. It must live as long as the process,
/// because the guard reads it from outside.
pub(crate) struct Suspensions {
    board: LiveBoard,
    places: [SlotState; SAMPLERS],
    /// Fault injection: the phase in which samplers stop forever; [`FREE`] = none.
    frozen: AtomicU8,
    /// ResumeThread was refused for [`RESUME_US`] in this recording.
    resume_refused: AtomicBool,
}

impl Default for Suspensions {
    fn default() -> Suspensions {
        Suspensions::new()
    }
}

impl Suspensions {
    /// A board without suspensions.
    pub(crate) const fn new() -> Suspensions {
        Suspensions {
            board: LiveBoard {
                size: size_of::<GuardBoard>() as u32,
                version: GUARD_VERSION,
                watchdog: AtomicU32::new(0),
                reserved: 0,
                samplers: [const { LiveSamplerSlot::new() }; SAMPLERS],
            },
            places: [const { SlotState::new() }; SAMPLERS],
            frozen: AtomicU8::new(FREE),
            resume_refused: AtomicBool::new(false),
        }
    }

    /// Address of the [`GuardBoard`].
    pub(crate) fn board_address(&self) -> u64 {
        (&raw const self.board) as usize as u64
    }

    /// Makes the board ready for another recording. No thread of that recording may run yet.
    pub(crate) fn reset(&self) {
        self.frozen.store(FREE, Ordering::Relaxed);
        self.resume_refused.store(false, Ordering::Relaxed);
        for place in &self.places {
            place.deposed.store(false, Ordering::Relaxed);
            place.stuck.store(0, Ordering::Relaxed);
            place.missed_since.store(0, Ordering::Relaxed);
        }
        self.name_threads(0, [0; SAMPLERS]);
    }

    /// Publishes the thread ids of watchdog and samplers; 0 = none.
    pub(crate) fn name_threads(&self, watchdog: u32, samplers: [u32; SAMPLERS]) {
        for (slot, tid) in self.board.samplers.iter().zip(samplers) {
            slot.sampler.store(tid, Ordering::Release);
        }
        self.board.watchdog.store(watchdog, Ordering::Release);
    }

    /// Whether the system, or a hook, has refused to resume a thread. Then no thread is suspended
    /// any more.
    pub(crate) fn is_resume_refused(&self) -> bool {
        self.resume_refused.load(Ordering::Acquire)
    }

    /// ResumeThread was refused: from now on no thread is suspended.
    pub(crate) fn note_refusal(&self) {
        self.resume_refused.store(true, Ordering::Release);
    }

    /// Resumes a thread of the recorder that no suspension on the board names. False if that is
    /// refused, as for a thread on the board: then no thread is suspended any more.
    pub(crate) fn resume_own(&self, thread: isize, calls: &mut impl Resume) -> bool {
        let resumed = try_to_resume(thread, calls);
        if !resumed {
            self.note_refusal();
        }
        resumed
    }

    /// The slot of the sampler with this thread id.
    pub(crate) fn slot_of(&self, sampler: u32) -> Option<usize> {
        self.board
            .samplers
            .iter()
            .position(|slot| sampler != 0 && slot.sampler.load(Ordering::Relaxed) == sampler)
    }

    /// The word of a slot.
    #[cfg(test)]
    pub(crate) fn word(&self, slot: usize) -> SuspensionWord {
        self.board.samplers.get(slot).map_or(SuspensionWord(0), LiveSamplerSlot::word)
    }

    /// Fault injection: from now on, samplers stop forever in this phase, and the watchdog leaves
    /// them alone.
    pub(crate) fn freeze(&self, phase: u8) {
        self.frozen.store(phase, Ordering::Relaxed);
    }

    /// Whether thread `tid` did not stop lately and is left alone.
    pub(crate) fn leaves_alone(&self, tid: u32, now: Ticks) -> bool {
        self.places.iter().any(|place| {
            place.stuck.load(Ordering::Acquire) == tid && now.0 < place.stuck_until.load(Ordering::Relaxed)
        })
    }

    /// The call in which this slot's sampler was stuck has returned: its thread may be sampled
    /// again at `until`.
    pub(crate) fn returned(&self, slot: usize, until: Ticks) {
        if let Some(place) = self.places.get(slot) {
            place.stuck_until.store(until.0, Ordering::Relaxed);
        }
    }

    /// Thread id and time of the question of each thread that did not stop and that nobody has
    /// reported of yet.
    pub(crate) fn take_missed(&self) -> impl Iterator<Item = (u32, Ticks)> {
        self.places.iter().filter_map(|place| match place.missed_since.swap(0, Ordering::AcqRel) {
            0 => None,
            since => Some((place.stuck.load(Ordering::Relaxed), Ticks(since))),
        })
    }

    /// Suspends the thread with this handle and id, captures it with `calls`, and resumes it. At
    /// most one call at a time per slot.
    pub(crate) fn hold(&self, slot: usize, thread: isize, tid: u32, calls: &mut impl Calls) -> Verdict {
        if self.is_resume_refused() {
            return Verdict::Refused;
        }
        if calls.owns_exit_locks(tid) {
            return Verdict::OwnsExitLocks;
        }
        let (Some(live), Some(place)) = (self.board.samplers.get(slot), self.places.get(slot)) else {
            return Verdict::Refused;
        };
        Suspension { all: self, live, place, thread, word: announce(live, place, thread, tid) }.run(calls)
    }
}

/// Calls ResumeThread for [`RESUME_US`] at most; false if each call was refused.
fn try_to_resume(thread: isize, calls: &mut impl Resume) -> bool {
    calls.resume(thread).is_some() || retry_resume(thread, calls)
}

#[cold]
fn retry_resume(thread: isize, calls: &mut impl Resume) -> bool {
    // The thread stands still: a sleep of 2 ms could last 15.6 ms. A number of tries, since on a
    // loaded machine one yield can take all of that time.
    (0..RESUME_US / RETRY_US).any(|_| {
        let next = calls.now_us() + RETRY_US;
        while calls.now_us() < next {
            calls.yield_now();
        }
        calls.resume(thread).is_some()
    })
}

/// Publishes that a suspension begins.
fn announce(live: &LiveSamplerSlot, place: &SlotState, thread: isize, tid: u32) -> SuspensionWord {
    place.thread.store(thread, Ordering::Relaxed);
    let last = SuspensionWord(live.word.load(Ordering::Relaxed));
    let word = SuspensionWord::new(tid, last.sequence().wrapping_add(1), ASKING);
    live.word.store(word.0, Ordering::Release);
    // Others must see the word before the thread can stand still.
    fence(Ordering::SeqCst);
    word
}

/// The sampler's side of one suspension.
struct Suspension<'a> {
    all: &'a Suspensions,
    live: &'a LiveSamplerSlot,
    place: &'a SlotState,
    thread: isize,
    /// The word, in the last phase that this side set.
    word: SuspensionWord,
}

impl Suspension<'_> {
    fn run(mut self, calls: &mut impl Calls) -> Verdict {
        self.freeze_until_undo(calls);
        let suspended = calls.suspend(self.thread);
        if !suspended {
            return if self.enter(FREE) { Verdict::Refused } else { self.settle(calls, false) };
        }
        self.freeze(calls, &[ASKING]);
        self.freeze_in_undo(calls);
        // After SuspendThread returns, the thread runs no further than to its next interrupt, so
        // this check is final.
        if calls.owns_exit_locks(self.word.tid()) {
            return if self.resume(calls) { Verdict::OwnsExitLocks } else { self.settle(calls, true) };
        }
        if !self.enter(ASKED) {
            return self.settle(calls, true);
        }
        self.freeze(calls, &[ASKED]);
        let known = calls.context(self.thread);
        if !self.enter(STOPPED) {
            return self.settle(calls, true);
        }
        self.freeze(calls, &[STOPPED, RESCUING]);
        self.captured(known, calls)
    }

    /// Handles the stopped thread; `known` says whether its context was read.
    fn captured(&mut self, known: bool, calls: &mut impl Calls) -> Verdict {
        let whole = known && calls.copy(&self.held());
        let walks = whole && calls.walks() && self.enter(WALKING);
        if walks {
            self.freeze(calls, &[WALKING]);
            calls.walk(&self.held());
        }
        if self.resume(calls) {
            return if whole { Verdict::Whole } else { Verdict::NoContext };
        }
        self.settle(calls, true);
        // The capture made before the walk is whole, whatever happened to the walk.
        if walks { Verdict::WalkLost } else { Verdict::NoContext }
    }

    fn held(&self) -> impl Fn() -> bool {
        let (live, word) = (self.live, self.word);
        move || live.word() == word
    }

    fn enter(&mut self, phase: u8) -> bool {
        let mine = self.live.change(self.word, phase);
        if mine {
            self.word = self.word.with_phase(phase);
        }
        mine
    }

    /// Resumes the thread, unless the watchdog resumes it or has resumed it. Returns whether this
    /// side did.
    fn resume(&mut self, calls: &mut impl Calls) -> bool {
        if !self.enter(RESUMING) {
            return false;
        }
        self.freeze(calls, &[RESUMING]);
        if !try_to_resume(self.thread, calls) {
            self.ask_guard(calls);
        }
        while !self.enter(FREE) {
            // The watchdog found this sampler standing still before the call. A second ResumeThread
            // does nothing.
            self.wait_for_watchdog(calls);
            if self.live.word() != self.word {
                break;
            }
        }
        true
    }

    /// ResumeThread is refused: says so on the board, and tries again until it is not or until
    /// the guard or the watchdog has resumed the thread.
    #[cold]
    fn ask_guard(&mut self, calls: &mut impl Calls) {
        self.all.note_refusal();
        let rescuing = self.word.with_phase(RESCUING);
        while !self.enter(REFUSED) {
            self.wait_for_watchdog(calls);
            if ![self.word, rescuing].contains(&self.live.word()) {
                return;
            }
        }
        while self.live.word() == self.word && calls.resume(self.thread).is_none() {
            calls.sleep(RETRY_MS);
        }
    }

    /// Finishes a suspension whose word the watchdog has changed. If the watchdog's ResumeThread
    /// came before the suspension took effect, whichever side is second undoes the suspension. (If
    /// the target itself suspends the thread too, the suspend count ends up the same either way.)
    #[cold]
    fn settle(&mut self, calls: &mut impl Calls, suspended: bool) -> Verdict {
        let was = self.word.phase();
        self.wait_for_watchdog(calls);
        self.word = self.word.with_phase(UNDO);
        if suspended {
            self.resume(calls);
        } else {
            self.enter(FREE);
        }
        // The watchdog may be rescuing it once more.
        self.wait_for_watchdog(calls);
        if self.place.deposed.load(Ordering::Acquire) {
            return Verdict::Deposed;
        }
        if matches!(was, ASKING | ASKED) { Verdict::NotStopped } else { Verdict::NoContext }
    }

    fn wait_for_watchdog(&self, calls: &mut impl Calls) {
        let rescuing = self.word.with_phase(RESCUING);
        let mut spins = 0;
        while self.live.word() == rescuing {
            if spins < SPINS {
                spins += 1;
                core::hint::spin_loop();
            } else {
                calls.sleep(SETTLE_MS);
            }
        }
    }

    /// Fault injection: stops forever if one of `phases` is the frozen phase.
    fn freeze(&self, calls: &mut impl Calls, phases: &[u8]) {
        let frozen = || self.all.frozen.load(Ordering::Relaxed);
        while frozen() != FREE && phases.contains(&frozen()) {
            calls.sleep(FROZEN_MS);
        }
    }

    /// Fault injection for [`UNDO`]: waits to call SuspendThread until the watchdog has given the
    /// suspension up.
    fn freeze_until_undo(&self, calls: &mut impl Calls) {
        while self.all.frozen.load(Ordering::Relaxed) == UNDO && self.live.word().phase() != UNDO {
            calls.sleep(SETTLE_MS);
        }
    }

    /// Fault injection for [`UNDO`]: stops forever after that call. If the test began freezing
    /// during the call, the watchdog has not given the suspension up, and it continues.
    fn freeze_in_undo(&self, calls: &mut impl Calls) {
        if self.live.word().phase() == UNDO {
            self.freeze(calls, &[UNDO]);
        }
    }
}
