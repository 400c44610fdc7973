//! A limit on the memory of all stack images together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A bound on the stack images of all [`Scratch`](super::Scratch)es that share it, and so on the
/// memory for images that a hostile trace can make a reader allocate. Clones share the same budget.
#[derive(Clone, Debug)]
pub struct ImageBudget {
    left: Arc<AtomicUsize>,
}

impl Default for ImageBudget {
    /// 160 MiB: enough for one block with the most stack that the format allows, its images rounded
    /// up to powers of two, and a reserve.
    fn default() -> Self {
        ImageBudget::new(160 << 20)
    }
}

impl ImageBudget {
    /// A budget of `bytes`.
    pub fn new(bytes: usize) -> ImageBudget {
        ImageBudget { left: Arc::new(AtomicUsize::new(bytes)) }
    }

    /// Takes `bytes` from the budget; returns `false` and takes nothing if they are not left.
    pub(crate) fn take(&self, bytes: usize) -> bool {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }

    /// Returns `bytes` to the budget.
    pub(crate) fn give(&self, bytes: usize) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }
}
