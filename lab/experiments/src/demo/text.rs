//! The demonstration's report for users.

use super::findings::{COLUMN, Findings};
use crate::lane::ledgers;
use crate::plan::{ColumnConfig, PayloadDirection};
use figures::provenance::Provenance;
use figures::report::{Figure, Index, cell, covered, number};
use figures::table::table;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Hops in the order in which a packet to the guest passes them. Other hops follow, sorted by name.
const HOPS: &[&str] = &[
    "nic", "lro", "bridge", "netback", "grant", "copy", "ring", "netfront", "endpoint", "control",
    "idle",
];

pub(super) fn report(provenance: &Provenance, found: &Findings) -> String {
    let index = Index::new(&found.figures);
    let mut out = String::new();
    out.push_str("\nGrantway: real TCP through an untrusted driver domain\n\n");
    out.push_str(
        "  sockets ─ wire ─ [ driver domain: bridge, netback ] ═ rings, granted pages ═\n  \
         [ guest domain: netfront ] ─ guest ─ sockets\n\n",
    );
    let _infallible = writeln!(out, "{}\n", provenance.text());
    for note in &found.notes {
        let _infallible = writeln!(out, "Note: {note}.\n");
    }
    out.push_str(&carried(&index));
    out.push_str(&by_domain(&index));
    out.push_str(&by_hop(&index));
    out.push_str(&dropped(&index));
    out.push_str(&found.access.text(number));
    let up = index
        .get(COLUMN, "up_ms")
        .and_then(|figure| figure.value)
        .map_or_else(|| "–".to_owned(), number);
    let _infallible = writeln!(
        out,
        "\nThe machine started in {up} ms and has been removed."
    );
    let _infallible = writeln!(out, "\n{}", covered(&found.figures));
    out
}

fn configs() -> [String; 2] {
    PayloadDirection::BOTH
        .map(|direction| ColumnConfig::new(COLUMN, &[("dir", direction.name())]).name())
}

const HEADER: [&str; 3] = ["", "to the guest", "from the guest"];
/// The directions of [`configs`] in tables of domains.
const DIRECTIONS: [&str; 2] = ["to guest", "from guest"];
const DOMAINS: [&str; 2] = ["driver", "guest"];

/// Formats a section: a title and the rows whose metric exists in at least one direction.
fn section(title: &str, index: &Index<'_>, rows: &[(&str, &str)]) -> String {
    let configs = configs();
    let rows: Vec<Vec<String>> = rows
        .iter()
        .filter(|(_, metric)| configs.iter().any(|c| index.get(c, metric).is_some()))
        .map(|(name, metric)| {
            let cells = configs.iter().map(|config| cell(index.get(config, metric)));
            std::iter::once((*name).to_owned()).chain(cells).collect()
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    format!("{title}\n{}\n\n", table(&HEADER, &rows))
}

fn carried(index: &Index<'_>) -> String {
    section(
        "Traffic: median [interval]",
        index,
        &[
            ("TCP stream, Gb/s", "throughput"),
            ("requests of one byte, 1/s", "transactions"),
            ("  round trip p50, us", "latency_us.p50"),
            ("  round trip p99, us", "latency_us.p99"),
            ("cycles/byte, all processes", "cycles_per_byte.total"),
            (
                "cycles/byte without the sender",
                "cycles_per_byte.receive_side",
            ),
            ("segments per aggregate (LRO rate)", "lro_rate"),
        ],
    )
}

fn by_domain(index: &Index<'_>) -> String {
    section(
        "Cycles by process, per 1514-byte packet of the stream",
        index,
        &[
            ("sender (application)", "cycles_per_packet.sender"),
            ("driver domain", "cycles_per_packet.driver"),
            ("guest domain", "cycles_per_packet.guest"),
            ("monitor", "cycles_per_packet.monitor"),
            ("NIC's kernel threads", "cycles_per_packet.nic_kernel"),
            ("receiver (application)", "cycles_per_packet.receiver"),
            ("total", "cycles_per_packet.total"),
            ("NIC's device, in no sum", "cycles_per_packet.nic_device"),
            (
                "other CPU time, in no sum, at most",
                "cycles_per_packet.uncounted",
            ),
        ],
    )
}

fn by_hop(index: &Index<'_>) -> String {
    let configs = configs();
    let hops = hops(index, &configs);
    if hops.is_empty() {
        return String::new();
    }
    let columns = || {
        DOMAINS
            .iter()
            .flat_map(|domain| configs.iter().map(move |c| (domain, c)))
    };
    let row = |title: &str, metric: &dyn Fn(&str) -> String| {
        let cells = columns().map(|(domain, config)| {
            let figure = index.get(config, &metric(domain));
            figure
                .and_then(|f| f.value)
                .map_or_else(|| "–".to_owned(), number)
        });
        std::iter::once(title.to_owned()).chain(cells).collect()
    };
    let of_hop = |hop: &&str| {
        row(hop, &|domain| {
            format!("cycles_per_packet.{domain}.hop.{hop}")
        })
    };
    let mut rows: Vec<Vec<String>> = hops.iter().map(of_hop).collect();
    rows.push(row("closure", &|domain| format!("closure.{domain}")));
    let mut header = vec!["hop".to_owned()];
    let mut corrections = String::new();
    for ((domain, config), direction) in columns().zip(DIRECTIONS.iter().cycle()) {
        let title = format!("{domain}, {direction}");
        let Some(correction) = ledgers::correction(index, config, domain) else {
            header.push(title);
            continue;
        };
        let _infallible = writeln!(corrections, "* {title}: {correction}");
        header.push(format!("{domain}*, {direction}"));
    }
    if !corrections.is_empty() {
        rows.push(row("corrected share", &|domain| {
            format!("corrected_share.{domain}")
        }));
    }
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    format!(
        "Cycles by hop of each domain, per packet, without cycles that the CPU clock did not \
         confirm\n(closure: time between the ledger's stamps ÷ CPU time, ideally 1)\n{}\n\
         {corrections}\n",
        table(&header, &rows)
    )
}

/// Returns the hops on which a domain spent cycles, in the order of [`HOPS`].
fn hops<'a>(index: &Index<'a>, configs: &[String]) -> Vec<&'a str> {
    let mut hops: BTreeSet<&str> = BTreeSet::new();
    for config in configs {
        for domain in DOMAINS {
            let prefix = format!("cycles_per_packet.{domain}.hop.");
            let spent = |figure: &Figure| figure.value.is_some_and(|cycles| cycles > 0.0);
            let below = index.below(config, &prefix).into_iter();
            hops.extend(
                below
                    .filter(|(_, figure)| spent(figure))
                    .map(|(hop, _)| hop),
            );
        }
    }
    let others = hops.iter().copied().filter(|hop| !HOPS.contains(hop));
    let known = HOPS.iter().filter_map(|hop| hops.get(hop).copied());
    known.chain(others).collect()
}

