//! Round values for the ticks of axes.

use figures::report::number;

/// Maximum number of ticks of a linear axis, besides the one at 0.
const TICKS_MAX: f64 = 5.0;
/// Round numbers from one power of ten to the next.
const ROUND: [f64; 3] = [1.0, 2.0, 5.0];

/// Returns the end of a linear axis for values up to `most`, and the distance of its ticks. The end
/// is a multiple of the distance.
pub(super) fn rounded(most: f64) -> (f64, f64) {
    let most = if most > 0.0 { most } else { 1.0 };
    let step = step(most);
    ((most / step).ceil() * step, step)
}

/// Returns the distance of the ticks of an axis from 0 to `most`: 1, 2 or 5 times a power of ten.
pub(super) fn step(most: f64) -> f64 {
    let least = most / TICKS_MAX;
    let power = 10_f64.powi(least.log10().floor() as i32);
    let round = ROUND.into_iter().find(|round| round * power >= least);
    power * round.unwrap_or(10.0)
}

/// Returns the ticks of a linear axis from 0 to `end`.
pub(super) fn linear(end: f64, step: f64) -> Vec<f64> {
    // The quotient of two decimal fractions can be slightly below a whole number.
    let count = (end / step + 1e-6).floor().min(TICKS_MAX + 1.0) as u32;
    (0..=count).map(|at| f64::from(at) * step).collect()
}

/// Returns the ticks of a logarithmic axis: the round values in a range of positive ones.
pub(super) fn logarithmic(lo: f64, hi: f64) -> Vec<f64> {
    let [first, last] = [lo, hi].map(|end| end.log10().floor() as i32);
    let powers = (first..=last).map(|power| 10_f64.powi(power));
    let all = powers.flat_map(|power| ROUND.map(|round| round * power));
    all.filter(|value| (lo..=hi).contains(value)).collect()
}

/// Formats the value of a tick, with as many decimals as the distance of the ticks has.
pub(super) fn label(value: f64, step: f64) -> String {
    let decimals = (-step.log10().floor()).max(0.0) as usize;
    match value {
        0.0 => "0".to_owned(),
        large if large >= 999.5 => number(large),
        small => format!("{small:.decimals$}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the labels of an axis for values up to `most`.
    fn labels(most: f64) -> Vec<String> {
        let (end, step) = rounded(most);
        let ticks = linear(end, step).into_iter();
        ticks.map(|value| label(value, step)).collect()
    }

    #[test]
    fn ticks_of_a_linear_axis_are_round() {
        assert_eq!(labels(1.0), ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(2.3), ["0", "0.5", "1.0", "1.5", "2.0", "2.5"]);
        assert_eq!(labels(37.0), ["0", "10", "20", "30", "40"]);
        assert_eq!(labels(0.031), ["0", "0.01", "0.02", "0.03", "0.04"]);
        assert_eq!(labels(1700.0).last().unwrap(), "2\u{202f}000");
        assert_eq!(labels(0.0).last().unwrap(), "1.0", "no positive value");
    }

    #[test]
    fn ticks_of_a_logarithmic_axis_are_round() {
        let ticks = logarithmic(1000.0, 20_000.0);
        assert_eq!(ticks, [1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0]);
        assert_eq!(logarithmic(3.0, 30.0), [5.0, 10.0, 20.0]);
    }
}
