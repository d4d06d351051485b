//! `grantway up`, `grantway xen` and `grantway down`.

use crate::service::Service;
use crate::{files, host, output, parent, restore, tables};
use abi::machine::Machine;
use anyhow::Context;
use clap::{Args, ValueHint};
use client::Instance;
use config::domain::GrantMode;
use config::{Config, ConfigPart, Finding};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::iterator::Signals;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tool::{Failure, interrupt};

/// Options of `grantway up`.
#[derive(Debug, Args)]
pub(crate) struct UpOptions {
    /// The configuration (docs/config.md describes it)
    #[arg(value_name = "CONFIG", value_hint = ValueHint::FilePath)]
    pub(crate) config: PathBuf,
    /// Only check whether the machine can be started here, and start nothing
    #[arg(long)]
    pub(crate) check: bool,
    /// Return as soon as the machine is ready, and leave it running
    #[arg(long)]
    pub(crate) detach: bool,
    /// Name of the machine [default: the file's]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Start grantwayd-lab and driver-lab, which also have the grant mechanisms that exist only for
    /// comparisons
    #[arg(long)]
    pub(crate) lab: bool,
    /// File for the monitor's log [default: NAME.log in the runtime directory]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) log: Option<PathBuf>,
    /// Also serve metrics at this port of 127.0.0.1 [default: the file's, or none]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) metrics_port: Option<u16>,
}

/// Executes `grantway xen`: becomes the driver domain of a real Xen. Returns only on failure.
pub(crate) fn xen(config: &Path) -> anyhow::Result<()> {
    let name = config::parse(
        &config.to_string_lossy(),
        &std::fs::read_to_string(config).with_context(|| config.display().to_string())?,
    )?
    .name;
    let program = client::program_path("grantway-xen")?;
    let error = Command::new(&program)
        .arg(config)
        .arg(client::socket_path(&name)?)
        .exec();
    Err(error).with_context(|| format!("run {}", program.display()))
}

/// Signals that end the machine.
const END_SIGNALS: [i32; 4] = [SIGTERM, SIGINT, SIGHUP, REPLACE];
/// The signal that replaces the machine by one with the installed programs.
pub(crate) const REPLACE: i32 = SIGUSR2;
/// Interval between checks of the machine and of signals.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Suffix that the kernel appends to the path of a deleted program.
pub(crate) const DELETED: &str = " (deleted)";

/// The environment variable that passes the outer process's id to the process inside the user
/// namespace.
const INSIDE: &str = "GRANTWAY_UP_INSIDE";

/// Executes `grantway up`.
pub(crate) fn up(options: &UpOptions, as_json: bool) -> anyhow::Result<()> {
    let (config, mut machine) = load(options)?;
    client::check_limits(&machine)?;
    machine.access = host::access(&config)?;
    if host::needs_xdp(&config) {
        netdev::xdp::probe().map_err(|error| {
            Failure::CannotRun(format!("AF_XDP is not available here: {error}"))
        })?;
    }
    if host::needs_tap(&config) {
        host::tun().map_err(|e| {
            Failure::CannotRun(format!(
                "/dev/net/tun cannot be opened ({e}): load the module `tun`, or use NICs of kind \
                 \"sim\" and endpoints \"stack\", which need no TAPs"
            ))
        })?;
        if !options.check && !rustix::process::geteuid().is_root() {
            return restart_in_user_namespace(&config);
        }
    }
    restore::warn_of_rules(&config);
    if options.check {
        return match as_json {
            true => output::json(&json!({ "name": machine.name, "can_start": true })),
            false => output::print(&format!("{} can be started.\n", machine.name)),
        };
    }
    let outside = std::env::var(INSIDE).ok();
    if let Some(outside) = &outside
        && !options.detach
    {
        let outside = outside.parse();
        let outside = outside.with_context(|| format!("{INSIDE} is not a process id"))?;
        if !parent::follow(outside, Signal::TERM)? {
            return Ok(());
        }
    }
    restore::restore_dead_machines();
    // Signals are caught before the monitor starts, so that no signal can end this process and
    // leave the monitor running.
    let signals = Signals::new(END_SIGNALS).context("signals")?;
    let spinner = output::spinner(&format!("{}: starting", machine.name));
    let start = start_options(options, &config)?;
    let started = Instance::start(&machine, &start);
    spinner.finish_and_clear();
    if started.is_err() {
        restore::restore_dead_machines();
    }
    let instance = started?;
    if let Some(error) = instance.unread_state() {
        output::warn(&format!(
            "guests that were attached before are not attached again: {error}"
        ));
    }
    if as_json {
        output::json(&json!({
            "name": instance.name(),
            "pid": instance.pid(),
            "socket": instance.socket(),
            "up_ms": instance.up_ms(),
        }))?;
    } else {
        output::print(&tables::ready_message(
            &config,
            &instance,
            options.detach,
            outside.is_some(),
        ))?;
    }
    match options.detach {
        true => Ok(()),
        false => {
            let served = serve(instance, signals);
            restore::restore_dead_machines();
            served
        }
    }
}

