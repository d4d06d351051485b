//! Corrections of hop ledgers by the CPU clock, and their causes.
//!
//! The stamps of a ledger also measure time in which its thread did not run. The ledger removes
//! cycles that the thread's CPU clock does not confirm. `closure` is the quotient before this
//! correction; the share that the correction removed is reported beside it.

/// Share of a ledger's cycles above which reports state a correction and its cause.
pub const REPORTED: f64 = 0.05;
/// Share below which a sentence omits a cause.
const NAMED: f64 = 0.005;

/// Times of a ledger's thread between two readings, all in the same unit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StampedTime {
    /// Time between stamps, before the correction.
    pub stamped: f64,
    /// Time that the correction removed.
    pub removed: f64,
    /// Time in which the thread could have run but had no CPU.
    pub waited: f64,
    /// Time that the hypervisor took from any CPU.
    pub stolen: f64,
    /// Whether another thread took the CPU from this one.
    pub preempted: bool,
}

/// A correction by cause, as shares of the time between stamps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Correction {
    /// Other threads had the CPU.
    pub preemption: f64,
    /// The hypervisor had the CPU.
    pub steal: f64,
    /// Sleeps and wake-ups took the time, also of a thread that waited for its CPU only after
    /// wake-ups. The rest of the correction also counts here.
    pub wake_up: f64,
}

impl Correction {
    /// Names of the causes, in the order of [`Correction::shares`].
    pub const CAUSES: [&'static str; 3] = ["preemption", "steal", "wake_up"];

    /// Divides a correction among its causes. Time that the thread waited or that was stolen may
    /// also lie outside of the stamps, so each cause is an upper bound, and the first ones have
    /// precedence.
    #[must_use]
    pub fn of(time: StampedTime) -> Self {
        let share = |part: f64| part.max(0.0) / time.stamped.max(1.0);
        let preemption = match time.preempted {
            true => time.waited.min(time.removed),
            false => 0.0,
        };
        let steal = time.stolen.min(time.removed - preemption);
        Self {
            preemption: share(preemption),
            steal: share(steal),
            wake_up: share(time.removed - preemption - steal),
        }
    }

    /// Returns the correction whose share of each cause `share` returns by the cause's name, or
    /// `None` if one is unknown.
    fn from_shares(share: impl Fn(&str) -> Option<f64>) -> Option<Self> {
        let [preemption, steal, wake_up] = Self::CAUSES.map(share);
        Some(Self {
            preemption: preemption?,
            steal: steal?,
            wake_up: wake_up?,
        })
    }

    /// Returns the share of each cause.
    #[must_use]
    pub const fn shares(self) -> [f64; 3] {
        [self.preemption, self.steal, self.wake_up]
    }

    /// Returns the share of all causes.
    #[must_use]
    pub fn total(self) -> f64 {
        self.shares().iter().sum()
    }

    /// Returns the correction with its causes, the largest first, or `None` if it is at most
    /// [`REPORTED`].
    #[must_use]
    pub fn text(self) -> Option<String> {
        text(self.total(), Some(self))
    }

    /// Returns the sentence about a large correction of a domain's ledger in several rounds, as far
    /// as its causes are known. `median` returns the median of a metric. The medians of the causes
    /// need not add up to the median of the correction, so they only divide it.
    #[must_use]
    pub fn text_of_medians(domain: &str, median: impl Fn(&str) -> Option<f64>) -> Option<String> {
        let metric = format!("corrected_share.{domain}");
        let causes = Self::from_shares(|cause| median(&format!("{metric}.{cause}")));
        text(median(&metric)?, causes)
    }
}

/// Returns a correction by the share `total` with its causes, the largest first, or `None` if it is
/// at most [`REPORTED`].
fn text(total: f64, causes: Option<Correction>) -> Option<String> {
    let words = ["preemption", "steal", "sleeps and wake-ups"];
    let shares = causes.map_or([0.0; 3], Correction::shares);
    let mut causes: Vec<(&str, f64)> = words.into_iter().zip(shares).collect();
    causes.retain(|(_, share)| *share >= NAMED);
    causes.sort_by(|a, b| b.1.total_cmp(&a.1));
    let causes: Vec<String> = causes
        .iter()
        .map(|(cause, share)| format!("{cause} {:.0} %", share * 100.0))
        .collect();
    let causes = match causes.is_empty() {
        true => String::new(),
        false => format!(": {}", causes.join(", ")),
    };
    (total > REPORTED).then(|| {
        format!(
            "its ledger was corrected by {:.0} % to its CPU clock{causes}",
            total * 100.0
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: StampedTime = StampedTime {
        stamped: 200.0,
        removed: 100.0,
        waited: 60.0,
        stolen: 30.0,
        preempted: true,
    };

    #[test]
    fn a_correction_is_divided_among_its_causes() {
        let of = |time| Correction::of(time).shares();
        assert_eq!(of(TIME), [0.3, 0.15, 0.05]);
        let awake = StampedTime {
            preempted: false,
            ..TIME
        };
        assert_eq!(of(awake), [0.0, 0.15, 0.35]);
        let long = StampedTime {
            waited: 900.0,
            ..TIME
        };
        assert_eq!(
            of(long),
            [0.5, 0.0, 0.0],
            "most waits are outside of stamps"
        );
        assert_eq!(of(StampedTime::default()), [0.0; 3]);
    }

    #[test]
    fn shares_of_causes_are_read_by_name() {
        let correction = Correction::of(TIME);
        let named = || Correction::CAUSES.into_iter().zip(correction.shares());
        let share = |name: &str| Some(named().find(|(cause, _)| *cause == name)?.1);
        assert_eq!(Correction::from_shares(share), Some(correction));
        let lacking = |name: &str| share(name).filter(|_| name != "steal");
        assert_eq!(Correction::from_shares(lacking), None);
    }

    #[test]
    fn causes_do_not_decide_whether_a_correction_is_large() {
        let text = |total: f64, of_cause: Option<f64>| {
            Correction::text_of_medians("guest", |metric| match metric {
                "corrected_share.guest" => Some(total),
                "corrected_share.guest.steal" => of_cause,
                _ => of_cause.map(|_| 0.0),
            })
        };
        let total = "its ledger was corrected by 10 % to its CPU clock";
        assert_eq!(text(0.1, Some(0.0)).unwrap(), total);
        assert_eq!(text(0.1, None).unwrap(), total, "unknown causes");
        assert_eq!(
            text(0.1, Some(0.2)).unwrap(),
            format!("{total}: steal 20 %")
        );
        assert_eq!(text(0.05, Some(0.2)), None);
    }

    #[test]
    fn large_corrections_have_a_text() {
        assert_eq!(
            Correction::of(TIME).text().unwrap(),
            "its ledger was corrected by 50 % to its CPU clock: preemption 30 %, steal 15 %, \
             sleeps and wake-ups 5 %"
        );
        let small = StampedTime {
            removed: 10.0,
            ..TIME
        };
        assert_eq!(Correction::of(small).text(), None);
        let large = StampedTime {
            removed: 11.0,
            ..TIME
        };
        let text = Correction::of(large).text().unwrap();
        assert!(text.ends_with("clock: preemption 6 %"), "{text}");
    }
}
