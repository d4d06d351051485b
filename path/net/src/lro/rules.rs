//! The merge rules as a table, and what is compiled from it.

use super::layout::Layout;
use super::prediction::PredictionMask;
use super::reason::Reason;
use super::settings::Rules;
use crate::packet::flags;
use nic::frame::SNAPSHOT;

/// The part of a packet that a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Destination, source, tags, EtherType.
    Ethernet,
    /// Both IP addresses.
    Addresses,
    /// Both ports.
    Ports,
    /// IP version, IPv4 header length, protocol.
    IpShape,
    /// TOS or traffic class, ECN included.
    TrafficClass,
    /// IPv6 flow label.
    FlowLabel,
    /// TTL or hop limit.
    HopLimit,
    /// IPv4 identification.
    Identification,
    /// IPv4's DF and the reserved flag.
    DontFragment,
    /// IPv4's MF and fragment offset: zero, for fragments take no part.
    Fragment,
    /// IPv6 extension headers.
    Extensions,
    /// Sequence number.
    Sequence,
    /// Acknowledgement number.
    Acknowledgement,
    /// TCP header length and the bits behind it that have no flag's name.
    Reserved,
    /// TCP flags.
    Flags,
    /// Window.
    Window,
    /// Urgent pointer.
    UrgentPointer,
    /// TCP options.
    Options,
    /// Payload bytes.
    Length,
}

/// What a rule asks of a packet that is to follow those of an aggregate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// Part of a flow's identity: a packet in which it differs is of another flow.
    Identity,
    /// As in the first packet.
    Equal,
    /// Equal but for FIN and PSH; CWR only in the first packet.
    EqualFlags,
    /// What the packet before ends with.
    Consecutive,
    /// One more than before each time, or the same each time.
    Step,
    /// The first packet's; a shorter one is the last.
    NoLonger,
    /// Not before the last packet's.
    Advances,
    /// An aligned timestamp or nothing; its value not before the first packet's, its echo not 0.
    Timestamp,
    /// ACK and perhaps PSH, nothing else.
    PlainFlags,
    /// Not "congestion experienced".
    NotCongested,
    /// There are none.
    None,
    /// Anything; the last packet's goes on where it matters.
    Any,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct MergeRule {
    /// What it is about.
    pub field: Field,
    /// The test under [`Rules::Gro`].
    pub gro: Test,
    /// The test under [`Rules::Lro`].
    pub lro: Test,
    /// What is counted when a packet breaks it.
    pub reason: Reason,
    /// Why it is so, and who says so.
    pub why: &'static str,
}

const fn rule(field: Field, gro: Test, lro: Test, reason: Reason, why: &'static str) -> MergeRule {
    MergeRule {
        field,
        gro,
        lro,
        reason,
        why,
    }
}

