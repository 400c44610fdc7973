//! How long threads stood still: a histogram that any thread may read while the sampler counts.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Parts of each power of two: a quantile is at most an eighth too large.
const PARTS: usize = 8;
/// Powers of two above [`PARTS`] nanoseconds; the last one's end is a minute.
const POWERS: usize = 33;

/// Times in nanoseconds.
pub(crate) struct HeldTimes {
    counts: [AtomicU32; PARTS * (POWERS + 1)],
    longest: AtomicU64,
}

/// Quantiles of times, in nanoseconds; 0 without any.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct HeldSummary {
    pub p50: u64,
    pub p999: u64,
    pub max: u64,
}

impl Default for HeldTimes {
    fn default() -> HeldTimes {
        HeldTimes { counts: [const { AtomicU32::new(0) }; _], longest: AtomicU64::new(0) }
    }
}

impl HeldTimes {
    /// Counts one suspension, in which a thread stood still for so long.
    pub(crate) fn add(&self, nanoseconds: u64) {
        let bucket = bucket(nanoseconds).min(self.counts.len() - 1);
        if let Some(count) = self.counts.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.longest.fetch_max(nanoseconds, Ordering::Relaxed);
    }

    /// Median, 99.9th percentile and maximum. The first two are the ends of their buckets.
    pub(crate) fn summary(&self) -> HeldSummary {
        let max = self.longest.load(Ordering::Relaxed);
        let all: u64 = self.counts.iter().map(|count| u64::from(count.load(Ordering::Relaxed))).sum();
        let quantile = |per_mille: u64| {
            let wanted = (all * per_mille).div_ceil(1000);
            let mut seen = 0;
            let reached = self.counts.iter().position(|count| {
                seen += u64::from(count.load(Ordering::Relaxed));
                seen >= wanted
            });
            reached.map_or(max, |bucket| last_of(bucket).min(max))
        };
        if all == 0 {
            HeldSummary::default()
        } else {
            HeldSummary { p50: quantile(500), p999: quantile(999), max }
        }
    }
}

/// The bucket of a time. Below [`PARTS`] each has its own.
fn bucket(nanoseconds: u64) -> usize {
    const BITS: u32 = PARTS.trailing_zeros();
    if nanoseconds < PARTS as u64 {
        return nanoseconds as usize;
    }
    let shift = nanoseconds.ilog2() - BITS;
    (shift as usize + 1) * PARTS + (nanoseconds >> shift) as usize - PARTS
}

/// The longest time in a bucket.
fn last_of(bucket: usize) -> u64 {
    if bucket < PARTS {
        return bucket as u64;
    }
    let (shift, part) = (bucket / PARTS - 1, bucket % PARTS);
    ((PARTS + part + 1) as u64).checked_shl(shift as u32).unwrap_or(u64::MAX).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_in_a_bucket_that_ends_at_most_an_eighth_later() {
        let mut last = 0;
        for time in
            (0..100_000).chain((17..36).flat_map(|power| [(1 << power) - 1, 1 << power, (1 << power) + 1]))
        {
            let bucket = bucket(time);
            assert!(bucket >= last, "{time}");
            last = bucket;
            assert!((time..=time + time / 8).contains(&last_of(bucket)), "{time}: {}", last_of(bucket));
        }
    }

    #[test]
    fn quantiles_are_those_of_the_times() {
        let held = HeldTimes::default();
        assert_eq!(held.summary(), HeldSummary::default());
        for time in 1..=10_000 {
            held.add(time * 100);
        }
        let summary = held.summary();
        assert!((500_000..=562_500).contains(&summary.p50), "{summary:?}");
        assert!((999_000..=1_000_000).contains(&summary.p999), "{summary:?}");
        assert_eq!(summary.max, 1_000_000);
        // One of a thousand is beyond the 99.9th percentile, and a time without end in the last
        // bucket.
        let rare = HeldTimes::default();
        (0..1_999).for_each(|_| rare.add(5));
        rare.add(u64::MAX);
        assert_eq!(rare.summary(), HeldSummary { p50: 5, p999: 5, max: u64::MAX });
    }
}
