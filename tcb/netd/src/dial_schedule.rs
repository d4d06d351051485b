//! Connections to listening virtual machine monitors. A domain requests a connection, and netd
//! connects.

use crate::broker::Broker;
use crate::control::NetDevs;
use crate::device::NetDev;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Interval of attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// The time of the next attempt for each device whose domain has requested a connection.
#[derive(Debug, Default)]
pub(crate) struct DialSchedule(BTreeMap<u32, Instant>);

impl DialSchedule {
    /// Schedules an immediate attempt, because the domain has requested a connection, or may have
    /// requested one from the previous netd.
    pub(crate) fn schedule(&mut self, unit: u32) {
        self.0.insert(unit, Instant::now());
    }

    /// Cancels the attempts for a closed device.
    pub(crate) fn remove(&mut self, unit: u32) {
        self.0.remove(&unit);
    }

    /// Reads a request from a device's link.
    pub(crate) fn read_request(&mut self, unit: u32, link: &OwnedFd) {
        match rustix::io::read(link, &mut [0; 16]) {
            Ok(0) | Err(Errno::AGAIN | Errno::INTR) => {}
            _ => self.schedule(unit),
        }
    }

    /// Returns the time until the next attempt, or `None` if no domain has requested a connection.
    pub(crate) fn next_timeout(&self) -> Option<Duration> {
        let next = self.0.values().min();
        next.map(|next| next.saturating_duration_since(Instant::now()))
    }

    /// Makes the attempts that are due, and sends the connections to the domains.
    pub(crate) fn dial(&mut self, units: &NetDevs, broker: &Broker) {
        let now = Instant::now();
        self.0.retain(|unit, due| {
            let unit = units.get(*unit);
            let Some(NetDev::VhostUser(path, Some(link))) = unit.as_deref() else {
                return false;
            };
            if *due > now {
                return true;
            }
            *due = now + RETRY_INTERVAL;
            let made = broker.connect(path);
            !made.is_ok_and(|made| send(link, &made).is_ok())
        });
    }
}

/// Sends a connection over its domain's link.
fn send(link: &OwnedFd, connection: &OwnedFd) -> io::Result<()> {
    let fds = [connection.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(
        link,
        &[IoSlice::new(b"C")],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}
