//! The driver domain's NICs, which are opened while this process is root and kept until it exits.
//! This module does what the monitor does on Linux: it maps the rings of AF_XDP sockets and
//! describes them.

use crate::dev::{ForeignWindow, PageRights};
use abi::PAGE;
use abi::machine::{Device, DomainSpec, Xdp};
use abi::xdp::{Ring, XdpControl};
use netdev::NatUplink;
use netdev::xdp::{XdpDevice, XdpInterface};
use shmem::Area;
use shmem::umem::{self, Umem};
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Error for a NIC of an unsupported kind.
const KINDS: &str =
    "on Xen NICs are of kind \"tap\", \"local\", \"xdp\", \"sim\" or \"pcap\", with one queue";

/// The reason why a NIC cannot be opened, as text.
pub type OpenError = Box<dyn std::error::Error>;

/// The devices of a driver domain, by number.
#[derive(Debug)]
pub struct XenDevices {
    /// Descriptors that have not been attached yet.
    descriptors: RefCell<Vec<Option<OwnedFd>>>,
    /// The devices that are AF_XDP sockets.
    sockets: Vec<Option<XdpDevice>>,
    /// The mapped rings of the sockets.
    rings: ForeignWindow,
    /// Uplink TAPs to networks of this domain, until it is dropped.
    _uplinks: Vec<NatUplink>,
}

impl XenDevices {
    /// Opens the devices of `domain`. AF_XDP sockets receive into `frames`, the domain's own
    /// memory.
    ///
    /// # Errors
    ///
    /// Returns an error that names the device that cannot be opened, and the reason.
    pub fn open(domain: &DomainSpec, frames: Area) -> Result<Self, OpenError> {
        let rings = ForeignWindow::new((domain.window_slots as usize).max(1))?;
        let (mut descriptors, mut sockets, mut uplinks) = (Vec::new(), Vec::new(), Vec::new());
        for device in &domain.devices {
            let mut socket = None;
            descriptors.push(Some(match device {
                Device::Tap(tap) => {
                    let tap = netdev::open_queues(tap)?;
                    uplinks.extend(tap.uplink);
                    tap.shared
                }
                Device::Xdp(xdp) if xdp.queues == 0 => {
                    let opened = open_socket(xdp, frames, rings)?;
                    let descriptor = opened.socket().as_fd().try_clone_to_owned()?;
                    socket = Some(opened);
                    descriptor
                }
                Device::Read(path) => File::open(path)?.into(),
                Device::Write(path) => File::create_new(path)?.into(),
                Device::TapQueue
                | Device::TapShare { .. }
                | Device::Xdp(_)
                | Device::VhostUser(_)
                | Device::XdpQueue(_)
                | Device::Pci(_)
                | Device::Nothing => return Err(KINDS.into()),
            }));
            sockets.push(socket);
        }
        Ok(Self {
            descriptors: RefCell::new(descriptors),
            sockets,
            rings,
            _uplinks: uplinks,
        })
    }

