//! From a configuration to NICs.

use crate::egress_queue::bytes_per_s;
use crate::sim::Wire;
use crate::steering::AskMonitor;
use crate::xdp;
use config::domain::{BUFFER_BYTES, NicConfig, NicKind};
use nic::limited::Limited;
use nic::sim::Cable;
use nic::{Caps, Nic, Pool};
use nic_linux::TapNic;
use runtime::device::{attach, attach_if_there, give_up, pcap};
use runtime::platform::Platform;
use runtime::start::StartError;
use shmem::Area;
use stack::StackEndpoint;
use std::rc::Rc;

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;

/// The NIC that `config` describes, and the pool that it receives into. All of its memory lies in
/// `area`: three quarters are the pool; a quarter is for what waits behind a rate limit, for a
/// simulated station, and for what an AF_XDP socket sends.
///
/// # Errors
/// Its device was refused, or is not what it should be.
pub fn nic(
    config: &NicConfig,
    area: Area,
    platform: &Rc<dyn Platform>,
) -> Result<(Box<dyn Nic>, Pool), StartError> {
    // Half a page at the end is no buffer: pages are what a socket's memory is made of.
    let whole = area.part(0, area.len() / abi::PAGE * abi::PAGE);
    let area = whole.unwrap_or(area);
    let eighth = (area.len() / 8).next_multiple_of(abi::PAGE);
    let rest = eighth
        .checked_mul(2)
        .and_then(|used| area.len().checked_sub(used));
    let rest = rest.ok_or(StartError::Damaged("a NIC has too few buffers"))?;
    let pool = |offset, len| {
        area.part(offset, len)
            .map(|area| Pool::new(area, BUFFER_BYTES as usize))
            .ok_or(StartError::Damaged("a NIC has too few buffers"))
    };
    let mtu = config.mtu as usize;
    let nic: Box<dyn Nic> = match &config.kind {
        NicKind::Tap {
            device,
            vnet_header,
            checksum,
            tso,
            queues,
        } => {
            let nic = tap(
                platform,
                (*device, queues),
                (*vnet_header, *checksum, *tso),
                mtu,
            )?;
            match queues.is_empty() || nic.is_removed() {
                true => Box::new(nic),
                false => Box::new(with_queues(nic, config, *device, queues, platform)?),
            }
        }
        NicKind::Xdp {
            device,
            rings_slot,
            entries,
        } => {
            let send_bytes = match config.rate_mbps {
                Some(_) => eighth,
                None => 2 * eighth,
            };
            let rings = (*rings_slot, *entries);
            socket(platform, (*device, rings), area, send_bytes, mtu)?
        }
        NicKind::Local { device, .. } => {
            Box::new(tap(platform, (*device, &[]), (true, true, true), mtu)?)
        }
        NicKind::Sim {
            delay_us,
            loss,
            seed,
            mac,
            far,
        } => {
            let cable = Cable {
                delay_ns: u64::from(*delay_us) * 1000,
                loss: *loss,
                seed: *seed,
                caps: wire_caps(mtu),
                ..Cable::default()
            };
            let station = StackEndpoint::new(*mac, mtu, far);
            let queues = config.vmq.map_or(0, |vmq| vmq.queues as usize);
            Box::new(Wire::new(cable, station, pool(0, eighth)?, queues))
        }
        NicKind::Pcap(files) => pcap(&**platform, *files)?,
    };
    let nic = match config.rate_mbps {
        Some(mbps) => {
            let bytes_per_s = bytes_per_s(mbps);
            let memory = Box::new(pool(eighth, eighth)?);
            Box::new(Limited::new(nic, bytes_per_s, config.burst_bytes, memory))
        }
        None => nic,
    };
    Ok((nic, pool(2 * eighth, rest)?))
}

/// What a wire does by itself whose packets have at most `mtu` bytes: nothing.
fn wire_caps(mtu: usize) -> Caps {
    Caps {
        checksum: false,
        tso: false,
        max_frame: mtu + ETHERNET,
    }
}

/// The AF_XDP socket of a device, whose rings have so many entries and lie from this slot of the
/// window on; or a NIC without an interface, if that was removed.
fn socket(
    platform: &Rc<dyn Platform>,
    (device, (rings_slot, entries)): (u32, (u32, u32)),
    area: Area,
    send_bytes: usize,
    mtu: usize,
) -> Result<Box<dyn Nic>, StartError> {
    let Some(fd) = attach_if_there(&**platform, device)? else {
        return Ok(Box::new(TapNic::new(None, false, false, false, mtu)));
    };
    let socket = xdp::Socket {
        device,
        fd,
        rings_slot,
        entries,
    };
    let nic = xdp::nic(socket, area.span(), send_bytes, mtu, platform)?;
    Ok(Box::new(nic))
}

/// A TAP, which gives its devices up when its interface is removed: its own and those of `queues`.
/// `offloads`: whether frames have a virtio-net header, and may have checksums and segmentation
/// undone.
fn tap(
    platform: &Rc<dyn Platform>,
    (device, queues): (u32, &[u32]),
    (vnet_header, checksum, tso): (bool, bool, bool),
    mtu: usize,
) -> Result<TapNic, StartError> {
    let fd = attach_if_there(&**platform, device)?;
    let devices = [&[device], queues].concat();
    let nic = TapNic::new(fd, vnet_header, checksum, tso, mtu);
    Ok(nic.on_removed(give_up(platform, devices)))
}

/// A TAP with its queues for single guests; without, if the monitor cannot steer this TAP.
fn with_queues(
    nic: TapNic,
    config: &NicConfig,
    device: u32,
    queues: &[u32],
    platform: &Rc<dyn Platform>,
) -> Result<TapNic, StartError> {
    let steering = AskMonitor::new(Rc::clone(platform), device);
    if !steering.is_possible() {
        runtime::start::print_line(format_args!(
            "nic.{}: the monitor may not steer its frames, so all guests use the shared queue",
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