/// The rules for a packet that is to follow. Where several are broken, the first one is counted.
/// Conditions on a packet by itself are in module `entry`.
pub const RULES: [MergeRule; 19] = [
    rule(
        Field::Ethernet,
        Test::Identity,
        Test::Identity,
        Reason::HeaderLengths,
        "Linux dev_gro_receive compares MAC header and VLAN tag; a bridge decides by them",
    ),
    rule(
        Field::Addresses,
        Test::Identity,
        Test::Identity,
        Reason::HeaderLengths,
        "a connection: Linux inet_gro_receive, inet_lro lro_check_tcp_conn",
    ),
    rule(
        Field::Ports,
        Test::Identity,
        Test::Identity,
        Reason::HeaderLengths,
        "a connection: Linux tcp_gro_receive, inet_lro lro_check_tcp_conn",
    ),
    rule(
        Field::IpShape,
        Test::Equal,
        Test::Equal,
        Reason::HeaderLengths,
        "one header stands for all",
    ),
    rule(
        Field::Sequence,
        Test::Consecutive,
        Test::Consecutive,
        Reason::Sequence,
        "a hole or an overlap must reach the receiver as it is: Linux, inet_lro, RSC",
    ),
    rule(
        Field::Acknowledgement,
        Test::Equal,
        Test::Advances,
        Reason::Acknowledgement,
        "segments get the first one's: Linux tcp_gro_receive; \
         an end host needs only the newest: inet_lro",
    ),
    rule(
        Field::Flags,
        Test::EqualFlags,
        Test::PlainFlags,
        Reason::Flags,
        "segmentation puts FIN and PSH on the last and CWR on the first: Linux tcp_gro_receive; \
         inet_lro lro_tcp_ip_check",
    ),
    rule(
        Field::Window,
        Test::Equal,
        Test::Any,
        Reason::Window,
        "it lies in the word that Linux compares; inet_lro keeps the newest",
    ),
    rule(
        Field::Options,
        Test::Equal,
        Test::Timestamp,
        Reason::TcpOptions,
        "segments get the first one's: Linux tcp_gro_receive; \
         PAWS takes any value that does not go back: inet_lro",
    ),
    rule(
        Field::Length,
        Test::NoLonger,
        Test::Any,
        Reason::Length,
        "segmentation cuts equal parts and a rest: Linux tcp_gro_receive; inet_lro takes any",
    ),
    rule(
        Field::TrafficClass,
        Test::Equal,
        Test::NotCongested,
        Reason::TrafficClass,
        "a CE mark must reach its receiver (RFC 3168): Linux inet_gro_receive, \
         inet_lro INET_ECN_is_ce",
    ),
    rule(
        Field::FlowLabel,
        Test::Equal,
        Test::Any,
        Reason::FlowLabel,
        "Linux ipv6_gro_receive; inet_lro has no IPv6",
    ),
    rule(
        Field::HopLimit,
        Test::Equal,
        Test::Any,
        Reason::HopLimit,
        "Linux inet_gro_receive (for IPv6, too, here: it could not be undone); \
         inet_lro does not look",
    ),
    rule(
        Field::Identification,
        Test::Step,
        Test::Any,
        Reason::Identification,
        "segmentation counts it up, or keeps it (Frame::fixed_id): Linux inet_gro_receive; \
         inet_lro does not look",
    ),
    rule(
        Field::DontFragment,
        Test::Equal,
        Test::Any,
        Reason::DontFragment,
        "it goes on in every segment: Linux inet_gro_receive",
    ),
    rule(
        Field::Fragment,
        Test::Equal,
        Test::Equal,
        Reason::Fragment,
        "a packet's flow and data are known only when all its fragments are there: all",
    ),
    rule(
        Field::Extensions,
        Test::Equal,
        Test::None,
        Reason::Extensions,
        "Linux ipv6_gro_receive; inet_lro takes no IP options",
    ),
    rule(
        Field::Reserved,
        Test::Equal,
        Test::Equal,
        Reason::Flags,
        "they lie in the word that Linux compares; one of them is AccECN's",
    ),
    rule(
        Field::UrgentPointer,
        Test::Equal,
        Test::Any,
        Reason::UrgentPointer,
        "it could not be undone; without URG no receiver reads it",
    ),
];

impl MergeRule {
    /// The test under these rules.
    #[must_use]
    pub const fn test(&self, rules: Rules) -> Test {
        match rules {
            Rules::Gro => self.gro,
            Rules::Lro => self.lro,
        }
    }
}

/// The test of one field.
#[must_use]
pub fn test(rules: Rules, field: Field) -> Test {
    let row = RULES.iter().find(|rule| rule.field == field);
    row.map_or(Test::Any, |rule| rule.test(rules))
}

impl Field {
    /// Sets the bits of a header that the field has, where bits are to be compared.
    fn mark(self, layout: Layout, mask: &mut [u8; SNAPSHOT]) {
        let (ip, tcp) = (layout.network(), layout.tcp());
        let mut set = |at: usize, len: usize, bits: u8| {
            for byte in mask.iter_mut().skip(at).take(len) {
                *byte |= bits;
            }
        };
        match (self, layout.v6) {
            (Self::Ethernet, _) => set(0, ip, 0xff),
            (Self::Addresses, false) => set(ip + 12, 8, 0xff),
            (Self::Addresses, true) => set(ip + 8, 32, 0xff),
            (Self::Ports, _) => set(tcp, 4, 0xff),
            (Self::IpShape, false) => {
                set(ip, 1, 0xff);
                set(ip + 9, 1, 0xff);
            }
            (Self::IpShape, true) => {
                set(ip, 1, 0xf0);
                set(ip + 6, 1, 0xff);
            }
            (Self::TrafficClass, false) => set(ip + 1, 1, 0xff),
            (Self::TrafficClass, true) => {
                set(ip, 1, 0x0f);
                set(ip + 1, 1, 0xf0);
            }
            (Self::FlowLabel, true) => {
                set(ip + 1, 1, 0x0f);
                set(ip + 2, 2, 0xff);
            }
            (Self::HopLimit, false) => set(ip + 8, 1, 0xff),
            (Self::HopLimit, true) => set(ip + 7, 1, 0xff),
            (Self::DontFragment, false) => set(ip + 6, 1, 0xc0),
            (Self::Fragment, false) => {
                set(ip + 6, 1, 0x3f);
                set(ip + 7, 1, 0xff);
            }
            (Self::Extensions, true) => set(ip + 40, tcp - ip - 40, 0xff),
            (Self::Acknowledgement, _) => set(tcp + 8, 4, 0xff),
            (Self::Reserved, _) => set(tcp + 12, 1, 0xff),
            (Self::Flags, _) => set(tcp + 13, 1, !(flags::FIN | flags::PSH | flags::CWR)),
            (Self::Window, _) => set(tcp + 14, 2, 0xff),
            (Self::UrgentPointer, _) => set(tcp + 18, 2, 0xff),
            (Self::Options, _) => set(tcp + 20, layout.payload() - tcp - 20, 0xff),
            (Self::FlowLabel | Self::DontFragment | Self::Fragment | Self::Extensions, _)
            | (Self::Identification | Self::Sequence | Self::Length, _) => {}
        }
    }
}

