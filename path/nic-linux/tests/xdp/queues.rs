//! Tests dedicated queues on a real veth pair: the kernel writes frames for a guest only into this
//! guest's memory, and stops when the queue is closed.

use super::*;
use abi::firewall::{RuleLists, RuleRecord};
use abi::machine::XdpQueue;
use abi::xdp::RingLayout;
use netdev::xdp::QueueSocket;
use nic::{Buffer, BufferId};
use nic_linux::xdp::{HEADROOM, QueueParts};
use std::net::UdpSocket;

const A: [u8; 6] = [2, 0, 0, 0, 0, 0x0a];
const B: [u8; 6] = [2, 0, 0, 0, 0, 0x0b];
const POOL: usize = 64;

/// A guest: its memory, and the queue that receives into it.
struct Guest {
    area: Area,
    queue: nic_linux::xdp::DedicatedXdpQueue,
    device: QueueSocket,
    rings: Span,
}

/// Returns the description of a queue over all of `area`.
fn spec_of(queue: u32, mac: [u8; 6], area: Area, rules: RuleLists) -> XdpQueue {
    XdpQueue {
        queue,
        guest: String::new(),
        mac,
        first_frame: 0,
        frames: (area.len() / abi::PAGE) as u32,
        chunk_bytes: CHUNK as u32,
        entries: ENTRIES,
        rings_slot: 0,
        rules,
    }
}

impl Guest {
    fn new(wire: &Wire, number: u32, mac: [u8; 6]) -> Self {
        Self::with_rules(wire, number, mac, RuleLists::default())
    }

    /// Creates a guest with these firewall rules.
    fn with_rules(wire: &Wire, number: u32, mac: [u8; 6], rules: RuleLists) -> Self {
        let area = Area::anonymous(POOL * CHUNK).unwrap();
        Self::over(wire, number, mac, area, rules)
    }

    fn over(wire: &Wire, queue: u32, mac: [u8; 6], area: Area, rules: RuleLists) -> Self {
        let spec = spec_of(queue, mac, area, rules);
        let device = wire.interface.queue(&spec, area.span()).unwrap();
        let rings = map_rings(&device.ring_pages(), device.socket().as_fd());
        let parts = QueueParts {
            fd: device.socket().as_fd().try_clone_to_owned().unwrap(),
            rings,
            layouts: QueueSocket::RINGS.map(|ring| device.socket().layout(ring)),
            entries: ENTRIES,
            chunk_bytes: CHUNK,
            chunks: POOL,
        };
        Self {
            area,
            queue: nic_linux::xdp::DedicatedXdpQueue::new(parts, Box::new(Vec::new)).unwrap(),
            device,
            rings,
        }
    }

    fn post(&mut self, chunk: usize) -> bool {
        let buffer = Buffer {
            id: BufferId(chunk as u32),
            span: self.area.at(chunk * CHUNK, CHUNK).unwrap(),
        };
        self.queue.post(chunk * CHUNK, buffer)
    }

    /// Posts all chunks of the guest's memory, and enables the queue.
    fn enable(&mut self) {
        (0..POOL).for_each(|chunk| assert!(self.post(chunk)));
        self.queue.publish();
        self.device.enable().unwrap();
    }

