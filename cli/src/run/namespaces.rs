//! Chooses the machine's namespaces. If this user may change this system's network, these are the
//! caller's. Otherwise they are a user namespace and a new network namespace, which `pasta`
//! connects to the outside. A command that is attached to a running machine gets namespaces in
//! which that machine can create an interface.

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

/// The environment variable that passes an [`Inside`] to the process inside the namespaces. It is
/// not set for the command.
const INSIDE: &str = "GRANTWAY_RUN_INSIDE";

/// The connection to the outside.
#[derive(Debug, Serialize, Deserialize)]
enum Outside {
    /// Available.
    Open,
    /// Not requested.
    NotRequested,
    /// Not available, for this reason.
    Missing(String),
}

impl Outside {
    fn is_open(&self) -> bool {
        matches!(self, Self::Open)
    }
}

/// State that this process passes to itself across the exec.
#[derive(Debug, Serialize, Deserialize)]
struct Inside {
    outside: Outside,
    /// The control socket of the machine to which the command is attached.
    machine: Option<PathBuf>,
    /// The process that controls pasta.
    supervisor: Option<i32>,
    /// Whether to hide the variable for the runtime directory from the command, because the user
    /// has not set it.
    hide_runtime_dir: bool,
}

/// The chosen namespaces.
#[derive(Debug)]
pub(super) struct Namespaces {
    inside: Inside,
    /// Keeps a firewall rule in force that drops packets without a connection, which pasta
    /// sometimes sends.
    _stray_rule: Option<OwnedFd>,
}

impl Namespaces {
    /// Selects the caller's namespaces.
    fn current(outside: Outside) -> Self {
        Self {
            inside: Inside {
                outside,
                machine: None,
                supervisor: None,
                hide_runtime_dir: false,
            },
            _stray_rule: None,
        }
    }

    /// Returns whether the machine needs an uplink.
    pub(super) fn has_uplink(&self) -> bool {
        self.inside.outside.is_open()
    }

    /// Returns why the outside is not reachable, unless the user has requested no uplink.
    pub(super) fn missing_uplink(&self) -> Option<&str> {
        match &self.inside.outside {
            Outside::Missing(why) => Some(why),
            Outside::Open | Outside::NotRequested => None,
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
        let supervisor = self.inside.supervisor.and_then(Pid::from_raw);
        if let Some(supervisor) = supervisor
            && kill_process(supervisor, Signal::TERM).is_ok()
        {
            // The supervisor was started before the exec and is still this process's child.
            let _ = waitpid(Some(supervisor), WaitOptions::empty());
        }
    }
}

/// Chooses the namespaces. If a user namespace is needed, this process executes this program again
/// inside it. Must be called before any thread starts.
pub(super) fn choose(args: &RunArgs) -> anyhow::Result<Namespaces> {
    if let Some(inside) = inside()? {
        // Without this rule some connections break. If it cannot be set, an uplink is not possible
        // either.
        let is_open = inside.outside.is_open();
        let stray_rule = is_open
            .then(|| netdev::tool_setup::drop_unmatched_packets().ok())
            .flatten();
        return Ok(Namespaces {
            inside,
            _stray_rule: stray_rule,
        });
    }
    if is_administrator(args.no_uplink) {
        return Ok(Namespaces::current(match args.no_uplink {
            true => Outside::NotRequested,
            false => Outside::Open,
        }));
    }
    Err(move_inside(args)?)
}

/// Chooses the namespaces of a command that is attached to the machine `name`. Also returns that
/// machine. netd creates the interface in the command's network namespace, so it needs rights in
/// the user namespace that owns it. This must be netd's user namespace or a descendant.
pub(super) fn choose_attached(name: &str) -> anyhow::Result<(Namespaces, Instance)> {
    if let Some(inside) = inside()? {
        let socket = inside
            .machine
            .clone()
            .context("the variable names no machine")?;
        let namespaces = Namespaces {
            inside,
            _stray_rule: None,
        };
        return Ok((namespaces, Instance::connect_at(name, socket)?));
    }
    let instance = Instance::connect(name)?;
    let core = instance.visible_core_pid()?;
    let theirs = core.map(|core| format!("/proc/{core}/ns/user"));
    let theirs = theirs.unwrap_or_default();
    let ours = identity("/proc/self/ns/user");
    let again = match (identity(&theirs), is_administrator(true)) {
        // This user has started the machine without privileges.
        (Some(it), _) if Some(it) != ours => {
            let namespace = File::open(&theirs).context("the machine's user namespace")?;
            host::in_user_namespace(&namespace)?
        }
        (_, true) => return Ok((Namespaces::current(Outside::NotRequested), instance)),
        // The machine belongs to a more privileged user.
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
    Err(exec_inside(again, Outside::NotRequested, None, machine)?)
}

/// Returns the identity of a namespace's file, or `None` if it is not accessible.
fn identity(namespace: &str) -> Option<(u64, u64)> {
    let file = std::fs::metadata(namespace).ok()?;
    Some((file.dev(), file.ino()))
}

/// Returns the state that was passed across the exec, if this process is inside.
fn inside() -> anyhow::Result<Option<Inside>> {
    let Some(inside) = std::env::var_os(INSIDE) else {
        return Ok(None);
    };
    serde_json::from_str(&inside.to_string_lossy())
        .with_context(|| format!("the variable {INSIDE} is reserved for grantway"))
}

/// Returns whether this process may create namespaces and, for an uplink, change its network
/// namespace. A root user of a user namespace may only create namespaces.
fn is_administrator(no_uplink: bool) -> bool {
    let own = capabilities(None).map(|own| own.effective);
    rustix::process::geteuid().is_root()
        && own.is_ok_and(|own| own.contains(CapabilitySet::SYS_ADMIN))
        // The loopback is already up, so this call changes nothing, but the kernel checks the
        // permission.
        && (no_uplink || netns::loopback_up().is_ok())
}

/// Becomes root of a new user namespace and executes this program again there, in a new network
/// namespace, as the same process. Creates the user namespace even if this process is already root,
/// because pasta can enter only a descendant of its user namespace. Returns only on failure, with
/// the reason.
fn move_inside(args: &RunArgs) -> anyhow::Result<anyhow::Error> {
    let ports: Vec<Forward> = network::forwards_of(args)?;
    // pasta joins the new namespaces from the old ones, so its supervisor must start before this
    // process leaves them.
    let supervisor = match args.no_uplink {
        true => None,
        false => Some(pasta::PastaSupervisor::start(&ports)?),
    };
    let again = host::in_new_namespaces("a network namespace for the command")?;
    let (outside, supervisor) = match supervisor.map(pasta::PastaSupervisor::join) {
        None => (Outside::NotRequested, None),
        Some(Ok(supervisor)) => (Outside::Open, Some(supervisor)),
        Some(Err(why)) => (Outside::Missing(why), None),
    };
    exec_inside(again, outside, supervisor, None)
}

/// Executes this program again as the process inside the namespaces. Returns only on failure, with
/// the reason.
fn exec_inside(
    mut again: Command,
    outside: Outside,
    supervisor: Option<i32>,
    machine: Option<PathBuf>,
) -> anyhow::Result<anyhow::Error> {
    let inside = Inside {
        outside,
        machine,
        supervisor,
        hide_runtime_dir: client::configured_runtime_dir().is_none(),
    };
    let error = again.env(INSIDE, serde_json::to_string(&inside)?).exec();
    Ok(anyhow::Error::new(error).context("restart inside the namespaces"))
}
