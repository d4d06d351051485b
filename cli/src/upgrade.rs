//! `grantway upgrade`: switches a running machine to the installed programs.
//!
//! The manager restarts the driver domains, then the core restarts the helpers. Connections
//! survive. The core and the guests keep running unchanged. Therefore the programs must match the
//! running core: its file and the installed core must have the same version. If the versions
//! differ, a new machine replaces the running one: on a signal, `grantway up` in the foreground
//! starts it and reattaches every attached guest. The signal is sent only if the installed program
//! accepts the arguments of this `grantway up`.

use crate::instance_arg::InstanceArg;
use crate::run::signals::catches;
use crate::up::{DELETED, REPLACE};
use crate::{files, output};
use abi::machine::{DomainStatus, Program, Status};
use abi::version::{OWNER, VERSION_NOTE, version_in};
use anyhow::{Context, anyhow};
use client::Instance;
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
use tool::{Failure, interrupt};

/// Helpers, which the core restarts whenever they exit.
const HELPERS: [&str; 2] = ["grantway-manager", "grantway-netd"];
/// Timeout for the restart of a helper.
const RESTART_HELPER_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// Timeout for the restart of a machine with all attached guests.
const RESTART_TIMEOUT: Duration = Duration::from_secs(30);

/// The machines to upgrade.
#[derive(Debug, clap::Args)]
pub(crate) struct Machines {
    /// Upgrade every machine of this user
    #[arg(long, conflicts_with = "name")]
    all: bool,
    /// Upgrade the machine of this configuration file. With --all, skip this machine if it does not
    /// run, and exit with status 3 only if this machine cannot be upgraded
    #[arg(
        long,
        value_name = "FILE",
        value_hint = clap::ValueHint::FilePath,
        conflicts_with = "name"
    )]
    file: Option<PathBuf>,
    #[command(flatten)]
    which: InstanceArg,
}

/// Executes `grantway upgrade`, for one machine or all.
pub(crate) fn upgrade(which: &Machines, as_json: bool) -> anyhow::Result<()> {
    interrupt::watch();
    let named = || match &which.file {
        Some(file) => Ok(config::parse_with_source(&files::read(file)?)?.0.name),
        None => Ok(which.which.name.clone()),
    };
    if !which.all {
        return upgrade_one(&named()?, as_json);
    }
    // The file's machine is upgraded first, and decides the exit status.
    let mut failures = Vec::new();
    let mut names = client::running_instances()?;
    let own = which.file.is_some().then(named).transpose();
    let own = own.unwrap_or_else(|error: anyhow::Error| {
        failures.push(error);
        None
    });
    names.sort_by_key(|name| Some(name) != own.as_ref());
    for name in names {
        let Err(error) = upgrade_one(&name, as_json) else {
            continue;
        };
        let decides = which.file.is_none() || Some(&name) == own.as_ref();
        failures.push(match decides {
            true => error.context(name),
            false => Failure::Failed(format!("{name}: {error:#}")).into(),
        });
    }
    // The first failure decides the exit status. All failures are reported.
    let mut failures = failures.into_iter();
    let Some(first) = failures.next() else {
        return Ok(());
    };
    failures.for_each(|error| output::warn(&format!("{error:#}")));
    Err(first)
}

