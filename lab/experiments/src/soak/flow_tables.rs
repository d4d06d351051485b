//! The guests' flow tables under kills: known flows stay known, and unsolicited datagrams are
//! denied.

use super::timeout::wait;
use super::victim::Victim;
use crate::lane::Lane;
use crate::lane::running::Running;
use crate::ns;
use anyhow::Context as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Name of the driver domain.
const DRIVER: &str = "driver";
/// The discard port, to which no rule allows new flows.
const UNSOLICITED: u16 = 9;

/// Counters of all guests' tables and rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct GuestCounters {
    /// Admitted flows of all guests.
    admitted: u64,
    /// Frames that each guest's last rule, which is for unsolicited ones, has denied.
    denied: Vec<u64>,
}

/// The check of the flow tables.
#[derive(Debug)]
pub(super) struct FlowTables {
    /// Namespace of the wire.
    wire: PathBuf,
    /// Address of each guest.
    guests: Vec<SocketAddr>,
}

/// Result of the check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Checked {
    /// Flows that tables admitted since the kill, although no flow is new.
    pub(super) readmitted: u64,
    /// Unsolicited datagrams that were denied.
    pub(super) denied: u64,
}

impl FlowTables {
    /// Creates the check for all guests of a lane.
    pub(super) fn of(lane: &Lane) -> anyhow::Result<Self> {
        let ends = lane.ends();
        let (wire, _) = ends.wires().next().context("no wire")?;
        let guests = ends.guests();
        Ok(Self {
            wire: wire.path(),
            guests: guests
                .map(|(_, address)| SocketAddr::new(address, UNSOLICITED))
                .collect(),
        })
    }

    /// Returns the number of admitted flows that the driver domain after a kill of `victim` starts
    /// with.
    pub(super) fn admitted(&self, victim: Victim, machine: &Running) -> anyhow::Result<u64> {
        match victim {
            // The counters belong to the process.
            Victim::Driver => Ok(0),
            Victim::Guest | Victim::Manager | Victim::Netd => Ok(self.counters(machine)?.admitted),
        }
    }

    /// Sends unsolicited datagrams until every guest's firewall has denied one. `admitted` and
    /// `began` are the number of admitted flows and the time at the kill.
    pub(super) fn check(
        &self,
        machine: &Running,
        admitted: u64,
        began: Instant,
    ) -> anyhow::Result<Checked> {
        let before = self.counters(machine)?;
        loop {
            send(&self.wire, &self.guests)?;
            let now = self.counters(machine)?;
            let pairs = || now.denied.iter().zip(&before.denied);
            if pairs().all(|(now, before)| now > before) {
                return Ok(Checked {
                    readmitted: now.admitted.saturating_sub(admitted),
                    denied: pairs().map(|(now, before)| now - before).sum(),
                });
            }
            wait("a firewall does not deny unsolicited datagrams", began)?;
        }
    }

    fn counters(&self, machine: &Running) -> anyhow::Result<GuestCounters> {
        let stat = machine.stat(DRIVER)?;
        let ports = stat["ports"].as_object().context("no ports")?;
        let mut counters = GuestCounters::default();
        for port in ports.values().filter(|port| !port["flows"].is_null()) {
            let admitted = port["flows"]["admitted"].as_u64();
            counters.admitted += admitted.context("no counter of admitted flows")?;
            let denied = port["rules"]["inbound"]["frames"].as_u64();
            counters.denied.push(denied.context("no rule `inbound`")?);
        }
        anyhow::ensure!(
            counters.denied.len() == self.guests.len(),
            "{} guests have {} flow tables",
            self.guests.len(),
            counters.denied.len()
        );
        Ok(counters)
    }
}

/// Sends a datagram from a namespace to each address. A thread enters the namespace, because this
/// process must stay in its own.
fn send(from: &Path, to: &[SocketAddr]) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        let sender = std::thread::Builder::new().spawn_scoped(scope, || {
            ns::enter(from)?;
            let socket = UdpSocket::bind((IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0))?;
            for address in to {
                // A datagram that the kernel rejects is repeated with the next ones.
                let _rejected = socket.send_to(b"unsolicited", address);
            }
            Ok(())
        })?;
        match sender.join() {
            Ok(sent) => sent,
            Err(_) => anyhow::bail!("the sender of unsolicited datagrams has panicked"),
        }
    })
}
