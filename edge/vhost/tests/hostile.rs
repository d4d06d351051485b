//! Attacks by a virtual machine and by its monitor. Neither stops the shim: a bad chain costs a
//! frame, a bad ring stops, and a bad message ends the connection.

use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use std::os::fd::{AsFd, OwnedFd};
use vhost_edge::features::virtio;
use vhost_edge::testing::driver::{Descriptor, INDIRECT, NEXT, WRITE};
use vhost_edge::testing::front::{GPA, UVA, send};
use vhost_edge::testing::rig::offer;
use vhost_edge::testing::{Rig, Session, hostile};

const FEATURES: u64 = virtio::VERSION_1 | virtio::INDIRECT_DESC;

/// Posts one chain of these descriptors to the transmit queue. Returns the number of frames
/// received.
fn frames(rig: &mut Rig, descriptors: &[Descriptor]) -> usize {
    let ring = &mut rig.front.rings[1].ring;
    for (index, descriptor) in descriptors.iter().enumerate() {
        ring.describe(index as u16, *descriptor);
    }
    ring.offer(0);
    ring.publish();
    let before = ring.used_index();
    let count = rig.rx_bytes(0).len();
    let ring = &mut rig.front.rings[1].ring;
    assert_eq!(
        ring.used_index(),
        before.wrapping_add(1),
        "returned immediately"
    );
    assert_eq!(rig.buffers_out(), 0);
    count
}

fn descriptor(gpa: u64, bytes: u32, flags: u16, next: u16) -> Descriptor {
    Descriptor {
        gpa,
        bytes,
        flags,
        next,
    }
}

/// Returns a valid buffer.
fn sound(flags: u16, next: u16) -> Descriptor {
    descriptor(GPA + (1 << 20), 72, flags, next)
}

/// Returns a running device that serves a valid chain.
fn rig() -> Rig {
    Rig::running(offer(1), 16, FEATURES)
}

fn still_serves(rig: &mut Rig) {
    assert!(!rig.front.is_closed());
    assert_eq!(frames(rig, &[sound(0, 0)]), 1);
}

#[test]
fn a_chain_that_loops_is_returned_empty() {
    let mut rig = rig();
    assert_eq!(frames(&mut rig, &[sound(NEXT, 0)]), 0, "to itself");
    let two = [sound(NEXT, 1), sound(NEXT, 0)];
    assert_eq!(frames(&mut rig, &two), 0, "of two");
    let empty = descriptor(GPA, 0, NEXT, 0);
    assert_eq!(frames(&mut rig, &[empty]), 0, "without bytes");
    assert_eq!(rig.counter("rx_malformed"), 3);
    still_serves(&mut rig);
}

#[test]
fn indirect_tables_do_not_nest_or_loop() {
    let mut rig = rig();
    let at = GPA + (1 << 20);
    let inside = rig.front.at(1 << 20, 4096);
    let table = |bytes| descriptor(at, bytes, INDIRECT, 0);
    inside.write(&table(16).encode()).unwrap();
    assert_eq!(
        frames(&mut rig, &[table(16)]),
        0,
        "an indirect table in another one"
    );
    inside
        .write(&descriptor(at + 64, 72, NEXT, 0).encode())
        .unwrap();
    assert_eq!(frames(&mut rig, &[table(16)]), 0, "a loop");
    inside
        .write(&descriptor(at + 64, 72, NEXT, 1).encode())
        .unwrap();
    assert_eq!(
        frames(&mut rig, &[table(16)]),
        0,
        "beyond the end of the table"
    );
    for bytes in [0, 15, 17, 16 * 1025, u32::MAX] {
        assert_eq!(frames(&mut rig, &[table(bytes)]), 0, "{bytes} bytes");
    }
    let both = descriptor(at, 16, INDIRECT | NEXT, 1);
    assert_eq!(
        frames(&mut rig, &[both, sound(0, 0)]),
        0,
        "an indirect table and a next descriptor"
    );
    inside
        .write(&descriptor(at + 64, 72, 0, 0).encode())
        .unwrap();
    assert_eq!(frames(&mut rig, &[table(16)]), 1);
    still_serves(&mut rig);
}

