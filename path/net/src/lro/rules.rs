//! The merge rules as a table, and their compiled form.

use super::layout::SnapshotLayout;
use super::prediction::PredictionMask;
use super::reason::Reason;
use super::settings::MergeRules;
use crate::packet::flags;
use nic::frame::SNAPSHOT_MAX;

/// Part of a packet that a rule tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketField {
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
    /// IPv4's MF and fragment offset: zero, because fragments are never merged.
    Fragment,
    /// IPv6 extension headers.
    Extensions,
    /// Sequence number.
    Sequence,
    /// Acknowledgement number.
    Acknowledgement,
    /// TCP header length and the unnamed bits behind it.
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

/// Test of a field of a packet that follows an aggregate's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldTest {
    /// Part of the flow's identity: a packet that differs belongs to another flow.
    Identity,
    /// Equal to the first packet's.
    Equal,
    /// Equal except for FIN and PSH; CWR only in the first packet.
    EqualFlags,
    /// Continues at the end of the previous packet.
    Consecutive,
    /// Increases by one with each packet, or is constant.
    Step,
    /// Not longer than the first packet's. A shorter packet is the last one.
    NoLonger,
    /// Not before the last packet's.
    Advances,
    /// No options or an aligned timestamp, with a value not before the first packet's and an echo
    /// other than 0.
    Timestamp,
    /// ACK, optionally with PSH.
    PlainFlags,
    /// Not "congestion experienced".
    NotCongested,
    /// Must be absent.
    None,
    /// Any value. If later readers use the field, the aggregate gets the last packet's value.
    Any,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct MergeRule {
    /// The tested field.
    pub field: PacketField,
    /// The test under [`MergeRules::Gro`].
    pub gro: FieldTest,
    /// The test under [`MergeRules::Lro`].
    pub lro: FieldTest,
    /// The reason that is counted when a packet breaks the rule.
    pub reason: Reason,
    /// Rationale and source.
    pub why: &'static str,
}

const fn rule(
    field: PacketField,
    gro: FieldTest,
    lro: FieldTest,
    reason: Reason,
    why: &'static str,
) -> MergeRule {
    MergeRule {
        field,
        gro,
        lro,
        reason,
        why,
    }
}

/// The rules for a packet that follows. If a packet breaks several, the first one is counted.
/// Module `eligibility` has the requirements on a single packet.
pub const RULES: [MergeRule; 19] = [
    rule(
        PacketField::Ethernet,
        FieldTest::Identity,
        FieldTest::Identity,
        Reason::HeaderLengths,
        "Linux dev_gro_receive compares MAC header and VLAN tag; a bridge decides by them",
    ),
    rule(
        PacketField::Addresses,
        FieldTest::Identity,
        FieldTest::Identity,
        Reason::HeaderLengths,
        "a connection: Linux inet_gro_receive, inet_lro lro_check_tcp_conn",
    ),
    rule(
        PacketField::Ports,
        FieldTest::Identity,
        FieldTest::Identity,
        Reason::HeaderLengths,
        "a connection: Linux tcp_gro_receive, inet_lro lro_check_tcp_conn",
    ),
    rule(
        PacketField::IpShape,
        FieldTest::Equal,
        FieldTest::Equal,
        Reason::HeaderLengths,
        "one header stands for all",
    ),
    rule(
        PacketField::Sequence,
        FieldTest::Consecutive,
        FieldTest::Consecutive,
        Reason::Sequence,
        "a hole or an overlap must reach the receiver as it is: Linux, inet_lro, RSC",
    ),
    rule(
        PacketField::Acknowledgement,
        FieldTest::Equal,
        FieldTest::Advances,
        Reason::Acknowledgement,
        "segments get the first one's: Linux tcp_gro_receive; \
         an end host needs only the newest: inet_lro",
    ),
    rule(
        PacketField::Flags,
        FieldTest::EqualFlags,
        FieldTest::PlainFlags,
        Reason::Flags,
        "segmentation puts FIN and PSH on the last and CWR on the first: Linux tcp_gro_receive; \
         inet_lro lro_tcp_ip_check",
    ),
    rule(
        PacketField::Window,
        FieldTest::Equal,
        FieldTest::Any,
        Reason::Window,
        "it lies in the word that Linux compares; inet_lro keeps the newest",
    ),
    rule(
        PacketField::Options,
        FieldTest::Equal,
        FieldTest::Timestamp,
        Reason::TcpOptions,
        "segments get the first one's: Linux tcp_gro_receive; \
         PAWS takes any value that does not go back: inet_lro",
    ),
    rule(
        PacketField::Length,
        FieldTest::NoLonger,
        FieldTest::Any,
        Reason::Length,
        "segmentation cuts equal parts and a rest: Linux tcp_gro_receive; inet_lro takes any",
    ),
    rule(
        PacketField::TrafficClass,
        FieldTest::Equal,
        FieldTest::NotCongested,
        Reason::TrafficClass,
        "a CE mark must reach its receiver (RFC 3168): Linux inet_gro_receive, \
         inet_lro INET_ECN_is_ce",
    ),
    rule(
        PacketField::FlowLabel,
        FieldTest::Equal,
        FieldTest::Any,
        Reason::FlowLabel,
        "Linux ipv6_gro_receive; inet_lro has no IPv6",
    ),
    rule(
        PacketField::HopLimit,
        FieldTest::Equal,
        FieldTest::Any,
        Reason::HopLimit,
        "Linux inet_gro_receive (for IPv6, too, here: it could not be undone); \
         inet_lro does not check",
    ),
    rule(
        PacketField::Identification,
        FieldTest::Step,
        FieldTest::Any,
        Reason::Identification,
        "segmentation counts it up, or keeps it (Frame::fixed_id): Linux inet_gro_receive; \
         inet_lro does not check",
    ),
    rule(
        PacketField::DontFragment,
        FieldTest::Equal,
        FieldTest::Any,
        Reason::DontFragment,
        "every segment carries it: Linux inet_gro_receive",
    ),
    rule(
        PacketField::Fragment,
        FieldTest::Equal,
        FieldTest::Equal,
        Reason::Fragment,
        "flow and data of a packet are known only once all fragments have arrived: all",
    ),
    rule(
        PacketField::Extensions,
        FieldTest::Equal,
        FieldTest::None,
        Reason::Extensions,
        "Linux ipv6_gro_receive; inet_lro takes no IP options",
    ),
    rule(
        PacketField::Reserved,
        FieldTest::Equal,
        FieldTest::Equal,
        Reason::Flags,
        "they lie in the word that Linux compares; one of them is AccECN's",
    ),
    rule(
        PacketField::UrgentPointer,
        FieldTest::Equal,
        FieldTest::Any,
        Reason::UrgentPointer,
        "it could not be undone; without URG no receiver reads it",
    ),
];

