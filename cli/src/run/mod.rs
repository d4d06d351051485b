//! `grantway run`: a command in a network namespace of its own, behind a driver domain.
//!
//! | module | what it does |
//! |---|---|
//! | `args` | what can be typed |
//! | `home` | where the machine or the command is: here, or in a user namespace |
//! | `pasta` | the outside of a user namespace |
//! | `network` | addresses, and the machine that has them |
//! | `resolver` | the name servers that the command asks |
//! | `machine` | the machine that the command is behind |
//! | `anchor` | where another process finds the command's network namespace |
//! | `command` | from the command's start to its end |
//! | `first` | the first process of the command's namespaces |
//! | `signals` | those that others send are handed on |
//! | `exit`, `note` | exit statuses; lines beside what the command writes |
//! | `report` | who could touch what, and what passed |
//!
//! Who is whose parent: `grantway run` starts the machine and the first process, that starts the
//! command. All but the machine stay in the caller's process group, so a terminal's signals reach
//! the command by themselves, and only what somebody else has sent is handed on. The first process
//! gets SIGKILL when `grantway run` ends, however that is, and every process of its namespace with
//! it; the machine ends because the pipe to it breaks. One that runs for others, too, does not: it
//! notices that the command's network namespace is not found any more, and detaches it.

mod anchor;
mod args;
mod command;
pub(crate) mod exit;
pub(crate) mod first;
mod home;
mod machine;
mod network;
mod note;
pub(crate) mod pasta;
mod report;
mod resolver;
pub(crate) mod signals;

pub(crate) use args::{AFTER_HELP, RunArgs};

use crate::{host, parent};
use anyhow::Context;
use figures::Failure;
use home::Home;
use machine::Behind;
use netdev::netns::Namespace;
use network::{Families, Network};
use note::Note;
use signals::Signals;
use std::fs;
use std::process::ExitCode;

/// `grantway run`.
pub(crate) fn run(args: &RunArgs, json: bool) -> ExitCode {
    exit::finish(behind_a_driver(args, json))
}

fn behind_a_driver(args: &RunArgs, json: bool) -> anyhow::Result<u8> {
    let note = Note { quiet: args.quiet };
    if let Some(name) = &args.machine {
        let (home, instance) = home::beside(name)?;
        let signals = signals::watch().context("signals")?;
        let netns = namespace()?;
        let machine = Behind::attach(instance, args, &netns)?;
        let families = netns.enter(Families::reached)?;
        let resolver = resolver(args, families, &note);
        let ready = Ready {
            home,
            signals,
            netns,
            machine,
            resolver,
        };
        return ready.run(args, json);
    }
    client::check_smallest()?;
    host::tun().map_err(|e| Failure::CannotRun(format!("/dev/net/tun cannot be opened ({e})")))?;
    let home = home::find(args)?;
    let signals = signals::watch().context("signals")?;
    if let Some(why) = home.no_outside() {
        note.write(&format!("no way outside: {why}"));
    }
    let network = Network::choose(args, home.has_uplink())?;
    let resolver = resolver(args, network.families(), &note);
    let netns = namespace()?;
    let machine = Behind::start(args.name.as_deref(), &network, &netns)?;
    let ready = Ready {
        home,
        signals,
        netns,
        machine,
        resolver,
    };
    ready.run(args, json)
}

fn namespace() -> anyhow::Result<Namespace> {
    let made = Namespace::new();
    Ok(made.map_err(|e| {
        Failure::CannotRun(format!("a network namespace cannot be made here ({e})"))
    })?)
}

/// What is there when the command can begin.
struct Ready {
    home: Home,
    signals: Signals,
    netns: Namespace,
    machine: Behind,
    /// The command's resolv.conf, if it needs its own.
    resolver: Option<String>,
}

impl Ready {
    /// Runs the command, and ends what was begun for it.
    fn run(self, args: &RunArgs, json: bool) -> anyhow::Result<u8> {
        let Self {
            home,
            mut signals,
            netns,
            mut machine,
            resolver,
        } = self;
        if let Some(signal) = signals::asked_to_end(&mut signals) {
            machine.end();
            return Ok(exit::by_signal(signal));
        }
        let first = first::Spec {
            parent: parent::own()?,
            resolver,
            scratch: machine.folder().context("the machine has ended")?,
            wait: args.wait,
            quiet: args.quiet,
        };
        let ended = command::run(&netns, &first, &args.command, signals, &mut machine, &home);
        // What it could touch, it could until now.
        if args.report && ended.is_ok() {
            let shown = machine
                .findings()
                .and_then(|found| report::show(&found, json));
            if let Err(error) = shown {
                Note { quiet: args.quiet }.write(&format!("no report: {error:#}"));
            }
        }
        machine.end();
        drop(home);
        ended
    }
}

/// The resolv.conf that the command gets instead of the system's, if it needs one.
fn resolver(args: &RunArgs, reached: Families, note: &Note) -> Option<String> {
    let system = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let upstream = fs::read_to_string("/run/systemd/resolve/resolv.conf").ok();
    let found = match (args.dns.is_empty(), reached.is_any()) {
        (false, _) => resolver::with(&args.dns, &system),
        (true, true) => resolver::find(&system, upstream.as_deref(), reached),
        // There is nobody to ask.
        (true, false) => resolver::Resolver::System,
    };
    match found {
        resolver::Resolver::System => None,
        resolver::Resolver::Own(text) => Some(text),
        resolver::Resolver::None(why) => {
            note.write(&format!(
                "the command cannot look names up: {why}; name a server with --dns IP"
            ));
            None
        }
    }
}
