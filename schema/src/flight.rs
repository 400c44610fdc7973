//! What injects exchange about a `--flight` recording: a small struct in the agent's memory.
//!
//! The recording goes into a ring of files ([`crate::requests::REQUEST_FILE`]); the inject that
//! records makes one trace of the last of them when something asks for it. `inject snap` leaves its
//! request here, and that inject its answer. The agent counts the marks and exceptions that it has
//! written.
//!
//! What the agent, the inject that records and the others write shares no eight bytes: Wine writes
//! to another process by whole words, and puts what it has read before in the place of the rest.

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// Version of [`FlightDesk`] described here.
pub const FLIGHT_VERSION: u32 = 2;
/// Bytes of [`FlightDesk::answer`].
pub const ANSWER_BYTES: usize = 1024;
/// [`FlightDesk::outcome`]: a trace was written, and the answer is its path.
pub const SNAP_WRITTEN: u32 = 1;
/// [`FlightDesk::outcome`]: none was, and the answer says why.
pub const SNAP_FAILED: u32 = 2;

/// Requests for traces of a `--flight` recording, and the answers.
#[repr(C)]
pub struct FlightDesk {
    /// Size of this struct in bytes.
    pub size: u32,
    /// [`FLIGHT_VERSION`].
    pub version: u32,
    /// Written by the agent: marks and exceptions that were written since the recording began,
    /// modulo 2^32.
    pub triggers: AtomicU32,
    /// 0.
    pub reserved: u32,
    /// Written by whoever wants a trace (`inject snap`): number of the request.
    pub requests: AtomicU32,
    /// 0.
    pub reserved_after_requests: AtomicU32,
    /// Written by the inject that records: number of the last request that it has answered.
    pub answered: AtomicU32,
    /// Written by the inject that records: `SNAP_*` of the last answer.
    pub outcome: AtomicU32,
    /// Written by the inject that records: bytes of `answer`.
    pub answer_len: AtomicU32,
    /// 0.
    pub reserved_after_len: AtomicU32,
    /// Written by the inject that records: UTF-8, for the user.
    pub answer: [AtomicU8; ANSWER_BYTES],
}

const _: () = assert!(size_of::<FlightDesk>() == 40 + ANSWER_BYTES);

impl FlightDesk {
    /// A desk without requests.
    pub const fn new() -> FlightDesk {
        FlightDesk {
            size: size_of::<FlightDesk>() as u32,
            version: FLIGHT_VERSION,
            triggers: AtomicU32::new(0),
            reserved: 0,
            requests: AtomicU32::new(0),
            reserved_after_requests: AtomicU32::new(0),
            answered: AtomicU32::new(0),
            outcome: AtomicU32::new(0),
            answer_len: AtomicU32::new(0),
            reserved_after_len: AtomicU32::new(0),
            answer: [const { AtomicU8::new(0) }; ANSWER_BYTES],
        }
    }

    /// Begins anew: requests of an earlier recording are dropped.
    pub fn begin(&self) {
        self.triggers.store(0, Ordering::Relaxed);
        self.answered.store(self.requests.load(Ordering::Acquire), Ordering::Release);
    }
}

impl Default for FlightDesk {
    fn default() -> FlightDesk {
        FlightDesk::new()
    }
}

/// The longest beginning of `text` that an answer has room for.
pub fn answer(text: &str) -> &str {
    let mut len = text.len().min(ANSWER_BYTES);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    text.get(..len).unwrap_or_default()
}
