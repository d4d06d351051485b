//! Delivery from a queue whose device is the test, which writes completions by hand.

use super::*;
use crate::dedicated::DedicatedReceiver;
use crate::dedicated::device::GuestDeviceQueue;
use crate::ports::BridgePort;
use crate::testing::{Machine, frame, join_with, mac};
use abi::classic::GrantEntry;
use abi::{GrantStatus, Handle, PAGE};
use config::domain::{DeviceQueueConfig, LroConfig};
use config::lro::Placement;
use nic::dma::layout::{Descriptor, queue_bytes};
use nic::dma::{DeviceDoorbell, RemoteNic, RemoteSetup};
use nic::moderation::Wake;
use runtime::call::Calls;
use runtime::testing::FakeMonitor;
use shmem::{Area, Span};
use std::cell::RefCell;
use std::rc::Rc;
use vif::netif::Features;

const STATION: [u8; 6] = [2, 0, 0, 0, 9, 9];
const GUEST: usize = 1;
const SETUP: RemoteSetup = RemoteSetup {
    entries: 64,
    mtu: 1500,
    queues: 1,
    merges: false,
    splits: false,
};
const FIRST_SLOT: u32 = 900;
/// Places in the memory of a queue.
const COMPLETED: usize = 64;
const RAISED: usize = 384;

#[derive(Debug)]
struct Silent;

impl DeviceDoorbell for Silent {
    fn ring(&self) {}
}

/// A machine whose second guest has a device's queue.
struct Rig {
    machine: Machine,
    receiver: DedicatedReceiver,
    /// The memory of the queue.
    words: Span,
    completed: u32,
}

impl Rig {
    fn new(lro: &LroConfig) -> Self {
        let area = |bytes| Area::anonymous(bytes).unwrap();
        let (memory, call) = (area(SETUP.bytes()), area(2 * PAGE).span());
        let mut nic = RemoteNic::new(SETUP, memory, area(64 * PAGE)).unwrap();
        let end = nic.dedicated(1).unwrap();
        let config = DeviceQueueConfig {
            nic: 0,
            queue: 1,
            conn: 4,
            first_slot: FIRST_SLOT,
            buffers: 128,
        };
        let calls = Rc::new(RefCell::new(Calls::with_page(call)));
        let queue = GuestDeviceQueue::new(config, mac(GUEST), 1500, end, calls);
        let places = nic.lay_out().unwrap();
        nic.connect(Rc::new(Silent));

        let mut machine = Machine::new(3);
        let port = machine.switch.ports.vif_mut(GUEST).unwrap();
        port.queue = Some(DedicatedQueue::Device(Box::new(queue)));
        let features = Features::ALL.with(Features::RX_ANY_ORDER);
        machine.guests[GUEST] = join_with(port, GUEST, features);
        let (queue, netback) = port.dedicated().unwrap();
        queue.connected(Handle(3));
        let answering = FakeMonitor::start(call, |_, ops| {
            vec![(GrantStatus::Okay as i64, 0); ops.len()]
        });
        queue.post_to_device(netback);
        drop(answering);
        assert_eq!(netback.outstanding(), 64);
        let ports = InPlacePorts {
            nic: machine.wire,
            guest: GUEST,
        };
        machine.forward_from(ports.nic);
        let at = places.dedicated.bits() as usize;
        Self {
            receiver: DedicatedReceiver::new(ports, lro),
            machine,

            words: memory.at(at, queue_bytes(SETUP.entries)).unwrap(),
            completed: 0,
        }
    }

    /// Returns the buffer of a descriptor, in the guest's memory.
    fn buffer(&self, index: u32) -> Span {
        let mut words = [0; 8];
        self.words
            .read_words(PAGE + 32 * index as usize, &mut words)
            .unwrap();
        let address = Descriptor::decode(words).address.bits() as usize;
        let guest = &self.machine.guests[GUEST];
        let entry = address / PAGE - FIRST_SLOT as usize;
        let entry = GrantEntry(guest.table_span().load_u64(entry * 8).unwrap());
        let page = guest.memory().area().page(entry.frame()).unwrap();
        page.skip(address % PAGE)
    }

    /// The device receives frames.
    fn arrive(&mut self, frames: &[Vec<u8>]) {
        for bytes in frames {
            let index = self.completed;
            self.buffer(index).take(bytes.len()).write(bytes).unwrap();
            let at = queue_bytes(SETUP.entries) - PAGE + 16 * index as usize;
            let valid = 2;
            let completion = [index, bytes.len() as u32, valid, 0];
            self.words.write_words(at, &completion).unwrap();
            self.completed += 1;
        }
        self.words.store_u32(COMPLETED, self.completed).unwrap();
        self.words.store_u32(RAISED, self.completed).unwrap();
    }

    fn serve(&mut self, budget: usize) -> usize {
        let taken = self.receiver.serve(&mut self.machine.switch, 0, budget);
        self.machine.publish();
        taken
    }
}

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
        let mut rig = Rig::new(&LroConfig::default());
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
    let mut rig = Rig::new(&lro);
    let tcp = |number| with_protocol(frame(mac(GUEST), STATION, 100, number), 6);
    let sent = [
        udp(mac(GUEST), 60, 1),
        tcp(2),
        tcp(3),
        udp(mac(GUEST), 60, 4),
    ];
    rig.arrive(&sent);
    let nic = rig.machine.wire;
    let has_more = |rig: &Rig| match rig.machine.switch.ports.get(nic) {
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
