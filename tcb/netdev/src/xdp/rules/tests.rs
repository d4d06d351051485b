//! Comparison of the program with the bridge: for random rules and random frames, both pass the
//! same frames, and the same rule counts each denied frame.

use super::*;
use crate::bpf::ProgramType;
use net::bridge::{self, Bridge, BridgeSettings, DropReason, Verdict};
use net::packet::Mac;
use nic::{Frame, Pool};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use shmem::Area;
use std::cell::Cell;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

const WIRE: usize = 0;
const GUEST: usize = 1;
const GUEST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
const STATION: [u8; 6] = [0x52, 0x54, 0, 1, 2, 3];
const XDP_PASS: i32 = 2;
const BPF_PROG_TEST_RUN: libc::c_long = 10;

/// The beginning of `union bpf_attr` for a test run.
#[repr(C)]
#[derive(Default)]
struct TestRun {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
}

/// Rules as a program in the kernel.
struct Compiled {
    program: OwnedFd,
    denied: CounterMap,
}

impl Compiled {
    fn new(rules: &RuleLists) -> io::Result<Self> {
        let denied = CounterMap::new(rules.len() as u32)?;
        let passed = |program: &mut Assembler| {
            program.mov_imm(R0, XDP_PASS).exit();
        };
        let program = compile(rules, &denied, passed)?.load(ProgramType::Xdp)?;
        Ok(Self { program, denied })
    }

    /// Returns whether a frame passes.
    fn passes(&self, frame: &[u8]) -> bool {
        let mut run = TestRun {
            prog_fd: self.program.as_raw_fd() as u32,
            data_size_in: frame.len() as u32,
            data_in: frame.as_ptr() as u64,
            ..TestRun::default()
        };
        // SAFETY: the kernel reads the attributes and the frame, and writes to the attributes only.
        let done = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                BPF_PROG_TEST_RUN,
                &raw mut run,
                size_of::<TestRun>(),
            )
        };
        assert_eq!(done, 0, "{}", io::Error::last_os_error());
        match run.retval as i32 {
            XDP_PASS => true,
            XDP_DROP => false,
            other => panic!("XDP action {other}"),
        }
    }

    fn counts(&self, rules: &RuleLists) -> Vec<[u64; 2]> {
        let all = 0..rules.len() as u32;
        all.map(|rule| self.denied.get(rule).unwrap()).collect()
    }
}

/// Returns whether programs can be loaded. Reports a skipped test if they cannot.
fn has_bpf() -> bool {
    match Compiled::new(&RuleLists::default()) {
        Ok(_) => true,
        Err(error) => testing::skip(format!("bpf: {error}")),
    }
}

/// The driver domain's bridge, with the same rules.
struct Oracle {
    bridge: Bridge,
    pool: Pool,
}

impl Oracle {
    fn new(rules: &RuleLists) -> Self {
        let list = |rules: &[RuleRecord], direction| {
            rules
                .iter()
                .map(|rule| of_bridge(rule, direction))
                .collect()
        };
        let mut bridge = Bridge::new(BridgeSettings::default());
        let wire = bridge::PortConfig {
            rules: list(&rules.from_wire, bridge::Direction::In),
            ..bridge::PortConfig::nic()
        };
        let guest = bridge::PortConfig {
            rules: list(&rules.to_guest, bridge::Direction::Out),
            ..bridge::PortConfig::guest(Mac(GUEST_MAC))
        };
        bridge.add(WIRE, &wire).unwrap();
        bridge.add(GUEST, &guest).unwrap();
        Self {
            bridge,
            pool: Pool::new(Area::anonymous(64 * 2048).unwrap(), 2048),
        }
    }

