//! The section that agent.dll and inject.exe share for `--flight`: a ring in memory that stands in
//! for the trace's file.
//!
//! inject makes the section (unnamed), maps it, and gives the agent a handle of it in place of an
//! output file. The agent appends to the ring what it would append to a file: the file header, then
//! whole blocks. Positions count bytes from the start of the recording; a byte's place in the ring
//! is its position modulo the ring's size. Whatever ends the target, the section lives until inject
//! closes it.
//!
//! The agent sets `begun` to the position behind the bytes that it is about to copy, copies, and
//! then sets `written` to the same. What lies more than a ring's size below `begun` may be
//! overwritten. inject reads what it must not miss (everything but samples) as it comes and says in
//! `consumed` how far it is. The agent waits a moment for it before it overwrites more, and then
//! overwrites: the sequence numbers of the blocks show that.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Version of [`FlightHeader`] described here.
pub const FLIGHT_VERSION: u32 = 1;
/// Where the ring begins in the section; [`FlightHeader`] lies at its start.
pub const RING_AT: usize = 4096;
/// Bytes of the ring that inject makes.
pub const RING_BYTES: u64 = 40 << 20;
/// Most bytes that inject keeps beside the ring: tables, metadata, names, code.
pub const KEPT_BYTES: usize = 20 << 20;
/// Bytes of [`FlightHeader::answer`].
pub const ANSWER_BYTES: usize = 1024;
/// [`FlightHeader::outcome`]: a trace was written, and the answer is its path.
pub const SNAP_WRITTEN: u32 = 1;
/// [`FlightHeader::outcome`]: none was, and the answer says why.
pub const SNAP_FAILED: u32 = 2;

/// The start of the section.
#[repr(C)]
pub struct FlightHeader {
    /// Written by inject before the start: size of this struct in bytes.
    pub size: AtomicU32,
    /// Written by inject before the start: [`FLIGHT_VERSION`].
    pub version: AtomicU32,
    /// Written by inject before the start: bytes of the ring.
    pub ring_bytes: AtomicU64,
    /// Written by inject before the start: how much is to be kept, in milliseconds.
    pub window_ms: AtomicU32,
    /// Written by whoever wants a trace (`inject snap`): number of the request.
    pub requests: AtomicU32,
    /// Written by the agent: the position behind what it has begun to copy.
    pub begun: AtomicU64,
    /// Written by the agent: the position behind what is whole.
    pub written: AtomicU64,
    /// Written by inject: the position up to which it has read.
    pub consumed: AtomicU64,
    /// Written by inject: number of the last request that it has answered.
    pub answered: AtomicU32,
    /// Written by inject: `SNAP_*` of the last answer.
    pub outcome: AtomicU32,
    /// Written by inject: bytes of `answer`.
    pub answer_len: AtomicU32,
    /// Must be 0.
    pub reserved: AtomicU32,
    /// Written by inject: UTF-8, for the user.
    pub answer: [AtomicU8; ANSWER_BYTES],
}

const _: () = assert!(size_of::<FlightHeader>() == 64 + ANSWER_BYTES);
const _: () = assert!(size_of::<FlightHeader>() <= RING_AT);

impl FlightHeader {
    /// Fills in what inject writes before the start.
    pub fn prepare(&self, ring_bytes: u64, window_ms: u32) {
        self.size.store(size_of::<FlightHeader>() as u32, Ordering::Relaxed);
        self.version.store(FLIGHT_VERSION, Ordering::Relaxed);
        self.ring_bytes.store(ring_bytes, Ordering::Relaxed);
        self.window_ms.store(window_ms, Ordering::Release);
    }

    /// Whether the struct is one of this version, whose ring fits a section of `section` bytes.
    pub fn fits(&self, section: usize) -> bool {
        let ring = self.ring_bytes.load(Ordering::Acquire);
        self.version.load(Ordering::Relaxed) == FLIGHT_VERSION
            && self.size.load(Ordering::Relaxed) as usize >= size_of::<FlightHeader>()
            && ring >= 4096
            && section.checked_sub(RING_AT).is_some_and(|room| ring <= room as u64)
    }

    /// Answers all requests so far.
    pub fn answer(&self, requests: u32, outcome: u32, text: &str) {
        let mut len = text.len().min(ANSWER_BYTES);
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        for (to, byte) in self.answer.iter().zip(text.bytes().take(len)) {
            to.store(byte, Ordering::Relaxed);
        }
        self.answer_len.store(len as u32, Ordering::Relaxed);
        self.outcome.store(outcome, Ordering::Relaxed);
        self.answered.store(requests, Ordering::Release);
    }
}
