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

impl Victim {
    /// Its process.
    pub(crate) fn pid(self, machine: &Running) -> anyhow::Result<i32> {
        Ok(self.life(machine)?.pid)
    }

    /// As it is now.
    fn life(self, machine: &Running) -> anyhow::Result<Life> {
        Ok(match self.helper() {
            Some(name) => Life {
                pid: machine.helper(name)?,
                domain: None,
            },
            None => {
                let domain = self.domain(machine)?;
                Life {
                    pid: domain.pid,
                    domain: Some(domain.id),
                }
            }
        })
    }

    /// Kills it.
    pub(crate) fn kill(self, machine: &Running) -> anyhow::Result<Life> {
        let life = self.life(machine)?;
        let pid = Pid::from_raw(life.pid).context("it has no process")?;
        kill_process(pid, Signal::KILL).context("it cannot be killed")?;
        Ok(life)
    }

    /// The next one, once it is there; the last one was killed then.
    pub(crate) fn after(
        self,
        last: &Life,
        machine: &Running,
        killed: Instant,
    ) -> anyhow::Result<Option<Back>> {
        let Some(name) = self.helper() else {
            let domain = self.domain(machine)?;
            let times = domain.restarts.as_ref();
            let times = times.and_then(|times| times.ready_ns.zip(times.connected_ns));
            let is_next = last.domain.is_some_and(|id| id != domain.id);
            return Ok(times.filter(|_| is_next).map(|(ready, connected)| Back {
                ready_ms: ready as f64 / 1e6,
                connected_ms: Some(connected as f64 / 1e6),
            }));
        };
        // A manager that is about to be back does not answer yet.
        let is_back = machine.helper(name)? != last.pid && machine.status().is_ok();
        Ok(is_back.then(|| Back {
            ready_ms: ms_since(killed),
            connected_ms: None,
        }))
    }

    /// The name of its program, if it is a helper of the core's.
    const fn helper(self) -> Option<&'static str> {
        match self {
            Self::Driver | Self::Guest => None,
            Self::Manager => Some(MANAGER),
            Self::Netd => Some(NETD),
        }
    }

    fn domain(self, machine: &Running) -> anyhow::Result<DomainStatus> {
        if self == Self::Driver {
            return machine.driver();
        }
        let mut domains = machine.status()?.domains.into_iter();
        let guest = domains.find(|domain| domain.program == Program::Guest);
        guest.context("no guest")
    }
}
