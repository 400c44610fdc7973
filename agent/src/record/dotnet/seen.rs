//! Which places of dynamic code were seen before: told by the sampler, asked when it is time to ask a runtime for names.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering};

/// Places; a power of two.
const PLACES: usize = 8192;
/// Bytes of code that count as one place: a method of any size has several.
const GRAIN: u64 = 64;

/// A bounded memory of places, which forgets those that share a cell: a place that comes back after that counts again,
/// which costs a rundown too many and loses nothing.
pub struct SeenCode {
    cells: Box<[AtomicU64]>,
    count: AtomicU64,
}

impl SeenCode {
    /// Has seen nothing.
    pub fn new() -> SeenCode {
        SeenCode { cells: (0..PLACES).map(|_| AtomicU64::new(0)).collect(), count: AtomicU64::new(0) }
    }

    /// Dynamic code was seen at `address`.
    pub fn note(&self, address: u64) {
        let place = address / GRAIN + 1;
        let cell = (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 51) as usize % PLACES;
        if let Some(cell) = self.cells.get(cell)
            && cell.swap(place, Ordering::Relaxed) != place
        {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many places were seen so far.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

impl Default for SeenCode {
    fn default() -> SeenCode {
        SeenCode::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_counts_once() {
        let seen = SeenCode::new();
        for address in [0x7ff0_0000, 0x7ff0_0001, 0x7ff0_003f, 0x7ff0_0040, 0x7ff0_0000] {
            seen.note(address);
        }
        assert_eq!(seen.count(), 2);
    }
}
