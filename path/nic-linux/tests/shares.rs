//! Tests how the kernel distributes flows to the shared queues of a TAP. Without root or a TAP
//! driver, every test is skipped and logs why.
#![allow(clippy::unwrap_used, unsafe_code, dead_code)]

mod common;

use common::{Sender, open};
use netdev::TapSpec;
use netdev::netns::Namespace;
use nic::{Frame, Nic, Pool};
use nic_linux::TapNic;
use shmem::Area;
use std::collections::BTreeSet;
use std::time::Instant;
use testing::TIMEOUT;

const OURS: [u8; 6] = [2, 0, 0, 0, 0, 0xaa];
const THEIRS: [u8; 6] = [2, 0, 0, 0, 0, 0xbb];

/// A TAP's queues, and the pool of their receive buffers.
struct Queues {
    nics: Vec<TapNic>,
    namespace: Namespace,
    pool: Pool,
}

fn queues(count: u32) -> Option<Queues> {
    let (namespace, opened) = open(TapSpec {
        mac: Some(THEIRS),
        shares: count - 1,
        ..TapSpec::default()
    })?;
    assert!(opened.queues.is_empty() && opened.steering.is_none());
    let fds = std::iter::once(opened.shared).chain(opened.shares);
    let nics = fds.map(|fd| TapNic::new(fd, false, false, false, 1500));
    Some(Queues {
        nics: nics.collect(),
        namespace,
        pool: Pool::new(Area::anonymous(256 * 2048).unwrap(), 2048),
    })
}

/// Returns a frame with a numbered UDP datagram between two ports.
fn datagram(macs: [[u8; 6]; 2], last: [u8; 2], ports: [u16; 2], number: u32) -> Vec<u8> {
    let mut frame = [macs[1], macs[0]].concat();
    frame.extend([8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0]);
    frame.extend([10, 9, 0, last[0], 10, 9, 0, last[1]]);
    frame.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
    frame.extend([0, 26, 0, 0]);
    frame.extend(number.to_be_bytes());
    frame.resize(60, 0);
    frame
}

fn from_wire(flow: u16, number: u32) -> Vec<u8> {
    datagram([THEIRS, OURS], [1, 2], [40_000 + flow, 5001], number)
}

fn to_wire(flow: u16) -> Vec<u8> {
    datagram([OURS, THEIRS], [2, 1], [5001, 40_000 + flow], 0)
}

impl Queues {
    /// Receives the next `count` datagrams, and returns the queue, flow and number of each.
    fn collect(&mut self, count: usize) -> Vec<(usize, u16, u32)> {
        let mut found = Vec::new();
        let until = Instant::now() + TIMEOUT;
        while found.len() < count && Instant::now() < until {
            for (queue, nic) in self.nics.iter_mut().enumerate() {
                let mut frames = Vec::new();
                nic.rx(0, 64, &mut self.pool, &mut frames);
                for mut frame in frames {
                    let bytes = frame.to_vec().unwrap();
                    // The kernel's stack also sends frames occasionally.
                    if bytes[..6] == OURS {
                        let flow = u16::from_be_bytes([bytes[34], bytes[35]]) - 40_000;
                        let number = bytes[42..46].try_into().unwrap();
                        found.push((queue, flow, u32::from_be_bytes(number)));
                    }
                    frame.recycle(&mut self.pool);
                }
            }
        }
        found
    }

    fn send(&mut self, queue: usize, bytes: &[u8]) {
        let mut frame = Frame::from_bytes(bytes, &mut self.pool).unwrap();
        let report = self.nics[queue].tx(0, std::slice::from_ref(&frame), &[0]);
        assert_eq!(report.sent, 1, "{report:?}");
        frame.recycle(&mut self.pool);
    }
}

#[test]
fn flows_use_all_queues_and_stay_in_order() {
    const FLOWS: u16 = 40;
    let Some(mut queues) = queues(4) else { return };
    let sender = Sender::new(&queues.namespace);
    for number in 0..20 {
        for flow in 0..FLOWS {
            sender.send(&from_wire(flow, number));
        }
    }
    let found = queues.collect(usize::from(FLOWS) * 20);
    let mut used = BTreeSet::new();
    for flow in 0..FLOWS {
        let of_flow = found.iter().filter(|(_, other, _)| *other == flow);
        let numbers: Vec<_> = of_flow.clone().map(|(_, _, number)| *number).collect();
        assert!(numbers.iter().copied().eq(0..20), "{flow}: {numbers:?}");
        let by: BTreeSet<_> = of_flow.map(|(queue, ..)| *queue).collect();
        assert_eq!(by.len(), 1, "flow {flow} uses the queues {by:?}");
        used.extend(by);
    }
    assert_eq!(used, (0..4).collect(), "a queue has no flow");
}

#[test]
fn both_directions_of_a_flow_use_one_queue() {
    let Some(mut queues) = queues(3) else { return };
    let sender = Sender::new(&queues.namespace);
    for flow in 0..9 {
        let queue = usize::from(flow) % 3;
        queues.send(queue, &to_wire(flow));
        for number in 0..4 {
            sender.send(&from_wire(flow, number));
        }
        let found = queues.collect(4);
        let all: Vec<_> = (0..4).map(|number| (queue, flow, number)).collect();
        assert_eq!(found, all);
    }
}