/// The rules that compare bits, for headers of one layout: which bits are equal in every packet
/// of an aggregate.
#[derive(Clone, Debug)]
pub(super) struct Program {
    mask: [u8; SNAPSHOT],
    /// Parts of [`PART`] bytes that reach to the payload.
    parts: usize,
    /// Which bits a packet of a stream has in common with the one before; the same for all rules.
    pub(super) constant: PredictionMask,
}

/// Bytes that are compared at a time.
const PART: usize = 16;

impl Program {
    pub(super) fn new(rules: Rules, layout: Layout) -> Self {
        let mut mask = [0; SNAPSHOT];
        for rule in &RULES {
            if matches!(
                rule.test(rules),
                Test::Identity | Test::Equal | Test::EqualFlags
            ) {
                rule.field.mark(layout, &mut mask);
            }
        }
        Self {
            mask,
            parts: layout.payload().div_ceil(PART),
            constant: PredictionMask::new(layout),
        }
    }

    /// Whether two headers are equal in every bit that has to be.
    #[inline]
    pub(super) fn equal(&self, a: &[u8; SNAPSHOT], b: &[u8; SNAPSHOT]) -> bool {
        let (a, _) = a.as_chunks::<PART>();
        let (b, _) = b.as_chunks::<PART>();
        let (mask, _) = self.mask.as_chunks::<PART>();
        // Byte by byte, for the compiler to do a part at a time.
        let mut differences = [0; PART];
        for ((a, b), mask) in a.iter().zip(b).zip(mask).take(self.parts) {
            for (at, difference) in differences.iter_mut().enumerate() {
                *difference |= (a[at] ^ b[at]) & mask[at];
            }
        }
        u128::from_ne_bytes(differences) == 0
    }
}

/// Whether two headers of one layout break a rule that compares bits.
pub(super) fn broken(
    rules: Rules,
    field: Field,
    layout: Layout,
    a: &[u8; SNAPSHOT],
    b: &[u8; SNAPSHOT],
) -> bool {
    if !matches!(test(rules, field), Test::Equal | Test::EqualFlags) {
        return false;
    }
    let mut mask = [0; SNAPSHOT];
    field.mark(layout, &mut mask);
    a.iter()
        .zip(b)
        .zip(mask)
        .any(|((a, b), mask)| (a ^ b) & mask != 0)
}

/// The compiled rules of every layout that has come. There are a few hundred possible layouts.
#[derive(Clone, Debug)]
pub(super) struct Programs {
    rules: Rules,
    programs: Vec<Program>,
    /// By layout: one more than the place in `programs`.
    places: Vec<u16>,
}

/// Places for TCP options (0 … 10 words), and for IPv6 extension headers (as many words as fit).
const OPTIONS: usize = 11;
const EXTENSIONS: usize = 16;
const TAGS: usize = 3;

impl Programs {
    pub(super) fn new(rules: Rules) -> Self {
        Self {
            rules,
            programs: Vec::new(),
            places: vec![0; 2 * TAGS * OPTIONS * EXTENSIONS],
        }
    }

    /// Number of the layout's program, for [`Programs::get`].
    #[inline]
    pub(super) fn number(&mut self, layout: Layout) -> u16 {
        let fixed = if layout.v6 { 40 } else { 20 };
        let tags = (layout.network() - 14) / 4;
        let options = (layout.payload() - layout.tcp() - 20) / 4;
        let extensions = (layout.tcp() - layout.network() - fixed) / 4;
        let kind = tags * 2 + usize::from(layout.v6);
        let place = (kind * EXTENSIONS + extensions) * OPTIONS + options;
        match self.places.get(place) {
            Some(0) | None => self.compile(layout, place),
            Some(number) => number - 1,
        }
    }

    #[inline(never)]
    fn compile(&mut self, layout: Layout, place: usize) -> u16 {
        let number = self.programs.len() as u16;
        self.programs.push(Program::new(self.rules, layout));
        if let Some(place) = self.places.get_mut(place) {
            *place = number + 1;
        }
        number
    }

    #[inline]
    pub(super) fn get(&self, number: u16) -> Option<&Program> {
        self.programs.get(usize::from(number))
    }
}
