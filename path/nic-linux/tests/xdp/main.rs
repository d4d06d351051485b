//! Tests AF_XDP sockets on real veth pairs. Without root or bpf(2), every test is skipped and logs
//! why.
#![allow(clippy::unwrap_used, unsafe_code)]

mod interface;
mod queues;
mod socket_survival;
mod station;

use abi::machine::{Netdev, Xdp};
use abi::xdp::{Counter, Ring};
use netdev::netns::Namespace;
use netdev::xdp::{RingPages, XdpDevice, XdpInterface as Netdevice, inspect, open};
use netdev::{NetError, TapSpec};
use nic::{Buffers, Frame, Nic, Pool};
use nic_linux::XdpNic;
use nic_linux::xdp::SocketParts;
use shmem::{Area, Span};
use station::{Station, frame};
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use testing::{TIMEOUT, require, skip, wait_until};

const CHUNK: usize = 2048;
const CHUNKS: usize = 256;
const SEND_CHUNKS: usize = 32;
const ENTRIES: u32 = 256;
/// Number of frames that use nearly all receive chunks.
const BURST: u32 = (CHUNKS - SEND_CHUNKS) as u32 - 20;
/// The EtherType of the test's frames (IEEE's for local experiments). No other frame in the
/// namespace uses it.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

/// A socket on one end of a veth pair. The other end is in a namespace.
struct Wire {
    nic: XdpNic,
    pool: Pool,
    device: XdpDevice,
    interface: Arc<Netdevice>,
    rings: Span,
    area: Area,
    namespace: Namespace,
}

/// Returns the description of an AF_XDP socket on `netdev`.
fn spec(netdev: Netdev) -> Xdp {
    Xdp {
        netdev,
        first_frame: 0,
        frames: (CHUNKS * CHUNK / abi::PAGE) as u32,
        chunk_bytes: CHUNK as u32,
        entries: ENTRIES,
        rings_slot: 0,
        queues: 0,
    }
}

fn veth(namespace: &Namespace) -> Netdev {
    Netdev::Veth(TapSpec {
        ifname: "wire".into(),
        netns: Some(path(namespace)),
        mac: Some([2, 0, 0, 0, 0, 0xbb]),
        addresses: vec!["10.0.0.1/24".into()],
        mtu: 1500,
        ..TapSpec::default()
    })
}

fn path(namespace: &Namespace) -> String {
    namespace.path().display().to_string()
}

fn place() -> Option<Namespace> {
    require!(netns, tool("ip"));
    Some(Namespace::new().unwrap())
}

/// Returns a domain's data path of a socket, or `None` if the socket's rings are invalid.
fn data_path(device: &XdpDevice, rings: Span, area: Area) -> Option<(XdpNic, Pool)> {
    let parts = SocketParts {
        fd: device.socket().as_fd().try_clone_to_owned().unwrap(),
        umem: area.span(),
        chunk_bytes: CHUNK,
        send_chunks: SEND_CHUNKS,
        rings,
        layouts: Ring::ALL.map(|ring| device.socket().layout(ring)),
        entries: ENTRIES,
        mtu: 1500,
    };
    let rest = (CHUNKS - SEND_CHUNKS) * CHUNK;
    let pool = Pool::new(area.part(SEND_CHUNKS * CHUNK, rest).unwrap(), CHUNK);
    let nic = XdpNic::new(parts, Box::new(Vec::new), Box::new(|| {}));
    Some((nic?, pool))
}

impl Wire {
    fn new() -> Option<Self> {
        let namespace = place()?;
        let netdev = veth(&namespace);
        Self::on(namespace, netdev)
    }

    fn on(namespace: Namespace, netdev: Netdev) -> Option<Self> {
        Self::with_queues(namespace, netdev, 0)
    }

    fn with_queues(namespace: Namespace, netdev: Netdev, queues: u32) -> Option<Self> {
        let area = Area::anonymous(CHUNKS * CHUNK).unwrap();
        let spec = Xdp {
            queues,
            ..spec(netdev)
        };
        let opened = Netdevice::open(&spec).map(Arc::new);
        let bound = opened.and_then(|wire| Ok((wire.bind(area.span())?, wire)));
        let (device, interface) = match bound {
            Ok(bound) => bound,
            Err(error) if error.to_string().contains("not permitted") => {
                return skip(error);
            }
            Err(error) => panic!("{error}"),
        };
        let rings = map_rings(&device.ring_pages(), device.socket().as_fd());
        let (nic, pool) = data_path(&device, rings, area).unwrap();
        let mut wire = Self {
            nic,
            pool,
            device,
            interface,
            rings,
            area,
            namespace,
        };
        // The first poll posts buffers.
        wire.receive(0, Duration::ZERO);
        Some(wire)
    }

