//! The mailbox for requests: hosts ask the agent to mark a moment, pause and resume.
//!
//! It is in the agent's memory until the process ends or the agent leaves;
//! [`AgentStatus::requests`](crate::control::AgentStatus::requests) says where. A host needs no
//! thread in the process, so it works too while the process's loader is stuck.
//!
//! One request at a time. A host first takes the mutex `lock`, of which it duplicates the handle
//! from the process. Whoever has the agent leave holds it until the agent is unmapped, so a host
//! that has got the mutex looks again whether the agent is loaded. It then writes `kind`, `time`
//! and the text, then adds 1 to `request`, and sets the event `wake` (also duplicated). The agent
//! carries the request out, writes `result` and then sets `answer` to that number. The host then
//! gives the mutex back. Whoever finds the mutex abandoned continues as if it was free. Each field
//! has one writer. The struct has no padding and no pointers. Neither side trusts the contents: the
//! agent copies the text out, at most [`TEXT_BYTES`] of it.

/// Version of [`RequestMailbox`] described here.
pub const REQUESTS_VERSION: u32 = 1;
/// Longest text of a request in bytes.
pub const TEXT_BYTES: usize = 256;

/// [`RequestMailbox::kind`]: write a MARK of the process, with the request's time and text.
pub const REQUEST_MARK: u32 = 1;
/// [`RequestMailbox::kind`]: sample no thread from now on. Answered when no thread is suspended any
/// more.
pub const REQUEST_PAUSE: u32 = 2;
/// [`RequestMailbox::kind`]: sample again.
pub const REQUEST_RESUME: u32 = 3;

/// [`RequestMailbox::kind`]: continue in another file, without a gap. The text is the address of an
/// [`AgentConfig`](crate::control::AgentConfig) in the agent's process, 8 bytes, and the number of
/// the file, 4 bytes, both little-endian. Of the config `output`, `uuid`, `max_bytes` and
/// `metadata` are used, as at the start of a recording. If the answer is [`RESULT_DONE`], the agent
/// has copied it, owns the handle, and writes the file's header;
/// [`file_index`](crate::control::AgentStatus::file_index) grows when the file before is whole.
/// Else it stays in its file: with [`RESULT_REFUSED`] it has closed the handle, with any other
/// answer the host has to.
pub const REQUEST_FILE: u32 = 4;

/// [`RequestMailbox::result`]: done.
pub const RESULT_DONE: u32 = 0;
/// [`RequestMailbox::result`]: the agent does not know the request's kind.
pub const RESULT_UNKNOWN: u32 = 1;
/// [`RequestMailbox::result`]: it was so already: paused, or not paused.
pub const RESULT_WAS_SO: u32 = 2;
/// [`RequestMailbox::result`]: the recording ended first.
pub const RESULT_ENDED: u32 = 3;
/// [`RequestMailbox::result`]: the file was not taken: it cannot be written, or there is no memory.
pub const RESULT_REFUSED: u32 = 4;

/// The memory that agent and hosts share.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RequestMailbox {
    /// Written by the agent: size of this struct in bytes; 0 before the first recording.
    pub size: u32,
    /// Written by the agent: [`REQUESTS_VERSION`].
    pub version: u32,
    /// Written by the agent: handle, valid in its process, of the mutex of the hosts.
    pub lock: u64,
    /// Written by the agent: handle, valid in its process, of the event that wakes the agent.
    pub wake: u64,
    /// Written by the agent: number of the last request that it has answered.
    pub answer: u32,
    /// Written by the agent: `RESULT_*` of that request.
    pub result: u32,
    /// Written by a host: number of the last request.
    pub request: u32,
    /// Written by a host: `REQUEST_*`.
    pub kind: u32,
    /// Written by a host: when the user asked, in ticks of the system's performance counter, which
    /// is that of the trace; 0 = when the agent sees it.
    pub time: u64,
    /// Written by a host: bytes of `text`.
    pub text_len: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Written by a host: UTF-8.
    pub text: [u8; TEXT_BYTES],
}

const _: () = assert!(size_of::<RequestMailbox>() == 56 + TEXT_BYTES);
