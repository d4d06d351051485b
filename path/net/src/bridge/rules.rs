//! Firewall rules of a port, for frames that arrive or leave by it.
//!
//! A rule sees only a frame's snapshot. A field that the snapshot does not show (the ports of a
//! later fragment, anything behind unparsable headers) counts against the frame: it matches the
//! field of every deny rule and of no allow rule.
//!
//! A *stateful* rule matches frames by the state of their flow. A port with stateful rules has a
//! flow table ([`crate::flows`]).

use super::drops::DropReason;
use super::ethernet::is_disguised;
pub use crate::flows::Direction;
use crate::flows::{Classification, EntryIndex, FlowState, Flows, Lookup, PlainPacket, Subject};
use crate::packet::{Ipv6, Network, Packet, be16, ethertype, protocol};
use std::net::IpAddr;
use std::ops::RangeInclusive;

/// An IP prefix: all addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    address: Address,
    /// Ones in the bits that must be equal: the highest bits of the address's width.
    mask: u128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Address {
    V4(u32),
    V6(u128),
}

impl From<IpAddr> for Address {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self::V4(v4.to_bits()),
            IpAddr::V6(v6) => Self::V6(v6.to_bits()),
        }
    }
}

impl Prefix {
    /// Returns the prefix of the first `bits` bits of `address`, or of all its bits if there are
    /// fewer.
    #[must_use]
    pub fn new(address: IpAddr, bits: u8) -> Self {
        let width = if address.is_ipv4() { 32 } else { 128 };
        let rest = u32::from(width - bits.min(width));
        let ones = u128::MAX >> (128 - u32::from(width));
        Self {
            address: address.into(),
            mask: ones.checked_shl(rest).unwrap_or(0) & ones,
        }
    }

    /// Returns whether an address begins with the prefix.
    pub(super) fn has(self, other: IpAddr) -> bool {
        self.contains(other.into())
    }

    fn contains(self, other: Address) -> bool {
        let differ = match (self.address, other) {
            (Address::V4(own), Address::V4(other)) => u128::from(own ^ other),
            (Address::V6(own), Address::V6(other)) => own ^ other,
            _ => return false,
        };
        differ & self.mask == 0
    }
}

/// One rule. A `None` field matches every frame; an address matches only IP packets of its version,
/// ports match only packets of protocols with ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Whether matching frames may pass; otherwise they are dropped.
    pub allow: bool,
    /// Direction of frames; `None`: both.
    pub direction: Option<Direction>,
    /// The state of the frame's flow.
    pub state: Option<FlowState>,
    /// The EtherType, behind VLAN tags.
    pub ethertype: Option<u16>,
    /// The IP protocol, behind extension headers.
    pub protocol: Option<u8>,
    /// Source addresses of a packet.
    pub source: Option<Prefix>,
    /// Destination addresses.
    pub destination: Option<Prefix>,
    /// Source ports of a packet.
    pub source_ports: Option<RangeInclusive<u16>>,
    /// Destination ports.
    pub destination_ports: Option<RangeInclusive<u16>>,
}

impl Rule {
    /// Returns the rule that matches every frame.
    #[must_use]
    pub const fn any(allow: bool) -> Self {
        Self {
            allow,
            direction: None,
            state: None,
            ethertype: None,
            protocol: None,
            source: None,
            destination: None,
            source_ports: None,
            destination_ports: None,
        }
    }

    /// Returns whether the rule decides about a frame that passes in this direction.
    fn decides(
        &self,
        direction: Direction,
        classification: Option<Classification>,
        filtered: &mut Filtered<'_>,
    ) -> bool {
        if self.direction.is_some_and(|own| own != direction) {
            return false;
        }
        let mut unknown = false;
        let mut fits = |answer: Option<FieldMatch>| {
            unknown |= answer == Some(FieldMatch::Unknown);
            answer != Some(FieldMatch::No)
        };
        if !fits(self.state.map(|own| match_state(own, classification))) {
            return false;
        }
        if self.has_no_conditions() {
            return !(self.allow && unknown);
        }
        let inspected = filtered.inspected();
        let is = |own: u16| inspected.ethertype.fits(|other| *other == own);
        let is_protocol = |own: u8| inspected.protocol.fits(|other| *other == own);
        let from = |own: Prefix| inspected.addresses.fits(|(from, _)| own.contains(*from));
        let to = |own: Prefix| inspected.addresses.fits(|(_, to)| own.contains(*to));
        let (from_port, to_port) = (self.source_ports.as_ref(), self.destination_ports.as_ref());
        fits(self.ethertype.map(is))
            && fits(self.protocol.map(is_protocol))
            && fits(from_port.map(|own| inspected.ports.fits(|(from, _)| own.contains(from))))
            && fits(to_port.map(|own| inspected.ports.fits(|(_, to)| own.contains(to))))
            && fits(self.source.map(from))
            && fits(self.destination.map(to))
            && !(self.allow && unknown)
    }

