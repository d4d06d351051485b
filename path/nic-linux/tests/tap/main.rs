//! Tests the set-up, frames and offloads of real TAPs in new network namespaces. Without root or a
//! TAP driver, every test is skipped and logs why.
#![allow(clippy::unwrap_used)]

mod frames;

use crate::frames::{Supply, expect, frame_of, sum, udp4};
use abi::machine::Route;
use netdev::TapSpec;
use netdev::netns::Namespace;
use netdev::tool_setup::open_tap;
use nic::{Buffer, BufferId, Buffers, Caps, Checksum, Frame, Gso, GsoKind, Nic, Piece};
use nic_linux::TapNic;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;
use testing::{TIMEOUT, wait_for, wait_until};

const OURS: [u8; 6] = [2, 0, 0, 0, 0, 0xaa];
const THEIRS: [u8; 6] = [2, 0, 0, 0, 0, 0xbb];

fn namespace() -> Option<Namespace> {
    testing::require!(tap);
    Some(Namespace::new().unwrap())
}

fn spec(namespace: &Namespace, ifname: &str) -> TapSpec {
    TapSpec {
        ifname: ifname.to_owned(),
        netns: Some(namespace.path().display().to_string()),
        mac: Some(THEIRS),
        addresses: vec!["10.9.0.1/24".to_owned(), "fd09::1/64".to_owned()],
        mtu: 1500,
        tx_queue: 1000,
        ..TapSpec::default()
    }
}

fn offloading(namespace: &Namespace) -> TapSpec {
    TapSpec {
        vnet_header: true,
        checksum: true,
        tso: true,
        ..spec(namespace, "tap0")
    }
}

fn nic_of(spec: &TapSpec) -> TapNic {
    let fd = open_tap(spec).unwrap();
    TapNic::new(
        fd,
        spec.vnet_header,
        spec.checksum,
        spec.tso,
        spec.mtu as usize,
    )
}

fn neighbour(namespace: &Namespace) {
    let mac = "02:00:00:00:00:aa";
    for (address, family) in [("10.9.0.2", "-4"), ("fd09::2", "-6")] {
        let arguments = [
            family, "neigh", "replace", address, "lladdr", mac, "dev", "tap0",
        ];
        let status = namespace
            .enter(|| Command::new("ip").args(arguments).status().unwrap())
            .unwrap();
        assert!(status.success());
    }
}

#[test]
fn tap_is_configured_and_removed_with_descriptor() {
    let Some(namespace) = namespace() else { return };
    // No other test uses this name in any namespace.
    let mut tap = spec(&namespace, "configured0");
    tap.mtu = 1400;
    tap.tx_queue = 77;
    tap.gateway = Some("10.9.0.254".to_owned());
    let route = |to: &str, prefix, via: Option<&str>| Route {
        to: to.parse().unwrap(),
        prefix,
        via: via.map(|via| via.parse().unwrap()),
    };
    tap.routes = vec![
        route("192.0.2.1", 32, None),
        route("10.77.0.0", 16, Some("192.0.2.1")),
        route("::", 0, Some("fd09::2")),
    ];
    let fd = open_tap(&tap).unwrap();
    let show = |what: &'static [&'static str]| {
        let output = namespace
            .enter(|| Command::new("ip").args(what).output().unwrap())
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let link = show(&["link", "show", "dev", "configured0"]);
    for part in ["mtu 1400", "qlen 77", "02:00:00:00:00:bb", ",UP"] {
        assert!(link.contains(part), "{part} in {link}");
    }
    let addresses = show(&["address", "show", "dev", "configured0"]);
    for part in ["10.9.0.1/24", "fd09::1/64"] {
        assert!(addresses.contains(part), "{part} in {addresses}");
    }
    // The kernel derives the link-local address from the MAC, so this address is excluded.
    let mut given = addresses.lines().filter(|line| !line.contains("fe80:"));
    assert!(!given.any(|line| line.contains("tentative")), "{addresses}");
    let routes = show(&["route"]);
    for part in [
        "default via 10.9.0.254 dev configured0",
        "192.0.2.1 dev configured0 scope link",
        "10.77.0.0/16 via 192.0.2.1 dev configured0",
    ] {
        assert!(routes.contains(part), "{part} in {routes}");
    }
    assert!(show(&["-6", "route"]).contains("default via fd09::2 dev configured0"));
    drop(fd);
    // A process that another test starts concurrently inherits the descriptor, and so keeps the
    // interface until it executes its program.
    wait_until("the interface still exists", || {
        !show(&["link"]).contains("configured0")
    });
    let own = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    assert!(!own.contains("configured0"), "{own}");
}

