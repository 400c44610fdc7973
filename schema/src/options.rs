//! The options of a recording that are texts: `key 0 value 0 …`, UTF-8, at
//! [`AgentConfig::options`](crate::control::AgentConfig::options).
//!
//! The agent refuses a start with a key or a value that it does not know, so nothing that was
//! requested for is left out silently. A key may come more than once where this says so.

/// Which threads are sampled: `all`, `main` (the thread that was created first of those that the
/// agent finds as it starts), `name=GLOB` (`*` and `?`; the whole name, ASCII letters in upper or
/// lower case) or `tid=N`. Repeated: those that fit any of them. Default: all.
pub const THREADS: &str = "threads";

/// Most CPU time of the recorder, in millionths of one processor: 1 to 1,000,000, decimal. Without
/// it, the sampler takes at most a quarter of one.
pub const MAX_OVERHEAD: &str = "max_overhead_ppm";

/// What makes the thread that does it take a sample of itself: `exception` (every exception that is
/// an error), `exception=CODE` (decimal or 0x…), `breakpoint`, `module=GLOB` (a module of that file
/// name is loaded). `cpu=PERCENT` leaves a mark when the process begins to use more CPU time than
/// that, in percent of one processor. `api`: each capture that the program asks for itself
/// (`stk_capture`, `stk_capture_context`) leaves a mark too. Repeated: each of them.
pub const TRIGGER: &str = "trigger";

/// Most bytes of all options.
pub const MAX_BYTES: usize = 64 << 10;
/// Most bytes of a GLOB.
pub const MAX_GLOB: usize = 256;
/// Most [`TRIGGER`]s with a CODE.
pub const MAX_CODES: usize = 16;