#[test]
fn addresses_outside_the_memory_cost_a_frame() {
    let mut rig = rig();
    let end = GPA + rig.front.bytes();
    for (gpa, bytes) in [
        (0, 72),
        (GPA - 1, 72),
        (end - 71, 72),
        (end, 72),
        (u64::MAX - 71, 72),
        (u64::MAX, u32::MAX),
        (GPA, u32::MAX),
    ] {
        let outside = descriptor(gpa, bytes, 0, 0);
        assert_eq!(frames(&mut rig, &[outside]), 0, "{gpa:x} {bytes:x}");
        let table = descriptor(gpa, bytes & !15, INDIRECT, 0);
        assert_eq!(frames(&mut rig, &[table]), 0, "{gpa:x} {bytes:x}");
    }
    let far = sound(NEXT, 16);
    assert_eq!(
        frames(&mut rig, &[far]),
        0,
        "a descriptor outside the table"
    );
    assert_eq!(frames(&mut rig, &[sound(NEXT, u16::MAX)]), 0);
    still_serves(&mut rig);
}

#[test]
fn a_buffer_of_the_other_direction_is_not_used() {
    let mut rig = rig();
    assert_eq!(frames(&mut rig, &[sound(WRITE, 0)]), 0);
    assert_eq!(frames(&mut rig, &[sound(NEXT, 1), sound(WRITE, 0)]), 0);
    let ring = &mut rig.front.rings[0].ring;
    ring.describe(0, descriptor(GPA + (1 << 20), 2048, 0, 0));
    ring.offer(0);
    ring.publish();
    let memory = rig.front.at(1 << 20, 2048);
    memory.fill(7).unwrap();
    assert_eq!(rig.tx_bytes(0, &[0; 60]).sent, 0);
    let mut bytes = [0; 2048];
    memory.read(&mut bytes).unwrap();
    assert_eq!(bytes, [7; 2048], "a read-only buffer is not written");
    memory.fill(0).unwrap();
    still_serves(&mut rig);
}

#[test]
fn frames_that_no_wire_carries_are_dropped() {
    let mut rig = Rig::running(offer(1), 256, FEATURES | virtio::CSUM | virtio::HOST_TSO4);
    let long = descriptor(GPA, 65_535 + 18 + 12 + 1, 0, 0);
    assert_eq!(frames(&mut rig, &[long]), 0);
    let many: Vec<_> = (0..200)
        .map(|n| descriptor(GPA, 65_536, NEXT, n + 1))
        .collect();
    assert_eq!(frames(&mut rig, &many), 0);
    assert_eq!(
        frames(&mut rig, &[descriptor(GPA, 11, 0, 0)]),
        0,
        "half a header"
    );
    assert_eq!(
        frames(&mut rig, &[descriptor(GPA, 12, 0, 0)]),
        0,
        "a header alone"
    );
    assert_eq!(frames(&mut rig, &[descriptor(GPA, 0, 0, 0)]), 0, "nothing");
    assert_eq!(rig.counter("rx_malformed"), 5);
    still_serves(&mut rig);
}

#[test]
fn an_index_that_jumps_stops_its_ring() {
    for jump in [17, 1000, 0x8000, 0xffff] {
        let mut rig = Rig::running(offer(2), 16, FEATURES);
        let ring = &mut rig.front.rings[1].ring;
        ring.avail = jump;
        ring.publish();
        assert!(rig.rx_bytes(0).is_empty());
        assert_eq!(rig.counter("vm_broken_rings"), 1);
        let err = rustix::io::read(&rig.front.rings[1].err, &mut [0; 8]);
        assert_eq!(err, Ok(8), "the front end is notified");
        assert!(!rig.front.is_closed());
        rig.front.post(3, &[72], false, &[0; 72]).unwrap();
        assert_eq!(rig.rx_bytes(1).len(), 1, "the other pair continues");
        // The driver resets the ring.
        rig.front.rings[1].ring.avail = 0;
        rig.front.rings[1].ring.publish();
        rig.words(11, [1, 0]);
        rig.start_ring(1);
        still_serves(&mut rig);
    }
}

