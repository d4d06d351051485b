//! `grantway upgrade`: a running machine goes on with the programs that are installed now.
//!
//! The helpers end and are started again by the core, driver domains by the manager: no
//! connection ends. The core stays what it is, and so do guests. So the programs must be such as
//! this core starts: its own file and the one that lies in its place now have to tell the same
//! version. Where they do not, another machine takes the place of this one: `grantway up` in the
//! foreground does so when it is told, and what was attached is attached again. It is told only if
//! the program that is installed now would start what it has started.

use crate::run::signals::catches;
use crate::up::{DELETED, REPLACE};
use crate::which::Which;
use crate::{files, output};
use abi::machine::{DomainStatus, Program, Status};
use abi::version::{OWNER, VERSION_NOTE, version_in};
use anyhow::{Context, anyhow};
use client::Instance;
use figures::{Failure, interrupt};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What the core starts again by itself.
const HELPERS: [&str; 2] = ["grantway-manager", "grantway-netd"];
/// How long a helper may take to be there again.
const BACK: Duration = Duration::from_secs(10);
/// How often it is looked for.
const LOOK: Duration = Duration::from_millis(5);
/// How long a machine may take to be there again with all that was attached to it.
const AGAIN: Duration = Duration::from_secs(30);

/// Which machines.
#[derive(Debug, clap::Args)]
pub(crate) struct Machines {
    /// Every machine of this user
    #[arg(long, conflicts_with = "name")]
    all: bool,
    /// The machine of this configuration file; with `--all` only one that runs, and the exit
    /// status is 3 only if it is this one that cannot go on
    #[arg(long, value_name = "FILE", conflicts_with = "name")]
    file: Option<PathBuf>,
    #[command(flatten)]
    which: Which,
}

/// `grantway upgrade`, of one machine or of all.
pub(crate) fn upgrade(which: &Machines, as_json: bool) -> anyhow::Result<()> {
    interrupt::watch();
    let named = || match &which.file {
        Some(file) => Ok(config::parse_located(&files::read(file)?)?.0.name),
        None => Ok(which.which.name.clone()),
    };
    if !which.all {
        return one(&named()?, as_json);
    }
    // That of the file is the first one, and no other decides for it.
    let mut failures = Vec::new();
    let mut names = client::names()?;
    let own = which.file.is_some().then(named).transpose();
    let own = own.unwrap_or_else(|error: anyhow::Error| {
        failures.push(error);
        None
    });
    names.sort_by_key(|name| Some(name) != own.as_ref());
    for name in names {
        let Err(error) = one(&name, as_json) else {
            continue;
        };
        let decides = which.file.is_none() || Some(&name) == own.as_ref();
        failures.push(match decides {
            true => error.context(name),
            false => Failure::Failed(format!("{name}: {error:#}")).into(),
        });
    }
    // The first one decides the exit status; all are said.
    let mut failures = failures.into_iter();
    let Some(first) = failures.next() else {
        return Ok(());
    };
    failures.for_each(|error| output::warn(&format!("{error:#}")));
    Err(first)
}

fn one(name: &str, as_json: bool) -> anyhow::Result<()> {
    let instance = Instance::connect(name)?;
    let began = Instant::now();
    let mut status = instance.status()?;
    while status.up_took_ns.is_none() {
        if began.elapsed() > AGAIN {
            let text = format!("{name} is not up yet: try again when it is");
            return Err(Failure::Failed(text).into());
        }
        interrupt::sleep(LOOK)?;
        status = instance.status()?;
    }
    let core = instance.core_seen()?.ok_or_else(|| {
        let text = format!("{name} runs in a PID namespace that is not to be seen from here");
        Failure::CannotRun(text)
    })?;
    let (version, installed) = versions(core)?;
    if version != installed {
        return another(&instance, (core, version, installed), &status, as_json);
    }
    let is_driver = |domain: &&DomainStatus| domain.program == Program::Driver;
    let drivers: Vec<DomainStatus> = status.domains.iter().filter(is_driver).cloned().collect();
    if let Some(driver) = drivers.iter().find(|driver| driver.restarts.is_none()) {
        let name = &driver.name;
        let text = format!("{name} is never started again (`restart`): restart the machine");
        return Err(Failure::CannotRun(text).into());
    }
    for helper in HELPERS {
        replace(core, helper)?;
    }
    let mut outages = Vec::new();
    for driver in drivers {
        let restarted = instance.restart(&driver.name)?;
        outages.push((driver.name.clone(), restarted.connected_ns));
    }
    if as_json {
        let drivers: Vec<_> = outages
            .iter()
            .map(|(domain, ns)| json!({ "domain": domain, "connected_ns": ns }))
            .collect();
        return output::json(&json!({ "name": name, "version": version, "drivers": drivers }));
    }
    let outages: Vec<String> = outages
        .iter()
        .map(|(domain, ns)| format!("{domain} after {:.1} ms", *ns as f64 / 1e6))
        .collect();
    output::print(&format!(
        "{name} goes on with the programs that are installed now: manager, netd, {}\n",
        outages.join(", ")
    ))
}

