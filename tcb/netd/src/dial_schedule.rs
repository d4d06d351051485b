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

/// The attempts for devices.
#[derive(Debug, Default)]
pub(crate) struct DialSchedule {
    /// Time of the next attempt for each device whose domain has requested a connection.
    due: BTreeMap<u32, Instant>,
    /// Time of the last attempt. A domain or monitor that ends every connection gets no more
    /// attempts than one that is absent.
    last: BTreeMap<u32, Instant>,
}

impl DialSchedule {
    /// Schedules an attempt, because the domain has requested a connection, or may have requested
    /// one from the previous netd. The attempt is immediate, but not sooner than an interval after
    /// the last one.
    pub(crate) fn schedule(&mut self, dev: u32) {
        let now = Instant::now();
        let last = self.last.get(&dev);
        let due = last.map_or(now, |last| now.max(*last + RETRY_INTERVAL));
        self.due.insert(dev, due);
    }

    /// Cancels the attempts for a closed device.
    pub(crate) fn remove(&mut self, dev: u32) {
        self.due.remove(&dev);
        self.last.remove(&dev);
    }

    /// Reads a request from a device's link.
    pub(crate) fn read_request(&mut self, dev: u32, link: &OwnedFd) {
        match rustix::io::read(link, &mut [0; 16]) {
            Ok(0) | Err(Errno::AGAIN | Errno::INTR) => {}
            _ => self.schedule(dev),
        }
    }

    /// Returns the time until the next attempt, or `None` if no domain has requested a connection.
    pub(crate) fn next_timeout(&self) -> Option<Duration> {
        let next = self.due.values().min();
        next.map(|next| next.saturating_duration_since(Instant::now()))
    }

    /// Makes the attempts that are due, and sends the connections to the domains.
    pub(crate) fn dial(&mut self, devs: &NetDevs, broker: &Broker) {
        let now = Instant::now();
        let Self { due, last } = self;
        due.retain(|number, due| {
            let dev = devs.get(*number);
            let Some(NetDev::VhostUser(path, Some(link))) = dev.as_deref() else {
                return false;
            };
            if *due > now {
                return true;
            }
            *due = now + RETRY_INTERVAL;
            last.insert(*number, now);
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags,
        SocketType, recvmsg, socketpair,
    };
    use std::io::{IoSliceMut, Read};
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use std::sync::Arc;
    use testing::wait_until;

    /// The number of the device.
    const DEV: u32 = 1;

    /// Returns the description of a machine with one virtual machine, whose monitor listens.
    fn machine(path: &Path) -> OwnedFd {
        let socket = serde_json::json!({
            "path": path, "client": true, "owner": null, "group": null, "mode": 0o600,
        });
        let machine = serde_json::json!({
            "name": "m",
            "domains": [{
                "name": "vm", "program": "guest", "frames": 1, "grant_entries": 1,
                "window_slots": 1, "cpus": [], "config": "",
                "devices": [{ "vhost-user": socket }],
            }],
            "connections": [],
        });
        link::sealed::write("machine", machine.to_string().as_bytes()).unwrap()
    }

    /// Returns the descriptor that a domain has received.
    fn received(domain: &OwnedFd) -> Option<OwnedFd> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0; 1];
        let mut bytes = [IoSliceMut::new(&mut byte)];
        recvmsg(domain, &mut bytes, &mut control, RecvFlags::empty()).ok()?;
        control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        })
    }

    #[test]
    fn attempts_repeat_until_the_monitor_listens() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let broker = Broker::in_a_thread();
        broker.accept_machine(&machine(&path)).unwrap();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (domain, link) = pair.unwrap();
        let device = Arc::new(NetDev::VhostUser(path.display().to_string(), Some(link)));
        let devs = NetDevs::default();
        devs.lock().insert(DEV, Arc::clone(&device));
        let mut dials = DialSchedule::default();
        for life in ["first", "second"] {
            dials.read_request(DEV, device.link().unwrap());
            assert_eq!(dials.next_timeout(), None, "no request, {life} life");
            rustix::io::write(&domain, b"C").unwrap();
            dials.read_request(DEV, device.link().unwrap());
            let pause = dials.next_timeout();
            assert!(pause.is_some_and(|pause| pause <= RETRY_INTERVAL));
            assert_eq!(pause == Some(Duration::ZERO), life == "first");
            std::thread::sleep(RETRY_INTERVAL);
            dials.dial(&devs, &broker);
            let pause = dials.next_timeout();
            assert!(pause.is_some_and(|pause| pause <= RETRY_INTERVAL));
            assert!(received(&domain).is_none());

            let listener = UnixListener::bind(&path).unwrap();
            listener.set_nonblocking(true).unwrap();
            wait_until("no connection is made", || {
                dials.dial(&devs, &broker);
                dials.next_timeout().is_none()
            });
            let connection = received(&domain).unwrap();
            let (mut accepted, _) = listener.accept().unwrap();
            rustix::io::write(&connection, life.as_bytes()).unwrap();
            let mut bytes = vec![0; life.len()];
            accepted.read_exact(&mut bytes).unwrap();
            assert_eq!(bytes, life.as_bytes());
            dials.dial(&devs, &broker);
            listener
                .accept()
                .expect_err("one connection for one request");
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn a_closed_device_gets_no_connection() {
        let mut dials = DialSchedule::default();
        dials.schedule(DEV);
        dials.remove(DEV);
        assert_eq!(dials.next_timeout(), None);
        dials.schedule(DEV);
        dials.dial(&NetDevs::default(), &Broker::in_a_thread());
        assert_eq!(dials.next_timeout(), None, "the device does not exist");
    }
}
