//! Tests of intervals, comparisons and verdicts with known samples.

use super::*;
use proptest::prelude::*;

#[test]
fn ranks_are_values_of_the_sample() {
    assert_eq!(ranks(&[3.0, 1.0, 2.0], [0.5, 1.0]), [2.0, 3.0]);
    assert_eq!(ranks(&[1.0], [0.5, 1.0]), [1.0, 1.0]);
    assert!(ranks(&[], [0.5, 1.0]).iter().all(|rank| rank.is_nan()));
    let times: Vec<f64> = (1..=201).map(f64::from).collect();
    assert_eq!(ranks(&times, [0.5, 0.99]), [101.0, 199.0]);
}

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
fn intervals_of_known_numbers_of_samples() {
    // The binomial distribution puts the bounds of the 95 % interval of the median at the 41st
    // and the 61st of 101 sorted samples, here 40 and 60.
    let samples: Vec<f64> = (0..=100).map(f64::from).collect();
    let found = estimate(&samples).unwrap();
    assert_eq!((found.lo, found.value, found.hi), (40.0, 50.0, 60.0));
    for (n, outside, covers) in [
        (0, 0, 0.0),
        (1, 0, 0.0),
        (2, 0, 0.5),
        (3, 0, 0.75),
        (5, 0, 0.9375),
        (6, 0, 0.96875),
        (8, 0, 0.9921875),
        (9, 1, 0.9609375),
        (15, 3, 0.96484375),
    ] {
        let (found, share) = interval(n);
        assert_eq!(found, outside, "{n}");
        assert!((share - covers).abs() < 1e-9, "{n}: {share}");
    }
    let (outside, share) = interval(10_000);
    assert!((4890..4910).contains(&outside), "{outside}");
    assert!((CONFIDENCE..0.96).contains(&share), "{share}");
}

/// The stated coverage also holds for an asymmetric distribution.
#[test]
fn intervals_have_the_stated_coverage() {
    let mut state = 1u64;
    let mut draw = || {
        // A linear congruential generator is sufficient to count hits.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let uniform = (state >> 11) as f64 / (1u64 << 53) as f64;
        -(1.0 - uniform).ln()
    };
    for n in [3, 9] {
        let covered = (0..20_000)
            .filter(|_| {
                let samples: Vec<f64> = (0..n).map(|_| draw()).collect();
                let found = estimate(&samples).unwrap();
                (found.lo..=found.hi).contains(&std::f64::consts::LN_2)
            })
            .count();
        let share = covered as f64 / 20_000.0;
        assert!((share - coverage(n)).abs() < 0.01, "{n}: {share}");
    }
}

#[test]
fn one_sample_is_its_own_interval() {
    let found = estimate(&[7.5]).unwrap();
    assert_eq!(
        (found.lo, found.value, found.hi, found.n),
        (7.5, 7.5, 7.5, 1)
    );
    assert_eq!(estimate(&[f64::NAN]), None);
}

#[test]
fn verdicts_of_known_ratios() {
    let of = |lo, value, hi| Estimate {
        value,
        lo,
        hi,
        n: 9,
    };
    assert_eq!(
        compare(&of(0.97, 1.0, 1.04), ThresholdSide::Above),
        ComparisonVerdict::Equal
    );
    assert_eq!(
        compare(&of(1.01, 1.1, 1.2), ThresholdSide::Above),
        ComparisonVerdict::SameSign
    );
    assert_eq!(
        compare(&of(1.01, 1.1, 1.2), ThresholdSide::Below),
        ComparisonVerdict::Opposite
    );
    assert_eq!(
        compare(&of(0.9, 1.1, 1.2), ThresholdSide::Above),
        ComparisonVerdict::Unresolved
    );
    assert_eq!(
        against(&of(0.8, 0.9, 1.0), 0.8, ThresholdSide::Above),
        ComparisonVerdict::SameSign
    );
    assert_eq!(
        against(&of(0.79, 0.9, 1.0), 0.8, ThresholdSide::Above),
        ComparisonVerdict::Unresolved
    );
    assert_eq!(
        against(&of(0.6, 0.7, 0.79), 0.8, ThresholdSide::Above),
        ComparisonVerdict::Opposite
    );
    assert_eq!(
        against(&of(1.0, 1.2, 1.3), 1.3, ThresholdSide::Below),
        ComparisonVerdict::SameSign
    );
    let single = Estimate {
        value: 1.0,
        lo: 1.0,
        hi: 1.0,
        n: 1,
    };
    assert!(!is_equal(&single), "one sample proves no equality");
}

