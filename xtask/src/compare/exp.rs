//! Runs `grantway exp`, and parses its output.

use super::aliases::Aliases;
use super::halt;
use super::plans::Plan;
use anyhow::{Context, Result, bail};
use figures::interrupt;
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// Figures of a run, keyed by the tree's names for configuration and metric.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Readings {
    pub(super) values: BTreeMap<(String, String), f64>,
    /// Whether more CPU time was stolen than the runner allows, even after it repeated the round.
    pub(super) disturbed: bool,
}

/// The fields of a figure that are used. Other lines (provenance) have no metric.
#[derive(Deserialize)]
struct Line {
    #[serde(default)]
    config: String,
    #[serde(default)]
    metric: String,
    value: Option<f64>,
    verdict: Option<String>,
}

impl Readings {
    /// Returns the plan's cells that the JSON lines contain.
    pub(super) fn parse(text: &str, plan: &Plan, aliases: &Aliases) -> Result<Self> {
        let mut readings = Self::default();
        for line in text.lines() {
            let line: Line =
                serde_json::from_str(line).with_context(|| format!("not a figure: {line}"))?;
            let (config, metric) = (aliases.config(&line.config), aliases.metric(&line.metric));
            if plan.part(&config, &metric).is_none() {
                continue;
            }
            readings.disturbed |= line.verdict.as_deref() == Some("unresolved");
            if let Some(value) = line.value {
                readings.values.insert((config, metric), value);
            }
        }
        Ok(readings)
    }
}

/// Returns the arguments of `exp`. Except for the flag that lets cores halt, it uses only flags
/// that every version has.
pub(super) fn arguments(plan: &Plan, name: &str, only: &[String], halts: bool) -> Vec<String> {
    let flags = [
        ("--only", only.join(",")),
        ("--rounds", plan.rounds.to_string()),
        ("--seconds", plan.seconds.to_string()),
    ];
    let mut words = ["exp", name, "--quick", "--json"]
        .map(str::to_owned)
        .to_vec();
    words.extend(
        flags
            .into_iter()
            .flat_map(|(flag, value)| [flag.to_owned(), value]),
    );
    words.extend(halts.then(|| halt::FLAG.to_owned()));
    words
}

/// Returns the plans that a program knows.
pub(super) fn plans(program: &Path) -> Result<Vec<String>> {
    let output = Command::new(program)
        .args(["exp", "--list"])
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().map(str::to_owned).collect())
}

/// Runs a program until it exits and returns its output, which is stored in `folder`.
///
/// The program has a separate process group, so a terminal's Ctrl-C reaches only this process. This
/// process then sends SIGTERM, and the program removes its processes and namespaces.
pub(super) fn run(program: &Path, arguments: &[String], folder: &Path) -> Result<String> {
    let [printed, said] = ["run.jsonl", "run.log"].map(|name| folder.join(name));
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(File::create(&printed)?)
        .stderr(File::create(&said)?)
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let status = wait(&mut child)?;
    if !status.success() {
        let said = std::fs::read_to_string(&said)?;
        let last = said.trim().lines().last().unwrap_or("nothing");
        bail!("{}: {status}: {last}", program.display());
    }
    Ok(std::fs::read_to_string(&printed)?)
}

/// Waits for a program. On Ctrl-C, terminates the program and returns an error.
fn wait(child: &mut Child) -> Result<ExitStatus> {
    const STEP: Duration = Duration::from_millis(10);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if let Err(interrupted) = interrupt::sleep(STEP) {
            // The child is not reaped yet, so the process id is still valid.
            let _exited_already = kill_process(Pid::from_child(child), Signal::TERM);
            child.wait()?;
            return Err(interrupted.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::plans;

    /// Output of commit 78ba097, without unread fields.
    const PRINTED: &str = r#"{"provenance":{"commit":"78ba09737163","cores":[0,1],"quick":true}}
{"config":"ngm-64@load=1","metric":"cycles_per_packet.driver","value":101.5,"lo":66.3,"n":3}
{"config":"ngm-64@load=1","metric":"packets","value":15.25,"lo":12.9,"unit":"Mpps","n":3}
{"config":"ngm-64@load=1","metric":"drops.runt","value":0.0,"lo":0.0,"unit":"packets","n":3}
{"config":"ngm-1514@load=1","metric":"packets","value":null,"n":0,"verdict":"not-measurable"}
{"config":"shared-64@load=1","metric":"packets","value":16.0,"lo":15.0,"unit":"Mpps","n":3}
{"config":"ngm-64@load=1","metric":"ratio.shared-64.packets","value":0.9,"verdict":"unresolved"}
"#;

    fn isolation() -> Plan {
        let plans = plans::read().unwrap();
        plans.named(&["isolation".to_owned()]).unwrap().remove(0)
    }

    fn read(text: &str, aliases: &str) -> Readings {
        Readings::parse(text, &isolation(), &Aliases::parse(aliases).unwrap()).unwrap()
    }

    #[test]
    fn cells_are_read_and_the_rest_is_ignored() {
        let readings = read(PRINTED, "");
        let values: Vec<_> = readings.values.iter().collect();
        let key = |metric: &str| ("ngm-64@load=1".to_owned(), metric.to_owned());
        assert_eq!(
            values,
            [
                (&key("cycles_per_packet.driver"), &101.5),
                (&key("packets"), &15.25)
            ]
        );
        assert!(!readings.disturbed, "an unresolved ratio is no disturbance");
    }

    #[test]
    fn old_names_become_current_names() {
        let old = PRINTED.replace("ngm-64", "new-64").replace("load", "share");
        let aliases = "column: new-64 -> ngm-64\nkey: share -> load";
        assert_eq!(read(&old, aliases), read(PRINTED, ""));
    }

    #[test]
    fn stolen_time_is_detected() {
        let stolen = PRINTED.replace(
            "\"Mpps\",\"n\":3",
            "\"Mpps\",\"n\":3,\"verdict\":\"unresolved\"",
        );
        assert!(read(&stolen, "").disturbed);
    }

    #[test]
    fn invalid_json_is_an_error() {
        let error = Readings::parse("usage: …", &isolation(), &Aliases::default()).unwrap_err();
        assert!(error.to_string().contains("not a figure"), "{error}");
    }

    #[test]
    fn a_failed_run_reports_why() {
        let folder = tempfile::tempdir().unwrap();
        let script = |text: &str| ["-c", text].map(str::to_owned);
        let shell = Path::new("/bin/sh");
        let run = |text| run(shell, &script(text), folder.path());
        assert_eq!(run("echo yes").unwrap(), "yes\n");
        let error = run("echo first >&2; echo last >&2; exit 3").unwrap_err();
        assert!(error.to_string().ends_with("3: last"), "{error}");
    }
}
