//! Creates NICs from a configuration.

use crate::device_port::{DevicePort, OwnDomain};
use crate::pci::{self, PciPort};
use crate::sim::SimWire;
use crate::soft::SoftPort;
use crate::steering::MonitorSteering;
use crate::xdp;
use abi::ConnId;
use config::domain::{BUFFER_BYTES, NicConfig, NicKindConfig, Rings, bytes_per_s};
use nic::dma::soft::{InterruptModeration, SoftSetup};
use nic::dma::{RemoteNic, RemoteSetup, SoftNic};
use nic::limited::Limited;
use nic::sim::SimNic;
use nic::{Nic, Pool};
use nic_linux::TapNic;
use runtime::device::{attach, attach_if_present, pcap, removal_handler};
use runtime::frontend::FrontendConnection;
use runtime::platform::Platform;
use runtime::start::StartError;
use shmem::Area;
use stack::cable;
use std::rc::Rc;

/// Capacity of a queue of a `sim` NIC, in frames.
const QUEUE_FRAMES: usize = 1000;

/// Creates the NIC that `config` describes, and its receive pool. All of its buffers are in `area`:
/// three quarters are the pool; one quarter is for frames queued by a rate limit, for a simulated
/// station, and for sending through an AF_XDP socket. `rings` is the memory of the NIC's rings:
/// [`NicConfig::ring_pages`] pages. `domain` has this domain's memory and hypercalls.
///
/// # Errors
/// Returns an error if the monitor rejects the device, or the device is invalid.
pub fn nic(
    config: &NicConfig,
    area: Area,
    rings: Area,
    platform: &Rc<dyn Platform>,
    domain: &OwnDomain,
) -> Result<(Box<dyn Nic>, Pool), StartError> {
    // A half page at the end cannot be used, because a socket's memory consists of whole pages.
    let whole = area.part(0, area.len() / abi::PAGE * abi::PAGE);
    let area = whole.unwrap_or(area);
    let eighth = (area.len() / 8).next_multiple_of(abi::PAGE);
    let rest = eighth
        .checked_mul(2)
        .and_then(|used| area.len().checked_sub(used));
    let rest = rest.ok_or(StartError::BadStartInfo("a NIC has too few buffers"))?;
    let pool = |offset, len| {
        area.part(offset, len)
            .map(|area| Pool::new(area, BUFFER_BYTES as usize))
            .ok_or(StartError::BadStartInfo("a NIC has too few buffers"))
    };
    let received = area.part(2 * eighth, rest).unwrap_or(area);
    let (mtu, rate_mbps) = (config.settings.mtu as usize, config.settings.rate_mbps);
    let nic: Box<dyn Nic> = match &config.kind {
        NicKindConfig::Tap {
            device,
            vnet_header,
            checksum,
            tso,
            queues,
        } => {
            let offloads = (*vnet_header, *checksum, *tso);
            wire_tap(config, (*device, queues), offloads, platform)?
        }
        NicKindConfig::Xdp {
            device,
            rings_slot,
            entries,
        } => {
            let eighths = if rate_mbps.is_some() { 1 } else { 2 };
            let rings = (*rings_slot, *entries);
            socket(platform, (*device, rings), area, eighths * eighth, mtu)?
        }
        NicKindConfig::Local { device, .. } => {
            Box::new(tap(platform, (*device, &[]), (true, true, true), mtu)?)
        }
        NicKindConfig::Sim(cable) => {
            let (near, far, station) = cable::ends(cable, None, mtu);
            let near = match config.settings.vmq {
                None => near,
                Some(vmq) => near.with_queues(vmq.queues as usize, QUEUE_FRAMES),
            };
            Box::new(SimWire::new(near, far, station, pool(0, eighth)?))
        }
        NicKindConfig::Soft { cable, rings: of } => {
            let (near, far, station) = cable::ends(cable, rate_mbps, mtu);
            let near = soft(config, *of, near, (rings, received), platform)?;
            Box::new(SimWire::new(near, far, station, pool(0, eighth)?))
        }
        NicKindConfig::Device {
            conn,
            descriptors,
            queues,
            merges,
            splits,
        } => {
            let link = FrontendConnection::new(ConnId(*conn), Rc::clone(platform));
            let setup = RemoteSetup {
                entries: *descriptors,
                mtu,
                queues: *queues,
                merges: *merges,
                splits: *splits,
            };
            remote(config, setup, link, [rings, received], domain)?
        }
        NicKindConfig::Vfio {
            device,
            registers_slot,
            descriptors,
        } => {
            let place = (*device, *registers_slot);
            Box::new(vfio(config, place, *descriptors, [area, rings], platform)?)
        }
        NicKindConfig::Pcap(files) => pcap(&**platform, *files)?,
    };
    let nic = with_rate(nic, config, || pool(eighth, eighth))?;
    Ok((nic, pool(2 * eighth, rest)?))
}

/// Opens the TAP of a wire with its dedicated queues.
fn wire_tap(
    config: &NicConfig,
    (device, queues): (u32, &[u32]),
    offloads: (bool, bool, bool),
    platform: &Rc<dyn Platform>,
) -> Result<Box<dyn Nic>, StartError> {
    let mtu = config.settings.mtu as usize;
    let nic = tap(platform, (device, queues), offloads, mtu)?;
    Ok(match queues.is_empty() || nic.is_removed() {
        true => Box::new(nic),
        false => Box::new(with_queues(nic, config, device, queues, platform)?),
    })
}

