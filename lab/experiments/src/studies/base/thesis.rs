//! Cycle accounting of Ram's thesis: cycles of only the machine under test, by domain and class of
//! functions (Table 2.1).
//!
//! In the thesis the wire's far end is another machine, so all sums exclude it. The thesis's guest
//! domain includes the application. Here the application is a separate process, which is charged to
//! the guest. A packet is a full segment, 1514 bytes on the wire. The work of the monitor and of
//! the driver domain's agent is charged to the domain that makes hypercalls while packets flow: the
//! driver domain with the classic mechanisms, the guest with the new one. The monitor's part is
//! also printed separately, outside the total.

use crate::lane::ledgers::own_threads;
use crate::lane::running::Running;
use crate::plan::PayloadDirection;
use figures::metric::SEGMENT_BYTES;
use std::collections::BTreeMap;

/// Hops of the ledger by domain and class. A ledger cannot split a system call, so the kernel's
/// work for an endpoint is one class.
const CLASSES: &[(&str, &str, &[&str])] = &[
    ("driver", "driver", &["nic"]),
    ("driver", "copy", &["copy"]),
    ("driver", "netback", &["netback", "ring"]),
    ("driver", "grant", &["grant"]),
    ("driver", UNSPLIT, &["lro", "bridge", "control", "idle"]),
    ("guest", "netfront", &["netfront", "ring", "lro"]),
    ("guest", "grant", &["grant"]),
    ("guest", UNSPLIT, &["endpoint", "control", "idle"]),
];

const UNSPLIT: &str = "network+usercopy+other";

/// Memory shared between a machine's domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sharing {
    /// Page frames that guests grant to the driver domain.
    pub(super) pages: u32,
    /// True if the guests, not the driver domain, make hypercalls while packets flow.
    pub(super) asked_by_guests: bool,
}

impl Sharing {
    /// Queries the monitor.
    ///
    /// # Errors
    /// Returns an error if the monitor does not answer.
    pub(super) fn of(machine: &Running) -> anyhow::Result<Self> {
        let audit = machine.audit()?;
        Ok(Self {
            pages: audit.domains.iter().map(|domain| domain.granted).sum(),
            asked_by_guests: machine.grants().has_tables(),
        })
    }
}