    /// Receives frames until `count` have arrived, and posts their chunks again.
    fn receive(&mut self, count: usize) -> Vec<Vec<u8>> {
        let end = Instant::now() + TIMEOUT;
        let (mut all, mut frames, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        while all.len() < count && Instant::now() < end {
            self.queue.receive(64, &mut frames, &mut failed);
            for frame in frames.drain(..) {
                assert_eq!(frame.pieces.len(), 1);
                all.push(frame.to_vec().unwrap());
                assert!(self.post(frame.pieces[0].buffer.0 as usize));
            }
            assert!(failed.is_empty());
            self.queue.publish();
        }
        all
    }

    /// Returns a ring's memory and its layout.
    fn ring(&self, place: usize) -> (Span, RingLayout) {
        let bytes = Ring::slots(ENTRIES) as usize * abi::PAGE;
        let ring = QueueSocket::RINGS[place];
        let span = self.rings.sub(place * bytes, bytes).unwrap();
        (span, self.device.socket().layout(ring))
    }

    fn bytes(&self) -> Vec<u8> {
        let mut all = vec![0; self.area.len()];
        self.area.span().read(&mut all).unwrap();
        all
    }
}

fn wire(queues: u32) -> Option<Wire> {
    let namespace = place()?;
    let netdev = veth(&namespace);
    Wire::with_queues(namespace, netdev, queues)
}

fn to(mac: [u8; 6], number: u32, len: usize) -> Vec<u8> {
    let mut frame = frame(number, len);
    frame[..6].copy_from_slice(&mac);
    frame
}

#[test]
fn frames_are_written_only_to_their_guest() {
    let Some(mut wire) = wire(2) else { return };
    let station = Station::new(&wire.namespace, "wire");
    let mut guests = [Guest::new(&wire, 1, A), Guest::new(&wire, 2, B)];
    // Neither queue is enabled yet, so all frames use the shared queue.
    station.send(&to(A, 0, 100));
    assert_eq!(wire.receive(1, TIMEOUT), [to(A, 0, 100)]);
    guests.iter_mut().for_each(Guest::enable);
    let other = [2, 0, 0, 0, 0, 0x0c];
    for round in 0..50u32 {
        let len = 60 + 29 * round as usize;
        for mac in [A, B, other, [0xff; 6], A, B] {
            station.send(&to(mac, round, len));
        }
        for (guest, mac) in guests.iter_mut().zip([A, B]) {
            assert_eq!(guest.receive(2), [to(mac, round, len), to(mac, round, len)]);
        }
        let shared = wire.receive(2, TIMEOUT);
        assert_eq!(shared, [to(other, round, len), to([0xff; 6], round, len)]);
    }
    // Every frame in a guest's memory has this guest's MAC.
    for (guest, mac) in guests.iter().zip([A, B]) {
        let bytes = guest.bytes();
        let frames = bytes.chunks(CHUNK).filter(|chunk| chunk[HEADROOM] != 0);
        assert!(frames.clone().count() > 10);
        for chunk in frames {
            assert_eq!(chunk[HEADROOM..HEADROOM + 6], mac);
        }
    }
}

/// Returns a frame with an IPv4 packet of a protocol to a guest. Its payload consists of `mark`.
fn packet(mac: [u8; 6], protocol: u8, mark: u8) -> Vec<u8> {
    let mut frame = to(mac, 0, 0);
    frame.truncate(12);
    frame.extend([8, 0, 0x45, 0, 1, 0x18, 0, 0, 0, 0, 64, protocol, 0, 0]);
    frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    frame.resize(frame.len() + 260, mark);
    frame
}

/// XDP-20: the kernel writes no byte of a denied frame into a guest's memory, with rules of either
/// list. It writes allowed frames there. The second guest has other rules.
#[test]
fn denied_frames_are_not_written() {
    const DENIED: u8 = 0xd1;
    const ALLOWED: u8 = 0xa1;
    let Some(wire) = wire(2) else { return };
    let station = Station::new(&wire.namespace, "wire");
    let rule = |allow, protocol| RuleRecord {
        allow,
        protocol: Some(protocol),
        ..RuleRecord::default()
    };
    let from_wire = vec![rule(true, 17), rule(false, 6)];
    let rules = RuleLists {
        from_wire: from_wire.clone(),
        to_guest: vec![rule(false, 17)],
    };
    let other = RuleLists {
        from_wire,
        to_guest: Vec::new(),
    };
    let mut guests = [
        Guest::with_rules(&wire, 1, A, rules),
        Guest::with_rules(&wire, 2, B, other),
    ];
    guests.iter_mut().for_each(Guest::enable);
    let bytes = packet(A, 1, ALLOWED).len() as u64;
    for _ in 0..100 {
        for (mac, protocol, allowed) in [
            (A, 6, false),
            (A, 17, false),
            (A, 1, true),
            (B, 6, false),
            (B, 17, true),
        ] {
            let mark = if allowed { ALLOWED } else { DENIED };
            station.send(&packet(mac, protocol, mark));
        }
        assert_eq!(guests[0].receive(1), [packet(A, 1, ALLOWED)]);
        assert_eq!(guests[1].receive(1), [packet(B, 17, ALLOWED)]);
    }
    for guest in &guests {
        let found = guest.bytes();
        assert!(found.contains(&ALLOWED) && !found.contains(&DENIED));
    }
    let denied = |guest: usize| {
        let device = &guests[guest].device;
        let rules = (0..4).map(|rule| device.denied(rule));
        rules.filter_map(Result::ok).collect::<Vec<_>>()
    };
    let hundred = [100, 100 * bytes];
    assert_eq!(denied(0), [[0, 0], hundred, hundred]);
    assert_eq!(denied(1), [[0, 0], hundred]);
}

/// XDP-20: the counters of a closed queue include the last denied frame, and stay constant although
/// further frames of this kind arrive. The queue cannot be enabled again.
#[test]
fn denied_frames_are_counted_until_the_close() {
    let Some(mut wire) = wire(1) else { return };
    let rules = RuleLists {
        from_wire: vec![RuleRecord::default()],
        to_guest: Vec::new(),
    };
    let mut guest = Guest::with_rules(&wire, 1, A, rules);
    guest.enable();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let namespace = &wire.namespace;
    let last = std::thread::scope(|scope| {
        scope.spawn(|| {
            let station = Station::new(namespace, "wire");
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                (0..10).for_each(|n| station.send(&to(A, n, 100)));
            }
        });
        let denied = || guest.device.denied(0).unwrap();
        wait_until("the queue has not denied 1000 frames", || {
            denied()[0] >= 1000
        });
        guest.device.end();
        let last = denied();
        guest.device.end();
        assert!(guest.device.enable().is_err());
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(denied(), last);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        last
    });
    assert_eq!(last[1], last[0] * 100);
    assert!(
        !wire.receive(1, TIMEOUT).is_empty(),
        "frames use the shared queue"
    );
}

