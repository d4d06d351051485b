//! `grantway trace`: follows one packet, hop by hop, through one domain or through all domains on
//! its path.
//!
//! Each domain traces the first packet of its next batch. Equal headers show that two domains have
//! traced the same packet. If they differ, the traces of all domains are armed again.

use crate::{output, tables};
use abi::machine::{DomainStatus, Program};
use abi::mailbox::MailboxRequest;
use client::Instance;
use comfy_table::CellAlignment;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::{Duration, Instant};
use tool::{Failure, clean, interrupt};

/// Interval between checks for a finished trace.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum duration of the search for a packet that a guest has also traced, from the driver
/// domain's first finished trace.
const MATCH_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) fn trace(
    name: &str,
    domain: Option<&str>,
    wait_s: u32,
    as_json: bool,
) -> anyhow::Result<()> {
    let instance = Instance::connect(name)?;
    let (firsts, others) = match domain {
        Some(domain) => (vec![domain.to_owned()], Vec::new()),
        None => drivers_and_guests(&instance)?,
    };
    interrupt::watch();
    let place = firsts.join(" or ");
    let spinner = output::spinner(&format!("waiting for a packet in {place}"));
    let end = Instant::now() + Duration::from_secs(wait_s.into());
    let mut found = None;
    let mut until = end;
    while Instant::now() < until {
        let Some(traces) = follow(&instance, &firsts, &others, until)? else {
            break;
        };
        let joined = traces.len() > 1;
        found = Some(traces);
        if joined || others.is_empty() {
            break;
        }
        until = until.min(Instant::now() + MATCH_TIMEOUT);
    }
    spinner.finish_and_clear();
    let Some(traces) = found else {
        let text = format!("no packet passed {place} within {wait_s} s");
        return Err(Failure::Failed(text).into());
    };
    let trace = join(&traces);
    if as_json {
        output::json(&trace)
    } else {
        output::print(&text(&trace))
    }
}

/// Returns the driver domain's workers, at least one, and the guests.
pub(crate) fn drivers_and_guests(
    instance: &Instance,
) -> anyhow::Result<(Vec<String>, Vec<String>)> {
    let domains = instance.status()?.domains.into_iter();
    let alive = domains.filter(|d| d.alive && d.program != Program::Device);
    let (drivers, guests): (Vec<_>, Vec<_>) = alive.partition(|d| d.program == Program::Driver);
    if drivers.is_empty() {
        return Err(Failure::Failed("the driver domain is not running".into()).into());
    }
    let names = |domains: Vec<DomainStatus>| domains.into_iter().map(|d| d.report.name).collect();
    Ok((names(drivers), names(guests)))
}

/// Arms the domains and waits until one of `firsts` has traced a packet. Returns its trace and the
/// traces of `others` that show the same packet, or `None` if no packet arrived in time.
fn follow(
    instance: &Instance,
    firsts: &[String],
    others: &[String],
    until: Instant,
) -> anyhow::Result<Option<Vec<(String, Value)>>> {
    let ask = |domain: &str| -> anyhow::Result<Value> {
        let reply = instance.relay(domain, &MailboxRequest::Trace)?;
        Ok(reply.get("trace").cloned().unwrap_or(Value::Null))
    };
    // The answer to this request may hold a trace of an earlier request, so it is discarded.
    for domain in others.iter().chain(firsts) {
        ask(domain)?;
    }
    let look = || -> anyhow::Result<Option<(String, Value)>> {
        for first in firsts {
            let trace = ask(first)?;
            if !trace.is_null() {
                return Ok(Some((first.clone(), trace)));
            }
        }
        Ok(None)
    };
    let (first, trace) = loop {
        interrupt::sleep(CHECK_INTERVAL)?;
        if let Some(found) = look()? {
            break found;
        }
        if Instant::now() > until {
            return Ok(None);
        }
    };
    let same = |other: &Value| other["frame"]["header"] == trace["frame"]["header"];
    let mut traces = Vec::new();
    for domain in others {
        let other = ask(domain)?;
        if same(&other) {
            traces.push((domain.clone(), other));
        }
    }
    traces.insert(0, (first, trace));
    Ok(Some(traces))
}

