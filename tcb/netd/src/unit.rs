//! One device, or one socket on a device: opened, or taken up from the netd before.

use crate::broker::Broker;
use abi::core::{Outcome, RingPlace};
use abi::machine::{self, Device, Opening, XdpQueue};
use abi::xdp::XdpControl;
use abi::{hypercall::TapControl, xdp::Ring};
use netdev::xdp::{QueueSocket, RingPages, Socket, Wire, XdpDevice};
use netdev::{SetupError, SteerError, Steering, Uplink};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Where TAPs cannot be told which queue a frame goes to.
const NO_STEERING: &str = "NIC queues for single guests (bpf(2) is not permitted)";

/// Why something was not done.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) why: String,
    /// Whether the kernel has not released yet what was there before.
    pub(crate) is_busy: bool,
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        let is_busy = false;
        Self { why, is_busy }
    }
}

impl From<SetupError> for Refusal {
    fn from(error: SetupError) -> Self {
        Self {
            why: error.to_string(),
            is_busy: error.is_busy(),
        }
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        error.to_string().into()
    }
}

/// Something that a domain can tell something.
#[derive(Debug)]
pub(crate) enum Unit {
    /// A TAP.
    Tap {
        /// The power to steer it, where there is any.
        steering: Option<Steering>,
        /// What joins it to a network, where something does.
        uplink: Option<Uplink>,
        /// The last descriptor of the interface. Who closes it waits for the kernel to take the
        /// interface down, some grace periods: that is to be none who has domains to see to.
        last: OwnedFd,
        /// Whether it stays when nobody has a descriptor of it.
        persistent: bool,
    },
    /// An interface whose packets go to sockets.
    Wire(Arc<Wire>),
    /// A file: there is nothing to it but its descriptor.
    File,
    /// What a netd before had, and this one could not take up: frames may still come by it.
    Stuck,
    /// A socket that is not bound yet.
    Unbound(Arc<Wire>, OwnedFd, Option<XdpQueue>),
    /// The shared socket of a wire.
    Shared(XdpDevice),
    /// A guest's own queue of one.
    Queue(QueueSocket),
}

/// A device that was opened: what domains get, and what the core keeps for the next netd.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) unit: Unit,
    pub(crate) given: Vec<OwnedFd>,
    pub(crate) lacks: Vec<&'static str>,
}

