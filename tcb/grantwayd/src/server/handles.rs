//! The core's devices, and the requests that wait for netd.

use crate::netd::NetdSocket;
use abi::core::{NetdRequest, NewSocket, RingExtent};
use monitor::RetainedFrames;
use shmem::io_map::IoMapping;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// First number of sockets. Devices have lower numbers.
pub(super) const SOCKETS: u32 = 1 << 31;

/// An open device, or a socket of a domain.
#[derive(Debug)]
pub(super) struct DevHandle {
    /// The task by which the next netd adopts the device.
    pub(super) task: NetdRequest,
    /// The attachments of the task. For a device: netd's notes, the descriptors for domains, and
    /// netd's other descriptors. For a socket: the socket, netd's notes, and netd's other
    /// descriptors.
    pub(super) fds: Vec<OwnedFd>,
    /// Set once the device is lost, and reported to every manager: see
    /// [`abi::core::NetdReply::DeviceLost`].
    pub(super) lost: Option<bool>,
}

impl DevHandle {
    pub(super) fn new(task: NetdRequest, fds: Vec<OwnedFd>) -> Self {
        let lost = None;
        Self { task, fds, lost }
    }

    /// Reduces a closed device that netd has received completely to the data by which the next netd
    /// can close it. Returns the other descriptors, which may be the last of their objects: closing
    /// them may take long.
    pub(super) fn take_unneeded_fds(&mut self) -> Vec<OwnedFd> {
        self.fds.split_off(self.state().iter().count())
    }

    /// Returns netd's notes on a device, which netd needs to close the device.
    fn state(&self) -> Option<&OwnedFd> {
        let is_device = matches!(self.task, NetdRequest::Adopt { .. });
        self.fds.first().filter(|_| is_device)
    }

    /// Returns descriptor number `place` among the descriptors for domains.
    pub(super) fn given(&self, place: u32) -> Option<&OwnedFd> {
        match self.task {
            NetdRequest::Adopt { given, .. } if place < given => self.fds.get(1 + place as usize),
            _ => None,
        }
    }
}

/// The pages of a socket's rings that are mapped into the domain.
pub(super) type RingExtents = [RingExtent; 4];

/// A bound socket, and its domain.
#[derive(Debug)]
pub(super) struct BoundSocket {
    pub(super) socket: NewSocket,
    pub(super) rings: RingExtents,
    /// The domain's frames, if the socket outlives the domain.
    pub(super) retained_frames: RetainedFrames,
    /// netd closes the socket after the last reference is dropped.
    pub(super) control: Arc<NetdSocket>,
}

/// A request of the manager that waits for netd.
#[derive(Debug)]
pub(super) enum PendingRequest {
    /// Opening this device from this description.
    Open(u32, Option<OwnedFd>),
    /// Opening a device that was closed in the meantime. Contains the token of the pending request
    /// to close it. That request waits for netd's answer, because until then netd may still create
    /// the device and use its name.
    Closed(Option<u32>),
    /// Closing a device or socket. Contains what the next netd needs to close it: all descriptors
    /// if no netd has received them, otherwise only netd's notes.
    Close(u32, Option<DevHandle>),
    /// Creating a socket with this number.
    Make(NewSocket, u32),
    /// Binding a socket. Contains the mapping of a PCI device's memory.
    Bind(NewSocket, u32, Vec<OwnedFd>, Option<IoMapping>),
}

impl PendingRequest {
    /// Removes and returns the descriptors of a socket that could not be bound.
    pub(super) fn take_descriptors(&mut self) -> Vec<OwnedFd> {
        match self {
            Self::Bind(_, _, fds, _) => std::mem::take(fds),
            _ => Vec::new(),
        }
    }
}

/// All devices.
#[derive(Debug, Default)]
pub(super) struct DevHandles {
    /// Open devices and sockets by number, so that devices precede their sockets.
    pub(super) kept: BTreeMap<u32, DevHandle>,
    /// Pending tasks of netd by token, with the token of the manager's request.
    pub(super) waiting: BTreeMap<u32, (u32, PendingRequest)>,
    sockets: u32,
    tasks: u32,
}

