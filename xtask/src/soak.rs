//! `soak`: kills of the driver domain under load, and what each came to.
//!
//! Resumable: each kill is a line of JSON in a file below `target/soak/` that is named by the
//! programs that were killed. A run goes on where the one before stopped.

use crate::{build, workspace};
use anyhow::{Context, Result, bail, ensure};
use figures::report::{number, table};
use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Kills of one machine: then another one is started, so that starts and ends are tried, too.
const KILLS_OF_ONE: u64 = 250;
/// What a kill may cost the probe, milliseconds: usually, and at most.
const OUTAGE_MS: [f64; 2] = [12.0, 250.0];

/// What was asked for.
struct Wanted {
    kills: u64,
    minutes: Option<u64>,
    fresh: bool,
    /// The programs; none: they are built.
    grantway: Option<PathBuf>,
}

/// `soak --kills N [--minutes M] [--fresh] [--grantway PATH]`.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let asked = read(args)?;
    let grantway = match asked.grantway {
        Some(path) => path
            .canonicalize()
            .with_context(|| path.display().to_string())?,
        None => build::build()?,
    };
    let file = records_of(&grantway)?;
    if asked.fresh && file.exists() {
        fs::remove_file(&file)?;
    }
    let end = asked
        .minutes
        .map(|m| Instant::now() + Duration::from_secs(m * 60));
    loop {
        let done = records(&file)?.len() as u64;
        let left = end.map(|end| end.saturating_duration_since(Instant::now()).as_secs());
        let missing = asked.kills.saturating_sub(done);
        if missing == 0 || left == Some(0) {
            break;
        }
        println!("{done} of {} kills", asked.kills);
        kill(&grantway, missing.min(KILLS_OF_ONE), left, &file)?;
        ensure!(
            records(&file)?.len() as u64 > done || left.is_some(),
            "no kill came to its end"
        );
    }
    summary(&records(&file)?)
}

fn read(args: &[String]) -> Result<Wanted> {
    let mut asked = Wanted {
        kills: 1000,
        minutes: None,
        fresh: false,
        grantway: None,
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--kills" => asked.kills = value()?.parse().context("--kills")?,
            "--minutes" => asked.minutes = Some(value()?.parse().context("--minutes")?),
            "--grantway" => asked.grantway = Some(value()?.into()),
            "--fresh" => asked.fresh = true,
            other => bail!("soak has no option {other}"),
        }
    }
    Ok(asked)
}

/// The file about these programs.
fn records_of(grantway: &Path) -> Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    let monitor = ["grantwayd", "grantway-netd", "grantway-manager"];
    for program in ["grantway", "driver", "guest"].into_iter().chain(monitor) {
        let path = grantway.with_file_name(program);
        let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
        bytes.hash(&mut hasher);
    }
    let folder = workspace::target_directory()?.join("soak");
    fs::create_dir_all(&folder)?;
    Ok(folder.join(format!("{:016x}.jsonl", hasher.finish())))
}

/// A line each. One that was broken off while it was written is left out.
fn records(file: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    Ok(lines.collect())
}

/// Runs one machine.
fn kill(grantway: &Path, kills: u64, seconds: Option<u64>, file: &Path) -> Result<()> {
    let seed = records(file)?.len();
    let spec = serde_json::json!({ "kills": kills, "seconds": seconds, "seed": seed });
    let mut child = Command::new(grantway)
        .args(["internal", "soak", &spec.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| grantway.display().to_string())?;
    let output = child.stdout.take().context("no output")?;
    let mut records = OpenOptions::new().create(true).append(true).open(file)?;
    let mut error = None;
    for line in BufReader::new(output).lines() {
        let line = line?;
        let value: Value = serde_json::from_str(&line).with_context(|| line.clone())?;
        match value["error"].as_str() {
            Some(text) => error = Some(text.to_owned()),
            // A line of its own, also after one that was broken off.
            None => write!(records, "\n{line}\n")?,
        }
    }
    let status = child.wait()?;
    ensure!(
        status.success(),
        "{}",
        error.unwrap_or_else(|| format!("the machine's keeper has failed: {status}"))
    );
    Ok(())
}

/// Prints what all kills came to; fails if something is leaked or an outage is too long.
fn summary(records: &[Value]) -> Result<()> {
    ensure!(!records.is_empty(), "no kill was recorded");
    let all = |key: &str| -> Vec<f64> {
        let mut all: Vec<f64> = records.iter().filter_map(|r| r[key].as_f64()).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    let at = |all: &[f64], share: f64| {
        let place = (all.len().saturating_sub(1) as f64 * share).round() as usize;
        all.get(place).copied().unwrap_or(f64::NAN)
    };
    let mut rows = Vec::new();
    for (title, key) in [
        ("ready, ms", "ready_ms"),
        ("connected, ms", "connected_ms"),
        ("outage of the probe, ms", "outage_ms"),
        ("streams go on, ms", "streams_ms"),
        ("datagrams lost", "lost"),
        ("datagrams twice", "duplicates"),
    ] {
        let values = all(key);
        let cells = [0.5, 0.99, 1.0].map(|share| number(at(&values, share)));
        rows.push([vec![title.to_owned()], cells.to_vec()].concat());
    }
    println!("{} kills", records.len());
    println!("{}", table(&["each", "p50", "p99", "max"], &rows));
    let leaked = |r: &&Value| {
        let mut each = r["leaked"].as_object().into_iter().flatten();
        each.any(|(_, more)| more.as_i64() != Some(0))
    };
    if let Some(record) = records.iter().find(leaked) {
        bail!("leaked: {}", record["leaked"]);
    }
    let outages = all("outage_ms");
    let [usual, most] = OUTAGE_MS;
    let (p50, max) = (at(&outages, 0.5), at(&outages, 1.0));
    ensure!(
        p50 <= usual && max <= most,
        "outages: p50 {p50:.1} ms (at most {usual}), max {max:.1} ms (at most {most})"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(outage_ms: f64, frames: i64) -> Value {
        serde_json::json!({
            "ready_ms": 3.0, "connected_ms": 4.0, "outage_ms": outage_ms, "sent": 100, "lost": 7,
            "duplicates": 0, "streams_ms": 200.0,
            "leaked": {"grants": 0, "frames": frames, "descriptors": 0, "processes": 0},
        })
    }

    #[test]
    fn leaks_and_long_outages_fail() {
        assert!(summary(&[record(9.0, 0), record(200.0, 0), record(8.0, 0)]).is_ok());
        let error = summary(&[record(9.0, 1)]).unwrap_err().to_string();
        assert!(error.contains("\"frames\":1"), "{error}");
        let error = summary(&[record(9.0, 0), record(9.0, 0), record(251.0, 0)]).unwrap_err();
        assert!(error.to_string().contains("max 251.0 ms"), "{error}");
        assert!(summary(&[record(13.0, 0)]).is_err());
        assert!(summary(&[]).is_err());
    }

    #[test]
    fn what_was_recorded_is_gone_on_with() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.jsonl");
        assert!(records(&file).unwrap().is_empty());
        let line = record(1.0, 0).to_string();
        fs::write(&file, format!("\n{line}\n\n{line}\n{}", &line[..20])).unwrap();
        assert_eq!(records(&file).unwrap().len(), 2);
    }

    #[test]
    fn options_are_read() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let asked = read(&words("--kills 5 --minutes 2 --fresh")).unwrap();
        assert_eq!(
            (asked.kills, asked.minutes, asked.fresh),
            (5, Some(2), true)
        );
        assert!(read(&words("--kills x")).is_err());
        assert!(read(&words("--kill 5")).is_err());
    }
}
