//! The report as text.

use super::cells::percent;
use super::functions::{self, Listing};
use super::lines;
use super::sums::{COARSE_NOTE, Denominator, DomainSums, GOOD, charged_to, outside};
use crate::attribute::{Attribution, Classing};
use crate::loss::Loss;
use crate::model::{Mode, Session};
use crate::select::Selection;
use crate::unit::Unit;
use figures::clean;
use figures::report::number;
use figures::table::table;
use std::fmt::Write as _;

pub(super) fn report(
    session: &Session,
    found: &Attribution,
    classing: Classing,
    listing: &Listing<'_>,
) -> String {
    if let Some(domain) = listing.domain {
        return of_domain(session, found, domain, classing, listing);
    }
    let all = DomainSums::of(session, found);
    let mut out = head(session, listing);
    out.push_str(&domains(session, &all, listing.only_samples));
    out.push_str(&classes(session, found, &all, classing));
    if !listing.only_samples {
        out.push_str(&hops(session, &all));
    }
    out.push_str(&masters(session, &all));
    out.push_str(&functions::text(session, &all, listing));
    out.push_str(&lines::text(session, &all, listing));
    out.push_str(&losses(session));
    out.push_str(&notes(session, &all, listing.only_samples));
    out
}

/// Returns the report on one domain: its CPU time, its classes, its hops and its functions.
fn of_domain(
    session: &Session,
    found: &Attribution,
    domain: &str,
    classing: Classing,
    listing: &Listing<'_>,
) -> String {
    let mut all = DomainSums::of(session, found);
    all.retain(|sums| sums.domain.name == domain);
    let mut out = head(session, listing);
    out.push_str(&domains(session, &all, listing.only_samples));
    if all.iter().any(DomainSums::counts) {
        out.push_str(&classes(session, found, &all, classing));
    }
    if !listing.only_samples {
        out.push_str(&hops(session, &all));
    }
    out.push_str(&functions::text(session, &all, listing));
    out.push_str(&lines::text(session, &all, listing));
    for why in all.iter().filter_map(DomainSums::refusal) {
        let _infallible = writeln!(out, "\nno functions of {domain}: {why}");
    }
    out
}

fn head(session: &Session, listing: &Listing<'_>) -> String {
    let head = &session.head;
    let mut out = String::new();
    let rate = match (head.unit(), head.period) {
        (Unit::Nanoseconds, period) => format!("{:.0} Hz", 1e9 / period.max(1) as f64),
        (_, 1) => "each one".to_owned(),
        (_, period) => format!("every {}", number(period as f64)),
    };
    if listing.only_samples {
        out.push('\n');
    }
    let _infallible = writeln!(
        out,
        "{} · {rate} · {:.1} s · {} CPUs · {} samples",
        head.event,
        head.ran_ns as f64 / 1e9,
        head.cpus.len(),
        session.samples.len(),
    );
    let _infallible = writeln!(out, "{}", head.tier.text());
    if listing.only_samples {
        return out;
    }
    if !head.command.is_empty() {
        let _infallible = writeln!(out, "{}", head.command.join(" "));
    }
    let part = listing.selection.map(Selection::keys).unwrap_or_default();
    for (key, value) in part {
        let _infallible = writeln!(out, "only {key} {}", clean::line(&value));
    }
    let of = |key: &str| head.provenance[key].as_str().unwrap_or("unknown");
    let _infallible = writeln!(
        out,
        "{} · kernel {} · commit {}",
        of("cpu"),
        of("kernel"),
        of("commit")
    );
    out
}

/// Returns the samples of each domain of an event other than the first.
fn samples(session: &Session, all: &[DomainSums<'_>]) -> String {
    let (event, is_time) = (session.head.event.as_str(), session.head.is_time());
    // A time is not shown as a number of events, because the exact time is better.
    let mut header = vec!["domain"];
    header.extend((!is_time).then_some(event));
    header.extend(["samples", "lost", "to main %"]);
    let row = |sums: &DomainSums<'_>| {
        let mut row = vec![sums.domain.name.clone()];
        row.extend(sums.weight.filter(|_| !is_time).map(number));
        row.push(number(sums.part.samples as f64));
        row.push(sums.lost.to_string());
        row.push(share(sums.whole_stacks()));
        row
    };
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    format!(
        "\nDomains: samples; CPU time and cycles/packet are exact, and belong to no event: see \
         above\n{}\n",
        table(&header, &rows)
    )
}

fn share(share: Option<f64>) -> String {
    share.map_or_else(|| "–".to_owned(), percent)
}

