//! Medians, bootstrap intervals and verdicts.
//!
//! Everything here is a pure function: the bootstrap's randomness comes from a seed, so the same
//! data always print the same figures.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

/// Resamples of a bootstrap.
const RESAMPLES: usize = 2000;

/// How far from 1 a ratio may lie and still count as equal.
pub const EQUIVALENCE: f64 = 0.05;

/// A median with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The median.
    pub value: f64,
    /// Lower end of the interval; the median where n = 1.
    pub lo: f64,
    /// Upper end of the interval; the median where n = 1.
    pub hi: f64,
    /// Samples.
    pub n: usize,
}

/// What a comparison came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// On the expected side, interval and all.
    SameSign,
    /// The interval lies within [`EQUIVALENCE`] of 1.
    Equal,
    /// On the other side, interval and all.
    Opposite,
    /// The interval contains the threshold, or the rounds were disturbed.
    Unresolved,
    /// There is nothing to compare with.
    NotMeasurable,
}

/// Which side of a threshold is the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// Above.
    Above,
    /// Below.
    Below,
}

/// The median; NaN for no samples. Samples that are not finite are left out.
#[must_use]
pub fn median(samples: &[f64]) -> f64 {
    let mut sorted: Vec<f64> = samples.iter().copied().filter(|x| x.is_finite()).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    quantile_of_sorted(&sorted, 0.5)
}

/// Linear interpolation between the order statistics (type 7 of Hyndman and Fan).
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

/// The median of the samples with its percentile bootstrap interval; none for no finite samples.
#[must_use]
pub fn estimate(samples: &[f64], seed: u64) -> Option<Estimate> {
    let mut sorted: Vec<f64> = samples.iter().copied().filter(|x| x.is_finite()).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let n = sorted.len();
    if n == 0 {
        return None;
    }
    let value = quantile_of_sorted(&sorted, 0.5);
    if n == 1 {
        return Some(Estimate {
            value,
            lo: value,
            hi: value,
            n,
        });
    }
    let mut random = SplitMix64::seed_from_u64(seed);
    let mut medians = Vec::with_capacity(RESAMPLES);
    let mut resample = vec![0.0; n];
    for _ in 0..RESAMPLES {
        for slot in &mut resample {
            *slot = sorted.get(below(&mut random, n)).copied().unwrap_or(value);
        }
        resample.sort_unstable_by(f64::total_cmp);
        medians.push(quantile_of_sorted(&resample, 0.5));
    }
    medians.sort_unstable_by(f64::total_cmp);
    Some(Estimate {
        value,
        lo: quantile_of_sorted(&medians, 0.025).min(value),
        hi: quantile_of_sorted(&medians, 0.975).max(value),
        n,
    })
}

/// Whether a ratio is equal to 1: an equivalence test, so few or scattered samples are not equal.
#[must_use]
pub fn is_equal(ratio: &Estimate) -> bool {
    ratio.n > 1 && ratio.lo >= 1.0 - EQUIVALENCE && ratio.hi <= 1.0 + EQUIVALENCE
}

/// The verdict on a ratio of which `side` of 1 is expected.
#[must_use]
pub fn compare(ratio: &Estimate, side: Side) -> Verdict {
    if is_equal(ratio) {
        return Verdict::Equal;
    }
    against(ratio, 1.0, side)
}

/// The verdict on a figure that should lie on `side` of `threshold`. A figure on the threshold
/// meets it.
#[must_use]
pub fn against(figure: &Estimate, threshold: f64, side: Side) -> Verdict {
    let (met, missed) = match side {
        Side::Above => (figure.lo >= threshold, figure.hi < threshold),
        Side::Below => (figure.hi <= threshold, figure.lo > threshold),
    };
    match (met, missed) {
        (true, _) => Verdict::SameSign,
        (_, true) => Verdict::Opposite,
        _ => Verdict::Unresolved,
    }
}

/// Ratios round by round: `own[i] / other[i]` where both rounds have a figure and the divisor is
/// not 0. Rounds of one number were interleaved, so what disturbs both cancels.
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

/// A seed from names, so that every figure has its own but the same run prints the same.
#[must_use]
pub fn seed(names: &[&str]) -> u64 {
    // FNV-1a with a separator that no name contains.
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in names.iter().flat_map(|name| name.bytes().chain([0])) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash
}

