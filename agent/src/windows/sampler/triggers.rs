//! `stk_capture`: a thread of the target records its own stack. It copies into one of a few
//! preallocated slots and leaves the rest to the sampler. If all slots are taken, the sample is
//! dropped and counted. No lock, no allocation, no wait.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering};
use stk_schema::Ticks;

use stk_schema::registers::{IP, MAX_REGISTERS, SP};
use windows_sys::Win32::System::Threading::GetCurrentThreadId;

use crate::record::sampler::Capture;
use crate::record::stack_bounds::{Bounds, CheckedBounds};
use crate::windows::sampler::stack_copy::{self, OwnPages};
use crate::windows::system::context::Context;
use crate::windows::system::thread::Teb;

/// Most captures that wait for the sampler.
const PLACES: usize = 8;
const WORD: usize = size_of::<usize>();

const FREE: u32 = 0;
const FILLING: u32 = 1;
const READY: u32 = 2;
const READING: u32 = 3;

struct CapturePlace {
    state: AtomicU32,
    content: UnsafeCell<Content>,
}

/// A thread's capture of itself.
pub(crate) struct Content {
    pub tid: u32,
    /// The caller's tag.
    pub tag: u64,
    /// Registers and stack.
    pub capture: Capture,
}

/// The slots in which threads leave their captures.
pub(crate) struct Triggers {
    places: Box<[CapturePlace]>,
}

// SAFETY: only the thread that moves a slot's state from FREE to FILLING or from READY to READING
// touches its content.
unsafe impl Sync for Triggers {}
// SAFETY: the content is plain memory.
unsafe impl Send for Triggers {}

impl Triggers {
    /// Slots with room for `bytes` of stack each.
    pub(crate) fn new(bytes: usize) -> Triggers {
        let place = || CapturePlace {
            state: AtomicU32::new(FREE),
            content: UnsafeCell::new(Content { tid: 0, tag: 0, capture: Capture::new(bytes) }),
        };
        Triggers { places: (0..PLACES).map(|_| place()).collect::<Vec<_>>().into_boxed_slice() }
    }

    /// Stores the calling thread's stack as `registers` have it at `time`. Returns how many slots
    /// before the used one were taken; `None` if all are.
    ///
    /// # Safety
    /// The registers must be the calling thread's, of its present frame or of one above.
    pub(crate) unsafe fn capture(
        &self,
        registers: &[u64; MAX_REGISTERS],
        time: Ticks,
        tag: u64,
    ) -> Option<usize> {
        let claim = |place: &CapturePlace| {
            place.state.compare_exchange(FREE, FILLING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let before = self.places.iter().position(claim)?;
        let place = self.places.get(before)?;
        // SAFETY: this thread moved the state from FREE to FILLING.
        let content = unsafe { &mut *place.content.get() };
        content.tag = tag;
        // SAFETY: no preconditions.
        content.tid = unsafe { GetCurrentThreadId() };
        let capture = &mut content.capture;
        capture.time = time;
        capture.registers = *registers;
        // SAFETY: the calling thread's own block.
        let (limit, base) = unsafe { Teb::current().stack() };
        let bounds = Bounds { limit: limit as u64, base: base as u64 };
        // This call runs on the stack, if it is the thread's own: then the system has it mapped.
        let here = (&raw const bounds) as usize;
        let mut checked = CheckedBounds::default();
        if (limit..base).contains(&here) {
            checked = CheckedBounds::of_running(bounds);
        } else {
            checked.check(&OwnPages, bounds);
        }
        // SAFETY: the calling thread's own stack, from one of its frames up.
        unsafe { stack_copy::copy(registers[SP] as usize, bounds, &checked, &|| true, capture) };
        place.state.store(READY, Ordering::Release);
        Some(before)
    }

    /// Offers every waiting capture to `take`, oldest first. A capture that it refuses stays.
    pub(crate) fn offer(&self, mut take: impl FnMut(&mut Content) -> bool) {
        let mut last = Ticks::ZERO;
        for _ in 0..PLACES {
            let ready = |place: &&CapturePlace| place.state.load(Ordering::Acquire) == READY;
            // SAFETY: only this function, the one consumer, changes a slot that is READY.
            let time = |place: &&CapturePlace| unsafe { (*place.content.get()).capture.time };
            let Some(place) =
                self.places.iter().filter(ready).filter(|place| time(place) > last).min_by_key(time)
            else {
                return;
            };
            last = time(&place);
            place.state.store(READING, Ordering::Relaxed);
            // SAFETY: the state is READING, which only this thread sets and ends.
            let taken = take(unsafe { &mut *place.content.get() });
            place.state.store(if taken { FREE } else { READY }, Ordering::Release);
        }
    }
}

/// The registers of the caller of `stk_capture`, behind the call. `context` was captured within it,
/// `return_at` is the address of its return address; the caller's own frame begins above.
///
/// # Safety
/// `return_at` must be the address of that return address.
pub(crate) unsafe fn callers_registers(context: &Context, return_at: usize) -> [u64; MAX_REGISTERS] {
    let mut registers = context.registers();
    // SAFETY: by the caller's promise this is the return address of `stk_capture`.
    registers[IP] = unsafe { (return_at as *const usize).read() } as u64;
    correct(&mut registers, return_at);
    registers[SP] = (return_at + WORD + POPPED) as u64;
    registers
}

/// Corrects the registers that `stk_capture` had to change before it called RtlCaptureContext.
fn correct(registers: &mut [u64; MAX_REGISTERS], return_at: usize) {
    #[cfg(target_arch = "x86")]
    {
        // SAFETY: `stk_capture` pushed its caller's ebp right below the return address.
        registers[6] = u64::from(unsafe { ((return_at - WORD) as *const u32).read() });
    }
    #[cfg(target_arch = "aarch64")]
    {
        // After the return, lr still holds the return address.
        registers[2] = registers[IP];
    }
    let _ = (registers, return_at);
}

/// Bytes of arguments that `stk_capture` removes from its caller's stack when it returns.
#[cfg(target_arch = "x86")]
const POPPED: usize = 8;
#[cfg(not(target_arch = "x86"))]
const POPPED: usize = 0;