/// Returns the options for starting the machine.
fn start_options(options: &UpOptions, config: &Config) -> anyhow::Result<client::StartOptions> {
    Ok(client::StartOptions {
        program: match options.lab {
            true => client::LAB_MONITOR,
            false => client::MONITOR,
        },
        log: match &options.log {
            Some(file) => client::LogDestination::File(file.clone()),
            None if output::is_journal() => client::LogDestination::Stderr,
            None => client::LogDestination::Default,
        },
        metrics_port: options.metrics_port.or(config.metrics_port),
        detach: options.detach,
        leaves: true,
        host: restore::note(config)?,
        ..client::StartOptions::default()
    })
}

/// Waits until the machine stops or a signal requests its shutdown.
fn serve(mut instance: Instance, mut signals: Signals) -> anyhow::Result<()> {
    let mut service = Service::ready(&instance);
    let asked = loop {
        if let Some(asked) = signals.pending().next() {
            break asked;
        }
        std::thread::sleep(CHECK_INTERVAL);
        service.turn(&instance, Instant::now());
        match instance.ended() {
            None => {}
            // Another process has stopped the machine with `grantway down`.
            Some(status) if status.success() => return Ok(()),
            Some(status) => anyhow::bail!(
                "{} has ended unexpectedly ({status}); its log is {}",
                instance.name(),
                instance.log().display()
            ),
        }
    };
    if asked == REPLACE {
        return Err(exec_new_version(instance));
    }
    service.stopping();
    let spinner = output::spinner(&format!("{}: ending", instance.name()));
    let ended = match asked {
        // SIGTERM keeps the record of attached guests, because a stopped service may be started
        // again.
        SIGTERM => instance.stop(),
        _ => instance.down(),
    };
    spinner.finish_and_clear();
    ended.context("going down")
}

/// Releases the machine without removing its persistent parts, and executes the installed program
/// in this process with the same arguments. Returns only on failure.
fn exec_new_version(instance: Instance) -> anyhow::Error {
    let begun = || {
        let own = std::env::current_exe().context("find this program's file")?;
        let own = own.to_string_lossy();
        let own = own.strip_suffix(DELETED).unwrap_or(&own).to_owned();
        instance.abandon().context("end the machine")?;
        Ok(own)
    };
    match begun() {
        Err(error) => error,
        Ok(own) => {
            let error = Command::new(&own).args(std::env::args_os().skip(1)).exec();
            anyhow::Error::new(error).context(format!("run {own}"))
        }
    }
}

