//! Times.

use core::ops::{Add, AddAssign, Sub};

/// A time, or a span, in ticks of the recording's clock (QueryPerformanceCounter on Windows); how
/// many there are in a second is in the file header.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct Ticks(pub u64);

impl Ticks {
    /// The clock's zero, or no span.
    pub const ZERO: Ticks = Ticks(0);
    /// Later than every time: never.
    pub const MAX: Ticks = Ticks(u64::MAX);

    /// The sum, [`Ticks::MAX`] at most.
    #[inline]
    pub const fn saturating_add(self, span: Ticks) -> Ticks {
        Ticks(self.0.saturating_add(span.0))
    }

    /// The difference, or [`Ticks::ZERO`] if `other` is later.
    #[inline]
    pub const fn saturating_sub(self, other: Ticks) -> Ticks {
        Ticks(self.0.saturating_sub(other.0))
    }
}

impl Add for Ticks {
    type Output = Ticks;

    #[inline]
    fn add(self, span: Ticks) -> Ticks {
        Ticks(self.0 + span.0)
    }
}

impl AddAssign for Ticks {
    #[inline]
    fn add_assign(&mut self, span: Ticks) {
        *self = *self + span;
    }
}

impl Sub for Ticks {
    type Output = Ticks;

    #[inline]
    fn sub(self, other: Ticks) -> Ticks {
        Ticks(self.0 - other.0)
    }
}
