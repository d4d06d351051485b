//! Executes the core's tasks in order.

use crate::broker::Broker;
use crate::control::{self, NetDevs};
use crate::device::{self, InheritedDevice, NetDev, OpenedDevice, TaskError};
use crate::dial_schedule::DialSchedule;
use crate::namespace_watch::{self, NamespaceWatch};
use abi::core::{NetdReply, NetdRequest, Record};
use abi::machine::{Device, OpenRequest, OpenedNotes, XdpQueue};
use link::{Link, LinkError, Received, sealed};
use netdev::netns;
use rustix::event::PollFlags;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

/// Maximum bytes of a device description. The largest is a queue with all its rules.
const DESCRIPTION_MAX: usize = 16 << 20;

/// An answer: a message, and the descriptors to attach.
type Answer = Result<(NetdReply, Vec<OwnedFd>), TaskError>;

struct NetdServer {
    link: Link,
    devs: NetDevs,
    broker: Arc<Broker>,
    namespaces: NamespaceWatch,
    /// Devices whose loss was reported to the core.
    removed: BTreeSet<u32>,
    /// Time of the last check for removed interfaces that no descriptor reports.
    last_check: Instant,
    missing: Vec<String>,
    /// Connections to virtual machine monitors that domains have requested.
    dials: DialSchedule,
    /// Threads that close devices.
    closing: Vec<JoinHandle<()>>,
}

/// Serves until the core exits or violates the protocol.
pub(crate) fn run(link: Link, broker: Arc<Broker>, missing: Vec<String>) -> Result<(), String> {
    NetdServer::new(link, broker, missing).run()
}

impl NetdServer {
    fn new(link: Link, broker: Arc<Broker>, missing: Vec<String>) -> Self {
        Self {
            link,
            devs: NetDevs::default(),
            broker,
            namespaces: NamespaceWatch::default(),
            removed: BTreeSet::new(),
            last_check: Instant::now(),
            missing,
            dials: DialSchedule::default(),
            closing: Vec::new(),
        }
    }

    fn run(mut self) -> Result<(), String> {
        let why = loop {
            if let Err(error) = self.process_next() {
                break error;
            }
        };
        for dev in self.devs.lock().values() {
            dev.unlink(&self.broker);
        }
        let all = std::mem::take(&mut *self.devs.lock());
        let pci = all.values().filter_map(|dev| dev.pci_address());
        let pci: Vec<String> = pci.map(str::to_owned).collect();
        // Dropping the devices undoes settings that outlive their descriptors.
        drop(all);
        for address in pci {
            device::unbind(&address, &self.broker);
        }
        match why {
            LinkError::Closed => Ok(()),
            why => Err(format!("the link to the core: {why}")),
        }
    }

    fn process_next(&mut self) -> Result<(), LinkError> {
        for dev in self.namespaces.find_lost(&self.broker) {
            self.report_lost(dev, false)?;
        }
        for dev in self.removed_wires() {
            self.report_lost(dev, true)?;
        }
        self.dials.dial(&self.devs, &self.broker);
        let Some(received) = self.link.receive::<NetdRequest>()? else {
            for dev in self.wait() {
                let known = self.devs.get(dev);
                match known.as_ref().and_then(|known| known.link()) {
                    Some(link) => self.dials.read_request(dev, link),
                    None => self.report_lost(dev, self.namespaces.exists(dev, &self.broker))?,
                }
            }
            return Ok(());
        };
        let token = received.record.token;
        let answer = self.task(received);
        // The core expects no answer to a task with token 0.
        if token == 0 {
            if let Err(refusal) = answer {
                eprintln!("grantway-netd: {}", refusal.why);
            }
            return Ok(());
        }
        let (message, fds) = match answer {
            Ok(answer) => answer,
            Err(TaskError { why, is_busy }) => {
                let why = sealed::write("why", why.as_bytes())?;
                (NetdReply::Refused { is_busy }, vec![why])
            }
        };
        let attachments: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        self.send(&Record { token, message }, &attachments)
    }