#[test]
fn setup_errors_name_the_cause_and_place() {
    let Some(namespace) = namespace() else { return };
    let fails_with = |tap: &TapSpec, parts: &[&str]| {
        let text = open_tap(tap).unwrap_err().to_string();
        for part in parts {
            assert!(text.contains(part), "{part} in {text}");
        }
    };
    let fine = spec(&namespace, "tap0");
    let _first = open_tap(&fine).unwrap();
    fails_with(
        &fine,
        &[
            "`tap0`",
            "already exists",
            &namespace.path().display().to_string(),
        ],
    );
    fails_with(
        &TapSpec {
            ifname: "lo".into(),
            ..fine.clone()
        },
        &["`lo`", "already exists"],
    );
    fails_with(
        &TapSpec {
            ifname: "much-too-long-name".into(),
            ..fine.clone()
        },
        &["much-too-long-name", "15"],
    );
    fails_with(
        &TapSpec {
            netns: Some("no-such-namespace".into()),
            ..fine.clone()
        },
        &["/run/netns/no-such-namespace", "ip netns list"],
    );
    fails_with(
        &TapSpec {
            netns: Some("/etc/passwd".into()),
            ..fine.clone()
        },
        &["/etc/passwd"],
    );
    // Each case uses a separate name, because an interface may outlive its descriptor briefly if
    // another test's new process has inherited the descriptor.
    let other = |ifname: &str, change: &dyn Fn(&mut TapSpec)| {
        let mut tap = spec(&namespace, ifname);
        tap.addresses.clear();
        change(&mut tap);
        tap
    };
    fails_with(
        &other("tap1", &|tap| tap.addresses = vec!["10.0.0.1/99".into()]),
        &["10.0.0.1/99"],
    );
    fails_with(
        &other("tap2", &|tap| {
            tap.addresses = vec!["10.1.0.1/24".into(), "10.1.0.1/24".into()];
        }),
        &["tap2", "twice"],
    );
    fails_with(
        &other("tap3", &|tap| tap.gateway = Some("192.0.2.1".into())),
        &["tap3", "gateway"],
    );
    fails_with(
        &other("tap4", &|tap| tap.mac = Some([1, 0, 0, 0, 0, 1])),
        &["tap4", "MAC"],
    );
    for ifname in ["tap1", "tap2", "tap3", "tap4"] {
        wait_until("a failed set-up has left an interface", || {
            open_tap(&other(ifname, &|_| ())).is_ok()
        });
    }
}

#[test]
fn frames_without_a_virtio_header_pass_both_ways() {
    let Some(namespace) = namespace() else { return };
    let mut nic = nic_of(&spec(&namespace, "tap0"));
    assert_eq!(
        nic.caps(),
        Caps {
            checksum: false,
            tso: false,
            max_frame: 1514
        }
    );
    neighbour(&namespace);
    // The supply has more buffers than the kernel's stack can fill.
    let mut supply = Supply::new(64, 0);
    let socket = namespace
        .enter(|| UdpSocket::bind("10.9.0.1:7000").unwrap())
        .unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();

    // The kernel sends a frame, which `rx` receives.
    let data: Vec<u8> = (0..1472u32).map(|n| n as u8).collect();
    socket.send_to(&data, "10.9.0.2:5").unwrap();
    let (mut frame, bytes) = expect(&mut nic, &mut supply, |b| b.len() == 1514);
    assert_eq!(&bytes[0..6], &OURS);
    assert_eq!(&bytes[42..], &data[..]);
    assert_eq!(frame.offload.checksum, Checksum::Unknown);
    frame.recycle(&mut supply);

    // `tx` sends a whole frame, and frames in pieces that split the headers.
    for piece in [4096, 700, 9] {
        let sent = frame_of(&udp4(7000, &data, false), piece);
        let report = nic.tx(0, &[sent], &[0]);
        assert_eq!((report.sent, report.bytes), (1, 1514), "{report:?}");
        let mut got = [0; 2000];
        let (len, from) = socket.recv_from(&mut got).unwrap();
        assert_eq!(&got[..len], &data[..]);
        assert_eq!(from, "10.9.0.2:5".parse::<SocketAddr>().unwrap());
    }

    // The TAP rejects a frame that needs an offload, a frame that is too long, and one that is too
    // short.
    let mut blank = frame_of(&udp4(7000, &data, true), 4096);
    blank.offload.checksum = Checksum::Blank {
        start: 34,
        offset: 6,
    };
    let long = frame_of(&udp4(7000, &[0; 1473], false), 4096);
    let short = frame_of(&[0; 13], 4096);
    let report = nic.tx(0, &[blank, long, short], &[0, 1, 2, 3]);
    assert_eq!((report.sent, report.refused), (0, 4));

    // After an empty read one buffer stays reserved for the next frame.
    let mut frames = Vec::new();
    while nic.rx(0, 64, &mut supply, &mut frames) > 0 {}
    frames
        .iter_mut()
        .for_each(|frame| frame.recycle(&mut supply));
    assert_eq!(supply.in_use, 1);
    nic.release(&mut supply);
    assert_eq!(supply.in_use, 0);
}

