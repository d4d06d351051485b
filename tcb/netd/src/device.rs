//! One device, or one socket on a device. netd opens it, or adopts it from a previous netd.

use crate::broker::Broker;
use abi::core::{NetdReply, RingExtent};
use abi::machine::{self, Device, OpenRequest, XdpQueue};
use abi::pci::PciControl;
use abi::xdp::XdpControl;
use abi::{hypercall::TapControl, xdp::Ring};
use netdev::pci::{Function, PciError};
use netdev::xdp::{QueueSocket, RingPages, XdpDevice, XdpInterface, XdpSocket};
use netdev::{NatUplink, NetError, SteerError, TapSteering};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Name of the missing feature if TAPs cannot be steered.
const NO_STEERING: &str = "dedicated NIC queues (bpf(2) is not permitted)";

/// Reason why a task failed.
#[derive(Debug)]
pub(crate) struct TaskError {
    pub(crate) why: String,
    /// Whether the kernel has not released a previous object yet, so that a retry may succeed.
    pub(crate) is_busy: bool,
}

impl PciEnd {
    fn new(start: u64) -> Self {
        let has_failed = AtomicBool::new(false);
        Self { start, has_failed }
    }
}

impl From<String> for TaskError {
    fn from(why: String) -> Self {
        let is_busy = false;
        Self { why, is_busy }
    }
}

impl From<NetError> for TaskError {
    fn from(error: NetError) -> Self {
        Self {
            why: error.to_string(),
            is_busy: error.is_busy(),
        }
    }
}

impl From<PciError> for TaskError {
    fn from(error: PciError) -> Self {
        error.to_string().into()
    }
}

impl From<io::Error> for TaskError {
    fn from(error: io::Error) -> Self {
        error.to_string().into()
    }
}

/// State that stops a started PCI device. The core repeats its stop request until the request
/// succeeds.
#[derive(Debug)]
pub(crate) struct PciEnd {
    /// Number of this start. A stop request for this start does not affect a later start.
    start: u64,
    /// Whether an error was logged.
    has_failed: AtomicBool,
}

/// A device or socket.
#[derive(Debug)]
pub(crate) enum NetDev {
    /// A TAP.
    Tap {
        /// The steering of frames to its queues, if available.
        steering: Option<TapSteering>,
        /// The connection of a network to the host's network, if any.
        uplink: Option<NatUplink>,
        /// The last descriptor of the interface. Closing it blocks for some grace periods until the
        /// kernel has removed the interface, so a process that serves domains must not close it.
        last: OwnedFd,
        /// Whether the TAP remains when all its descriptors are closed.
        persistent: bool,
    },
    /// An interface whose packets are delivered to sockets.
    Wire(Arc<XdpInterface>),
    /// A socket of a virtual machine monitor: its path, and the link to the domain if the monitor
    /// listens.
    VhostUser(String, Option<OwnedFd>),
    /// A PCI device, and its address.
    Pci(Arc<Function>, String),
    /// A stopped PCI device, before its start for a domain.
    PciStopped(Arc<Function>),
    /// A PCI device that was started for a domain, the descriptor that reports its interrupts, and
    /// the state that stops it.
    PciStarted(Arc<Function>, OwnedFd, PciEnd),
    /// A file, which consists only of a descriptor.
    File,
    /// A device or socket of a previous netd that this netd could not adopt. Frames may still
    /// arrive on it. netd retries the adoption of a device when a domain needs a socket on it.
    Stuck(Option<Box<InheritedDevice>>),
    /// A socket that is not bound yet.
    Unbound(Arc<XdpInterface>, OwnedFd, Option<XdpQueue>),
    /// The shared socket of a wire.
    Shared(XdpDevice),
    /// A dedicated queue of a wire.
    Queue(QueueSocket),
}

/// An opened device, the descriptors for domains, and the missing features.
#[derive(Debug)]
pub(crate) struct OpenedDevice {
    pub(crate) dev: NetDev,
    pub(crate) given: Vec<OwnedFd>,
    pub(crate) lacks: Vec<&'static str>,
}

