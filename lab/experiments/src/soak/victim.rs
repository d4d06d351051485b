//! The process to kill, and its restart.

use super::resources::{MANAGER, NETD};
use crate::lane::running::Running;
use crate::many_guests::ms_since;
use abi::machine::{DomainStatus, Program};
use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// A part of the machine that may be killed separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Victim {
    Driver,
    /// The first guest.
    Guest,
    Manager,
    Netd,
}

/// A running process that can be killed.
#[derive(Debug)]
pub(crate) struct VictimProcess {
    name: String,
    pid: i32,
    /// Domain id; `None` for a process that is not a domain.
    domain: Option<u16>,
}

/// Timing of a restart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RestartTimes {
    /// Time from the kill until the process was ready, milliseconds.
    pub(crate) ready_ms: f64,
    /// Time from the kill until all connections were up, milliseconds; `None` for a process that is
    /// not a domain.
    pub(crate) connected_ms: Option<f64>,
}

impl VictimProcess {
    /// Returns the current process of a domain.
    pub(super) fn of(domain: &DomainStatus) -> Self {
        Self {
            name: domain.name.clone(),
            pid: domain.pid,
            domain: Some(domain.id),
        }
    }

    /// Returns the name of the domain or helper.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Kills it.
    pub(super) fn kill(self) -> anyhow::Result<Self> {
        let pid = Pid::from_raw(self.pid).context("the process id is not valid")?;
        kill_process(pid, Signal::KILL).context("the process cannot be killed")?;
        Ok(self)
    }

    /// Returns the timing of the restart if it is complete. `killed` is the time of the kill.
    pub(crate) fn after(
        &self,
        machine: &Running,
        killed: Instant,
    ) -> anyhow::Result<Option<RestartTimes>> {
        let Some(id) = self.domain else {
            // A manager that is restarting does not answer yet.
            let is_back = machine.helper(&self.name)? != self.pid && machine.status().is_ok();
            return Ok(is_back.then(|| RestartTimes {
                ready_ms: ms_since(killed),
                connected_ms: None,
            }));
        };
        let mut domains = machine.status()?.domains.into_iter();
        let next = domains.find(|domain| domain.name == self.name && domain.id != id);
        let restarts = next.as_ref().and_then(|domain| domain.restarts.as_ref());
        let times = restarts.and_then(|times| times.ready_ns.zip(times.connected_ns));
        Ok(times.map(|(ready, connected)| RestartTimes {
            ready_ms: ready as f64 / 1e6,
            connected_ms: Some(connected as f64 / 1e6),
        }))
    }
}

impl Victim {
    /// All victims, in the order of rotation.
    pub(super) const ALL: [Self; 4] = [Self::Driver, Self::Guest, Self::Manager, Self::Netd];

    /// Returns its process id.
    pub(crate) fn pid(self, machine: &Running) -> anyhow::Result<i32> {
        Ok(self.life(machine)?.pid)
    }

    /// Kills it.
    pub(crate) fn kill(self, machine: &Running) -> anyhow::Result<VictimProcess> {
        self.life(machine)?.kill()
    }

    /// Returns its current process.
    fn life(self, machine: &Running) -> anyhow::Result<VictimProcess> {
        let helper = |name: &str| -> anyhow::Result<VictimProcess> {
            Ok(VictimProcess {
                name: name.to_owned(),
                pid: machine.helper(name)?,
                domain: None,
            })
        };
        match self {
            Self::Driver => Ok(VictimProcess::of(&machine.driver()?)),
            Self::Guest => {
                let mut domains = machine.status()?.domains.into_iter();
                let guest = domains.find(|domain| domain.program == Program::Guest);
                Ok(VictimProcess::of(&guest.context("no guest")?))
            }
            Self::Manager => helper(MANAGER),
            Self::Netd => helper(NETD),
        }
    }
}