#[test]
fn a_chain_outside_the_table_stops_its_ring() {
    let mut rig = rig();
    let ring = &mut rig.front.rings[1].ring;
    ring.offer(16);
    ring.publish();
    assert!(rig.rx_bytes(0).is_empty());
    assert_eq!(rig.counter("vm_broken_rings"), 1);
    assert!(!rig.front.is_closed());
}

#[test]
fn memory_that_is_truncated_costs_frames_and_rings() {
    let mut rig = rig();
    let all = rig.front.bytes();
    // The buffers' region is removed; the rings' region stays.
    ftruncate(&rig.front.file, 1 << 17).unwrap();
    assert_eq!(frames(&mut rig, &[sound(0, 0)]), 0);
    assert_eq!(rig.counter("rx_fault"), 1);
    let ring = &mut rig.front.rings[0].ring;
    ring.describe(0, descriptor(GPA + (1 << 20), 2048, WRITE, 0));
    ring.offer(0);
    ring.publish();
    assert_eq!(rig.tx_bytes(0, &[0; 60]).fault, 1);
    ftruncate(&rig.front.file, all).unwrap();
    still_serves(&mut rig);
    // The rings' region is removed, too.
    ftruncate(&rig.front.file, 0).unwrap();
    assert!(rig.rx_bytes(0).is_empty());
    assert_eq!(rig.tx_bytes(0, &[0; 60]).sent, 0);
    assert_eq!(rig.counter("vm_broken_rings"), 2);
    assert!(!rig.front.is_closed());
}

#[test]
fn memory_vanishes_while_frames_are_copied() {
    let mut rig = Rig::running(offer(1), 256, FEATURES | virtio::CSUM | virtio::HOST_TSO4);
    let file = rig.front.file.try_clone().unwrap();
    let (buffers, bytes) = (1 << 17, rig.front.bytes() - (1 << 17));
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                fallocate(&file, hole, buffers, bytes).unwrap();
                ftruncate(&file, buffers).unwrap();
                ftruncate(&file, buffers + bytes).unwrap();
            }
        });
        for _ in 0..2000 {
            frames(&mut rig, &[descriptor(GPA + buffers, 40_000, 0, 0)]);
            let ring = &mut rig.front.rings[0].ring;
            ring.describe(0, descriptor(GPA + buffers, 2048, WRITE, 0));
            ring.offer(0);
            ring.publish();
            rig.tx_bytes(0, &[0; 1514]);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    ftruncate(&file, buffers + bytes).unwrap();
    still_serves(&mut rig);
}

#[test]
fn regions_that_overlap_or_wrap_end_the_connection() {
    let mib = 1 << 20;
    let free = GPA + (1 << 32);
    for region in [
        [GPA, mib, UVA + (1 << 32), 0],
        [GPA - mib + 4096, mib, UVA + (1 << 32), 0],
        [free, mib, UVA + 4096, 0],
        [free, 0, UVA + (1 << 32), 0],
        [free + 1, mib, UVA + (1 << 32), 0],
        [free, mib + 1, UVA + (1 << 32), 0],
        [free, mib, UVA + (1 << 32), 1],
        [u64::MAX - 4095, 8192, UVA + (1 << 32), 0],
        [free, mib, u64::MAX - 4095, 0],
        [free, mib, UVA + (1 << 32), u64::MAX - 4095],
        [free, 2 << 30, UVA + (1 << 40), 0],
        [free, u64::MAX - 4095, 0, 0],
    ] {
        let mut rig = rig();
        rig.add_region(region);
        assert!(rig.front.is_closed(), "{region:x?}");
        rig.restart();
        still_serves(&mut rig);
    }
}

