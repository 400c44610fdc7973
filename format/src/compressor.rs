//! zstd in memory of the caller's allocator: a context that takes all its memory once and never
//! asks the C library for any. In a recorded process that library's heap is the target's.

use alloc::vec::Vec;
use core::ptr::NonNull;
use zstd_safe::{Strategy, zstd_sys};

/// Why a block could not be sealed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// The output buffer is smaller than [`sealed_bound`].
    #[error("the output buffer is too small")]
    OutTooSmall,
    /// No memory for the compressor.
    #[error("no memory for the compressor")]
    NoMemory,
    /// The compressor failed.
    #[error("zstd: {0}")]
    Zstd(&'static str),
}

/// zstd level, for all parameters that are not set below.
const LEVEL: i32 = 1;
/// Two hash tables of moderate size instead of level 1's one: 4 to 6 % smaller on stack images for
/// a tenth more time (level 3 gains another half percent for twice that), in 0.9 MB of memory.
const PARAMETERS: Parameters = Parameters {
    window_log: 20,
    chain_log: 15,
    hash_log: 16,
    search_log: 1,
    min_match: 5,
    target_length: 0,
    strategy: Strategy::ZSTD_dfast as u32,
};

/// `ZSTD_compressionParameters`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Parameters {
    window_log: u32,
    chain_log: u32,
    hash_log: u32,
    search_log: u32,
    min_match: u32,
    target_length: u32,
    strategy: u32,
}

// Of zstd.h's part for programs that link it statically. The bindings have them with their feature
// `experimental` only.
unsafe extern "C" {
    fn ZSTD_estimateCCtxSize_usingCParams(parameters: Parameters) -> usize;
    fn ZSTD_initStaticCCtx(memory: *mut u8, len: usize) -> *mut zstd_sys::ZSTD_CCtx;
}

/// zstd wants its memory aligned to 8.
#[repr(align(16))]
struct Unit(#[expect(dead_code, reason = "only zstd uses the bytes")] [u8; 16]);

/// Compresses blocks, each for itself.
pub(crate) struct Compressor {
    /// Within `_memory`.
    context: NonNull<zstd_sys::ZSTD_CCtx>,
    /// Holds no values, only room for them.
    _memory: Vec<Unit>,
}

// SAFETY: a context belongs to no thread, and `compress` borrows it exclusively.
unsafe impl Send for Compressor {}
// SAFETY: a shared reference can do nothing.
unsafe impl Sync for Compressor {}

impl Compressor {
    /// Allocates all that it will ever use.
    pub(crate) fn new() -> Result<Compressor, SealError> {
        // SAFETY: a calculation.
        let needed = unsafe { ZSTD_estimateCCtxSize_usingCParams(PARAMETERS) };
        let mut memory = Vec::<Unit>::new();
        memory.try_reserve_exact(needed.div_ceil(size_of::<Unit>())).map_err(|_| SealError::NoMemory)?;
        // SAFETY: so many bytes are reserved, aligned, and stay where they are until the context
        // is dropped with them. Without a destructor: a static context owns nothing else.
        let context =
            unsafe { ZSTD_initStaticCCtx(memory.as_mut_ptr().cast(), memory.capacity() * size_of::<Unit>()) };
        let context = NonNull::new(context).ok_or(SealError::NoMemory)?;
        let compressor = Compressor { context, _memory: memory };
        let all = zstd_sys::ZSTD_ResetDirective::ZSTD_reset_session_and_parameters;
        // SAFETY: a live context that nobody else uses. It begins without zstd's own defaults.
        checked(unsafe { zstd_sys::ZSTD_CCtx_reset(context.as_ptr(), all) })?;
        use zstd_sys::ZSTD_cParameter as Name;
        for (name, value) in [
            (Name::ZSTD_c_compressionLevel, LEVEL),
            (Name::ZSTD_c_strategy, PARAMETERS.strategy as i32),
            (Name::ZSTD_c_windowLog, PARAMETERS.window_log as i32),
            (Name::ZSTD_c_hashLog, PARAMETERS.hash_log as i32),
            (Name::ZSTD_c_chainLog, PARAMETERS.chain_log as i32),
            (Name::ZSTD_c_minMatch, PARAMETERS.min_match as i32),
        ] {
            // SAFETY: a live context that nobody else uses.
            checked(unsafe { zstd_sys::ZSTD_CCtx_setParameter(context.as_ptr(), name, value) })?;
        }
        Ok(compressor)
    }

    /// Writes a frame of `raw` into `out`; returns its length. Allocates nothing.
    pub(crate) fn compress(&mut self, out: &mut [u8], raw: &[u8]) -> Result<usize, SealError> {
        // SAFETY: a live context, exclusively borrowed; the slices' own lengths.
        checked(unsafe {
            zstd_sys::ZSTD_compress2(
                self.context.as_ptr(),
                out.as_mut_ptr().cast(),
                out.len(),
                raw.as_ptr().cast(),
                raw.len(),
            )
        })
    }
}

/// What a function of zstd returned, or its error.
fn checked(code: usize) -> Result<usize, SealError> {
    // SAFETY: it looks at the number alone.
    if unsafe { zstd_sys::ZSTD_isError(code) } == 0 {
        Ok(code)
    } else {
        Err(SealError::Zstd(zstd_safe::get_error_name(code)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More than zstd's 128 small inputs in a row, after which it would shrink memory of its own.
    #[test]
    fn blocks_of_every_size_fit_into_the_memory_taken_at_first() {
        let mut compressor = Compressor::new().unwrap();
        let memory = compressor._memory.as_ptr();
        let mut state = 1u32;
        let raw: Vec<u8> = core::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 30) as u8
        })
        .take(9 << 20)
        .collect();
        let mut out = alloc::vec![0; zstd_safe::compress_bound(raw.len())];
        let mut back = alloc::vec![0; raw.len()];
        let sizes = (0..24).map(|bits| (1 << bits) - 1).chain([7; 300]).chain([raw.len(), 0, raw.len()]);
        for size in sizes {
            let raw = &raw[..size.min(raw.len())];
            let stored = compressor.compress(&mut out, raw).unwrap();
            let content = zstd_safe::get_frame_content_size(&out[..stored]);
            assert!(matches!(content, Ok(Some(len)) if len == raw.len() as u64), "{size}");
            assert_eq!(zstd_safe::decompress(&mut back[..], &out[..stored]), Ok(raw.len()), "{size}");
            assert!(back[..raw.len()] == *raw, "{size}");
        }
        assert_eq!(compressor._memory.as_ptr(), memory);
        // A refusal, then the next block as ever.
        assert!(matches!(compressor.compress(&mut out[..100], &raw), Err(SealError::Zstd(_))));
        assert!(compressor.compress(&mut out, &raw).is_ok());
    }
}
