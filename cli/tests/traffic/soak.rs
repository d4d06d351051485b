//! The driver domain is killed at random moments under streams both ways and a probe, as `cargo
//! xtask soak` does it for hours.

use crate::machine::{alone, grantway, in_folder};
use serde_json::Value;
use std::process::Command;
use tempfile::TempDir;
use testing::require;

#[test]
fn kills_under_load_leave_nothing_and_everything_goes_on() {
    require!(machine);
    let _one = alone();
    let folder = TempDir::new().unwrap();
    let mut command = Command::new(grantway());
    let spec = r#"{"kills": 3, "seconds": null, "seed": 1}"#;
    let run = in_folder(command.args(["internal", "soak", spec]), folder.path())
        .output()
        .unwrap();
    let out = String::from_utf8(run.stdout).unwrap();
    assert!(run.status.success(), "{out}");
    let records: Vec<Value> = out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(records.len(), 3, "{out}");
    for record in records {
        let leaked = record["leaked"].as_object().unwrap();
        assert!(
            leaked.len() == 4 && leaked.values().all(|more| more == 0),
            "{record}"
        );
        // Not how fast: that the probe has seen the kill, and has gone on.
        assert!(record["outage_ms"].as_f64().unwrap() > 0.0, "{record}");
        assert!(
            record["lost"].as_u64() < record["sent"].as_u64(),
            "{record}"
        );
    }
}
