//! Tests two connected stations in one thread with a virtual clock.

use crate::file::WORD;
use crate::station::*;
use config::domain::{StackApp, StackConfig};
use nic::{BufferId, Checksum, Piece, Pool};
use nic::{Buffers, Frame, Nic};
use shmem::Area;
use std::net::SocketAddr;

const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];

struct Cable {
    ends: [StackEndpoint; 2],
    supplies: [PreparedBuffers; 2],
    now_ns: u64,
    /// Number of transferred frames, and length of the longest one.
    frames: u64,
    largest: usize,
    /// If set to n, every n-th frame is lost.
    lose: Option<u64>,
    /// Recorded frames of the left end, if recording is enabled.
    left: Option<Vec<Vec<u8>>>,
    slot_ns: u64,
}

struct PreparedBuffers(Pool, Pool);

impl PreparedBuffers {
    fn new() -> Self {
        Self(
            Pool::new(Area::anonymous(256 * 2048).unwrap(), 2048),
            Pool::new(Area::anonymous(128 * 4096).unwrap(), 4096),
        )
    }
}

impl Buffers for PreparedBuffers {
    fn take(&mut self) -> Option<nic::Buffer> {
        self.0.take()
    }
    fn take_large(&mut self) -> Option<nic::Buffer> {
        let buffer = self.1.take()?;
        Some(nic::Buffer {
            id: BufferId(buffer.id.0 | 1 << 31),
            span: buffer.span,
        })
    }
    fn put(&mut self, id: BufferId) {
        if id.0 >> 31 == 0 {
            self.0.put(id)
        } else {
            self.1.put(BufferId(id.0 & !(1 << 31)))
        }
    }
}

fn stack(addresses: &[&str], apps: Vec<StackApp>) -> StackConfig {
    let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
    StackConfig {
        addresses,
        gateway: None,
        apps,
    }
}

fn cable(left: Vec<StackApp>, right: Vec<StackApp>, tso: bool) -> Cable {
    let end = |n: usize, addresses: &[&str], apps| {
        StackEndpoint::with_offloads(MACS[n], 1500, &stack(addresses, apps), tso, tso)
    };
    Cable {
        ends: [
            end(0, &["10.0.0.1/24", "fd00::1/64"], left),
            end(1, &["10.0.0.2/24", "fd00::2/64"], right),
        ],
        supplies: [PreparedBuffers::new(), PreparedBuffers::new()],
        now_ns: 1_000_000_000,
        frames: 0,
        largest: 0,
        lose: None,
        left: None,
        slot_ns: if tso { 2_000_000 } else { 100_000 },
    }
}

impl Cable {
    /// Advances the virtual time by `seconds`. Up to four frames pass per time slot in each
    /// direction.
    fn run(&mut self, seconds: f64) {
        let end_ns = self.now_ns + (seconds * 1e9) as u64;
        while self.now_ns < end_ns {
            for from in [0, 1] {
                let mut frames = Vec::new();
                self.ends[from].rx(self.now_ns, 4, &mut self.supplies[from], &mut frames);
                let pick: Vec<u32> = (0..frames.len() as u32)
                    .filter(|n| {
                        self.lose
                            .is_none_or(|every| (self.frames + u64::from(*n)) % every != 7)
                    })
                    .collect();
                let small = |frame: &Frame| {
                    let mut own = frame.pieces.iter().map(|piece| piece.buffer);
                    own.all(|id| id == BufferId::NONE || id.0 >> 31 == 0)
                };
                assert!(
                    frames
                        .iter()
                        .all(|frame| frame.len() > 2048 || small(frame))
                );
                self.frames += frames.len() as u64;
                if let Some(left) = self.left.as_mut().filter(|_| from == 0) {
                    left.extend(frames.iter().map(|frame| frame.to_vec().unwrap()));
                }
                self.largest = frames.iter().map(Frame::len).fold(self.largest, usize::max);
                let report = self.ends[1 - from].tx(self.now_ns, &frames, &pick);
                assert_eq!(report.sent as usize, pick.len());
                frames
                    .iter_mut()
                    .for_each(|frame| frame.recycle(&mut self.supplies[from]));
            }
            let due = self
                .ends
                .iter()
                .filter_map(|end| end.next_due(self.now_ns))
                .min();
            let next = due.unwrap_or(end_ns).max(self.now_ns + self.slot_ns);
            self.now_ns = next.min(end_ns);
        }
    }

