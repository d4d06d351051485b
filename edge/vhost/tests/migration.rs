//! The log of written pages, which lets a running virtual machine move to another host. A write
//! that is missing in the log would be missing at the destination.

use nic::Notified;
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use shmem::Mapping;
use std::os::fd::{AsFd, OwnedFd};
use vhost_edge::features::virtio;
use vhost_edge::testing::front::{GPA, RING_BYTES};
use vhost_edge::testing::rig::offer;
use vhost_edge::testing::{Rig, Session};

const PAGE: usize = 4096;
const FEATURES: u64 = virtio::VERSION_1 | virtio::MRG_RXBUF;
/// Bytes of a log with a bit for each page of the front end's memory.
const LOG_BYTES: u64 = 64 << 10;
/// The log's offset in its file, which is not a page boundary.
const LOG_AT: u64 = 64;

/// The front end's log.
struct Log {
    file: OwnedFd,
    mapped: Mapping,
}

impl Log {
    fn new() -> Self {
        let file = memfd_create("log", MemfdFlags::CLOEXEC).unwrap();
        let bytes = LOG_AT + LOG_BYTES;
        ftruncate(&file, bytes).unwrap();
        let mapped = Mapping::new(file.as_fd(), 0, bytes as usize).unwrap();
        Self { file, mapped }
    }

    /// Sends a log of the first `bytes` bytes to the back end. Returns the reply.
    fn send(&self, rig: &mut Rig, bytes: u64) -> Option<Vec<u8>> {
        let file = self.file.try_clone().unwrap();
        let payload = [bytes, LOG_AT].map(u64::to_le_bytes).concat();
        rig.request(6, &payload, &[file])
    }

    /// Starts a migration as QEMU does.
    fn start(&self, rig: &mut Rig) {
        assert_eq!(self.send(rig, LOG_BYTES), Some(vec![0; 8]));
        log_all(rig, true);
    }

    fn byte(&self, page: u64) -> shmem::Span {
        self.mapped.span().skip((LOG_AT + page / 8) as usize)
    }

    /// Returns whether the page that contains an address is dirty.
    fn has(&self, gpa: u64) -> bool {
        let page = gpa / PAGE as u64;
        let mut byte = [0; 1];
        self.byte(page).read(&mut byte).unwrap();
        byte[0] >> (page % 8) & 1 == 1
    }

    /// Clears all bits, as a front end does before it sends the pages.
    fn clear(&self) {
        self.byte(0).take(LOG_BYTES as usize).fill(0).unwrap();
    }
}

/// Enables or disables logging in the features and in the rings' addresses.
fn log_all(rig: &mut Rig, logs: bool) {
    let all = if logs { virtio::LOG_ALL } else { 0 };
    let features = rig.front.features | virtio::PROTOCOL_FEATURES;
    rig.number(2, features | all);
    for ring in 0..2 {
        rig.ring_addresses(ring, u32::from(logs));
    }
}

/// Delivers a frame to the driver; returns the addresses of the buffers that were posted for it.
fn deliver(rig: &mut Rig, len: usize) -> Vec<u64> {
    while rig.front.take_back(0).is_some() {}
    let posted = rig.front.post(0, &[4096, 4096], false, &[]).unwrap();
    assert_eq!(rig.tx_bytes(0, &vec![1; len]).sent, 1);
    let places = posted.buffers.iter();
    places.map(|(at, _)| GPA + *at as u64).collect()
}

fn used_ring(rig: &Rig, ring: usize) -> u64 {
    GPA + (ring * RING_BYTES + rig.front.rings[ring].ring.used_at()) as u64
}

#[test]
fn written_pages_are_logged_during_a_migration() {
    let mut rig = Rig::running(offer(1), 64, FEATURES);
    let log = Log::new();
    log.send(&mut rig, LOG_BYTES).unwrap();
    let places = deliver(&mut rig, 60);
    assert!(!log.has(places[0]), "no migration runs");

    log.start(&mut rig);
    log.clear();
    let places = deliver(&mut rig, 1500);
    assert!(log.has(places[0]));
    assert!(log.has(used_ring(&rig, 0)));
    assert!(!log.has(places[1] + 4096), "nothing was written there");
    assert!(
        !log.has(used_ring(&rig, 1)),
        "the used ring of another queue"
    );
    rig.front.post(1, &[72], false, &[0; 72]).unwrap();
    assert_eq!(rig.rx_bytes(0).len(), 1);
    assert!(
        log.has(used_ring(&rig, 1)),
        "the used ring of a transmit queue"
    );

    log_all(&mut rig, false);
    log.clear();
    let places = deliver(&mut rig, 60);
    assert!(!log.has(places[0]), "the migration is over");
}

