//! One flow as eight words: a cache line.
//!
//! ```text
//!   word 0, 1   address inside, low and high half; IPv4 as ::ffff:a.b.c.d
//!        2, 3   address outside
//!        4      bits 0…7 phase + 1 (0: free), 8…15 marks, 16…23 IP version, 24…31 protocol,
//!               32…47 port outside, 48…63 port inside
//!        5      bits 0…31 tick of the last packet, 32…63 of the first
//!        6, 7   packets, bytes
//! ```
//!
//! OWNERSHIP. One process at a time writes the words. Word 4 is cleared first and stored last, so
//! if the process dies between two stores, the next one finds a free or complete entry.

use super::key::{FlowKey, PacketKind, address_of, is_mapped};
use super::phase::{FlowPhase, marks, seconds, tick};
use super::{Direction, phase};
use crate::packet::{flags, protocol};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of an entry.
pub(super) const WORDS: usize = 8;

/// The words of an entry, in the table's memory.
pub(super) type Words = [AtomicU64; WORDS];

/// A copy of an entry that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlowEntry {
    pub(super) key: FlowKey,
    pub(super) phase: FlowPhase,
    pub(super) marks: u8,
    pub(super) first: u32,
    pub(super) last: u32,
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

/// Returns whether the entry belongs to this flow.
#[inline]
pub(super) fn is_of(words: &Words, key: &FlowKey) -> bool {
    let [a, b, c, d, rest, ..] = words;
    let inside = load(a) ^ key.inside as u64 | load(b) ^ (key.inside >> 64) as u64;
    let outside = load(c) ^ key.outside as u64 | load(d) ^ (key.outside >> 64) as u64;
    inside | outside | load(rest) >> 16 ^ key.rest == 0
}

/// Returns phase and marks, if the entry is in use.
#[inline]
pub(super) fn phase_of(words: &Words) -> Option<(FlowPhase, u8)> {
    let word = load(&words[4]);
    let phase = FlowPhase::of((word as u8).checked_sub(1)?)?;
    Some((phase, (word >> 8) as u8))
}

/// Returns the ticks of the flow's first and last packet.
#[inline]
pub(super) fn ticks_of(words: &Words) -> (u32, u32) {
    let word = load(&words[5]);
    ((word >> 32) as u32, word as u32)
}

/// Stores phase and marks.
#[inline]
pub(super) fn set_phase(words: &Words, phase: FlowPhase, marks: u8) {
    let kept = load(&words[4]) & !0xffff;
    let word = kept | u64::from(marks) << 8 | (u64::from(phase as u8) + 1);
    words[4].store(word, Ordering::Relaxed);
}

/// Counts a packet; `refreshes`: whether it prolongs the flow's life.
#[inline]
pub(super) fn count(words: &Words, bytes: u64, now: u32, refreshes: bool) {
    let ticks = load(&words[5]);
    if refreshes && ticks as u32 != now {
        let ticks = ticks & !u64::from(u32::MAX) | u64::from(now);
        words[5].store(ticks, Ordering::Relaxed);
    }
    words[6].store(load(&words[6]).wrapping_add(1), Ordering::Relaxed);
    words[7].store(load(&words[7]).wrapping_add(bytes), Ordering::Relaxed);
}

/// Frees the entry.
pub(super) fn clear(words: &Words) {
    words[4].store(0, Ordering::Release);
}

/// Returns whether the entry is in use and has not expired.
#[inline]
pub(super) fn is_live(words: &Words, now: u32) -> bool {
    let (first, last) = ticks_of(words);
    phase_of(words).is_some_and(|(phase, _)| {
        now.saturating_sub(last) <= phase.timeout(last.saturating_sub(first))
    })
}