fn upgrade_one(name: &str, as_json: bool) -> anyhow::Result<()> {
    let instance = Instance::connect(name)?;
    let began = Instant::now();
    let mut status = instance.status()?;
    while status.up_took_ns.is_none() {
        if began.elapsed() > RESTART_TIMEOUT {
            let text = format!("{name} is still starting: try again when it is up");
            return Err(Failure::Failed(text).into());
        }
        interrupt::sleep(CHECK_INTERVAL)?;
        status = instance.status()?;
    }
    let core = instance.visible_core_pid()?.ok_or_else(|| {
        let text = format!("{name} runs in a PID namespace that this process cannot see");
        Failure::CannotRun(text)
    })?;
    let (version, installed) = versions(core)?;
    if version != installed {
        return replace_machine(&instance, (core, version, installed), &status, as_json);
    }
    // Drivers come first, because a driver serves an older manager, but not a newer one.
    let domains = [Program::Driver, Program::Device].map(|program| {
        let domains = status.domains.iter();
        let domains = domains.filter(|domain| domain.program == program);
        domains.cloned().collect::<Vec<DomainStatus>>()
    });
    if let Some(fixed) = domains
        .iter()
        .flatten()
        .find(|domain| domain.restarts.is_none())
    {
        let name = &fixed.name;
        let text = format!(
            "{name} cannot be restarted (`restart` in its configuration): restart the machine"
        );
        return Err(Failure::CannotRun(text).into());
    }
    let mut outages = [Vec::new(), Vec::new()];
    for (domains, outages) in domains.iter().zip(&mut outages) {
        for domain in domains {
            let restarted = instance.restart(&domain.name)?;
            outages.push((domain.name.clone(), restarted.connected_ns));
        }
    }
    for helper in HELPERS {
        replace(core, helper)?;
    }
    if as_json {
        let [drivers, devices] = outages.map(|outages| {
            let outages = outages.into_iter();
            let report = |(domain, ns)| json!({ "domain": domain, "connected_ns": ns });
            outages.map(report).collect::<Vec<_>>()
        });
        return output::json(&json!({
            "name": name, "version": version, "drivers": drivers, "devices": devices,
        }));
    }
    let outages: Vec<String> = outages
        .iter()
        .flatten()
        .map(|(domain, ns)| format!("{domain} after {:.1} ms", *ns as f64 / 1e6))
        .collect();
    output::print(&format!(
        "{name} runs the installed programs now: manager, netd, {}\n",
        outages.join(", ")
    ))
}

/// Replaces a machine whose core differs in version from the installed core.
fn replace_machine(
    instance: &Instance,
    (core, version, installed): (u32, u32, u32),
    before: &Status,
    as_json: bool,
) -> anyhow::Result<()> {
    let name = instance.name();
    let Some(up) = foreground(core) else {
        let text = format!(
            "the running core has version {version}, the installed one version {installed}, \
             and no `grantway up` in the foreground can replace it: end the core by SIGTERM \
             (process {core}) and start the machine again, which attaches all attached guests again"
        );
        return Err(Failure::CannotRun(text).into());
    };
    check(name, up)?;
    let began = Instant::now();
    let up = pidfd_open(up, PidfdFlags::empty()).context("find `grantway up`")?;
    pidfd_send_signal(&up, Signal::USR2).context("signal `grantway up`")?;
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
        if began.elapsed() > RESTART_TIMEOUT || has_ended(&up) {
            let what = match is_there {
                true => format!("{} did not restart", left.join(", ")),
                false => "the machine did not restart".to_owned(),
            };
            return Err(Failure::Failed(format!("{name}: {what}: see its log")).into());
        }
        interrupt::sleep(CHECK_INTERVAL)?;
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
        "{name} was restarted with the installed programs: {domains} domains \
         after {took_ms:.0} ms\n"
    ))
}

/// Runs the installed program to check that it accepts the arguments and environment of this
/// `grantway up`, while the old machine still runs.
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
    let behind = behind.context("cannot read the arguments of `grantway up`")?;
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
        "{name} continues unchanged: the installed {program} would not start it: {}",
        why.trim()
    );
    Err(Failure::Failed(text).into())
}

/// Returns the process id of the `grantway up` that started a core and waits for it, if that
/// process handles the signal.
fn foreground(core: u32) -> Option<Pid> {
    let words = fs::read(format!("/proc/{core}/cmdline")).ok()?;
    if !keeps_guests(&words) {
        return None;
    }
    let stat = fs::read_to_string(format!("/proc/{core}/stat")).ok()?;
    let parent: u32 = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
    let program = fs::read_link(format!("/proc/{parent}/exe")).ok()?;
    let name = program.file_name()?.to_string_lossy();
    let is_ours = name.strip_suffix(DELETED).unwrap_or(&name) == "grantway";
    (is_ours && catches(parent, REPLACE)).then(|| Pid::from_raw(parent.cast_signed()))?
}

