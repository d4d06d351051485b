//! `grantway run --report`: the access of the processes, and the traffic.

use super::network::UPLINK;
use crate::volume::Volume;
use client::DriverAccess;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use tool::clean;
use tool::number;

/// Contents of the report.
pub(super) struct StartFindings {
    pub(super) access: DriverAccess,
    pub(super) totals: TrafficTotals,
    pub(super) up_ms: f64,
}

/// Traffic through the driver domain, and drops. A segment of 64 KB counts as one frame.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TrafficTotals {
    to_command: Volume,
    from_command: Volume,
    /// Traffic to the outside and from it; `None` if other guests use the same uplink.
    outside: Option<[Volume; 2]>,
    /// Dropped frames by domain and reason, without zeros.
    drops: BTreeMap<String, u64>,
}

impl TrafficTotals {
    /// Computes the traffic from the counters of the driver domain's workers and of the command's
    /// guest. If the command is attached, the driver domain's drops include those of other guests'
    /// frames.
    pub(super) fn of(drivers: &[Value], guest: (&str, &Value), is_attached: bool) -> Self {
        let (name, of_guest) = guest;
        let volume = |port: &str, way: &str| {
            let of = |stat: &Value| Volume::of(&stat["ports"][port]["traffic"], way);
            drivers.iter().map(of).fold(Volume::default(), Volume::plus)
        };
        let (command, outside) = (format!("vif.{name}-0"), format!("nic.{UPLINK}"));
        let mut drops = BTreeMap::new();
        let of_drivers = drivers.iter().map(|stat| ("driver", stat));
        for (domain, stat) in of_drivers.chain([(name, of_guest)]) {
            for (reason, count) in stat["drops"].as_object().into_iter().flatten() {
                if let Some(count) = count.as_u64().filter(|count| *count > 0) {
                    let key = format!("{domain}.{}", clean::line(reason));
                    let sum: &mut u64 = drops.entry(key).or_default();
                    *sum = sum.saturating_add(count);
                }
            }
        }
        Self {
            to_command: volume(&command, "out"),
            from_command: volume(&command, "in"),
            outside: (!is_attached).then(|| [volume(&outside, "out"), volume(&outside, "in")]),
            drops,
        }
    }
}

/// Prints to standard error, because standard output belongs to the command.
pub(super) fn show(found: &StartFindings, as_json: bool) -> anyhow::Result<()> {
    let text = match as_json {
        true => format!("{}\n", clean::json(&json(found).to_string())),
        false => clean::lines(&text(found)).into_owned(),
    };
    Ok(std::io::stderr().lock().write_all(text.as_bytes())?)
}

fn text(found: &StartFindings) -> String {
    let totals = &found.totals;
    let mut text = format!("\n{}\nTraffic, frames (bytes)\n", found.access.text(number));
    let mut line = |what: &str, to: Volume, from: Volume| {
        let volume = |v: Volume| format!("{} ({})", v.frames, v.bytes);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "  {what:12} to it {}, from it {}",
            volume(to),
            volume(from)
        );
    };
    line("the command:", totals.to_command, totals.from_command);
    if let Some([to, from]) = totals.outside {
        line("the outside:", to, from);
    }
    if totals.drops.is_empty() {
        text.push_str("  dropped: nothing\n");
    }
    for (reason, count) in &totals.drops {
        let _ = writeln!(text, "  dropped: {count} {reason}");
    }
    let ms = number(found.up_ms);
    let _ = match totals.outside {
        Some(_) => writeln!(text, "The machine started in {ms} ms and has ended."),
        None => writeln!(
            text,
            "The command was attached in {ms} ms and has been detached."
        ),
    };
    text
}

fn json(found: &StartFindings) -> Value {
    let volume = |v: Volume| json!({ "frames": v.frames, "bytes": v.bytes });
    let (access, totals) = (&found.access, &found.totals);
    json!({
        "up_ms": found.up_ms,
        "reach": {
            "granted": access.granted,
            "owned": access.owned,
            "leaked": access.leaked,
            "system_calls": access.system_calls,
            "hypercalls": access.hypercalls,
            "operations": access.operations,
            "missing": access.missing,
        },
        "passed": {
            "to_command": volume(totals.to_command),
            "from_command": volume(totals.from_command),
            "to_outside": totals.outside.map(|[to, _]| volume(to)),
            "from_outside": totals.outside.map(|[_, from]| volume(from)),
        },
        "drops": totals.drops,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_counters_do_not_count() {
        let traffic = |packets: u64| {
            json!({ "traffic": {
                "in_packets": packets, "in_bytes": 100 * packets,
                "out_packets": 2 * packets, "out_bytes": 200 * packets,
            }})
        };
        let driver = json!({
            "ports": { "vif.command-0": traffic(3), "nic.uplink": traffic(5) },
            "drops": { "spoofed_source": 2, "no_route\u{1b}[2J": 1, "no_buffer": 0 },
        });
        let strange = json!({ "drops": ["x"], "vifs": 3 });
        let both = TrafficTotals::of(
            &[driver.clone(), driver.clone()],
            ("command", &strange),
            true,
        );
        assert_eq!((both.from_command.frames, both.outside), (6, None));
        assert_eq!(both.drops["driver.spoofed_source"], 4);
        let totals = TrafficTotals::of(&[driver], ("command", &strange), false);
        let from_command = Volume {
            frames: 3,
            bytes: 300,
        };
        assert_eq!(totals.from_command, from_command);
        assert_eq!(totals.outside.unwrap()[0].frames, 10);
        assert_eq!(totals.drops.len(), 2);
        let found = StartFindings {
            access: DriverAccess::default(),
            totals,
            up_ms: 12.0,
        };
        let text = clean::lines(&text(&found)).into_owned();
        for part in [
            "from it 3 (300)",
            "dropped: 2 driver.spoofed_source",
            "started in 12.0 ms",
            "system calls",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains('\u{1b}'), "{text}");
        assert_eq!(json(&found)["passed"]["to_outside"]["bytes"], 1000);
        let nothing = TrafficTotals::of(&[json!(null)], ("command", &json!(7)), true);
        assert_eq!(nothing, TrafficTotals::default());
    }
}