/// Reads the file and checks everything that can be checked without a start of the machine.
fn load(options: &UpOptions) -> anyhow::Result<(Config, Machine)> {
    let files = files::read(&options.config)?;
    let (mut config, source) = config::parse_with_source(&files)?;
    // The process inside the user namespace reads the same file a second time.
    if std::env::var_os(INSIDE).is_none() {
        source.warnings().iter().for_each(|w| output::warn(w));
    }
    if let Some(name) = &options.name {
        config.name.clone_from(name);
        // The name in the file was valid, so only the new name can be invalid.
        client::check_name(name)?;
    }
    let machine = config::live::machine(&config, &files)?;
    let mut found = match Instance::connect(&config.name) {
        // The start reports the error.
        Ok(_) => host::check_without_interfaces(&config),
        Err(_) => host::check(&config),
    };
    if config.driver.grants.needs_lab() && !options.lab {
        found.push(lab_grants_finding(config.driver.grants));
    }
    source.check(found)?;
    Ok((config, machine))
}

/// Returns the finding for grants that only `grantwayd-lab` implements.
fn lab_grants_finding(grants: GrantMode) -> Finding {
    let word = format!("{grants:?}").to_lowercase();
    Finding {
        part: ConfigPart::Driver,
        key: "grants",
        what: format!("grants = \"{word}\" exists only for comparisons"),
        remedy: format!(
            "write \"counted\", or start the machine by {} with `grantway up --lab` (`grantway \
             exp` does so automatically)",
            client::LAB_MONITOR
        ),
    }
}

/// Restarts this program as root of a user namespace with a new network namespace, because TAPs
/// need CAP_NET_ADMIN, which the caller lacks.
fn restart_in_user_namespace(config: &Config) -> anyhow::Result<()> {
    let what = format!("machine {} has TAPs: that", config.name);
    let mut child = host::in_new_namespaces(&what)?
        .env(INSIDE, parent::own()?.to_string())
        .spawn()
        .context("restart inside a user namespace")?;
    // Signals are passed to the child, which must clean up. Ctrl-C also reaches the child directly,
    // but a second signal is harmless.
    interrupt::watch();
    let status = loop {
        if let Some(status) = child.try_wait().context("wait for the program inside")? {
            break status;
        }
        if interrupt::sleep(Duration::from_millis(20)).is_err() {
            // The child may already have exited.
            let _ = kill_process(Pid::from_child(&child), Signal::TERM);
            break child.wait().context("wait for the program inside")?;
        }
    };
    std::process::exit(status.code().unwrap_or(1))
}

/// Executes `grantway down`.
pub(crate) fn down(name: &str, as_json: bool) -> anyhow::Result<()> {
    let said = |text: String| match as_json {
        true => output::json(&json!({ "name": name, "down": true })),
        false => output::print(&text),
    };
    let instance = match Instance::connect(name) {
        Err(none @ client::Error::NoInstance { .. }) => match remove_leftovers(name) {
            Ok(left) if left.is_empty() => return Err(none.into()),
            Ok(left) => return said(format!("{name} was not running; {}.\n", left.join(", "))),
            // The machine has started in the meantime.
            Err(client::Error::Running(_)) => Instance::connect(name)?,
            Err(error) => return Err(error.into()),
        },
        found => found?,
    };
    let spinner = output::spinner(&format!("{name}: ending"));
    let ended = instance.down();
    spinner.finish_and_clear();
    ended?;
    restore::restore_dead_machines();
    said(format!("{name} is down.\n"))
}

/// Removes everything that a dead machine has left. Returns a description of each removed item.
fn remove_leftovers(name: &str) -> Result<Vec<String>, client::Error> {
    let mut left = Vec::new();
    if restore::restore_dead_machines()
        .iter()
        .any(|cleared| cleared == name)
    {
        left.push("settings that it had enabled are disabled".to_owned());
    }
    if client::remove_saved_state(name)? {
        left.push("its attached guests are forgotten".to_owned());
    }
    let removed = restore::remove_interfaces(name);
    if !removed.is_empty() {
        let names = removed.join(", ");
        left.push(format!("interfaces that it left are removed: {names}"));
    }
    Ok(left)
}