/// Returns the hops of all traces as one list, in order of time.
fn join(traces: &[(String, Value)]) -> Value {
    let from = |trace: &Value| trace["from_tsc"].as_u64().unwrap_or(0);
    let start = traces.iter().map(|(_, trace)| from(trace)).min();
    let mut hops = Vec::new();
    for (domain, trace) in traces {
        let cycles = from(trace).saturating_sub(start.unwrap_or(0));
        let hz = trace["tsc_hz"].as_u64().unwrap_or(1).max(1);
        let later_ns = (u128::from(cycles) * 1_000_000_000 / u128::from(hz)) as u64;
        for hop in trace["hops"].as_array().into_iter().flatten() {
            let at_ns = hop["at_ns"].as_u64().unwrap_or(0).saturating_add(later_ns);
            hops.push(json!({
                "domain": domain, "hop": hop["hop"], "at_ns": at_ns, "what": hop["what"],
            }));
        }
    }
    hops.sort_by_key(|hop| hop["at_ns"].as_u64());
    let frame = traces.first().map(|(_, trace)| trace["frame"].clone());
    json!({ "frame": frame, "hops": hops })
}

/// Formats a trace as text.
fn text(trace: &Value) -> String {
    let mut text = String::new();
    let mut frame = Vec::new();
    tables::flatten("", &trace["frame"], &mut frame);
    for (key, value) in frame.iter().filter(|(_, value)| value != "null") {
        let _ = writeln!(text, "{key}: {value}");
    }
    let mut hops = tables::table(&["us", "domain", "hop", "what"], 4);
    if let Some(column) = hops.column_mut(0) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for hop in trace["hops"].as_array().into_iter().flatten() {
        let field = |key: &str| clean::line(hop[key].as_str().unwrap_or_default()).into_owned();
        let us = hop["at_ns"].as_f64().unwrap_or(0.0) / 1e3;
        let row = [
            format!("{us:.1}"),
            field("domain"),
            field("hop"),
            field("what"),
        ];
        hops.add_row(row);
    }
    let _ = writeln!(text, "{hops}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hops_of_several_domains_are_one_list() {
        let hop =
            |name: &str, at_ns: u64, what: &str| json!({"hop": name, "at_ns": at_ns, "what": what});
        let frame = json!({"packet": "ICMP", "bytes": 98, "gso_bytes": null, "header": "0200"});
        let driver = json!({"frame": frame, "from_tsc": 5000, "tsc_hz": 2_000_000_000u64, "hops": [
            hop("nic", 0, "received on wire"), hop("bridge", 300, "forwarded to web"),
        ]});
        let web = json!({"frame": frame, "from_tsc": 9000, "tsc_hz": 2_000_000_000u64, "hops": [
            hop("netfront", 100, "received from the ring"),
        ]});
        let joined = join(&[("driver".into(), driver), ("web".into(), web)]);
        let at: Vec<_> = joined["hops"]
            .as_array()
            .unwrap()
            .iter()
            .map(|hop| &hop["at_ns"])
            .collect();
        assert_eq!(at, [0, 300, 2100]);
        let text = text(&joined);
        for part in [
            "bytes: 98",
            "received on wire",
            "2.1",
            "web",
            "received from the ring",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("gso_bytes"));
    }

    #[test]
    fn trace_text_stays_within_its_line() {
        let hostile = "x\x1b[2J\nmonitor: fine\u{9b}";
        let hop = json!({"hop": hostile, "at_ns": 1, "what": hostile});
        let text = text(&json!({"frame": {"packet": hostile}, "hops": [hop]}));
        assert!(!text.contains(['\x1b', '\u{9b}']), "{text:?}");
        assert!(
            !text.lines().any(|line| line.starts_with("monitor")),
            "{text}"
        );
    }
}