fn domains(session: &Session, all: &[DomainSums<'_>], only_samples: bool) -> String {
    if only_samples {
        return samples(session, all);
    }
    let denominator = Denominator::of(session);
    let units = denominator.packets_and_bytes();
    let mut header = vec!["domain", "CPU ms", "of a CPU %"];
    if units.is_some() {
        header.extend(["cycles/packet", "cycles/byte"]);
    }
    header.push("closure");
    let is_corrected = all.iter().any(|sums| sums.large_correction().is_some());
    if is_corrected {
        header.push("corrected %");
    }
    // Part of a session has no loss ledger.
    let has_losses = !session.losses.is_empty();
    header.push("raw/exact");
    header.extend(has_losses.then_some("expected"));
    header.push("samples");
    header.extend(has_losses.then_some("lost"));
    header.push("to main %");
    let ran_ns = session.head.ran_ns.max(1) as f64;
    let optional = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |v| format!("{v:.2}"));
    let mut rows = Vec::new();
    let mut total = 0.0;
    for sums in all {
        let ns = sums.domain.cpu_ns.map(|ns| ns as f64);
        let mut row = vec![
            sums.domain.name.clone(),
            ns.map_or_else(|| "–".to_owned(), |ns| number(ns / 1e6)),
            ns.map_or_else(|| "–".to_owned(), |ns| percent(ns / ran_ns)),
        ];
        let cycles = sums.cycles.filter(|_| sums.counts());
        total += cycles.unwrap_or(0.0);
        for unit in units.iter().flatten() {
            row.push(cycles.map_or_else(|| "–".to_owned(), |c| number(c / unit)));
        }
        row.push(optional(sums.closure));
        if is_corrected {
            row.push(share(sums.large_correction()));
        }
        row.push(optional(sums.raw_exact));
        row.extend(has_losses.then(|| number(sums.expected as f64)));
        row.push(number(sums.part.samples as f64));
        row.extend(has_losses.then(|| sums.lost.to_string()));
        row.push(share(sums.whole_stacks()));
        rows.push(row);
    }
    if let Some(units) = units {
        let mut row = vec!["total".to_owned(), String::new(), String::new()];
        row.extend(units.map(|unit| number(total / unit)));
        row.resize(header.len(), String::new());
        rows.push(row);
    }
    let mut out = format!("\nDomains: exact CPU time\n{}\n", table(&header, &rows));
    if let (Some([packets, bytes]), Some(traffic)) = (units, denominator.traffic) {
        let _infallible = writeln!(
            out,
            "{} frames, {} MB carried: {} packets. The total is without idle, profiler, devices \
             and other.",
            number(traffic.frames as f64),
            number(bytes / 1e6),
            number(packets)
        );
    }
    if let Some(why) = denominator.refusal() {
        let _infallible = writeln!(out, "cycles/packet: refused: {why}");
    }
    out
}

