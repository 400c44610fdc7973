//! The quantiles against printed tables, and the intervals against simulated traces.

use super::{RowShares, SideTotals, intervals, student_quantile};
use xxhash_rust::xxh3::xxh3_64_with_seed;

#[test]
fn quantiles_are_those_of_the_tables() {
    // NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2.
    for (tail, freedom, value) in [
        (0.10, 1.0, 3.078),
        (0.025, 2.0, 4.303),
        (0.001, 2.0, 22.327),
        (0.025, 4.0, 2.776),
        (0.005, 4.0, 4.604),
        (0.05, 10.0, 1.812),
        (0.001, 10.0, 4.143),
        (0.025, 30.0, 2.042),
        (0.001, 100.0, 3.174),
        (0.05, 1e9, 1.645),
        (0.001, 1e9, 3.090),
    ] {
        let found = student_quantile(tail, freedom);
        assert!((found / value - 1.0).abs() < 2e-3, "{tail} {freedom}: {found}, not {value}");
    }
}

/// Numbers that look random, the same in every run.
struct Dice(u64);

impl Dice {
    fn uniform(&mut self) -> f64 {
        self.0 += 1;
        (xxh3_64_with_seed(&self.0.to_le_bytes(), 1) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Box and Muller.
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().max(f64::MIN_POSITIVE).ln()).sqrt();
        radius * (2.0 * std::f64::consts::PI * self.uniform()).cos()
    }
}

const FUNCTIONS: usize = 8;
/// Enough for a variance that is right by a tenth.
const DRAWS: u32 = 200;

/// A side of `n` traces of 2,000 samples in which each function takes its part, times a factor of
/// its own in each trace, which varies by `noise`.
fn side(dice: &mut Dice, n: usize, noise: f64, more: [f64; FUNCTIONS]) -> (SideTotals, Vec<RowShares>) {
    const SAMPLES: f64 = 2_000.0;
    let mut wholes = Vec::new();
    let mut rows: Vec<RowShares> = vec![Vec::new(); FUNCTIONS];
    for trace in 0..n as u32 {
        let parts: Vec<f64> = (0..FUNCTIONS)
            .map(|function| (1.0 + function as f64 + more[function]) * (noise * dice.normal()).exp())
            .collect();
        let all: f64 = parts.iter().sum();
        // As many independent samples, whose counts are about normal.
        let counts: Vec<f64> = parts
            .iter()
            .map(|part| part / all)
            .map(|share| SAMPLES * share + (SAMPLES * share * (1.0 - share)).sqrt() * dice.normal())
            .collect();
        wholes.push(counts.iter().sum());
        rows.iter_mut().zip(counts).for_each(|(row, count)| row.push((trace, count)));
    }
    let samples = SAMPLES * n as f64;
    (SideTotals { wholes, samples, seed: dice.0 }, rows)
}

/// How many of `runs` comparisons find a lower bound above 0 in any row, in percent; `more` is what
/// the functions take beyond their part in the new side.
fn found(runs: u32, n: usize, noise: f64, more: [f64; FUNCTIONS]) -> f64 {
    let mut dice = Dice(u64::from(runs) << 32 | (n as u64) << 16);
    let mut found = 0;
    for _ in 0..runs {
        let (base, base_rows) = side(&mut dice, n, noise, [0.0; FUNCTIONS]);
        let (new, new_rows) = side(&mut dice, n, noise, more);
        let rows: Vec<[&RowShares; 2]> = base_rows.iter().zip(&new_rows).map(|(a, b)| [a, b]).collect();
        let intervals = intervals([&base, &new], &rows, 0.95, DRAWS);
        found += u32::from(intervals.iter().any(|interval| interval.low > 0.0));
    }
    100.0 * f64::from(found) / f64::from(runs)
}

#[test]
fn equal_sides_differ_about_as_seldom_as_the_confidence_claims() {
    // 5 % is claimed. Of 200 comparisons 5 % are 10 +- 3.
    for (n, noise) in [(3, 0.05), (5, 0.2), (12, 0.2)] {
        let wrong = found(200, n, noise, [0.0; FUNCTIONS]);
        assert!(wrong <= 10.0, "{n} traces a side, noise {noise}: {wrong} %");
    }
}

#[test]
fn intervals_are_not_so_wide_that_nothing_is_found() {
    let mut more = [0.0; FUNCTIONS];
    // One of 36 parts becomes 5 of 40.
    more[0] = 4.0;
    assert_eq!(found(40, 3, 0.05, more), 100.0);
    let half = found(100, 5, 0.1, [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.5]);
    assert!(half > 30.0, "{half} %");
    // A single row has no correction for the others: the claim is met from below, too.
    let mut dice = Dice(7);
    let wrong = (0..300).filter(|_| {
        let (base, rows) = side(&mut dice, 5, 0.2, [0.0; FUNCTIONS]);
        let (new, other) = side(&mut dice, 5, 0.2, [0.0; FUNCTIONS]);
        intervals([&base, &new], &[[&rows[5], &other[5]]], 0.9, DRAWS)[0].low > 0.0
    });
    let wrong = wrong.count();
    assert!((12..=50).contains(&wrong), "of 300, about 30 are expected: {wrong}");
}

#[test]
fn traces_that_agree_by_chance_do_not_make_an_interval_of_no_width() {
    let totals = |seed| SideTotals { wholes: vec![50.0; 3], samples: 150.0, seed };
    let parts = |count: f64| vec![(0, count), (1, count), (2, count)];
    // 2 of 50 samples, three times, beside 4 of 50.
    let few = intervals([&totals(1), &totals(2)], &[[&parts(2.0), &parts(4.0)]], 0.95, DRAWS);
    assert!(few[0].low < 0.0 && few[0].high > 0.04, "{few:?}");
    let none = intervals([&totals(1), &totals(2)], &[[&Vec::new(), &parts(1.0)]], 0.95, DRAWS);
    assert!(none[0].low < 0.0, "{none:?}");
}

#[test]
fn draws_depend_on_the_seed_alone() {
    let (base, rows) = side(&mut Dice(1), 6, 0.3, [0.0; FUNCTIONS]);
    let (new, others) = side(&mut Dice(2), 6, 0.3, [0.0; FUNCTIONS]);
    let rows: Vec<[&RowShares; 2]> = rows.iter().zip(&others).map(|(a, b)| [a, b]).collect();
    let with = |threads: usize, seed: u64| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| intervals([&base, &SideTotals { seed, ..new.clone() }], &rows, 0.95, DRAWS))
    };
    assert_eq!(with(1, 5), with(3, 5));
    assert_ne!(with(1, 5), with(1, 6));
}
