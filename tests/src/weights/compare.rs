//! Total variation between two sets of samples, and its null distribution.

use super::place::{Granularity, Place, Places};
use std::collections::HashMap;

/// The number of draws from the null distribution.
const DRAWS: usize = 1000;
/// The quantile of the null distribution up to which a difference counts as chance.
const QUANTILE: f64 = 0.995;

/// Two sets of samples at one granularity.
#[derive(Clone, Copy, Debug)]
pub struct Variation {
    /// Total variation between both: 0 (equal) to 1 (disjoint).
    pub measured: f64,
    /// The total variation that two samples of the oracle's own distribution, of the same sizes,
    /// exceed once in 200.
    pub chance: f64,
}

/// The total variation of `ours` to `oracle` in bins of `granularity`.
pub fn variation(places: &Places, granularity: Granularity, oracle: &[Place], ours: &[Place]) -> Variation {
    let weighed: Vec<(Place, u64)> = ours.iter().map(|&place| (place, 1)).collect();
    weighed_variation(places, granularity, oracle, (&weighed, ours.len()))
}

/// The total variation to `oracle` of places with weights that were shared out among so many
/// samples.
pub fn weighed_variation(
    places: &Places,
    granularity: Granularity,
    oracle: &[Place],
    (ours, samples): (&[(Place, u64)], usize),
) -> Variation {
    let mut numbers = HashMap::new();
    let mut number = |place: Place| {
        let next = numbers.len();
        *numbers.entry(places.bin(place, granularity)).or_insert(next)
    };
    let oracle: Vec<(usize, u64)> = oracle.iter().map(|&place| (number(place), 1)).collect();
    let ours: Vec<(usize, u64)> = ours.iter().map(|&(place, weight)| (number(place), weight)).collect();
    let count = numbers.len();
    let measured = distance(&histogram(&oracle, count), &histogram(&ours, count));
    let oracle: Vec<usize> = oracle.into_iter().map(|(bin, _)| bin).collect();
    Variation { measured, chance: null_quantile(&oracle, samples, count) }
}

/// The [`QUANTILE`] of the total variation of two samples that are both drawn from `oracle`, of
/// `oracle.len()` and `other` samples.
fn null_quantile(oracle: &[usize], other: usize, count: usize) -> f64 {
    if oracle.is_empty() || other == 0 {
        return 1.0;
    }
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut draw = |len: usize| {
        let mut drawn = vec![0.0; count];
        (0..len).for_each(|_| drawn[oracle[random.below(oracle.len())]] += 1.0 / len as f64);
        drawn
    };
    let mut null: Vec<f64> = (0..DRAWS).map(|_| distance(&draw(oracle.len()), &draw(other))).collect();
    null.sort_by(f64::total_cmp);
    null[((DRAWS as f64 * QUANTILE) as usize).min(DRAWS - 1)]
}

fn histogram(bins: &[(usize, u64)], count: usize) -> Vec<f64> {
    let all: u64 = bins.iter().map(|(_, weight)| weight).sum();
    let mut shares = vec![0.0; count];
    bins.iter().for_each(|&(bin, weight)| shares[bin] += weight as f64 / all as f64);
    shares
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).sum::<f64>() / 2.0
}

/// xorshift64*: the same numbers in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        ((high * end as u64) >> 32) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(shares: &[(u64, usize)]) -> Vec<Place> {
        shares.iter().flat_map(|&(at, count)| std::iter::repeat_n(Place::Dynamic(at << 16), count)).collect()
    }

    #[test]
    fn equal_shares_vary_by_nothing_and_disjoint_ones_by_all() {
        let places = Places::default();
        let (half, other) = (samples(&[(1, 500), (2, 500)]), samples(&[(3, 10)]));
        let same = variation(&places, Granularity::Page64K, &half, &samples(&[(2, 50), (1, 50)]));
        assert!(same.measured.abs() < 1e-9);
        let none = variation(&places, Granularity::Page64K, &half, &other);
        assert!((none.measured - 1.0).abs() < 1e-9);
    }

    #[test]
    fn weights_count_and_not_how_many_samples_have_them() {
        let places = Places::default();
        let oracle = samples(&[(1, 900), (2, 100)]);
        let ours = [(Place::Dynamic(1 << 16), 9_000), (Place::Dynamic(2 << 16), 1_000)];
        let same = weighed_variation(&places, Granularity::Page64K, &oracle, (&ours, 2));
        assert!(same.measured.abs() < 1e-9, "{same:?}");
        // Two samples alone could as well have missed the tenth.
        assert!(same.chance > 0.09, "{same:?}");
    }

    #[test]
    fn a_moved_tenth_is_beyond_chance_and_a_moved_hundredth_is_not() {
        let places = Places::default();
        let oracle = samples(&[(1, 2500), (2, 2500)]);
        let moved = |count: usize| {
            let ours = samples(&[(1, 2500 - count), (2, 2500 + count)]);
            variation(&places, Granularity::Page64K, &oracle, &ours)
        };
        let (tenth, hundredth) = (moved(500), moved(50));
        assert!((tenth.measured - 0.1).abs() < 1e-9 && tenth.measured > tenth.chance);
        assert!(hundredth.measured < hundredth.chance);
        // Two binomial shares of 5000 draws each differ by 0.01 (one standard deviation); 0.995 of
        // |N| lies below 2.8 of them.
        assert!((0.02..0.04).contains(&tenth.chance), "{}", tenth.chance);
    }
}