    /// Returns whether the rule may decide about a frame of an admitted flow in this direction.
    fn concerns_established(&self, direction: Direction) -> bool {
        self.direction.is_none_or(|own| own == direction)
            && !matches!(self.state, Some(FlowState::New | FlowState::Related))
    }

    /// Returns whether the rule tests no field of the frame's header.
    const fn has_no_conditions(&self) -> bool {
        self.ethertype.is_none()
            && self.protocol.is_none()
            && self.source.is_none()
            && self.destination.is_none()
            && self.source_ports.is_none()
            && self.destination_ports.is_none()
    }
}

/// Compares a frame's state with the state of a rule. The result is unknown, and so counts against
/// the frame, if the port has no flow table. For a frame that belongs to no flow and cannot begin
/// one, it is unknown for the state `new`, and `No` for the other states.
fn match_state(own: FlowState, classification: Option<Classification>) -> FieldMatch {
    match (own, classification) {
        (own, Some(Classification::Is(state))) if own == state => FieldMatch::Yes,
        (FlowState::New, Some(Classification::Unknown)) | (_, None) => FieldMatch::Unknown,
        _ => FieldMatch::No,
    }
}

/// Result of comparing a frame with a rule's field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FieldMatch {
    Yes,
    No,
    Unknown,
}

/// A field of a frame: present, absent, or outside the snapshot.
#[derive(Clone, Copy, Debug)]
enum FieldValue<T> {
    Is(T),
    Absent,
    Hidden,
}

impl<T> FieldValue<T> {
    #[inline]
    fn fits(&self, test: impl FnOnce(&T) -> bool) -> FieldMatch {
        match self {
            Self::Is(value) if test(value) => FieldMatch::Yes,
            Self::Is(_) | Self::Absent => FieldMatch::No,
            Self::Hidden => FieldMatch::Unknown,
        }
    }
}

/// The fields that rules test, as far as a snapshot shows them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inspected {
    ethertype: FieldValue<u16>,
    addresses: FieldValue<(Address, Address)>,
    protocol: FieldValue<u8>,
    ports: FieldValue<(u16, u16)>,
}

impl Inspected {
    /// Parses a frame's snapshot.
    pub(super) fn of(header: &[u8]) -> Self {
        let Ok(packet) = Packet::parse(header) else {
            return Self::hidden(header);
        };
        if is_disguised(header, &packet) {
            return Self::hidden(&[]);
        }
        let (addresses, number, at, later) = match packet.network {
            Network::Ipv4(ip) => (
                (ip.source.to_bits().into(), ip.destination.to_bits().into()),
                FieldValue::Is(ip.protocol),
                ip.transport_at,
                ip.is_later_fragment(),
            ),
            Network::Ipv6(ip) => (
                (ip.source.to_bits().into(), ip.destination.to_bits().into()),
                behind_extensions(&ip),
                ip.transport_at,
                ip.is_later_fragment(),
            ),
            Network::Arp(_) | Network::Other => {
                return Self {
                    ethertype: FieldValue::Is(packet.ethertype),
                    addresses: FieldValue::Absent,
                    protocol: FieldValue::Absent,
                    ports: FieldValue::Absent,
                };
            }
        };
        let ports = match number {
            FieldValue::Is(number) if !has_ports(number) => FieldValue::Absent,
            FieldValue::Is(_) if !later => match (be16(header, at), be16(header, at + 2)) {
                (Ok(from), Ok(to)) => FieldValue::Is((from, to)),
                _ => FieldValue::Hidden,
            },
            _ => FieldValue::Hidden,
        };
        Self {
            ethertype: FieldValue::Is(packet.ethertype),
            addresses: FieldValue::Is(addresses),
            protocol: number,
            ports,
        }
    }

