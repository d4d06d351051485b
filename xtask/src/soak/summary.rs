//! Summarizes recorded results.

use super::victim::Victim;
use anyhow::{Result, bail, ensure};
use figures::report::number;
use figures::stats::ranks;
use figures::table::table;
use serde_json::Value;

/// Limit of the probe's median outage after a kill of a domain, milliseconds.
const MEDIAN_OUTAGE_MAX_MS: f64 = 12.0;
/// Limit of the median of a ratio: the probe's longest silence after a kill of a helper ÷ its
/// longest silence without kills.
const MEDIAN_SILENCE_RATIO_MAX: f64 = 2.0;
/// Limits of a virtual machine's median outage, milliseconds, by the killed process. The outage
/// after a kill of the monitor includes the start of the next monitor.
const VM_MEDIAN_OUTAGE_MAX_MS: [(&str, f64); 3] =
    [("driver", 15.0), ("shim", 1000.0), ("monitor", 1000.0)];
/// Limit of any outage, milliseconds.
const OUTAGE_MAX_MS: f64 = 250.0;

/// Returns all values at a place of a record (a JSON pointer).
fn all(records: &[Value], at: &str) -> Vec<f64> {
    let value = |record: &Value| record.pointer(at)?.as_f64();
    records.iter().filter_map(value).collect()
}

/// Prints the results of all kills. Fails if a resource leaked or an outage was too long.
pub(super) fn of_kills(victim: Victim, records: &[Value]) -> Result<()> {
    ensure!(!records.is_empty(), "no kill was recorded");
    let mut rows = Vec::new();
    for (title, key) in [
        ("ready, ms", "ready_ms"),
        ("connected, ms", "connected_ms"),
        ("outage of the probe, ms", "outage_ms"),
        ("outage without a kill, ms", "quiet_ms"),
        ("streams resume, ms", "streams_ms"),
        ("datagrams lost", "lost"),
        ("datagrams duplicated", "duplicates"),
        ("known flows admitted anew", "readmitted"),
        ("unsolicited datagrams denied", "denied"),
    ] {
        let values = all(records, &format!("/{key}"));
        if values.is_empty() {
            continue;
        }
        let cells = ranks(&values, [0.5, 0.99, 1.0]).map(number);
        rows.push([vec![title.to_owned()], cells.to_vec()].concat());
    }
    println!("{} kills, {}", records.len(), victim.name());
    println!("{}", table(&["each", "p50", "p99", "max"], &rows));
    none_has_any(records, "leaked")?;
    let outages = all(records, "/outage_ms");
    let usual = match victim {
        Victim::Manager | Victim::Netd => {
            let [quiet] = ranks(&all(records, "/quiet_ms"), [0.5]);
            MEDIAN_SILENCE_RATIO_MAX * quiet
        }
        _ => MEDIAN_OUTAGE_MAX_MS,
    };
    let [p50, max] = ranks(&outages, [0.5, 1.0]);
    ensure!(
        p50 <= usual && max <= OUTAGE_MAX_MS,
        "outages: p50 {p50:.1} ms (at most {usual:.1}), max {max:.1} ms (at most {OUTAGE_MAX_MS})"
    );
    Ok(())
}

/// Prints the outages of a virtual machine by killed process. Fails if one was too long.
pub(super) fn of_vms(records: &[Value]) -> Result<()> {
    ensure!(!records.is_empty(), "no kill was recorded");
    none_has_any(records, "leaked")?;
    let mut rows = Vec::new();
    let mut late = Vec::new();
    for (victim, most_ms) in VM_MEDIAN_OUTAGE_MAX_MS {
        let of = |record: &&Value| record["victim"] == victim;
        let of: Vec<Value> = records.iter().filter(of).cloned().collect();
        let outages = all(&of, "/outage_ms");
        if outages.is_empty() {
            continue;
        }
        let cells = ranks(&outages, [0.5, 0.99, 1.0]);
        if cells[0] > most_ms {
            late.push(format!(
                "{victim}: p50 {:.1} ms (at most {most_ms})",
                cells[0]
            ));
        }
        let kills = outages.len().to_string();
        rows.push([vec![victim.to_owned(), kills], cells.map(number).to_vec()].concat());
    }
    let header = ["killed", "times", "outage p50, ms", "p99", "max"];
    println!("{}", table(&header, &rows));
    ensure!(late.is_empty(), "{}", late.join("; "));
    Ok(())
}

/// Prints the results of all attaches. Fails if the use of a resource has grown.
pub(super) fn of_attaches(records: &[Value]) -> Result<()> {
    ensure!(!records.is_empty(), "no attach was recorded");
    let sum = |key: &str| all(records, &format!("/{key}")).iter().sum::<f64>();
    println!(
        "{} attaches; kills during an attach: driver domain {}, manager {}; afterwards the guest \
         existed completely {}, not at all {}",
        sum("attaches"),
        sum("driver_kills"),
        sum("manager_kills"),
        sum("whole"),
        sum("not_at_all")
    );
    let rows = ["attach_ms", "detach_ms"].map(|key| {
        let part = |place: usize| all(records, &format!("/{key}/{place}"));
        let ([usual], [most]) = (ranks(&part(0), [0.5]), ranks(&part(1), [1.0]));
        vec![key.to_owned(), number(usual), number(most)]
    });
    println!("{}", table(&["under load", "p50", "max"], &rows));
    print_bounded(records);
    none_has_any(records, "grown")
}

