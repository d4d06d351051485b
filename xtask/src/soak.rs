//! `soak`: kills the driver domain under load, attaches and detaches thousands of guests, or runs
//! many guests for a given time. Summarizes the results.
//!
//! Resumable: each kill, each hundred attaches, and each round of many guests is a line of JSON in
//! a file below `target/soak/`, whose name depends on the tested programs. A new run resumes an
//! interrupted one.

mod summary;
mod victim;

use crate::{build, workspace};
use anyhow::{Context, Result, bail, ensure};
use indicatif::ProgressBar;
use serde_json::{Value, json};
use std::fs::{self, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use victim::Victim;

/// The program that starts machines and their loads. It is in the same folder as `grantway`.
const MACHINE_PROGRAM: &str = "grantway-lab";
/// Kills per machine. Then another machine is started, so that starts and stops are tested, too.
const KILLS_PER_MACHINE: u64 = 250;
/// Attaches between two checks of the machine's resources; each check writes a line.
const ATTACHES_PER_LINE: u64 = 100;
/// One in this many attaches is disturbed by a kill.
const ATTACHES_PER_KILL: u64 = 20;

/// Default duration of traffic with many guests, minutes.
const GUESTS_MINUTES: u64 = 30;

/// A repeated trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trial {
    /// Kills a process of the machine.
    Kills(Victim),
    /// Attaches and detaches a guest.
    Attaches,
    /// Runs this many guests with traffic.
    Guests(u64),
}

impl Trial {
    const fn name(self) -> &'static str {
        match self {
            Self::Kills(_) => "kills",
            Self::Attaches => "attaches",
            Self::Guests(_) => "seconds",
        }
    }

    /// Returns the number of repetitions that a line records.
    fn repetitions(self, line: &Value) -> u64 {
        match self {
            Self::Kills(_) => 1,
            Self::Attaches => line["attaches"].as_u64().unwrap_or(0),
            Self::Guests(_) => line["seconds"].as_f64().unwrap_or(0.0).round() as u64,
        }
    }

    /// Returns the name and the argument of the helper that makes `count` repetitions on one
    /// machine within `seconds`.
    fn helper(self, count: u64, seconds: Option<u64>, seed: usize) -> [String; 2] {
        match self {
            Self::Kills(Victim::Vm) => {
                let kills = count.min(KILLS_PER_MACHINE);
                let spec = json!({ "kills": kills, "seconds": seconds, "seed": seed });
                ["vms".to_owned(), spec.to_string()]
            }
            Self::Kills(victim) => {
                let spec = json!({
                    "victim": victim.name(), "kills": count.min(KILLS_PER_MACHINE),
                    "seconds": seconds, "seed": seed,
                });
                ["soak".to_owned(), spec.to_string()]
            }
            // All rounds use one machine, because slow growth shows only after a long time.
            Self::Attaches => {
                let spec = json!({
                    "attaches": count, "every": ATTACHES_PER_LINE, "kill_every": ATTACHES_PER_KILL,
                    "seconds": seconds, "seed": seed,
                });
                ["attaches".to_owned(), spec.to_string()]
            }
            Self::Guests(guests) => {
                let spec = json!({ "guests": guests, "seconds": count, "seed": seed });
                ["guests".to_owned(), spec.to_string()]
            }
        }
    }
}

/// Parsed options.
#[derive(Debug)]
struct SoakOptions {
    trial: Trial,
    count: u64,
    minutes: Option<u64>,
    fresh: bool,
    /// The path of `grantway`, or `None` to build the programs first.
    grantway: Option<PathBuf>,
}

