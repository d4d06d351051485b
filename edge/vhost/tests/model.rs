//! Compares a queue pair with a model of two queues of frames. Any sequence of operations delivers
//! every frame once, in order, and returns every chain and every buffer.

use nic::Notified;
use proptest::prelude::*;
use std::collections::VecDeque;
use vhost_edge::features::virtio::*;
use vhost_edge::testing::rig::offer;
use vhost_edge::testing::{Rig, Session};

/// A step of the test.
#[derive(Clone, Debug)]
enum Op {
    /// The driver sends a frame of this many bytes in buffers of these lengths, and one more buffer
    /// for the rest. The flag selects an indirect table.
    Send(usize, Vec<usize>, bool),
    /// The shim takes at most this number of frames.
    Rx(usize),
    /// The driver posts a chain of buffers of these lengths.
    Post(Vec<usize>, bool),
    /// The shim delivers a frame of this many bytes.
    Tx(usize),
    /// The driver takes back returned chains.
    Reap,
    /// The shim sleeps and wakes.
    Sleep,
    /// Another shim takes over.
    Restart,
    /// The front end stops a ring and starts it again, as for a reset of the driver.
    Stop(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let lengths = || prop::collection::vec(1..900_usize, 1..4);
    let op = prop_oneof![
        6 => (14..1514_usize, lengths(), any::<bool>()).prop_map(|(a, b, c)| Op::Send(a, b, c)),
        4 => (1..8_usize).prop_map(Op::Rx),
        6 => (lengths(), any::<bool>()).prop_map(|(lengths, indirect)| Op::Post(lengths, indirect)),
        5 => (14..1514_usize).prop_map(Op::Tx),
        4 => Just(Op::Reap),
        2 => Just(Op::Sleep),
        1 => Just(Op::Restart),
        1 => (0..2_usize).prop_map(Op::Stop),
    ];
    prop::collection::vec(op, 1..120)
}

/// The frames in flight in each direction, and the lengths of the receive chains that the device
/// has.
struct Model {
    rig: Rig,
    header: usize,
    mergeable: bool,
    next: u8,
    from_vm: VecDeque<Vec<u8>>,
    to_vm: VecDeque<Vec<u8>>,
    posted: VecDeque<usize>,
    /// Chains posted so far, and their number when the last frame lacked buffers.
    posts: usize,
    waits: Option<usize>,
}

impl Model {
    fn new(features: u64, fast: bool) -> Self {
        let mut rig = Rig::running(offer(1), 16, features);
        rig.fast = fast;
        Self {
            rig,
            header: if features & (MRG_RXBUF | VERSION_1) == 0 {
                10
            } else {
                12
            },
            mergeable: features & MRG_RXBUF != 0,
            next: 0,
            from_vm: VecDeque::new(),
            to_vm: VecDeque::new(),
            posted: VecDeque::new(),
            posts: 0,
            waits: None,
        }
    }

    fn frame(&mut self, len: usize) -> Vec<u8> {
        self.next = self.next.wrapping_add(1);
        (0..len)
            .map(|n| (n as u8).wrapping_mul(3) ^ self.next)
            .collect()
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Send(len, mut lengths, indirect) => {
                let frame = self.frame(len);
                let sent = [vec![0; self.header], frame.clone()].concat();
                // The buffers have exactly the size of the frame.
                let mut left = sent.len();
                for here in &mut lengths {
                    *here = (*here).min(left);
                    left -= *here;
                }
                lengths.push(left);
                lengths.retain(|len| *len > 0);
                if self.rig.front.post(1, &lengths, indirect, &sent).is_some() {
                    self.from_vm.push_back(frame);
                }
            }
            Op::Rx(budget) => {
                let mut frames = self.rig.rx(0, budget);
                assert_eq!(frames.len(), budget.min(self.from_vm.len()));
                for frame in &mut frames {
                    assert_eq!(Some(frame.to_vec().unwrap()), self.from_vm.pop_front());
                    frame.recycle(&mut self.rig.pool);
                }
            }
            Op::Post(lengths, indirect) => {
                if self.rig.front.post(0, &lengths, indirect, &[]).is_some() {
                    self.posted.push_back(lengths.iter().sum());
                    self.posts += 1;
                }
            }
            Op::Tx(len) => self.send(len),
            Op::Reap => self.reap(),
            Op::Sleep => {
                self.rig.ports[0].arm();
                let has_work = self.rig.ports[0].has_work();
                let posted = self.waits.is_some_and(|posted| posted != self.posts);
                assert_eq!(has_work, !self.from_vm.is_empty() || posted);
                self.rig.ports[0].disarm();
            }
            Op::Restart => {
                self.rig.restart();
                self.waits = None;
            }
            Op::Stop(ring) => {
                self.rig.words(11, [ring as u32, 0]);
                self.rig.start_ring(ring);
            }
        }
        assert!(!self.rig.front.is_closed());
        assert_eq!(self.rig.buffers_out(), 0);
        assert_eq!(self.rig.counter("vm_broken_rings"), 0);
    }

    /// A frame passes if it fits in the posted chains. Unless buffers are mergeable, a frame that
    /// does not fit in a single chain uses up that chain. A first chain without space for the
    /// header is lost, too.
    fn send(&mut self, len: usize) {
        let frame = self.frame(len);
        let report = self.rig.tx_bytes(0, &frame);
        self.waits = (report.waiting == 1).then_some(self.posts);
        let needed = self.header + len;
        let first = self.posted.front().copied().unwrap_or(0);
        let merges = self.mergeable && first >= self.header;
        let room: usize = match merges {
            true => self.posted.iter().sum(),
            false => first,
        };
        assert_eq!(report.sent == 1, room >= needed, "{len} into {room}");
        if report.sent == 0 {
            assert_eq!(report.waiting == 1, merges || self.posted.is_empty());
            if report.refused == 1 {
                // An empty frame represents the chain that is returned without bytes.
                self.posted.pop_front();
                self.to_vm.push_back(Vec::new());
            }
            return;
        }
        let mut left = needed;
        while left > 0 {
            left = left.saturating_sub(self.posted.pop_front().unwrap());
        }
        self.to_vm.push_back(frame);
    }

    fn reap(&mut self) {
        while self.rig.front.take_back(1).is_some() {}
        while let Some(received) = self.rig.front.received(0, self.header) {
            let frame = self.to_vm.pop_front().expect("a frame that was sent");
            match frame.is_empty() {
                true => assert!(received.is_empty()),
                false => assert_eq!(received[self.header..], frame),
            }
        }
        assert!(self.to_vm.is_empty(), "every frame is visible");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn every_frame_arrives_once_and_in_order(ops in ops(), choice in 0..16_u64, fast: bool) {
        let bits = [MRG_RXBUF, EVENT_IDX, VERSION_1, INDIRECT_DESC];
        let chosen = (0..bits.len()).filter(|bit| choice >> bit & 1 != 0);
        let mut model = Model::new(chosen.map(|bit| bits[bit]).sum::<u64>() | ANY_LAYOUT, fast);
        for op in ops {
            model.apply(op);
        }
        model.apply(Op::Rx(usize::MAX));
        model.reap();
    }
}