/// A number below `n` (Lemire's multiplication; the bias is below n / 2^64).
fn below(random: &mut SplitMix64, n: usize) -> usize {
    ((u128::from(random.next_u64()) * n as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn medians_of_known_samples() {
        assert!(median(&[]).is_nan());
        assert_eq!(median(&[4.0]), 4.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[f64::NAN, 1.0, f64::INFINITY]), 1.0);
    }

    #[test]
    fn quantiles_of_known_samples() {
        let sorted = [10.0, 20.0, 30.0, 40.0, 50.0];
        assert_eq!(quantile_of_sorted(&sorted, 0.0), 10.0);
        assert_eq!(quantile_of_sorted(&sorted, 0.25), 20.0);
        assert_eq!(quantile_of_sorted(&sorted, 0.9), 46.0);
        assert_eq!(quantile_of_sorted(&sorted, 1.0), 50.0);
    }

    #[test]
    fn generator_follows_its_reference() {
        // The first outputs for seed 1234567, as in the reference implementation.
        let mut random = SplitMix64::seed_from_u64(1_234_567);
        assert_eq!(random.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(random.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn interval_of_a_known_distribution() {
        // 101 equally spaced samples: the order statistics that bound the median with 95 % are the
        // 41st and the 61st (binomial), that is 40 and 60.
        let samples: Vec<f64> = (0..=100).map(f64::from).collect();
        let found = estimate(&samples, 1).unwrap();
        assert_eq!(found.value, 50.0);
        assert!((37.0..=43.0).contains(&found.lo), "{found:?}");
        assert!((57.0..=63.0).contains(&found.hi), "{found:?}");
    }

    #[test]
    fn one_sample_is_its_own_interval() {
        let found = estimate(&[7.5], 3).unwrap();
        assert_eq!(
            (found.lo, found.value, found.hi, found.n),
            (7.5, 7.5, 7.5, 1)
        );
        assert_eq!(estimate(&[f64::NAN], 3), None);
    }

    #[test]
    fn verdicts_by_hand() {
        let of = |lo, value, hi| Estimate {
            value,
            lo,
            hi,
            n: 9,
        };
        assert_eq!(compare(&of(0.97, 1.0, 1.04), Side::Above), Verdict::Equal);
        assert_eq!(compare(&of(1.01, 1.1, 1.2), Side::Above), Verdict::SameSign);
        assert_eq!(compare(&of(1.01, 1.1, 1.2), Side::Below), Verdict::Opposite);
        assert_eq!(
            compare(&of(0.9, 1.1, 1.2), Side::Above),
            Verdict::Unresolved
        );
        assert_eq!(
            against(&of(0.8, 0.9, 1.0), 0.8, Side::Above),
            Verdict::SameSign
        );
        assert_eq!(
            against(&of(0.79, 0.9, 1.0), 0.8, Side::Above),
            Verdict::Unresolved
        );
        assert_eq!(
            against(&of(0.6, 0.7, 0.79), 0.8, Side::Above),
            Verdict::Opposite
        );
        assert_eq!(
            against(&of(1.0, 1.2, 1.3), 1.3, Side::Below),
            Verdict::SameSign
        );
        let single = Estimate {
            value: 1.0,
            lo: 1.0,
            hi: 1.0,
            n: 1,
        };
        assert!(!is_equal(&single), "one sample proves no equality");
    }

    #[test]
    fn names_of_verdicts() {
        let text = serde_json::to_string(&[
            Verdict::SameSign,
            Verdict::Equal,
            Verdict::Opposite,
            Verdict::Unresolved,
            Verdict::NotMeasurable,
        ]);
        assert_eq!(
            text.unwrap(),
            r#"["same-sign","equal","opposite","unresolved","not-measurable"]"#
        );
    }

    #[test]
    fn ratios_pair_rounds() {
        let own = [Some(2.0), None, Some(3.0), Some(1.0)];
        let other = [Some(1.0), Some(5.0), Some(2.0), Some(0.0)];
        assert_eq!(ratios(&own, &other), [2.0, 1.5]);
    }

    proptest! {
        #[test]
        fn interval_contains_the_median_and_stays_in_range(
            samples in prop::collection::vec(-1e9f64..1e9, 1..40), seed: u64,
        ) {
            let found = estimate(&samples, seed).unwrap();
            let least = samples.iter().copied().fold(f64::MAX, f64::min);
            let most = samples.iter().copied().fold(f64::MIN, f64::max);
            prop_assert!(least <= found.lo && found.lo <= found.value);
            prop_assert!(found.value <= found.hi && found.hi <= most);
            prop_assert_eq!(found, estimate(&samples, seed).unwrap());
        }

        #[test]
        fn order_does_not_matter(
            mut samples in prop::collection::vec(-1e6f64..1e6, 1..20), seed: u64,
        ) {
            let found = estimate(&samples, seed);
            samples.reverse();
            prop_assert_eq!(found, estimate(&samples, seed));
        }

        #[test]
        fn scaling_scales(samples in prop::collection::vec(1.0f64..1e6, 2..20), seed: u64) {
            let doubled: Vec<f64> = samples.iter().map(|x| x * 2.0).collect();
            let (one, two) = (estimate(&samples, seed).unwrap(), estimate(&doubled, seed).unwrap());
            prop_assert_eq!(two.lo, one.lo * 2.0);
            prop_assert_eq!(two.hi, one.hi * 2.0);
        }

        #[test]
        fn sides_are_opposites(lo in 0.1f64..2.0, width in 0.0f64..1.0, bar in 0.5f64..1.5) {
            let figure = Estimate { lo, value: lo + width / 2.0, hi: lo + width, n: 5 };
            let above = against(&figure, bar, Side::Above);
            let below = against(&figure, bar, Side::Below);
            let mirrored = match above {
                Verdict::SameSign if figure.lo > bar => Verdict::Opposite,
                Verdict::Opposite => Verdict::SameSign,
                other if figure.lo > bar || figure.hi < bar => other,
                _ => below,
            };
            prop_assert_eq!(below, mirrored);
        }

        #[test]
        fn draws_stay_below(seed: u64, n in 1usize..1000) {
            let mut random = SplitMix64::seed_from_u64(seed);
            prop_assert!((0..50).all(|_| below(&mut random, n) < n));
        }
    }
}
