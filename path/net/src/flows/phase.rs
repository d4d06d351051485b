//! Phases of a flow: transitions and timeouts.
//!
//! Sequence numbers are not checked, so any station can forge a RST. A RST therefore only shortens
//! a flow's timeout. If both stations send more segments, the RST was forged, and the timeout is
//! restored. A forged FIN has no effect as long as packets pass.

use crate::packet::flags;

/// Bits of a tick: 2^27 ns, 0.13 s.
const TICK_SHIFT: u32 = 27;
/// Ticks in a second, rounded up.
const PER_SECOND: u32 = 8;
/// Age from which an exchange of datagrams counts as a stream.
const STREAM_TICKS: u32 = 2 * PER_SECOND;

/// Returns the tick that a time falls into.
pub(super) const fn tick(now_ns: u64) -> u32 {
    (now_ns >> TICK_SHIFT) as u32
}

/// Converts ticks to seconds, rounded down.
pub(super) const fn seconds(ticks: u32) -> u32 {
    ((ticks as u64) << TICK_SHIFT).div_euclid(1_000_000_000) as u32
}

abi::named_enum! {
    /// Phase of a flow.
    pub enum FlowPhase: u8 {
        /// TCP: a SYN has passed, or a segment of a connection that is older than the table.
        Opening = "opening",
        /// TCP: the SYN was answered, the handshake is not complete.
        Answered = "answered",
        /// TCP: the handshake is complete.
        Established = "established",
        /// TCP: one side has sent FIN.
        Closing = "closing",
        /// TCP: both sides have sent FIN, or a RST has ended the handshake.
        Closed = "closed",
        /// TCP: a RST has passed after the handshake.
        Reset = "reset",
        /// Not TCP: packets have passed in one direction only.
        Requested = "asked",
        /// Not TCP: packets have passed in both directions.
        Replied = "replied",
    }
}

/// Flags of an entry.
pub(super) mod marks {
    /// The initiator's packets leave through the port.
    pub(in super::super) const INITIATOR_OUT: u8 = 1;
    /// FIN from the initiator, from the responder.
    pub(in super::super) const FIN: [u8; 2] = [2, 4];
    /// The responder sent the RST.
    pub(in super::super) const RESET_BY_RESPONDER: u8 = 8;
    /// The receiver of the RST has sent another segment.
    pub(in super::super) const CONTINUES: u8 = 16;
    /// The connection is older than the table.
    pub(in super::super) const MIDSTREAM: u8 = 32;
    /// All flags.
    pub(in super::super) const ALL: u8 = 63;
}

impl FlowPhase {
    /// Returns the phase with this number.
    pub(super) fn of(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Returns whether only TCP flows have this phase.
    pub(super) const fn is_tcp(self) -> bool {
        !matches!(self, Self::Requested | Self::Replied)
    }

    /// Returns whether the other side has not confirmed the flow. A flood can create any number of
    /// these.
    pub(super) const fn is_unconfirmed(self) -> bool {
        matches!(self, Self::Opening | Self::Answered | Self::Requested)
    }

    /// Returns whether the connection has ended.
    pub(super) const fn is_over(self) -> bool {
        matches!(self, Self::Closed | Self::Reset)
    }

    /// Returns whether a packet prolongs the flow's life.
    pub(super) const fn refreshes(self) -> bool {
        !matches!(self, Self::Reset)
    }

    /// Returns the ticks without a packet after which the flow expires. `lived` are the ticks
    /// between its first and last packet.
    pub(super) const fn timeout(self, lived: u32) -> u32 {
        PER_SECOND
            * match self {
                Self::Opening | Self::Answered | Self::Requested | Self::Closed => 30,
                // RFC 5382, REQ-5.
                Self::Established => 7440,
                Self::Closing | Self::Reset => 300,
                Self::Replied if lived < STREAM_TICKS => 30,
                Self::Replied => 180,
            }
    }

    /// Returns whether a flow is a short exchange of datagrams, which others may evict.
    pub(super) const fn is_brief(self, lived: u32) -> bool {
        matches!(self, Self::Replied) && lived < STREAM_TICKS
    }

    /// Returns phase and marks after a TCP segment with these flags from the initiator or
    /// responder.
    pub(super) fn after_segment(self, marks: u8, by_initiator: bool, tcp_flags: u8) -> (Self, u8) {
        if tcp_flags & flags::RST != 0 {
            return self.after_reset(marks, by_initiator);
        }
        let fin = |marks: u8| match (tcp_flags & flags::FIN != 0, by_initiator) {
            (false, _) => marks,
            (true, true) => marks | marks::FIN[0],
            (true, false) => marks | marks::FIN[1],
        };
        match self {
            Self::Opening | Self::Answered => {
                let picked_up = marks & marks::MIDSTREAM != 0;
                let answers = !by_initiator && (picked_up || tcp_flags & flags::SYN != 0);
                let confirms = by_initiator && tcp_flags & (flags::SYN | flags::ACK) == flags::ACK;
                match self {
                    Self::Opening if answers && picked_up => Self::open(fin(marks)),
                    Self::Opening if answers => (Self::Answered, marks),
                    Self::Answered if confirms => Self::open(fin(marks)),
                    _ => (self, marks),
                }
            }
            Self::Established | Self::Closing => Self::open(fin(marks)),
            Self::Reset => {
                let by_victim = by_initiator == (marks & marks::RESET_BY_RESPONDER != 0);
                match (by_victim, marks & marks::CONTINUES != 0) {
                    (true, _) => (self, marks | marks::CONTINUES),
                    (false, true) => {
                        Self::open(marks & !(marks::CONTINUES | marks::RESET_BY_RESPONDER))
                    }
                    (false, false) => (self, marks),
                }
            }
            Self::Closed | Self::Requested | Self::Replied => (self, marks),
        }
    }

    /// Returns the phase of a connection whose handshake is complete.
    const fn open(marks: u8) -> (Self, u8) {
        let phase = match (marks & marks::FIN[0] != 0, marks & marks::FIN[1] != 0) {
            (false, false) => Self::Established,
            (true, true) => Self::Closed,
            _ => Self::Closing,
        };
        (phase, marks)
    }

    fn after_reset(self, marks: u8, by_initiator: bool) -> (Self, u8) {
        let by = match by_initiator {
            true => 0,
            false => marks::RESET_BY_RESPONDER,
        };
        let before = marks & !(marks::RESET_BY_RESPONDER | marks::CONTINUES);
        match self {
            Self::Established | Self::Closing => (Self::Reset, before | by),
            Self::Opening | Self::Answered => (Self::Closed, marks),
            Self::Reset | Self::Closed | Self::Requested | Self::Replied => (self, marks),
        }
    }
}
