//! Marks that threads of the target leave by `stk_mark`, until the tables thread writes them. The
//! ring is preallocated; a thread that leaves a mark takes no lock and does not wait.

use alloc::boxed::Box;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

use stk_schema::Ticks;
use stk_schema::event::{Event, Mark};
use windows_sys::Win32::System::Threading::GetCurrentThreadId;

use super::TablesRecorder;
use crate::record::modules::Events;
use crate::record::queue::Queue;
use crate::windows::shared::state::note_flight_trigger;
use crate::windows::system::api::ticks;

/// Most marks that wait.
const RING: usize = 256;
/// Most bytes of a mark's text; the rest is cut off.
const TEXT: usize = 250;

/// A mark that waits to be written.
struct WaitingMark {
    time: Ticks,
    tid: u32,
    len: usize,
    text: [u8; TEXT],
}

static MARKS: AtomicPtr<Queue<WaitingMark>> = AtomicPtr::new(null_mut());

/// Makes the ring, once per process, and forgets marks of an earlier recording.
pub(crate) fn prepare() {
    if MARKS.load(Ordering::Acquire).is_null() {
        MARKS.store(Box::into_raw(Box::new(Queue::new(RING))), Ordering::Release);
    }
    while next().is_some() {}
}

/// Leaves a mark of the calling thread at this moment. False if the ring is full.
pub(crate) fn leave(text: &str) -> bool {
    // SAFETY: no preconditions.
    leave_of(unsafe { GetCurrentThreadId() }, ticks(), text)
}

/// Leaves a mark of the process. False if the ring is full.
pub(super) fn leave_of_process(time: Ticks, text: &str) -> bool {
    leave_of(0, time, text)
}

fn leave_of(tid: u32, time: Ticks, text: &str) -> bool {
    // SAFETY: null or a box that is never freed.
    let Some(marks) = (unsafe { MARKS.load(Ordering::Acquire).as_ref() }) else { return false };
    let mut len = text.len().min(TEXT);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    let mut bytes = [0; TEXT];
    for (to, from) in bytes.iter_mut().zip(text.bytes().take(len)) {
        *to = from;
    }
    marks.push(WaitingMark { time, tid, len, text: bytes }).is_ok()
}

fn next() -> Option<WaitingMark> {
    // SAFETY: null or a box that is never freed.
    unsafe { MARKS.load(Ordering::Acquire).as_ref() }?.pop()
}

impl TablesRecorder {
    /// Writes the marks that wait.
    pub(super) fn marks(&mut self) {
        while let Some(mark) = next() {
            let thread = if mark.tid == 0 { 0 } else { self.instance_of(mark.tid) };
            let text = mark.text.get(..mark.len).unwrap_or(&[]);
            self.journal.event(&Event::Mark(Mark { time: mark.time, thread, tag: 0, text }));
            note_flight_trigger();
        }
    }
}
