//! Tests two stations with pairwise connected queues in one thread with a virtual clock.

use super::*;
use crate::app::FIRST_PORT;
use crate::frame_queue::WAITING_MAX;
use config::domain::{StackApp, StackConfig};
use net::packet::flow::flow_hash;
use nic::{Offload, Pool};
use shmem::Area;
use std::collections::{BTreeMap, BTreeSet};

const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const QUEUES: usize = 3;
const STREAMS: u64 = 12;

struct Joined {
    ends: [Vec<StackQueue>; 2],
    pool: Pool,
    now_ns: u64,
    /// The queues that each flow has used, by flow number.
    ways: BTreeMap<u32, BTreeSet<usize>>,
}

fn station(n: usize, address: &str, apps: Vec<StackApp>) -> Vec<StackQueue> {
    let stack = StackConfig {
        addresses: vec![address.parse().unwrap()],
        gateway: None,
        apps,
    };
    let mut station = StackEndpoint::new(MACS[n], 1500, &stack);
    // The local ports determine the queues of the flows. They are set, because they are otherwise
    // random.
    station.next_port = FIRST_PORT;
    station.into_queues(QUEUES)
}

fn joined() -> Joined {
    let source = |_| StackApp::TcpSource {
        to: "10.0.0.2:9".parse().unwrap(),
        seconds: 1,
        after_s: 0,
        file_kb: None,
    };
    let sources = (0..STREAMS).map(source).collect();
    let sink = StackApp::TcpSink { port: 9 };
    Joined {
        ends: [
            station(0, "10.0.0.1/24", sources),
            station(1, "10.0.0.2/24", vec![sink]),
        ],
        pool: Pool::new(Area::anonymous(256 * 2048).unwrap(), 2048),
        now_ns: 1_000_000_000,
        ways: BTreeMap::new(),
    }
}

impl Joined {
    /// Advances the time by `seconds`. Only the queues in `open` are connected.
    fn run(&mut self, seconds: f64, open: &[usize]) {
        let end_ns = self.now_ns + (seconds * 1e9) as u64;
        while self.now_ns < end_ns {
            for (from, &queue) in [0, 1]
                .iter()
                .flat_map(|end| open.iter().map(move |q| (end, q)))
            {
                let mut frames = Vec::new();
                self.ends[*from][queue].rx(self.now_ns, 8, &mut self.pool, &mut frames);
                for frame in &frames {
                    let way = self.ways.entry(flow_hash(frame.header())).or_default();
                    way.insert(queue);
                }
                let pick: Vec<u32> = (0..frames.len() as u32).collect();
                self.ends[1 - from][queue].tx(self.now_ns, &frames, &pick);
                let pool = &mut self.pool;
                frames.iter_mut().for_each(|frame| frame.recycle(pool));
            }
            self.now_ns += 100_000;
        }
    }

    fn counter(&self, end: usize, name: &str) -> u64 {
        let counters = self.ends[end].iter().flat_map(Nic::counters);
        let found: Vec<_> = counters.filter(|(known, _)| *known == name).collect();
        assert_eq!(found.len(), 1, "{name} is counted once");
        found[0].1
    }

    fn sent(&self) -> u64 {
        let of = |n| self.counter(0, &format!("app.{n}.bytes"));
        (0..STREAMS).map(of).sum()
    }
}

#[test]
fn each_stream_uses_one_queue() {
    let mut joined = joined();
    // All queues are open, so that no frame is lost at a closed queue.
    for queue in joined.ends.iter_mut().flatten() {
        queue.shared.borrow_mut().tx_queues.open(queue.queue);
    }
    joined.run(4.0, &[0, 1, 2]);
    assert!(joined.sent() > 1_000_000);
    assert_eq!(joined.sent(), joined.counter(1, "app.0.bytes"));
    assert_eq!(joined.counter(0, "stack_queue_full"), 0);
    assert!(joined.ways.values().all(|ways| ways.len() == 1));
    let used: BTreeSet<_> = joined.ways.values().flatten().collect();
    assert_eq!(used.len(), QUEUES, "{:?}", joined.ways);
    assert_eq!(joined.pool.available(), 256);
}

#[test]
fn streams_of_a_closed_queue_move_to_others() {
    let mut joined = joined();
    joined.run(0.3, &[0, 1, 2]);
    let before = joined.sent();
    for end in 0..2 {
        let Joined { ends, pool, .. } = &mut joined;
        ends[end][1].release(pool);
    }
    joined.ways.clear();
    joined.run(10.0, &[0, 2]);
    assert!(joined.sent() > before);
    assert_eq!(joined.sent(), joined.counter(1, "app.0.bytes"));
    for n in 0..STREAMS {
        assert_eq!(joined.counter(0, &format!("app.{n}.done")), 1, "stream {n}");
    }
}

#[test]
fn stalled_queue_blocks_no_other() {
    let mut tx_queues = TxQueues::new(2);
    tx_queues.open(0);
    tx_queues.open(1);
    let frame = |n: u8| [&[2; 11][..], &[n, 0x88, 0xb5], &[0; 46]].concat();
    let queue_of = |n| flow_hash(&frame(n)) % 2;
    let (stuck, free) = (
        (0..99).find(|&n| queue_of(n) == 0).unwrap(),
        (0..99).find(|&n| queue_of(n) == 1).unwrap(),
    );
    for _ in 0..WAITING_MAX + 5 {
        tx_queues.put(&frame(stuck), Offload::default());
    }
    tx_queues.put(&frame(free), Offload::default());
    assert_eq!(tx_queues.full, 5);
    let mut pool = Pool::new(Area::anonymous(4096).unwrap(), 2048);
    let mut out = Vec::new();
    assert_eq!(tx_queues.take(1, 8, &mut pool, &mut out), 1);
    assert_eq!(out[0].to_vec().unwrap(), frame(free));
    // One buffer is free, so one more frame is taken.
    assert_eq!(tx_queues.take(0, 8, &mut pool, &mut out), 1);
    assert!(tx_queues.tx_queue(0).unwrap().waiting.starved());
}