    fn counter(&self, end: usize, name: &str) -> u64 {
        let counters = self.ends[end].counters();
        counters
            .iter()
            .find(|(known, _)| *known == name)
            .expect(name)
            .1
    }
}

fn at(address: &str) -> SocketAddr {
    address.parse().unwrap()
}

#[test]
fn a_stream_arrives_complete() {
    for to in ["10.0.0.2:5001", "[fd00::2]:5001"] {
        let source = StackApp::TcpSource {
            to: at(to),
            seconds: 1,
            after_s: 0,
            file_kb: None,
        };
        let mut cable = cable(vec![source], vec![StackApp::TcpSink { port: 5001 }], false);
        cable.run(3.0);
        let sent = cable.counter(0, "app.0.bytes");
        assert!(sent > 10_000_000, "{sent}");
        assert_eq!(sent, cable.counter(1, "app.0.bytes"));
        assert_eq!(cable.counter(0, "app.0.done"), 1);
        assert!(cable.counter(0, "app.0.elapsed_ns").abs_diff(1_000_000_000) < 50_000_000);
        assert_eq!(cable.counter(1, "stack_bad_checksum"), 0);
        assert!(cable.largest <= 1514);
        let all_back = [&cable.supplies[0], &cable.supplies[1]].map(|s| s.0.available());
        assert_eq!(all_back, [256, 256]);
    }
}

/// A stream repeatedly sends 64 KB from a file of 40 KB, with losses. The bytes are correct and are
/// sent in place: each frame uses only one buffer.
#[test]
fn a_file_is_sent_in_place() {
    const BYTES: usize = 40 << 10;
    for (tso, lose) in [
        (false, None),
        (true, None),
        (false, Some(300)),
        (true, Some(50)),
    ] {
        let mut cable = cable(vec![], vec![StackApp::TcpSink { port: 5001 }], tso);
        let memory = Area::anonymous(64 << 10).unwrap();
        let sources = vec![StackApp::TcpSource {
            to: at("10.0.0.2:5001"),
            seconds: 1,
            after_s: 0,
            file_kb: Some(40),
        }];
        let station = StackEndpoint::with_offloads(
            MACS[0],
            1500,
            &stack(&["10.0.0.1/24", "fd00::1/64"], sources),
            tso,
            tso,
        );
        cable.ends[0] = station.with_file(memory).unwrap();
        cable.left = Some(Vec::new());
        cable.lose = lose;
        cable.run(if lose.is_some() { 60.0 } else { 3.0 });
        assert_eq!(cable.counter(0, "app.0.done"), 1);
        let sent = cable.counter(0, "app.0.bytes");
        assert!(sent > 10 * BYTES as u64, "{sent}");
        assert_eq!(sent, cable.counter(1, "app.0.bytes"));
        assert_eq!(cable.counter(1, "stack_bad_checksum"), 0);
        let word = |n: u64| n.wrapping_mul(WORD).to_le_bytes();
        let file: Vec<u8> = (0..BYTES as u64 / 8).flat_map(word).collect();
        let mut first = None;
        let mut count = 0;
        for frame in cable.left.unwrap() {
            if frame[12..14] != [8, 0] || frame[23] != 6 {
                continue;
            }
            let sequence = u32::from_be_bytes(frame[38..42].try_into().unwrap());
            let start = 34 + usize::from(frame[46] >> 4) * 4;
            let ip = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
            let payload = &frame[start..14 + ip];
            if frame[47] & 2 != 0 {
                first = Some(sequence.wrapping_add(1));
                continue;
            }
            let place = sequence.wrapping_sub(first.unwrap()) as usize;
            for (n, byte) in payload.iter().enumerate() {
                assert_eq!(*byte, file[(place + n) % BYTES], "{place} + {n}");
            }
            count += payload.len() as u64;
        }
        assert!(count >= sent, "{count} {sent}");
        let all_back = [&cable.supplies[0], &cable.supplies[1]].map(|s| s.0.available());
        assert_eq!(all_back, [256, 256]);
    }
}