    /// Returns the known fields of a frame with unparsable headers: its EtherType, if untagged.
    fn hidden(header: &[u8]) -> Self {
        let plain = |number: &u16| {
            *number >= 1536 && !matches!(*number, ethertype::VLAN | ethertype::SERVICE_VLAN)
        };
        let ethertype = be16(header, 12).ok().filter(plain);
        // A malformed ARP packet also has no addresses for rules.
        let hidden =
            ethertype.is_none_or(|found| matches!(found, ethertype::IPV4 | ethertype::IPV6));
        Self {
            ethertype: ethertype.map_or(FieldValue::Hidden, FieldValue::Is),
            addresses: if hidden {
                FieldValue::Hidden
            } else {
                FieldValue::Absent
            },
            protocol: if hidden {
                FieldValue::Hidden
            } else {
                FieldValue::Absent
            },
            ports: if hidden {
                FieldValue::Hidden
            } else {
                FieldValue::Absent
            },
        }
    }
}

impl From<u32> for Address {
    fn from(bits: u32) -> Self {
        Self::V4(bits)
    }
}

impl From<u128> for Address {
    fn from(bits: u128) -> Self {
        Self::V6(bits)
    }
}

/// Returns the protocol of an IPv6 packet. A later fragment names the first header of the whole
/// packet. If that is an extension header, the protocol is hidden.
fn behind_extensions(ip: &Ipv6) -> FieldValue<u8> {
    match ip.protocol {
        protocol::HOP_BY_HOP
        | protocol::ROUTING
        | protocol::FRAGMENT
        | protocol::AUTHENTICATION
        | protocol::DESTINATION
        | protocol::MOBILITY => FieldValue::Hidden,
        number => FieldValue::Is(number),
    }
}

/// Returns whether a protocol's header begins with two ports: TCP, UDP, DCCP, SCTP, UDP-Lite.
const fn has_ports(number: u8) -> bool {
    matches!(number, protocol::TCP | protocol::UDP | 33 | 132 | 136)
}

/// A frame being filtered. It is parsed when the first rule needs it.
#[derive(Debug)]
pub(super) struct Filtered<'a> {
    header: &'a [u8],
    len: usize,
    inspected: Option<Inspected>,
    subject: Option<Subject>,
}

impl<'a> Filtered<'a> {
    /// Begins to filter a frame of `len` bytes with this snapshot.
    pub(super) fn new(header: &'a [u8], len: usize) -> Self {
        Self {
            header,
            len,
            inspected: None,
            subject: None,
        }
    }

    fn inspected(&mut self) -> &Inspected {
        let header = self.header;
        self.inspected.get_or_insert_with(|| Inspected::of(header))
    }

    #[inline]
    fn subject(&mut self) -> &Subject {
        let header = self.header;
        self.subject.get_or_insert_with(|| Subject::of(header))
    }
}

/// A frame of a flow, at one of the two ports that it passes.
#[derive(Debug)]
pub(super) struct RoutedFlow {
    pub(super) port: usize,
    pub(super) place: EntryIndex,
    pub(super) len: usize,
}

/// Decision of a port's rules about the frames of admitted flows that pass in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EstablishedDecision {
    /// No rule applies to them.
    #[default]
    NoRule,
    /// This rule decides about all of them.
    Rule(usize),
    /// The decision depends on their headers.
    Depends,
}

impl EstablishedDecision {
    fn of(rules: &[Rule], direction: Direction) -> Self {
        let mut rules = rules.iter().enumerate();
        match rules.find(|(_, rule)| rule.concerns_established(direction)) {
            None => Self::NoRule,
            Some((at, rule)) if rule.has_no_conditions() => Self::Rule(at),
            Some(_) => Self::Depends,
        }
    }
}

/// Number of frames about which a rule has decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Frames; an aggregate counts once.
    pub frames: u64,
    /// Bytes in these frames.
    pub bytes: u64,
}

/// The rules of one port, in order, and its flow table.
#[derive(Debug, Default)]
pub(super) struct PortFirewall {
    rules: Vec<(Rule, Count)>,
    /// Decisions about frames of admitted flows, for [`Direction::In`] and [`Direction::Out`].
    established: [EstablishedDecision; 2],
    /// The port's flow table, if its rules are stateful.
    pub(super) flows: Option<Box<Flows>>,
}

impl PortFirewall {
    /// Replaces the rules and keeps the flow table.
    pub(super) fn set(&mut self, rules: &[Rule]) {
        let fresh = |rule: &Rule| (rule.clone(), Count::default());
        self.rules = rules.iter().map(fresh).collect();
        self.established = [Direction::In, Direction::Out]
            .map(|direction| EstablishedDecision::of(rules, direction));
    }

