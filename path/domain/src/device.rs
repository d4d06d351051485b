//! From a configuration to NICs and endpoints.

use crate::call::Calls;
use crate::endpoint::{Echo, Shared, Sink, Source, StackEndpoint};
use crate::sim::Wire;
use crate::start::{StartError, refused};
use crate::steering::AskMonitor;
use crate::xdp;
use abi::hypercall::Attach;
use config::domain::{BUFFER_BYTES, Endpoint, GuestVif, NicConfig, NicKind, Offloads};
use nic::limited::Limited;
use nic::pcap::{Pace, PcapNic, Reader, Writer};
use nic::sim::Cable;
use nic::{Caps, Nic, Pool};
use nic_linux::TapNic;
use shmem::Area;
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Bytes a second of a megabit a second.
const BYTES_PER_S_PER_MBPS: f64 = 125_000.0;

/// The NIC that `config` describes, and the pool that it receives into. All of its memory lies in
/// `area`: three quarters are the pool; a quarter is for what waits behind a rate limit, for a
/// simulated station, and for what an AF_XDP socket sends. `window` is the grant window.
///
/// # Errors
/// Its device was refused, or is not what it should be.
pub fn nic(
    config: &NicConfig,
    area: Area,
    window: Area,
    calls: &Rc<RefCell<Calls>>,
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
            queues,
        } => {
            let nic = TapNic::new(attach(*device)?, *vnet_header, *checksum, false, mtu);
            Box::new(match queues.is_empty() {
                true => nic,
                false => with_queues(nic, config, *device, queues, calls)?,
            })
        }
        NicKind::Xdp {
            device,
            rings_slot,
            entries,
        } => {
            let socket = xdp::Socket {
                device: *device,
                fd: attach(*device)?,
                rings_slot: *rings_slot,
                entries: *entries,
            };
            let send_bytes = match config.rate_mbps {
                Some(_) => eighth,
                None => 2 * eighth,
            };
            Box::new(xdp::nic(
                socket,
                area.span(),
                send_bytes,
                mtu,
                window,
                calls,
            )?)
        }
        NicKind::Local { device, .. } => {
            Box::new(TapNic::new(attach(*device)?, true, true, true, mtu))
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
                caps: Caps {
                    checksum: false,
                    tso: false,
                    max_frame: mtu + ETHERNET,
                },
                ..Cable::default()
            };
            let station = StackEndpoint::new(*mac, mtu, far);
            let queues = config.vmq.map_or(0, |vmq| vmq.queues as usize);
            Box::new(Wire::new(cable, station, pool(0, eighth)?, queues))
        }
        NicKind::Pcap { read, write } => pcap(*read, *write)?,
    };
    let nic = match config.rate_mbps {
        Some(mbps) => {
            let bytes_per_s = (mbps * BYTES_PER_S_PER_MBPS) as u64;
            let memory = Box::new(pool(eighth, eighth)?);
            Box::new(Limited::new(nic, bytes_per_s, config.burst_bytes, memory))
        }
        None => nic,
    };
    Ok((nic, pool(2 * eighth, rest)?))
}

/// A TAP with its queues for single guests; without, if the monitor cannot steer this TAP.
fn with_queues(
    nic: TapNic,
    config: &NicConfig,
    device: u32,
    queues: &[u32],
    calls: &Rc<RefCell<Calls>>,
) -> Result<TapNic, StartError> {
    let steering = AskMonitor::new(Rc::clone(calls), device);
    if !steering.is_possible() {
        eprintln!(
            "nic.{}: the monitor may not steer its frames, so all guests use the shared queue",
            config.name
        );
        return Ok(nic);
    }
    let fds = queues
        .iter()
        .map(|&queue| attach(queue))
        .collect::<Result<_, _>>()?;
    Ok(nic.with_queues(fds, Box::new(steering)))
}

/// The endpoint that `config` describes, once for each queue of its interface.
///
/// A TAP has a queue for each, and the kernel chooses by flow; what can take frames and no more, or
/// sends them back, is there once for each; of a station frames go by the queue of their flow; and what
/// yields one row of frames yields them to one queue.
///
/// # Errors
/// Its device was refused, or is not what it should be.
pub fn endpoints(config: &GuestVif) -> Result<Vec<Box<dyn Nic>>, StartError> {
    let mtu = config.mtu as usize;
    let checksum = config.offloads >= Offloads::Checksum;
    let tso = config.offloads >= Offloads::Tso;
    let queues = config.conns.len();
    let shared = |device: Box<dyn Nic>, yields| match queues {
        1 => vec![device],
        _ => boxed(Shared::spread(device, queues, yields)),
    };
    Ok(match &config.endpoint {
        Endpoint::Tap { devices } => devices
            .iter()
            .map(|&device| {
                let tap = TapNic::new(attach(device)?, true, checksum, tso, mtu);
                Ok(Box::new(tap) as Box<dyn Nic>)
            })
            .collect::<Result<_, StartError>>()?,
        Endpoint::Stack { stack } => {
            let station = StackEndpoint::with_offloads(config.mac, mtu, stack, checksum, tso);
            match queues {
                1 => vec![Box::new(station)],
                _ => boxed(station.spread(queues)),
            }
        }
        Endpoint::Sink { touch } => boxed((0..queues).map(|_| Sink::new(*touch))),
        Endpoint::Source {
            to,
            size,
            rate_pps,
            window,
            count,
            touch,
        } => {
            let source = Source::new(config.mac, *to, *size, *rate_pps, *window, *count, *touch);
            let queue = (source.flow() as usize).checked_rem(queues).unwrap_or(0);
            shared(Box::new(source), queue)
        }
        Endpoint::Echo {} => boxed((0..queues).map(|_| Echo::default())),
        Endpoint::Pcap { read, write } => shared(pcap(*read, *write)?, 0),
    })
}

fn boxed<N: Nic + 'static>(devices: impl IntoIterator<Item = N>) -> Vec<Box<dyn Nic>> {
    let devices = devices.into_iter();
    devices.map(|device| Box::new(device) as _).collect()
}

fn pcap(read: Option<u32>, write: Option<u32>) -> Result<Box<dyn Nic>, StartError> {
    let wrong = |error: nic::pcap::PcapError| {
        refused(
            "a capture file",
            io::Error::new(io::ErrorKind::InvalidData, error),
        )
    };
    let open = |device: Option<u32>| device.map(attach).transpose().map(|fd| fd.map(File::from));
    let reader = open(read)?.map(Reader::new).transpose().map_err(wrong)?;
    // What turns the monotonic clock of the data path into the time of day of the file.
    let day = std::time::UNIX_EPOCH
        .elapsed()
        .map_or(0, |since| since.as_nanos() as u64);
    let epoch_ns = day.saturating_sub(shmem::time::monotonic_ns());
    let writer = open(write)?.map(|file| Writer::new(file, epoch_ns));
    let writer = writer.transpose().map_err(wrong)?;
    Ok(Box::new(PcapNic::new(reader, writer, Pace::default())))
}

fn attach(device: u32) -> Result<OwnedFd, StartError> {
    shmem::attach::call(Attach::Device(device))
        .map_err(|why| refused(&format!("device {device}"), why))
}