impl DevHandles {
    /// Returns the number of the next socket.
    pub(super) fn next_socket(&mut self) -> u32 {
        self.sockets = self.sockets.wrapping_add(1);
        SOCKETS | self.sockets
    }

    /// Returns whether a device exists or is being opened. The manager cannot close sockets.
    pub(super) fn has_dev(&self, dev: u32) -> bool {
        dev < SOCKETS && (self.kept.contains_key(&dev) || self.opening().any(|by| by == dev))
    }

    /// Returns the devices that netd is opening.
    pub(super) fn opening(&self) -> impl Iterator<Item = u32> {
        self.waiting.values().filter_map(|(_, waits)| match waits {
            PendingRequest::Open(dev, _) => Some(*dev),
            _ => None,
        })
    }

    /// Returns whether netd has devices to close.
    pub(super) fn is_any_closing(&self) -> bool {
        (self.waiting.values()).any(|(_, waits)| matches!(waits, PendingRequest::Close(..)))
    }

    /// Removes a device, even one that netd is still opening. Returns whether the answer to the
    /// request `token` must wait for netd, and the description from which netd opens the device.
    pub(super) fn close(&mut self, token: u32, dev: u32) -> (bool, Option<OwnedFd>) {
        let (mut closed_by, mut by) = (Some(token), None);
        // Several pending tasks may open this device. netd closes the device after the last of
        // them, and answers in order, so the search begins at the last task.
        for (_, waits) in self.waiting.values_mut().rev() {
            if let PendingRequest::Open(opened, description) = waits
                && *opened == dev
            {
                by = by.or(description.take());
                *waits = PendingRequest::Closed(closed_by.take());
            }
        }
        (closed_by.is_none(), by)
    }

    /// Returns the first tasks for the next netd, each with its token and attachments. These tasks
    /// make the new netd adopt the devices and sockets of the previous netd, and close those that
    /// the previous netd did not close. The last task is the welcome, with the descriptors
    /// `welcome_fds`: netd then serves control calls, because it has all devices that a call can
    /// name.
    pub(super) fn adoption_tasks(
        &mut self,
        welcome_fds: Vec<OwnedFd>,
    ) -> io::Result<Vec<(u32, NetdRequest, Vec<OwnedFd>)>> {
        let waiting = self.waiting.iter();
        let closing = waiting.filter_map(|(token, (_, waits))| match waits {
            PendingRequest::Close(dev, left) => Some((*token, *dev, left.as_ref())),
            _ => None,
        });
        let closing: Vec<_> = closing.collect();
        // A device may have been closed while no netd ran. The new netd then adopts the device in
        // order to close it.
        let left = closing
            .iter()
            .filter_map(|(_, dev, left)| Some((dev, (*left)?)));
        let left = left.filter(|(_, left)| left.fds.len() > 1);
        // Devices precede their sockets.
        let all: BTreeMap<_, _> = self.kept.iter().chain(left).collect();
        let mut tasks = Vec::new();
        for dev in all.values() {
            tasks.push((0, dev.task, copies(dev.fds.iter().map(AsFd::as_fd))?));
        }
        for (token, dev, left) in closing {
            let state = left.and_then(DevHandle::state).map(AsFd::as_fd);
            tasks.push((
                token,
                NetdRequest::Close { dev },
                copies(state.into_iter())?,
            ));
        }
        tasks.push((0, NetdRequest::Init {}, welcome_fds));
        for (_, waits) in self.waiting.values_mut() {
            if let PendingRequest::Close(_, Some(left)) = waits {
                // The tasks have copies, so these are not the last descriptors.
                drop(left.take_unneeded_fds());
            }
        }
        Ok(tasks)
    }