fn verdict_of(lo: f64, hi: f64, ratio: f64, claimed: bool) -> ComparisonVerdict {
    let value = f64::midpoint(lo, hi);
    let quotient = Estimate {
        value,
        lo,
        hi,
        n: 9,
    };
    compare_with_paper(&quotient, PublishedRatio { ratio, claimed })
}

#[test]
fn the_sign_is_decided_before_equality() {
    // Quotient intervals of a run. An earlier rule called all 19 of them equal.
    let (equal, none) = (ComparisonVerdict::Equal, ComparisonVerdict::NoEffect);
    for (cell, lo, hi, paper, claimed, verdict) in [
        (
            "hatori-guest2 driver",
            0.90,
            0.93,
            2.09 / 2.32,
            false,
            equal,
        ),
        (
            "sccp-optimized throughput",
            0.96,
            1.05,
            588.47 / 588.65,
            false,
            equal,
        ),
        (
            "sccp-optimized LRO rate",
            1.02,
            1.02,
            2.43 / 2.49,
            false,
            equal,
        ),
        (
            "sccp-optimized driver",
            1.04,
            1.12,
            12.64 / 13.51,
            false,
            none,
        ),
        ("sccp-optimized guest", 0.81, 0.95, 7.78 / 7.08, false, none),
        ("oi-xen requests", 1.08, 1.13, 5036.0 / 6090.0, false, equal),
        ("oi-lro requests", 0.97, 1.01, 5010.0 / 5036.0, false, equal),
        ("oi-bo throughput", 0.94, 1.09, 576.5 / 577.2, false, equal),
        ("oi-bo driver", 0.98, 1.09, 13.0 / 13.4, true, none),
        ("oi-bo all", 0.92, 1.06, 1.0, false, equal),
        ("oi-bo requests", 0.87, 1.05, 4999.0 / 5010.0, false, equal),
        ("oi-da requests", 0.87, 1.03, 5015.0 / 5010.0, false, equal),
        ("ram-ngm all", 1.13, 1.18, 0.81, false, equal),
        ("ram-ngm driver", 0.88, 0.99, 0.79, false, equal),
        ("ram-mq-ngm guest", 0.89, 0.94, 4790.0 / 4383.0, false, none),
        ("ram-spf guest", 1.02, 1.07, 4176.0 / 4440.0, false, none),
        (
            "ram-halfpg driver",
            1.17,
            1.25,
            1378.0 / 1672.0,
            false,
            none,
        ),
        ("ram-transmit-ngm all", 0.93, 1.03, 0.53, false, equal),
        ("menon-domain0 web peak", 0.96, 1.08, 0.8, false, equal),
    ] {
        assert_eq!(verdict_of(lo, hi, paper, claimed), verdict, "{cell}");
    }
}

/// Checks the verdict on a ratio with this interval beside a paper's ratio.
#[track_caller]
fn assert_verdict((lo, hi): (f64, f64), paper: f64, verdict: ComparisonVerdict) {
    let found = verdict_of(lo, hi, paper, false);
    assert_eq!(found, verdict, "{lo} {hi} {paper}");
}

#[test]
fn an_effect_absent_in_the_paper_has_a_side() {
    for (lo, hi, paper, verdict) in [
        // These are the throughput of hatori-guest2 and the cycles of hatori-guest3.
        (2.90, 3.09, 508.4 / 505.4, ComparisonVerdict::DiffersInSize),
        (0.35, 0.39, 9.87 / 9.71, ComparisonVerdict::Opposite),
        (0.30, 0.35, 1.0, ComparisonVerdict::DiffersInSize),
        (1.82, 2.02, 1.0, ComparisonVerdict::DiffersInSize),
        (0.5, 0.6, 0.97, ComparisonVerdict::DiffersInSize),
        (1.6, 1.7, 0.97, ComparisonVerdict::Opposite),
        (0.9, 1.3, 1.0, ComparisonVerdict::Unresolved),
    ] {
        assert_verdict((lo, hi), paper, verdict);
    }
}