/// The flow of a packet that changes neither phase nor marks, and prolongs the flow's life.
#[derive(Clone, Copy, Debug)]
pub struct SteadyFlow(&'static Words);

impl SteadyFlow {
    /// Returns the flow of an entry that is in use, for a packet that passes in this direction.
    /// Returns `None` if the packet changes phase or marks, or the flow has expired.
    #[inline]
    pub(super) fn of(
        words: &'static Words,
        direction: Direction,
        kind: PacketKind,
        now: u32,
    ) -> Option<Self> {
        let word = load(&words[4]);
        let is = |phase: FlowPhase| word as u8 == phase as u8 + 1;
        let is_steady = match kind {
            PacketKind::Tcp(tcp_flags) => {
                tcp_flags & (flags::SYN | flags::FIN | flags::RST) == 0
                    && (is(FlowPhase::Established) || is(FlowPhase::Closing))
            }
            PacketKind::Datagram => {
                let initiator_out = (word >> 8) as u8 & marks::INITIATOR_OUT != 0;
                is(FlowPhase::Replied)
                    || is(FlowPhase::Requested) && initiator_out == (direction == Direction::Out)
            }
            PacketKind::Echo { .. } | PacketKind::Dhcp { .. } => false,
        };
        let is_current = || now == ticks_of(words).1 || is_live(words, now);
        (is_steady && is_current()).then_some(Self(words))
    }

    /// Counts the packet.
    #[inline]
    pub fn count(self, bytes: usize, now_ns: u64) {
        count(self.0, bytes as u64, tick(now_ns), true);
    }
}

impl FlowEntry {
    /// Copies an entry. Returns `None` if it is free or its contents are invalid.
    pub(super) fn read(words: &Words) -> Option<Self> {
        let [a, b, c, d, _, _, packets, bytes] = words;
        let address = |low, high| u128::from(load(high)) << 64 | u128::from(load(low));
        let (phase, marks) = phase_of(words)?;
        let (first, last) = ticks_of(words);
        Some(Self {
            key: FlowKey {
                inside: address(a, b),
                outside: address(c, d),
                rest: load(&words[4]) >> 16,
            },
            phase,
            marks,
            first,
            last,
            packets: load(packets),
            bytes: load(bytes),
        })
    }

    /// Stores the entry in the table.
    pub(super) fn write(&self, words: &Words) {
        clear(words);
        let FlowKey {
            inside,
            outside,
            rest,
        } = self.key;
        let all = [
            inside as u64,
            (inside >> 64) as u64,
            outside as u64,
            (outside >> 64) as u64,
        ];
        for (word, value) in words.iter().zip(all) {
            word.store(value, Ordering::Relaxed);
        }
        let ticks = u64::from(self.first) << 32 | u64::from(self.last);
        words[5].store(ticks, Ordering::Relaxed);
        words[6].store(self.packets, Ordering::Relaxed);
        words[7].store(self.bytes, Ordering::Relaxed);
        let word = rest << 16 | u64::from(self.marks) << 8 | (u64::from(self.phase as u8) + 1);
        words[4].store(word, Ordering::Release);
    }

    const fn ports(&self) -> (u16, u16) {
        let ports = self.key.ports();
        ((ports >> 16) as u16, ports as u16)
    }

    /// Returns whether packets up to `now` can have produced this entry, and it has not expired.
    pub(super) fn is_sound(&self, now: u32) -> bool {
        let FlowKey {
            inside, outside, ..
        } = self.key;
        let version = match self.key.rest as u8 {
            4 => is_mapped(inside) && is_mapped(outside),
            6 => true,
            _ => false,
        };
        let (own, other) = self.ports();
        let ports = match self.key.protocol() {
            protocol::TCP | protocol::UDP | 33 | 132 | 136 => true,
            protocol::ICMP | protocol::ICMPV6 => matches!(other, 1 | 2),
            _ => (own, other) == (0, 0),
        };
        let by_phase = self.phase.is_tcp() == (self.key.protocol() == protocol::TCP);
        let order = self.first <= self.last && self.last <= now;
        let age = now.saturating_sub(self.last);
        version
            && ports
            && by_phase
            && order
            && self.marks & !marks::ALL == 0
            && age <= self.phase.timeout(self.last.saturating_sub(self.first))
    }

    /// Returns the flow's status at tick `now`, for reports.
    pub(super) fn flow(&self, now: u32) -> FlowStatus {
        let (own, other) = self.ports();
        let is_echo = matches!(self.key.protocol(), protocol::ICMP | protocol::ICMPV6);
        let ports = match self.key.protocol() {
            protocol::TCP | protocol::UDP | 33 | 132 | 136 => Some((own, other)),
            _ => None,
        };
        let idle = now.saturating_sub(self.last);
        let rest = self.phase.timeout(self.last.saturating_sub(self.first));
        FlowStatus {
            protocol: self.key.protocol(),
            inside: address_of(self.key.inside, self.key.is_v6()),
            outside: address_of(self.key.outside, self.key.is_v6()),
            ports,
            echo: is_echo.then_some(own),
            initiator: match self.marks & phase::marks::INITIATOR_OUT {
                0 => Direction::In,
                _ => Direction::Out,
            },
            phase: self.phase,
            age_s: seconds(now.saturating_sub(self.first)),
            idle_s: seconds(idle),
            expires_s: seconds(rest.saturating_sub(idle)),
            packets: self.packets,
            bytes: self.bytes,
        }
    }
}

/// The status of a flow, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowStatus {
    /// IP protocol.
    pub protocol: u8,
    /// Address of the station behind the port.
    pub inside: IpAddr,
    /// Address of the other station.
    pub outside: IpAddr,
    /// Ports inside and outside, if the protocol has ports.
    pub ports: Option<(u16, u16)>,
    /// Identifier of an ICMP echo.
    pub echo: Option<u16>,
    /// Direction of the first packet.
    pub initiator: Direction,
    /// Phase.
    pub phase: FlowPhase,
    /// Seconds since its first packet.
    pub age_s: u32,
    /// Seconds since the last packet that prolonged its life.
    pub idle_s: u32,
    /// Seconds until the flow expires unless a packet passes.
    pub expires_s: u32,
    /// Packets in both directions.
    pub packets: u64,
    /// Bytes in their frames.
    pub bytes: u64,
}
