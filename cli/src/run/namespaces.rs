//! Chooses the namespaces of the machine: the caller's, if this user may change the network of this
//! system, else a user namespace with a new network namespace, which `pasta` connects to the
//! outside. A command behind a running machine gets namespaces in which that machine can create an
//! interface.

use super::{RunArgs, network, pasta};
use crate::host;
use abi::machine::Forward;
use anyhow::Context;
use client::Instance;
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
use tool::Failure;

/// The variable with an [`Inside`], in the environment of the process inside the namespaces. Hidden
/// from the command.
const INSIDE: &str = "GRANTWAY_RUN_INSIDE";

/// The connection to the outside.
#[derive(Debug, Serialize, Deserialize)]
enum Outside {
    /// Available.
    Open,
    /// Not requested.
    Unwanted,
    /// Not available; the reason.
    Missing(String),
}

impl Outside {
    fn is_open(&self) -> bool {
        matches!(self, Self::Open)
    }
}

/// Results of the process before the exec.
#[derive(Debug, Serialize, Deserialize)]
struct Inside {
    outside: Outside,
    /// The control socket of the machine that the command is attached to.
    machine: Option<PathBuf>,
    /// The process that controls pasta.
    keeper: Option<i32>,
    /// Whether to hide the runtime directory: the user has not chosen it.
    hide_runtime_dir: bool,
}

/// The chosen namespaces.
#[derive(Debug)]
pub(super) struct Namespaces {
    inside: Inside,
    /// Holds a rule that drops packets without a connection, which pasta sometimes sends.
    _no_strays: Option<OwnedFd>,
}

impl Namespaces {
    /// Selects the caller's namespaces.
    fn current(outside: Outside) -> Self {
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

    /// Returns whether the machine needs an uplink.
    pub(super) fn has_uplink(&self) -> bool {
        self.inside.outside.is_open()
    }

    /// Returns why the outside is not reachable, unless the user has asked for that.
    pub(super) fn no_outside(&self) -> Option<&str> {
        match &self.inside.outside {
            Outside::Missing(why) => Some(why),
            Outside::Open | Outside::Unwanted => None,
        }
    }

    /// Returns the environment variables to hide from the command.
    pub(super) fn hidden(&self) -> impl Iterator<Item = &'static str> {
        let runtime = self
            .inside
            .hide_runtime_dir
            .then_some(client::RUNTIME_DIR_VAR);
        [INSIDE].into_iter().chain(runtime)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        let keeper = self.inside.keeper.and_then(Pid::from_raw);
        if let Some(keeper) = keeper
            && kill_process(keeper, Signal::TERM).is_ok()
        {
            // The keeper has been this process's child since before the exec.
            let _ = waitpid(Some(keeper), WaitOptions::empty());
        }
    }
}

/// Chooses the namespaces. If a user namespace is needed, this process executes itself again inside
/// it. Must be called before any thread starts.
pub(super) fn choose(args: &RunArgs) -> anyhow::Result<Namespaces> {
    if let Some(inside) = inside()? {
        // Without the rule some connections break. If it cannot be set, an uplink is not possible
        // either.
        let is_open = inside.outside.is_open();
        let no_strays = is_open
            .then(|| netdev::tool_setup::drop_unmatched_packets().ok())
            .flatten();
        return Ok(Namespaces {
            inside,
            _no_strays: no_strays,
        });
    }
    if is_administrator(args.no_uplink) {
        return Ok(Namespaces::current(match args.no_uplink {
            true => Outside::Unwanted,
            false => Outside::Open,
        }));
    }
    Err(move_inside(args)?)
}

