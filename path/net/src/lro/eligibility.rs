//! Rules for a single packet; rules between packets are in [`super::rules`].

use super::layout::{TcpSegment, be32, byte};
use super::reason::Reason;
use super::rules::{FieldTest, PacketField, test};
use super::settings::MergeRules;
use crate::packet::flags;
use nic::Frame;

/// Requirements on every single packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Eligibility {
    /// Forbidden flags.
    refused: u8,
    /// Required flags.
    required: u8,
    /// TCP options must be an aligned timestamp, or none.
    timestamp_only: bool,
    /// No extension headers allowed.
    no_extensions: bool,
    /// No CE mark allowed.
    no_congestion: bool,
}

impl Eligibility {
    pub(super) fn new(rules: MergeRules) -> Self {
        let plain = test(rules, PacketField::Flags) == FieldTest::PlainFlags;
        Self {
            refused: match plain {
                true => !(flags::ACK | flags::PSH),
                false => flags::CONTROL,
            },
            required: if plain { flags::ACK } else { 0 },
            timestamp_only: test(rules, PacketField::Options) == FieldTest::Timestamp,
            no_extensions: test(rules, PacketField::Extensions) == FieldTest::None,
            no_congestion: test(rules, PacketField::TrafficClass) == FieldTest::NotCongested,
        }
    }

    /// Returns why a packet cannot be part of an aggregate.
    #[inline]
    pub(super) fn refusal(&self, frame: &Frame, segment: &TcpSegment) -> Option<Reason> {
        if segment.refusal.is_some() {
            return segment.refusal;
        }
        if segment.flags & self.refused != 0 || segment.flags & self.required != self.required {
            return Some(Reason::Control);
        }
        match self.timestamp_only || self.no_extensions || self.no_congestion {
            true => self.lro_refusal(frame, segment),
            false => None,
        }
    }

    fn lro_refusal(&self, frame: &Frame, segment: &TcpSegment) -> Option<Reason> {
        let layout = segment.layout;
        let fixed = if layout.v6 { 40 } else { 20 };
        if self.no_extensions && layout.tcp() - layout.network() != fixed {
            return Some(Reason::IpOptions);
        }
        if self.no_congestion && congested(frame, segment) {
            return Some(Reason::Congested);
        }
        if self.timestamp_only && !timestamp_or_nothing(frame, segment) {
            return Some(Reason::TcpOption);
        }
        None
    }
}

/// NOP, NOP, timestamp, 10 bytes: the only form that `inet_lro` accepts.
const ALIGNED_TIMESTAMP: u32 = 0x0101_080a;

/// Returns whether the TCP options are empty or an aligned timestamp with a non-zero echo.
fn timestamp_or_nothing(frame: &Frame, segment: &TcpSegment) -> bool {
    let tcp = segment.layout.tcp();
    match segment.layout.payload() - tcp {
        20 => true,
        32 => be32(frame, tcp + 20) == ALIGNED_TIMESTAMP && be32(frame, tcp + 28) != 0,
        _ => false,
    }
}

/// Returns whether a router has marked the packet (RFC 3168).
fn congested(frame: &Frame, segment: &TcpSegment) -> bool {
    let ip = segment.layout.network();
    let ecn = match segment.layout.v6 {
        false => byte(frame, ip + 1),
        true => byte(frame, ip + 1) >> 4,
    };
    ecn & 3 == 3
}
