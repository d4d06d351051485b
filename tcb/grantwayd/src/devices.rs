//! Opens what domains attach. This is the one place where the monitor's program knows what a
//! device is.

use abi::hypercall::TapControl;
use abi::machine;
use abi::xdp::{Ring, XdpControl};
use abi::{PAGE, Slot};
use monitor::{Device, DeviceControl, DeviceMap};
use nic_linux::setup::xdp::XdpDevice;
use nic_linux::setup::{self, SteerError, Steering, xdp};
use rustix::io::Errno;
use shmem::Span;
use std::collections::{BTreeMap, VecDeque};
use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

/// What status says where no TAP can be told which queue a frame goes to.
const NO_STEERING: &str = "NIC queues for single guests (bpf(2) is not permitted)";

/// Shared queues of TAPs that no domain has been given yet, by interface and namespace.
pub(crate) type Shares = BTreeMap<(String, Option<String>), VecDeque<OwnedFd>>;

/// A domain's devices, as they outlive its processes.
pub(crate) struct Devices {
    domain: String,
    kept: Vec<Kept>,
}

/// One of them.
enum Kept {
    /// A TAP, or a queue of one: whoever has its descriptor has it.
    Tap(OwnedFd, Option<Arc<TapSteering>>),
    /// A wire, of which each life has a socket of its own, over frames of its own.
    Xdp(Arc<xdp::Wire>, machine::Xdp),
    /// Files that are opened anew for each life.
    Read(String),
    Write(String),
}

impl Devices {
    /// Opens every device of a domain; and what the system could not provide. What TAPs have for further
    /// domains goes to `shares`.
    pub(crate) fn open(
        domain: &machine::Domain,
        shares: &mut Shares,
    ) -> Result<(Self, Vec<&'static str>), String> {
        let mut kept = Vec::new();
        let mut lacks = Vec::new();
        let mut queues = VecDeque::new();
        for device in &domain.devices {
            let wrong = |error: String| format!("domain {}: {error}", domain.name);
            kept.push(match device {
                machine::Device::Tap(tap) => {
                    let place = (tap.ifname.clone(), tap.netns.clone());
                    let tap = setup::open_queues(tap).map_err(|error| wrong(error.to_string()))?;
                    queues = tap.queues.into();
                    shares.insert(place, tap.shares.into());
                    let steering = match tap.steering {
                        Some(Ok(steering)) => Some(Arc::new(TapSteering(steering))),
                        Some(Err(error)) => {
                            eprintln!("grantwayd: {error}");
                            lacks.push(NO_STEERING);
                            None
                        }
                        None => None,
                    };
                    Kept::Tap(tap.shared, steering)
                }
                machine::Device::TapQueue => {
                    let queue = queues.pop_front();
                    let queue =
                        queue.ok_or_else(|| wrong("a queue without a TAP before it".into()));
                    Kept::Tap(queue?, None)
                }
                machine::Device::TapShare { ifname, netns } => {
                    let left = shares.get_mut(&(ifname.clone(), netns.clone()));
                    let share = left.and_then(VecDeque::pop_front);
                    let share =
                        share.ok_or_else(|| wrong(format!("the TAP {ifname} has no queue left")));
                    Kept::Tap(share?, None)
                }
                machine::Device::Xdp(spec) => {
                    let wire = xdp::Wire::open(spec).map_err(|error| wrong(error.to_string()))?;
                    lacks.extend(wire.lacks());
                    Kept::Xdp(Arc::new(wire), spec.clone())
                }
                machine::Device::Read(path) => Kept::Read(path.clone()),
                machine::Device::Write(path) => Kept::Write(path.clone()),
            });
        }
        let domain = domain.name.clone();
        Ok((Self { domain, kept }, lacks))
    }

