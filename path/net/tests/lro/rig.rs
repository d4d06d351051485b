//! Runs frames through an engine.

use crate::common::frame_of;
use crate::packets::Tcp;
use net::lro::{Lro, Settings};
use net::packet::checksum::finish;
use net::packet::segment::segment;
use net::packet::{Network, Packet, Transport};
use nic::{Caps, Frame};
use std::collections::BTreeMap;

/// The capabilities of a wire: no offloads.
pub(crate) const WIRE: Caps = Caps {
    checksum: false,
    tso: false,
    max_frame: 65_535 + 18,
};

/// Limits set only by IP.
pub(crate) fn wide() -> Settings {
    Settings {
        bytes: 65_535 + 14 + 8,
        ..Settings::default()
    }
}

/// Runs one poll with all frames, then drains the engine.
pub(crate) fn run(settings: Settings, mut frames: Vec<Frame>) -> (Vec<Frame>, Lro) {
    let mut lro = Lro::new(settings, 7);
    let mut out = Vec::new();
    lro.poll(1000, &mut frames, &mut out);
    assert!(frames.is_empty());
    lro.drain(2000, &mut out);
    assert_eq!((lro.held(), lro.next_due()), (0, None));
    (out, lro)
}

/// Returns the payload bytes of each TCP packet.
pub(crate) fn payloads(frames: &[Frame]) -> Vec<usize> {
    frames.iter().filter_map(payload_of).collect()
}

/// Returns the payload bytes of a TCP packet, as its IP header claims.
pub(crate) fn payload_of(frame: &Frame) -> Option<usize> {
    let bytes = frame.to_vec().unwrap();
    let packet = Packet::parse(&bytes).ok()?;
    let Ok(Transport::Tcp(tcp)) = packet.transport(&bytes) else {
        return None;
    };
    let end = match packet.network {
        Network::Ipv4(ip) => packet.network_at + ip.total_len,
        Network::Ipv6(ip) => packet.network_at + 40 + ip.payload_len,
        _ => return None,
    };
    Some(end - tcp.payload_at)
}

/// Returns the payload sizes after one poll.
pub(crate) fn geometry(settings: Settings, packets: &[Tcp]) -> Vec<usize> {
    geometry_of(
        settings,
        &packets.iter().map(Tcp::bytes).collect::<Vec<_>>(),
    )
}

/// Returns the payload sizes after one poll; checks that the output equals the input.
pub(crate) fn geometry_of(settings: Settings, packets: &[Vec<u8>]) -> Vec<usize> {
    let frames = packets.iter().map(|bytes| frame_of(bytes, &[])).collect();
    let (out, lro) = run(settings, frames);
    assert_eq!(by_flow(packets), by_flow(&wire(&out)));
    let counters = lro.counters();
    assert_eq!(counters.segments, counters.aggregates + counters.merged);
    payloads(&out)
}

/// Returns the frames as a wire receives them: segmented, with computed checksums.
pub(crate) fn wire(frames: &[Frame]) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    for frame in frames {
        if frame.offload.gso.is_some() {
            let mut segments = Vec::new();
            segment(frame, WIRE, &mut segments).expect("an aggregate can be cut");
            packets.extend(segments.iter().map(|segment| segment.to_vec().unwrap()));
        } else {
            let mut frame = frame.clone();
            finish(&mut frame).unwrap();
            packets.push(frame.to_vec().unwrap());
        }
    }
    packets
}

/// Returns MACs, tags and addresses, which fragments also have. Tests that check order use one flow
/// per pair of addresses.
fn flow(bytes: &[u8]) -> Vec<u8> {
    let mut key = bytes.iter().take(12).copied().collect::<Vec<_>>();
    let Ok(packet) = Packet::parse(bytes) else {
        return key;
    };
    key.extend(bytes.get(12..packet.network_at).unwrap_or(&[]));
    match packet.network {
        Network::Ipv4(ip) => {
            key.extend(ip.source.octets());
            key.extend(ip.destination.octets());
        }
        Network::Ipv6(ip) => {
            key.extend(ip.source.octets());
            key.extend(ip.destination.octets());
        }
        _ => {}
    }
    key
}

/// Returns every flow's packets, in order.
pub(crate) fn by_flow(packets: &[Vec<u8>]) -> BTreeMap<Vec<u8>, Vec<Vec<u8>>> {
    let mut flows: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for bytes in packets {
        flows.entry(flow(bytes)).or_default().push(bytes.clone());
    }
    flows
}