/// Returns the descriptor of the program map of a wire with `queues` guest queues. No other test
/// uses this number of queues.
fn programs_of(queues: u32) -> u32 {
    let all = std::fs::read_dir("/proc/self/fdinfo").unwrap();
    let expected = ["map_type:\t3", &format!("max_entries:\t{}", queues + 1)];
    let mut found = all.filter_map(|entry| {
        let path = entry.ok()?.path();
        let info = std::fs::read_to_string(&path).ok()?;
        let has = |line: &&str| info.lines().any(|found| found == *line);
        expected.iter().all(has).then_some(())?;
        path.file_name()?.to_str()?.parse().ok()
    });
    found.next().unwrap()
}

/// Makes a bpf(2) call on a map, optionally with a key.
fn change_map(command: libc::c_long, map: u32, key: Option<&u32>) {
    let key = key.map_or(0, |key| &raw const *key as u64);
    let attributes = [u64::from(map), key];
    // SAFETY: the kernel reads the attributes and the key, which live until the call returns.
    let done = unsafe {
        let bytes = size_of_val(&attributes);
        libc::syscall(libc::SYS_bpf, command, &raw const attributes, bytes)
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// XDP-20: the kernel drops frames of a queue without a program, with or without rules.
#[test]
fn a_queue_without_its_program_receives_nothing() {
    const QUEUES: u32 = 5;
    const BPF_MAP_DELETE_ELEM: libc::c_long = 3;
    let Some(mut wire) = wire(QUEUES) else {
        return;
    };
    let station = Station::new(&wire.namespace, "wire");
    let mut guests = [Guest::new(&wire, 1, A), Guest::new(&wire, 2, B)];
    guests.iter_mut().for_each(Guest::enable);
    for (guest, mac) in guests.iter_mut().zip([A, B]) {
        station.send(&to(mac, 0, 100));
        assert_eq!(guest.receive(1), [to(mac, 0, 100)]);
    }
    change_map(BPF_MAP_DELETE_ELEM, programs_of(QUEUES), Some(&1));
    let before = guests[0].bytes();
    for number in 0..100 {
        station.send(&to(A, number, 500));
        station.send(&to(B, number, 500));
        assert_eq!(guests[1].receive(1), [to(B, number, 500)]);
    }
    assert!(wire.receive(1, Duration::from_millis(200)).is_empty());
    assert!(
        guests[0].bytes() == before,
        "the guest's memory has changed"
    );
    let (mut frames, mut failed) = (Vec::new(), Vec::new());
    guests[0].queue.receive(64, &mut frames, &mut failed);
    assert_eq!((frames.len(), failed.len()), (0, 0));
}

/// XDP-20: if the kernel rejects a queue's program, the error of creating the queue names the
/// position of the failed program.
#[test]
fn rejected_program_fails_queue_creation() {
    const QUEUES: u32 = 6;
    const BPF_MAP_FREEZE: libc::c_long = 22;
    let Some(wire) = wire(QUEUES) else { return };
    change_map(BPF_MAP_FREEZE, programs_of(QUEUES), None);
    let area = Area::anonymous(POOL * CHUNK).unwrap();
    let spec = spec_of(3, A, area, RuleLists::default());
    let error = wire.interface.queue(&spec, area.span()).unwrap_err();
    let expected = format!(
        "queue 3 of interface `wire` in namespace {} cannot have the program of the 0 firewall \
            rules before it: \
         Operation not permitted",
        path(&wire.namespace)
    );
    assert!(error.to_string().starts_with(&expected), "{error}");
}

/// The kernel cannot send from a guest's memory, because a guest's queue has no transmit ring.
#[test]
fn a_guest_queue_cannot_send() {
    let Some(wire) = wire(1) else { return };
    let guest = Guest::new(&wire, 1, A);
    assert!(rustix::io::write(guest.device.socket(), &[]).is_err());
    let offset = libc::XDP_PGOFF_TX_RING;
    // SAFETY: the kernel selects the address of the mapping, which is not accessed.
    let mapped = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            abi::PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            guest.device.socket().as_fd().as_raw_fd(),
            offset,
        )
    };
    assert_eq!(mapped, libc::MAP_FAILED);
}