/// Has another machine take the place of one whose core is of another version.
fn another(
    instance: &Instance,
    (core, version, installed): (u32, u32, u32),
    before: &Status,
    as_json: bool,
) -> anyhow::Result<()> {
    let name = instance.name();
    let Some(up) = foreground(core) else {
        let text = format!(
            "the core that runs is of version {version}, what is installed of version {installed}, \
             and no `grantway up` in the foreground could start another: end it by SIGTERM \
             (process {core}) and start it again, then what was attached is attached again"
        );
        return Err(Failure::CannotRun(text).into());
    };
    check(name, up)?;
    let began = Instant::now();
    let up = pidfd_open(up, PidfdFlags::empty()).context("find `grantway up`")?;
    pidfd_send_signal(&up, Signal::USR2).context("tell `grantway up`")?;
    let missing = || {
        let status = instance.status().ok();
        let status = status.filter(|status| status.pid != before.pid);
        let runs = |name: &String| {
            let mut domains = status.iter().flat_map(|status| &status.domains);
            domains.any(|domain| domain.name == *name && domain.state == "running")
        };
        let names = before.domains.iter().map(|domain| domain.name.clone());
        let names: Vec<String> = names.filter(|name| !runs(name)).collect();
        (status.is_some(), names)
    };
    let (mut is_there, mut left) = missing();
    while !left.is_empty() {
        if began.elapsed() > AGAIN || has_ended(&up) {
            let what = match is_there {
                true => format!("{} did not come back", left.join(", ")),
                false => "the machine did not come back".to_owned(),
            };
            return Err(Failure::Failed(format!("{name}: {what}: see its log")).into());
        }
        interrupt::sleep(LOOK)?;
        (is_there, left) = missing();
    }
    let took_ms = began.elapsed().as_secs_f64() * 1e3;
    let domains = before.domains.len();
    if as_json {
        return output::json(&json!({
            "name": name, "version": installed, "domains": domains, "again_ms": took_ms,
        }));
    }
    output::print(&format!(
        "{name} was started again with the programs that are installed now: {domains} domains \
         after {took_ms:.0} ms\n"
    ))
}

/// Has the program that is installed now say whether it would start what this `grantway up` was
/// told to start, in its place and with its environment, while the machine before still runs.
fn check(name: &str, up: Pid) -> anyhow::Result<()> {
    let about = PathBuf::from(format!("/proc/{}", up.as_raw_nonzero()));
    let words = |file: &str| -> anyhow::Result<Vec<OsString>> {
        let path = about.join(file);
        let bytes = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        let words = bytes
            .strip_suffix(b"\0")
            .unwrap_or(&bytes)
            .split(|b| *b == 0);
        Ok(words
            .map(|word| OsString::from_vec(word.to_vec()))
            .collect())
    };
    let program = fs::read_link(about.join("exe")).context("find the program of `grantway up`")?;
    let program = program.to_string_lossy();
    let program = program.strip_suffix(DELETED).unwrap_or(&program);
    let mut args = words("cmdline")?;
    let behind = args.iter().position(|word| word == "up").map(|at| at + 1);
    let behind = behind.context("the words of `grantway up` cannot be read")?;
    args.insert(behind, "--check".into());
    let vars = words("environ")?.into_iter().filter_map(|var| {
        let mut parts = var.as_bytes().splitn(2, |byte| *byte == b'=');
        let (key, value) = (parts.next()?, parts.next()?);
        Some((
            OsStr::from_bytes(key).to_owned(),
            OsStr::from_bytes(value).to_owned(),
        ))
    });
    let mut command = Command::new(program);
    command
        .args(args.into_iter().skip(1))
        .env_clear()
        .envs(vars);
    command.current_dir(about.join("cwd")).stdin(Stdio::null());
    let checked = command.output().with_context(|| format!("run {program}"))?;
    if checked.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&checked.stderr);
    let text = format!(
        "{name} runs on as it was: {program} that is installed now would not start it: {}",
        why.trim()
    );
    Err(Failure::Failed(text).into())
}

/// The `grantway up` that has started a core and waits for it, if it can be told to start another.
fn foreground(core: u32) -> Option<Pid> {
    let words = fs::read(format!("/proc/{core}/cmdline")).ok()?;
    if !is_left(&words) {
        return None;
    }
    let stat = fs::read_to_string(format!("/proc/{core}/stat")).ok()?;
    let parent: u32 = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
    let program = fs::read_link(format!("/proc/{parent}/exe")).ok()?;
    let name = program.file_name()?.to_string_lossy();
    let is_ours = name.strip_suffix(DELETED).unwrap_or(&name) == "grantway";
    (is_ours && catches(parent, REPLACE)).then(|| Pid::from_raw(parent.cast_signed()))?
}