    /// Returns the first rule that decides about a frame, and whether it allows the frame.
    pub(super) fn find(
        &self,
        direction: Direction,
        filtered: &mut Filtered<'_>,
        now_ns: u64,
    ) -> Option<(usize, bool)> {
        let lookup = self.look(direction, filtered, now_ns);
        self.first(direction, lookup.map(|it| it.classification), filtered)
    }

    fn look(
        &self,
        direction: Direction,
        filtered: &mut Filtered<'_>,
        now_ns: u64,
    ) -> Option<Lookup> {
        let flows = self.flows.as_ref()?;
        Some(flows.look(direction, filtered.subject(), now_ns))
    }

    fn first(
        &self,
        direction: Direction,
        classification: Option<Classification>,
        filtered: &mut Filtered<'_>,
    ) -> Option<(usize, bool)> {
        let mut rules = self.rules.iter().enumerate();
        let found = rules.find(|(_, (rule, _))| rule.decides(direction, classification, filtered));
        found.map(|(at, (rule, _))| (at, rule.allow))
    }

    /// Decides about a frame that passes in this direction: counts it for the rule that decides,
    /// and for its flow if it may pass.
    ///
    /// # Errors
    /// The reason why it may not pass.
    #[inline]
    pub(super) fn pass(
        &mut self,
        direction: Direction,
        filtered: &mut Filtered<'_>,
        now_ns: u64,
    ) -> Result<(), DropReason> {
        match self.rules.is_empty() && self.flows.is_none() {
            true => Ok(()),
            false => self.decide(direction, filtered, now_ns),
        }
    }

    fn decide(
        &mut self,
        direction: Direction,
        filtered: &mut Filtered<'_>,
        now_ns: u64,
    ) -> Result<(), DropReason> {
        let decision = self.established_decision(direction);
        if decision != EstablishedDecision::Depends
            && let Some(flows) = &mut self.flows
            && let Some(packet) = PlainPacket::of(filtered.header)
            && let Some(place) = flows.find_established(direction, &packet, now_ns)
        {
            if let EstablishedDecision::Rule(at) = decision {
                self.apply(at, filtered.len)?;
            }
            if let Some(flows) = &mut self.flows {
                flows.count(place, filtered.len, now_ns);
            }
            return Ok(());
        }
        self.decide_by_header(direction, filtered, now_ns)
    }

    fn decide_by_header(
        &mut self,
        direction: Direction,
        filtered: &mut Filtered<'_>,
        now_ns: u64,
    ) -> Result<(), DropReason> {
        let lookup = self.look(direction, filtered, now_ns);
        let found = self.first(direction, lookup.map(|it| it.classification), filtered);
        if let Some((at, _)) = found {
            self.apply(at, filtered.len)?;
        }
        if let (Some(flows), Some(lookup)) = (&mut self.flows, lookup) {
            let len = filtered.len;
            let passed = flows.pass(direction, filtered.subject(), &lookup, len, now_ns);
            return passed.map_err(|_| DropReason::FirewallState);
        }
        Ok(())
    }

    /// Counts a frame about which a rule decides.
    ///
    /// # Errors
    /// The rule denies the frame.
    #[inline]
    fn apply(&mut self, at: usize, len: usize) -> Result<(), DropReason> {
        let Some((rule, count)) = self.rules.get_mut(at) else {
            return Ok(());
        };
        count.frames += 1;
        count.bytes += len as u64;
        match (rule.allow, rule.state) {
            (true, _) => Ok(()),
            (false, Some(_)) => Err(DropReason::FirewallState),
            (false, None) => Err(DropReason::Firewall),
        }
    }

    #[inline]
    const fn established_decision(&self, direction: Direction) -> EstablishedDecision {
        match direction {
            Direction::In => self.established[0],
            Direction::Out => self.established[1],
        }
    }

    /// Returns whether all frames of admitted flows pass in this direction, and no rule counts
    /// them.
    #[inline]
    pub(super) fn ignores_established(&self, direction: Direction) -> bool {
        self.rules.is_empty()
            || self.flows.is_some()
                && self.established_decision(direction) == EstablishedDecision::NoRule
    }

    pub(super) fn counts(&self) -> impl Iterator<Item = Count> + '_ {
        self.rules.iter().map(|(_, count)| *count)
    }
}
