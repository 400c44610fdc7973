//! A ring of shared memory in place of the trace's file ([`stk_schema::flight`]): the writer's
//! thread appends, the guard process reads.

use core::sync::atomic::{Ordering, fence};

use stk_schema::flight::FlightHeader;

use super::writer::Output;

/// What the ring answers for a piece that is larger than half of it: ERROR_INSUFFICIENT_BUFFER.
const TOO_LARGE: u32 = 122;

/// The agent's side of the ring.
pub(crate) struct FlightRing {
    header: *const FlightHeader,
    data: *mut u8,
    size: u64,
    /// Waits a little for the guard process, after so many waits before; false to overwrite what it
    /// has not read.
    pause: fn(u32) -> bool,
}

// SAFETY: one thread writes at a time; the guard process expects that bytes change.
unsafe impl Send for FlightRing {}

impl FlightRing {
    /// A ring that was not written to.
    ///
    /// # Safety
    /// `header` must be valid while the ring is used, and `data` be the start of as many writable
    /// bytes as it says, which nothing in this process refers to.
    pub(crate) unsafe fn new(
        header: *const FlightHeader,
        data: *mut u8,
        pause: fn(u32) -> bool,
    ) -> FlightRing {
        // SAFETY: by the caller's promise.
        let size = unsafe { &*header }.ring_bytes.load(Ordering::Acquire);
        FlightRing { header, data, size, pause }
    }

    /// How much is to be kept, in milliseconds.
    pub(crate) fn window_ms(&self) -> u32 {
        self.header().window_ms.load(Ordering::Relaxed)
    }

    fn header(&self) -> &FlightHeader {
        // SAFETY: valid by the promise to `new`.
        unsafe { &*self.header }
    }

    fn copy(&mut self, at: u64, bytes: &[u8]) {
        let place = (at % self.size) as usize;
        let (first, rest) = bytes.split_at(bytes.len().min(self.size as usize - place));
        // SAFETY: both parts lie within the ring, by the promise to `new`: `place` is below its
        // size, the first part ends at its end at most, and the rest is less than half of it.
        unsafe {
            core::ptr::copy_nonoverlapping(first.as_ptr(), self.data.add(place), first.len());
            core::ptr::copy_nonoverlapping(rest.as_ptr(), self.data, rest.len());
        }
    }
}

impl Output for FlightRing {
    fn append(&mut self, bytes: &[u8]) -> Result<(), u32> {
        let len = bytes.len() as u64;
        if len > self.size / 2 {
            return Err(TOO_LARGE);
        }
        // Not remembered here: the thread that ends the process goes on where this one was.
        let at = self.header().written.load(Ordering::Acquire);
        let end = at + len;
        let mut waits = 0;
        while end.saturating_sub(self.header().consumed.load(Ordering::Acquire)) > self.size
            && (self.pause)(waits)
        {
            waits += 1;
        }
        self.header().begun.store(end, Ordering::Release);
        fence(Ordering::SeqCst);
        self.copy(at, bytes);
        self.header().written.store(end, Ordering::Release);
        Ok(())
    }

    fn appended(&mut self) -> Option<u64> {
        Some(self.header().written.load(Ordering::Acquire))
    }
}

#[cfg(all(test, not(windows)))]
mod tests {
    use super::*;
    use alloc::boxed::Box;
    use alloc::vec::Vec;
    use core::sync::atomic::AtomicU32;

    static WAITS: AtomicU32 = AtomicU32::new(0);

    struct Section {
        header: Box<FlightHeader>,
        data: Vec<u8>,
    }

    impl Section {
        fn new(size: usize) -> Section {
            // SAFETY: every field is an atomic number, for which zero is valid.
            let header: Box<FlightHeader> = Box::new(unsafe { core::mem::zeroed() });
            header.prepare(size as u64, 30_000);
            Section { header, data: alloc::vec![0; size] }
        }

        fn ring(&mut self, pause: fn(u32) -> bool) -> FlightRing {
            // SAFETY: the section outlives the ring in these tests, and has so many bytes.
            unsafe { FlightRing::new(&raw const *self.header, self.data.as_mut_ptr(), pause) }
        }
    }

    #[test]
    fn pieces_follow_each_other_round_the_ring() {
        let mut section = Section::new(10);
        let mut ring = section.ring(|_| false);
        for piece in [&b"abcd"[..], b"efgh", b"ijkl"] {
            ring.append(piece).unwrap();
        }
        assert_eq!(ring.appended(), Some(12));
        assert_eq!(ring.window_ms(), 30_000);
        assert_eq!(section.data, b"klcdefghij");
        assert_eq!(section.header.begun.load(Ordering::Relaxed), 12);
    }

    #[test]
    fn a_piece_larger_than_half_the_ring_is_refused_and_changes_nothing() {
        let mut section = Section::new(8);
        let mut ring = section.ring(|_| false);
        assert_eq!(ring.append(b"12345"), Err(TOO_LARGE));
        assert_eq!(ring.appended(), Some(0));
        assert_eq!(section.data, [0; 8]);
    }

    #[test]
    fn it_waits_before_it_overwrites_what_was_not_read_and_only_then() {
        let mut section = Section::new(8);
        let mut ring = section.ring(|waits| {
            WAITS.fetch_add(1, Ordering::Relaxed);
            waits < 3
        });
        ring.append(b"abcd").unwrap();
        ring.append(b"efgh").unwrap();
        assert_eq!(WAITS.load(Ordering::Relaxed), 0);
        // Nothing was read: it waits, gives up and goes on.
        ring.append(b"ij").unwrap();
        assert_eq!(WAITS.load(Ordering::Relaxed), 4);
        ring.header().consumed.store(10, Ordering::Release);
        ring.append(b"klmn").unwrap();
        assert_eq!(WAITS.load(Ordering::Relaxed), 4);
        assert_eq!(ring.appended(), Some(14));
    }

    #[test]
    fn a_section_too_small_for_its_ring_does_not_fit() {
        let section = Section::new(1 << 20);
        assert!(section.header.fits(stk_schema::flight::RING_AT + (1 << 20)));
        assert!(!section.header.fits(stk_schema::flight::RING_AT + (1 << 20) - 1));
        assert!(!section.header.fits(100));
        section.header.version.store(99, Ordering::Relaxed);
        assert!(!section.header.fits(64 << 20));
    }
}