    fn passes(&mut self, bytes: &[u8]) -> bool {
        let mut frames = [Frame::from_bytes(bytes, &mut self.pool).unwrap()];
        let mut verdicts = Vec::new();
        self.bridge
            .forward_batch(&mut frames, WIRE, 0, &mut verdicts);
        let [mut frame] = frames;
        frame.recycle(&mut self.pool);
        match verdicts.remove(0) {
            Verdict::Unicast(GUEST) => true,
            Verdict::Drop(DropReason::Firewall) => false,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the numbers of frames and bytes that each denying rule has matched.
    fn counts(&self, rules: &RuleLists) -> Vec<[u64; 2]> {
        let of = |port, rules: &[RuleRecord]| {
            let counts: Vec<_> = self.bridge.rule_counts(port).collect();
            let counts = rules.iter().zip(counts).map(|(rule, count)| {
                let denied = !rule.allow;
                [count.frames, count.bytes].map(|count| if denied { count } else { 0 })
            });
            counts.collect::<Vec<_>>()
        };
        [of(WIRE, &rules.from_wire), of(GUEST, &rules.to_guest)].concat()
    }
}

fn of_bridge(rule: &RuleRecord, direction: bridge::Direction) -> bridge::Rule {
    let prefix = |prefix: RulePrefix| bridge::Prefix::new(prefix.address, prefix.bits);
    bridge::Rule {
        allow: rule.allow,
        state: None,
        direction: Some(direction),
        ethertype: rule.ethertype,
        protocol: rule.protocol,
        source: rule.source.map(prefix),
        destination: rule.destination.map(prefix),
        source_ports: rule.source_ports.map(|(first, last)| first..=last),
        destination_ports: rule.destination_ports.map(|(first, last)| first..=last),
    }
}

fn any(allow: bool) -> RuleRecord {
    RuleRecord {
        allow,
        ..RuleRecord::default()
    }
}

const V4: [[u8; 4]; 3] = [[10, 0, 0, 1], [10, 0, 0, 2], [192, 168, 7, 200]];
const V6: [[u8; 16]; 3] = [
    [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
    [0x20, 1, 0xd, 0xb8, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0xff, 0xee],
];
const ETHERTYPES: [u16; 8] = [
    0x0800, 0x86dd, 0x0806, 0x8035, 0x88cc, 0x8100, 0x88a8, 0x0600,
];
const PROTOCOLS: [u8; 12] = [0, 1, 6, 17, 33, 43, 44, 51, 58, 60, 132, 136];
const PORTS: [u16; 6] = [0, 1, 53, 80, 1024, 65535];

fn prefix() -> impl Strategy<Value = RulePrefix> {
    let v4 = (select(&V4[..]), 0u8..=33).prop_map(|(address, bits)| (IpAddr::from(address), bits));
    let v6 = (select(&V6[..]), select(vec![0, 1, 7, 63, 64, 65, 127, 128]))
        .prop_map(|(address, bits)| (IpAddr::from(address), bits));
    prop_oneof![v4, v6].prop_map(|(address, bits)| RulePrefix { address, bits })
}

fn maybe<T: std::fmt::Debug>(value: impl Strategy<Value = T>) -> impl Strategy<Value = Option<T>> {
    prop::option::weighted(0.25, value)
}

fn rule() -> impl Strategy<Value = RuleRecord> {
    let ports = || {
        let ends = (select(&PORTS[..]), select(&PORTS[..]));
        maybe(ends.prop_map(|(a, b)| (a.min(b), a.max(b))))
    };
    (
        proptest::bool::ANY,
        maybe(select(&ETHERTYPES[..])),
        maybe(select(&PROTOCOLS[..])),
        (maybe(prefix()), maybe(prefix())),
        (ports(), ports()),
    )
        .prop_map(
            |(allow, ethertype, protocol, addresses, ports)| RuleRecord {
                allow,
                ethertype,
                protocol,
                source: addresses.0,
                destination: addresses.1,
                source_ports: ports.0,
                destination_ports: ports.1,
            },
        )
}

fn rules() -> impl Strategy<Value = RuleLists> {
    let list = || prop::collection::vec(rule(), 0..8);
    (list(), list()).prop_map(|(from_wire, to_guest)| RuleLists {
        from_wire,
        to_guest,
    })
}

/// Valid and invalid IPv4 headers of all forms.
fn ipv4() -> impl Strategy<Value = Vec<u8>> {
    (
        prop_oneof![4 => Just(0x45u8), 2 => 0x45u8..=0x4f, 1 => proptest::num::u8::ANY],
        prop_oneof![
            3 => Just(0u16),
            1 => Just(0x2000),
            1 => Just(0x4000),
            1 => proptest::num::u16::ANY,
        ],
        select(&PROTOCOLS[..]),
        (select(&V4[..]), select(&V4[..])),
        transport(),
    )
        .prop_map(|(first, fragment, protocol, (from, to), transport)| {
            let mut packet = vec![first, 0, 0, 60, 0, 1];
            packet.extend(fragment.to_be_bytes());
            packet.extend([64, protocol, 0, 0]);
            packet.extend(from);
            packet.extend(to);
            packet.resize(usize::from(first & 15).max(5) * 4, 1);
            packet.extend(transport);
            packet
        })
}

fn ipv6() -> impl Strategy<Value = Vec<u8>> {
    // First fragments, some with reserved bits set, and later fragments.
    let fragment = select(vec![[0u8, 0], [0, 1], [0, 7], [0, 8], [1, 1]]);
    let extension = (
        select(vec![0u8, 43, 44, 51, 60, 135]),
        prop_oneof![6 => Just(0u8), 2 => 0u8..4, 1 => proptest::num::u8::ANY],
        fragment,
    );
    (
        prop_oneof![15 => Just(0x60u8), 1 => proptest::num::u8::ANY],
        prop_oneof![
            3 => prop::collection::vec(extension.clone(), 0..=1),
            2 => prop::collection::vec(extension, 0..=10),
            // Numbers of headers around the parser's maximum.
            2 => prop::collection::vec(Just((60u8, 0u8, [1u8, 4])), 7..=9),
        ],
        select(&PROTOCOLS[..]),
        (select(&V6[..]), select(&V6[..])),
        transport(),
    )
        .prop_map(|(first, extensions, protocol, (from, to), transport)| {
            let mut numbers: Vec<u8> = extensions.iter().map(|(number, ..)| *number).collect();
            numbers.push(protocol);
            let mut packet = vec![first, 0, 0, 0, 0, 40, numbers[0], 64];
            packet.extend(from);
            packet.extend(to);
            for ((number, units, fragment), next) in extensions.into_iter().zip(&numbers[1..]) {
                let bytes = match number {
                    44 => 8,
                    51 => (usize::from(units) + 2) * 4,
                    _ => (usize::from(units) + 1) * 8,
                };
                let at = packet.len();
                packet.extend([*next, units]);
                packet.extend(fragment);
                packet.resize(at + bytes.min(300), 0);
            }
            packet.extend(transport);
            packet
        })
}

fn transport() -> impl Strategy<Value = Vec<u8>> {
    (select(&PORTS[..]), select(&PORTS[..]), 0usize..60).prop_map(|(from, to, more)| {
        let mut bytes = [from.to_be_bytes(), to.to_be_bytes()].concat();
        bytes.resize(4 + more, 0x50);
        bytes
    })
}

fn arp() -> impl Strategy<Value = Vec<u8>> {
    let whole = [0u8, 1, 8, 0, 6, 4, 0, 1];
    (0usize..40, 0usize..6, proptest::bool::ANY).prop_map(move |(len, at, wrong)| {
        let mut packet = whole.to_vec();
        packet[at] ^= u8::from(wrong);
        packet.resize(20 + len, 3);
        packet.truncate(20 + len);
        packet
    })
}

/// Frames for the guest, some with the wrong EtherType, truncated, or with one wrong byte.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let tags = prop_oneof![
        5 => Just(Vec::new()),
        4 => prop::collection::vec(select(vec![0x8100u16, 0x88a8]), 1..=3),
    ];
    let snap = Just(vec![0xaa, 0xaa, 3, 0, 0, 0, 8, 0, 0x45, 0, 0, 0]);
    let payload = prop_oneof![
        6 => ipv4().prop_map(|packet| (0x0800u16, packet)),
        6 => ipv6().prop_map(|packet| (0x86dd, packet)),
        2 => (select(vec![0x0806u16, 0x8035]), arp()),
        1 => (0u16..1600, snap),
        1 => (select(&ETHERTYPES[..]), ipv4()),
        1 => (proptest::num::u16::ANY, prop::collection::vec(proptest::num::u8::ANY, 0..80)),
    ];
    let cut = prop_oneof![3 => Just(usize::MAX), 1 => 14usize..140];
    let change = maybe((12usize..140, proptest::num::u8::ANY));
    (tags, payload, cut, change).prop_map(|(tags, (ethertype, payload), cut, change)| {
        let mut frame = [GUEST_MAC, STATION].concat();
        for tag in tags {
            frame.extend(tag.to_be_bytes());
            frame.extend([0, 7]);
        }
        frame.extend(ethertype.to_be_bytes());
        frame.extend(payload);
        if let Some((at, byte)) = change
            && let Some(place) = frame.get_mut(at)
        {
            *place = byte;
        }
        frame.truncate(cut.max(14));
        frame
    })
}

/// Returns the end of the time that `cargo xtask fuzz-smoke` sets for further random cases.
fn fuzzed_until() -> Instant {
    let seconds = std::env::var("GRANTWAY_FUZZ_SECONDS").ok();
    let seconds = seconds.and_then(|text| text.parse().ok());
    Instant::now() + Duration::from_secs(seconds.unwrap_or(0))
}

/// XDP-20: the program and the bridge agree on every frame.
#[test]
fn the_kernel_decides_like_the_bridge() {
    if !has_bpf() {
        return;
    }
    let mut runner = TestRunner::new(Config {
        cases: 600,
        failure_persistence: None,
        ..Config::default()
    });
    let frames = prop::collection::vec(frame(), 50);
    let decided = [const { Cell::new(0u32) }; 2];
    let until = fuzzed_until();
    let mut compare = || {
        runner.run(&(rules(), &frames), |(rules, frames)| {
            let (program, mut oracle) = (Compiled::new(&rules).unwrap(), Oracle::new(&rules));
            for frame in &frames {
                let passes = oracle.passes(frame);
                let count = &decided[usize::from(passes)];
                count.set(count.get() + 1);
                prop_assert_eq!(program.passes(frame), passes, "{:02x?}", frame);
            }
            prop_assert_eq!(program.counts(&rules), oracle.counts(&rules));
            Ok(())
        })
    };
    compare().unwrap();
    while Instant::now() < until {
        compare().unwrap();
    }
    // The generated frames are neither all denied nor all passed.
    assert!(
        decided.iter().all(|count| count.get() > 3000),
        "{decided:?}"
    );
}

/// Maximum number of rules of a NIC and of an interface.
const RULES: usize = 256;

/// Returns the rule with this number in a long list. By `kind`, the rules use every condition of
/// IPv6 (0), the conditions that both IP versions have (1), or both forms in turn (2). A packet
/// from and to port 1000 + `number` matches this rule and no rule before it.
fn rule_with_many_conditions(kind: usize, number: usize, allow: bool) -> RuleRecord {
    let ports = Some((1, 1000 + number as u16));
    let both = RuleRecord {
        protocol: Some(17),
        source_ports: ports,
        destination_ports: ports,
        ..any(allow)
    };
    if kind == 1 || kind == 2 && !number.is_multiple_of(2) {
        return both;
    }
    RuleRecord {
        ethertype: Some(0x86dd),
        source: Some(RulePrefix {
            address: V6[number % 2].into(),
            bits: 127,
        }),
        destination: Some(RulePrefix {
            address: V6[2].into(),
            bits: 128,
        }),
        ..both
    }
}

/// Returns lists of the maximum length, whose rules have many conditions. The last rule denies all
/// frames.
fn longest(kind: usize, allow: bool) -> RuleLists {
    let list = || (0..RULES).map(|number| rule_with_many_conditions(kind, number, allow));
    let mut to_guest: Vec<_> = list().collect();
    to_guest[RULES - 1] = any(false);
    RuleLists {
        from_wire: list().collect(),
        to_guest,
    }
}

/// The verifier accepts lists of the maximum length whose rules have every condition, and the last
/// rule counts a frame that matches no other rule.
#[test]
fn the_verifier_accepts_the_longest_lists() {
    if !has_bpf() {
        return;
    }
    for kind in 0..3 {
        let rules = longest(kind, false);
        let program = Compiled::new(&rules).unwrap();
        let mut frame = [GUEST_MAC, STATION].concat();
        frame.extend([0x88, 0xcc]);
        frame.resize(60, 0);
        assert!(!program.passes(&frame));
        let counts = program.counts(&rules);
        let (last, others) = counts.split_last().unwrap();
        assert_eq!(*last, [1, 60]);
        assert!(others.iter().all(|count| *count == [0, 0]));
    }
}

/// Returns a UDP datagram for the guest, from and to the port `port`, from the address with the
/// number `from`.
fn datagram(v6: bool, from: usize, port: u16) -> Vec<u8> {
    let mut frame = [GUEST_MAC, STATION].concat();
    if v6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64]);
        frame.extend(V6[from]);
        frame.extend(V6[2]);
    } else {
        frame.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
        frame.extend(V4[from]);
        frame.extend(V4[2]);
    }
    frame.extend([port, port, 8, 0].map(u16::to_be_bytes).concat());
    frame
}