impl MergeRule {
    /// Returns the test under these rules.
    #[must_use]
    pub const fn test(&self, rules: MergeRules) -> FieldTest {
        match rules {
            MergeRules::Gro => self.gro,
            MergeRules::Lro => self.lro,
        }
    }
}

/// Returns the test of one field.
#[must_use]
pub fn test(rules: MergeRules, field: PacketField) -> FieldTest {
    let row = RULES.iter().find(|rule| rule.field == field);
    row.map_or(FieldTest::Any, |rule| rule.test(rules))
}

impl PacketField {
    /// Sets the header bits of the field in `mask`, if the test compares bits.
    fn mark(self, layout: SnapshotLayout, mask: &mut [u8; SNAPSHOT_MAX]) {
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

/// The bit-comparing rules for headers of one layout: the bits that are equal in every packet of an
/// aggregate.
#[derive(Clone, Debug)]
pub(super) struct MergeProgram {
    mask: [u8; SNAPSHOT_MAX],
    /// Number of [`PART`]-byte parts up to the payload.
    parts: usize,
    /// Bits that are constant within a stream; the same under all rules.
    pub(super) constant: PredictionMask,
}

/// Bytes per comparison.
const PART: usize = 16;

impl MergeProgram {
    pub(super) fn new(rules: MergeRules, layout: SnapshotLayout) -> Self {
        let mut mask = [0; SNAPSHOT_MAX];
        for rule in &RULES {
            if matches!(
                rule.test(rules),
                FieldTest::Identity | FieldTest::Equal | FieldTest::EqualFlags
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

    /// Returns whether two headers are equal in every compared bit.
    #[inline]
    pub(super) fn equal(&self, a: &[u8; SNAPSHOT_MAX], b: &[u8; SNAPSHOT_MAX]) -> bool {
        let (a, _) = a.as_chunks::<PART>();
        let (b, _) = b.as_chunks::<PART>();
        let (mask, _) = self.mask.as_chunks::<PART>();
        // The loop over bytes lets the compiler vectorize each part.
        let mut differences = [0; PART];
        for ((a, b), mask) in a.iter().zip(b).zip(mask).take(self.parts) {
            for (at, difference) in differences.iter_mut().enumerate() {
                *difference |= (a[at] ^ b[at]) & mask[at];
            }
        }
        u128::from_ne_bytes(differences) == 0
    }
}

/// Returns whether two headers of one layout break a bit-comparing rule.
pub(super) fn broken(
    rules: MergeRules,
    field: PacketField,
    layout: SnapshotLayout,
    a: &[u8; SNAPSHOT_MAX],
    b: &[u8; SNAPSHOT_MAX],
) -> bool {
    if !matches!(test(rules, field), FieldTest::Equal | FieldTest::EqualFlags) {
        return false;
    }
    let mut mask = [0; SNAPSHOT_MAX];
    field.mark(layout, &mut mask);
    a.iter()
        .zip(b)
        .zip(mask)
        .any(|((a, b), mask)| (a ^ b) & mask != 0)
}

/// The compiled rules of every layout seen so far. A few hundred layouts are possible.
#[derive(Clone, Debug)]
pub(super) struct Programs {
    rules: MergeRules,
    programs: Vec<MergeProgram>,
    /// By layout: the index in `programs` plus one; 0: not compiled yet.
    places: Vec<u16>,
}

/// Number of TCP option lengths (0 … 10 words), and of IPv6 extension header lengths (as many words
/// as fit).
const OPTIONS: usize = 11;
const EXTENSIONS: usize = 16;
const TAGS: usize = 3;

impl Programs {
    pub(super) fn new(rules: MergeRules) -> Self {
        Self {
            rules,
            programs: Vec::new(),
            places: vec![0; 2 * TAGS * OPTIONS * EXTENSIONS],
        }
    }

    /// Returns the index of the layout's program, for [`Programs::get`].
    #[inline]
    pub(super) fn number(&mut self, layout: SnapshotLayout) -> u16 {
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
    fn compile(&mut self, layout: SnapshotLayout, place: usize) -> u16 {
        let number = self.programs.len() as u16;
        self.programs.push(MergeProgram::new(self.rules, layout));
        if let Some(place) = self.places.get_mut(place) {
            *place = number + 1;
        }
        number
    }

    #[inline]
    pub(super) fn get(&self, number: u16) -> Option<&MergeProgram> {
        self.programs.get(usize::from(number))
    }
}