#[test]
fn more_regions_than_slots_end_the_connection() {
    let mut rig = rig();
    for n in 1..32 {
        rig.add_region([GPA + (n << 32), 4096, UVA + (n << 32), 0]);
        assert!(!rig.front.is_closed(), "region {n}");
    }
    rig.add_region([GPA + (32 << 32), 4096, UVA + (32 << 32), 0]);
    assert!(rig.front.is_closed());
}

#[test]
fn a_ring_whose_region_is_removed_pauses() {
    let mut rig = rig();
    let region = rig.front.region();
    let mut payload = vec![0; 8];
    payload.extend(region.into_iter().flat_map(u64::to_le_bytes));
    rig.request(38, &payload, &[]);
    rig.front.post(1, &[72], false, &[0; 72]).unwrap();
    assert!(rig.rx_bytes(0).is_empty());
    assert_eq!(rig.tx_bytes(0, &[0; 60]).full, 1);
    rig.add_region(region);
    assert_eq!(rig.rx_bytes(0).len(), 1);
}

#[test]
fn rings_outside_the_memory_end_the_connection() {
    let end = UVA + rig().front.bytes();
    let sound = [UVA, UVA + 2048, UVA + 1024];
    for (which, address) in [
        (0, end - 16 * 16 + 16),
        (0, UVA + 8),
        (0, u64::MAX - 15),
        (1, end - 4),
        (1, UVA + 2),
        (2, end - 4),
        (2, UVA + 1),
        (2, 0),
    ] {
        let mut rig = rig();
        let mut addresses = sound;
        addresses[which] = address;
        let mut payload = vec![1, 0, 0, 0, 0, 0, 0, 0];
        payload.extend(addresses.into_iter().flat_map(u64::to_le_bytes));
        payload.extend([0; 8]);
        rig.request(9, &payload, &[]);
        assert!(rig.front.is_closed(), "{which} {address:x}");
    }
}

#[test]
fn wrong_messages_end_the_connection() {
    let word = |value: u64| value.to_le_bytes().to_vec();
    let cases: [(&str, u32, u32, Vec<u8>); 13] = [
        ("an unknown request", 0, 1, vec![]),
        ("a request of postcopy", 28, 1, vec![]),
        ("the status", 39, 1, word(0)),
        ("an IOTLB message", 22, 1, vec![0; 32]),
        ("version 0", 1, 0, vec![]),
        ("a reply", 1, 5, vec![]),
        ("a payload that is too short", 2, 1, vec![0; 7]),
        ("features that are not offered", 2, 1, word(1 << 17)),
        (
            "protocol features that are not offered",
            16,
            1,
            word(1 << 16),
        ),
        ("a ring that does not exist", 18, 1, word(2)),
        ("a ring size of 0", 8, 1, word(0)),
        ("a ring size of 3", 8, 1, word(3 << 32)),
        ("a ring of 65536", 8, 1, word(65_536 << 32)),
    ];
    for (what, request, flags, payload) in cases {
        let mut rig = rig();
        let header = [request, flags, payload.len() as u32];
        let header = header.map(u32::to_le_bytes).concat();
        assert!(send(&rig.front.socket, &[header, payload].concat(), &[]));
        rig.serve();
        assert!(rig.front.is_closed(), "{what}");
        rig.restart();
        still_serves(&mut rig);
    }
}

#[test]
fn payloads_beyond_the_bound_are_not_read() {
    for bytes in [513, 1 << 20, u32::MAX] {
        let mut rig = rig();
        let header = [1, 1, bytes].map(u32::to_le_bytes).concat();
        assert!(send(&rig.front.socket, &header, &[]));
        rig.serve();
        assert!(rig.front.is_closed());
    }
}