/// Runs `soak [--kills N [--of VICTIM]|--attaches N|--guests N] [--minutes M] [--fresh] [--grantway
/// PATH]`.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let asked = read(args)?;
    let grantway = match asked.grantway {
        Some(path) => path
            .canonicalize()
            .with_context(|| path.display().to_string())?,
        None => build::build()?,
    };
    let trial = asked.trial;
    if trial == Trial::Kills(Victim::Vm) {
        build::add(&grantway, "hostile", "hostile-vm")?;
    }
    let file = records_of(&grantway, trial)?;
    if asked.fresh && file.exists() {
        fs::remove_file(&file)?;
    }
    let end = asked
        .minutes
        .map(|m| Instant::now() + Duration::from_secs(m * 60));
    let bar = ProgressBar::new(asked.count);
    loop {
        let done = done(trial, &file)?;
        let left = end.map(|end| end.saturating_duration_since(Instant::now()).as_secs());
        let missing = asked.count.saturating_sub(done);
        if missing == 0 || left == Some(0) {
            break;
        }
        bar.suspend(|| println!("{done} of {} {}", asked.count, trial.name()));
        bar.set_position(done);
        let helper = trial.helper(missing, left, records(&file)?.len());
        run_one(&grantway, helper, &file, |line| {
            bar.inc(trial.repetitions(line))
        })?;
        ensure!(
            self::done(trial, &file)? > done || left.is_some(),
            "no repetition was completed"
        );
    }
    bar.finish_and_clear();
    let records = records(&file)?;
    match trial {
        Trial::Kills(Victim::Vm) => summary::of_vms(&records),
        Trial::Kills(victim) => summary::of_kills(victim, &records),
        Trial::Attaches => summary::of_attaches(&records),
        Trial::Guests(guests) => summary::of_guests(guests, &records),
    }
}

/// Returns the number of finished repetitions.
fn done(trial: Trial, file: &Path) -> Result<u64> {
    Ok(records(file)?
        .iter()
        .map(|line| trial.repetitions(line))
        .sum())
}

fn read(args: &[String]) -> Result<SoakOptions> {
    let (mut trial, mut victim) = (None, None);
    let (mut count, mut minutes) = (None, None);
    let (mut fresh, mut grantway) = (false, None);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--kills" | "--attaches" | "--guests" => {
                let number: u64 = value()?.parse().with_context(|| arg.clone())?;
                ensure!(
                    trial.is_none(),
                    "{arg}: choose one of --kills, --attaches and --guests"
                );
                (trial, count) = (Some(arg.as_str()), Some(number));
            }
            "--of" => victim = Some(Victim::named(value()?)?),
            "--minutes" => minutes = Some(value()?.parse().context("--minutes")?),
            "--grantway" => grantway = Some(value()?.into()),
            "--fresh" => fresh = true,
            other => bail!("soak has no option {other}"),
        }
    }
    let count = count.unwrap_or(1000);
    let (trial, count, minutes) = match (trial, victim) {
        (Some(option @ ("--attaches" | "--guests")), Some(_)) => {
            bail!("--of applies only to --kills, not to {option}")
        }
        (Some("--attaches"), None) => (Trial::Attaches, count, minutes),
        // For guests, the number of minutes is the planned duration, not a limit.
        (Some("--guests"), None) => {
            ensure!(
                count >= 2 && count.is_multiple_of(2),
                "--guests {count}: use an even number, because guests exchange traffic in pairs"
            );
            let wanted = minutes.unwrap_or(GUESTS_MINUTES) * 60;
            (Trial::Guests(count), wanted, None)
        }
        (_, victim) => {
            let victim = victim.unwrap_or(Victim::Driver);
            (Trial::Kills(victim), count, minutes)
        }
    };
    Ok(SoakOptions {
        trial,
        count,
        minutes,
        fresh,
        grantway,
    })
}

