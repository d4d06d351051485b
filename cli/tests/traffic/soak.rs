//! The driver domain is killed at random moments under streams both ways and a probe, as `cargo
//! xtask soak` does it for hours.

use crate::machine::{alone, grantway, in_folder, text};
use serde_json::Value;
use std::process::Command;
use tempfile::TempDir;
use testing::require;

/// What `cargo xtask soak` would be told: a record from time to time.
pub(crate) fn records(task: &str, spec: &str) -> Vec<Value> {
    let _one = alone();
    let folder = TempDir::new().unwrap();
    let mut command = Command::new(grantway());
    let run = in_folder(command.args(["internal", task, spec]), folder.path())
        .output()
        .unwrap();
    let out = text(&run.stdout);
    assert!(run.status.success(), "{out}{}", text(&run.stderr));
    let records = out.lines().map(serde_json::from_str);
    records.collect::<Result<_, _>>().unwrap()
}

#[test]
fn kills_under_load_leave_nothing_and_everything_goes_on() {
    require!(machine);
    let records = records("soak", r#"{"kills": 3, "seconds": null, "seed": 1}"#);
    assert_eq!(records.len(), 3, "{records:?}");
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