fn dropped(index: &Index<'_>) -> String {
    let configs = configs();
    let mut reasons = BTreeSet::new();
    let mut rows = Vec::new();
    for config in &configs {
        for (reason, figure) in index.below(config, "drops.") {
            reasons.insert(reason);
            if figure.value.is_some_and(|value| value > 0.0) {
                rows.push(vec![reason.to_owned(), config.clone(), cell(Some(figure))]);
            }
        }
    }
    if rows.is_empty() {
        return format!("Drops: none ({} reasons are counted)\n\n", reasons.len());
    }
    format!(
        "Drops, packets per round\n{}\n\n",
        table(&["reason", "while", "packets"], &rows)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::DriverAccess;

    #[test]
    fn a_report_is_narrow_and_complete() {
        let mut found = Findings::default();
        for direction in PayloadDirection::BOTH {
            let config = ColumnConfig::new(COLUMN, &[("dir", direction.name())]).name();
            for (metric, value) in [
                ("throughput", 8.25),
                ("transactions", 12_345.0),
                ("cycles_per_packet.driver", 1800.0),
                ("cycles_per_packet.driver.hop.nic", 900.0),
                ("cycles_per_packet.driver.hop.unheard_of", 1.0),
                ("closure.driver", 1.72),
                ("corrected_share.driver", 0.04),
                ("drops.no_buffer", 0.0),
                ("drops.spoofed_source", 2.0),
            ] {
                found
                    .figures
                    .push(Figure::single("demo", &config, metric, value));
            }
        }
        found.access = DriverAccess {
            granted: 256,
            owned: 1024,
            system_calls: 17,
            missing: vec!["no separate uid".to_owned()],
            ..DriverAccess::default()
        };
        let text = report(&Provenance::collect("here".to_owned(), true), &found);
        for part in [
            "8.25",
            "unheard_of",
            "spoofed_source",
            "25",
            "17 system calls",
            "no separate uid",
            "closure",
            "1.72",
        ] {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
        assert!(
            !text.contains("no_buffer") && !text.contains("corrected"),
            "{text}"
        );
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest < Some(100), "{widest:?}\n{text}");
    }

    #[test]
    fn a_corrected_ledger_is_marked_with_the_causes() {
        let config = &configs()[1];
        let figures = [
            ("cycles_per_packet.guest.hop.nic", 900.0),
            ("closure.guest", 1.72),
            ("corrected_share.guest", 0.42),
            ("corrected_share.guest.preemption", 0.0),
            ("corrected_share.guest.steal", 0.42),
            ("corrected_share.guest.wake_up", 0.0),
        ]
        .map(|(metric, value)| Figure::single("demo", config, metric, value));
        let text = by_hop(&Index::new(&figures));
        let title = "\n* guest, from guest: its ledger was corrected by 42 %";
        for part in [
            "closure",
            "1.72",
            "corrected share",
            "0.42",
            title,
            "steal 42 %\n",
        ] {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
        assert_eq!(text.matches('*').count(), 2, "{text}");
    }
}
