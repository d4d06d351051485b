//! Requests as QEMU and User-Mode Linux send them.

use nic::{Buffers, Nic, Notified};
use rustix::fs::{MemfdFlags, OFlags, fcntl_getfl, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::net::SocketType;
use rustix::pipe::{PipeFlags, pipe_with};
use shmem::{Mapping, Span};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use vhost_edge::features::{protocol, virtio};
use vhost_edge::testing::front::{GPA, UVA, pair, send};
use vhost_edge::testing::rig::offer;
use vhost_edge::testing::{ProcessSystem, Rig, Session};
use vhost_edge::{ConnectionSource, QueueDevice, VhostBackend, VhostSystem};

const FEATURES: u64 = virtio::VERSION_1 | virtio::MRG_RXBUF;

fn table(regions: &[[u64; 4]], padding: usize) -> Vec<u8> {
    let mut payload = (regions.len() as u64).to_le_bytes().to_vec();
    payload.extend(regions.iter().flatten().flat_map(|word| word.to_le_bytes()));
    payload.extend(vec![0; padding]);
    payload
}

fn file(rig: &Rig) -> OwnedFd {
    rig.front.file.try_clone().unwrap()
}

/// Returns whether a frame passes each way.
fn passes(rig: &mut Rig) -> bool {
    let sent = [[0; 12].as_slice(), &[0x5a; 60]].concat();
    if rig.front.post(1, &[72], false, &sent).is_none() {
        return false;
    }
    rig.front.post(0, &[2048], false, &[]).unwrap();
    let there = rig.rx_bytes(0).len();
    let back = rig.tx_bytes(0, &[1; 60]).sent;
    while rig.front.take_back(1).is_some() {}
    while rig.front.take_back(0).is_some() {}
    there > 0 && back == 1
}

#[test]
fn offers_are_answered() {
    let mut rig = Rig::connected(offer(2), 64);
    let features = rig.number(1, 0).unwrap();
    let wanted = FEATURES | virtio::INDIRECT_DESC | virtio::EVENT_IDX;
    let several = virtio::MQ | virtio::CTRL_VQ;
    let wanted = wanted | several;
    assert_eq!(features & wanted, wanted);
    for never in [34, 24, 33] {
        assert_eq!(features >> never & 1, 0, "feature {never}");
    }
    let offered = rig.number(15, 0).unwrap();
    assert_eq!(offered, 0x823f, "no STATUS, no PAGEFAULT, no INFLIGHT");
    assert_eq!(rig.number(17, 0), Some(2), "queue pairs");
    assert_eq!(rig.number(36, 0), Some(32), "memory slots");
    let mut one = Rig::connected(offer(1), 64);
    assert_eq!(one.number(1, 0).unwrap() & several, 0);
}

#[test]
fn the_configuration_space_is_read() {
    let mut rig = Rig::connected(offer(2), 64);
    let ask = |offset: u32, bytes: u32| {
        let mut payload: Vec<u8> = [offset, bytes, 0]
            .into_iter()
            .flat_map(u32::to_le_bytes)
            .collect();
        payload.extend(vec![0; bytes as usize]);
        payload
    };
    let all = rig.request(24, &ask(0, 12), &[]).unwrap();
    assert_eq!(all[12..], [2, 0, 0, 0, 0, 7, 1, 0, 2, 0, 0xdc, 5]);
    let mtu = rig.request(24, &ask(10, 2), &[]).unwrap();
    assert_eq!(mtu[12..], [0xdc, 5]);
    assert_eq!(
        rig.request(24, &ask(250, 7), &[]),
        Some(vec![]),
        "beyond the end of the space"
    );
    assert_eq!(rig.request(24, &ask(u32::MAX, 2), &[]), Some(vec![]));
    assert!(!rig.front.is_closed());
}

#[test]
fn requested_acknowledgements_are_sent() {
    let mut rig = Rig::connected(offer(1), 64);
    let ask = |rig: &mut Rig, request: u32, value: u64| {
        rig.front.send(request, 8, &value.to_le_bytes(), &[]);
        rig.serve();
        rig.front.reply().map(|reply| reply[0])
    };
    assert_eq!(
        ask(&mut rig, 3, 0),
        None,
        "acknowledgements are not negotiated yet"
    );
    assert_eq!(ask(&mut rig, 16, protocol::REPLY_ACK), Some(0), "by itself");
    assert_eq!(ask(&mut rig, 3, 0), Some(0));
    assert_eq!(ask(&mut rig, 20, 1500), Some(0), "an MTU that fits");
    assert_eq!(ask(&mut rig, 20, 9000), Some(1), "an MTU that does not");
    assert!(!rig.front.is_closed());
    assert_eq!(ask(&mut rig, 2, 1 << 34), Some(1), "packed rings");
    assert!(rig.front.is_closed());
}

#[test]
fn rings_may_be_enabled_before_features() {
    let mut rig = Rig::connected(offer(1), 64);
    rig.number(16, protocol::MQ | protocol::REPLY_ACK);
    for ring in 0..2 {
        rig.words(18, [ring, 1]);
    }
    rig.number(2, FEATURES | virtio::PROTOCOL_FEATURES);
    let region = rig.front.region();
    rig.add_region(region);
    for ring in 0..2 {
        rig.start_ring(ring);
    }
    assert!(passes(&mut rig));
    rig.words(18, [1, 0]);
    rig.front.post(1, &[72], false, &[0; 72]).unwrap();
    assert!(rig.rx_bytes(0).is_empty(), "a disabled ring is not read");
    rig.words(18, [1, 1]);
    assert_eq!(rig.rx_bytes(0).len(), 1);
}

#[test]
fn rings_run_without_protocol_features() {
    let mut rig = Rig::connected(offer(1), 64);
    rig.number(3, 0);
    rig.number(2, FEATURES);
    let whole = [rig.front.region()];
    let file = file(&rig);
    rig.request(5, &table(&whole, 0), &[file]);
    for ring in 0..2 {
        rig.start_ring(ring);
    }
    assert!(passes(&mut rig));
}

#[test]
fn a_padded_memory_table_is_accepted() {
    let mut rig = Rig::connected(offer(1), 64);
    rig.number(2, FEATURES);
    let whole = [rig.front.region()];
    let payload = table(&whole, 32);
    assert_eq!(payload.len(), 72);
    let file = file(&rig);
    rig.request(5, &payload, &[file]);
    assert!(!rig.front.is_closed());
    for ring in 0..2 {
        rig.start_ring(ring);
    }
    assert!(passes(&mut rig));
}

#[test]
fn repeated_regions_are_mapped_once() {
    let mut rig = Rig::running(offer(1), 64, FEATURES);
    let region = rig.front.region();
    for _ in 0..3 {
        rig.add_region(region);
    }
    assert!(passes(&mut rig));
    let whole = table(&[region], 0);
    for _ in 0..2 {
        let file = file(&rig);
        rig.request(5, &whole, &[file]);
    }
    assert!(passes(&mut rig));
    // The front end removes the region once for each of two queue pairs.
    let payload = table(&[region], 0);
    for _ in 0..2 {
        let file = file(&rig);
        rig.request(38, &payload, &[file]);
        assert!(!rig.front.is_closed());
        assert!(!passes(&mut rig));
    }
    rig.add_region(region);
    rig.tx_bytes(0, &[0; 60]);
    rig.rx_bytes(0);
    assert!(
        passes(&mut rig),
        "rings restart when their memory is mapped again"
    );
}

#[test]
fn memory_may_be_added_while_frames_pass() {
    let mut rig = Rig::running(offer(1), 64, FEATURES);
    let more = memfd_create("dimm", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&more, 1 << 20).unwrap();
    let mut payload = vec![0; 8];
    let gpa = GPA + (1 << 30);
    for word in [gpa, 1 << 20, UVA + (1 << 30), 0] {
        payload.extend(u64::to_le_bytes(word));
    }
    let view = Mapping::new(more.as_fd(), 0, 1 << 20).unwrap();
    rig.request(37, &payload, &[more]);
    view.span().skip(112).write(&[7; 60]).unwrap();
    let ring = &mut rig.front.rings[1].ring;
    ring.describe(
        0,
        vhost_edge::testing::driver::Descriptor {
            gpa: gpa + 100,
            bytes: 72,
            flags: 0,
            next: 0,
        },
    );
    ring.offer(0);
    ring.publish();
    assert_eq!(rig.rx_bytes(0), [[7; 60]]);
}

#[test]
fn stopping_a_ring_answers_where_it_resumes() {
    let mut rig = Rig::running(offer(1), 64, FEATURES);
    for _ in 0..5 {
        rig.front.post(1, &[72], false, &[0; 72]).unwrap();
    }
    assert_eq!(rig.rx(0, 3).len(), 3);
    let reply = rig.words(11, [1, 0]).unwrap();
    assert_eq!(reply, [1, 0, 0, 0, 3, 0, 0, 0]);
    assert!(rig.rx(0, 9).is_empty(), "the ring has stopped");
    rig.words(10, [1, 3]);
    rig.ring_fd(12, 1, |ring| &ring.kick);
    assert_eq!(rig.rx(0, 9).len(), 2);
}

#[test]
fn a_reset_stops_all_rings() {
    let mut rig = Rig::running(offer(1), 64, FEATURES);
    assert!(passes(&mut rig));
    rig.number(4, 0);
    assert!(!passes(&mut rig));
    assert!(!rig.front.is_closed());
}

#[test]
fn in_flight_buffers_are_declined() {
    let mut rig = Rig::connected(offer(1), 64);
    let mut payload = vec![0xff; 20];
    payload[16] = 2;
    assert_eq!(rig.request(31, &payload, &[]), Some(vec![0; 20]));
    assert!(!rig.front.is_closed());
}

#[test]
fn a_full_blocking_call_pipe_does_not_stall() {
    let mut rig = Rig::running(offer(1), 64, FEATURES);
    let (_reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let number = 0_u64.to_le_bytes();
    let end = writer.try_clone().unwrap();
    rig.request(13, &number, &[end]);
    assert!(fcntl_getfl(&writer).unwrap().contains(OFlags::NONBLOCK));
    while rustix::io::write(&writer, &[0; 4096]).is_ok() {}
    while rustix::io::write(&writer, &[0; 1]).is_ok() {}
    for _ in 0..10 {
        rig.front.post(0, &[2048], false, &[]).unwrap();
        assert_eq!(rig.tx_bytes(0, &[0; 60]).sent, 1);
        rig.front.take_back(0).unwrap();
    }
}

#[test]
fn a_second_front_end_is_refused_and_the_next_served() {
    let name = format!("grantway-vhost-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(name).unwrap();
    let listener = UnixListener::bind_addr(&address).unwrap();
    listener.set_nonblocking(true).unwrap();
    let source = ConnectionSource::Listener(listener.into());
    let backend = VhostBackend::new(ProcessSystem::default(), source, offer(1), |_| {});
    let mut ports = QueueDevice::all(backend, 1);
    let mut now_ns = 1;
    let mut serve = || {
        now_ns += 10_000_000;
        ports[0].serve(now_ns)
    };
    assert!(!serve());
    let first: OwnedFd = UnixStream::connect_addr(&address).unwrap().into();
    assert!(serve());
    let features = [1_u32, 1, 0].map(u32::to_le_bytes).concat();
    let mut second = UnixStream::connect_addr(&address).unwrap();
    assert!(serve());
    assert_eq!(second.read(&mut [0; 1]).unwrap(), 0, "closed immediately");
    assert!(send(&first, &features, &[]));
    assert!(serve());
    assert_eq!(
        rustix::io::read(&first, &mut [0; 64]),
        Ok(20),
        "still served"
    );
    drop(first);
    let third: OwnedFd = UnixStream::connect_addr(&address).unwrap().into();
    assert!(send(&third, &features, &[]));
    assert!(serve());
    assert!(serve());
    assert_eq!(rustix::io::read(&third, &mut [0; 64]), Ok(20));
    for _ in 0..10_000 {
        UnixStream::connect_addr(&address).unwrap();
        serve();
    }
    assert!(send(&third, &features, &[]));
    assert!(serve());
    assert_eq!(rustix::io::read(&third, &mut [0; 64]), Ok(20));
}

/// A system that cannot wait for the first descriptor.
struct FailsOnce {
    has_failed: bool,
}

impl VhostSystem for FailsOnce {
    fn map(&mut self, _: BorrowedFd<'_>, _: u64, _: u64) -> io::Result<Span> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn unmap(&mut self, _: Span) {}

    fn watch(&mut self, _: BorrowedFd<'_>, _: bool) -> io::Result<()> {
        match std::mem::replace(&mut self.has_failed, true) {
            true => Ok(()),
            false => Err(io::ErrorKind::OutOfMemory.into()),
        }
    }

    fn unwatch(&mut self, _: BorrowedFd<'_>) {}
}

#[test]
fn a_connection_that_cannot_start_is_replaced() {
    let (manager, source) = pair(SocketType::SEQPACKET);
    let source = ConnectionSource::Manager(source);
    let system = FailsOnce { has_failed: false };
    let mut backend = VhostBackend::new(system, source, offer(1), |_| {});
    let request = || rustix::io::read(&manager, &mut [0; 8]);
    let connect = || {
        let (front_end, connection) = pair(SocketType::STREAM);
        assert!(send(&manager, b"C", &[connection.as_fd()]));
        front_end
    };
    assert!(!backend.serve(1));
    assert_eq!(request(), Ok(1));
    let _first = connect();
    assert!(backend.serve(10_000_000), "the system fails");
    assert!(!backend.serve(10_000_001));
    assert_eq!(request(), Ok(1), "the next turn requests another");
    let _second = connect();
    assert!(backend.serve(20_000_000));
    assert!(!backend.serve(30_000_000));
    assert_eq!(request(), Err(Errno::AGAIN), "the second one is served");
}

#[test]
fn the_front_end_is_notified_of_the_link() {
    let mut rig = Rig::running(offer(1), 64, FEATURES);
    let (mine, theirs) = UnixStream::pair().unwrap();
    mine.set_nonblocking(true).unwrap();
    assert_eq!(rig.request(21, &[], &[theirs.into()]), None);
    let status = |rig: &mut Rig| {
        let ask = [6_u32, 2, 0, 0].map(u32::to_le_bytes).concat();
        rig.request(24, &ask[..14], &[]).unwrap()[12]
    };
    let mut message = [0; 16];
    let mut notified = || {
        (&mine)
            .read(&mut message)
            .ok()
            .map(|n| message[..n].to_vec())
    };
    rig.ports[0].set_link(false, 1);
    assert_eq!(
        (status(&mut rig), notified()),
        (1, None),
        "an outage begins"
    );
    let due = rig.ports[0].next_due(1).unwrap();
    assert_eq!(due, 1 + vhost_edge::DOWN_AFTER_NS);
    let changed = [2_u32, 1, 0].map(u32::to_le_bytes).concat();
    for (is_up, at) in [(false, due), (true, due + 1)] {
        rig.ports[0].set_link(is_up, at);
        assert_eq!(status(&mut rig), u8::from(is_up));
        assert_eq!(notified(), Some(changed.clone()));
        assert_eq!(rig.counter("vm_link_up"), u64::from(is_up));
    }
    // A front end that does not read does not stall the shim.
    for n in 0..10_000 {
        rig.ports[0].set_link(n % 2 == 0, due * (n + 2));
    }
    assert!(passes(&mut rig));
}

/// Returns the received frames that announce the virtual machine's MAC.
fn announced(rig: &mut Rig) -> Vec<Vec<u8>> {
    let frames = rig.rx_bytes(0);
    let is_one =
        |frame: &Vec<u8>| frame[12..14] == [0x80, 0x35] && frame[6..12] == [2, 0, 0, 0, 0, 7];
    assert!(frames.iter().all(is_one), "{frames:x?}");
    frames
}

#[test]
fn the_mac_is_announced_when_the_driver_first_runs() {
    let mut rig = Rig::connected(offer(1), 64);
    assert_eq!(announced(&mut rig).len(), 0, "before the driver runs");
    rig.start(FEATURES);
    assert_eq!(rig.buffers_out(), 0);
    let taken: Vec<_> = std::iter::from_fn(|| rig.pool.take()).collect();
    assert_eq!(
        (announced(&mut rig).len(), rig.ports[0].starved()),
        (0, true)
    );
    taken.into_iter().for_each(|buffer| rig.pool.put(buffer.id));
    assert_eq!(announced(&mut rig).len(), 1, "when a buffer is available");
    rig.words(11, [0, 0]);
    rig.start_ring(0);
    assert_eq!(announced(&mut rig).len(), 0, "the driver was only reloaded");
    rig.number(19, 0x0605_0403_0201);
    assert_eq!(announced(&mut rig).len(), 1, "at the front end's request");
    rig.restart();
    assert_eq!(announced(&mut rig).len(), 0, "taken by the rig");
    assert!(passes(&mut rig));
}

/// If the flag that disables notifications stayed set, the driver would wait forever.
#[test]
fn a_ring_that_was_disarmed_is_armed_after_a_restart() {
    for restart in [true, false] {
        let mut rig = Rig::running(offer(1), 64, FEATURES);
        rig.ports[0].disarm();
        let flags = |rig: &Rig| rig.front.rings[1].ring.used_flags();
        assert_eq!(flags(&rig), 1, "no notifications");
        match restart {
            true => rig.restart(),
            false => _ = rig.number(2, FEATURES | virtio::PROTOCOL_FEATURES),
        }
        rig.ports[0].arm();
        assert_eq!(flags(&rig), 0, "notifications");
    }
}

#[test]
fn counters_report_the_state_of_the_driver() {
    let mut rig = Rig::connected(offer(2), 64);
    let state = |rig: &Rig| {
        ["vm_connected", "vm_features", "vm_mtu", "vm_queue_pairs"].map(|name| rig.counter(name))
    };
    assert_eq!(state(&rig), [1, 0, 1500, 0]);
    rig.start(FEATURES);
    let features = FEATURES | virtio::PROTOCOL_FEATURES;
    assert_eq!(state(&rig), [1, features, 1500, 2]);
    rig.front.reconnect();
    rig.serve();
    assert_eq!(state(&rig), [0, 0, 1500, 0]);
}
