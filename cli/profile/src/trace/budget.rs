//! How much memory may be kept from a trace: a small file can expand to far more than its size.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that any trace may take.
pub(super) const BASE: u64 = 256 << 20;
/// Bytes that a trace may take for each byte of its file.
pub(super) const PER_BYTE: u64 = 8;

/// Bytes that are left. Clones share them.
#[derive(Clone, Debug)]
pub struct Budget {
    left: Arc<AtomicU64>,
    all: u64,
}

impl Budget {
    /// A budget of `bytes` bytes.
    pub fn new(bytes: u64) -> Budget {
        Budget { left: Arc::new(AtomicU64::new(bytes)), all: bytes }
    }

    /// The default budget for a trace of this length.
    pub fn of_file(len: usize) -> Budget {
        Budget::new(BASE.saturating_add(PER_BYTE.saturating_mul(len as u64)))
    }

    /// A budget that is never used up.
    pub fn unlimited() -> Budget {
        Budget::new(u64::MAX)
    }

    /// Takes bytes from the budget. If fewer are left, takes none and returns `false`.
    pub fn take(&self, bytes: usize) -> bool {
        let less = |left: u64| left.checked_sub(bytes as u64);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// All of its bytes, taken or not.
    pub fn all(&self) -> u64 {
        self.all
    }
}

impl Default for Budget {
    fn default() -> Self {
        Budget::unlimited()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_and_takes_nothing() {
        let budget = Budget::new(100);
        assert!(budget.take(60));
        assert!(!budget.clone().take(41));
        assert!(budget.take(40));
        assert!(!budget.take(1));
    }
}
