//! Delivery from a queue whose device is the test, which writes completions by hand.

use super::*;
use crate::dedicated::testing::{GUEST, QueueRig, STATION};
use crate::ports::BridgePort;
use crate::testing::{frame, mac};
use config::domain::LroConfig;
use config::lro::Placement;
use nic::moderation::Wake;

fn udp(to: [u8; 6], len: usize, number: u64) -> Vec<u8> {
    with_protocol(frame(to, STATION, len, number), 17)
}

fn with_protocol(mut bytes: Vec<u8>, protocol: u8) -> Vec<u8> {
    bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
    bytes[23] = protocol;
    bytes
}

/// Both paths deliver the guest's frames, return the buffers of all others, and count them in the
/// same way; a frame of another guest is not delivered to anyone.
#[test]
fn fast_path_delivers_what_the_slow_path_delivers() {
    let [fast, slow] = [true, false].map(|is_fast| {
        let mut rig = QueueRig::new(&LroConfig::default());
        if !is_fast {
            rig.machine.switch.trace.request();
        }
        let nic = rig.machine.wire;
        assert_eq!(
            SmallFrames::may_take_fast_path(&rig.machine.switch, nic),
            is_fast
        );
        rig.arrive(&[
            udp(mac(GUEST), 60, 1),
            udp(mac(0), 60, 2),
            udp(mac(GUEST), 1514, 3),
            udp([0xff; 6], 60, 4),
            udp(mac(GUEST), 24, 5),
            udp([2, 0, 0, 0, 7, 7], 500, 6),
        ]);
        assert_eq!(rig.serve(64), 6);
        let received = rig.machine.received(GUEST);
        assert_eq!(received.len(), 3);
        for other in [0, 2] {
            assert!(rig.machine.received(other).is_empty());
        }
        let port = rig.machine.port(GUEST);
        let counters = (
            port.counters(),
            port.traffic.out_packets,
            port.traffic.out_bytes,
        );
        (received, counters, rig.receiver.in_place.stat())
    });
    assert_eq!(fast, slow);
    assert_eq!(fast.2["misdirected"], 2);
}

/// Segments that large receive offload could merge take the slow path, and no frame overtakes
/// another.
#[test]
fn mergeable_segments_take_the_slow_path() {
    let lro = LroConfig {
        at: Placement::Physical,
        ..LroConfig::default()
    };
    let mut rig = QueueRig::new(&lro);
    let tcp = |number| with_protocol(frame(mac(GUEST), STATION, 100, number), 6);
    let sent = [
        udp(mac(GUEST), 60, 1),
        tcp(2),
        tcp(3),
        udp(mac(GUEST), 60, 4),
    ];
    rig.arrive(&sent);
    let nic = rig.machine.wire;
    let has_more = |rig: &QueueRig| match rig.machine.switch.ports.get(nic) {
        Some(BridgePort::Nic(nic)) => nic.wake(0) == Wake::Now,
        _ => false,
    };
    assert_eq!(rig.serve(64), 1, "the first frame, on the fast path");
    assert!(has_more(&rig));
    assert_eq!(rig.serve(64), 3, "the rest, on the slow path");
    assert_eq!(rig.machine.received(GUEST), sent);
    let VifPort { queue, .. } = rig.machine.switch.ports.vif_mut(GUEST).unwrap();
    assert!(!queue.as_ref().unwrap().has_more());
}
