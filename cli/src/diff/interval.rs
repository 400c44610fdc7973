//! Confidence intervals of differences between two sides, by a bootstrap over their traces.
//!
//! The traces of a side are drawn with replacement as many times as there are, again and again. How
//! much a row's share varies from draw to draw says how far it can be trusted (Efron and
//! Tibshirani, "An Introduction to the Bootstrap", chapter 6). Three things keep the intervals of a
//! few traces honest:
//!
//! * The variance of the draws is too small by (n - 1) / n: it is corrected (Hesterberg, "What
//!   Teachers Should Know About the Bootstrap", section 4).
//! * Bounds are quantiles of Student's distribution with Welch's degrees of freedom, not of the
//!   normal one.
//! * No variance is below that of so many independent samples: three traces may agree by chance.
//!
//! The bounds hold for all rows at once (Bonferroni): the chance that any row of two equal sides
//! has a lower bound above 0 is 1 - confidence.

use rayon::prelude::*;
use std::f64::consts::FRAC_PI_2;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// How often the traces of a side are drawn.
pub(super) const DRAWS: u32 = 2000;
/// Draws that are summed up together. Sums do not depend on the number of threads.
const CHUNK: u32 = 50;

/// What the traces of one side sum up to.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct SideTotals {
    /// By trace: what its rows are a part of.
    pub wholes: Vec<f64>,
    /// Samples of all traces.
    pub samples: f64,
    /// For the draws.
    pub seed: u64,
}

/// A row of one side: traces and the row's part of their wholes. Traces without it are left out.
pub(super) type RowShares = Vec<(u32, f64)>;

/// A row of a comparison, as shares of the wholes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Interval {
    /// Lower bound of the difference, new minus base.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

impl SideTotals {
    /// The share of a row in all traces; 0 if they are empty.
    pub(super) fn share(&self, parts: &RowShares) -> f64 {
        ratio(parts.iter().map(|part| part.1).sum(), self.wholes.iter().sum())
    }

    /// The variance of each row's share, by draws.
    fn variances(&self, rows: &[&RowShares], draws: u32) -> Vec<f64> {
        let n = self.wholes.len();
        let shares: Vec<f64> = rows.iter().map(|parts| self.share(parts)).collect();
        let chunks: Vec<u32> = (0..draws.div_ceil(CHUNK)).collect();
        let sums: Vec<Vec<(f64, f64)>> = chunks
            .into_par_iter()
            .map(|chunk| {
                let mut sums = vec![(0.0, 0.0); rows.len()];
                let mut times = vec![0.0; n];
                for draw in chunk * CHUNK..draws.min((chunk + 1) * CHUNK) {
                    self.draw(draw, &mut times);
                    let whole: f64 = self.wholes.iter().zip(&times).map(|(whole, times)| whole * times).sum();
                    for ((parts, share), sums) in rows.iter().zip(&shares).zip(&mut sums) {
                        let part = parts.iter().map(|&(trace, part)| part * times[trace as usize]).sum();
                        let deviation = ratio(part, whole) - share;
                        sums.0 += deviation;
                        sums.1 += deviation * deviation;
                    }
                }
                sums
            })
            .collect();
        let correction = n as f64 / (n as f64 - 1.0).max(1.0);
        let draws = f64::from(draws);
        (0..rows.len())
            .map(|row| {
                let (sum, squares) =
                    sums.iter().fold((0.0, 0.0), |sum, chunk| (sum.0 + chunk[row].0, sum.1 + chunk[row].1));
                let variance = (squares - sum * sum / draws) / (draws - 1.0) * correction;
                variance.max(self.least_variance(shares[row]))
            })
            .collect()
    }

    /// How many times each trace is drawn.
    fn draw(&self, draw: u32, times: &mut [f64]) {
        times.fill(0.0);
        for i in 0..times.len() as u32 {
            let mut input = [0; 8];
            input[..4].copy_from_slice(&draw.to_le_bytes());
            input[4..].copy_from_slice(&i.to_le_bytes());
            let random = xxh3_64_with_seed(&input, self.seed);
            let trace = (u128::from(random) * times.len() as u128) >> 64;
            times[trace as usize] += 1.0;
        }
    }

    /// The variance of a share that as many independent samples give. Half a sample more, since
    /// what no sample shows may still be there.
    fn least_variance(&self, share: f64) -> f64 {
        let share = ((share * self.samples + 0.5) / (self.samples + 1.0)).clamp(0.0, 1.0);
        share * (1.0 - share) / self.samples.max(1.0)
    }
}

/// The intervals of rows, each the parts of base and new. `confidence` is that of all lower bounds
/// together, and that of all upper bounds. Each side has two traces at least, which are drawn so
/// many times.
pub(super) fn intervals(
    [base, new]: [&SideTotals; 2],
    rows: &[[&RowShares; 2]],
    confidence: f64,
    draws: u32,
) -> Vec<Interval> {
    let side = |at: usize| rows.iter().map(|row| row[at]).collect::<Vec<_>>();
    let variances = [base.variances(&side(0), draws), new.variances(&side(1), draws)];
    let tail = (1.0 - confidence) / rows.len().max(1) as f64;
    let freedom = [base, new].map(|side| (side.wholes.len() as f64 - 1.0).max(1.0));
    rows.iter()
        .enumerate()
        .map(|(row, [of_base, of_new])| {
            let difference = new.share(of_new) - base.share(of_base);
            let [v, w] = [variances[0][row], variances[1][row]];
            // Welch–Satterthwaite.
            let freedom = ratio((v + w) * (v + w), v * v / freedom[0] + w * w / freedom[1]).max(1.0);
            let reach = student_quantile(tail, freedom) * (v + w).sqrt();
            Interval { low: difference - reach, high: difference + reach }
        })
        .collect()
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// The value that a variable of Student's distribution exceeds with probability `tail`, which is
/// below one half.
///
/// With t = √ν · tan θ the distribution's density is proportional to cos^(ν - 1) θ. Its integral
/// from the top down is summed up on a grid that is finer towards π/2.
fn student_quantile(tail: f64, freedom: f64) -> f64 {
    const STEPS: u32 = 4096;
    // Beyond this, it differs from the normal distribution by less than a thousandth.
    let freedom = freedom.clamp(1.0, 2000.0);
    let angle = |step: u32| FRAC_PI_2 * (1.0 - (f64::from(step) / f64::from(STEPS)).powi(2));
    let density = |angle: f64| angle.cos().max(0.0).powf(freedom - 1.0);
    let mut integral = vec![0.0];
    let mut last = (angle(0), density(angle(0)));
    for step in 1..=STEPS {
        let next = (angle(step), density(angle(step)));
        let area = (last.0 - next.0) * (last.1 + next.1) / 2.0;
        integral.push(integral[step as usize - 1] + area);
        last = next;
    }
    // The grid ends at 0, in the middle of the distribution.
    let wanted = tail * 2.0 * integral[STEPS as usize];
    let step = integral.partition_point(|&area| area < wanted).clamp(1, STEPS as usize);
    let (before, after) = (integral[step - 1], integral[step]);
    let part = ratio(wanted - before, after - before).clamp(0.0, 1.0);
    let (above, below) = (angle(step as u32 - 1), angle(step as u32));
    freedom.sqrt() * (above + (below - above) * part).tan()
}

#[cfg(test)]
#[path = "interval_tests.rs"]
mod tests;