fn classes(
    session: &Session,
    found: &Attribution,
    all: &[DomainSums<'_>],
    classing: Classing,
) -> String {
    let how = match classing {
        Classing::Nearest => "the nearest classified caller's",
        Classing::Flat => "flat, as in the papers",
    };
    let counted = || all.iter().filter(|sums| sums.counts());
    let mut header = vec!["domain"];
    header.extend(found.classes.iter().map(String::as_str));
    let rows: Vec<Vec<String>> = counted()
        .filter(|sums| sums.refusal().is_none())
        .map(|sums| {
            let mark = if sums.unreliable_because().is_some() {
                " ?"
            } else {
                ""
            };
            let mut row = vec![format!("{}{mark}", sums.domain.name)];
            row.extend(
                sums.part
                    .classes
                    .iter()
                    .map(|count| percent(sums.share(*count))),
            );
            row
        })
        .collect();
    let whole = session.head.whole();
    let mut out = format!("\nClasses, % of each domain's {whole}: {how}\n");
    if !rows.is_empty() {
        let _infallible = writeln!(out, "{}", table(&header, &rows));
    }
    for (sums, why) in counted().filter_map(|sums| Some((sums, sums.refusal()?))) {
        let _infallible = writeln!(out, "{}: refused: {why}", sums.domain.name);
    }
    out
}

/// Returns the ledger's hops, in cycles per packet if the session has packets.
fn hops(session: &Session, all: &[DomainSums<'_>]) -> String {
    let packets = Denominator::of(session).packets();
    let per_ns = session.head.tsc_hz as f64 / 1e9;
    let with: Vec<&DomainSums<'_>> = all
        .iter()
        .filter(|sums| sums.domain.ledger.is_some())
        .collect();
    let mut rows = Vec::new();
    let names: std::collections::BTreeSet<&String> = with
        .iter()
        .flat_map(|sums| {
            sums.domain
                .ledger
                .iter()
                .flat_map(|ledger| ledger.hops.keys())
        })
        .collect();
    for hop in names {
        let mut row = vec![hop.clone()];
        let mut any = false;
        for sums in &with {
            let share = sums.domain.ledger.as_ref().map_or(0.0, |ledger| {
                let own = ledger.hops.get(hop).copied().unwrap_or(0) as f64;
                own / (ledger.cpu_ns.max(1) as f64 * per_ns)
            });
            any |= share > 0.0;
            row.push(match (sums.cycles, packets) {
                (Some(cycles), Some(packets)) => number(share * cycles / packets),
                _ => percent(share),
            });
        }
        if any {
            rows.push(row);
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let mut header = vec!["hop"];
    let marked = |sums: &&DomainSums<'_>| match sums.large_correction() {
        Some(_) => format!("{} *", sums.domain.name),
        None => sums.domain.name.clone(),
    };
    let names: Vec<String> = with.iter().map(marked).collect();
    header.extend(names.iter().map(String::as_str));
    let unit = if packets.is_some() {
        "cycles/packet"
    } else {
        "%"
    };
    let mut out = format!("\nHop ledger, {unit}\n{}\n", table(&header, &rows));
    if with.iter().any(|sums| sums.large_correction().is_some()) {
        out.push_str("*: corrected, see below\n");
    }
    out
}

/// Returns the table of the domains in which, and on whose behalf, code ran.
fn masters(session: &Session, all: &[DomainSums<'_>]) -> String {
    let served = charged_to(all);
    let with_time: Vec<&DomainSums<'_>> = all.iter().filter(|sums| sums.weight.is_some()).collect();
    let whole = match session.head.is_time() {
        true => "used CPU time",
        false => &session.head.event,
    };
    let total: f64 = served.values().sum();
    let mut rows: Vec<(f64, Vec<String>)> = served
        .iter()
        .filter(|(_, cycles)| **cycles >= total / 1000.0)
        .map(|(who, cycles)| {
            let own = with_time.iter().find(|sums| sums.domain.name == *who);
            let from: Vec<String> = with_time
                .iter()
                .filter(|sums| sums.domain.name != *who)
                .filter_map(|sums| {
                    let count = sums.part.charged_to.get(who)?;
                    let cycles = sums.share(*count) * sums.weight?;
                    let name = &sums.domain.name;
                    (cycles >= total / 1000.0)
                        .then(|| format!("{name} {}", percent(cycles / total)))
                })
                .collect();
            let ran_in = own.and_then(|sums| sums.weight).unwrap_or(0.0);
            let row = vec![
                who.clone(),
                percent(ran_in / total),
                percent(cycles / total),
                from.join(", "),
            ];
            (*cycles, row)
        })
        .collect();
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    let rows: Vec<Vec<String>> = rows.into_iter().map(|(_, row)| row).collect();
    let header = [
        "beneficiary",
        "ran in it %",
        "on its behalf %",
        "of it in others",
    ];
    format!(
        "\nRan in, and on behalf of: % of all {whole}\n{}\n",
        table(&header, &rows)
    )
}

fn losses(session: &Session) -> String {
    let rows: Vec<Vec<String>> = session
        .losses
        .iter()
        .filter(|loss| loss.domain.is_none())
        .map(|loss| {
            let counts = [
                loss.expected,
                loss.delivered,
                loss.kernel_lost,
                loss.throttled,
                loss.ring_dropped,
                loss.steal,
            ];
            let mut row = vec![loss.cpu.to_string()];
            row.extend(counts.iter().map(u64::to_string));
            row.push(loss.silent.to_string());
            row
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let header = [
        "CPU",
        "expected",
        "delivered",
        "kernel lost",
        "throttled",
        "ring dropped",
        "steal",
        "silent",
    ];
    format!(
        "\nSamples by CPU, idle time too\n{}\n",
        table(&header, &rows)
    )
}

fn notes(session: &Session, all: &[DomainSums<'_>], only_samples: bool) -> String {
    let mut notes = match only_samples {
        true => Vec::new(),
        false => session.head.notes.clone(),
    };
    if !session.head.is_time() && !only_samples {
        notes.push(format!(
            "CPU time and cycles/packet are exact: {} divide no time, so classes and functions \
             have no cycles/packet",
            session.head.event
        ));
    }
    if !session.head.tier.is_fine() {
        notes.push(COARSE_NOTE.to_owned());
    }
    for sums in all {
        let name = &sums.domain.name;
        if !sums.counts() || sums.refusal().is_none() {
            notes.extend(
                sums.unreliable_because()
                    .map(|why| format!("? {name}: {why}")),
            );
        }
        if only_samples {
            continue;
        }
        if let Some(closure) = sums.closure.filter(|closure| outside(*closure, GOOD)) {
            notes.push(format!(
                "{name}: its ledger accounts for {closure:.2} of its exact CPU time"
            ));
        }
        notes.extend(sums.correction_because(session.head.tsc_hz));
        if sums.domain.mode == Mode::AgentOnly {
            notes.push(format!(
                "{name}: sampled in a separate machine; not part of this machine's time"
            ));
        }
    }
    let by_cpu = session.losses.iter().filter(|loss| loss.domain.is_none());
    notes.extend(by_cpu.filter_map(Loss::warning));
    // Includes domains without a row because they have no data.
    let domains = session.domains.iter().filter(|_| !only_samples);
    let missing = domains.filter_map(|domain| {
        let missing = domain.missing.as_ref()?;
        Some(format!("{}: {missing}", domain.name))
    });
    notes.extend(missing);
    let mut out = String::new();
    for note in notes {
        let _infallible = writeln!(out, "\n{note}.");
    }
    out
}

#[cfg(test)]
mod tests;
