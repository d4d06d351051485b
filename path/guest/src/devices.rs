//! Creates endpoints from a configuration.

use crate::endpoint::{Echo, FrameSource, SharedDevice, Sink, vhost_user};
use config::domain::{EndpointConfig, GuestVif, Offloads, TapQueues};
use nic::Nic;
use nic_linux::TapNic;
use runtime::device::{attach_if_present, pcap, removal_handler};
use runtime::platform::Platform;
use runtime::start::StartError;
use shmem::Area;
use stack::StackEndpoint;
use std::rc::Rc;
use vhost_edge::Offer;

/// Opens the endpoint that `config` describes, once per queue of its interface. `file` is the
/// memory of its file, if it has one.
///
/// If the interface has several queues, a TAP has the same number, and the kernel selects one for
/// each flow. Each queue has a separate sink or echo. A virtual machine's queue pairs are
/// distributed over the queues. A station sends each flow through one queue. A source and a capture
/// file send all frames through one queue.
///
/// # Errors
/// Returns an error if its device was rejected or is invalid.
pub fn endpoints(
    platform: &Rc<dyn Platform>,
    config: &GuestVif,
    file: Option<Area>,
) -> Result<Vec<Box<dyn Nic>>, StartError> {
    let mtu = config.mtu as usize;
    let checksum = config.offloads >= Offloads::Checksum;
    let tso = config.offloads >= Offloads::Tso;
    let queues = config.conns.len();
    let shared = |device: Box<dyn Nic>, yields| match queues {
        1 => vec![device],
        _ => boxed(SharedDevice::split(device, queues, yields)),
    };
    Ok(match &config.endpoint {
        EndpointConfig::Tap(TapQueues { devices }) => devices
            .iter()
            .map(|&device| {
                let fd = attach_if_present(&**platform, device)?;
                let tap = TapNic::new(fd, true, checksum, tso, mtu);
                let tap = tap.on_removed(removal_handler(platform, vec![device]));
                Ok(Box::new(tap) as Box<dyn Nic>)
            })
            .collect::<Result<_, StartError>>()?,
        EndpointConfig::Stack { station } => {
            let mut station = StackEndpoint::with_offloads(config.mac, mtu, station, checksum, tso);
            if let Some(file) = file {
                station = station.with_file(file).map_err(|_| {
                    StartError::BadStartInfo("the pages of a file are inaccessible")
                })?;
            }
            match queues {
                1 => vec![Box::new(station)],
                _ => boxed(station.into_queues(queues)),
            }
        }
        EndpointConfig::Sink { touch } => boxed((0..queues).map(|_| Sink::new(*touch))),
        EndpointConfig::Source(of) => {
            let (rate, count) = (of.rate_pps, of.count);
            let source = FrameSource::new(
                config.mac, of.to.0, of.size, rate, of.window, count, of.touch,
            )
            .with_flows(of.flows);
            let queue = (source.flow() as usize).checked_rem(queues).unwrap_or(0);
            shared(Box::new(source), queue)
        }
        EndpointConfig::Echo {} => boxed((0..queues).map(|_| Echo::default())),
        EndpointConfig::Pcap(files) => shared(pcap(&**platform, *files)?, 0),
        EndpointConfig::VhostUser(machine) => {
            let offer = Offer {
                queue_pairs: machine.queue_pairs as u16,
                mac: config.mac,
                mtu: config.mtu as u16,
                checksum,
                tso,
                memory_max: machine.memory_max,
            };
            boxed(vhost_user::ports(
                platform,
                machine.device,
                machine.client,
                offer,
                queues,
            )?)
        }
    })
}

fn boxed<N: Nic + 'static>(devices: impl IntoIterator<Item = N>) -> Vec<Box<dyn Nic>> {
    let devices = devices.into_iter();
    devices.map(|device| Box::new(device) as _).collect()
}