/// A persistent TAP keeps its setting while it has no queue, and its next queue has a thread, too.
#[test]
fn napi_threads_receive_frames() {
    testing::require!(sysfs);
    let Some(namespace) = namespace() else { return };
    let threaded = || {
        let script = "mount -t sysfs sysfs /sys && cat /sys/class/net/tap0/threaded";
        let read = || {
            Command::new("unshare")
                .args(["-m", "sh", "-c", script])
                .output()
        };
        String::from_utf8(namespace.enter(read).unwrap().unwrap().stdout).unwrap()
    };
    let mut tap = offloading(&namespace);
    tap.persistent = Some("test".to_owned());
    drop(nic_of(&tap));
    assert_eq!(threaded(), "0\n");
    tap.napi_threads = true;
    for _ in 0..2 {
        let mut nic = nic_of(&tap);
        assert_eq!(threaded(), "1\n");
        let socket = namespace
            .enter(|| UdpSocket::bind("10.9.0.1:7000").unwrap())
            .unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        let sent = frame_of(&udp4(7000, b"polled", false), 4096);
        assert_eq!(nic.tx(0, &[sent], &[0]).sent, 1);
        assert_eq!(socket.recv_from(&mut [0; 100]).unwrap().0, 6);
    }
}

#[test]
fn a_tap_whose_interface_was_removed_is_closed() {
    let Some(namespace) = namespace() else { return };
    let (removed, closed) = mpsc::channel();
    let nic = nic_of(&offloading(&namespace));
    let mut nic = nic.on_removed(Box::new(move || removed.send(()).unwrap()));
    let mut supply = Supply::new(64, 40);
    let mut frames = Vec::new();
    nic.rx(0, 64, &mut supply, &mut frames);
    assert!(closed.try_recv().is_err());
    let delete = || Command::new("ip").args(["link", "del", "tap0"]).status();
    assert!(namespace.enter(delete).unwrap().unwrap().success());
    for _ in 0..2 {
        assert_eq!(nic.rx(0, 64, &mut supply, &mut Vec::new()), 0);
        let frame = frame_of(&udp4(7000, b"late", false), 4096);
        let report = nic.tx(0, &[frame], &[0]);
        assert_eq!((report.sent, report.refused), (0, 1));
    }
    assert_eq!(closed.iter().count(), 1, "the callback runs once");
    assert!(nic.counters().contains(&("no_device", 1)));
    frames
        .iter_mut()
        .for_each(|frame| frame.recycle(&mut supply));
    assert_eq!(supply.in_use, 0, "no buffer is kept");
}

#[test]
fn a_vlan_tag_does_not_count_towards_the_mtu() {
    let Some(namespace) = namespace() else { return };
    let mut nic = nic_of(&spec(&namespace, "tap0"));
    let mut bytes = [&THEIRS[..], &OURS[..], &[0x81, 0, 0, 5, 8, 0]].concat();
    bytes.resize(1518, 0);
    let tagged = frame_of(&bytes, 4096);
    bytes.push(0);
    let longer = frame_of(&bytes, 4096);
    let report = nic.tx(0, &[tagged, longer], &[0, 1]);
    assert_eq!((report.sent, report.refused), (1, 1));
}