    /// Returns duplicates of all descriptors, for waiting.
    ///
    /// # Errors
    ///
    /// Returns an error if no descriptors are left.
    pub fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        let all = self.descriptors.borrow();
        all.iter().flatten().map(OwnedFd::try_clone).collect()
    }

    /// Returns the area of the rings.
    pub(crate) fn rings(&self) -> Area {
        self.rings.area()
    }

    /// Returns the descriptor of a device. A device can be attached once.
    pub(crate) fn attach(&self, device: u32) -> io::Result<OwnedFd> {
        let mut descriptors = self.descriptors.borrow_mut();
        let device = descriptors.get_mut(device as usize).and_then(Option::take);
        device.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Executes a request to a device.
    pub(crate) fn device_control(&self, device: u32, words: [u64; 2]) -> io::Result<u64> {
        let socket = self.sockets.get(device as usize).and_then(Option::as_ref);
        let socket = socket.ok_or(io::ErrorKind::Unsupported)?.socket();
        match XdpControl::decode(words) {
            Some(XdpControl::Layout(ring)) => Ok(socket.layout(ring).encode()),
            Some(XdpControl::Counter(counter)) => socket.counter(counter),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// Opens an AF_XDP socket, and maps its rings at their places in `rings`.
fn open_socket(xdp: &Xdp, frames: Area, rings: ForeignWindow) -> Result<XdpDevice, OpenError> {
    let (first, count) = (xdp.first_frame as usize, xdp.frames as usize);
    let packets = frames.at(first * PAGE, count * PAGE);
    let packets = packets.ok_or("the driver domain has too few frames")?;
    let wire = Arc::new(XdpInterface::open(xdp)?);
    for lack in wire.lacks() {
        eprintln!("not available on this system: {lack}");
    }
    let socket = wire.socket()?;
    let memory = Umem {
        span: packets,
        chunk_bytes: xdp.chunk_bytes,
        entries: xdp.entries,
        transmits: true,
    };
    umem::register(&socket, &memory)?;
    // Before Linux 6.4 the rings of a bound socket cannot be mapped.
    for ring in wire.adopt_socket(socket.try_clone()?)?.ring_pages() {
        let slot = xdp.rings_slot + ring.ring.index() * Ring::slots(xdp.entries);
        let place = rings.part(slot as usize, ring.pages as usize);
        let place = place.ok_or("the driver domain has too few slots")?;
        let offset = u64::from(ring.page) * PAGE as u64;
        place.map_device(socket.as_fd(), offset, PageRights::ReadWrite)?;
    }
    Ok(wire.bind_socket(socket)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::machine::{Nat, Netdev, Program, Tap, Uplink};
    use abi::xdp::{Counter, RingLayout};
    use netdev::netns::Namespace;
    use std::process::Command;
    use testing::require;

    const PAGES: u32 = 32;

    fn opened(device: Device) -> Result<XenDevices, OpenError> {
        let domain = DomainSpec {
            name: "driver".into(),
            program: Program::Driver,
            frames: PAGES,
            grant_entries: 0,
            window_slots: 4 * Ring::slots(PAGES),
            collateral: 0,
            foreign_pages: 0,
            weight: 1,
            restart_pause_ms: None,
            cpus: vec![],
            devices: vec![device],
            config: String::new(),
        };
        XenDevices::open(&domain, Area::anonymous(PAGES as usize * PAGE).unwrap())
    }

    fn tap(namespace: &Namespace) -> Tap {
        Tap {
            ifname: "up0".into(),
            netns: Some(namespace.path().display().to_string()),
            addresses: vec!["10.7.0.1/24".into()],
            mtu: 1500,
            ..Tap::default()
        }
    }

    #[test]
    fn nics_with_several_queues_are_rejected() {
        let why = opened(Device::TapQueue).unwrap_err().to_string();
        assert!(why.starts_with("on Xen NICs are of kind"), "{why}");
    }

    #[test]
    fn a_sockets_rings_are_mapped_and_described() {
        require!(root, netns, af_xdp);
        let namespace = Namespace::new().unwrap();
        let devices = opened(Device::Xdp(Xdp {
            netdev: Netdev::Veth(tap(&namespace)),
            first_frame: 0,
            frames: PAGES,
            chunk_bytes: (PAGE / 2) as u32,
            entries: PAGES,
            rings_slot: 0,
            queues: 0,
        }))
        .unwrap();
        for ring in Ring::ALL {
            let encoded = devices
                .device_control(0, XdpControl::Layout(ring).encode())
                .unwrap();
            let layout = RingLayout::decode(encoded);
            let slot = ring.index() * Ring::slots(PAGES);
            let at = slot as usize * PAGE + usize::from(layout.producer);
            let producer = devices.rings().at(at, 4).unwrap().load_u32(0);
            assert_eq!(producer, Ok(0), "{ring:?}");
        }
        let counter = XdpControl::Counter(Counter::Dropped).encode();
        assert_eq!(devices.device_control(0, counter).unwrap(), 0);
        assert!(
            devices
                .device_control(0, XdpControl::Enable.encode())
                .is_err()
        );
        assert!(devices.device_control(1, counter).is_err());
        assert_eq!(devices.descriptors().unwrap().len(), 1);
        devices.attach(0).unwrap();
        assert!(devices.attach(0).is_err(), "once");
    }

    #[test]
    fn devices_keep_the_rules_of_their_uplink() {
        require!(root, netns, tap, tool("nft"));
        let namespace = Namespace::new().unwrap();
        let devices = opened(Device::Tap(Tap {
            uplink: Some(Uplink::Nat(Nat::default())),
            ..tap(&namespace)
        }))
        .unwrap();
        let nft = || Command::new("nft").args(["list", "ruleset"]).output();
        let rules = namespace.enter(nft).unwrap().unwrap();
        let rules = String::from_utf8(rules.stdout).unwrap();
        assert!(rules.contains("grantway-up0"), "{rules}");
        drop(devices);
    }
}