#[test]
fn large_segments_are_sent_only_with_offloads() {
    for to in ["10.0.0.2:5001", "[fd00::2]:5001"] {
        let source = StackApp::TcpSource {
            to: at(to),
            seconds: 1,
            after_s: 0,
            file_kb: None,
        };
        let mut cable = cable(vec![source], vec![StackApp::TcpSink { port: 5001 }], true);
        cable.run(3.0);
        let expected = if to.starts_with('[') {
            1..=1514
        } else {
            32_000..=65_226
        };
        assert!(expected.contains(&cable.largest), "{}", cable.largest);
        assert_eq!(
            cable.counter(0, "app.0.bytes"),
            cable.counter(1, "app.0.bytes")
        );
        assert_eq!(cable.counter(0, "stack_no_buffer"), 0);
    }
}

#[test]
fn replies_match_requests_despite_losses() {
    for (size, lose, tso) in [
        (1, None, false),
        (200_000, None, false),
        (100_000, Some(400), false),
        (200_000, None, true),
    ] {
        let client = StackApp::TcpClient {
            to: at("10.0.0.2:7"),
            size,
            seconds: 2,
            after_s: 0,
        };
        let mut cable = cable(vec![client], vec![StackApp::TcpEcho { port: 7 }], tso);
        cable.lose = lose;
        cable.run(60.0);
        assert!(cable.counter(0, "app.0.transactions") > 3, "{size}");
        assert_eq!(cable.counter(0, "app.0.mismatches"), 0, "{size}");
        assert_eq!(cable.counter(0, "app.0.done"), 1, "{size}");
        if size == 1 {
            let p50 = cable.counter(0, "app.0.latency_p50_ns");
            assert!((99_000..=210_000).contains(&p50), "{p50}");
        }
    }
}

#[test]
fn ping_is_answered_over_both_protocols() {
    for to in ["10.0.0.2", "fd00::2"] {
        let ping = StackApp::Ping {
            to: to.parse().unwrap(),
            count: 5,
            after_s: 1,
        };
        let mut cable = cable(vec![ping], vec![], false);
        cable.run(0.9);
        assert_eq!(cable.counter(0, "app.0.sent"), 0);
        cable.run(5.0);
        assert_eq!(cable.counter(0, "app.0.received"), 5, "{to}");
        assert_eq!(cable.counter(0, "app.0.duplicates"), 0);
    }
}

#[test]
fn a_client_finds_a_later_server() {
    let client = StackApp::TcpClient {
        to: at("10.0.0.2:7"),
        size: 10,
        seconds: 1,
        after_s: 0,
    };
    let mut cable = cable(vec![client], vec![], false);
    cable.run(2.0);
    assert_eq!(cable.counter(0, "app.0.transactions"), 0);
    let echo = stack(&["10.0.0.2/24"], vec![StackApp::TcpEcho { port: 7 }]);
    cable.ends[1] = StackEndpoint::new(MACS[1], 1500, &echo);
    cable.run(5.0);
    assert!(cable.counter(0, "app.0.transactions") > 0);
    let report = cable.ends[0].report();
    assert_eq!(report["apps"][0]["app"], "tcp-client");
    assert_eq!(report["apps"][0]["done"], 1);
}