/// Converts the figures of a stream's window of `seconds` seconds to those of the thesis. `shared`
/// is `None` for columns without a machine.
pub(super) fn count(
    direction: PayloadDirection,
    seconds: f64,
    shared: Option<Sharing>,
    figures: &mut BTreeMap<String, f64>,
) {
    let of = |part: &str| {
        let name = format!("cycles_per_packet.{part}");
        figures.get(&name).copied().unwrap_or(0.0)
    };
    let near = match direction {
        PayloadDirection::ToGuest => "receiver",
        PayloadDirection::FromGuest => "sender",
    };
    let agent = |domain: &str| {
        let own = own_threads(domain, figures).unwrap_or_else(|| of(domain));
        (of(domain) - own).max(0.0)
    };
    let (mut driver, mut guest) = (of("driver"), of("guest") + of(near));
    let mut asked = of("monitor");
    if shared.is_some_and(|shared| shared.asked_by_guests) {
        driver -= agent("driver");
        asked += agent("driver");
        guest += asked;
    } else {
        driver += asked;
    }
    let mut counted = vec![
        ("driver".to_owned(), driver),
        ("guest".to_owned(), guest),
        ("total".to_owned(), driver + guest + of("nic_kernel")),
    ];
    if let Some(shared) = shared {
        for (domain, class, hops) in CLASSES {
            let hop = |hop: &&str| of(&format!("{domain}.hop.{hop}"));
            counted.push((
                format!("{domain}.class.{class}"),
                hops.iter().map(hop).sum(),
            ));
        }
        let (by_driver, by_guest) = match shared.asked_by_guests {
            true => (0.0, asked),
            false => (asked + agent("driver"), 0.0),
        };
        counted.push(("driver.class.xen".to_owned(), by_driver));
        let by_guest = by_guest + agent("guest");
        counted.push(("guest.class.xen".to_owned(), by_guest));
        // The cost of the mechanism consists of the domain's calls and of the work of monitor and
        // agents.
        let driver_grants = of("driver.hop.grant") + by_driver;
        let guest_grants = of("guest.hop.grant") + by_guest;
        counted.push(("driver.grants".to_owned(), driver_grants));
        counted.push(("grants".to_owned(), driver_grants + guest_grants));
        let bytes = figures.get("throughput").copied().unwrap_or(0.0) * 1e9 / 8.0 * seconds;
        let packets = bytes / SEGMENT_BYTES;
        // The thesis divides by the pages that a window used. Here every granted page counts even
        // if it is unused, and each new grant of a page counts again, so this is a lower bound.
        let anew = figures.get("granted_anew").copied().unwrap_or(0.0) * packets;
        let reused = packets / (f64::from(shared.pages) + anew).max(1.0);
        figures.insert("pages_reused".to_owned(), reused);
    }
    // Totals of hardware events also cover only the machine under test.
    let events: Vec<String> = figures
        .keys()
        .filter_map(|name| name.strip_suffix("_per_packet.total"))
        .filter(|event| *event != "cycles")
        .map(|event| format!("{event}_per_packet"))
        .collect();
    for event in events {
        let parts = ["driver", "guest", "monitor", "nic_kernel", near].into_iter();
        let own = parts.filter_map(|part| figures.get(&format!("{event}.{part}")));
        let total: f64 = own.sum();
        figures.insert(format!("{event}.total"), total);
    }
    event_rates(figures);
    figures.retain(|name, _| !name.ends_with(".receive_side"));
    for (part, cycles) in counted {
        figures.insert(format!("cycles_per_byte.{part}"), cycles / SEGMENT_BYTES);
        figures.insert(format!("cycles_per_packet.{part}"), cycles);
    }
}