/// Returns whether a core with these arguments keeps its attached guests for the next machine. The
/// core of `grantway run` does not, and `grantway run` would forward the signal to its command.
fn keeps_guests(words: &[u8]) -> bool {
    words
        .split(|byte| *byte == 0)
        .any(|word| word == b"--state")
}

/// Returns whether a process has exited.
fn has_ended(process: &OwnedFd) -> bool {
    let mut watched = [PollFd::new(process, PollFlags::IN)];
    poll(&mut watched, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Returns the versions of a machine's core and of the installed one.
fn versions(core: u32) -> anyhow::Result<(u32, u32)> {
    let file = PathBuf::from(format!("/proc/{core}/exe"));
    let place = fs::read_link(&file).map_err(|error| {
        let text = format!(
            "cannot see the program of the core (process {core}): {error}; only the user \
             who started the machine can"
        );
        Failure::CannotRun(text)
    })?;
    let place = place.to_string_lossy();
    let place = Path::new(place.strip_suffix(DELETED).unwrap_or(&place));
    let name = place.file_name().unwrap_or_default();
    if ![client::MONITOR, client::LAB_MONITOR]
        .map(Some)
        .contains(&name.to_str())
    {
        let text = format!("process {core} is {}, not a core", place.display());
        return Err(Failure::CannotRun(text).into());
    }
    let [running, installed] = [(&*file, "runs"), (place, "is installed")].map(|(path, what)| {
        let version = version_of(path)?;
        version.ok_or_else(|| anyhow!("the core that {what} ({}) has no version", path.display()))
    });
    Ok((running?, installed?))
}

/// Returns the version in the ELF note of a program's file.
fn version_of(program: &Path) -> anyhow::Result<Option<u32>> {
    let bytes = fs::read(program).with_context(|| format!("read {}", program.display()))?;
    Ok(version_within(&bytes))
}

/// Like [`version_of`], from the file's bytes. Finds the note by its header: sizes, type and owner.
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

/// Terminates a helper of a core, and waits until its replacement runs.
fn replace(core: u32, helper: &str) -> anyhow::Result<()> {
    let before = running(core, helper);
    for pid in &before {
        let Some(pid) = Pid::from_raw(pid.cast_signed()) else {
            continue;
        };
        // If the helper has already exited, its replacement also starts.
        if let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) {
            let _ = pidfd_send_signal(&process, Signal::KILL);
        }
    }
    let until = Instant::now() + RESTART_HELPER_TIMEOUT;
    while !running(core, helper)
        .iter()
        .any(|pid| !before.contains(pid))
    {
        if Instant::now() >= until {
            let text = format!("{helper} does not restart: see the machine's log");
            return Err(Failure::Failed(text).into());
        }
        interrupt::sleep(CHECK_INTERVAL)?;
    }
    Ok(())
}

/// Returns the running processes of a program that a core has started.
fn running(core: u32, program: &str) -> Vec<u32> {
    // The path of the executable identifies them. A process that has exited or has not executed the
    // program yet has another path or none.
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
    fn a_command_of_run_gets_no_replace_signal() {
        let up = b"grantwayd\0--socket\0/s\0--state\0/x\0";
        let run = b"grantwayd\0--socket\0/--state\0";
        assert!(keeps_guests(up) && !keeps_guests(run) && !keeps_guests(b""));
    }

    #[test]
    fn the_version_of_a_program_is_found_in_its_file() {
        // Every program that links the domains' start code has the note, including this one.
        let this = std::env::current_exe().unwrap();
        assert_eq!(version_of(&this).unwrap(), Some(VERSION));
        let words = |words: [u32; 3]| words.map(u32::to_le_bytes).concat();
        let note = [&words([9, 4, 1])[..], OWNER, &[0; 3], &7u32.to_le_bytes()].concat();
        let other = [&words([4, 4, 1])[..], b"GNU\0", &[1; 4]].concat();
        let file = [&[0; 64][..], OWNER, &[0; 3], &other, &note, &[9; 33]].concat();
        assert_eq!(version_within(&file), Some(7));
        assert_eq!(version_within(&file[1..]), None, "notes are word-aligned");
        assert_eq!(version_within(&note[..note.len() - 1]), None);
    }
}
