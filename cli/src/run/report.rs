//! Who could touch what, and what passed.

use super::network::{GUEST, UPLINK};
use crate::volume::Volume;
use client::Reach;
use figures::clean;
use figures::report::number;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;

/// What is found at the end.
pub(super) struct Findings {
    pub(super) reach: Reach,
    pub(super) passed: Passed,
    pub(super) up_ms: f64,
}

/// What passed the driver domain, and what did not. A segment of 64 KB is one frame.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Passed {
    to_command: Volume,
    from_command: Volume,
    to_outside: Volume,
    from_outside: Volume,
    /// By domain and reason, those that happened.
    drops: BTreeMap<String, u64>,
}

impl Passed {
    /// As both domains count.
    pub(super) fn of(driver: &Value, guest: &Value) -> Self {
        let volume = |port: &str, way: &str| Volume::of(&driver["ports"][port]["traffic"], way);
        let (command, outside) = (format!("vif.{GUEST}-0"), format!("nic.{UPLINK}"));
        let mut drops = BTreeMap::new();
        for (domain, stat) in [("driver", driver), (GUEST, guest)] {
            for (reason, count) in stat["drops"].as_object().into_iter().flatten() {
                if let Some(count) = count.as_u64().filter(|count| *count > 0) {
                    drops.insert(format!("{domain}.{}", clean::line(reason)), count);
                }
            }
        }
        Self {
            to_command: volume(&command, "out"),
            from_command: volume(&command, "in"),
            to_outside: volume(&outside, "out"),
            from_outside: volume(&outside, "in"),
            drops,
        }
    }
}

/// On standard error: standard output is the command's.
pub(super) fn show(found: &Findings, as_json: bool) -> anyhow::Result<()> {
    let text = match as_json {
        true => format!("{}\n", clean::json(&json(found).to_string())),
        false => clean::lines(&text(found)).into_owned(),
    };
    Ok(std::io::stderr().lock().write_all(text.as_bytes())?)
}

fn text(found: &Findings) -> String {
    let passed = &found.passed;
    let mut text = format!(
        "\n{}\nWhat passed it: frames (bytes)\n",
        experiments::demo::reached(&found.reach)
    );
    let mut line = |what: &str, to: Volume, from: Volume| {
        let volume = |v: Volume| format!("{} ({})", v.frames, v.bytes);
        // A string takes everything.
        let _ = writeln!(
            text,
            "  {what:12} to it {}, from it {}",
            volume(to),
            volume(from)
        );
    };
    line("the command:", passed.to_command, passed.from_command);
    line("the outside:", passed.to_outside, passed.from_outside);
    if passed.drops.is_empty() {
        text.push_str("  dropped: nothing\n");
    }
    for (reason, count) in &passed.drops {
        let _ = writeln!(text, "  dropped: {count} {reason}");
    }
    let _ = writeln!(
        text,
        "The machine was up in {} ms and is gone.",
        number(found.up_ms)
    );
    text
}

fn json(found: &Findings) -> Value {
    let volume = |v: Volume| json!({ "frames": v.frames, "bytes": v.bytes });
    let (reach, passed) = (&found.reach, &found.passed);
    json!({
        "up_ms": found.up_ms,
        "reach": {
            "granted": reach.granted,
            "owned": reach.owned,
            "leaked": reach.leaked,
            "system_calls": reach.system_calls,
            "hypercalls": reach.hypercalls,
            "operations": reach.operations,
            "missing": reach.missing,
        },
        "passed": {
            "to_command": volume(passed.to_command),
            "from_command": volume(passed.from_command),
            "to_outside": volume(passed.to_outside),
            "from_outside": volume(passed.from_outside),
        },
        "drops": passed.drops,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_are_counted_and_nonsense_is_not() {
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
        let passed = Passed::of(&driver, &json!({ "drops": ["x"], "vifs": 3 }));
        let from_command = Volume {
            frames: 3,
            bytes: 300,
        };
        assert_eq!(passed.from_command, from_command);
        assert_eq!(passed.to_outside.frames, 10);
        assert_eq!(passed.drops.len(), 2);
        let found = Findings {
            reach: Reach::default(),
            passed,
            up_ms: 12.0,
        };
        let text = clean::lines(&text(&found)).into_owned();
        for part in [
            "from it 3 (300)",
            "dropped: 2 driver.spoofed_source",
            "up in 12.0 ms",
            "system calls",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains('\u{1b}'), "{text}");
        assert_eq!(json(&found)["passed"]["to_outside"]["bytes"], 1000);
        assert_eq!(Passed::of(&json!(null), &json!(7)), Passed::default());
    }
}