/// The verifier accepts lists of the same length that allow the frames of each rule and deny all
/// other frames. Their decisions equal the bridge's for frames that match one of the rules, and for
/// frames that match none.
#[test]
fn the_longest_allow_lists_match_the_bridge() {
    if !has_bpf() {
        return;
    }
    let mut runner = TestRunner::deterministic();
    for kind in 0..3 {
        for both in [true, false] {
            let mut rules = longest(kind, true);
            if both {
                rules.from_wire[RULES - 1] = any(false);
            } else {
                rules.from_wire = Vec::new();
            }
            let (program, mut oracle) = (Compiled::new(&rules).unwrap(), Oracle::new(&rules));
            let ports = (0..=RULES as u16).map(|number| 1000 + number);
            let mut frames: Vec<_> = ports
                .flat_map(|port| [(true, 0), (true, 1), (false, 0)].map(|of| (of, port)))
                .map(|((v6, from), port)| datagram(v6, from, port))
                .collect();
            let random = prop::collection::vec(frame(), 200);
            frames.extend(random.new_tree(&mut runner).unwrap().current());
            let mut decided = [0u32; 2];
            for frame in &frames {
                let passes = oracle.passes(frame);
                decided[usize::from(passes)] += 1;
                assert_eq!(program.passes(frame), passes, "{frame:02x?}");
            }
            assert_eq!(program.counts(&rules), oracle.counts(&rules));
            assert!(decided.iter().all(|count| *count > 100), "{decided:?}");
        }
    }
}

/// Programs contain no unreachable code, which the verifier would reject, and invalid rules do not
/// compile.
#[test]
fn short_lists_compile_and_invalid_rules_do_not() {
    if !has_bpf() {
        return;
    }
    let mut frame = [GUEST_MAC, STATION].concat();
    frame.extend([0x88, 0xcc]);
    frame.resize(60, 0);
    for (from_wire, to_guest, passes) in [
        (vec![], vec![], true),
        (vec![any(false)], vec![], false),
        (vec![], vec![any(false)], false),
        (vec![any(true)], vec![any(false)], false),
        (vec![any(false)], vec![any(true)], false),
        (vec![any(true)], vec![any(true)], true),
        (vec![any(true), any(false)], vec![], true),
    ] {
        let rules = RuleLists {
            from_wire,
            to_guest,
        };
        let program = Compiled::new(&rules).unwrap();
        assert_eq!(program.passes(&frame), passes, "{rules:?}");
    }
    let backwards = RuleRecord {
        source_ports: Some((2, 1)),
        ..any(false)
    };
    let rules = RuleLists {
        from_wire: vec![backwards],
        ..RuleLists::default()
    };
    assert!(Compiled::new(&rules).is_err());
}
