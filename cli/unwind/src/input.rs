//! What a walk takes: a sample, the modules around it, and options.

use crate::{ImageTables, Registers};

/// A module or code region as the caller numbers them: one *instance*, since the same image may be
/// loaded again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModuleId(pub u32);

/// The module that holds an address.
#[derive(Debug, Clone, Copy)]
pub struct LoadedModule<'a> {
    /// Which module instance it is.
    pub module: ModuleId,
    /// Where it is loaded.
    pub base: u64,
    /// The tables of its image.
    pub image: &'a ImageTables,
    /// Identifies the image's *content* for the walker's rule cache. It is below 2^30, equal for
    /// all instances of the same content, and never reused for other content within one
    /// [`Walker`](crate::Walker)'s life.
    pub image_key: u32,
}

/// The address space at the time of a sample.
pub trait Modules {
    /// The module whose `[base, base + size)` holds `address`.
    fn find(&self, address: u64) -> Option<LoadedModule<'_>>;

    /// A number that stays the same as long as a [`Walker`](crate::Walker) finds the same modules:
    /// it then keeps them from walk to walk. `None`: not known.
    fn epoch(&self) -> Option<u64> {
        None
    }
}

impl<M: Modules + ?Sized> Modules for &M {
    fn find(&self, address: u64) -> Option<LoadedModule<'_>> {
        (**self).find(address)
    }

    fn epoch(&self) -> Option<u64> {
        (**self).epoch()
    }
}

/// One captured moment of one thread.
#[derive(Debug, Clone, Copy)]
pub struct Sample<'a> {
    /// The registers at that moment.
    pub registers: &'a Registers,
    /// Stack bytes, from `stack_start` up.
    pub stack: &'a [u8],
    /// The address of the first stack byte: at or below the stack pointer.
    pub stack_start: u64,
    /// The upper end of the thread's stack (TEB.StackBase), where recorded.
    pub stack_base: Option<u64>,
    /// The capture ends below the stack's upper end because of a limit.
    pub truncated: bool,
    /// Code bytes from the instruction pointer on, where recorded; preferred to the image's.
    pub code_at_ip: Option<&'a [u8]>,
}

/// How to walk.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct WalkOptions {
    /// The most frames of a walk.
    pub max_frames: usize,
    /// If all other methods fail, search the stack for what looks like a return address
    /// ([`Trust::Scan`](crate::Trust::Scan)). Off by default: such frames are guesses.
    pub scan: bool,
}

/// The most frames of a walk by default: a recursion that fills a stack of a megabyte with the
/// smallest frames has twice as many.
const MOST_FRAMES: usize = 16_384;

impl Default for WalkOptions {
    fn default() -> Self {
        WalkOptions { max_frames: MOST_FRAMES, scan: false }
    }
}