/// Whether a core with these words leaves what is attached to it to the next one. That of
/// `grantway run`, which hands signals on to its command, leaves nothing.
fn is_left(words: &[u8]) -> bool {
    words
        .split(|byte| *byte == 0)
        .any(|word| word == b"--state")
}

/// Whether a process has ended.
fn has_ended(process: &OwnedFd) -> bool {
    let mut watched = [PollFd::new(process, PollFlags::IN)];
    poll(&mut watched, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// The versions of a machine's core, and of the programs that are installed now.
fn versions(core: u32) -> anyhow::Result<(u32, u32)> {
    let file = PathBuf::from(format!("/proc/{core}/exe"));
    let place = fs::read_link(&file).map_err(|error| {
        let text = format!(
            "which program the core (process {core}) is cannot be seen: {error}; it takes the user \
             who started the machine"
        );
        Failure::CannotRun(text)
    })?;
    let place = place.to_string_lossy();
    let place = Path::new(place.strip_suffix(DELETED).unwrap_or(&place));
    let name = place.file_name().unwrap_or_default();
    if ![client::MONITOR, client::MONITOR_OF_COMPARISONS]
        .map(Some)
        .contains(&name.to_str())
    {
        let text = format!("process {core} is {}, and no core", place.display());
        return Err(Failure::CannotRun(text).into());
    }
    let [running, installed] = [(&*file, "runs"), (place, "is installed")].map(|(path, what)| {
        let version = version_of(path)?;
        version.ok_or_else(|| anyhow!("the core that {what} ({}) tells no version", path.display()))
    });
    Ok((running?, installed?))
}

/// The version that a program's file tells, in a note of ours.
fn version_of(program: &Path) -> anyhow::Result<Option<u32>> {
    let bytes = fs::read(program).with_context(|| format!("read {}", program.display()))?;
    Ok(version_within(&bytes))
}

/// As [`version_of`], of the file's bytes. A note is known by its head: sizes, type and owner.
fn version_within(bytes: &[u8]) -> Option<u32> {
    const ALIGN: usize = 4;
    let mut head = Vec::new();
    for word in [OWNER.len() as u32, size_of::<u32>() as u32, VERSION_NOTE] {
        head.extend(word.to_le_bytes());
    }
    head.extend(OWNER);
    let is_note = |at: &usize| bytes.get(*at..).is_some_and(|rest| rest.starts_with(&head));
    let at = (0..bytes.len()).step_by(ALIGN).find(is_note)?;
    version_in(bytes.get(at..)?, ALIGN)
}

/// Ends a helper of a core, and waits until there is another.
fn replace(core: u32, helper: &str) -> anyhow::Result<()> {
    let before = running(core, helper);
    for pid in &before {
        let Some(pid) = Pid::from_raw(pid.cast_signed()) else {
            continue;
        };
        // It may just have ended: there is another soon.
        if let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) {
            let _ = pidfd_send_signal(&process, Signal::KILL);
        }
    }
    let until = Instant::now() + BACK;
    while !running(core, helper)
        .iter()
        .any(|pid| !before.contains(pid))
    {
        if Instant::now() >= until {
            let text = format!("{helper} does not start again: see the machine's log");
            return Err(Failure::Failed(text).into());
        }
        interrupt::sleep(LOOK)?;
    }
    Ok(())
}

/// The processes that a core has started of this program, and that live.
fn running(core: u32, program: &str) -> Vec<u32> {
    // Of one that has ended, or is not yet what it becomes, the file says so.
    let is_program = |pid: &u32| {
        let file = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.strip_suffix(DELETED).unwrap_or(&name) == program
    };
    client::children(core)
        .into_iter()
        .filter(is_program)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::version::VERSION;

    #[test]
    fn a_command_of_run_is_not_sent_the_signal_of_up() {
        let up = b"grantwayd\0--socket\0/s\0--state\0/x\0";
        let run = b"grantwayd\0--socket\0/--state\0";
        assert!(is_left(up) && !is_left(run) && !is_left(b""));
    }

    #[test]
    fn the_version_of_a_program_is_found_in_its_file() {
        // All programs tell it that link what a domain starts with, and this one does.
        let this = std::env::current_exe().unwrap();
        assert_eq!(version_of(&this).unwrap(), Some(VERSION));
        let words = |words: [u32; 3]| words.map(u32::to_le_bytes).concat();
        let note = [&words([9, 4, 1])[..], OWNER, &[0; 3], &7u32.to_le_bytes()].concat();
        let other = [&words([4, 4, 1])[..], b"GNU\0", &[1; 4]].concat();
        let file = [&[0; 64][..], OWNER, &[0; 3], &other, &note, &[9; 33]].concat();
        assert_eq!(version_within(&file), Some(7));
        assert_eq!(version_within(&file[1..]), None, "notes lie on words");
        assert_eq!(version_within(&note[..note.len() - 1]), None);
    }
}