/// A virtual machine may be reset, or a shim restarted, while a migration runs. QEMU then sends the
/// log last.
#[test]
fn rings_wait_for_the_log() {
    let mut rig = Rig::running(offer(1), 64, FEATURES);
    log_all(&mut rig, true);
    assert!(!rig.front.is_closed());
    rig.front.post(0, &[2048], false, &[]).unwrap();
    rig.front.post(1, &[72], false, &[0; 72]).unwrap();
    assert_eq!(rig.rx_bytes(0).len(), 0);
    assert_eq!(rig.tx_bytes(0, &[1; 60]).sent, 0);
    let log = Log::new();
    log.start(&mut rig);
    assert!(
        log.has(used_ring(&rig, 0)),
        "an earlier shim may have written it"
    );
    assert_eq!(rig.rx_bytes(0).len(), 1);
    assert_eq!(rig.tx_bytes(0, &[1; 60]).sent, 1);
    // The driver resets the device while the migration runs.
    for ring in 0..2 {
        assert!(rig.words(11, [ring, 0]).is_some());
    }
    for ring in 0..2 {
        rig.start_ring(ring);
    }
    rig.front.post(0, &[2048], false, &[]).unwrap();
    assert_eq!(rig.tx_bytes(0, &[1; 60]).sent, 0, "the old log is not used");
    Log::new().start(&mut rig);
    assert_eq!(rig.tx_bytes(0, &[1; 60]).sent, 1);
    rig.request(4, &[], &[]);
    rig.number(2, FEATURES | virtio::PROTOCOL_FEATURES);
    assert!(!rig.front.is_closed(), "a reset ends the migration");
}