#[test]
fn blank_checksums_pass_both_ways() {
    let Some(namespace) = namespace() else { return };
    let mut nic = nic_of(&offloading(&namespace));
    neighbour(&namespace);
    let mut supply = Supply::new(8, 40);
    let socket = namespace
        .enter(|| UdpSocket::bind("10.9.0.1:7000").unwrap())
        .unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();

    let mut blank = frame_of(&udp4(7000, b"blank", true), 4096);
    blank.offload.checksum = Checksum::Blank {
        start: 34,
        offset: 6,
    };
    assert_eq!(nic.tx(0, &[blank], &[0]).sent, 1);
    let mut got = [0; 100];
    assert_eq!(socket.recv_from(&mut got).unwrap().0, 5);

    socket.send_to(b"from the kernel", "10.9.0.2:5").unwrap();
    let (frame, bytes) = expect(&mut nic, &mut supply, |b| b.ends_with(b"from the kernel"));
    assert_eq!(
        frame.offload.checksum,
        Checksum::Blank {
            start: 34,
            offset: 6
        }
    );
    let pseudo = sum(&bytes[26..34], 17 + bytes.len() as u32 - 34);
    assert_eq!(
        bytes[40..42],
        pseudo.to_be_bytes(),
        "the field holds the pseudo-header's sum"
    );

    let mut beyond = frame_of(&udp4(7000, b"x", true), 4096);
    beyond.offload.checksum = Checksum::Blank {
        start: 42,
        offset: 0,
    };
    assert_eq!(
        nic.tx(0, &[beyond], &[0]).refused,
        1,
        "the field lies after the end"
    );
}

#[test]
fn small_frames_use_only_small_buffers() {
    let Some(namespace) = namespace() else { return };
    let mut nic = nic_of(&offloading(&namespace));
    neighbour(&namespace);
    let mut supply = Supply::new(8, 40);
    let socket = namespace
        .enter(|| UdpSocket::bind("10.9.0.1:7000").unwrap())
        .unwrap();
    for n in 0..20u8 {
        socket.send_to(&[n; 500], "10.9.0.2:5").unwrap();
        let (mut frame, _) = expect(&mut nic, &mut supply, |bytes| bytes.ends_with(&[n; 500]));
        assert_eq!(frame.pieces.len(), 1);
        assert!(
            frame.pieces[0].buffer.0 < 8,
            "the frame is in a large buffer"
        );
        frame.recycle(&mut supply);
    }
}

/// Copies frames between the TAPs of two namespaces, and tests that TCP works and uses packets that
/// are much longer than the MTU.
fn tcp_through_two_taps(listen: IpAddr, kind: GsoKind) {
    let (Some(left_ns), Some(right_ns)) = (namespace(), namespace()) else {
        return;
    };
    let left_spec = offloading(&left_ns);
    let mut right_spec = offloading(&right_ns);
    right_spec.mac = Some(OURS);
    right_spec.addresses = vec!["10.9.0.2/24".to_owned(), "fd09::2/64".to_owned()];
    let (mut left, mut right) = (nic_of(&left_spec), nic_of(&right_spec));
    // Without this setting, a slow stream has short packets, because the kernel limits them to the
    // data sent per millisecond.
    let whole = || std::fs::write("/proc/sys/net/ipv4/tcp_min_tso_segs", "44").unwrap();
    left_ns.enter(whole).unwrap();
    let listener = right_ns
        .enter(|| TcpListener::bind((listen, 7000)).unwrap())
        .unwrap();
    const BYTES: usize = 20_000_000;
    let byte = |n: usize| (n * 7 + n / 251) as u8;
    let receiver = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut all = Vec::with_capacity(BYTES);
        stream.read_to_end(&mut all).unwrap();
        all.len() == BYTES && all.iter().enumerate().all(|(n, b)| *b == byte(n))
    });
    let left_path = left_ns.path();
    let sender = thread::spawn(move || {
        let mut stream =
            netdev::netns::in_netns(left_path, || TcpStream::connect((listen, 7000)).unwrap())
                .unwrap();
        let data: Vec<u8> = (0..BYTES).map(byte).collect();
        stream.write_all(&data).unwrap();
    });
    let mut supply = Supply::new(64, 400);
    let (mut segments, mut largest) = (0u32, 0);
    let mut frames = Vec::new();
    let end = Instant::now() + 2 * TIMEOUT;
    while !receiver.is_finished() {
        assert!(Instant::now() < end, "TCP has not finished in time");
        for from_left in [true, false] {
            let (from, to) = if from_left {
                (&mut left, &mut right)
            } else {
                (&mut right, &mut left)
            };
            from.rx(0, 16, &mut supply, &mut frames);
            let all: Vec<u32> = (0..frames.len() as u32).collect();
            for frame in &frames {
                if let Some(Gso { kind: here, size }) = frame.offload.gso {
                    assert_eq!(here, kind);
                    assert!((1000..=1448).contains(&size), "{size}");
                    segments += 1;
                    largest = largest.max(frame.len());
                }
            }
            let report = to.tx(0, &frames, &all);
            assert_eq!((report.fault, report.refused), (0, 0));
            frames
                .iter_mut()
                .for_each(|frame| frame.recycle(&mut supply));
            frames.clear();
        }
    }
    sender.join().unwrap();
    assert!(receiver.join().unwrap(), "the received bytes differ");
    assert!(segments > 100, "{segments}");
    assert!(largest > 30_000, "{largest}");
    assert!(
        left.counters()
            .iter()
            .chain(&right.counters())
            .all(|(_, count)| *count == 0)
    );
    left.release(&mut supply);
    right.release(&mut supply);
    assert_eq!(supply.in_use, 0);
}