/// A sender's socket caches its queue. If the queue now belongs to another guest or to no guest,
/// the kernel drops the frame. After a queue is closed, the kernel writes nothing into its memory,
/// although chunks are still posted.
#[test]
fn cached_queues_deliver_to_no_other_guest() {
    let Some(mut wire) = wire(2) else { return };
    let mut guests = [Guest::new(&wire, 1, A), Guest::new(&wire, 2, B)];
    guests.iter_mut().for_each(Guest::enable);
    let neighbour = |namespace: &Namespace, mac: &str| {
        let words = format!("neigh replace 10.0.0.2 lladdr {mac} dev wire");
        let run = || Command::new("ip").args(words.split(' ')).status();
        namespace.enter(run).unwrap().is_ok_and(|s| s.success())
    };
    assert!(neighbour(&wire.namespace, "02:00:00:00:00:0a"));
    let connected = || {
        let socket = UdpSocket::bind("10.0.0.1:0").unwrap();
        socket.connect("10.0.0.2:2000").unwrap();
        socket
    };
    let socket = wire.namespace.enter(connected).unwrap();
    socket.send(b"to A").unwrap();
    assert_eq!(guests[0].receive(1).len(), 1);
    // From now on the socket's frames have B's MAC, but use A's queue.
    assert!(neighbour(&wire.namespace, "02:00:00:00:00:0b"));
    let before = [guests[0].bytes(), guests[1].bytes()];
    (0..200).for_each(|_| assert_eq!(socket.send(b"to B").unwrap(), 4));
    let fresh = wire.namespace.enter(connected).unwrap();
    fresh.send(b"to B").unwrap();
    assert_eq!(
        guests[1].receive(1).len(),
        1,
        "a new socket selects B's queue"
    );
    assert!(
        guests[0].bytes() == before[0],
        "a frame for B is in A's memory"
    );
    // B's queue is closed while frames are sent to it.
    guests[1].device.end();
    let before = guests[1].bytes();
    (0..200).for_each(|_| assert_eq!(fresh.send(b"to B").unwrap(), 4));
    let late = wire.namespace.enter(connected).unwrap();
    late.send(b"to B").unwrap();
    // Frames for B use the shared queue again.
    wire.receive_one(|frame| frame[..6] == B);
    assert!(guests[1].bytes() == before);
    assert_eq!(
        guests[1].queue.outstanding(),
        POOL,
        "all chunks are still posted"
    );
}

