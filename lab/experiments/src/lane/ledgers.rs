//! Figures of the domains' hop ledgers.
//!
//! `closure.<domain>` is the time between a ledger's stamps ÷ the CPU time of the domain's thread.
//! `corrected_share.<domain>` is the share of that time that the ledger removed because the CPU
//! clock did not confirm it, and `corrected_share.<domain>.<cause>` the part of each cause.

use super::reading::Reading;
use figures::correction::{Correction, StampedTime};
use figures::report::Index;
use std::collections::BTreeMap;

/// Adds cycles per packet by domain and hop, and how well each ledger agrees with the CPU clock.
pub fn account(path: &Reading, packets: f64, out: &mut BTreeMap<String, f64>) {
    let mut ledgers: BTreeMap<&str, f64> = BTreeMap::new();
    for (name, cycles) in &path.sums {
        if let Some((domain, hop)) = name.split_once(".hop.") {
            *ledgers.entry(domain).or_default() += cycles;
            if packets > 0.0 {
                out.insert(
                    format!("cycles_per_packet.{domain}.hop.{hop}"),
                    cycles / packets,
                );
            }
        }
    }
    for (domain, ledger) in ledgers {
        let of = |what: &str| path.sums.get(&format!("{domain}.{what}")).copied();
        let Some(cpu) = of("cpu").filter(|&cpu| cpu > 0.0) else {
            continue;
        };
        let removed = of("corrected").unwrap_or(0.0);
        let stamped = ledger + removed;
        // `closure_raw` was the uncorrected ratio while `closure` was corrected; scripts read it.
        for name in ["closure", "closure_raw"] {
            out.insert(format!("{name}.{domain}"), stamped / cpu);
        }
        let metric = format!("corrected_share.{domain}");
        out.insert(metric.clone(), removed / stamped.max(1.0));
        // Threads of one process have no separate waits.
        let (Some(cpu_ns), Some(waited_ns)) = (of("cpu_ns"), of("waited_ns")) else {
            continue;
        };
        let per_ns = cpu / cpu_ns.max(1.0);
        let stolen_ns = path.sums.get("stolen_ns").copied().unwrap_or(0.0);
        let correction = Correction::of(StampedTime {
            stamped,
            removed,
            waited: waited_ns * per_ns,
            stolen: stolen_ns * per_ns,
            preempted: of("preempted").is_some_and(|count| count > 0.0),
        });
        for (cause, share) in Correction::CAUSES.into_iter().zip(correction.shares()) {
            out.insert(format!("{metric}.{cause}"), share);
        }
    }
}

/// Returns the cycles of a domain's threads per packet, without its agent: the sum of its hops ÷
/// the share of the CPU time that the hops account for.
#[must_use]
pub fn own_threads(domain: &str, figures: &BTreeMap<String, f64>) -> Option<f64> {
    let hops = format!("cycles_per_packet.{domain}.hop.");
    let of_hops = figures.iter().filter(|(name, _)| name.starts_with(&hops));
    let ledger: f64 = of_hops.map(|(_, cycles)| cycles).sum();
    let confirmed = confirmed(domain, figures)?;
    (confirmed > 0.0).then(|| ledger / confirmed)
}

/// Returns the sum of a ledger's hops, after its correction, ÷ the CPU time of the domain's thread.
#[must_use]
pub fn confirmed(domain: &str, figures: &BTreeMap<String, f64>) -> Option<f64> {
    let closure = figures.get(&format!("closure.{domain}"))?;
    let removed = figures.get(&format!("corrected_share.{domain}"));
    Some(closure * (1.0 - removed.copied().unwrap_or(0.0)))
}

/// Returns the sentence about a large correction of a domain's ledger, with its known causes.
#[must_use]
pub fn correction(index: &Index<'_>, config: &str, domain: &str) -> Option<String> {
    Correction::text_of_medians(domain, |metric| index.get(config, metric)?.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closure_is_uncorrected_and_corrections_have_causes() {
        let mut driver = vec![
            ("driver.hop.nic", 6e8),
            ("driver.hop.idle", 4e8),
            ("driver.cpu", 1e9),
            ("driver.cpu_ns", 0.5e9),
            ("driver.corrected", 2.5e8),
            ("driver.preempted", 3.0),
            ("driver.waited_ns", 1e8),
            ("stolen_ns", 0.05e8),
        ];
        let figures = |sums_of: &[(&str, f64)]| {
            let mut out = BTreeMap::new();
            account(&Reading::of_sums(sums_of), 1e6, &mut out);
            out
        };
        let found = figures(&driver);
        assert_eq!(found["closure.driver"], 1.25);
        assert_eq!(found["closure_raw.driver"], 1.25);
        assert_eq!(found["corrected_share.driver"], 0.2);
        let cause = |name: &str| found[&format!("corrected_share.driver.{name}")];
        assert_eq!(cause("preemption"), 0.16);
        assert_eq!(cause("steal"), 0.008);
        assert!((cause("wake_up") - 0.032).abs() < 1e-12);
        assert_eq!(confirmed("driver", &found), Some(1.0));
        assert_eq!(own_threads("driver", &found), Some(1000.0));
        assert_eq!(own_threads("guest", &found), None);

        driver.retain(|(name, _)| *name != "driver.waited_ns");
        let found = figures(&driver);
        assert_eq!(found["corrected_share.driver"], 0.2);
        assert!(!found.contains_key("corrected_share.driver.steal"));
    }
}