#[test]
fn gso_packets_of_64_kb_pass_whole_over_ipv4() {
    tcp_through_two_taps("10.9.0.2".parse().unwrap(), GsoKind::Tcp4);
}

#[test]
fn gso_packets_of_64_kb_pass_whole_over_ipv6() {
    tcp_through_two_taps("fd09::2".parse().unwrap(), GsoKind::Tcp6);
}

#[test]
fn frames_wait_while_no_buffer_is_free() {
    let Some(namespace) = namespace() else { return };
    let mut nic = nic_of(&offloading(&namespace));
    neighbour(&namespace);
    let socket = namespace
        .enter(|| UdpSocket::bind("10.9.0.1:7000").unwrap())
        .unwrap();
    socket.send_to(b"patience", "10.9.0.2:5").unwrap();
    let mut small_supply = Supply::new(1, 3);
    let mut frames = Vec::new();
    assert_eq!(nic.rx(0, 64, &mut small_supply, &mut frames), 0);
    assert!(nic.counters().contains(&("rx_no_buffer", 1)));
    nic.release(&mut small_supply);
    let mut large_supply = Supply::new(4, 40);
    expect(&mut nic, &mut large_supply, |bytes| {
        bytes.ends_with(b"patience")
    });
}

#[test]
fn revoked_memory_loses_one_frame() {
    let Some(namespace) = namespace() else { return };
    let mut nic = nic_of(&spec(&namespace, "tap0"));
    neighbour(&namespace);
    // When a region is dropped, its pages become inaccessible, and its spans become stale.
    let region = shmem::Region::create("gone", 8192).unwrap();
    let stale = region.span();
    stale.write(&udp4(7000, &[7; 1000], false)).unwrap();
    let frame = Frame::new(
        Piece {
            span: stale,
            buffer: BufferId::NONE,
        },
        1042,
    )
    .unwrap();
    assert_eq!(nic.tx(0, std::slice::from_ref(&frame), &[0]).sent, 1);
    drop(region);
    let report = nic.tx(0, &[frame], &[0]);
    assert_eq!((report.sent, report.fault), (0, 1));

    struct RevokedBuffers(shmem::Span);
    impl Buffers for RevokedBuffers {
        fn take(&mut self) -> Option<Buffer> {
            Some(Buffer {
                id: BufferId::NONE,
                span: self.0,
            })
        }
        fn take_large(&mut self) -> Option<Buffer> {
            None
        }
        fn put(&mut self, _id: BufferId) {}
    }
    let socket = namespace
        .enter(|| UdpSocket::bind("10.9.0.1:7000").unwrap())
        .unwrap();
    socket.send_to(b"lost", "10.9.0.2:5").unwrap();
    socket.send_to(b"kept", "10.9.0.2:5").unwrap();
    let mut frames = Vec::new();
    wait_for("no frame is lost", || {
        nic.rx(0, 1, &mut RevokedBuffers(stale), &mut frames);
        nic.counters().contains(&("rx_fault", 1)).then_some(())
    });
    assert!(frames.is_empty());
    let mut supply = Supply::new(4, 0);
    expect(&mut nic, &mut supply, |bytes| bytes.ends_with(b"kept"));
}

#[test]
fn an_interface_going_down_is_a_transient_error() {
    let Some(namespace) = namespace() else { return };
    let mut nic = nic_of(&spec(&namespace, "tap0"));
    let set = |state: &'static str| {
        namespace
            .enter(|| {
                Command::new("ip")
                    .args(["link", "set", "tap0", state])
                    .status()
                    .unwrap()
            })
            .unwrap();
    };
    set("down");
    let frame = frame_of(&udp4(7000, b"x", false), 4096);
    assert_eq!(nic.tx(0, std::slice::from_ref(&frame), &[0]).refused, 1);
    set("up");
    assert_eq!(nic.tx(0, &[frame], &[0]).sent, 1);
}
