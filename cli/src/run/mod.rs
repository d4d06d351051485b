//! `grantway run`: runs a command in a new network namespace, behind a driver domain.
//!
//! | module | purpose |
//! |---|---|
//! | `args` | arguments |
//! | `namespaces` | chooses the machine's namespaces: the caller's, or a user namespace |
//! | `pasta` | connects a user namespace to the outside |
//! | `network` | addresses, and the machine's configuration |
//! | `resolver` | the command's name servers |
//! | `machine` | the machine that connects the command |
//! | `netns_holder` | makes the command's network namespace visible to other processes |
//! | `command` | runs the command |
//! | `tcp_drain` | waits until the command's data is delivered |
//! | `pid1` | the first process of the command's namespaces |
//! | `processes` | limits the command's processes |
//! | `signals` | forwards signals to the command |
//! | `exit`, `messages` | exit statuses; messages in addition to the command's output |
//! | `report` | access of the processes, and the traffic |
//!
//! `grantway run` starts the machine and the first process, which starts the command. All except
//! the machine stay in the caller's process group, so a terminal's signals reach the command
//! directly. `grantway run` forwards only signals from other senders. When `grantway run` exits for
//! any reason, the kernel kills the first process and with it every process of its namespace. The
//! machine stops because the pipe to it breaks. A machine that was already running continues: it
//! detects that the command's network namespace no longer exists, and detaches the command.

mod args;
mod command;
pub(crate) mod exit;
mod machine;
mod messages;
mod namespaces;
mod netns_holder;
mod network;
pub(crate) mod pasta;
pub(crate) mod pid1;
mod processes;
mod report;
mod resolver;
pub(crate) mod signals;
mod tcp_drain;

pub(crate) use args::{AFTER_HELP, RunArgs};

use crate::{host, parent};
use anyhow::Context;
use machine::CommandMachine;
use messages::Messages;
use namespaces::Namespaces;
use netdev::netns::Namespace;
use network::{HostFamilies, RunNetwork};
use signals::Signals;
use std::fs;
use std::process::ExitCode;
use tool::Failure;

/// Executes `grantway run`.
pub(crate) fn run(args: &RunArgs, json: bool) -> ExitCode {
    exit::finish(behind_a_driver(args, json))
}

fn behind_a_driver(args: &RunArgs, json: bool) -> anyhow::Result<u8> {
    let messages = Messages { quiet: args.quiet };
    if let Some(name) = &args.machine {
        let (namespaces, instance) = namespaces::choose_attached(name)?;
        let signals = signals::watch().context("signals")?;
        let netns = namespace()?;
        let machine = CommandMachine::attach(instance, args, &netns)?;
        let families = netns.enter(HostFamilies::reached)?;
        let resolver = resolver(args, families, &messages);
        let ready = PreparedRun {
            namespaces,
            signals,
            netns,
            machine,
            resolver,
        };
        return ready.run(args, json);
    }
    client::check_smallest()?;
    host::tun().map_err(|e| Failure::CannotRun(format!("/dev/net/tun cannot be opened ({e})")))?;
    let namespaces = namespaces::choose(args)?;
    let signals = signals::watch().context("signals")?;
    if let Some(why) = namespaces.missing_uplink() {
        messages.write(&format!("no connection to the outside: {why}"));
    }
    let network = RunNetwork::choose(args, namespaces.has_uplink())?;
    let resolver = resolver(args, network.families(), &messages);
    let netns = namespace()?;
    let machine = CommandMachine::start(args.name.as_deref(), &network, &netns)?;
    let ready = PreparedRun {
        namespaces,
        signals,
        netns,
        machine,
        resolver,
    };
    ready.run(args, json)
}

fn namespace() -> anyhow::Result<Namespace> {
    let made = Namespace::new();
    Ok(made
        .map_err(|e| Failure::CannotRun(format!("cannot create a network namespace here ({e})")))?)
}

/// Everything that the command needs to start.
struct PreparedRun {
    namespaces: Namespaces,
    signals: Signals,
    netns: Namespace,
    machine: CommandMachine,
    /// The command's resolv.conf, or `None` for the system's.
    resolver: Option<String>,
}

impl PreparedRun {
    /// Runs the command, then stops everything that was started for it.
    fn run(self, args: &RunArgs, json: bool) -> anyhow::Result<u8> {
        let Self {
            namespaces,
            mut signals,
            netns,
            mut machine,
            resolver,
        } = self;
        if let Some(signal) = signals::termination_signal(&mut signals) {
            machine.end();
            return Ok(exit::by_signal(signal));
        }
        let pid1 = pid1::Pid1Spec {
            parent: parent::own()?,
            resolver,
            scratch: machine.folder().context("the machine has ended")?,
            processes: args.processes,
            wait: args.wait,
            quiet: args.quiet,
        };
        let ended = command::run(
            &netns,
            &pid1,
            &args.command,
            signals,
            &mut machine,
            &namespaces,
        );
        tcp_drain::wait(&netns);
        // The report needs the running machine.
        if args.report && ended.is_ok() {
            let shown = machine
                .findings()
                .and_then(|found| report::show(&found, json));
            if let Err(error) = shown {
                Messages { quiet: args.quiet }.write(&format!("no report: {error:#}"));
            }
        }
        machine.end();
        drop(namespaces);
        ended
    }
}

/// Returns a resolv.conf for the command, or `None` if it can use the system's.
fn resolver(args: &RunArgs, reached: HostFamilies, messages: &Messages) -> Option<String> {
    let system = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let upstream = fs::read_to_string("/run/systemd/resolve/resolv.conf").ok();
    let found = match (args.dns.is_empty(), reached.is_any()) {
        (false, _) => resolver::with(&args.dns, &system),
        (true, true) => resolver::find(&system, upstream.as_deref(), reached),
        // Without an uplink no name server is reachable.
        (true, false) => resolver::Resolver::System,
    };
    match found {
        resolver::Resolver::System => None,
        resolver::Resolver::Own(text) => Some(text),
        resolver::Resolver::None(why) => {
            messages.write(&format!(
                "the command cannot resolve names: {why}; name a server with --dns IP"
            ));
            None
        }
    }
}