#[test]
fn a_ratio_beside_a_papers_effect() {
    for (lo, hi, paper, verdict) in [
        (0.8, 1.25, 4.5, ComparisonVerdict::Equal),
        (0.9, 1.3, 4.5, ComparisonVerdict::SameSign),
        (0.1, 0.2, 4.5, ComparisonVerdict::Opposite),
        // The interval contains 1, but is too wide to show the absence of an effect.
        (0.1, 0.3, 4.5, ComparisonVerdict::Unresolved),
        (0.0, 3.13, 0.67, ComparisonVerdict::Unresolved),
        // The ratio is close enough to be equal, but on the other side of 1.
        (0.85, 0.88, 1.1, ComparisonVerdict::Opposite),
    ] {
        assert_verdict((lo, hi), paper, verdict);
    }
    let once = |value| Estimate {
        value,
        lo: value,
        hi: value,
        n: 1,
    };
    let paper = PublishedRatio {
        ratio: 4.5,
        claimed: false,
    };
    let found = compare_with_paper(&once(1.0), paper);
    assert_eq!(
        found,
        ComparisonVerdict::SameSign,
        "one round proves no equality"
    );
    assert_eq!(
        compare_with_paper(&once(1.0 / 4.5), paper),
        ComparisonVerdict::Unresolved
    );
}

#[test]
fn verdicts_have_stable_names() {
    let text = serde_json::to_string(&[
        ComparisonVerdict::SameSign,
        ComparisonVerdict::Equal,
        ComparisonVerdict::NoEffect,
        ComparisonVerdict::DiffersInSize,
        ComparisonVerdict::Opposite,
        ComparisonVerdict::Unresolved,
        ComparisonVerdict::NotComparable,
        ComparisonVerdict::NotMeasurable,
    ]);
    assert_eq!(
        text.unwrap(),
        concat!(
            r#"["same-sign","equal","no-effect","differs-in-size","opposite","unresolved","#,
            r#""not-comparable","not-measurable"]"#
        )
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
        samples in prop::collection::vec(-1e9f64..1e9, 1..40),
    ) {
        let found = estimate(&samples).unwrap();
        let least = samples.iter().copied().fold(f64::MAX, f64::min);
        let most = samples.iter().copied().fold(f64::MIN, f64::max);
        prop_assert!(least <= found.lo && found.lo <= found.value);
        prop_assert!(found.value <= found.hi && found.hi <= most);
    }

    #[test]
    fn estimates_ignore_the_order(
        mut samples in prop::collection::vec(-1e6f64..1e6, 1..20),
    ) {
        let found = estimate(&samples);
        samples.reverse();
        prop_assert_eq!(found, estimate(&samples));
    }

    #[test]
    fn estimates_scale_with_samples(samples in prop::collection::vec(1.0f64..1e6, 2..20)) {
        let doubled: Vec<f64> = samples.iter().map(|x| x * 2.0).collect();
        let (one, two) = (estimate(&samples).unwrap(), estimate(&doubled).unwrap());
        prop_assert_eq!(two.lo, one.lo * 2.0);
        prop_assert_eq!(two.hi, one.hi * 2.0);
    }

    #[test]
    fn sides_are_opposites(lo in 0.1f64..2.0, width in 0.0f64..1.0, bar in 0.5f64..1.5) {
        let figure = Estimate { lo, value: lo + width / 2.0, hi: lo + width, n: 5 };
        let above = against(&figure, bar, ThresholdSide::Above);
        let below = against(&figure, bar, ThresholdSide::Below);
        let mirrored = match above {
            ComparisonVerdict::SameSign if figure.lo > bar => ComparisonVerdict::Opposite,
            ComparisonVerdict::Opposite => ComparisonVerdict::SameSign,
            other if figure.lo > bar || figure.hi < bar => other,
            _ => below,
        };
        prop_assert_eq!(below, mirrored);
    }
}