/// Chooses the namespaces of a command that is attached to the machine `name`; returns that
/// machine, too. netd creates the interface in the command's network namespace. That requires
/// rights in the user namespace that owns it: netd's own, or one below.
pub(super) fn choose_attached(name: &str) -> anyhow::Result<(Namespaces, Instance)> {
    if let Some(inside) = inside()? {
        let socket = inside.machine.clone().context("it names no machine")?;
        let namespaces = Namespaces {
            inside,
            _no_strays: None,
        };
        return Ok((namespaces, Instance::connect_at(name, socket)?));
    }
    let instance = Instance::connect(name)?;
    let core = instance.visible_core_pid()?;
    let theirs = core.map(|core| format!("/proc/{core}/ns/user"));
    let theirs = theirs.unwrap_or_default();
    let ours = identity("/proc/self/ns/user");
    let again = match (identity(&theirs), is_administrator(true)) {
        // A machine that this user has started without privileges.
        (Some(it), _) if Some(it) != ours => {
            let namespace = File::open(&theirs).context("the machine's user namespace")?;
            host::in_user_namespace(&namespace)?
        }
        (_, true) => return Ok((Namespaces::current(Outside::Unwanted), instance)),
        // A machine of a more privileged user.
        (None, false) => host::in_new_namespaces("a network namespace for the command")?,
        (Some(_), false) => {
            let why = format!(
                "the machine {name} runs without privileges and has no separate namespaces: it \
                 cannot create an interface for a command; use a machine of root, or one whose \
                 file has a TAP"
            );
            return Err(Failure::CannotRun(why).into());
        }
    };
    let machine = Some(instance.socket().to_owned());
    Err(exec_inside(again, Outside::Unwanted, None, machine)?)
}

/// Returns the identity of a namespace's file, or `None` if it is not accessible.
fn identity(namespace: &str) -> Option<(u64, u64)> {
    let file = std::fs::metadata(namespace).ok()?;
    Some((file.dev(), file.ino()))
}

/// Returns the results from before the exec, if this process is inside.
fn inside() -> anyhow::Result<Option<Inside>> {
    let Some(inside) = std::env::var_os(INSIDE) else {
        return Ok(None);
    };
    serde_json::from_str(&inside.to_string_lossy())
        .with_context(|| format!("the variable {INSIDE} is reserved for grantway"))
}

/// Returns whether this process may create namespaces and, for an uplink, change its network
/// namespace. Root of a user namespace may do only the former.
fn is_administrator(no_uplink: bool) -> bool {
    let own = capabilities(None).map(|own| own.effective);
    rustix::process::geteuid().is_root()
        && own.is_ok_and(|own| own.contains(CapabilitySet::SYS_ADMIN))
        // The loopback is up already, so nothing changes, but the kernel checks the right.
        && (no_uplink || netns::loopback_up().is_ok())
}

/// Becomes root of a new user namespace, even if it is root of one already, because pasta can enter
/// only a namespace below its own. Executes itself again there, in a new network namespace, as the
/// same process. Returns only on failure, with the reason.
fn move_inside(args: &RunArgs) -> anyhow::Result<anyhow::Error> {
    let ports: Vec<Forward> = network::forwards_of(args)?;
    // The keeper must start before this process leaves its namespaces: pasta joins both.
    let keeper = match args.no_uplink {
        true => None,
        false => Some(pasta::PastaSupervisor::start(&ports)?),
    };
    let again = host::in_new_namespaces("a network namespace for the command")?;
    let (outside, keeper) = match keeper.map(pasta::PastaSupervisor::join) {
        None => (Outside::Unwanted, None),
        Some(Ok(keeper)) => (Outside::Open, Some(keeper)),
        Some(Err(why)) => (Outside::Missing(why), None),
    };
    exec_inside(again, outside, keeper, None)
}

/// Becomes the process inside. Returns only on failure, with the reason.
fn exec_inside(
    mut again: Command,
    outside: Outside,
    keeper: Option<i32>,
    machine: Option<PathBuf>,
) -> anyhow::Result<anyhow::Error> {
    let inside = Inside {
        outside,
        machine,
        keeper,
        hide_runtime_dir: client::configured_runtime_dir().is_none(),
    };
    let error = again.env(INSIDE, serde_json::to_string(&inside)?).exec();
    Ok(anyhow::Error::new(error).context("start again inside the namespaces"))
}
