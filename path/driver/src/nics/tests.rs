use super::*;
use config::lro::{AggregateDelivery, FlushConfig, Placement};
use nic::{Buffers, TxReport};
use runtime::lro::LroSide;
use runtime::testing::{config, packet, payloads};
use shmem::Area;
use std::cell::RefCell;
use std::rc::Rc;

const BUFFERS: usize = 128;

/// A NIC that receives the frames of a list.
struct Wire(Rc<RefCell<Vec<Vec<u8>>>>);

impl Nic for Wire {
    fn caps(&self) -> Caps {
        Caps::default()
    }

    fn rx(
        &mut self,
        _now_ns: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> usize {
        let mut wire = self.0.borrow_mut();
        let count = wire.len().min(budget);
        for bytes in wire.drain(..count) {
            out.push(Frame::from_bytes(&bytes, buffers).unwrap());
        }
        count
    }

    fn tx(&mut self, _now_ns: u64, _frames: &[Frame], _pick: &[u32]) -> TxReport {
        TxReport::default()
    }
}

struct Rig {
    wire: Rc<RefCell<Vec<Vec<u8>>>>,
    port: NicPort,
    ledger: Ledger,
    frames: Vec<Frame>,
    next: u32,
}

impl Rig {
    fn new(policy: ModerationPolicy, lro: &LroConfig) -> Self {
        let wire = Rc::new(RefCell::default());
        let nic = Box::new(Wire(Rc::clone(&wire)));
        let pool = Pool::new(Area::anonymous(BUFFERS * 2048).unwrap(), 2048);
        let merger = LroStage::new(LroSide::Physical, lro, BUFFERS / 2);
        let area = Area::anonymous(4 << 16).unwrap();
        let linear = Linearizer::new(area, 1 << 16, lro.backend);
        Self {
            wire,
            port: NicPort::new("nic.wire".into(), nic, pool, policy, merger, linear),
            ledger: Ledger::new(true),
            frames: Vec::new(),
            next: 0,
        }
    }

    fn queue_packets(&mut self, packets: u32) {
        let numbers = self.next..self.next + packets;
        self.wire.borrow_mut().extend(numbers.map(|n| packet(1, n)));
        self.next += packets;
    }

    /// Runs one turn. Returns the number of forwarded packets, and the number of frames that
    /// contained them.
    fn turn(&mut self, now_ns: u64) -> (usize, usize) {
        self.port.take(now_ns, 64, &mut self.frames, &self.ledger);
        let bytes = payloads(&self.frames).len();
        let sent = (bytes / runtime::testing::PAYLOAD, self.frames.len());
        self.port.release_taken(&mut self.frames, &self.ledger);
        sent
    }
}

#[test]
fn packets_are_counted_before_merging() {
    for backend in [AggregateDelivery::Scatter, AggregateDelivery::Linearize] {
        let lro = LroConfig {
            backend,
            ..config(FlushConfig::Poll)
        };
        let mut rig = Rig::new(ModerationPolicy::Event, &lro);
        rig.queue_packets(20);
        assert_eq!(rig.turn(0), (20, 1));
        assert_eq!(rig.port.traffic.in_packets, 20);
        assert_eq!(rig.port.buffers_free(), BUFFERS);
        let stat = rig.port.lro_stat();
        assert_eq!(stat["segments"], 20);
        let linear = u64::from(backend == AggregateDelivery::Linearize);
        assert_eq!(stat["linearized"], linear, "{stat}");
    }
}

#[test]
fn driver_wakes_when_a_held_packet_is_due() {
    let mut rig = Rig::new(ModerationPolicy::Event, &config(FlushConfig::After(50)));
    rig.queue_packets(3);
    assert_eq!(rig.turn(1_000), (0, 0));
    assert_eq!(
        rig.port.buffers_free(),
        BUFFERS - 3,
        "LRO holds the packets across turns"
    );
    let Wake::Event(Some(due)) = rig.port.wake(2_000) else {
        panic!("{:?}", rig.port.wake(2_000));
    };
    assert!((49_000..=51_000).contains(&due), "{due}");
    assert_eq!(rig.turn(due), (3, 1));
    assert_eq!(rig.port.wake(due), Wake::Event(None));
    assert_eq!(rig.port.buffers_free(), BUFFERS);
}

#[test]
fn only_due_frames_are_flushed_between_ticks() {
    let mut rig = Rig::new(
        ModerationPolicy::Tick { us: 100 },
        &config(FlushConfig::After(30)),
    );
    rig.queue_packets(2);
    assert_eq!(rig.turn(0), (0, 0));
    rig.queue_packets(2);
    let Wake::At(due) = rig.port.wake(0) else {
        panic!("{:?}", rig.port.wake(0));
    };
    assert!((29_000..=30_000).contains(&due), "{due}");
    assert_eq!(
        rig.turn(due),
        (2, 1),
        "the later packets wait for the next tick"
    );
    assert_eq!(rig.port.wake(due), Wake::At(100_000));
    assert_eq!(rig.turn(100_000), (0, 0));
    assert_eq!(rig.turn(130_000), (2, 1));
}

#[test]
fn tick_without_packets_counts_as_a_poll() {
    let mut rig = Rig::new(
        ModerationPolicy::Tick { us: 50 },
        &config(FlushConfig::Polls(2)),
    );
    rig.queue_packets(2);
    assert_eq!(rig.turn(0), (0, 0));
    assert_eq!(rig.turn(50_000), (2, 1));
}

#[test]
fn changing_lro_settings_loses_no_held_packet() {
    let mut rig = Rig::new(ModerationPolicy::Event, &config(FlushConfig::After(5000)));
    rig.queue_packets(5);
    assert_eq!(rig.turn(0), (0, 0));
    rig.port.set_lro(&LroConfig {
        at: Placement::None,
        ..config(FlushConfig::Poll)
    });
    rig.queue_packets(2);
    assert_eq!(rig.turn(1), (7, 3));
    assert_eq!(rig.port.buffers_free(), BUFFERS);
    rig.queue_packets(2);
    assert_eq!(rig.turn(2), (2, 2));
    rig.port.set_lro(&config(FlushConfig::Poll));
    rig.queue_packets(2);
    assert_eq!(rig.turn(3), (2, 1));
}