    /// Reports to the core that a device was lost.
    fn report_lost(&mut self, dev: u32, is_removed: bool) -> Result<(), LinkError> {
        self.removed.insert(dev);
        let message = NetdReply::Lost { dev, is_removed };
        self.send(&Record { token: 0, message }, &[])
    }

    /// Waits for a task, the next check of namespaces and wires, the removal of a TAP, or a
    /// domain's request for a connection. Returns the removed TAPs and the devices of requests.
    fn wait(&self) -> Vec<u32> {
        let devs = self.devs.lock().clone();
        let watched = devs.iter().filter(|(dev, _)| !self.removed.contains(dev));
        let watched = watched.filter_map(|(dev, of)| Some((Some(*dev), of.watched()?)));
        // No events are requested, because the kernel always reports errors.
        let watched = watched.map(|(dev, fd)| (dev, fd, PollFlags::empty()));
        let links = devs.iter().filter_map(|(dev, of)| Some((dev, of.link()?)));
        let links = links.map(|(dev, link)| (Some(*dev), link.as_fd(), PollFlags::IN));
        let mut sources = vec![(None, self.link.as_fd(), PollFlags::IN)];
        sources.extend(watched.chain(links));
        let has_wires = devs.values().any(|of| matches!(**of, NetDev::Wire(_)));
        let wires = has_wires
            .then(|| namespace_watch::CHECK_INTERVAL.saturating_sub(self.last_check.elapsed()));
        let waits = [
            self.namespaces.next_timeout(),
            wires,
            self.dials.next_timeout(),
        ];
        let wait = waits.into_iter().flatten().min();
        let ready = link::wait_for(&sources, wait.map(|wait| wait.as_nanos() as u64));
        ready.into_iter().flatten().collect()
    }

    /// Returns the wires whose interfaces were removed since the last check, if a check is due.
    fn removed_wires(&mut self) -> Vec<u32> {
        if self.last_check.elapsed() < namespace_watch::CHECK_INTERVAL {
            return Vec::new();
        }
        self.last_check = Instant::now();
        let devs = self.devs.lock().clone();
        let known = devs.iter().filter(|(dev, _)| !self.removed.contains(dev));
        let removed = known.filter(|(_, of)| of.is_removed());
        removed.map(|(dev, _)| *dev).collect()
    }