/// Adds totals of hardware events per second and per instruction, as Menon et al. report them.
fn event_rates(figures: &mut BTreeMap<String, f64>) {
    let packets_per_s =
        figures.get("throughput").copied().unwrap_or(0.0) * 1e9 / 8.0 / SEGMENT_BYTES;
    let instructions = figures.get("instructions_per_packet.total").copied();
    let totals: Vec<(String, f64)> = figures
        .iter()
        .filter_map(|(name, count)| Some((name.strip_suffix("_per_packet.total")?, *count)))
        .filter(|(event, _)| *event != "cycles")
        .map(|(event, count)| (event.to_owned(), count))
        .collect();
    for (event, count) in totals {
        figures.insert(format!("{event}_per_second.total"), count * packets_per_s);
        if let Some(all) = instructions.filter(|all| *all > 0.0 && event != "instructions") {
            figures.insert(format!("{event}_per_instruction.total"), count / all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(all: &[(&str, f64)]) -> BTreeMap<String, f64> {
        let per_packet = |(name, value): &(&str, f64)| match *name {
            "throughput" | "closure.driver" | "corrected_share.driver" => {
                ((*name).to_owned(), *value)
            }
            name => (format!("cycles_per_packet.{name}"), *value),
        };
        all.iter().map(per_packet).collect()
    }

    #[test]
    fn the_far_end_is_excluded_and_monitor_charged() {
        let mut seen = figures(&[
            ("throughput", 1448.0 * 8.0 / 1e3),
            ("sender", 1000.0),
            ("receiver", 300.0),
            ("driver", 500.0),
            ("guest", 200.0),
            ("monitor", 40.0),
            ("total", 2040.0),
            ("receive_side", 1040.0),
            ("driver.hop.nic", 300.0),
            ("driver.hop.netback", 60.0),
            ("driver.hop.ring", 20.0),
            ("driver.hop.idle", 20.0),
            ("driver.hop.grant", 9.0),
            ("closure.driver", 1.25),
            ("corrected_share.driver", 0.2),
            ("guest.hop.lro", 7.0),
        ]);
        let shared = |asked_by_guests| {
            Some(Sharing {
                pages: 1000,
                asked_by_guests,
            })
        };
        let mut new = seen.clone();
        count(PayloadDirection::ToGuest, 0.5, shared(false), &mut seen);
        let of = |part: &str| seen[&format!("cycles_per_packet.{part}")];
        assert_eq!(
            (of("driver"), of("guest"), of("total")),
            (540.0, 500.0, 1040.0)
        );
        assert_eq!(of("driver.class.driver"), 300.0);
        assert_eq!(of("driver.class.netback"), 80.0);
        assert_eq!(of("driver.class.network+usercopy+other"), 20.0);
        assert_eq!(
            of("driver.class.xen"),
            131.0,
            "91 of the agent, 40 of the monitor"
        );
        assert_eq!(of("driver.grants"), 140.0, "and 9 of its own");
        assert_eq!(of("grants"), 140.0);
        assert_eq!(of("guest.class.netfront"), 7.0);
        assert_eq!(of("monitor"), 40.0, "beside");
        assert_eq!(seen["cycles_per_byte.total"], 1040.0 / 1448.0);
        assert_eq!(seen["pages_reused"], 500.0);
        assert!(!seen.contains_key("cycles_per_packet.receive_side"));

        // With the new mechanism, the guest makes the calls. Half of the packets use a newly
        // granted page.
        new.insert("granted_anew".to_owned(), 0.5);
        count(PayloadDirection::ToGuest, 0.5, shared(true), &mut new);
        let of = |part: &str| new[&format!("cycles_per_packet.{part}")];
        assert_eq!(
            (of("driver"), of("guest"), of("total")),
            (409.0, 631.0, 1040.0)
        );
        assert_eq!(
            (of("driver.class.xen"), of("guest.class.xen")),
            (0.0, 131.0)
        );
        assert_eq!((of("driver.grants"), of("grants")), (9.0, 140.0));
        assert_eq!(new["pages_reused"], 500_000.0 / 251_000.0);
    }

    #[test]
    fn hardware_events_of_the_far_end_are_in_no_total() {
        let mut seen = figures(&[("throughput", 1.0), ("driver", 5.0)]);
        let parts = [
            ("sender", 900.0),
            ("receiver", 30.0),
            ("driver", 50.0),
            ("monitor", 2.0),
            ("total", 982.0),
        ];
        let name = |part| format!("instructions_per_packet.{part}");
        seen.extend(parts.map(|(part, count)| (name(part), count)));
        seen.insert("throughput".to_owned(), 1448.0 * 8.0 / 1e9 * 10.0);
        seen.insert("dtlb_misses_per_packet.driver".to_owned(), 41.0);
        seen.insert("dtlb_misses_per_packet.total".to_owned(), 41.0);
        count(PayloadDirection::ToGuest, 1.0, None, &mut seen);
        let close = |name: &str, value: f64| (seen[name] - value).abs() < 1e-9;
        assert!(close("instructions_per_second.total", 820.0));
        assert!(close("dtlb_misses_per_second.total", 410.0));
        assert!(close("dtlb_misses_per_instruction.total", 0.5));
        assert_eq!(seen["instructions_per_packet.total"], 82.0);
        assert_eq!(seen["instructions_per_packet.sender"], 900.0);
        assert_eq!(seen["cycles_per_packet.total"], 5.0);
    }

    #[test]
    fn linux_is_charged_with_its_application() {
        let mut seen = figures(&[("throughput", 1.0), ("sender", 70.0), ("receiver", 30.0)]);
        count(PayloadDirection::FromGuest, 1.0, None, &mut seen);
        assert_eq!(seen["cycles_per_packet.total"], 70.0);
        assert!(!seen.contains_key("pages_reused"));
        assert!(!seen.keys().any(|name| name.contains("class")));
    }
}