/// Opens what a description says.
pub(crate) fn open(opening: &Opening, broker: &Broker) -> Result<Opened, Refusal> {
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
            Ok(Opened {
                unit: Unit::Tap {
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
            let wire = Wire::open(spec)?;
            Ok(Opened {
                lacks: wire.lacks().to_vec(),
                unit: Unit::Wire(Arc::new(wire)),
                given: vec![],
            })
        }
        Device::Read(path) => file(broker.read(path)?),
        Device::Write(path) => file(broker.write(path, opening.life)?),
        Device::TapQueue | Device::TapShare { .. } | Device::XdpQueue(_) | Device::Nothing => {
            Err("this is part of another device".to_owned().into())
        }
    }
}

fn file(fd: OwnedFd) -> Result<Opened, Refusal> {
    Ok(Opened {
        unit: Unit::File,
        given: vec![fd],
        lacks: vec![],
    })
}

/// Takes up what a netd before has opened: `given` is what domains have of it, `rest` what it has
/// had kept.
pub(crate) fn take_up(
    opening: &Opening,
    given: Vec<OwnedFd>,
    mut rest: Vec<OwnedFd>,
) -> Result<Unit, Refusal> {
    Ok(match &opening.device {
        Device::Tap(tap) => {
            let last = given.into_iter().next();
            let last = last.ok_or_else(|| "a TAP without a descriptor".to_owned())?;
            let is_joined = matches!(tap.uplink, Some(machine::Uplink::Nat(_)));
            let table = if is_joined { rest.pop() } else { None };
            let (of, on) = (opening.namespace, &opening.switched_on);
            let uplink = table.map(|table| Uplink::adopt(tap, of, table, on));
            let map = rest.into_iter().next();
            let steering = map.map(|map| Steering::adopt(map, tap.queues));
            Unit::Tap {
                steering: steering.transpose()?,
                uplink,
                last,
                persistent: tap.persistent.is_some(),
            }
        }
        Device::Xdp(spec) => Unit::Wire(Arc::new(Wire::adopt(spec, rest)?)),
        _ => Unit::File,
    })
}

/// Removes what has stayed of a device that a netd before was to close.
pub(crate) fn remove(opening: &Opening) {
    if let Device::Tap(tap) = &opening.device
        && let Err(error) = netdev::remove(tap, opening.namespace, &opening.switched_on)
    {
        eprintln!("grantway-netd: an interface stays: {error}");
    }
}

impl Unit {
    /// What the next netd needs to take it up, beside its description.
    pub(crate) fn kept(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Self::Tap {
                steering, uplink, ..
            } => {
                let map = steering.iter().map(Steering::kept);
                map.chain(uplink.iter().map(Uplink::kept)).collect()
            }
            Self::Wire(wire) => wire.kept(),
            Self::Queue(queue) => vec![queue.kept()],
            Self::File | Self::Stuck | Self::Unbound(..) | Self::Shared(_) => vec![],
        }
    }

    /// Settings of the system that were switched on for it.
    pub(crate) fn switched_on(&self) -> Vec<String> {
        let uplink = match self {
            Self::Tap { uplink, .. } => uplink.as_ref(),
            _ => None,
        };
        uplink.map_or(Vec::new(), |uplink| uplink.switched_on().to_vec())
    }

    /// The descriptor that reports an error once the interface was removed, if it has one.
    pub(crate) fn watched(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Tap { last, .. } => Some(last.as_fd()),
            _ => None,
        }
    }

    /// Whether the interface was removed that a device without such a descriptor is on.
    pub(crate) fn is_removed(&self) -> bool {
        matches!(self, Self::Wire(wire) if wire.is_removed())
    }

    /// Whether it goes with its descriptors, and nothing else of the system's with it.
    pub(crate) fn is_alone(&self) -> bool {
        matches!(self, Self::Tap { uplink: None, .. })
    }

    /// A socket on this device, over no memory yet.
    pub(crate) fn socket(&self, queue: Option<XdpQueue>) -> Result<Self, Refusal> {
        let Self::Wire(wire) = self else {
            return Err("no sockets can be had of this device".to_owned().into());
        };
        Ok(Self::Unbound(Arc::clone(wire), wire.socket()?, queue))
    }

    /// The descriptor of a socket that is not bound yet.
    pub(crate) fn unbound(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Unbound(_, socket, _) => Some(socket.as_fd()),
            _ => None,
        }
    }

    /// Binds it.
    pub(crate) fn bind(self) -> Result<Self, Refusal> {
        Ok(match self {
            Self::Unbound(wire, socket, None) => Self::Shared(wire.bind_socket(socket)?),
            Self::Unbound(wire, socket, Some(spec)) => Self::Queue(wire.bind_queue(&spec, socket)?),
            _ => return Err("this is no socket that is to be bound".to_owned().into()),
        })
    }

    /// A socket on this device that a netd before has bound, and what it has had kept beside it.
    pub(crate) fn take_up_socket(
        &self,
        queue: Option<XdpQueue>,
        socket: OwnedFd,
        rest: Vec<OwnedFd>,
    ) -> Result<Self, Refusal> {
        let Self::Wire(wire) = self else {
            return Err("no sockets can be had of this device".to_owned().into());
        };
        Ok(match (queue, rest.into_iter().next()) {
            (None, _) => Self::Shared(wire.adopt_socket(socket)?),
            (Some(spec), Some(kept)) => Self::Queue(wire.adopt_queue(&spec, socket, kept)?),
            (Some(_), None) => return Err("a queue without its counters".to_owned().into()),
        })
    }

    /// Whether who has a bound socket next can go on with it: every chunk stands in a ring or
    /// comes back. An interface that writes packets by itself holds chunks that stand in none.
    pub(crate) fn lasts(&self) -> bool {
        matches!(self, Self::Shared(device) if device.is_copied())
    }

    /// What is to be seen of a bound socket's rings.
    pub(crate) fn rings(&self) -> [RingPlace; 4] {
        let place = |part: &RingPages| RingPlace {
            page: part.page,
            pages: part.pages,
        };
        let mut rings = [RingPlace::default(); 4];
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

    /// Whether what a domain says may take as long as a grace period of the kernel's.
    pub(crate) fn takes_long(&self, words: [u64; 2]) -> bool {
        matches!(self, Self::Queue(_)) && XdpControl::decode(words) == Some(XdpControl::Stop)
    }

    /// What a domain is told that says this.
    pub(crate) fn told(&self, words: [u64; 2]) -> Outcome {
        let answer = match self {
            Self::Tap {
                steering: Some(steering),
                ..
            } => steer(steering, words),
            Self::Shared(device) => ask(device.socket(), None, words),
            Self::Queue(queue) => ask(queue.socket(), Some(queue), words),
            _ => Err(NOENT),
        };
        match answer {
            Ok(value) => Outcome::Value { value },
            Err(errno) => Outcome::Failed { errno },
        }
    }

    /// It is not to be opened again: nothing of it stays.
    pub(crate) fn release(&self) {
        if let Self::Tap {
            last,
            persistent: true,
            ..
        } = self
            && let Err(error) = netdev::release(last)
        {
            eprintln!("grantway-netd: an interface stays: {error}");
        }
    }

    /// Nothing comes by it any more when this returns, unless it fails.
    pub(crate) fn end(&self) -> Outcome {
        match self {
            Self::Queue(queue) => queue.end(),
            Self::Stuck => return Outcome::Failed { errno: INVAL },
            _ => {}
        }
        Outcome::Value { value: 0 }
    }
}

const NOENT: i32 = rustix::io::Errno::NOENT.raw_os_error();
const INVAL: i32 = rustix::io::Errno::INVAL.raw_os_error();

fn errno(error: &io::Error) -> i32 {
    error
        .raw_os_error()
        .unwrap_or(rustix::io::Errno::IO.raw_os_error())
}

fn steer(steering: &Steering, words: [u64; 2]) -> Result<u64, i32> {
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

/// What the domain that has a socket is told; of a queue for a single guest there is more to tell.
fn ask(socket: &Socket, queue: Option<&QueueSocket>, words: [u64; 2]) -> Result<u64, i32> {
    let asked = XdpControl::decode(words).ok_or(INVAL)?;
    let answer = match (asked, queue) {
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

fn layout(socket: &Socket, ring: Ring) -> u64 {
    socket.layout(ring).encode()
}
