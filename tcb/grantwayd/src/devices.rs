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
use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

/// What status says where no TAP can be told which queue a frame goes to.
const NO_STEERING: &str = "NIC queues for single guests (bpf(2) is not permitted)";

/// Opens every device of a domain, in order; and what the system could not provide. `frames` are
/// the domain's own.
pub(crate) fn open(
    domain: &str,
    devices: &[machine::Device],
    frames: Span,
) -> Result<(Vec<Device>, Vec<&'static str>), String> {
    let mut opened = Vec::new();
    let mut lacks = Vec::new();
    let mut queues = VecDeque::new();
    for device in devices {
        let wrong = |error: String| format!("domain {domain}: {error}");
        let device = match device {
            machine::Device::Tap(tap) => {
                let tap = setup::open_queues(tap).map_err(|error| wrong(error.to_string()))?;
                queues = tap.queues.into();
                let control = match tap.steering {
                    Some(Ok(steering)) => {
                        Some(Arc::new(TapSteering(steering)) as Arc<dyn DeviceControl>)
                    }
                    Some(Err(error)) => {
                        eprintln!("grantwayd: {error}");
                        lacks.push(NO_STEERING);
                        None
                    }
                    None => None,
                };
                Device {
                    control,
                    ..tap.shared.into()
                }
            }
            machine::Device::TapQueue => {
                let queue = queues.pop_front();
                queue
                    .ok_or_else(|| wrong("a queue without a TAP before it".into()))?
                    .into()
            }
            machine::Device::Xdp(spec) => {
                let (device, what) = open_xdp(spec, frames).map_err(wrong)?;
                lacks.extend(what);
                device
            }
            machine::Device::Read(path) => open_read(path).map_err(wrong)?.into(),
            machine::Device::Write(path) => open_write(path).map_err(wrong)?.into(),
        };
        opened.push(device);
    }
    Ok((opened, lacks))
}

/// An AF_XDP socket over part of its domain's frames, and what it lacks.
fn open_xdp(spec: &machine::Xdp, frames: Span) -> Result<(Device, Vec<&'static str>), String> {
    let bytes = |pages: u32| pages as usize * PAGE;
    let umem = frames.sub(bytes(spec.first_frame), bytes(spec.frames));
    let umem = umem.ok_or("an AF_XDP socket over frames that the domain does not have")?;
    let device = xdp::open(spec, umem).map_err(|error| error.to_string())?;
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
    let lacks = device.lacks().to_vec();
    let device = Device {
        fd: fd.map_err(|error| format!("an AF_XDP socket: {error}"))?,
        control: Some(Arc::new(XdpSocket(device))),
        pages,
    };
    Ok((device, lacks))
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
