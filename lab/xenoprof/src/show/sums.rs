//! The sums of a domain, and whether they are usable.

use crate::attribute::{Attribution, DomainProfile};
use crate::model::{BridgeTraffic, DomainKind, HopLedger, Mode, ProfiledDomain, Session};
use crate::unit::Unit;
use figures::correction::{Correction, REPORTED, StampedTime};
use std::collections::BTreeMap;

/// Within these bounds, the quotient (samples × period) ÷ exact CPU time is good.
pub(crate) const GOOD: [f64; 2] = [0.95, 1.05];
/// Outside of these bounds, samples are unusable for classes.
pub(crate) const USABLE: [f64; 2] = [0.8, 1.25];
/// Minimum number of samples for a distribution, unless each occurrence of an event is sampled.
pub(crate) const SAMPLES_MIN: u64 = 100;

/// Without a non-maskable interrupt, smaller differences between classes are not significant.
pub(crate) const COARSE_SHARE: f64 = 0.1;
/// `COARSE_SHARE` as text.
pub(crate) const COARSE_NOTE: &str = "without a non-maskable interrupt, differences between \
                                      classes of less than 10 points are not significant";

/// A domain, with all data about its time.
pub(crate) struct DomainSums<'a> {
    pub(crate) domain: &'a ProfiledDomain,
    pub(crate) part: &'a DomainProfile,
    /// Exact CPU time × TSC rate.
    pub(crate) cycles: Option<f64>,
    /// Cycles, or occurrences of the sampled event if it does not measure time.
    pub(crate) weight: Option<f64>,
    /// Samples × period ÷ exact CPU time.
    pub(crate) raw_exact: Option<f64>,
    /// Ledger ÷ exact CPU time, without the ledger's correction.
    pub(crate) closure: Option<f64>,
    /// The ledger's correction.
    pub(crate) correction: Option<Correction>,
    pub(crate) expected: u64,
    pub(crate) lost: u64,
    /// Minimum number of samples for a distribution.
    samples_min: u64,
}

impl<'a> DomainSums<'a> {
    /// Returns the sums of every active domain, the largest first.
    pub(crate) fn of(session: &'a Session, found: &'a Attribution) -> Vec<Self> {
        let mut sums: Vec<Self> = session
            .domains
            .iter()
            .zip(&found.parts)
            .enumerate()
            .map(|(index, (domain, part))| Self::of_domain(session, index, domain, part))
            .filter(|sums| sums.part.samples > 0 || sums.weight.unwrap_or(0.0) > 0.0)
            .collect();
        let weight = |sums: &Self| sums.weight.unwrap_or(0.0);
        sums.sort_by(|x, y| weight(y).total_cmp(&weight(x)));
        sums
    }

    fn of_domain(
        session: &Session,
        index: usize,
        domain: &'a ProfiledDomain,
        part: &'a DomainProfile,
    ) -> Self {
        let per_ns = session.head.tsc_hz as f64 / 1e9;
        let cycles = domain.cpu_ns.map(|ns| ns as f64 * per_ns);
        let is_clock = session.head.unit() == Unit::Nanoseconds;
        let counted = part.samples as f64 * session.head.period as f64;
        let exact = domain.cpu_ns.filter(|ns| *ns > 0).map(|ns| ns as f64);
        let ledger = domain.ledger.as_ref().filter(|ledger| ledger.cpu_ns > 0);
        let rows = || {
            session
                .losses
                .iter()
                .filter(move |loss| loss.domain == Some(index as u32))
        };
        Self {
            domain,
            part,
            cycles,
            weight: match session.head.is_time() {
                true => cycles,
                false => Some(counted),
            },
            raw_exact: exact.filter(|_| is_clock).map(|exact| counted / exact),
            closure: ledger.map(|ledger| stamped(ledger) / (ledger.cpu_ns as f64 * per_ns)),
            correction: ledger.map(|ledger| correction(ledger, per_ns, stolen_ns(session))),
            expected: total(rows().map(|loss| loss.expected)),
            lost: total(rows().map(crate::loss::Loss::lost)),
            samples_min: match session.head.is_time() || session.head.period > 1 {
                true => SAMPLES_MIN,
                false => 1,
            },
        }
    }

    /// Returns the share that the ledger's correction removed, if it is large.
    pub(crate) fn large_correction(&self) -> Option<f64> {
        let share = self.correction.map(Correction::total);
        share.filter(|share| *share > REPORTED)
    }

    /// Returns a sentence about a large correction of the ledger, with its causes.
    pub(crate) fn correction_because(&self, tsc_hz: u64) -> Option<String> {
        let (text, ledger) = (self.correction?.text()?, self.domain.ledger.as_ref()?);
        Some(format!(
            "{}: {text}; in all {:.0} ms; it waited {:.0} ms for a CPU and was preempted {} times",
            self.domain.name,
            ledger.corrected as f64 / tsc_hz.max(1) as f64 * 1e3,
            ledger.waited_ns as f64 / 1e6,
            ledger.preempted
        ))
    }

    /// Returns whether the domain's time counts in the session's total.
    pub(crate) fn counts(&self) -> bool {
        counts(self.domain)
    }