    /// Polls until `count` frames of the test have arrived, or the time limit has passed.
    fn receive(&mut self, count: usize, limit: Duration) -> Vec<Vec<u8>> {
        self.receive_until(|all| all.len() >= count, limit)
    }

    /// Polls until a frame arrives that satisfies `is_expected`, and returns it.
    fn receive_one(&mut self, is_expected: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let is_among = |all: &[Vec<u8>]| all.iter().any(|frame| is_expected(frame));
        let all = self.receive_until(is_among, TIMEOUT);
        let mut found = all.into_iter().filter(|frame| is_expected(frame));
        found.next().expect("no such frame")
    }

    fn receive_until(
        &mut self,
        is_done: impl Fn(&[Vec<u8>]) -> bool,
        limit: Duration,
    ) -> Vec<Vec<u8>> {
        let end = Instant::now() + limit;
        let mut all = Vec::new();
        loop {
            let mut frames = Vec::new();
            let now_ns = shmem::time::monotonic_ns();
            self.nic.rx(now_ns, 64, &mut self.pool, &mut frames);
            for mut frame in frames {
                let bytes = frame.to_vec().unwrap();
                // The kernel's stack also sends frames occasionally.
                if bytes[12..14] == ETHERTYPE || bytes[12..14] == [8, 0] {
                    all.push(bytes);
                }
                frame.recycle(&mut self.pool);
            }
            if is_done(&all) || Instant::now() > end {
                return all;
            }
        }
    }

    fn send(&mut self, frames: &[Vec<u8>]) -> nic::TxReport {
        let mut pool = Pool::new(Area::anonymous(frames.len() * CHUNK).unwrap(), CHUNK);
        let frames: Vec<Frame> = frames
            .iter()
            .map(|bytes| Frame::from_bytes(bytes, &mut pool).unwrap())
            .collect();
        let pick: Vec<u32> = (0..frames.len() as u32).collect();
        self.nic.tx(0, &frames, &pick)
    }

    /// Replaces the domain with another one that has the same socket and memory, but does not know
    /// which chunks the first domain held.
    fn replace_domain(&mut self) {
        (self.nic, self.pool) = data_path(&self.device, self.rings, self.area).unwrap();
    }

    /// Returns a ring's producer and consumer counts.
    fn words(&self, ring: Ring) -> [&'static AtomicU32; 2] {
        let (span, layout) = self.ring(ring);
        [layout.producer, layout.consumer].map(|at| span.u32(at.into()).unwrap())
    }

    /// Returns the value of the NIC's counter with this name.
    fn nic_counter(&self, name: &str) -> u64 {
        let all = self.nic.counters();
        all.iter().find(|(known, _)| *known == name).unwrap().1
    }

    /// Drops everything except the namespace, and returns that.
    fn drop_all(self) -> Namespace {
        let Self {
            device,
            interface,
            nic,
            namespace,
            ..
        } = self;
        drop((device, interface, nic));
        namespace
    }

    fn counter(&self, counter: Counter) -> u64 {
        self.device.socket().counter(counter).unwrap()
    }

    fn ring(&self, ring: Ring) -> (Span, abi::xdp::RingLayout) {
        let bytes = Ring::slots(ENTRIES) as usize * abi::PAGE;
        let span = self
            .rings
            .sub(ring.index() as usize * bytes, bytes)
            .unwrap();
        (span, self.device.socket().layout(ring))
    }

    /// Writes an entry into a ring without the data path, as a hostile domain can.
    fn forge(&self, ring: Ring, words: &[u64]) {
        let (span, layout) = self.ring(ring);
        let producer = span.u32(layout.producer.into()).unwrap();
        let number = producer.load(std::sync::atomic::Ordering::Relaxed);
        let at = (number % ENTRIES) as usize * ring.entry_bytes() + usize::from(layout.entries);
        for (n, word) in words.iter().enumerate() {
            span.store_u64(at + n * 8, *word).unwrap();
        }
        span.store_u32(layout.producer.into(), number.wrapping_add(1))
            .unwrap();
    }
}

