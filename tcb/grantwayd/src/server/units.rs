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
    Open {
        unit: u32,
    },
    /// Nobody any more. Until netd has answered, the device may be about to be there.
    Closed,
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
    /// Devices to be opened when nothing is about to be there that was closed: it may have their
    /// names.
    held_back: Vec<Opening>,
}

/// A device to be opened: the token of the manager's ask, its number, and what goes to netd.
pub(super) type Opening = (u32, u32, Vec<OwnedFd>);

impl Units {
    /// A device or socket is no more.
    pub(super) fn forget(&mut self, unit: u32) {
        self.open.remove(&unit);
        self.bound.remove(&unit);
        self.lost.remove(&unit);
    }

    /// Nobody waits any more for a device to be opened: the tokens of those who did.
    pub(super) fn take_opening(&mut self, unit: u32) -> Vec<u32> {
        let held_back = self.held_back.extract_if(.., |(_, at, _)| *at == unit);
        let mut tokens: Vec<u32> = held_back.map(|(token, ..)| token).collect();
        for (token, waits) in self.waiting.values_mut() {
            if matches!(waits, Waits::Open { unit: at } if *at == unit) {
                tokens.push(*token);
                *waits = Waits::Closed;
            }
        }
        tokens
    }

    /// Whether something is about to be there that was closed.
    fn is_any_closed(&self) -> bool {
        let mut waiting = self.waiting.values();
        waiting.any(|(_, waits)| matches!(waits, Waits::Closed))
    }

    /// The device, if it can be opened now; else it is held back.
    pub(super) fn hold_back(&mut self, opening: Opening) -> Option<Opening> {
        if !self.is_any_closed() {
            return Some(opening);
        }
        self.held_back.push(opening);
        None
    }

    /// What was held back and can be opened now.
    pub(super) fn release(&mut self) -> Vec<Opening> {
        match self.is_any_closed() {
            true => Vec::new(),
            false => std::mem::take(&mut self.held_back),
        }
    }

    /// netd has ended: the tokens of all who waited for it.
    pub(super) fn take_all(&mut self) -> Vec<u32> {
        let waiting = std::mem::take(&mut self.waiting).into_values();
        let waiting = waiting.filter(|(_, waits)| !matches!(waits, Waits::Closed));
        let held_back = std::mem::take(&mut self.held_back).into_iter();
        let held_back = held_back.map(|(token, ..)| token);
        held_back.chain(waiting.map(|(token, _)| token)).collect()
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
        assert!(matches!(
            units.waiting[&tasks[1]],
            (108, Waits::Open { unit: 8 })
        ));
    }

    #[test]
    fn what_is_opened_after_a_close_waits_until_nothing_closed_is_about_to_be_there() {
        let mut units = Units::default();
        let token = |opening: Opening| opening.0;
        let open = |units: &mut Units, unit| units.hold_back((unit + 100, unit, Vec::new()));
        assert_eq!(open(&mut units, 6).map(token), Some(106));
        let tasks = [7, 7].map(|unit| units.wait(unit + 100, Waits::Open { unit }));
        units.take_opening(7);
        for unit in [7, 8, 9] {
            assert!(open(&mut units, unit).is_none());
        }
        assert_eq!(units.take_opening(8), [108]);
        for task in tasks {
            assert!(units.release().is_empty());
            units.waiting.remove(&task);
        }
        let released: Vec<u32> = units.release().into_iter().map(token).collect();
        assert_eq!(released, [107, 109]);
        assert!(units.release().is_empty());
    }

    #[test]
    fn when_netd_ends_who_waits_hears_of_it_once() {
        let mut units = Units::default();
        units.wait(101, Waits::Open { unit: 1 });
        units.wait(102, Waits::Open { unit: 2 });
        assert_eq!(units.take_opening(1), [101]);
        assert!(units.hold_back((103, 3, Vec::new())).is_none());
        assert_eq!(units.take_all(), [103, 102]);
        assert!(units.hold_back((104, 4, Vec::new())).is_some());
    }
}
