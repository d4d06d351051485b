//! What the core keeps of devices, and which asks wait for one.

use crate::netd::Socket;
use abi::core::{NewSocket, RingPlace, Task};
use monitor::Left;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Sockets have numbers from here on, devices below.
pub(super) const SOCKETS: u32 = 1 << 31;

/// A device that is open, or a socket that a domain has.
#[derive(Debug)]
pub(super) struct Unit {
    /// By this the next netd takes it up, …
    pub(super) task: Task,
    /// … with these beside it: of a device what netd has to know, what domains are given, and what
    /// netd needs; of a socket itself, what netd has to know, and what it needs.
    pub(super) fds: Vec<OwnedFd>,
    /// Set once it is of no use any more, for every manager: see [`abi::core::Outcome::Lost`].
    pub(super) lost: Option<bool>,
}

impl Unit {
    pub(super) fn new(task: Task, fds: Vec<OwnedFd>) -> Self {
        let lost = None;
        Self { task, fds, lost }
    }

    /// It is closed, and a netd has all of it: what the next one would have to know of a device is
    /// left. Returns the rest, whose last descriptor may take long to close.
    pub(super) fn strip(&mut self) -> Vec<OwnedFd> {
        self.fds.split_off(self.state().iter().count())
    }

    /// What netd has to know of a device to close it.
    fn state(&self) -> Option<&OwnedFd> {
        let is_device = matches!(self.task, Task::TakeUp { .. });
        self.fds.first().filter(|_| is_device)
    }

    /// A descriptor that domains are given.
    pub(super) fn given(&self, place: u32) -> Option<&OwnedFd> {
        match self.task {
            Task::TakeUp { given, .. } if place < given => self.fds.get(1 + place as usize),
            _ => None,
        }
    }
}

/// What is to be seen of a socket's rings.
pub(super) type Rings = [RingPlace; 4];

/// A socket that is bound, and whose it is or was.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) socket: NewSocket,
    pub(super) rings: Rings,
    /// If it goes on when its domain has ended: the domain's frames.
    pub(super) lasts: Left,
    /// From here on netd forgets the socket when nobody has this any more.
    pub(super) control: Arc<Socket>,
}

/// What an ask of the manager's waits for until netd has done its part.
#[derive(Debug)]
pub(super) enum Waits {
    /// This device is opened, by this description.
    Open(u32, Option<OwnedFd>),
    /// One is opened that was closed meanwhile. The token of the ask for that, which waits, too:
    /// until netd has answered, the device may be about to be there, and has its name.
    Closed(Option<u32>),
    /// Nothing: a device or socket is closed. What is left of it: all, until a netd has it, too.
    Close(u32, Option<Unit>),
    /// A socket is made, with this number.
    Make(NewSocket, u32),
    /// It is bound.
    Bind(NewSocket, u32, Vec<OwnedFd>),
}

impl Waits {
    /// What netd has shown of what does not come about.
    pub(super) fn take_shown(&mut self) -> Vec<OwnedFd> {
        match self {
            Self::Bind(_, _, fds) => std::mem::take(fds),
            _ => Vec::new(),
        }
    }
}

/// All devices.
#[derive(Debug, Default)]
pub(super) struct Units {
    /// By their numbers: devices before sockets, which are on them.
    pub(super) kept: BTreeMap<u32, Unit>,
    /// By the token of netd's task: the token of the manager's ask that waits for it.
    pub(super) waiting: BTreeMap<u32, (u32, Waits)>,
    sockets: u32,
    tasks: u32,
}

impl Units {
    /// The number of the next socket.
    pub(super) fn next_socket(&mut self) -> u32 {
        self.sockets = self.sockets.wrapping_add(1);
        SOCKETS | self.sockets
    }

    /// Whether a device is there, or is being opened. Sockets are not the manager's to close.
    pub(super) fn knows(&self, unit: u32) -> bool {
        unit < SOCKETS && (self.kept.contains_key(&unit) || self.opening().any(|by| by == unit))
    }

    /// Devices that netd is opening.
    pub(super) fn opening(&self) -> impl Iterator<Item = u32> {
        self.waiting.values().filter_map(|(_, waits)| match waits {
            Waits::Open(unit, _) => Some(*unit),
            _ => None,
        })
    }

    /// Whether netd has something to close.
    pub(super) fn is_any_closing(&self) -> bool {
        (self.waiting.values()).any(|(_, waits)| matches!(waits, Waits::Close(..)))
    }

    /// A device is no more, also one that netd is still opening: whether `token`, which has asked
    /// for that, is to be answered when it has, and by which description it opens it.
    pub(super) fn close(&mut self, token: u32, unit: u32) -> (bool, Option<OwnedFd>) {
        let (mut closed_by, mut by) = (Some(token), None);
        // netd answers in the order of its tasks.
        for (_, waits) in self.waiting.values_mut().rev() {
            if let Waits::Open(opened, description) = waits
                && *opened == unit
            {
                by = by.or(description.take());
                *waits = Waits::Closed(closed_by.take());
            }
        }
        (closed_by.is_none(), by)
    }

