//! Where the machine is made: here, if this user may change the network of this system, else in a
//! user namespace with a network namespace of its own, which `pasta` joins to the outside.

use super::{RunArgs, network, pasta};
use crate::host;
use abi::machine::Forward;
use anyhow::Context;
use netdev::netns;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use rustix::thread::{CapabilitySet, capabilities};
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;

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
    if let Some(inside) = std::env::var_os(INSIDE) {
        let inside: Inside = serde_json::from_str(&inside.to_string_lossy())
            .with_context(|| format!("the variable {INSIDE} is for grantway itself"))?;
        // Without it some connections break; where it cannot be had there is no uplink either.
        let is_open = inside.outside.is_open();
        let no_strays = is_open.then(|| netdev::own::drop_strays().ok()).flatten();
        return Ok(Home {
            inside,
            _no_strays: no_strays,
        });
    }
    if is_administrator(args.no_uplink) {
        let inside = Inside {
            outside: match args.no_uplink {
                true => Outside::Unwanted,
                false => Outside::Open,
            },
            keeper: None,
            hide_runtime_dir: false,
        };
        return Ok(Home {
            inside,
            _no_strays: None,
        });
    }
    Err(move_inside(args)?)
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
    let mut again = host::in_own_namespaces("a network namespace for the command")?;
    let (outside, keeper) = match keeper.map(pasta::Keeper::join) {
        None => (Outside::Unwanted, None),
        Some(Ok(keeper)) => (Outside::Open, Some(keeper)),
        Some(Err(why)) => (Outside::Missing(why), None),
    };
    let inside = Inside {
        outside,
        keeper,
        hide_runtime_dir: client::given_dir().is_none(),
    };
    let error = again.env(INSIDE, serde_json::to_string(&inside)?).exec();
    Ok(anyhow::Error::new(error).context("start again inside the namespaces"))
}
