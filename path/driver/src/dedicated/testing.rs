//! A machine whose second guest has a queue of a device. The device is the test, which writes
//! completions by hand.

use super::DedicatedReceiver;
use super::device::GuestDeviceQueue;
use super::queue::DedicatedQueue;
use crate::in_place::InPlacePorts;
use crate::testing::{Machine, join_with, mac};
use abi::classic::GrantEntry;
use abi::{GrantStatus, Handle, PAGE};
use config::domain::{DeviceQueueConfig, LroConfig};
use nic::dma::layout::{Descriptor, queue_bytes};
use nic::dma::{DeviceDoorbell, RemoteNic, RemoteSetup};
use runtime::call::Calls;
use runtime::testing::FakeMonitor;
use shmem::{Area, Span};
use std::cell::RefCell;
use std::rc::Rc;
use vif::netif::Features;

/// A station behind the wire.
pub(super) const STATION: [u8; 6] = [2, 0, 0, 0, 9, 9];
/// The guest with the queue.
pub(super) const GUEST: usize = 1;
/// The device: one dedicated queue of 64 entries.
pub(super) const SETUP: RemoteSetup = RemoteSetup {
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

/// A doorbell without an effect.
#[derive(Debug)]
pub(super) struct SilentBell;

impl DeviceDoorbell for SilentBell {
    fn ring(&self) {}
}

/// A machine whose second guest has a device's queue.
pub(super) struct QueueRig {
    pub(super) machine: Machine,
    pub(super) receiver: DedicatedReceiver,
    /// The memory of the queue.
    words: Span,
    completed: u32,
}

impl QueueRig {
    pub(super) fn new(lro: &LroConfig) -> Self {
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
        nic.connect(Rc::new(SilentBell));

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
    pub(super) fn arrive(&mut self, frames: &[Vec<u8>]) {
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

    pub(super) fn serve(&mut self, budget: usize) -> usize {
        self.serve_at(0, budget)
    }

    /// Runs a turn of the queue at `now_ns`.
    pub(super) fn serve_at(&mut self, now_ns: u64, budget: usize) -> usize {
        let switch = &mut self.machine.switch;
        self.receiver.flush_due(switch, now_ns);
        let taken = self.receiver.serve(switch, now_ns, budget);
        self.machine.publish();
        taken
    }
}