/// With arbitrary contents of the rings of a guest's queue, the kernel accesses only that guest's
/// memory.
#[test]
fn forged_guest_entries_access_no_other_memory() {
    let Some(wire) = wire(1) else { return };
    let station = Station::new(&wire.namespace, "wire");
    // The guest's receive pool is in the middle of the memory.
    let memory = Area::anonymous(3 * POOL * CHUNK).unwrap();
    memory.span().fill(7).unwrap();
    let pool = memory.part(POOL * CHUNK, POOL * CHUNK).unwrap();
    let mut guest = Guest::over(&wire, 1, A, pool, RuleLists::default());
    guest.enable();
    let (fill, layout) = guest.ring(1);
    let end = (POOL * CHUNK) as u64;
    let outside = [end, end + 4096, u64::MAX, u64::MAX - 2047, 1 << 47, 1 << 63];
    let forge = |addresses: &[u64]| {
        for (n, address) in addresses.iter().cycle().take(ENTRIES as usize).enumerate() {
            let at = usize::from(layout.entries) + n * 8;
            fill.store_u64(at, *address).unwrap();
        }
        let taken = fill.load_u32(layout.consumer.into()).unwrap();
        let full = taken.wrapping_add(ENTRIES);
        fill.store_u32(layout.producer.into(), full).unwrap();
    };
    for _ in 0..20 {
        forge(&outside);
        (0..20).for_each(|n| station.send(&to(A, n, 1000)));
    }
    wait_until("the kernel has not dropped a frame", || {
        guest.device.socket().counter(Counter::Dropped).unwrap() > 0
    });
    // These entries are valid, because they lie in the guest's memory: chunks that were not posted,
    // and an address within a chunk.
    forge(&[0, 0, 2048 + 1000, end - 2048]);
    (0..20).for_each(|n| station.send(&to(A, n, 1000)));
    let mut bytes = vec![0; POOL * CHUNK];
    for offset in [0, 2 * POOL * CHUNK] {
        let around = memory.at(offset, POOL * CHUNK).unwrap();
        around.read(&mut bytes).unwrap();
        assert!(
            bytes.iter().all(|&byte| byte == 7),
            "memory outside the pool is unchanged"
        );
    }
}

/// The data path validates receive entries: each posting of a chunk can receive one frame.
#[test]
fn packets_in_unposted_chunks_are_counted() {
    let Some(wire) = wire(1) else { return };
    let mut guest = Guest::new(&wire, 1, A);
    assert!(guest.post(3) && guest.post(4));
    assert!(!guest.post(3), "the chunk is already posted");
    let other = Buffer {
        id: BufferId(9),
        span: guest.area.at(5 * CHUNK, CHUNK).unwrap(),
    };
    let memory = POOL * CHUNK;
    assert!(
        !guest.queue.post(memory, other),
        "the chunk lies outside the guest's memory"
    );
    assert!(
        !guest.queue.post(5 * CHUNK + 8, other),
        "no chunk begins at this offset"
    );
    let (receive, layout) = guest.ring(0);
    let at = |chunk: usize| (chunk * CHUNK + HEADROOM) as u64;
    let packets = [
        (at(5), 100),
        (at(3), 100),
        (at(3), 100),
        (u64::MAX, 100),
        (at(4), 4096),
        (at(4), 100),
    ];
    for (n, (address, len)) in packets.into_iter().enumerate() {
        let entry = usize::from(layout.entries) + n * 16;
        receive.store_u64(entry, address).unwrap();
        receive.store_u64(entry + 8, len).unwrap();
    }
    let written = packets.len() as u32;
    receive.store_u32(layout.producer.into(), written).unwrap();
    let (mut frames, mut failed) = (Vec::new(), Vec::new());
    assert_eq!(guest.queue.receive(64, &mut frames, &mut failed), 6);
    assert_eq!((frames.len(), &*failed), (1, &[BufferId(4)][..]));
    assert_eq!(guest.queue.outstanding(), 0);
    let counters = guest.queue.counters();
    assert!(counters.contains(&("rx_malformed", 5)), "{counters:?}");
    assert!(counters.contains(&("rx_foreign_buffer", 3)));
    receive.store_u32(layout.producer.into(), u32::MAX).unwrap();
    guest.queue.receive(64, &mut frames, &mut failed);
    assert_eq!((frames.len(), failed.len()), (1, 1));
}