/// Limits the rate of a NIC, unless its cable or its device enforces the rate. `memory` returns
/// buffers for waiting frames.
fn with_rate(
    nic: Box<dyn Nic>,
    config: &NicConfig,
    memory: impl FnOnce() -> Result<Pool, StartError>,
) -> Result<Box<dyn Nic>, StartError> {
    let limited_elsewhere = matches!(
        config.kind,
        NicKindConfig::Soft { .. } | NicKindConfig::Device { .. }
    );
    let Some(mbps) = config.settings.rate_mbps.filter(|_| !limited_elsewhere) else {
        return Ok(nic);
    };
    let (rate, memory) = (bytes_per_s(mbps), Box::new(memory()?));
    Ok(Box::new(Limited::new(
        nic,
        rate,
        config.settings.burst_bytes,
        memory,
    )))
}

/// Creates a NIC whose device is the domain behind `link`. The first area of `granted` contains its
/// rings, the second its receive buffers.
fn remote(
    config: &NicConfig,
    setup: RemoteSetup,
    link: FrontendConnection,
    granted: [Area; 2],
    domain: &OwnDomain,
) -> Result<Box<dyn Nic>, StartError> {
    let [rings, received] = granted;
    let nic = RemoteNic::new(setup, rings, received);
    let nic = nic.ok_or(StartError::BadStartInfo("the rings of a NIC do not fit"))?;
    let name = config.name.clone();
    let port = DevicePort::new(name, nic, link, granted, domain.clone());
    Ok(Box::new(port))
}

/// Starts the PCI device at `place`: its number, and the first slot of its registers. The device
/// accesses both areas of `memory`: the buffers and the queues.
fn vfio(
    config: &NicConfig,
    place: (u32, u32),
    descriptors: u32,
    memory: [Area; 2],
    platform: &Rc<dyn Platform>,
) -> Result<PciPort, StartError> {
    let setup = pci::setup(descriptors, config.settings.mtu as usize);
    PciPort::start(config.name.clone(), place, setup, memory, &**platform)
}

/// Creates a NIC with a device in software. `memory` contains its rings; it receives into `pool`
/// and into pages that guests have granted.
fn soft(
    config: &NicConfig,
    rings: Rings,
    wire: SimNic,
    (memory, pool): (Area, Area),
    platform: &Rc<dyn Platform>,
) -> Result<SoftPort<SimNic>, StartError> {
    let setup = SoftSetup {
        entries: rings.descriptors,
        queues: config.settings.vmq.map_or(0, |vmq| vmq.queues as usize),
        mtu: config.settings.mtu as usize,
        interrupts: InterruptModeration {
            delay_ns: u64::from(rings.interrupt_us) * 1000,
            frames: rings.interrupt_frames as usize,
        },
    };
    let nic = SoftNic::new(setup, wire, memory, pool, platform.window());
    let nic = nic.ok_or(StartError::BadStartInfo("the rings of a NIC do not fit"))?;
    Ok(SoftPort::new(config.name.clone(), nic))
}

/// Opens the AF_XDP socket of a device. Its rings have `entries` entries and start at slot
/// `rings_slot` of the window. If the interface has been removed, returns a NIC without an
/// interface.
fn socket(
    platform: &Rc<dyn Platform>,
    (device, (rings_slot, entries)): (u32, (u32, u32)),
    area: Area,
    send_bytes: usize,
    mtu: usize,
) -> Result<Box<dyn Nic>, StartError> {
    let Some(fd) = attach_if_present(&**platform, device)? else {
        return Ok(Box::new(TapNic::new(None, false, false, false, mtu)));
    };
    let socket = xdp::SocketLayout {
        device,
        fd,
        rings_slot,
        entries,
    };
    let nic = xdp::nic(socket, area.span(), send_bytes, mtu, platform)?;
    Ok(Box::new(nic))
}

/// Opens a TAP. When its interface is removed, the TAP returns `device` and the devices of `queues`
/// to the monitor. With `vnet_header`, frames have a virtio-net header; with `checksum` and `tso`,
/// they may have pending checksums and segmentation.
fn tap(
    platform: &Rc<dyn Platform>,
    (device, queues): (u32, &[u32]),
    (vnet_header, checksum, tso): (bool, bool, bool),
    mtu: usize,
) -> Result<TapNic, StartError> {
    let fd = attach_if_present(&**platform, device)?;
    let devices = [&[device], queues].concat();
    let nic = TapNic::new(fd, vnet_header, checksum, tso, mtu);
    Ok(nic.on_removed(removal_handler(platform, devices)))
}

/// Opens a TAP with its dedicated queues, or without them if the monitor cannot steer this TAP.
fn with_queues(
    nic: TapNic,
    config: &NicConfig,
    device: u32,
    queues: &[u32],
    platform: &Rc<dyn Platform>,
) -> Result<TapNic, StartError> {
    let steering = MonitorSteering::new(Rc::clone(platform), device);
    if !steering.is_possible() {
        runtime::start::print_line(format_args!(
            "nic.{}: the monitor cannot steer its frames; all guests use the shared queue",
            config.name
        ));
        return Ok(nic);
    }
    let fds = queues
        .iter()
        .map(|&queue| attach(&**platform, queue))
        .collect::<Result<_, _>>()?;
    Ok(nic.with_queues(fds, Box::new(steering)))
}
