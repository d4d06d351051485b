//! Kills each process of a machine that may die alone, at random moments under streams in both
//! directions and a probe. `cargo xtask soak` does the same for hours.

use crate::machine::{Turn, grantway, in_folder, text};
use serde_json::{Value, json};
use std::process::Command;
use tempfile::TempDir;
use testing::require;

/// Returns the records that `cargo xtask soak` would receive.
pub(crate) fn records(task: &str, spec: &str) -> Vec<Value> {
    let _turn = Turn::wait();
    let folder = TempDir::new().unwrap();
    let mut command = Command::new(grantway().with_file_name("grantway-lab"));
    let run = in_folder(command.args(["internal", task, spec]), folder.path())
        .output()
        .unwrap();
    let out = text(&run.stdout);
    assert!(run.status.success(), "{out}{}", text(&run.stderr));
    let records = out.lines().map(serde_json::from_str);
    records.collect::<Result<_, _>>().unwrap()
}

fn killed(victim: &str, kills: usize) {
    let spec = json!({ "victim": victim, "kills": kills, "seconds": null, "seed": 1 });
    let records = records("soak", &spec.to_string());
    assert_eq!(records.len(), kills, "{records:?}");
    for record in records {
        let leaked = record["leaked"].as_object().unwrap();
        assert!(
            leaked.len() == 5 && leaked.values().all(|more| more == 0),
            "{record}"
        );
        // The outage has no limit here, but the probe must have detected the kill and continued.
        assert!(record["outage_ms"].as_f64().unwrap() > 0.0, "{record}");
        assert!(
            record["lost"].as_u64() < record["sent"].as_u64(),
            "{record}"
        );
        assert_eq!(record["readmitted"], 0, "{record}");
        assert!(record["denied"].as_u64() >= Some(2), "{record}");
    }
}

#[test]
fn everything_recovers_from_kills_under_load() {
    require!(machine, program("grantway-lab"));
    killed("driver", 3);
}

#[test]
fn kills_of_a_guest_and_of_helpers_leave_nothing() {
    require!(machine, program("grantway-lab"));
    for victim in ["guest", "manager", "netd"] {
        killed(victim, 2);
    }
}

#[test]
fn mixed_traffic_survives_kills_and_profiles() {
    require!(machine, program("grantway-lab"));
    let spec = json!({ "guests": 8, "seconds": 12, "seed": 1 });
    let records = records("guests", &spec.to_string());
    assert!(!records.is_empty());
    for record in records {
        assert_eq!(record["grown"], json!({}), "{record}");
        for key in ["streamed", "requests", "sent", "profiled", "hops"] {
            assert!(record[key].as_f64().unwrap() > 0.0, "{key}: {record}");
        }
        assert!(record["lost"].as_u64() < record["sent"].as_u64());
    }
}