    /// What the domain gets that has `frames`, in order; `life` domains had them before.
    pub(crate) fn hand_out(&self, frames: Span, life: u64) -> Result<Vec<Device>, String> {
        let give = |kept: &Kept| match kept {
            Kept::Tap(fd, steering) => Ok(Device {
                fd: fd.try_clone().map_err(|error| format!("a TAP: {error}"))?,
                control: steering.clone().map(|s| s as Arc<dyn DeviceControl>),
                pages: Vec::new(),
            }),
            Kept::Xdp(wire, spec) => socket(wire, spec, frames),
            Kept::Read(path) => open_read(path).map(Device::from),
            Kept::Write(path) if life == 0 => open_write(path).map(Device::from),
            // What the ones before have written stays.
            Kept::Write(path) => open_write(&format!("{path}.{life}")).map(Device::from),
        };
        let devices: Result<_, String> = self.kept.iter().map(give).collect();
        devices.map_err(|error| format!("domain {}: {error}", self.domain))
    }
}

/// An AF_XDP socket over part of its domain's frames.
fn socket(wire: &Arc<xdp::Wire>, spec: &machine::Xdp, frames: Span) -> Result<Device, String> {
    let bytes = |pages: u32| pages as usize * PAGE;
    let umem = frames.sub(bytes(spec.first_frame), bytes(spec.frames));
    let umem = umem.ok_or("an AF_XDP socket over frames that the domain does not have")?;
    let device = wire.bind(umem).map_err(|error| error.to_string())?;
    let slots = Ring::slots(spec.entries);
    let pages = device.ring_pages().map(|part| {
        let place = part.ring.place().checked_mul(slots);
        let slot = place.and_then(|place| spec.rings_slot.checked_add(place));
        let slot = slot.filter(|_| part.pages <= slots).map(Slot);
        slot.map(|slot| DeviceMap {
            slot,
            page: part.page,
            pages: part.pages,
        })
    });
    let pages: Option<Vec<_>> = pages.into_iter().collect();
    let pages = pages.ok_or("this kernel's AF_XDP rings do not fit their slots")?;
    let fd = device.socket().try_clone_to_owned();
    Ok(Device {
        fd: fd.map_err(|error| format!("an AF_XDP socket: {error}"))?,
        control: Some(Arc::new(XdpSocket(device))),
        pages,
    })
}

fn open_read(path: &str) -> Result<OwnedFd, String> {
    OpenOptions::new()
        .read(true)
        .open(path)
        .map(OwnedFd::from)
        .map_err(|error| format!("the file {path} cannot be read: {error}"))
}

fn open_write(path: &str) -> Result<OwnedFd, String> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map(OwnedFd::from)
        .map_err(|error| format!("the file {path} cannot be made: {error}"))
}

/// A TAP whose domain may lead frames to its queues. Which MACs it may lead was fixed when the TAP
/// was set up.
#[derive(Debug)]
struct TapSteering(Steering);

impl DeviceControl for TapSteering {
    fn control(&self, words: [u64; 2]) -> Result<u64, Errno> {
        match TapControl::decode(words).ok_or(Errno::INVAL)? {
            TapControl::Steer { mac, queue } => {
                self.0.steer(mac, queue).map_err(|error| match error {
                    SteerError::Mac => Errno::PERM,
                    SteerError::Queue => Errno::NXIO,
                    SteerError::System(error) => Errno::from_io_error(&error).unwrap_or(Errno::IO),
                })
            }
            TapControl::Settled => Ok(self.0.settled()),
        }
    }
}

/// An AF_XDP socket, of which its domain may learn where its rings lie and what the kernel counts.
#[derive(Debug)]
struct XdpSocket(XdpDevice);

impl DeviceControl for XdpSocket {
    fn control(&self, words: [u64; 2]) -> Result<u64, Errno> {
        match XdpControl::decode(words).ok_or(Errno::INVAL)? {
            XdpControl::Layout(ring) => Ok(self.0.layout(ring).encode()),
            XdpControl::Counter(counter) => self
                .0
                .counter(counter)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        }
    }
}
