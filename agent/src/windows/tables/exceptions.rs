//! Exceptions that the handler (`session::exceptions`) has seen, until the tables thread writes
//! them. The ring is preallocated; the thread that raised one takes no lock and does not wait.

use alloc::boxed::Box;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use stk_schema::Ticks;
use stk_schema::event::{Event, Exception};

use super::TablesRecorder;
use crate::record::modules::Events;
use crate::record::queue::Queue;
use crate::windows::shared::state::note_flight_trigger;
use crate::windows::system::api::ticks;

/// Most exceptions that wait.
const RING: usize = 256;

/// An exception that waits to be written, with its thread's id for the instance.
pub(crate) struct SeenException {
    pub tid: u32,
    /// What is written; the thread's instance is not known yet.
    pub event: Exception,
}

static SEEN: AtomicPtr<Queue<SeenException>> = AtomicPtr::new(null_mut());

/// Makes the ring, once per process, and forgets exceptions of an earlier recording.
pub(crate) fn prepare() {
    if SEEN.load(Ordering::Acquire).is_null() {
        SEEN.store(Box::into_raw(Box::new(Queue::new(RING))), Ordering::Release);
    }
    while next().or_else(next_overflow).is_some() {}
}

/// Leaves an exception. False if the ring is full.
pub(crate) fn leave(seen: SeenException) -> bool {
    // SAFETY: null or a box that is never freed.
    unsafe { SEEN.load(Ordering::Acquire).as_ref() }.is_some_and(|ring| ring.push(seen).is_ok())
}

fn next() -> Option<SeenException> {
    // SAFETY: null or a box that is never freed.
    unsafe { SEEN.load(Ordering::Acquire).as_ref() }?.pop()
}

/// A stack overflow that waits to be written. Its thread has a page of stack left, so what it
/// leaves here takes no call that needs much.
struct OverflowPlace {
    /// [`FREE`], [`FILLING`] or [`READY`].
    state: AtomicU32,
    tid: AtomicU32,
    time: AtomicU64,
    address: AtomicU64,
}

const FREE: u32 = 0;
const FILLING: u32 = 1;
const READY: u32 = 2;
/// Most stack overflows that wait.
const OVERFLOW_PLACES: usize = 4;
/// STATUS_STACK_OVERFLOW.
pub(crate) const STACK_OVERFLOW: u32 = 0xc000_00fd;

static OVERFLOWS: [OverflowPlace; OVERFLOW_PLACES] = [const {
    OverflowPlace {
        state: AtomicU32::new(FREE),
        tid: AtomicU32::new(0),
        time: AtomicU64::new(0),
        address: AtomicU64::new(0),
    }
}; OVERFLOW_PLACES];

/// Leaves a stack overflow of thread `tid` at `address`. Does nothing if too many wait.
pub(crate) fn leave_overflow(tid: u32, address: u64) {
    for place in &OVERFLOWS {
        if place.state.compare_exchange(FREE, FILLING, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            place.tid.store(tid, Ordering::Relaxed);
            place.time.store(ticks().0, Ordering::Relaxed);
            place.address.store(address, Ordering::Relaxed);
            place.state.store(READY, Ordering::Release);
            return;
        }
    }
}

fn next_overflow() -> Option<SeenException> {
    let place = OVERFLOWS.iter().find(|place| place.state.load(Ordering::Acquire) == READY)?;
    let seen = SeenException {
        tid: place.tid.load(Ordering::Relaxed),
        event: Exception {
            thread: 0,
            time: Ticks(place.time.load(Ordering::Relaxed)),
            code: STACK_OVERFLOW,
            address: place.address.load(Ordering::Relaxed),
        },
    };
    place.state.store(FREE, Ordering::Release);
    Some(seen)
}

impl TablesRecorder {
    /// Writes the exceptions that wait.
    pub(super) fn exceptions(&mut self) {
        while let Some(SeenException { tid, event }) = next().or_else(next_overflow) {
            let thread = self.instance_of(tid);
            self.journal.event(&Event::Exception(Exception { thread, ..event }));
            note_flight_trigger();
        }
    }
}