/// The name of a defect of the log, and the function that causes it.
type Case = (&'static str, fn(&mut Rig, &Log));

#[test]
fn a_write_that_is_not_logged_ends_the_connection() {
    let cases: [Case; 3] = [
        ("the log ends behind the rings", |rig, log| {
            // 32 pages: those of the two rings.
            log.send(rig, (GPA >> 12) / 8 + 4).unwrap();
        }),
        ("the log was truncated", |rig, log| {
            let reply = log.send(rig, LOG_BYTES);
            assert_eq!(reply, Some(vec![0; 8]));
            ftruncate(&log.file, 0).unwrap();
        }),
        ("the used ring has a false address", |rig, log| {
            log.start(rig);
            let mut payload = vec![0, 0, 0, 0, 1, 0, 0, 0];
            payload.extend([0; 24]);
            payload.extend(u64::MAX.to_le_bytes());
            let ring = &rig.front.rings[0].ring;
            let (avail, used) = (ring.avail_at() as u64, ring.used_at() as u64);
            let at = vhost_edge::testing::front::UVA;
            let addresses = [at, at + used, at + avail].map(u64::to_le_bytes).concat();
            payload[8..32].copy_from_slice(&addresses);
            rig.request(9, &payload, &[]);
        }),
    ];
    for (what, spoil) in cases {
        let mut rig = Rig::running(offer(1), 64, FEATURES);
        let log = Log::new();
        spoil(&mut rig, &log);
        log_all(&mut rig, true);
        rig.front.post(0, &[4096], false, &[]).unwrap();
        rig.front.post(0, &[4096], false, &[]).unwrap();
        rig.tx_bytes(0, &[1; 60]);
        assert_eq!(
            rig.words(11, [0, 0]),
            None,
            "{what}: no ring reports a stop"
        );
        assert!(rig.front.is_closed(), "{what}");
        rig.restart();
        assert_eq!(rig.tx_bytes(0, &[1; 60]).sent, 1);
    }
}

#[test]
fn invalid_logs_are_refused() {
    for (bytes, offset) in [
        (0, 0),
        (64, 4),
        (u64::MAX, 0),
        (64, u64::MAX - 7),
        (1 << 31, 0),
    ] {
        let mut rig = Rig::running(offer(1), 64, FEATURES);
        let payload = [bytes, offset].map(u64::to_le_bytes).concat();
        assert_eq!(rig.request(6, &payload, &[Log::new().file]), None);
        assert!(rig.front.is_closed(), "{bytes:#x} at {offset:#x}");
    }
    let mut rig = Rig::running(offer(1), 64, FEATURES);
    assert_eq!(rig.request(6, &[0; 16], &[]), None);
    assert!(rig.front.is_closed(), "without a descriptor");
}

/// A step of the test.
#[derive(Clone, Debug)]
enum Op {
    /// The driver sends a frame of this many bytes.
    Send(usize),
    /// The driver posts a chain of buffers of these lengths.
    Post(Vec<usize>),
    /// The driver takes back returned chains.
    Reap,
    /// The shim takes frames.
    Rx,
    /// The shim delivers a frame of this many bytes.
    Tx(usize),
    /// The shim sleeps and wakes.
    Sleep,
    /// The front end stops a ring and starts it again.
    Stop(usize),
    /// Another shim takes over.
    Restart,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let lengths = prop::collection::vec(1..6000_usize, 1..4);
    let op = prop_oneof![
        4 => (14..1514_usize).prop_map(Op::Send),
        5 => lengths.prop_map(Op::Post),
        3 => Just(Op::Reap),
        3 => Just(Op::Rx),
        6 => (14..1514_usize).prop_map(Op::Tx),
        2 => Just(Op::Sleep),
        1 => (0..2_usize).prop_map(Op::Stop),
        1 => Just(Op::Restart),
    ];
    prop::collection::vec(op, 1..60)
}

/// A virtual machine, and its memory before the shim's last step.
struct MigratingVm {
    rig: Rig,
    log: Log,
    before: Vec<u8>,
    after: Vec<u8>,
    frames: u8,
}

impl MigratingVm {
    fn new(features: u64) -> Self {
        let mut rig = Rig::running(offer(1), 16, features);
        let log = Log::new();
        log.start(&mut rig);
        let bytes = rig.front.bytes() as usize;
        Self {
            rig,
            log,
            before: vec![0; bytes],
            after: vec![0; bytes],
            frames: 0,
        }
    }

    fn memory(&self) -> shmem::Span {
        self.rig.front.memory.span()
    }

    /// Lets the shim execute a step, and checks that each changed page is logged.
    fn shim(&mut self, act: impl FnOnce(&mut Rig, &Log)) {
        self.log.clear();
        self.memory().read(&mut self.before).unwrap();
        act(&mut self.rig, &self.log);
        self.memory().read(&mut self.after).unwrap();
        let pages = self.before.chunks(PAGE).zip(self.after.chunks(PAGE));
        for (page, (before, after)) in pages.enumerate() {
            let gpa = GPA + (page * PAGE) as u64;
            assert!(
                before == after || self.log.has(gpa),
                "{gpa:#x} is not logged"
            );
        }
        assert!(!self.rig.front.is_closed());
    }

    /// Executes a step. The driver's own writes are not checked, because the hypervisor tracks the
    /// pages that a virtual machine's processors write.
    fn apply(&mut self, op: Op) {
        self.frames = self.frames.wrapping_add(1);
        let byte = self.frames;
        match op {
            Op::Send(len) => {
                let sent = vec![0; 12 + len];
                self.rig.front.post(1, &[sent.len()], false, &sent);
            }
            Op::Post(lengths) => {
                self.rig.front.post(0, &lengths, false, &[]);
            }
            Op::Reap => {
                for ring in 0..2 {
                    while self.rig.front.take_back(ring).is_some() {}
                }
            }
            Op::Rx => self.shim(|rig, _| drop(rig.rx_bytes(0))),
            Op::Tx(len) => self.shim(|rig, _| {
                rig.tx_bytes(0, &vec![byte; len]);
            }),
            Op::Sleep => self.shim(|rig, _| {
                rig.ports[0].arm();
                rig.ports[0].has_work();
                rig.ports[0].disarm();
            }),
            Op::Stop(ring) => self.shim(|rig, _| {
                assert!(rig.words(11, [ring as u32, 0]).is_some());
                rig.start_ring(ring);
                rig.ring_addresses(ring, 1);
            }),
            Op::Restart => self.shim(|rig, log| {
                rig.restart();
                log.start(rig);
            }),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn each_page_that_the_shim_changes_is_logged(ops in ops(), choice in 0..4_u64) {
        let merges = if choice & 1 == 0 { 0 } else { virtio::MRG_RXBUF };
        let events = if choice & 2 == 0 { 0 } else { virtio::EVENT_IDX };
        let mut moving = MigratingVm::new(virtio::VERSION_1 | virtio::ANY_LAYOUT | merges | events);
        for op in ops {
            moving.apply(op);
        }
    }
}
