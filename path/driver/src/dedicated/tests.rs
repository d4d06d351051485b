//! Tests of frames that large receive offload holds in a device's queue.

use super::testing::{GUEST, QueueRig, STATION};
use crate::testing::mac;
use config::domain::LroConfig;
use config::lro::FlushConfig;
use runtime::testing::{config, packet};
use vif::testing::packet as any_packet;

fn lro() -> LroConfig {
    config(FlushConfig::After(50))
}

/// Packets of a stream from the station to the guest.
fn stream(from: u32, count: u32) -> Vec<Vec<u8>> {
    let addressed = |n| {
        let mut bytes = packet(1, n);
        bytes[..6].copy_from_slice(&mac(GUEST));
        bytes[6..12].copy_from_slice(&STATION);
        bytes
    };
    (from..from + count).map(addressed).collect()
}

fn udp() -> Vec<u8> {
    let mut bytes = any_packet(60, 1);
    bytes[..6].copy_from_slice(&mac(GUEST));
    bytes[6..12].copy_from_slice(&STATION);
    bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
    bytes[23] = 17;
    bytes
}

/// Returns the lengths of the frames that the guest has received.
fn lengths(rig: &mut QueueRig) -> Vec<usize> {
    rig.machine.received(GUEST).iter().map(Vec::len).collect()
}

#[test]
fn frames_of_several_turns_merge_until_due() {
    let mut rig = QueueRig::new(&lro());
    for from in [0, 4] {
        rig.arrive(&stream(from, 4));
        assert_eq!(rig.serve_at(1, 64), 4);
    }
    // A frame of another protocol passes.
    rig.arrive(&[udp()]);
    assert_eq!(rig.serve_at(2, 64), 1);
    assert_eq!(lengths(&mut rig), [60]);
    let due = rig.receiver.due_ns().unwrap();
    assert!((49_000..=50_001).contains(&due), "{due}");
    rig.serve_at(due - 1, 64);
    assert!(lengths(&mut rig).is_empty());
    rig.serve_at(due, 64);
    assert_eq!(lengths(&mut rig), [54 + 8 * 1460]);
    assert_eq!(rig.receiver.due_ns(), None);
    let counters = rig.machine.port(GUEST).counters();
    assert_eq!((counters.to_guest, counters.to_guest_drops.total()), (2, 0));
}

/// Frames that arrive afterwards use the shared queue, and must not overtake held ones.
#[test]
fn end_of_the_queue_flushes_held_frames() {
    let mut rig = QueueRig::new(&lro());
    rig.arrive(&stream(0, 4));
    rig.serve_at(1, 64);
    let port = rig.machine.switch.ports.vif_mut(GUEST).unwrap();
    port.queue.as_mut().unwrap().end();
    rig.serve_at(2, 64);
    assert_eq!(lengths(&mut rig), [54 + 4 * 1460]);
}

#[test]
fn disconnected_guest_gets_no_held_frames() {
    let mut rig = QueueRig::new(&lro());
    rig.arrive(&stream(0, 4));
    rig.serve_at(1, 64);
    let port = rig.machine.switch.ports.vif_mut(GUEST).unwrap();
    port.disconnect().unwrap();
    rig.serve_at(2, 64);
    assert_eq!(rig.receiver.due_ns(), None);
    assert!(lengths(&mut rig).is_empty());
    assert_eq!(rig.machine.port(GUEST).counters().to_guest, 0);
}

#[test]
fn changed_settings_wake_the_driver() {
    let mut rig = QueueRig::new(&lro());
    rig.arrive(&stream(0, 4));
    rig.serve_at(1, 64);
    rig.receiver.lro.set(&config(FlushConfig::Poll));
    assert_eq!(rig.receiver.due_ns(), Some(0));
    rig.serve_at(2, 64);
    assert_eq!(lengths(&mut rig), [54 + 4 * 1460]);
}