/// Opens the device of a description.
pub(crate) fn open(opening: &OpenRequest, broker: &Broker) -> Result<OpenedDevice, TaskError> {
    match &opening.device {
        Device::Tap(spec) => {
            let tap = netdev::open_queues(spec)?;
            let (steering, lacks) = match tap.steering {
                Some(Ok(steering)) => (Some(steering), vec![]),
                Some(Err(error)) => {
                    eprintln!("grantway-netd: {error}");
                    (None, vec![NO_STEERING])
                }
                None => (None, vec![]),
            };
            let last = tap.shared.try_clone()?;
            let given = [tap.shared].into_iter().chain(tap.queues).chain(tap.shares);
            Ok(OpenedDevice {
                dev: NetDev::Tap {
                    steering,
                    uplink: tap.uplink,
                    last,
                    persistent: spec.persistent.is_some(),
                },
                given: given.collect(),
                lacks,
            })
        }
        Device::Xdp(spec) => {
            let wire = XdpInterface::open(spec)?;
            Ok(OpenedDevice {
                lacks: wire.lacks().to_vec(),
                dev: NetDev::Wire(Arc::new(wire)),
                given: vec![],
            })
        }
        Device::VhostUser(spec) => {
            let (given, link) = match spec.client {
                false => (broker.listen(spec)?, None),
                true => {
                    let (theirs, ours) = pair()?;
                    (theirs, Some(ours))
                }
            };
            Ok(OpenedDevice {
                dev: NetDev::VhostUser(spec.path.clone(), link),
                given: vec![given],
                lacks: vec![],
            })
        }
        Device::Pci(spec) => {
            let [container, group] = broker.bind_pci(&spec.address)?;
            let function = Function::open(container, group, &spec.address);
            let function = function.inspect_err(|_| unbind(&spec.address, broker))?;
            Ok(OpenedDevice {
                dev: NetDev::Pci(Arc::new(function), spec.address.clone()),
                given: vec![],
                lacks: vec![],
            })
        }
        Device::Read(path) => file(broker.read(path)?),
        Device::Write(path) => file(broker.write(path, opening.life)?),
        Device::TapQueue | Device::TapShare { .. } | Device::XdpQueue(_) | Device::Nothing => {
            Err("this is part of another device".to_owned().into())
        }
    }
}

/// Returns both ends of a link: the domain's and netd's.
fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

fn file(fd: OwnedFd) -> Result<OpenedDevice, TaskError> {
    Ok(OpenedDevice {
        dev: NetDev::File,
        given: vec![fd],
        lacks: vec![],
    })
}

/// A device that a previous netd opened.
#[derive(Debug)]
pub(crate) struct InheritedDevice {
    opening: OpenRequest,
    /// The descriptors for domains.
    given: Vec<OwnedFd>,
    /// The descriptors that the core keeps for netd.
    rest: Vec<OwnedFd>,
}

impl InheritedDevice {
    pub(crate) fn new(opening: OpenRequest, given: Vec<OwnedFd>, rest: Vec<OwnedFd>) -> Self {
        Self {
            opening,
            given,
            rest,
        }
    }

    /// Adopts the device.
    pub(crate) fn adopt(&self) -> Result<NetDev, TaskError> {
        let copies = |fds: &[OwnedFd]| fds.iter().map(OwnedFd::try_clone).collect();
        let (given, rest): (io::Result<_>, io::Result<_>) =
            (copies(&self.given), copies(&self.rest));
        adopt(&self.opening, given?, rest?)
    }
}

/// Adopts a device that a previous netd opened. `given` are the descriptors for domains, `rest` the
/// descriptors that the core keeps for netd.
fn adopt(
    opening: &OpenRequest,
    given: Vec<OwnedFd>,
    mut rest: Vec<OwnedFd>,
) -> Result<NetDev, TaskError> {
    Ok(match &opening.device {
        Device::Tap(tap) => {
            let last = given.into_iter().next();
            let last = last.ok_or_else(|| "no descriptor of the TAP".to_owned())?;
            let is_joined = matches!(tap.uplink, Some(machine::Uplink::Nat(_)));
            let table = if is_joined { rest.pop() } else { None };
            let (of, on) = (opening.namespace, &opening.switched_on);
            let uplink = table.map(|table| NatUplink::adopt(tap, of, table, on));
            let map = rest.into_iter().next();
            let steering = map.map(|map| TapSteering::adopt(map, tap.queues));
            NetDev::Tap {
                steering: steering.transpose()?,
                uplink,
                last,
                persistent: tap.persistent.is_some(),
            }
        }
        Device::Xdp(spec) => NetDev::Wire(Arc::new(XdpInterface::adopt(spec, rest)?)),
        Device::VhostUser(spec) => NetDev::VhostUser(spec.path.clone(), rest.pop()),
        Device::Pci(spec) => {
            let kept = <[OwnedFd; 3]>::try_from(rest);
            let kept = kept.map_err(|_| "no descriptors of the PCI device".to_owned())?;
            let [container, group, device] = kept;
            let function = Function::adopt(container, group, device, &spec.address)?;
            NetDev::Pci(Arc::new(function), spec.address.clone())
        }
        _ => NetDev::File,
    })
}