/// Maps a socket's rings as the agent of a domain does.
fn map_rings(pages: &[RingPages], socket: BorrowedFd<'_>) -> Span {
    let bytes = Ring::slots(ENTRIES) as usize * abi::PAGE;
    let area = Area::anonymous(pages.len() * bytes).unwrap();
    for (place, part) in pages.iter().enumerate() {
        let at = area.at(place * bytes, bytes).unwrap();
        assert!(part.pages as usize * abi::PAGE <= bytes);
        // SAFETY: the mapping replaces memory that is reserved for spans and has no other user.
        let mapped = unsafe {
            libc::mmap(
                at.as_ptr().cast(),
                part.pages as usize * abi::PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_POPULATE,
                socket.as_raw_fd(),
                i64::from(part.page) * abi::PAGE as i64,
            )
        };
        assert_ne!(
            mapped,
            libc::MAP_FAILED,
            "{}",
            std::io::Error::last_os_error()
        );
    }
    area.span()
}

#[test]
fn frames_pass_whole_and_in_order() {
    let Some(mut wire) = Wire::new() else { return };
    let station = Station::new(&wire.namespace, "wire");
    let before = Counter::ALL.map(|counter| wire.counter(counter));
    let lengths = [60, 64, 65, 128, 999, 1513, 1514];
    // The test sends more frames than the socket has chunks, so that each chunk is used several
    // times.
    for round in 0..100 {
        let frames: Vec<_> = lengths.iter().map(|&len| frame(round, len)).collect();
        frames.iter().for_each(|frame| station.send(frame));
        let received = wire.receive(frames.len(), TIMEOUT);
        assert!(received == frames, "round {round}: {} came", received.len());
        let report = wire.send(&frames);
        assert_eq!(report.sent as usize, frames.len());
        let received = station.receive(frames.len());
        assert!(received == frames, "round {round}: {} came", received.len());
    }
    assert_eq!(Counter::ALL.map(|counter| wire.counter(counter)), before);
}

#[test]
fn batch_larger_than_send_chunks_is_sent_whole() {
    let Some(mut wire) = Wire::new() else { return };
    let station = Station::new(&wire.namespace, "wire");
    let frames: Vec<_> = (0..3 * SEND_CHUNKS as u32).map(|n| frame(n, 300)).collect();
    let report = wire.send(&frames);
    assert_eq!((report.sent as usize, report.full), (frames.len(), 0));
    let received = station.receive(frames.len());
    let numbers: Vec<u8> = received.iter().map(|frame| frame[17]).collect();
    assert!(received == frames, "{numbers:?}");
}

#[test]
fn frame_without_buffer_is_counted() {
    let Some(mut wire) = Wire::new() else { return };
    let station = Station::new(&wire.namespace, "wire");
    let burst = 2 * CHUNKS as u32;
    let lost = || {
        let counters = [Counter::FillEmpty, Counter::RingFull, Counter::Dropped];
        counters
            .map(|counter| wire.counter(counter))
            .iter()
            .sum::<u64>()
    };
    let mut sent = 0;
    // The kernel processes sent frames when a CPU is free.
    wait_until("the kernel has not lost a frame", || {
        (0..burst).for_each(|n| station.send(&frame(n, 100)));
        sent += burst as usize;
        lost() > 0
    });
    let received = wire.receive(sent, Duration::from_millis(300));
    assert!(received.len() < sent, "{}", received.len());
    station.send(&frame(9999, 100));
    wire.receive_one(|received| *received == frame(9999, 100));
}

