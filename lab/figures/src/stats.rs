//! Medians, their intervals and verdicts, as pure functions.
//!
//! The ends of an interval are order statistics of the samples. The coverage depends only on the
//! number of samples, not on their distribution. The true median is below the k-th smallest of n
//! samples with the probability of fewer than k heads in n tosses of a fair coin. Three samples
//! cover at most 75 %, so their interval is not called a 95 % interval.

use serde::{Deserialize, Serialize};
use std::cmp::Ordering;

/// Number of samples from which the normal approximation replaces the binomial distribution.
const NORMAL_MIN: usize = 1000;

/// Coverage of intervals with six or more samples.
pub const CONFIDENCE: f64 = 0.95;

/// Maximum deviation from 1 of a ratio that counts as equal to 1.
pub const EQUIVALENCE: f64 = 0.05;

/// A median with its interval. [`coverage`] returns the coverage for its number of samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Median.
    pub value: f64,
    /// Lower end of the interval; the median if n = 1.
    pub lo: f64,
    /// Upper end of the interval; the median if n = 1.
    pub hi: f64,
    /// Number of samples.
    pub n: usize,
}

/// Result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ComparisonVerdict {
    /// The whole interval is on the expected side.
    SameSign,
    /// The interval is within [`EQUIVALENCE`] of 1. In a comparison with a paper, the quotient's
    /// interval is within [`EQUAL_QUOTIENTS`], and both ratios are on the same side of 1.
    Equal,
    /// The paper has an effect, but this interval contains 1 and is within [`EQUAL_QUOTIENTS`].
    NoEffect,
    /// The paper has no effect, but this interval is outside of [`EQUAL_QUOTIENTS`], and not on the
    /// other side of 1.
    DiffersInSize,
    /// The whole interval is on the other side.
    Opposite,
    /// The interval contains the threshold, or something disturbed the rounds.
    Unresolved,
    /// Both sides were measured, but the set-ups differ in the subject of the ratio.
    NotComparable,
    /// One side was not measured, or is 0 in every round.
    NotMeasurable,
}

/// The expected side of a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThresholdSide {
    /// Above.
    Above,
    /// Below.
    Below,
}

/// Returns the median of the finite samples, or NaN without finite samples.
#[must_use]
pub fn median(samples: &[f64]) -> f64 {
    let mut sorted: Vec<f64> = samples.iter().copied().filter(|x| x.is_finite()).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    quantile_of_sorted(&sorted, 0.5)
}

/// Returns the samples at these ranks, which are shares of the number of samples. Each result is
/// one of the samples, or NaN without samples.
#[must_use]
pub fn ranks<const N: usize>(samples: &[f64], shares: [f64; N]) -> [f64; N] {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1) as f64;
    shares.map(|share| {
        let at = (last * share).round() as usize;
        sorted.get(at).copied().unwrap_or(f64::NAN)
    })
}

/// Interpolates linearly between the order statistics (type 7 of Hyndman and Fan).
fn quantile_of_sorted(sorted: &[f64], quantile: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    let at = quantile.clamp(0.0, 1.0) * last as f64;
    let below = at.floor() as usize;
    let (Some(&a), Some(&b)) = (sorted.get(below), sorted.get((below + 1).min(last))) else {
        return f64::NAN;
    };
    a + (b - a) * (at - below as f64)
}

/// Returns the median with its interval, or `None` without finite samples.
#[must_use]
pub fn estimate(samples: &[f64]) -> Option<Estimate> {
    let mut sorted: Vec<f64> = samples.iter().copied().filter(|x| x.is_finite()).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let n = sorted.len();
    let (outside, _) = interval(n);
    let (lo, hi) = (
        sorted.get(outside)?,
        sorted.get((n - 1).checked_sub(outside)?)?,
    );
    Some(Estimate {
        value: quantile_of_sorted(&sorted, 0.5),
        lo: *lo,
        hi: *hi,
        n,
    })
}

/// Returns the probability that an interval of [`estimate`] contains the true median: at least
/// [`CONFIDENCE`] for six or more samples, less for fewer, and 0 for one.
#[must_use]
pub fn coverage(n: usize) -> f64 {
    interval(n).1
}

/// Chooses the narrowest interval with a coverage of at least [`CONFIDENCE`], or all samples if
/// none has it. Returns the number of samples outside of the interval at each end, and the
/// interval's coverage.
fn interval(n: usize) -> (usize, f64) {
    let all = n as f64;
    if n > NORMAL_MIN {
        // Normal approximation: 1.96 standard deviations from the middle.
        return ((all / 2.0 - 0.98 * all.sqrt()) as usize, CONFIDENCE);
    }
    // For n tosses of a coin: the logarithm of the probability of exactly `heads` heads, and the
    // probability of fewer heads.
    let (mut log, mut fewer) = (-all * std::f64::consts::LN_2, 0.0);
    let mut found = (0, 0.0);
    for heads in 0..n.div_ceil(2) {
        fewer += log.exp();
        let covers = (1.0 - 2.0 * fewer).max(0.0);
        if heads > 0 && covers < CONFIDENCE {
            break;
        }
        found = (heads, covers);
        log += ((all - heads as f64) / (heads as f64 + 1.0)).ln();
    }
    found
}