/// Prints the results of the rounds with many guests. Fails if the use of a resource has grown.
pub(super) fn of_guests(guests: u64, records: &[Value]) -> Result<()> {
    ensure!(!records.is_empty(), "no round was recorded");
    let sum = |key: &str| all(records, &format!("/{key}")).iter().sum::<f64>();
    println!(
        "{guests} guests, {} minutes, {} rounds; {} GB, {} requests, {} datagrams of which {} were \
         lost",
        number(sum("seconds") / 60.0),
        records.len(),
        number(sum("streamed") / 1e9),
        sum("requests"),
        sum("sent"),
        sum("lost"),
    );
    let mut rows = Vec::new();
    for (title, key) in [
        ("killed to running again, ms", "back_ms"),
        ("longest silence of a probe, ms", "outage_ms"),
        ("attach, ms", "attach_ms"),
        ("detach, ms", "detach_ms"),
        ("domains in the profile", "profiled"),
        ("hops of the traced packet", "hops"),
    ] {
        let cells = ranks(&all(records, &format!("/{key}")), [0.5, 0.99, 1.0]).map(number);
        rows.push([vec![title.to_owned()], cells.to_vec()].concat());
    }
    println!("{}", table(&["each round", "p50", "p99", "max"], &rows));
    print_bounded(records);
    none_has_any(records, "grown")
}

/// Prints the first and the last value of resources that may vary within limits.
fn print_bounded(records: &[Value]) {
    let held = |record: Option<&Value>, name: &str| {
        let held = record.and_then(|record| record["bounded"][name].as_f64());
        number(held.unwrap_or(f64::NAN))
    };
    let names = records.first().and_then(|r| r["bounded"].as_object());
    let rows: Vec<_> = names
        .into_iter()
        .flat_map(|names| names.keys())
        .map(|name| {
            let (first, last) = (held(records.first(), name), held(records.last(), name));
            vec![name.clone(), first, last]
        })
        .collect();
    println!("{}", table(&["resource", "first", "last"], &rows));
}

/// Fails with the first record that has a value other than 0 under `key`.
fn none_has_any(records: &[Value], key: &str) -> Result<()> {
    let has_any = |r: &&Value| {
        let mut each = r[key].as_object().into_iter().flatten();
        each.any(|(_, more)| more.as_i64() != Some(0))
    };
    match records.iter().find(has_any) {
        Some(record) => bail!("{key}: {}", record[key]),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(outage_ms: f64, frames: i64) -> Value {
        serde_json::json!({
            "ready_ms": 3.0, "connected_ms": 4.0, "outage_ms": outage_ms, "quiet_ms": 9.0,
            "sent": 100, "lost": 7, "duplicates": 0, "streams_ms": 200.0,
            "leaked": {"grants": 0, "frames": frames, "descriptors": 0, "processes": 0},
        })
    }

    #[test]
    fn leaks_and_long_outages_fail() {
        let driver = |records: &[Value]| of_kills(Victim::Driver, records);
        assert!(driver(&[record(9.0, 0), record(200.0, 0), record(8.0, 0)]).is_ok());
        let error = driver(&[record(9.0, 1)]).unwrap_err().to_string();
        assert!(error.contains("\"frames\":1"), "{error}");
        let error = driver(&[record(9.0, 0), record(9.0, 0), record(251.0, 0)]).unwrap_err();
        assert!(error.to_string().contains("max 251.0 ms"), "{error}");
        assert!(driver(&[record(13.0, 0)]).is_err());
        assert!(driver(&[]).is_err());
        let netd = |outage_ms| of_kills(Victim::Netd, &[record(outage_ms, 0)]);
        assert!(netd(13.0).is_ok());
        assert!(netd(18.1).is_err());
    }

    #[test]
    fn growth_with_guests_fails() {
        let record = |grown: Value| {
            serde_json::json!({
                "attaches": 100, "attach_ms": [9.0, 11.0], "detach_ms": [5.0, 6.0],
                "grown": grown, "bounded": {"rss_kib.core": 700},
            })
        };
        let none = serde_json::json!({});
        assert!(of_attaches(&[record(none.clone()), record(none.clone())]).is_ok());
        let leaks = record(serde_json::json!({"descriptors.core": 2}));
        let error = of_attaches(&[record(none), leaks]).unwrap_err().to_string();
        assert!(error.contains("\"descriptors.core\":2"), "{error}");
        assert!(of_attaches(&[]).is_err());
    }

    #[test]
    fn growth_under_many_guests_fails() {
        let round = |frames: i64| {
            let grown = match frames {
                0 => serde_json::json!({}),
                frames => serde_json::json!({ "frames": frames }),
            };
            serde_json::json!({ "seconds": 9.5, "grown": grown, "bounded": {} })
        };
        assert!(of_guests(4, &[round(0), round(0)]).is_ok());
        let error = of_guests(4, &[round(0), round(1)]).unwrap_err().to_string();
        assert!(error.contains("\"frames\":1"), "{error}");
        assert!(of_guests(4, &[]).is_err());
    }
}