    /// Returns the reason for not reporting the domain's classes, if there is one.
    pub(crate) fn refusal(&self) -> Option<String> {
        let samples = self.part.samples;
        if samples < self.samples_min {
            return Some(format!(
                "{samples} samples are too few for a distribution: {}",
                self.samples_min
            ));
        }
        let raw_exact = self.raw_exact?;
        outside(raw_exact, USABLE).then(|| {
            format!(
                "samples account for {raw_exact:.2} of the exact CPU time: outside {} to {}, \
                 classes are refused",
                USABLE[0], USABLE[1]
            )
        })
    }

    /// Returns the reason for doubting the domain's figures, if there is one.
    pub(crate) fn unreliable_because(&self) -> Option<String> {
        let raw_exact = self.raw_exact.filter(|ratio| outside(*ratio, GOOD))?;
        let reason = match raw_exact > 1.0 {
            true => "samples of code with interrupts off accumulate in it",
            false => "periods in code with interrupts off are lost",
        };
        Some(format!(
            "samples account for {raw_exact:.2} of the exact CPU time: {reason}"
        ))
    }

    /// Returns the share of the stacks with user code that reach `main` or the start of a thread.
    pub(crate) fn whole_stacks(&self) -> Option<f64> {
        let DomainProfile { in_user, whole, .. } = self.part;
        (*in_user > 0).then(|| *whole as f64 / *in_user as f64)
    }

    /// Converts a count of samples to a share of the domain's time.
    pub(crate) fn share(&self, count: u64) -> f64 {
        count as f64 / self.part.samples.max(1) as f64
    }
}

/// Returns whether a domain's time counts in the session's total.
pub(crate) fn counts(domain: &ProfiledDomain) -> bool {
    !matches!(
        domain.kind,
        DomainKind::Idle | DomainKind::Profiler | DomainKind::Device | DomainKind::Other
    ) && domain.mode != Mode::AgentOnly
}

pub(crate) fn outside(value: f64, [low, high]: [f64; 2]) -> bool {
    !(low..=high).contains(&value)
}

/// Denominators of figures per packet and per byte.
pub(crate) struct Denominator {
    /// Traffic of all driver domains; `None` in a session without a driver domain.
    pub(crate) traffic: Option<BridgeTraffic>,
    /// Number of packets, or the reason why figures per packet are refused.
    pub(crate) packets: Result<f64, String>,
}

impl Denominator {
    pub(crate) fn of(session: &Session) -> Self {
        let carried = || session.domains.iter().filter_map(|domain| domain.traffic);
        let traffic = carried().next().map(|_| BridgeTraffic {
            frames: total(carried().map(|traffic| traffic.frames)),
            bytes: total(carried().map(|traffic| traffic.bytes)),
        });
        let mut kinds = session.domains.iter().map(|domain| domain.kind);
        let none = || match kinds.any(|kind| kind == DomainKind::Driver) {
            true => Err("the driver domain's packets are unknown".to_owned()),
            false => Err("no driver domain was read".to_owned()),
        };
        Self {
            packets: traffic.map_or_else(none, BridgeTraffic::packets),
            traffic,
        }
    }

    /// Returns the number of packets if it is large enough.
    pub(crate) fn packets(&self) -> Option<f64> {
        self.packets.as_ref().ok().copied()
    }

    /// Returns the numbers of packets and bytes, if there are enough packets.
    pub(crate) fn packets_and_bytes(&self) -> Option<[f64; 2]> {
        Some([self.packets()?, self.traffic?.bytes as f64])
    }

    /// Returns the reason for not reporting figures per packet of a session with a driver domain,
    /// if there is one.
    pub(crate) fn refusal(&self) -> Option<&str> {
        self.traffic?;
        self.packets.as_ref().err().map(String::as_str)
    }
}

/// Returns the cycles between a ledger's stamps, without its correction.
fn stamped(ledger: &HopLedger) -> f64 {
    total(ledger.hops.values().copied()).saturating_add(ledger.corrected) as f64
}

/// Returns the correction of a ledger by cause. `per_ns` is the number of cycles per nanosecond.
fn correction(ledger: &HopLedger, per_ns: f64, stolen_ns: u64) -> Correction {
    Correction::of(StampedTime {
        stamped: stamped(ledger),
        removed: ledger.corrected as f64,
        waited: ledger.waited_ns as f64 * per_ns,
        stolen: stolen_ns as f64 * per_ns,
        preempted: ledger.preempted > 0,
    })
}

/// Returns the time that the hypervisor took from all CPUs, nanoseconds. Sessions of events other
/// than time have no such figure.
fn stolen_ns(session: &Session) -> u64 {
    let of_cpus = session.losses.iter().filter(|loss| loss.domain.is_none());
    let periods = total(of_cpus.map(|loss| loss.steal));
    match session.head.unit() {
        Unit::Nanoseconds => periods.saturating_mul(session.head.period),
        Unit::Cycles | Unit::Occurrences => 0,
    }
}

/// Returns the sum of `counts`. It saturates, because a file may contain any values.
fn total(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

/// Returns cycles by beneficiary: each domain's exact time, divided in proportion to its samples.
/// Events that do not measure time divide themselves.
pub(crate) fn charged_to(all: &[DomainSums<'_>]) -> BTreeMap<String, f64> {
    let mut served: BTreeMap<String, f64> = BTreeMap::new();
    for sums in all {
        for (who, count) in &sums.part.charged_to {
            if let Some(weight) = sums.weight {
                *served.entry(who.clone()).or_default() += sums.share(*count) * weight;
            }
        }
    }
    served
}