    /// What the next netd does first, with the token of each task and what is beside it. It takes
    /// up what the one before had, and closes what that did not come to. Only then it is welcomed,
    /// with `beside`, and hears what domains say: it knows all that they may say it of.
    pub(super) fn for_the_next(
        &mut self,
        beside: Vec<OwnedFd>,
    ) -> io::Result<Vec<(u32, Task, Vec<OwnedFd>)>> {
        let waiting = self.waiting.iter();
        let closing = waiting.filter_map(|(token, (_, waits))| match waits {
            Waits::Close(unit, left) => Some((*token, *unit, left.as_ref())),
            _ => None,
        });
        let closing: Vec<_> = closing.collect();
        // No netd has what was closed while there was none: this one does, before it closes it.
        let left = closing
            .iter()
            .filter_map(|(_, unit, left)| Some((unit, (*left)?)));
        let left = left.filter(|(_, left)| left.fds.len() > 1);
        // Devices before sockets, which are on them.
        let all: BTreeMap<_, _> = self.kept.iter().chain(left).collect();
        let mut tasks = Vec::new();
        for unit in all.values() {
            tasks.push((0, unit.task, copies(unit.fds.iter().map(AsFd::as_fd))?));
        }
        for (token, unit, left) in closing {
            let state = left.and_then(Unit::state).map(AsFd::as_fd);
            tasks.push((token, Task::Close { unit }, copies(state.into_iter())?));
        }
        tasks.push((0, Task::Welcome {}, beside));
        for (_, waits) in self.waiting.values_mut() {
            if let Waits::Close(_, Some(left)) = waits {
                // Not the last ones: the tasks have copies.
                drop(left.strip());
            }
        }
        Ok(tasks)
    }

    /// Notes that the manager's ask `token` waits for netd. Returns the token of netd's task.
    pub(super) fn wait(&mut self, token: u32, waits: Waits) -> u32 {
        self.tasks = self.tasks.wrapping_add(1).max(1);
        self.waiting.insert(self.tasks, (token, waits));
        self.tasks
    }
}

pub(super) fn copies<'a>(fds: impl Iterator<Item = BorrowedFd<'a>>) -> io::Result<Vec<OwnedFd>> {
    fds.map(|fd| fd.try_clone_to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_closes_what_is_opened_waits_for_the_last_answer() {
        let mut units = Units::default();
        let tasks = [7, 8, 7].map(|unit| units.wait(unit + 100, Waits::Open(unit, None)));
        assert!(units.close(200, 7).0);
        assert!(!units.close(201, 7).0, "nobody opens it any more");
        let waits = |units: &Units, n: usize| match units.waiting[&tasks[n]] {
            (token, Waits::Closed(by)) => (token, by),
            (token, _) => (token, Some(0)),
        };
        assert_eq!(waits(&units, 0), (107, None));
        assert_eq!(waits(&units, 1), (108, Some(0)), "it is another one");
        assert_eq!(waits(&units, 2), (107, Some(200)));
        assert!(!units.close(202, 9).0);
        let known = [7, 8, 9].map(|unit| units.knows(unit));
        assert_eq!(known, [false, true, false]);
    }

    /// It would answer for a queue that it does not know yet that this has ended.
    #[test]
    fn the_next_netd_hears_domains_when_it_knows_all_there_is() {
        let mut units = Units::default();
        let file = || std::fs::File::open("/dev/null").unwrap().into();
        let device = Task::TakeUp { unit: 1, given: 1 };
        let (on, unit, is_queue) = (1, SOCKETS, true);
        let queue = Task::TakeUpSocket { on, unit, is_queue };
        units
            .kept
            .insert(1, Unit::new(device, vec![file(), file()]));
        units.kept.insert(unit, Unit::new(queue, vec![file()]));
        assert!(units.knows(1) && !units.knows(unit), "a domain's alone");
        units.wait(100, Waits::Open(2, Some(file())));
        let (is_opening, description) = units.close(101, 2);
        assert!(is_opening);
        let opening = Unit::new(
            Task::TakeUp { unit: 2, given: 0 },
            vec![description.unwrap()],
        );
        let closing = units.wait(0, Waits::Close(2, Some(opening)));
        // Closed while there was no netd: the next one gets all of it.
        let absent = Task::TakeUp { unit: 3, given: 1 };
        let left = Unit::new(absent, vec![file(), file()]);
        let left = units.wait(0, Waits::Close(3, Some(left)));
        let tasks = units.for_the_next(vec![file()]).unwrap();
        let tasks: Vec<_> = tasks
            .iter()
            .map(|(token, task, beside)| (*token, *task, beside.len()))
            .collect();
        let all = [
            (0, device, 2),
            (0, absent, 2),
            (0, queue, 1),
            (closing, Task::Close { unit: 2 }, 1),
            (left, Task::Close { unit: 3 }, 1),
            (0, Task::Welcome {}, 1),
        ];
        assert_eq!(tasks, all);
    }

    #[test]
    fn domains_are_given_what_is_theirs_alone() {
        let file = || std::fs::File::open("/dev/null").unwrap().into();
        let task = Task::TakeUp { unit: 1, given: 2 };
        let unit = Unit::new(task, (0..4).map(|_| file()).collect());
        let given: Vec<bool> = (0..4).map(|place| unit.given(place).is_some()).collect();
        assert_eq!(given, [true, true, false, false]);
        let (on, unit, is_queue) = (1, SOCKETS, false);
        let socket = Task::TakeUpSocket { on, unit, is_queue };
        assert!(Unit::new(socket, vec![file()]).given(0).is_none());
    }

    #[test]
    fn of_what_is_closed_a_devices_state_alone_is_left() {
        let mut units = Units::default();
        let file = || std::fs::File::open("/dev/null").unwrap().into();
        let mut device = Unit::new(Task::TakeUp { unit: 1, given: 1 }, vec![file(), file()]);
        let (on, unit, is_queue) = (1, SOCKETS, false);
        let mut socket = Unit::new(Task::TakeUpSocket { on, unit, is_queue }, vec![file()]);
        device.strip();
        socket.strip();
        assert_eq!((device.fds.len(), socket.fds.len()), (1, 0));
        assert!(!units.is_any_closing());
        units.wait(0, Waits::Close(1, Some(device)));
        assert!(units.is_any_closing());
    }
}
