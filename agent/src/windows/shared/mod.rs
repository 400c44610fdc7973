//! What the recorder's threads share, and how they use it without waiting for each other.
//!
//! No thread runs this folder alone. Each shared item is an atomic, a queue, or an [`exclusive`]
//! state that a thread enters if it is free, and never waits for.
//!
//! ```text
//! state      signals of the recording, the live status, the mailbox; they outlive a recording
//! events     the events that the threads wait for
//! exclusive  a state that one thread at a time may touch
//! worker     lane, state, done flag and wake event of a thread that writes to the trace
//! clock      the start of the recording, and its ticks per millisecond
//! next_file  the next file of the recording, from a host to the writer
//! pace       a journal's clock, and how it waits for a free buffer
//! priority   the calling thread's priority
//! ```

pub(super) mod clock;
pub(super) mod events;
pub(super) mod exclusive;
pub(super) mod next_file;
pub(super) mod pace;
pub(super) mod priority;
pub(super) mod state;
pub(super) mod worker;
