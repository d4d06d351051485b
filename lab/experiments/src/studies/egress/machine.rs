//! A machine with limited guests, and windows of traffic to them.

use crate::lane::running::Running;
use crate::load::{Load, LoadRole, LoadSpec, Mark};
use crate::ns::NamedNamespace;
use crate::plan::Times;
use figures::interrupt;
use figures::measure::HostCpuTimes;
use serde::Deserialize;
use serde_json::Value;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

/// Interface name at every place.
const IFNAME: &str = "gw0";
/// First port of the loads.
const PORT: u16 = 7200;
/// Number of bytes that a paced stream writes at a time: two full segments, about as many as leave
/// the queue of a guest with a limit of 100 Mbit/s at a time.
const PACED_BYTES: usize = 2 * 1448;
/// Interval at which the age of a queue is read.
const QUEUE_INTERVAL: Duration = Duration::from_millis(100);

/// A sender of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) enum Sender {
    /// A socket behind a wire.
    Wire,
    /// A socket of this system, behind a NIC of kind `local`.
    Host,
    /// A guest without a limit.
    Guest,
}

impl Sender {
    const ALL: [Self; 3] = [Self::Wire, Self::Host, Self::Guest];

    /// Returns its part of the configuration, without the place of its interface.
    const fn keys(self) -> &'static str {
        match self {
            Self::Wire => "[[nic]]\nname = \"wire\"\nkind = \"tap\"\n",
            Self::Host => "[[nic]]\nname = \"host\"\nkind = \"local\"\n",
            Self::Guest => "[[guest]]\nname = \"sender\"\n[[guest.vif]]\nendpoint = \"tap\"\n",
        }
    }
}

/// A namespace with the address of its interface.
struct EgressPlace {
    namespace: NamedNamespace,
    address: IpAddr,
}

impl EgressPlace {
    fn new(number: usize) -> anyhow::Result<Self> {
        let number = u8::try_from(number + 1)?;
        Ok(Self {
            namespace: NamedNamespace::new("place of a machine with limits")?,
            address: IpAddr::V4(Ipv4Addr::new(10, 77, 0, number)),
        })
    }

    /// Returns the keys of the interface.
    fn keys(&self) -> String {
        let (address, netns) = (self.address, self.namespace.path());
        let netns = netns.display();
        format!("ifname = \"{IFNAME}\"\nnetns = \"{netns}\"\naddresses = [\"{address}/24\"]\n")
    }
}

/// Streams to a limited guest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LimitedStreams {
    pub(super) from: Sender,
    /// The limit of the guest that receives them.
    pub(super) mbps: u32,
    pub(super) flows: usize,
    /// The share of the limit that they send; `None`: as much as TCP allows.
    pub(super) share: Option<f64>,
}

impl LimitedStreams {
    /// Returns the sum of the rates of paced streams.
    fn bytes_per_s(self) -> Option<u64> {
        let of_limit = |share: f64| (share * f64::from(self.mbps) * 1e6 / 8.0) as u64;
        self.share.map(of_limit)
    }
}

/// Result of a window.
#[derive(Debug)]
pub(super) struct EgressWindow {
    /// Counters of the receiver of the streams.
    pub(super) streamed: Option<Mark>,
    /// Counters of the client of the requests.
    pub(super) requested: Option<Mark>,
    /// Mean age of the oldest frame in the queue towards the limited guest, milliseconds.
    pub(super) queue_ms: f64,
    /// True if CPU time was stolen.
    pub(super) disturbed: bool,
}

/// A running machine with senders, limited guests, and a guest without a limit.
pub(super) struct EgressMachine {
    machine: Running,
    senders: [EgressPlace; Sender::ALL.len()],
    /// The guest that answers requests.
    answering: EgressPlace,
    limited: Vec<(u32, EgressPlace)>,
    next_port: u16,
}

/// The receiver or server of a load, and its sender or client.
type LoadPair = [Load; 2];

impl EgressMachine {
    /// Starts the machine, with a guest for each of these limits.
    ///
    /// # Errors
    /// Returns an error if namespaces cannot be created, or the machine does not start.
    pub(super) fn start(limits: &[u32]) -> anyhow::Result<Self> {
        let senders = [
            EgressPlace::new(0)?,
            EgressPlace::new(1)?,
            EgressPlace::new(2)?,
        ];
        let answering = EgressPlace::new(senders.len())?;
        let places = (senders.len() + 1..).zip(limits);
        let limited = places.map(|(number, &mbps)| Ok((mbps, EgressPlace::new(number)?)));
        let limited: Vec<_> = limited.collect::<anyhow::Result<_>>()?;
        let mut text = "[driver]\n".to_owned();
        for (sender, place) in Sender::ALL.iter().zip(&senders) {
            text += &(sender.keys().to_owned() + &place.keys());
        }
        text += &guest("answering", &answering);
        for (mbps, place) in &limited {
            text += &guest(&limited_name(*mbps), place);
            writeln!(text, "rate_to_guest_mbps = {mbps}")?;
        }
        Ok(Self {
            machine: Running::start_live("egress", text)?,
            senders,
            answering,
            limited,
            next_port: PORT,
        })
    }

    /// Stops the machine.
    ///
    /// # Errors
    /// Returns an error if it does not stop in time.
    pub(super) fn end(self) -> anyhow::Result<()> {
        self.machine.down()
    }

