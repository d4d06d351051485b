//! What the core keeps of devices, and which asks wait for one.

use abi::DomId;
use abi::core::Umem;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

/// Sockets have numbers from here on, devices below.
pub(super) const SOCKETS: u32 = 1 << 31;

/// A device that is open.
#[derive(Debug)]
pub(super) struct Unit {
    /// What domains are given.
    pub(super) given: Vec<OwnedFd>,
    /// What netd has to know to take it up, and what it needs.
    pub(super) state: OwnedFd,
    pub(super) rest: Vec<OwnedFd>,
}

/// A socket that a domain has.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) on: u32,
    pub(super) is_queue: bool,
    /// The socket, what netd has to know, and what it needs.
    pub(super) kept: Vec<OwnedFd>,
}

/// What the manager waits for until netd has done its part.
#[derive(Debug)]
pub(super) enum Waits {
    Open { unit: u32 },
    Make(Making),
    Bind(Making, Vec<OwnedFd>),
}

/// A socket on its way to a domain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Making {
    pub(super) domain: DomId,
    pub(super) on: u32,
    pub(super) unit: u32,
    pub(super) is_queue: bool,
    pub(super) umem: Umem,
    pub(super) rings_slot: u32,
}

/// All devices.
#[derive(Debug, Default)]
pub(super) struct Units {
    pub(super) open: BTreeMap<u32, Unit>,
    pub(super) bound: BTreeMap<u32, Bound>,
    /// Open devices whose network namespaces have gone: every manager is told.
    pub(super) lost: BTreeSet<u32>,
    pub(super) sockets: u32,
    /// By the token of netd's task: the token of the manager's ask that waits for it.
    pub(super) waiting: BTreeMap<u32, (u32, Waits)>,
    pub(super) tasks: u32,
}

impl Units {
    /// A device or socket is no more.
    pub(super) fn forget(&mut self, unit: u32) {
        self.open.remove(&unit);
        self.bound.remove(&unit);
        self.lost.remove(&unit);
    }

    /// Nobody waits any more for a device to be opened: the tokens of those who did.
    pub(super) fn take_opening(&mut self, unit: u32) -> Vec<u32> {
        let is_it = |waits: &Waits| matches!(waits, Waits::Open { unit: at } if *at == unit);
        let opening = self.waiting.extract_if(.., |_, (_, waits)| is_it(waits));
        opening.map(|(_, (token, _))| token).collect()
    }

    /// Notes that the manager's ask `token` waits for netd. Returns the token of netd's task.
    pub(super) fn wait(&mut self, token: u32, waits: Waits) -> u32 {
        self.tasks = self.tasks.wrapping_add(1).max(1);
        self.waiting.insert(self.tasks, (token, waits));
        self.tasks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_a_device_that_is_closed_waits_no_longer() {
        let mut units = Units::default();
        let tasks = [7, 8, 7].map(|unit| units.wait(unit + 100, Waits::Open { unit }));
        assert_eq!(units.take_opening(7), [107, 107]);
        assert_eq!(units.take_opening(7), []);
        assert_eq!(
            units.waiting.keys().copied().collect::<Vec<_>>(),
            [tasks[1]]
        );
    }
}