/// Removes a device that a previous netd did not close completely.
pub(crate) fn remove(opening: &OpenRequest, broker: &Broker) {
    if let Device::VhostUser(spec) = &opening.device
        && !spec.client
    {
        remove_socket(&spec.path, broker);
    }
    if let Device::Pci(spec) = &opening.device {
        unbind(&spec.address, broker);
    }
    if let Device::Tap(tap) = &opening.device
        && let Err(error) = netdev::remove(tap, opening.namespace, &opening.switched_on)
    {
        eprintln!("grantway-netd: an interface could not be removed: {error}");
    }
}

/// Unbinds a PCI device from its driver. Blocks until all of its descriptors are closed.
pub(crate) fn unbind(address: &str, broker: &Broker) {
    if let Err(error) = broker.unbind_pci(address) {
        eprintln!("grantway-netd: PCI device {address} is still bound to vfio-pci: {error}");
    }
}

fn remove_socket(path: &str, broker: &Broker) {
    if let Err(error) = broker.remove(path) {
        eprintln!("grantway-netd: the socket {path} cannot be removed: {error}");
    }
}

impl NetDev {
    /// Returns the descriptors that the next netd needs, in addition to the description, to adopt
    /// the device.
    pub(crate) fn adoption_fds(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Self::Tap {
                steering, uplink, ..
            } => {
                let map = steering.iter().map(TapSteering::adoption_fd);
                map.chain(uplink.iter().map(NatUplink::adoption_fd))
                    .collect()
            }
            Self::Wire(wire) => wire.adoption_fds(),
            Self::Queue(queue) => vec![queue.adoption_fd()],
            Self::VhostUser(_, link) => link.iter().map(AsFd::as_fd).collect(),
            Self::Pci(function, _) => function.adoption_fds().to_vec(),
            Self::PciStarted(function, interrupt, _) => {
                vec![function.device(), interrupt.as_fd()]
            }
            Self::File
            | Self::Stuck(_)
            | Self::Unbound(..)
            | Self::Shared(_)
            | Self::PciStopped(_) => vec![],
        }
    }

    /// Returns the system settings that were switched on for the device.
    pub(crate) fn switched_on(&self) -> Vec<String> {
        let uplink = match self {
            Self::Tap { uplink, .. } => uplink.as_ref(),
            _ => None,
        };
        uplink.map_or(Vec::new(), |uplink| uplink.switched_on().to_vec())
    }

    /// Returns the descriptor that reports an error after the removal of the interface, if the
    /// device has one.
    pub(crate) fn watched(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Tap { last, .. } => Some(last.as_fd()),
            _ => None,
        }
    }

    /// Returns netd's end of the link on which a domain requests connections.
    pub(crate) fn link(&self) -> Option<&OwnedFd> {
        match self {
            Self::VhostUser(_, link) => link.as_ref(),
            _ => None,
        }
    }

    /// Removes the file of a listening socket, and stops a PCI device. Closing netd's descriptors
    /// would do neither.
    pub(crate) fn unlink(&self, broker: &Broker) {
        if let Self::Pci(function, _) = self
            && let Err(error) = function.stop_running()
        {
            eprintln!("grantway-netd: {error}");
        }
        if let Self::PciStarted(..) = self {
            self.end();
        }
        if let Self::VhostUser(path, None) = self {
            remove_socket(path, broker);
        }
    }

    /// Returns the address of a PCI device.
    pub(crate) fn pci_address(&self) -> Option<&str> {
        match self {
            Self::Pci(_, address) => Some(address),
            _ => None,
        }
    }

    /// Returns whether the interface of a device without a [watched](Self::watched) descriptor was
    /// removed.
    pub(crate) fn is_removed(&self) -> bool {
        matches!(self, Self::Wire(wire) if wire.is_removed())
    }

    /// Returns whether closing the descriptors removes the device, and changes no other setting of
    /// the system.
    pub(crate) fn is_self_contained(&self) -> bool {
        matches!(self, Self::Tap { uplink: None, .. })
    }

    /// Creates a socket on this device, without memory.
    pub(crate) fn socket(&self, queue: Option<XdpQueue>) -> Result<Self, TaskError> {
        match self {
            Self::Wire(wire) => Ok(Self::Unbound(Arc::clone(wire), wire.socket()?, queue)),
            Self::Pci(function, _) => {
                // The previous domain may have left the device running, or changed its registers.
                function.stop()?;
                Ok(Self::PciStopped(Arc::clone(function)))
            }
            _ => Err("this device has no sockets".to_owned().into()),
        }
    }

    /// Returns the descriptor of an unbound socket, or the container of a stopped PCI device.
    pub(crate) fn unbound(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::PciStopped(function) => Some(function.container()),
            Self::Unbound(_, socket, _) => Some(socket.as_fd()),
            _ => None,
        }
    }

    /// Binds the socket, or starts the PCI device.
    pub(crate) fn bind(self) -> Result<Self, TaskError> {
        Ok(match self {
            Self::PciStopped(function) => {
                let (interrupt, start) = function.start()?;
                Self::PciStarted(function, interrupt, PciEnd::new(start))
            }
            Self::Unbound(wire, socket, None) => Self::Shared(wire.bind_socket(socket)?),
            Self::Unbound(wire, socket, Some(spec)) => Self::Queue(wire.bind_queue(&spec, socket)?),
            _ => return Err("this is not an unbound socket".to_owned().into()),
        })
    }

    /// Adopts a socket on this device that a previous netd bound. `rest` are the descriptors that
    /// the core keeps for netd.
    pub(crate) fn adopt_socket(
        &self,
        queue: Option<XdpQueue>,
        socket: OwnedFd,
        rest: Vec<OwnedFd>,
    ) -> Result<Self, TaskError> {
        if let Self::Pci(function, _) = self {
            let interrupt = rest.into_iter().nth(1);
            let interrupt = interrupt.ok_or_else(|| "no interrupt of the device".to_owned())?;
            let end = PciEnd::new(function.adopt_start());
            return Ok(Self::PciStarted(Arc::clone(function), interrupt, end));
        }
        let Self::Wire(wire) = self else {
            return Err("this device has no sockets".to_owned().into());
        };
        Ok(match (queue, rest.into_iter().next()) {
            (None, _) => Self::Shared(wire.adopt_socket(socket)?),
            (Some(spec), Some(kept)) => Self::Queue(wire.adopt_queue(&spec, socket, kept)?),
            (Some(_), None) => return Err("no counters of the queue".to_owned().into()),
        })
    }

    /// Returns whether the next owner can adopt a bound socket, because every chunk is in a ring or
    /// will return to one. An interface with zero copy keeps chunks outside the rings.
    pub(crate) fn is_reusable(&self) -> bool {
        matches!(self, Self::Shared(device) if device.is_copied())
    }

    /// Returns the pages of a bound socket's rings that are mapped into the domain.
    pub(crate) fn rings(&self) -> [RingExtent; 4] {
        if let Self::PciStarted(function, ..) = self {
            let [common, notify] = function.extents();
            return [common, notify, RingExtent::default(), RingExtent::default()];
        }
        let place = |part: &RingPages| RingExtent {
            page: part.page,
            pages: part.pages,
        };
        let mut rings = [RingExtent::default(); 4];
        let parts = match self {
            Self::Shared(device) => device.ring_pages().to_vec(),
            Self::Queue(queue) => queue.ring_pages().to_vec(),
            _ => vec![],
        };
        for (ring, part) in rings.iter_mut().zip(&parts) {
            *ring = place(part);
        }
        rings
    }

    /// Returns whether a control call may take as long as a grace period of the kernel.
    pub(crate) fn may_block(&self, words: [u64; 2]) -> bool {
        matches!(self, Self::Queue(_)) && XdpControl::decode(words) == Some(XdpControl::Stop)
    }

    /// Executes a control call of a domain.
    pub(crate) fn control(&self, words: [u64; 2]) -> NetdReply {
        let answer = match self {
            Self::Tap {
                steering: Some(steering),
                ..
            } => steer(steering, words),
            Self::Shared(device) => socket_control(device.socket(), None, words),
            Self::Queue(queue) => socket_control(queue.socket(), Some(queue), words),
            Self::PciStarted(function, ..) => pci_control(function, words),
            _ => Err(NOENT),
        };
        match answer {
            Ok(value) => NetdReply::Value { value },
            Err(errno) => NetdReply::Failed { errno },
        }
    }

    /// Marks a persistent interface for removal when its descriptors are closed, because no start
    /// will reuse it.
    pub(crate) fn release(&self) {
        if let Self::Tap {
            last,
            persistent: true,
            ..
        } = self
            && let Err(error) = netdev::release(last)
        {
            eprintln!("grantway-netd: an interface could not be removed: {error}");
        }
    }

    /// Stops the socket or PCI device. After success, it no longer writes to memory.
    pub(crate) fn end(&self) -> NetdReply {
        match self {
            Self::Queue(queue) => queue.end(),
            Self::PciStarted(function, _, end) => {
                if let Err(error) = function.end(end.start) {
                    if !end.has_failed.swap(true, Ordering::Relaxed) {
                        eprintln!("grantway-netd: {error}");
                    }
                    return NetdReply::Failed { errno: IO };
                }
            }
            Self::Stuck(_) => return NetdReply::Failed { errno: INVAL },
            _ => {}
        }
        NetdReply::Value { value: 0 }
    }
}