    /// Measures a window with these streams, and requests of `request` bytes from the wire to the
    /// guest without a limit.
    ///
    /// # Errors
    /// Returns an error if a load does not start, or no guest has the limit.
    pub(super) fn window(
        &mut self,
        streams: Option<LimitedStreams>,
        request: Option<usize>,
        times: Times,
    ) -> anyhow::Result<EgressWindow> {
        let mut streaming = streams.map(|it| self.streams(it)).transpose()?;
        let mut requesting = request.map(|size| self.requests(size)).transpose()?;
        for load in pairs(&mut streaming, &mut requesting).flatten() {
            load.go()?;
        }
        interrupt::sleep(times.warm_up)?;
        for load in pairs(&mut streaming, &mut requesting).flatten() {
            load.mark()?;
        }
        let (before, began) = (HostCpuTimes::read(), Instant::now());
        let mut ages = Vec::new();
        while began.elapsed() < times.window {
            let left = times.window.saturating_sub(began.elapsed());
            interrupt::sleep(left.min(QUEUE_INTERVAL))?;
            if let Some(LimitedStreams { mbps, .. }) = streams {
                ages.push(self.queue_age_ms(mbps)?);
            }
        }
        let [received, _] = marks(&mut streaming)?;
        let [_, answered] = marks(&mut requesting)?;
        Ok(EgressWindow {
            streamed: received,
            requested: answered,
            queue_ms: ages.iter().sum::<f64>() / ages.len().max(1) as f64,
            disturbed: HostCpuTimes::read().disturbed_since(before),
        })
    }

    fn streams(&mut self, streams: LimitedStreams) -> anyhow::Result<LoadPair> {
        let mut limited = self.limited.iter();
        let found = limited.find(|(mbps, _)| *mbps == streams.mbps);
        let Some((_, to)) = found else {
            anyhow::bail!("no guest has a limit of {} Mbit/s", streams.mbps);
        };
        let spec = LoadSpec {
            flows: streams.flows,
            bytes_per_s: streams.bytes_per_s(),
            ..spec(LoadRole::Sink, to, self.next_port)
        };
        let mut pair = start(spec, LoadRole::Source, self.sender(streams.from))?;
        if let (Some(_), [_, source]) = (streams.share, &mut pair) {
            source.set_send_size(PACED_BYTES)?;
        }
        // Packets of an earlier window must not reach the sockets of a later one.
        self.next_port = self.next_port.wrapping_add(1).max(PORT);
        Ok(pair)
    }

    fn requests(&mut self, size: usize) -> anyhow::Result<LoadPair> {
        let spec = LoadSpec {
            size,
            ..spec(LoadRole::Echo, &self.answering, self.next_port)
        };
        self.next_port = self.next_port.wrapping_add(1).max(PORT);
        start(spec, LoadRole::Client, self.sender(Sender::Wire))
    }

    fn sender(&self, sender: Sender) -> &EgressPlace {
        let [wire, host, guest] = &self.senders;
        match sender {
            Sender::Wire => wire,
            Sender::Host => host,
            Sender::Guest => guest,
        }
    }

    /// Returns the age of the oldest frame in the queue towards a limited guest, milliseconds.
    fn queue_age_ms(&self, mbps: u32) -> anyhow::Result<f64> {
        let stat = self.machine.stat("driver")?;
        let path = format!("/ports/vif.{}-0/egress_queue/oldest_ns", limited_name(mbps));
        let oldest_ns = stat.pointer(&path).and_then(Value::as_f64);
        match oldest_ns {
            Some(ns) => Ok(ns / 1e6),
            None => anyhow::bail!("the driver domain reports no {path}"),
        }
    }
}

fn limited_name(mbps: u32) -> String {
    format!("limited{mbps}")
}

fn guest(name: &str, place: &EgressPlace) -> String {
    let keys = place.keys();
    format!("[[guest]]\nname = \"{name}\"\n[[guest.vif]]\nendpoint = \"tap\"\n{keys}")
}

fn spec(role: LoadRole, place: &EgressPlace, port: u16) -> LoadSpec {
    LoadSpec {
        role,
        netns: Some(place.namespace.path()),
        cpu: None,
        address: SocketAddr::new(place.address, port),
        size: 0,
        flows: 1,
        bytes_per_s: None,
    }
}

/// Starts a server with this specification, and its client in another place.
fn start(server: LoadSpec, client: LoadRole, from: &EgressPlace) -> anyhow::Result<LoadPair> {
    let client = LoadSpec {
        role: client,
        netns: Some(from.namespace.path()),
        ..server.clone()
    };
    Ok([Load::start(&server)?, Load::start(&client)?])
}

/// Returns all loads, each server before its client.
fn pairs<'a>(
    streaming: &'a mut Option<LoadPair>,
    requesting: &'a mut Option<LoadPair>,
) -> impl Iterator<Item = &'a mut LoadPair> {
    streaming.iter_mut().chain(requesting)
}

/// Returns the counters of both ends.
fn marks(pair: &mut Option<LoadPair>) -> anyhow::Result<[Option<Mark>; 2]> {
    Ok(match pair {
        Some([server, client]) => [Some(server.mark()?), Some(client.mark()?)],
        None => [None, None],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paced_streams_send_a_share_of_the_limit() {
        let streams = LimitedStreams {
            from: Sender::Wire,
            mbps: 100,
            flows: 8,
            share: Some(0.5),
        };
        assert_eq!(streams.bytes_per_s(), Some(6_250_000));
        let unpaced = LimitedStreams {
            share: None,
            ..streams
        };
        assert_eq!(unpaced.bytes_per_s(), None);
    }
}
