//! Where the machine is made: here, if this user may change the network of this system, else in a
//! user namespace with a network namespace of its own, which `pasta` joins to the outside. Where
//! the command is to be behind a machine that runs: where that can make an interface for it.

use super::{RunArgs, network, pasta};
use crate::host;
use abi::machine::Forward;
use anyhow::Context;
use client::Instance;
use figures::Failure;
use netdev::netns;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use rustix::thread::{CapabilitySet, capabilities};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// Set in the process inside the namespaces, to an [`Inside`]. Nothing of it is the command's.
const INSIDE: &str = "GRANTWAY_RUN_INSIDE";

/// The way outside.
#[derive(Debug, Serialize, Deserialize)]
enum Outside {
    /// There is one.
    Open,
    /// Nobody wants one.
    Unwanted,
    /// There is none; why.
    Missing(String),
}

impl Outside {
    fn is_open(&self) -> bool {
        matches!(self, Self::Open)
    }
}

/// What the process before has found out and made.
#[derive(Debug, Serialize, Deserialize)]
struct Inside {
    outside: Outside,
    /// The control socket of the machine that the command is attached to.
    machine: Option<PathBuf>,
    /// The process that holds pasta.
    keeper: Option<i32>,
    /// Whether the runtime directory is not one that the user has chosen.
    hide_runtime_dir: bool,
}

/// The place.
#[derive(Debug)]
pub(super) struct Home {
    inside: Inside,
    /// Keeps the rule against packets that no connection has, which pasta sends now and then.
    _no_strays: Option<OwnedFd>,
}

impl Home {
    /// Here.
    fn here(outside: Outside) -> Self {
        Self {
            inside: Inside {
                outside,
                machine: None,
                keeper: None,
                hide_runtime_dir: false,
            },
            _no_strays: None,
        }
    }

    /// Whether the machine is to have an uplink.
    pub(super) fn has_uplink(&self) -> bool {
        self.inside.outside.is_open()
    }

    /// Why there is no way outside, where the user has not asked for that.
    pub(super) fn no_outside(&self) -> Option<&str> {
        match &self.inside.outside {
            Outside::Missing(why) => Some(why),
            Outside::Open | Outside::Unwanted => None,
        }
    }

    /// Variables of the environment that are not the command's.
    pub(super) fn hidden(&self) -> impl Iterator<Item = &'static str> {
        let runtime = self
            .inside
            .hide_runtime_dir
            .then_some(client::RUNTIME_DIR_VAR);
        [INSIDE].into_iter().chain(runtime)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let keeper = self.inside.keeper.and_then(Pid::from_raw);
        if let Some(keeper) = keeper
            && kill_process(keeper, Signal::TERM).is_ok()
        {
            // Ours since before the exec.
            let _ = waitpid(Some(keeper), WaitOptions::empty());
        }
    }
}

/// Finds it. Where it is to be a user namespace, this process begins anew in it. Must be called
/// before any thread is started.
pub(super) fn find(args: &RunArgs) -> anyhow::Result<Home> {
    if let Some(inside) = inside()? {
        // Without it some connections break; where it cannot be had there is no uplink either.
        let is_open = inside.outside.is_open();
        let no_strays = is_open.then(|| netdev::own::drop_strays().ok()).flatten();
        return Ok(Home {
            inside,
            _no_strays: no_strays,
        });
    }
    if is_administrator(args.no_uplink) {
        return Ok(Home::here(match args.no_uplink {
            true => Outside::Unwanted,
            false => Outside::Open,
        }));
    }
    Err(move_inside(args)?)
}