#[test]
fn a_partial_message_does_not_block_other_clients() {
    let mut rig = rig();
    let message = [
        [18, 1, 8].map(u32::to_le_bytes).concat(),
        vec![1, 0, 0, 0, 1, 0, 0, 0],
    ]
    .concat();
    for byte in &message {
        assert!(send(&rig.front.socket, &[*byte], &[]));
        rig.serve();
        still_serves(&mut rig);
    }
    assert!(send(&rig.front.socket, &message[..13], &[]));
    rig.serve();
    still_serves(&mut rig);
}

#[test]
fn descriptors_where_none_belong_are_closed() {
    for count in [1, 8, 9, 16] {
        for request in [1, 3, 8, 24] {
            let mut rig = rig();
            let (witness, end) = std::os::unix::net::UnixStream::pair().unwrap();
            let end = OwnedFd::from(end);
            let fds = vec![end.as_fd(); count];
            rig.front.send(request, 0, &[0; 24], &fds);
            rig.serve();
            let is_closed = rig.front.is_closed();
            assert!(count <= 8 || is_closed, "{count}");
            drop(end);
            witness.set_nonblocking(true).unwrap();
            let read = std::io::Read::read(&mut &witness, &mut [0; 1]);
            assert_eq!(read.unwrap(), 0, "every copy is closed");
        }
    }
    // Each byte has as many descriptors as the kernel accepts in one message.
    let mut rig = rig();
    for byte in [1_u32, 1, 0].map(u32::to_le_bytes).concat() {
        let fds = vec![rig.front.file.as_fd(); 8];
        send(&rig.front.socket, &[byte], &fds);
        rig.serve();
    }
    assert!(rig.front.is_closed());
}

#[test]
fn too_few_descriptors_end_the_connection() {
    for request in [5, 6, 7, 12, 13, 14, 21, 37] {
        let mut rig = rig();
        let mut payload = vec![0; 40];
        payload[0] = 1;
        rig.request(request, &payload, &[]);
        assert!(rig.front.is_closed(), "{request}");
    }
}

#[test]
fn a_front_end_that_reads_no_replies_is_closed() {
    let mut rig = Rig::connected(offer(1), 16);
    let header = [1_u32, 1, 0].map(u32::to_le_bytes).concat();
    let mut sent = 0;
    // Sending fails once the other end is closed.
    while send(&rig.front.socket, &header, &[]) {
        sent += 1;
        rig.serve();
        assert!(sent < 100_000, "the queue of unread replies is unbounded");
    }
    assert!(sent > 10);
}

#[test]
fn doorbell_floods_are_not_read() {
    let mut rig = rig();
    for _ in 0..10_000 {
        rustix::io::write(&rig.front.rings[1].kick, &1_u64.to_ne_bytes()).unwrap();
    }
    still_serves(&mut rig);
    let mut count = [0; 8];
    rustix::io::read(&rig.front.rings[1].kick, &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 10_000, "the shim wakes by edges");
}

#[test]
fn tiny_buffers_bound_the_work_of_a_frame() {
    let features = FEATURES | virtio::MRG_RXBUF;
    let mut rig = Rig::running(offer(1), 1024, features);
    rig.front.post(0, &[12], false, &[]).unwrap();
    for _ in 1..1000 {
        rig.front.post(0, &[1], false, &[]).unwrap();
    }
    assert_eq!(rig.tx_bytes(0, &[0; 1514]).refused, 1);
    assert_eq!(rig.front.rings[0].ring.used_index(), 256);
    assert_eq!(rig.counter("tx_too_small"), 1);
}

#[test]
fn random_messages_and_rings_break_nothing() {
    // This short run is a smoke test. The fuzz body `vhost` runs far more cases.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    for _ in 0..60 {
        let bytes: Vec<u8> = (0..400).map(|_| byte()).collect();
        hostile::messages(&bytes);
        hostile::rings(&bytes);
    }
}
