//! Who could touch what, and what passed.

use super::network::UPLINK;
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
    /// To the outside and from there; none: the way out is not the command's alone.
    outside: Option<[Volume; 2]>,
    /// By domain and reason, those that happened.
    drops: BTreeMap<String, u64>,
}

impl Passed {
    /// As the workers of the driver domain count and the guest that the command is, by its name.
    /// What the driver domain drops of others counts, too, where the command is attached.
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
    if let Some([to, from]) = passed.outside {
        line("the outside:", to, from);
    }
    if passed.drops.is_empty() {
        text.push_str("  dropped: nothing\n");
    }
    for (reason, count) in &passed.drops {
        let _ = writeln!(text, "  dropped: {count} {reason}");
    }
    let ms = number(found.up_ms);
    let _ = match passed.outside {
        Some(_) => writeln!(text, "The machine was up in {ms} ms and is gone."),
        None => writeln!(text, "The command was attached in {ms} ms and is detached."),
    };
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
            "to_outside": passed.outside.map(|[to, _]| volume(to)),
            "from_outside": passed.outside.map(|[_, from]| volume(from)),
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
        let strange = json!({ "drops": ["x"], "vifs": 3 });
        let both = Passed::of(
            &[driver.clone(), driver.clone()],
            ("command", &strange),
            true,
        );
        assert_eq!((both.from_command.frames, both.outside), (6, None));
        assert_eq!(both.drops["driver.spoofed_source"], 4);
        let passed = Passed::of(&[driver], ("command", &strange), false);
        let from_command = Volume {
            frames: 3,
            bytes: 300,
        };
        assert_eq!(passed.from_command, from_command);
        assert_eq!(passed.outside.unwrap()[0].frames, 10);
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
        let nothing = Passed::of(&[json!(null)], ("command", &json!(7)), true);
        assert_eq!(nothing, Passed::default());
    }
}