/// Returns the results file of these programs.
fn records_of(grantway: &Path, trial: Trial) -> Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    let monitor = ["grantwayd", "grantway-netd", "grantway-manager"];
    for program in ["grantway", MACHINE_PROGRAM, "driver", "guest"]
        .into_iter()
        .chain(monitor)
    {
        let path = grantway.with_file_name(program);
        let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
        bytes.hash(&mut hasher);
    }
    let folder = workspace::target_directory()?.join("soak");
    fs::create_dir_all(&folder)?;
    let programs = hasher.finish();
    let what = match trial {
        Trial::Kills(victim) => victim.name(),
        Trial::Attaches => trial.name(),
        Trial::Guests(guests) => &format!("guests-{guests}"),
    };
    Ok(folder.join(format!("{programs:016x}-{what}.jsonl")))
}

/// Returns one record per line. Ignores an incomplete line.
fn records(file: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    Ok(lines.collect())
}

/// Runs one machine and stores each line of its output.
fn run_one(grantway: &Path, helper: [String; 2], file: &Path, kept: impl Fn(&Value)) -> Result<()> {
    let program = grantway.with_file_name(MACHINE_PROGRAM);
    let mut child = Command::new(&program)
        .arg("internal")
        .args(helper)
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| program.display().to_string())?;
    let output = child.stdout.take().context("no output")?;
    let mut records = OpenOptions::new().create(true).append(true).open(file)?;
    let mut error = None;
    for line in BufReader::new(output).lines() {
        let line = line?;
        let value: Value = serde_json::from_str(&line).with_context(|| line.clone())?;
        match value["error"].as_str() {
            Some(text) => error = Some(text.to_owned()),
            // The text begins with a newline, because the last line may be incomplete.
            None => {
                write!(records, "\n{line}\n")?;
                kept(&value);
            }
        }
    }
    let status = child.wait()?;
    ensure!(
        status.success(),
        "{}",
        error.unwrap_or_else(|| format!("{MACHINE_PROGRAM} has failed: {status}"))
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_results_are_continued() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.jsonl");
        assert!(records(&file).unwrap().is_empty());
        let line = json!({ "attaches": 100, "seconds": 7.5 }).to_string();
        fs::write(&file, format!("\n{line}\n\n{line}\n{}", &line[..12])).unwrap();
        assert_eq!(done(Trial::Kills(Victim::Driver), &file).unwrap(), 2);
        assert_eq!(done(Trial::Attaches, &file).unwrap(), 200);
        assert_eq!(done(Trial::Guests(64), &file).unwrap(), 16);
    }

    #[test]
    fn options_are_read() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let asked = read(&words("--kills 5 --minutes 2 --fresh")).unwrap();
        assert_eq!(
            (asked.trial, asked.count, asked.minutes, asked.fresh),
            (Trial::Kills(Victim::Driver), 5, Some(2), true)
        );
        let asked = read(&words("--kills 5 --of netd")).unwrap();
        assert_eq!(asked.trial, Trial::Kills(Victim::Netd));
        let error = read(&words("--of disk")).unwrap_err().to_string();
        assert_eq!(
            error,
            "--of disk: choose one of driver, guest, manager, netd, vm"
        );
        assert!(read(&words("--attaches 5 --of netd")).is_err());
        assert!(read(&words("--guests 4 --of netd")).is_err());
        assert!(read(&words("--guests 4 --kills 3")).is_err());
        for odd in ["0", "3"] {
            let error = read(&words(&format!("--guests {odd}"))).unwrap_err();
            assert!(error.to_string().starts_with("--guests"), "{error}");
        }
        let asked = read(&words("--guests 64 --minutes 2")).unwrap();
        let guests = Trial::Guests(64);
        assert_eq!(
            (asked.trial, asked.count, asked.minutes),
            (guests, 120, None)
        );
        assert_eq!(read(&words("--guests 4")).unwrap().count, 1800);
        let asked = read(&words("--attaches 10000")).unwrap();
        assert_eq!((asked.trial, asked.count), (Trial::Attaches, 10_000));
        let error = read(&words("--attaches x")).unwrap_err();
        assert!(format!("{error:#}").starts_with("--attaches"), "{error:#}");
        assert!(read(&words("--kill 5")).is_err());
    }
}
