//! From a configuration to endpoints.

use crate::endpoint::{Echo, Shared, Sink, Source};
use config::domain::{EndpointConfig, GuestVif, Offloads};
use nic::Nic;
use nic_linux::TapNic;
use runtime::device::{attach_if_there, give_up, pcap};
use runtime::platform::Platform;
use runtime::start::StartError;
use shmem::Area;
use stack::StackEndpoint;
use std::rc::Rc;

/// The endpoint that `config` describes, whose file lies in `file` if it has one, once for each
/// queue of its interface.
///
/// A TAP has a queue for each, and the kernel chooses by flow. A sink and an echo are there once
/// for each. A station's frames go by the queue of their flow. A source and a capture file yield
/// one row of frames, to one queue.
///
/// # Errors
/// Its device was refused, or is not what it should be.
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
        _ => boxed(Shared::spread(device, queues, yields)),
    };
    Ok(match &config.endpoint {
        EndpointConfig::Tap { devices } => devices
            .iter()
            .map(|&device| {
                let fd = attach_if_there(&**platform, device)?;
                let tap = TapNic::new(fd, true, checksum, tso, mtu);
                let tap = tap.on_removed(give_up(platform, vec![device]));
                Ok(Box::new(tap) as Box<dyn Nic>)
            })
            .collect::<Result<_, StartError>>()?,
        EndpointConfig::Stack { stack } => {
            let mut station = StackEndpoint::with_offloads(config.mac, mtu, stack, checksum, tso);
            if let Some(file) = file {
                station = station
                    .with_file(file)
                    .map_err(|_| StartError::Damaged("a file's pages are not there"))?;
            }
            match queues {
                1 => vec![Box::new(station)],
                _ => boxed(station.spread(queues)),
            }
        }
        EndpointConfig::Sink { touch } => boxed((0..queues).map(|_| Sink::new(*touch))),
        EndpointConfig::Source {
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
        EndpointConfig::Echo {} => boxed((0..queues).map(|_| Echo::default())),
        EndpointConfig::Pcap(files) => shared(pcap(&**platform, *files)?, 0),
    })
}

fn boxed<N: Nic + 'static>(devices: impl IntoIterator<Item = N>) -> Vec<Box<dyn Nic>> {
    let devices = devices.into_iter();
    devices.map(|device| Box::new(device) as _).collect()
}
