//! Machines come up and go down.

use crate::service::Service;
use crate::{files, host, output, parent, restore, tables};
use abi::machine::Machine;
use anyhow::Context;
use clap::{Args, ValueHint};
use client::Instance;
use config::domain::GrantMode;
use config::{Config, Finding, Place};
use figures::{Failure, interrupt};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::iterator::Signals;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// What `up` is asked for.
#[derive(Debug, Args)]
pub(crate) struct UpOptions {
    /// The configuration (docs/config.md describes it)
    #[arg(value_name = "CONFIG", value_hint = ValueHint::FilePath)]
    pub(crate) config: PathBuf,
    /// Only say whether the machine can be started here as the file has it, and start nothing
    #[arg(long)]
    pub(crate) check: bool,
    /// Return as soon as the machine is ready, and leave it running
    #[arg(long)]
    pub(crate) detach: bool,
    /// Name of the instance, instead of the file's
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Start grantwayd-lab, which also has the grant mechanisms that are for comparisons alone
    #[arg(long)]
    pub(crate) lab: bool,
    /// Where the monitor writes its log, instead of the runtime directory
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) log: Option<PathBuf>,
    /// A port of 127.0.0.1 where metrics are read, too, instead of the file's
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) metrics_port: Option<u16>,
}

/// `grantway xen`: becomes the driver domain of a real Xen. Returns only if it cannot.
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
const ASKED: [i32; 4] = [SIGTERM, SIGINT, SIGHUP, REPLACE];
/// The one that has another take its place: the programs that are installed now.
pub(crate) const REPLACE: i32 = SIGUSR2;
/// How often it is looked whether the machine is there, and a signal.
const LOOK: Duration = Duration::from_millis(50);
/// What the kernel adds to the name of a program's file that is not there any more.
pub(crate) const DELETED: &str = " (deleted)";

/// Set in the process inside the user namespace: the one outside.
const INSIDE: &str = "GRANTWAY_UP_INSIDE";