/// The next socket can use a queue only after both the descriptor and the rings of the last socket
/// were released.
#[test]
fn a_queue_is_free_without_descriptor_and_rings() {
    let Some(wire) = wire(1) else { return };
    let Guest {
        queue,
        device,
        rings,
        area,
    } = Guest::new(&wire, 1, A);
    let spec = spec_of(1, A, area, RuleLists::default());
    let again = || wire.interface.queue(&spec, area.span());
    let busy = |error: NetError| error.to_string().contains("busy");
    device.end();
    drop((queue, device));
    assert!(again().is_err_and(busy), "the rings are mapped");
    // SAFETY: the memory is reserved for spans, and is not accessed after this.
    let unmapped = unsafe { libc::munmap(rings.as_ptr().cast(), rings.len()) };
    assert_eq!(unmapped, 0);
    wait_until("the queue is still busy", || !again().is_err_and(busy));
}

/// A revoked page of a pool is replaced, and the kernel never writes to the page again.
#[test]
fn the_kernel_does_not_write_to_a_replaced_page() {
    let Some(wire) = wire(1) else { return };
    let station = Station::new(&wire.namespace, "wire");
    let region = shmem::Region::create("pool", POOL * CHUNK).unwrap();
    let spec = XdpQueue {
        queue: 1,
        guest: String::new(),
        mac: A,
        first_frame: 0,
        frames: (POOL * CHUNK / abi::PAGE) as u32,
        chunk_bytes: CHUNK as u32,
        entries: ENTRIES,
        rings_slot: 0,
        rules: RuleLists::default(),
    };
    let device = wire.interface.queue(&spec, region.span()).unwrap();
    let rings = map_rings(&device.ring_pages(), device.socket().as_fd());
    let bytes = Ring::slots(ENTRIES) as usize * abi::PAGE;
    let (fill, layout) = (rings.skip(bytes), device.socket().layout(Ring::Fill));
    // All entries of the fill ring point to the first page.
    for n in 0..ENTRIES as usize {
        fill.store_u64(usize::from(layout.entries) + n * 8, 0)
            .unwrap();
    }
    fill.store_u32(layout.producer.into(), ENTRIES).unwrap();
    device.enable().unwrap();
    let page = region.span().take(abi::PAGE);
    let first = |page: Span| page.load_u64(HEADROOM).unwrap();
    station.send(&to(A, 1, 500));
    wait_until("the kernel has not written to the page", || {
        first(page) != 0
    });
    let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: the system call has no pointers, and the page is reserved for spans.
    let punched = unsafe { libc::fallocate(region.fd().as_raw_fd(), hole, 0, abi::PAGE as i64) };
    assert_eq!(punched, 0);
    page.fill(9).unwrap();
    let (received, layout) = (rings, device.socket().layout(Ring::Receive));
    let count = || received.load_u32(layout.producer.into()).unwrap();
    let before = count();
    (0..50).for_each(|n| station.send(&to(A, n, 500)));
    wait_until("the further frames have not arrived", || {
        count() >= before + 50
    });
    let mut bytes = vec![0; abi::PAGE];
    page.read(&mut bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 9));
}
