//! Compares the split ring with `virtio-queue`, rust-vmm's device side. Each device serves the same
//! driver in a separate memory. Both must read the same chains, write the same used rings and send
//! the same notifications.

use proptest::prelude::*;
use std::fs::File;
use std::os::fd::AsFd;
use vhost_edge::memory::{RegionDescription, VmMemory};
use vhost_edge::queue::{CopyDirection, DescriptorChain, RingAddresses, SplitRing};
use vhost_edge::testing::front::{GPA, RING_BYTES, UVA};
use vhost_edge::testing::{FrontEnd, ProcessSystem};
use virtio_queue::{Queue as OracleQueue, QueueT};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap};

/// Entries of the ring.
const SIZE: u16 = 16;
/// The transmit queue of the front end's first pair.
const RING: usize = 1;

#[derive(Clone, Debug)]
enum Op {
    /// The driver makes a chain of buffers of these lengths available.
    Post(Vec<usize>, bool),
    /// The device takes at most this number of chains, returns them and publishes.
    Serve(usize),
    /// The driver takes back the returned chains.
    Reap,
    /// The driver requests a notification after this many more chains, or no notification.
    Want(u16, bool),
    /// The device is about to sleep.
    Arm,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let lengths = prop::collection::vec(1..5000_usize, 1..5);
    let op = prop_oneof![
        6 => (lengths, any::<bool>()).prop_map(|(lengths, indirect)| Op::Post(lengths, indirect)),
        4 => (1..6_usize).prop_map(Op::Serve),
        3 => Just(Op::Reap),
        2 => (0..8_u16, any::<bool>()).prop_map(|(after, none)| Op::Want(after, none)),
        1 => Just(Op::Arm),
    ];
    prop::collection::vec(op, 1..150)
}

struct Both {
    fronts: [FrontEnd; 2],
    memory: VmMemory,
    queue: SplitRing,
    oracle_memory: GuestMemoryMmap,
    oracle: OracleQueue,
    event_idx: bool,
    has_published: bool,
    /// Whether the driver has disabled notifications; used without event indices.
    suppressed: bool,
    /// Keeps the mappings alive.
    _system: ProcessSystem,
}

impl Both {
    fn new(event_idx: bool) -> Self {
        let fronts = [0, 1].map(|_| FrontEnd::new(1, SIZE).0);
        let at = |offset: usize| (RING * RING_BYTES + offset) as u64;
        let driver = &fronts[0].rings[RING].ring;
        let (avail, used) = (at(driver.avail_at()), at(driver.used_at()));

        let mut memory = VmMemory::new(1 << 30);
        let [gpa, bytes, uva, offset] = fronts[0].region();
        let region = RegionDescription {
            gpa,
            bytes,
            uva,
            offset,
        };
        let mut system = ProcessSystem::default();
        memory
            .add(region, fronts[0].file.as_fd(), &mut system)
            .unwrap();
        let addresses = RingAddresses {
            table: UVA + at(0),
            avail: UVA + avail,
            used: UVA + used,
            log: None,
        };
        let queue = SplitRing::new(&memory, &addresses, SIZE, event_idx, 0).unwrap();

        let file = File::from(fronts[1].file.try_clone().unwrap());
        let range = (
            GuestAddress(GPA),
            bytes as usize,
            Some(FileOffset::new(file, 0)),
        );
        let oracle_memory = GuestMemoryMmap::from_ranges_with_files([range]).unwrap();
        let mut oracle = OracleQueue::new(SIZE).unwrap();
        oracle.set_size(SIZE);
        let halves = |address: u64| (Some(address as u32), Some((address >> 32) as u32));
        let (low, high) = halves(GPA + at(0));
        oracle.set_desc_table_address(low, high);
        let (low, high) = halves(GPA + avail);
        oracle.set_avail_ring_address(low, high);
        let (low, high) = halves(GPA + used);
        oracle.set_used_ring_address(low, high);
        oracle.set_event_idx(event_idx);
        oracle.set_ready(true);
        assert!(oracle.is_valid(&oracle_memory));
        Self {
            fronts,
            memory,
            queue,
            oracle_memory,
            oracle,
            event_idx,
            has_published: false,
            suppressed: false,
            _system: system,
        }
    }

    /// Serves one chain on both sides. Returns false if the rings have none.
    fn serve(&mut self, chain: &mut DescriptorChain) -> bool {
        let taken = self
            .queue
            .take(&self.memory, CopyDirection::Read, chain)
            .unwrap();
        let expected = self.oracle.pop_descriptor_chain(&self.oracle_memory);
        assert_eq!(taken.is_some(), expected.is_some());
        let (Some(taken), Some(expected)) = (taken, expected) else {
            return false;
        };
        taken.unwrap();
        let head = expected.head_index();
        assert_eq!(chain.head(), head);
        let buffers: Vec<(u64, usize)> = expected
            .map(|entry| (entry.addr().0, entry.len() as usize))
            .collect();
        let segments = chain.segments().iter();
        let ours: Vec<_> = segments
            .map(|segment| (segment.gpa, segment.span.len()))
            .collect();
        assert_eq!(ours, buffers);
        let bytes = u32::from(head) * 7;
        self.queue.put(&self.memory, head, bytes).unwrap();
        self.oracle
            .add_used(&self.oracle_memory, head, bytes)
            .unwrap();
        true
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Post(lengths, indirect) => {
                for front in &mut self.fronts {
                    front.post(RING, &lengths, indirect, &[]);
                }
            }
            Op::Serve(most) => {
                let mut chain = DescriptorChain::default();
                let served = (0..most).take_while(|_| self.serve(&mut chain)).count();
                if served > 0 {
                    let notifies = self.queue.publish(&self.memory).unwrap();
                    let expected = self.oracle.needs_notification(&self.oracle_memory).unwrap();
                    let first = !std::mem::replace(&mut self.has_published, true);
                    match self.event_idx {
                        // After a start the device sends one unnecessary notification.
                        true if first => assert!(notifies),
                        true => assert_eq!(notifies, expected),
                        // The oracle ignores the driver's flag.
                        false => assert_eq!(notifies, expected && !self.suppressed),
                    }
                }
            }
            Op::Reap => {
                for front in &mut self.fronts {
                    let ring = &mut front.rings[RING];
                    while ring.ring.returned().is_some() {
                        let chain = ring.chains.pop_front().unwrap();
                        ring.release(&chain);
                    }
                }
            }
            Op::Want(after, none) => {
                self.suppressed = none;
                for front in &self.fronts {
                    let ring = &front.rings[RING].ring;
                    match self.event_idx {
                        true => ring.set_used_event(ring.used.wrapping_add(after)),
                        false => ring.set_flags(u16::from(none)),
                    }
                }
            }
            Op::Arm => {
                let count = self.queue.count().unwrap();
                self.queue.arm(&self.memory).unwrap();
                let more = self
                    .oracle
                    .enable_notification(&self.oracle_memory)
                    .unwrap();
                assert_eq!(count > 0, more);
            }
        }
        let [ours, expected] = self.fronts.each_ref().map(|front| {
            let ring = &front.rings[RING].ring;
            let mut bytes = vec![0; 4 + 8 * usize::from(SIZE)];
            front
                .at(RING * RING_BYTES + ring.used_at(), bytes.len())
                .read(&mut bytes)
                .unwrap();
            bytes
        });
        assert_eq!(ours, expected, "the used rings");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn both_devices_serve_a_driver_identically(ops in ops(), event_idx: bool) {
        let mut both = Both::new(event_idx);
        for op in ops {
            both.apply(op);
        }
    }
}