    /// Records that the manager's request `token` waits for netd. Returns the token for netd's
    /// task.
    pub(super) fn add_pending(&mut self, token: u32, waits: PendingRequest) -> u32 {
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
    fn closing_waits_until_the_device_is_opened() {
        let mut devs = DevHandles::default();
        let tasks =
            [7, 8, 7].map(|dev| devs.add_pending(dev + 100, PendingRequest::Open(dev, None)));
        assert!(devs.close(200, 7).0);
        assert!(!devs.close(201, 7).0, "netd is no longer opening it");
        let waits = |devs: &DevHandles, n: usize| match devs.waiting[&tasks[n]] {
            (token, PendingRequest::Closed(by)) => (token, by),
            (token, _) => (token, Some(0)),
        };
        assert_eq!(waits(&devs, 0), (107, None));
        assert_eq!(
            waits(&devs, 1),
            (108, Some(0)),
            "another device has the number"
        );
        assert_eq!(waits(&devs, 2), (107, Some(200)));
        assert!(!devs.close(202, 9).0);
        let known = [7, 8, 9].map(|dev| devs.has_dev(dev));
        assert_eq!(known, [false, true, false]);
    }

    /// If netd received the welcome before a queue, it would confirm the end of that queue without
    /// having stopped it.
    #[test]
    fn a_new_netd_adopts_all_before_it_is_welcomed() {
        let mut devs = DevHandles::default();
        let file = || std::fs::File::open("/dev/null").unwrap().into();
        let device = NetdRequest::Adopt { dev: 1, given: 1 };
        let (on, dev, is_queue) = (1, SOCKETS, true);
        let queue = NetdRequest::AdoptSocket { on, dev, is_queue };
        devs.kept
            .insert(1, DevHandle::new(device, vec![file(), file()]));
        devs.kept.insert(dev, DevHandle::new(queue, vec![file()]));
        assert!(
            devs.has_dev(1) && !devs.has_dev(dev),
            "a socket belongs to its domain"
        );
        devs.add_pending(100, PendingRequest::Open(2, Some(file())));
        let (is_opening, description) = devs.close(101, 2);
        assert!(is_opening);
        let opening = DevHandle::new(
            NetdRequest::Adopt { dev: 2, given: 0 },
            vec![description.unwrap()],
        );
        let closing = devs.add_pending(0, PendingRequest::Close(2, Some(opening)));
        // This device was closed while no netd ran, so the next netd receives all its descriptors.
        let absent = NetdRequest::Adopt { dev: 3, given: 1 };
        let left = DevHandle::new(absent, vec![file(), file()]);
        let left = devs.add_pending(0, PendingRequest::Close(3, Some(left)));
        let tasks = devs.adoption_tasks(vec![file()]).unwrap();
        let tasks: Vec<_> = tasks
            .iter()
            .map(|(token, task, fds)| (*token, *task, fds.len()))
            .collect();
        let all = [
            (0, device, 2),
            (0, absent, 2),
            (0, queue, 1),
            (closing, NetdRequest::Close { dev: 2 }, 1),
            (left, NetdRequest::Close { dev: 3 }, 1),
            (0, NetdRequest::Init {}, 1),
        ];
        assert_eq!(tasks, all);
    }

    #[test]
    fn domains_get_only_their_descriptors() {
        let file = || std::fs::File::open("/dev/null").unwrap().into();
        let task = NetdRequest::Adopt { dev: 1, given: 2 };
        let dev = DevHandle::new(task, (0..4).map(|_| file()).collect());
        let given: Vec<bool> = (0..4).map(|place| dev.given(place).is_some()).collect();
        assert_eq!(given, [true, true, false, false]);
        let (on, dev, is_queue) = (1, SOCKETS, false);
        let socket = NetdRequest::AdoptSocket { on, dev, is_queue };
        assert!(DevHandle::new(socket, vec![file()]).given(0).is_none());
    }

    #[test]
    fn a_closed_device_keeps_only_its_notes() {
        let mut devs = DevHandles::default();
        let file = || std::fs::File::open("/dev/null").unwrap().into();
        let mut device = DevHandle::new(
            NetdRequest::Adopt { dev: 1, given: 1 },
            vec![file(), file()],
        );
        let (on, dev, is_queue) = (1, SOCKETS, false);
        let mut socket =
            DevHandle::new(NetdRequest::AdoptSocket { on, dev, is_queue }, vec![file()]);
        device.take_unneeded_fds();
        socket.take_unneeded_fds();
        assert_eq!((device.fds.len(), socket.fds.len()), (1, 0));
        assert!(!devs.is_any_closing());
        devs.add_pending(0, PendingRequest::Close(1, Some(device)));
        assert!(devs.is_any_closing());
    }
}