/// By default the kernel leaves checksums blank between the ends of a veth pair.
#[test]
fn sent_frames_have_valid_checksums() {
    let Some(mut wire) = Wire::new() else { return };
    let neighbour = [
        "neigh",
        "add",
        "10.0.0.2",
        "lladdr",
        "02:00:00:00:00:aa",
        "dev",
        "wire",
    ];
    let sent = wire.namespace.enter(|| {
        let run = Command::new("ip").args(neighbour).status();
        if !run.is_ok_and(|status| status.success()) {
            return false;
        }
        let socket = UdpSocket::bind("10.0.0.1:1000").unwrap();
        socket.send_to(&[7; 1001], "10.0.0.2:2000").unwrap() == 1001
    });
    assert!(sent.unwrap());
    let is_udp = |frame: &[u8]| frame[12..14] == [8, 0] && frame[23] == 17;
    let packet = wire.receive_one(is_udp);
    let segment = &packet[34..];
    let pseudo = [
        &packet[26..34],
        &[0, 17],
        &(segment.len() as u16).to_be_bytes(),
    ]
    .concat();
    let sum = shmem::ones_sum_bytes(segment, shmem::ones_sum_bytes(&pseudo, 0));
    let folded = (sum & 0xffff) + (sum >> 16);
    assert_eq!((folded & 0xffff) + (folded >> 16), 0xffff, "{packet:?}");
}

/// A domain controls the contents of its rings. With arbitrary contents, the kernel accesses only
/// the memory of the socket, and continues to work.
#[test]
fn forged_entries_access_no_other_memory() {
    let Some(mut wire) = Wire::new() else { return };
    let station = Station::new(&wire.namespace, "wire");
    let end = (CHUNKS * CHUNK) as u64;
    let outside = [end, end + 4096, u64::MAX, u64::MAX - 4095, 1 << 47, 1 << 63];
    for address in outside {
        wire.forge(Ring::Transmit, &[address, 60]);
    }
    // The packet is longer than its chunk, or longer than any packet.
    for len in [CHUNK as u64 + 1, 65_536, u64::from(u32::MAX)] {
        wire.forge(Ring::Transmit, &[0, len]);
    }
    // The packet extends from one chunk into the next.
    wire.forge(Ring::Transmit, &[CHUNK as u64 - 100, 200]);
    // The kernel stops a call at the first invalid entry.
    for _ in 0..outside.len() + 4 {
        let _ = rustix::io::write(wire.device.socket(), &[]);
    }
    let bad = wire.counter(Counter::BadTransmit);
    assert_eq!(bad, outside.len() as u64 + 4);
    let received = station.receive_within(1, Duration::from_millis(500));
    assert_eq!(received.len(), 0);
    let dropped = wire.counter(Counter::Dropped);
    // The fill ring is full, so the test replaces its entries.
    let (span, layout) = wire.ring(Ring::Fill);
    for (n, address) in outside.iter().cycle().take(ENTRIES as usize).enumerate() {
        let at = usize::from(layout.entries) + n * Ring::Fill.entry_bytes();
        span.store_u64(at, *address).unwrap();
    }
    for n in 0..10 {
        station.send(&frame(n, 60));
    }
    assert_eq!(wire.receive(1, Duration::from_millis(100)).len(), 0);
    wait_until("the kernel has not dropped a frame", || {
        wire.counter(Counter::Dropped) > dropped
    });
}

/// A domain that writes invalid ring counts loses its packets, and affects no other domain.
#[test]
fn invalid_counts_affect_no_other_domain() {
    let Some(mut wire) = Wire::new() else { return };
    let station = Station::new(&wire.namespace, "wire");
    for ring in Ring::ALL {
        let (span, layout) = wire.ring(ring);
        for word in [layout.producer, layout.consumer] {
            span.store_u32(word.into(), 0x8000_0000).unwrap();
        }
    }
    for n in 0..100 {
        station.send(&frame(n, 100));
        let _ = rustix::io::write(wire.device.socket(), &[]);
        wire.receive(0, Duration::ZERO);
    }
    drop(wire.nic);
    // The wire still works: its other end can send frames.
    station.send(&frame(0, 100));
}

#[test]
fn foreign_buffers_are_not_posted_to_the_kernel() {
    let Some(mut wire) = Wire::new() else { return };
    let station = Station::new(&wire.namespace, "wire");
    station.send(&frame(1, 100));
    wire.receive(1, TIMEOUT);
    let mut other = Pool::new(Area::anonymous(CHUNKS * CHUNK).unwrap(), CHUNK);
    let free = other.free();
    let mut frames = Vec::new();
    for n in 0..ENTRIES {
        station.send(&frame(n, 100));
        wire.nic.rx(0, 64, &mut other, &mut frames);
    }
    assert_eq!(other.free(), free);
    let foreign = wire.nic.counters();
    let foreign = foreign
        .iter()
        .find(|(name, _)| *name == "rx_foreign_buffer");
    assert!(foreign.unwrap().1 > 0);
}
