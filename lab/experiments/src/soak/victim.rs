//! Who is killed, and when it is back.

use super::holdings::{MANAGER, NETD};
use crate::crowd::ms_since;
use crate::lane::running::Running;
use abi::machine::{DomainStatus, Program};
use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// A part of the machine that may die without the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Victim {
    Driver,
    /// The first guest.
    Guest,
    Manager,
    Netd,
}

/// What was killed.
#[derive(Debug)]
pub(crate) struct Life {
    name: String,
    pid: i32,
    /// None: it was no domain.
    domain: Option<u16>,
}

/// What comes after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Back {
    /// From the kill until it was ready, milliseconds.
    pub(crate) ready_ms: f64,
    /// The same until all its connections were up; none: it is no domain.
    pub(crate) connected_ms: Option<f64>,
}

impl Life {
    /// A domain's, as it is now.
    pub(super) fn of(domain: &DomainStatus) -> Self {
        Self {
            name: domain.name.clone(),
            pid: domain.pid,
            domain: Some(domain.id),
        }
    }

    /// Whose it was.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Ends it.
    pub(super) fn kill(self) -> anyhow::Result<Self> {
        let pid = Pid::from_raw(self.pid).context("it has no process")?;
        kill_process(pid, Signal::KILL).context("it cannot be killed")?;
        Ok(self)
    }

    /// The next one, once it is there; this one was killed then.
    pub(crate) fn after(&self, machine: &Running, killed: Instant) -> anyhow::Result<Option<Back>> {
        let Some(id) = self.domain else {
            // A manager that is about to be back does not answer yet.
            let is_back = machine.helper(&self.name)? != self.pid && machine.status().is_ok();
            return Ok(is_back.then(|| Back {
                ready_ms: ms_since(killed),
                connected_ms: None,
            }));
        };
        let mut domains = machine.status()?.domains.into_iter();
        let next = domains.find(|domain| domain.name == self.name && domain.id != id);
        let restarts = next.as_ref().and_then(|domain| domain.restarts.as_ref());
        let times = restarts.and_then(|times| times.ready_ns.zip(times.connected_ns));
        Ok(times.map(|(ready, connected)| Back {
            ready_ms: ready as f64 / 1e6,
            connected_ms: Some(connected as f64 / 1e6),
        }))
    }
}

impl Victim {
    /// All, in the order in which they are killed in turns.
    pub(super) const ALL: [Self; 4] = [Self::Driver, Self::Guest, Self::Manager, Self::Netd];

    /// Its process.
    pub(crate) fn pid(self, machine: &Running) -> anyhow::Result<i32> {
        Ok(self.life(machine)?.pid)
    }

    /// Kills it.
    pub(crate) fn kill(self, machine: &Running) -> anyhow::Result<Life> {
        self.life(machine)?.kill()
    }

    /// As it is now.
    fn life(self, machine: &Running) -> anyhow::Result<Life> {
        let helper = |name: &str| -> anyhow::Result<Life> {
            Ok(Life {
                name: name.to_owned(),
                pid: machine.helper(name)?,
                domain: None,
            })
        };
        match self {
            Self::Driver => Ok(Life::of(&machine.driver()?)),
            Self::Guest => {
                let mut domains = machine.status()?.domains.into_iter();
                let guest = domains.find(|domain| domain.program == Program::Guest);
                Ok(Life::of(&guest.context("no guest")?))
            }
            Self::Manager => helper(MANAGER),
            Self::Netd => helper(NETD),
        }
    }
}
