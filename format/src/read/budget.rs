//! How much memory all stack images together may take.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A bound on the stack images of all [`Scratch`](super::Scratch)es that share it: what a hostile
/// trace can make a reader allocate for images. Clones share the same budget.
#[derive(Clone, Debug)]
pub struct ImageBudget {
    left: Arc<AtomicUsize>,
}

impl Default for ImageBudget {
    /// 160 MiB: one block of the most stack that the format allows, its images rounded up to powers
    /// of two, and some.
    fn default() -> Self {
        ImageBudget::new(160 << 20)
    }
}

impl ImageBudget {
    /// A budget of `bytes`.
    pub fn new(bytes: usize) -> ImageBudget {
        ImageBudget { left: Arc::new(AtomicUsize::new(bytes)) }
    }

    /// Takes `bytes`, or nothing and gives `false`.
    pub(crate) fn take(&self, bytes: usize) -> bool {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }

    /// Returns what was taken.
    pub(crate) fn give(&self, bytes: usize) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }
}