/// The same for a command that is attached to the machine `name`, and that machine. netd makes the
/// interface in the command's network namespace. It may, if it has rights in the user namespace
/// that owns it: that is netd's own, or one below.
pub(super) fn beside(name: &str) -> anyhow::Result<(Home, Instance)> {
    if let Some(inside) = inside()? {
        let socket = inside.machine.clone().context("it names no machine")?;
        let home = Home {
            inside,
            _no_strays: None,
        };
        return Ok((home, Instance::connect_at(name, socket)?));
    }
    let instance = Instance::connect(name)?;
    let core = instance.core_seen()?;
    let theirs = core.map(|core| format!("/proc/{core}/ns/user"));
    let theirs = theirs.unwrap_or_default();
    let ours = identity("/proc/self/ns/user");
    let again = match (identity(&theirs), is_administrator(true)) {
        // A machine that this user has started without privileges.
        (Some(it), _) if Some(it) != ours => {
            let namespace = File::open(&theirs).context("the machine's user namespace")?;
            host::in_user_namespace(&namespace)?
        }
        (_, true) => return Ok((Home::here(Outside::Unwanted), instance)),
        // A machine of somebody who is above us.
        (None, false) => host::in_own_namespaces("a network namespace for the command")?,
        (Some(_), false) => {
            let why = format!(
                "the machine {name} runs without privileges and has no namespaces of its own: it \
                 can make no interface for a command. One of root's can, and one whose file has a \
                 TAP"
            );
            return Err(Failure::CannotRun(why).into());
        }
    };
    let machine = Some(instance.socket().to_owned());
    Err(begin_anew(again, Outside::Unwanted, None, machine)?)
}

/// What a namespace's file stands for; none: it may not be looked at.
fn identity(namespace: &str) -> Option<(u64, u64)> {
    let file = std::fs::metadata(namespace).ok()?;
    Some((file.dev(), file.ino()))
}

/// What the process before has found out, if this is the one inside.
fn inside() -> anyhow::Result<Option<Inside>> {
    let Some(inside) = std::env::var_os(INSIDE) else {
        return Ok(None);
    };
    serde_json::from_str(&inside.to_string_lossy())
        .with_context(|| format!("the variable {INSIDE} is for grantway itself"))
}

/// Whether this process may make namespaces and, for an uplink, change the network that it is in.
/// Root of a user namespace may do the one and not the other.
fn is_administrator(no_uplink: bool) -> bool {
    let own = capabilities(None).map(|own| own.effective);
    rustix::process::geteuid().is_root()
        && own.is_ok_and(|own| own.contains(CapabilitySet::SYS_ADMIN))
        // It is up: nothing changes, but the kernel says whether it might.
        && (no_uplink || netns::loopback_up().is_ok())
}

/// Becomes root of a user namespace, also where it is root of one already: pasta may enter one
/// below its own. Starts anew there, in a new network namespace, as the same process. Returns only
/// if that fails: with why.
fn move_inside(args: &RunArgs) -> anyhow::Result<anyhow::Error> {
    let ports: Vec<Forward> = network::forwards_of(args)?;
    // Before this process leaves its namespaces: pasta joins both sides.
    let keeper = match args.no_uplink {
        true => None,
        false => Some(pasta::Keeper::start(&ports)?),
    };
    let again = host::in_own_namespaces("a network namespace for the command")?;
    let (outside, keeper) = match keeper.map(pasta::Keeper::join) {
        None => (Outside::Unwanted, None),
        Some(Ok(keeper)) => (Outside::Open, Some(keeper)),
        Some(Err(why)) => (Outside::Missing(why), None),
    };
    begin_anew(again, outside, keeper, None)
}

/// Becomes the process inside. Returns only if that fails: with why.
fn begin_anew(
    mut again: Command,
    outside: Outside,
    keeper: Option<i32>,
    machine: Option<PathBuf>,
) -> anyhow::Result<anyhow::Error> {
    let inside = Inside {
        outside,
        machine,
        keeper,
        hide_runtime_dir: client::given_dir().is_none(),
    };
    let error = again.env(INSIDE, serde_json::to_string(&inside)?).exec();
    Ok(anyhow::Error::new(error).context("start again inside the namespaces"))
}