/// `grantway up`.
pub(crate) fn up(options: &UpOptions, as_json: bool) -> anyhow::Result<()> {
    let (config, mut machine) = load(options)?;
    client::check_limits(&machine)?;
    machine.access = host::access(&config)?;
    if host::needs_xdp(&config) {
        netdev::xdp::probe()
            .map_err(|error| Failure::CannotRun(format!("AF_XDP cannot be used here: {error}")))?;
    }
    if host::needs_tap(&config) {
        host::tun().map_err(|e| {
            Failure::CannotRun(format!(
                "/dev/net/tun cannot be opened ({e}); a machine without TAPs has NICs of kind \
                 \"sim\" and endpoints \"stack\""
            ))
        })?;
        if !options.check && !rustix::process::geteuid().is_root() {
            return again_as_root_of_a_namespace(&config);
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
        let outside = outside.with_context(|| format!("{INSIDE} is no process's number"))?;
        if !parent::follow(outside, Signal::TERM)? {
            return Ok(());
        }
    }
    restore::take_back();
    // Before the monitor starts, so that a signal cannot leave it behind.
    let signals = Signals::new(ASKED).context("signals")?;
    let spinner = output::spinner(&format!("{}: starting", machine.name));
    let start = start_options(options, &config)?;
    let started = Instance::start(&machine, &start);
    spinner.finish_and_clear();
    if started.is_err() {
        restore::take_back();
    }
    let instance = started?;
    if let Some(error) = instance.unread() {
        output::warn(&format!(
            "what was attached before is not attached again: {error}"
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
        output::print(&tables::how_to_reach(
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
            restore::take_back();
            served
        }
    }
}

/// How the machine is started.
fn start_options(options: &UpOptions, config: &Config) -> anyhow::Result<client::Options> {
    Ok(client::Options {
        program: match options.lab {
            true => client::MONITOR_OF_COMPARISONS,
            false => client::MONITOR,
        },
        log: match &options.log {
            Some(file) => client::Log::File(file.clone()),
            None if output::is_journal() => client::Log::Stderr,
            None => client::Log::Usual,
        },
        metrics_port: options.metrics_port.or(config.metrics_port),
        detach: options.detach,
        leaves: true,
        host: restore::note(config)?,
        ..client::Options::default()
    })
}

/// Stays until the machine ends, or somebody asks for that.
fn serve(mut instance: Instance, mut signals: Signals) -> anyhow::Result<()> {
    let mut service = Service::ready(&instance);
    let asked = loop {
        if let Some(asked) = signals.pending().next() {
            break asked;
        }
        std::thread::sleep(LOOK);
        service.turn(&instance, Instant::now());
        match instance.ended() {
            None => {}
            // `grantway down`, from elsewhere.
            Some(status) if status.success() => return Ok(()),
            Some(status) => anyhow::bail!(
                "{} has ended by itself ({status}); its log is {}",
                instance.name(),
                instance.log().display()
            ),
        }
    };
    if asked == REPLACE {
        return Err(become_the_next(instance));
    }
    service.stopping();
    let spinner = output::spinner(&format!("{}: going down", instance.name()));
    let ended = match asked {
        // A service that is stopped may be started again.
        SIGTERM => instance.stop(),
        _ => instance.down(),
    };
    spinner.finish_and_clear();
    ended.context("going down")
}

/// Lets the machine go without a word, so that what is persistent stays, and becomes the program
/// that is installed now, as the same process, with the same words. Returns only if that fails.
fn become_the_next(instance: Instance) -> anyhow::Error {
    let begun = || {
        let own = std::env::current_exe().context("find the own program")?;
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

/// Read and check the file: as far as it can be told without starting anything, it is right.
fn load(options: &UpOptions) -> anyhow::Result<(Config, Machine)> {
    let files = files::read(&options.config)?;
    let (mut config, located) = config::parse_located(&files)?;
    // Inside the user namespace the same file is read again.
    if std::env::var_os(INSIDE).is_none() {
        located.warnings().iter().for_each(|w| output::warn(w));
    }
    if let Some(name) = &options.name {
        config.name.clone_from(name);
        // The file's own name was good: only the new one can be wrong now.
        client::check_name(name)?;
    }
    let machine = config::live::machine(&config, &files)?;
    let mut found = match Instance::connect(&config.name) {
        // The start says so.
        Ok(_) => host::check_places(&config),
        Err(_) => host::check(&config),
    };
    if config.driver.grants.needs_lab() && !options.lab {
        found.push(for_comparisons_alone(config.driver.grants));
    }
    located.check(found)?;
    Ok((config, machine))
}

/// The monitor that is meant for use does not serve these mechanisms.
fn for_comparisons_alone(grants: GrantMode) -> Finding {
    let word = format!("{grants:?}").to_lowercase();
    Finding {
        place: Place::Driver,
        key: "grants",
        what: format!("grants = \"{word}\" is for comparisons alone"),
        remedy: format!(
            "write \"counted\", or start the machine by {} with `grantway up --lab` (`grantway \
             exp` does so by itself)",
            client::MONITOR_OF_COMPARISONS
        ),
    }
}

/// TAPs need CAP_NET_ADMIN: without privileges, become root of a user namespace with a network
/// namespace of its own, and start anew there.
fn again_as_root_of_a_namespace(config: &Config) -> anyhow::Result<()> {
    let what = format!("machine {} has TAPs: that", config.name);
    let mut child = host::in_own_namespaces(&what)?
        .env(INSIDE, parent::own()?.to_string())
        .spawn()
        .context("start again inside a user namespace")?;
    // What becomes of the child is the result; a signal is for the child, which has something to
    // clean up. (Ctrl-C reaches it anyhow, and twice is as good as once.)
    interrupt::watch();
    let status = loop {
        if let Some(status) = child.try_wait().context("wait for the program inside")? {
            break status;
        }
        if interrupt::sleep(Duration::from_millis(20)).is_err() {
            // It may have ended just now.
            let _ = kill_process(Pid::from_child(&child), Signal::TERM);
            break child.wait().context("wait for the program inside")?;
        }
    };
    std::process::exit(status.code().unwrap_or(1))
}

/// `grantway down`.
pub(crate) fn down(name: &str, as_json: bool) -> anyhow::Result<()> {
    let said = |text: String| match as_json {
        true => output::json(&json!({ "name": name, "down": true })),
        false => output::print(&text),
    };
    let instance = match Instance::connect(name) {
        Err(none @ client::Error::NoInstance { .. }) => match left_by(name) {
            Ok(left) if left.is_empty() => return Err(none.into()),
            Ok(left) => return said(format!("{name} was not up; {}.\n", left.join(", "))),
            // It has come up meanwhile.
            Err(client::Error::Running(_)) => Instance::connect(name)?,
            Err(error) => return Err(error.into()),
        },
        found => found?,
    };
    let spinner = output::spinner(&format!("{name}: going down"));
    let ended = instance.down();
    spinner.finish_and_clear();
    ended?;
    restore::take_back();
    said(format!("{name} is down.\n"))
}

/// Clears away what a machine has left that has died: in words, each thing that was there.
fn left_by(name: &str) -> Result<Vec<String>, client::Error> {
    let mut left = Vec::new();
    if restore::take_back().iter().any(|cleared| cleared == name) {
        left.push("what it switched on is switched off".to_owned());
    }
    if client::forget_left(name)? {
        left.push("what was attached is forgotten".to_owned());
    }
    let removed = restore::remove_interfaces(name);
    if !removed.is_empty() {
        let names = removed.join(", ");
        left.push(format!("interfaces that it left are removed: {names}"));
    }
    Ok(left)
}
