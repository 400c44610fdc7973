//! The file format of `.stk` traces. `format/SPEC.md` specifies it; this crate is the reference
//! implementation.
//!
//! **What the caller provides**: events as `stk-schema` defines them, captured registers and stack
//! bytes, a clock, and a place to append bytes to; for reading, the whole file as one `&[u8]`
//! (mapped or read). This crate opens no files.
//!
//! **What it solves**: a trace that is a quarter to a hundredth of the stacks it stands for, that
//! is appended to with plain writes and never seeks, that loses at most what a damaged block held,
//! that any number of threads can decode block by block, and that cannot cause a panic or unbounded
//! memory even if an attacker wrote it.
//!
//! Writing (no_std + alloc, no allocation after set-up): [`FileHeader`], [`BlockBuffer`] (events of
//! one block), [`sample`] (stack images), [`Sealer`] (blocks to bytes).
//!
//! Reading (feature `std`): [`Trace`] (blocks, damage, completeness), [`Samples`] (a SAMPLES block
//! decoded), [`blob`].
//!
//! After the end of a recording (feature `std`): [`SupplementWriter`]. The parts of an image that a
//! trace stores, read from memory or from a file: [`image`]. A copy with other words and events:
//! [`rewrite_events`], [`TraceCopy`]. A part of a trace as a trace: [`TraceExcerpt`].
#![cfg_attr(not(feature = "std"), no_std)]
#![deny(unsafe_code)] // but in `compressor`
#![warn(missing_docs)]

extern crate alloc;

pub mod blob;
mod block;
mod bytes;
#[allow(unsafe_code)]
mod compressor;
pub mod event;
#[cfg(feature = "std")]
mod excerpt;
mod header;
pub mod image;
#[cfg(feature = "std")]
mod read;
#[cfg(feature = "std")]
mod rewrite;
pub mod sample;
mod seal;
#[cfg(feature = "std")]
mod supplement;

pub use block::{BlockBuffer, EncodeError, HEADER_KEY, LimitError};
pub use compressor::SealError;
#[cfg(feature = "std")]
pub use excerpt::TraceExcerpt;
pub use header::{
    BLOCK_HEADER_LEN, BlockHeader, BlockKind, CODEC_ZSTD, CpuUnit, FILE_HEADER_LEN, FLAG_SUPPLEMENT,
    FileHeader, HeaderError, TAIL_LEN, Tail,
};
#[cfg(feature = "std")]
pub use read::{
    BlockError, BlockRef, Damage, Events, Extra, ImageBudget, OpenError, Same, Sample, SampleStep, Samples,
    Scratch, Supplement, Trace,
};
#[cfg(feature = "std")]
pub use rewrite::{Rewriter, TraceCopy, rewrite_events, rewrite_memory};
pub use sample::{RawSample, SampleEncoder, SampleOutcome, ThreadImage};
pub use seal::{Sealer, sealed_bound};
#[cfg(feature = "std")]
pub use supplement::{Addition, NoSupplement, SupplementWriter};

/// Major version of the format: readers refuse others.
pub const MAJOR: u16 = 1;
/// Minor version of the format: increases with each addition that readers may skip.
pub const MINOR: u16 = 1;

/// Bytes that do not follow the format.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("malformed at byte {at}")]
pub struct DecodeError {
    /// Offset in the record, event body or payload that was read.
    pub at: usize,
}
