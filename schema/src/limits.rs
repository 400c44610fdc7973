//! Upper bounds of format version 1. Writers never exceed them; readers refuse data that does.

/// Largest stored (compressed) payload of a block, in bytes.
pub const MAX_BLOCK_STORED: usize = 16 << 20;
/// Largest event byte count (decompressed payload) of a block.
pub const MAX_BLOCK_RAW: usize = 16 << 20;
/// Most stack bytes that the samples of one block may stand for.
pub const MAX_BLOCK_STACK: u64 = 64 << 20;
/// Most thread slots of a SAMPLES block.
pub const MAX_SLOTS: usize = 65_536;
/// Most stack words of one sample; a deeper stack is truncated and flagged.
pub const MAX_SAMPLE_WORDS: usize = 1 << 20;
/// Most address ranges of one sample beside the main stack.
pub const MAX_EXTRA_RANGES: usize = 64;
/// Most code bytes at the instruction pointer that one sample carries.
pub const MAX_CODE_BYTES: usize = 256;
/// Most frames of one CHECK_WALK event.
pub const MAX_WALK_FRAMES: usize = 65_536;
/// Largest zstd window that a reader grants, as a power of two (8 MiB).
pub const MAX_WINDOW_LOG: u32 = 23;
/// Largest BLOB, all its chunks together, in bytes.
pub const MAX_BLOB: u64 = 1 << 30;
/// Largest piece of a BLOB in one event, in bytes.
pub const MAX_BLOB_CHUNK: usize = 1 << 20;
/// Longest path or name, in bytes of WTF-8.
pub const MAX_NAME: usize = 96 << 10;

/// A recorder cuts a block when its events reach this many bytes ...
pub const CUT_RAW: usize = 1 << 20;
/// ... or stand for this many stack bytes (less than the reader's limit by one sample of the
/// largest size) ...
pub const CUT_STACK: u64 = 48 << 20;
/// ... or cover this much time, in milliseconds, if their keyframes have paid off by then: if they
/// stand for at least
/// [`CUT_STACK_SETTLED`] bytes of stack ...
pub const CUT_MS: u64 = 250;
/// (below this, keyframes make up so much of a block that plain compression would store less) ...
pub const CUT_STACK_SETTLED: u64 = 8 << 20;
/// ... or cover this much time, in milliseconds, whatever they stand for. A killed process loses at
/// most this much.
pub const CUT_MS_MOST: u64 = 1000;
/// A recorder writes a STATE block at least every so many stored bytes ...
pub const STATE_BYTES: u64 = 64 << 20;
/// ... or seconds.
pub const STATE_SECONDS: u64 = 30;