/// Returns whether a ratio equals 1. This is an equivalence test, which few or widely scattered
/// samples do not pass.
#[must_use]
pub fn is_equal(ratio: &Estimate) -> bool {
    ratio.n > 1 && ratio.lo >= 1.0 - EQUIVALENCE && ratio.hi <= 1.0 + EQUIVALENCE
}

/// Returns the verdict on a ratio that is expected on `side` of 1.
#[must_use]
pub fn compare(ratio: &Estimate, side: ThresholdSide) -> ComparisonVerdict {
    if is_equal(ratio) {
        return ComparisonVerdict::Equal;
    }
    against(ratio, 1.0, side)
}

/// Returns the verdict on a figure that is expected on `side` of `threshold`. A figure equal to the
/// threshold meets it.
#[must_use]
pub fn against(figure: &Estimate, threshold: f64, side: ThresholdSide) -> ComparisonVerdict {
    let (met, missed) = match side {
        ThresholdSide::Above => (figure.lo >= threshold, figure.hi < threshold),
        ThresholdSide::Below => (figure.hi <= threshold, figure.lo > threshold),
    };
    match (met, missed) {
        (true, _) => ComparisonVerdict::SameSign,
        (_, true) => ComparisonVerdict::Opposite,
        _ => ComparisonVerdict::Unresolved,
    }
}

/// Range in which a quotient of two ratios counts as equal, and a ratio shows no effect.
pub const EQUAL_QUOTIENTS: std::ops::RangeInclusive<f64> = 0.80..=1.25;

/// The ratio of two configurations in a paper.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PublishedRatio {
    /// Ratio.
    pub ratio: f64,
    /// True if the paper calls the difference an effect although it is within [`EQUIVALENCE`].
    pub claimed: bool,
}

impl PublishedRatio {
    /// Returns whether the paper has an effect, that is a ratio outside of [`EQUIVALENCE`], or a
    /// smaller one that its text claims.
    #[must_use]
    pub fn has_effect(self) -> bool {
        self.claimed || (self.ratio - 1.0).abs() > EQUIVALENCE
    }
}

/// Returns the verdict on the quotient of our ratio and the paper's.
///
/// The sign is decided first. Suppose that the paper has an effect. If our interval is on the
/// paper's side of 1, the verdict is `Equal` if the quotient's interval is within
/// [`EQUAL_QUOTIENTS`], otherwise `SameSign`. If our interval is on the other side, the verdict is
/// `Opposite`. If our interval contains 1, the verdict is `NoEffect` if the interval is within
/// [`EQUAL_QUOTIENTS`], otherwise `Unresolved`. If the paper has no effect and our interval is
/// outside of [`EQUAL_QUOTIENTS`], the verdict is `DiffersInSize`, or `Opposite` if the paper's
/// ratio is on the other side of 1.
#[must_use]
pub fn compare_with_paper(quotient: &Estimate, paper: PublishedRatio) -> ComparisonVerdict {
    let several = quotient.n > 1;
    let alike = |[lo, hi]: [f64; 2]| {
        several && EQUAL_QUOTIENTS.contains(&lo) && EQUAL_QUOTIENTS.contains(&hi)
    };
    let quotients = [quotient.lo, quotient.hi];
    let own = quotients.map(|quotient| quotient * paper.ratio);
    let [least, most] = own;
    let theirs = paper.ratio.total_cmp(&1.0);
    if paper.has_effect() {
        return match own.map(|ratio| ratio.total_cmp(&1.0)) {
            [low, high] if low != high || low.is_eq() => match alike(own) {
                true => ComparisonVerdict::NoEffect,
                false => ComparisonVerdict::Unresolved,
            },
            [side, _] if side != theirs => ComparisonVerdict::Opposite,
            _ if alike(quotients) => ComparisonVerdict::Equal,
            _ => ComparisonVerdict::SameSign,
        };
    }
    if alike(quotients) {
        return ComparisonVerdict::Equal;
    }
    let side = match (
        most < *EQUAL_QUOTIENTS.start(),
        least > *EQUAL_QUOTIENTS.end(),
    ) {
        (true, _) => Ordering::Less,
        (_, true) => Ordering::Greater,
        _ => return ComparisonVerdict::Unresolved,
    };
    // A ratio of exactly 1 has no opposite side.
    match theirs.is_eq() || theirs == side {
        true => ComparisonVerdict::DiffersInSize,
        false => ComparisonVerdict::Opposite,
    }
}

/// Returns the ratio of each round, `own[i] / other[i]`, if both rounds have a figure and the
/// divisor is not 0. Rounds with the same number were interleaved, so that a disturbance of both is
/// cancelled.
#[must_use]
pub fn ratios(own: &[Option<f64>], other: &[Option<f64>]) -> Vec<f64> {
    own.iter()
        .zip(other)
        .filter_map(|(own, other)| match (own, other) {
            (Some(own), Some(other)) if *other != 0.0 => Some(own / other),
            _ => None,
        })
        .filter(|ratio| ratio.is_finite())
        .collect()
}

#[cfg(test)]
mod tests;
