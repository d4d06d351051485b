//! Intervals of shares, from the scatter of shares over windows of equal duration.

use crate::model::{Sample, Session};

/// Windows of a session.
pub(super) const WINDOWS: usize = 10;
/// Minimum samples of a window, on average.
const SAMPLES_MIN: usize = 50;
/// Student's t for 95 % with one degree of freedom fewer than windows.
const STUDENT: f64 = 2.262;

/// Returns the samples of each window, or nothing if a session has too few of these samples.
pub(super) fn cut(session: &Session, counts: impl Fn(&Sample) -> bool) -> Vec<Vec<Sample>> {
    let ran_ns = session.head.ran_ns;
    if ran_ns == 0 || session.samples.iter().filter(|s| counts(s)).count() < WINDOWS * SAMPLES_MIN {
        return Vec::new();
    }
    let mut windows = vec![Vec::new(); WINDOWS];
    for sample in &session.samples {
        let at = u128::from(sample.0) * WINDOWS as u128 / u128::from(ran_ns);
        let at = usize::try_from(at).unwrap_or(WINDOWS).min(WINDOWS - 1);
        if let Some(window) = windows.get_mut(at) {
            window.push(*sample);
        }
    }
    windows
}

/// Returns half of the 95 % interval of the difference of two means, if both have several windows.
pub(super) fn half_width(a: &[f64], b: &[f64]) -> Option<f64> {
    Some(STUDENT * (error(a)? + error(b)?).sqrt())
}

/// Returns the squared error of the mean.
fn error(values: &[f64]) -> Option<f64> {
    let n = values.len() as f64;
    if values.len() < 2 {
        return None;
    }
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some(squares / (n - 1.0) / n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::session;

    #[test]
    fn windows_have_equal_durations() {
        let mut session = session();
        let all = |session: &Session| cut(session, |_| true);
        assert!(all(&session).is_empty(), "200 samples are too few");
        let samples = session.samples.clone();
        session.samples = samples.repeat(3);
        let windows = all(&session);
        assert_eq!(windows.len(), WINDOWS);
        assert!(windows.iter().all(|window| window.len() == 60));
        session.head.ran_ns /= 2;
        let late = all(&session);
        assert_eq!(
            late.last().map(Vec::len),
            Some(330),
            "later ones are in the last window"
        );
    }

    #[test]
    fn scatter_widens_the_interval() {
        assert_eq!(half_width(&[0.5; 10], &[0.75; 10]), Some(0.0));
        let scattered: Vec<f64> = (0..10).map(|n| 0.5 + f64::from(n % 2) * 0.2).collect();
        let width = half_width(&scattered, &[0.7; 10]).unwrap();
        assert!((width - 0.0754).abs() < 0.001, "{width}");
        assert_eq!(half_width(&[0.5], &[0.7]), None);
    }
}