#[test]
fn excess_connections_wait_for_a_free_slot() {
    let source = |n| StackApp::TcpSource {
        to: at("10.0.0.2:9"),
        seconds: 1,
        after_s: n / 6,
        file_kb: None,
    };
    let mut cable = cable(
        (0..12u32).map(source).collect(),
        vec![StackApp::TcpSink { port: 9 }],
        false,
    );
    cable.run(10.0);
    let sent: u64 = (0..12)
        .map(|n| cable.counter(0, &format!("app.{n}.bytes")))
        .sum();
    assert_eq!(sent, cable.counter(1, "app.0.bytes"));
    assert_eq!(cable.counter(1, "app.0.connections"), 12);
}

/// Returns a SYN to port 9 of the right station, with a valid or invalid TCP checksum.
fn syn(right: bool, offload: Checksum) -> Frame {
    let mut bytes = [&MACS[1][..], &MACS[0][..], &[8, 0]].concat();
    let mut ip = vec![
        0x45, 0, 0, 40, 0, 1, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ];
    let sum = !net::packet::checksum::fold(shmem::ones_sum_bytes(&ip, 0));
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes.extend(ip);
    let mut tcp = vec![
        0, 5, 0, 9, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0,
    ];
    let pseudo =
        net::packet::checksum::pseudo_v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 6, 20);
    let sum = !net::packet::checksum::fold(shmem::ones_sum_bytes(&tcp, pseudo));
    tcp[16..18].copy_from_slice(&(if right { sum } else { sum ^ 0x1111 }).to_be_bytes());
    bytes.extend(tcp);
    let area = Area::anonymous(4096).unwrap();
    area.span().write(&bytes).unwrap();
    let piece = Piece {
        span: area.span(),
        buffer: BufferId::NONE,
    };
    let mut frame = Frame::new(piece, bytes.len()).unwrap();
    frame.offload.checksum = offload;
    frame
}

#[test]
fn only_unverified_checksums_are_checked() {
    let blank = Checksum::Blank {
        start: 34,
        offset: 16,
    };
    for (right, offload, dropped) in [
        (true, Checksum::Unknown, 0),
        (false, Checksum::Unknown, 1),
        (false, Checksum::Valid, 0),
        (false, blank, 0),
    ] {
        let mut end = StackEndpoint::new(MACS[1], 1500, &stack(&["10.0.0.2/24"], vec![]));
        assert_eq!(end.tx(0, &[syn(right, offload)], &[0]).sent, 1);
        assert!(end.counters().contains(&("stack_bad_checksum", dropped)));
    }
}

#[test]
fn invalid_frames_are_dropped_and_queues_limited() {
    let mut end = StackEndpoint::new(
        MACS[1],
        1500,
        &stack(&["10.0.0.2/24", "fd00::2/64"], vec![]),
    );
    let area = Area::anonymous(1 << 17).unwrap();
    let mut supply = PreparedBuffers::new();
    let mut seed = 1u64;
    for round in 0..3000 {
        let mut bytes = vec![0u8; 14 + round % 200];
        for byte in &mut bytes {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            *byte = (seed >> 56) as u8;
        }
        bytes[..6].copy_from_slice(&MACS[1]);
        let (ethertype, version) = [([8, 0], 0x45), ([0x86, 0xdd], 0x60), ([8, 6], 0)][round % 3];
        bytes[12..14].copy_from_slice(&ethertype);
        if let Some(byte) = bytes.get_mut(14) {
            *byte = version;
        }
        area.span().write(&bytes).unwrap();
        let piece = Piece {
            span: area.span(),
            buffer: BufferId::NONE,
        };
        let frame = Frame::new(piece, bytes.len()).unwrap();
        end.tx(0, &[frame], &[0]);
        let mut out = Vec::new();
        end.rx(0, 64, &mut supply, &mut out);
        out.iter_mut().for_each(|frame| frame.recycle(&mut supply));
    }
    let frame = syn(true, Checksum::Unknown);
    let report = end.tx(0, &[frame], &vec![0; 2000]);
    assert_eq!((report.sent, report.full), (1024, 976));
}
