//! One run of `grantway exp`, and what it printed.

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

/// What a run showed, by the tree's names of configuration and metric.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Readings {
    pub(super) values: BTreeMap<(String, String), f64>,
    /// More CPU time was stolen than the runner allows, also when it repeated the round.
    pub(super) disturbed: bool,
}

/// A figure, as far as it matters here. Other lines (provenance) have no metric.
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
    /// The plan's cells among the lines of JSON.
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

/// How `exp` is called: by the flags that it always had, and to let cores halt.
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

/// The plans that a program knows.
pub(super) fn plans(program: &Path) -> Result<Vec<String>> {
    let output = Command::new(program)
        .args(["exp", "--list"])
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().map(str::to_owned).collect())
}

/// Runs a program to its end and returns what it printed. `folder` keeps that.
///
/// The program has a process group of its own, so a terminal's Ctrl-C reaches us alone. It is then
/// asked to end by SIGTERM, on which it takes its processes and namespaces with it.
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

/// Waits for a program. If the user asks to stop, it is asked to end, and this fails when it has.
fn wait(child: &mut Child) -> Result<ExitStatus> {
    const STEP: Duration = Duration::from_millis(10);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if let Err(interrupted) = interrupt::sleep(STEP) {
            // Not reaped yet, so the number is still the child's.
            let _ended_already = kill_process(Pid::from_child(child), Signal::TERM);
            child.wait()?;
            return Err(interrupted.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::plans;

    /// As 78ba097 printed it, less what is not read.
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
    fn cells_are_read_and_the_rest_is_left() {
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
        assert!(
            !readings.disturbed,
            "a ratio that is unresolved disturbs nothing"
        );
    }

    #[test]
    fn old_names_are_todays() {
        let old = PRINTED.replace("ngm-64", "new-64").replace("load", "share");
        let aliases = "column: new-64 -> ngm-64\nkey: share -> load";
        assert_eq!(read(&old, aliases), read(PRINTED, ""));
    }

    #[test]
    fn stolen_time_is_noticed() {
        let stolen = PRINTED.replace(
            "\"Mpps\",\"n\":3",
            "\"Mpps\",\"n\":3,\"verdict\":\"unresolved\"",
        );
        assert!(read(&stolen, "").disturbed);
    }

    #[test]
    fn what_is_no_json_is_an_error() {
        let error = Readings::parse("usage: …", &isolation(), &Aliases::default()).unwrap_err();
        assert!(error.to_string().contains("not a figure"), "{error}");
    }

    #[test]
    fn a_run_that_fails_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let script = |text: &str| ["-c", text].map(str::to_owned);
        let shell = Path::new("/bin/sh");
        let run = |text| run(shell, &script(text), folder.path());
        assert_eq!(run("echo yes").unwrap(), "yes\n");
        let error = run("echo first >&2; echo last >&2; exit 3").unwrap_err();
        assert!(error.to_string().ends_with("3: last"), "{error}");
    }
}