const NOENT: i32 = rustix::io::Errno::NOENT.raw_os_error();
const INVAL: i32 = rustix::io::Errno::INVAL.raw_os_error();
const IO: i32 = rustix::io::Errno::IO.raw_os_error();

fn errno(error: &io::Error) -> i32 {
    error
        .raw_os_error()
        .unwrap_or(rustix::io::Errno::IO.raw_os_error())
}

fn steer(steering: &TapSteering, words: [u64; 2]) -> Result<u64, i32> {
    match TapControl::decode(words).ok_or(INVAL)? {
        TapControl::Steer { mac, queue } => {
            steering.steer(mac, queue).map_err(|error| match error {
                SteerError::Queue => rustix::io::Errno::NXIO.raw_os_error(),
                SteerError::System(error) => errno(&error),
            })
        }
        TapControl::Settled => Ok(steering.effective()),
    }
}

/// Executes a control call for a PCI device.
fn pci_control(function: &Function, words: [u64; 2]) -> Result<u64, i32> {
    Ok(match PciControl::decode(words).ok_or(INVAL)? {
        PciControl::Layout(structure) => function.layout(structure).encode(),
        PciControl::NotifyMultiplier => function.notify_multiplier().into(),
        PciControl::HasServed => function.has_served().into(),
        PciControl::Kind => function.kind() as u64,
    })
}

/// Executes a control call for a socket. A dedicated queue supports more calls.
fn socket_control(
    socket: &XdpSocket,
    queue: Option<&QueueSocket>,
    words: [u64; 2],
) -> Result<u64, i32> {
    let request = XdpControl::decode(words).ok_or(INVAL)?;
    let answer = match (request, queue) {
        (XdpControl::Layout(ring), _) => Ok(layout(socket, ring)),
        (XdpControl::Counter(counter), _) => socket.counter(counter),
        (XdpControl::Enable, Some(queue)) => queue.enable().map(|()| 0),
        (XdpControl::Stop, Some(queue)) => {
            queue.end();
            Ok(0)
        }
        (XdpControl::DeniedFrames(rule), Some(queue)) => {
            queue.denied(rule).map(|[frames, _]| frames)
        }
        (XdpControl::DeniedBytes(rule), Some(queue)) => queue.denied(rule).map(|[_, bytes]| bytes),
        _ => return Err(INVAL),
    };
    answer.map_err(|error| errno(&error))
}

fn layout(socket: &XdpSocket, ring: Ring) -> u64 {
    socket.layout(ring).encode()
}