    /// Sends a record. Waits until the core has read earlier records if the link is full.
    fn send(&self, record: &Record<NetdReply>, fds: &[BorrowedFd<'_>]) -> Result<(), LinkError> {
        loop {
            let Err(error) = self.link.send(record, fds) else {
                return Ok(());
            };
            match error.kind() {
                io::ErrorKind::WouldBlock => self.link.wait(PollFlags::OUT, None),
                io::ErrorKind::BrokenPipe => return Err(LinkError::Closed),
                _ => return Err(error.into()),
            }
        }
    }

    fn task(&mut self, received: Received<NetdRequest>) -> Answer {
        let fds = received.fds;
        match received.record.message {
            NetdRequest::Init {} => {
                let [link, machine] = exact_fds(fds)?;
                self.broker.accept_machine(&machine)?;
                control::start(link.into(), self.devs.clone())?;
                done()
            }
            NetdRequest::Open { dev } => self.open(dev, fds),
            NetdRequest::Adopt { dev, given } => {
                self.insert(dev, NetDev::Stuck(None));
                let [description] = first_fds(&fds)?;
                let opening = opening(description)?;
                self.watch_namespace(dev, &opening);
                let mut fds = fds.into_iter().skip(1);
                let given = fds.by_ref().take(given as usize).collect();
                let inherited = InheritedDevice::new(opening, given, fds.collect());
                self.insert(dev, NetDev::Stuck(Some(Box::new(inherited))));
                self.device(dev)?;
                // The domain may have requested a connection from the previous netd.
                self.dials.schedule(dev);
                done()
            }
            NetdRequest::Close { dev } => {
                self.namespaces.remove(dev);
                self.removed.remove(&dev);
                self.dials.remove(dev);
                let closed = self.devs.lock().remove(&dev);
                let is_stuck = matches!(closed.as_deref(), None | Some(NetDev::Stuck(_)));
                if is_stuck && let Some(by) = fds.first() {
                    // The kernel unbinds a PCI device only after all its descriptors are closed.
                    drop(closed);
                    device::remove(&opening(by)?, &self.broker);
                    return done();
                }
                if let Some(dev) = &closed {
                    dev.release();
                    dev.unlink(&self.broker);
                }
                if let Some(address) = closed.as_ref().and_then(|dev| dev.pci_address()) {
                    let address = address.to_owned();
                    drop(closed);
                    device::unbind(&address, &self.broker);
                    return done();
                }
                // Not under the lock, because closing a socket or an interface may take long.
                self.closing.retain(|thread| !thread.is_finished());
                // Closing an interface blocks even after its name is free, and the next opening
                // need not wait for that. If no thread can be created, the interface is closed
                // here.
                if closed.as_ref().is_some_and(|dev| dev.is_self_contained()) {
                    let thread = std::thread::Builder::new().spawn(|| drop(closed));
                    self.closing.extend(thread);
                }
                done()
            }
            NetdRequest::Socket { on, dev, is_queue } => self.socket((on, dev), is_queue, fds),
            NetdRequest::Bind { dev } => self.bind(dev),
            NetdRequest::AdoptSocket { on, dev, is_queue } => {
                // No frames arrive at the queues of a closed device, so its sockets need no
                // adoption.
                let device = self.device(on)?;
                self.insert(dev, NetDev::Stuck(None));
                let mut fds = fds.into_iter();
                let (Some(socket), Some(description)) = (fds.next(), fds.next()) else {
                    return Err("the descriptor of the socket is missing".to_owned().into());
                };
                let queue = queue(is_queue, &description)?;
                let taken = device.adopt_socket(queue, socket, fds.collect())?;
                self.insert(dev, taken);
                done()
            }
            NetdRequest::Control { .. } | NetdRequest::End { .. } => {
                Err("control calls must use the other link".to_owned().into())
            }
        }
    }

    fn insert(&self, number: u32, dev: NetDev) {
        self.devs.lock().insert(number, Arc::new(dev));
    }

    /// Watches the namespace in which a device was created.
    fn watch_namespace(&mut self, dev: u32, opening: &OpenRequest) {
        if let (Some(name), Some(identity)) = (namespace(&opening.device), opening.namespace) {
            self.namespaces.insert(dev, name, identity);
        }
    }

    /// Returns a device. If a previous netd opened it and its adoption failed, retries the
    /// adoption.
    fn device(&self, dev: u32) -> Result<Arc<NetDev>, TaskError> {
        let found = self.devs.get(dev);
        let found = found.ok_or_else(|| format!("device {dev} is not open"))?;
        let NetDev::Stuck(Some(inherited)) = &*found else {
            return Ok(found);
        };
        // The cause of the first failure may have been temporary.
        let adopted = Arc::new(inherited.adopt()?);
        self.devs.lock().insert(dev, Arc::clone(&adopted));
        Ok(adopted)
    }

    /// Opens a device. The answer's attachments are its description, the missing features, the
    /// descriptors for domains, and the descriptors for the next netd.
    fn open(&mut self, number: u32, fds: Vec<OwnedFd>) -> Answer {
        let [description] = exact_fds(fds)?;
        let mut opening = opening(&description)?;
        let identity = match namespace(&opening.device) {
            Some(name) => self
                .broker
                .namespace_ids(&[&netns::path(name)])?
                .pop()
                .flatten(),
            None => None,
        };
        if opening.expected.is_some() && opening.expected != identity {
            let why = "its network namespace no longer exists";
            return Err(why.to_owned().into());
        }
        opening.namespace = identity.map(|[device, inode, _]| [device, inode]);
        let mut opened = device::open(&opening, &self.broker);
        if opened.is_err() && !self.closing.is_empty() {
            // A device that is still being closed may be the cause.
            self.closing
                .drain(..)
                .for_each(|thread| drop(thread.join()));
            opened = device::open(&opening, &self.broker);
        }
        let OpenedDevice { dev, given, lacks } = opened?;
        opening.switched_on = dev.switched_on();
        self.watch_namespace(number, &opening);
        let description = serde_json::to_vec(&opening).map_err(|e| e.to_string())?;
        let description = sealed::write("device", &description)?;
        let lacks = lacks.iter().map(|lack| (*lack).to_owned());
        let missing_features = self.missing.iter().cloned().chain(lacks).collect();
        let notes = OpenedNotes {
            missing_features,
            namespace: identity,
        };
        let notes = serde_json::to_vec(&notes).map_err(|e| e.to_string())?;
        let mut attachments = vec![description, sealed::write("notes", &notes)?];
        let count = given.len() as u32;
        attachments.extend(given);
        for fd in dev.adoption_fds() {
            attachments.push(fd.try_clone_to_owned()?);
        }
        if !matches!(dev, NetDev::File) {
            self.insert(number, dev);
        }
        Ok((NetdReply::Opened { given: count }, attachments))
    }

    fn socket(&mut self, (on, number): (u32, u32), is_queue: bool, fds: Vec<OwnedFd>) -> Answer {
        let description = match fds.into_iter().next() {
            Some(description) => description,
            None => sealed::write("none", b"")?,
        };
        let unbound = self.device(on)?.socket(queue(is_queue, &description)?)?;
        let socket = unbound.unbound().map(|fd| fd.try_clone_to_owned());
        let socket = socket.ok_or_else(|| "no socket was created".to_owned())??;
        self.insert(number, unbound);
        Ok((NetdReply::Made {}, vec![socket, description]))
    }

    fn bind(&mut self, number: u32) -> Answer {
        let unbound = self.devs.lock().remove(&number).and_then(Arc::into_inner);
        let unbound = unbound.ok_or_else(|| format!("unbound socket {number} does not exist"))?;
        let bound = unbound.bind()?;
        let (rings, is_reusable) = (bound.rings(), bound.is_reusable());
        let kept: io::Result<Vec<_>> = bound
            .adoption_fds()
            .into_iter()
            .map(|fd| fd.try_clone_to_owned())
            .collect();
        // Closing the descriptors would not stop a PCI device.
        let kept = kept.inspect_err(|_| {
            let _ = bound.end();
        })?;
        self.insert(number, bound);
        Ok((NetdReply::Bound { rings, is_reusable }, kept))
    }
}

/// Returns the namespace of a TAP.
fn namespace(device: &Device) -> Option<&str> {
    match device {
        Device::Tap(tap) => tap.netns.as_deref(),
        _ => None,
    }
}

fn done() -> Answer {
    Ok((NetdReply::Made {}, Vec::new()))
}

/// Returns exactly `N` descriptors.
fn exact_fds<const N: usize>(fds: Vec<OwnedFd>) -> Result<[OwnedFd; N], TaskError> {
    let count = fds.len();
    <[OwnedFd; N]>::try_from(fds).map_err(|_| format!("{count} descriptors instead of {N}").into())
}

/// Returns the first `N` descriptors.
fn first_fds<const N: usize>(fds: &[OwnedFd]) -> Result<&[OwnedFd; N], TaskError> {
    fds.first_chunk()
        .ok_or_else(|| format!("{} descriptors instead of {N}", fds.len()).into())
}

fn opening(description: &OwnedFd) -> Result<OpenRequest, TaskError> {
    let text = sealed::read(description, DESCRIPTION_MAX)?;
    serde_json::from_slice(&text).map_err(|e| format!("invalid device description: {e}").into())
}

/// Returns the dedicated queue in a device description, or `None` unless `is_queue`.
fn queue(is_queue: bool, description: &OwnedFd) -> Result<Option<XdpQueue>, TaskError> {
    match is_queue.then(|| opening(description)).transpose()? {
        None => Ok(None),
        Some(OpenRequest {
            device: Device::XdpQueue(queue),
            ..
        }) => Ok(Some(queue)),
        Some(_) => Err("the description does not describe a queue"
            .to_owned()
            .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::core::BYTES;
    use abi::machine::Pci;

    #[test]
    fn failed_adoptions_are_recorded() {
        let (link, _core) = Link::pair().unwrap();
        let mut serve = NetdServer::new(link, Arc::new(Broker::in_a_thread()), Vec::new());
        let mut task = |message| {
            let record = Record { token: 0, message };
            serve
                .task(Received {
                    record,
                    fds: Vec::new(),
                })
                .unwrap_err();
            let all = serve.devs.lock();
            all.iter()
                .map(|(dev, of)| (*dev, matches!(**of, NetDev::Stuck(_))))
                .collect::<Vec<_>>()
        };
        let queue = |on, dev| NetdRequest::AdoptSocket {
            on,
            dev,
            is_queue: true,
        };
        assert_eq!(task(queue(1, 2)), [], "the wire does not exist");
        assert_eq!(task(NetdRequest::Adopt { dev: 1, given: 0 }), [(1, true)]);
        assert_eq!(task(queue(1, 2)), [(1, true), (2, true)]);
    }

    /// netd keeps the descriptors of a device that it could not adopt for further attempts, until
    /// the device is closed.
    #[test]
    fn a_failed_adoption_is_retried() {
        let (link, _core) = Link::pair().unwrap();
        let mut serve = NetdServer::new(link, Arc::new(Broker::in_a_thread()), Vec::new());
        let mut task = |message, fds| {
            let record = Record { token: 0, message };
            let answer = serve.task(Received { record, fds });
            answer.map(drop).map_err(|refusal| refusal.why)
        };
        let device = Device::Pci(Pci {
            address: "ffff:ff:1f.7".to_owned(),
            first_frame: 0,
            frames: 1,
            entries: 8,
            registers_slot: 0,
        });
        let opening = OpenRequest {
            device,
            life: 0,
            switched_on: Vec::new(),
            namespace: None,
            expected: None,
        };
        let description = serde_json::to_vec(&opening).unwrap();
        let description = || sealed::write("device", &description).unwrap();
        // Pipes instead of the descriptors of a PCI device make the adoption fail.
        let (reads, writes) = rustix::pipe::pipe().unwrap();
        let copies = || (0..3).map(|_| writes.try_clone().unwrap());
        let fds = [description()].into_iter().chain(copies()).collect();
        let why = task(NetdRequest::Adopt { dev: 1, given: 0 }, fds).unwrap_err();
        assert!(why.contains("ffff:ff:1f.7"), "{why}");
        let socket = NetdRequest::Socket {
            on: 1,
            dev: 2,
            is_queue: false,
        };
        for _ in 0..2 {
            assert_eq!(task(socket, Vec::new()), Err(why.clone()));
        }
        drop((
            task(NetdRequest::Close { dev: 1 }, vec![description()]),
            writes,
        ));
        let ended = rustix::io::read(&reads, &mut [0; 1]);
        assert_eq!(ended, Ok(0), "a descriptor is still open");
    }

    /// Settings that outlive their descriptors would otherwise remain after netd exits.
    #[test]
    fn devices_are_removed_on_any_end_of_the_link() {
        let task = |core: Link| {
            let (token, message) = (1, NetdRequest::Open { dev: 2 });
            core.send(&Record { token, message }, &[]).unwrap();
        };
        let ended = |core_ends: fn(Link)| {
            let (link, core) = Link::pair().unwrap();
            let serve = NetdServer::new(link, Arc::new(Broker::in_a_thread()), Vec::new());
            let devs = serve.devs.clone();
            devs.lock().insert(1, Arc::new(NetDev::Stuck(None)));
            core_ends(core);
            let ended = serve.run();
            assert!(devs.lock().is_empty(), "{ended:?}");
            ended
        };
        assert_eq!(ended(drop), Ok(()));
        assert_eq!(
            ended(task),
            Ok(()),
            "the link was closed during the answer to a task"
        );
        let nonsense = ended(|core| core.send_bytes(&[0xff; BYTES], &[]).unwrap());
        assert!(nonsense.unwrap_err().contains("the link to the core"));
    }
}
