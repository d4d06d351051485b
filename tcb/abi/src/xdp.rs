//! AF_XDP sockets: the data that the monitor passes to the domain of a socket.
//!
//! A socket has four rings, which the monitor maps into the domain's window at its start, and a
//! memory for packets (UMEM), which is part of the domain's own frames.

use crate::layout;
use crate::wire_enum::wire_enum;

wire_enum! {
    /// One of a socket's rings. The kernel produces the entries of `Receive` and `Completion`, the
    /// domain those of `Transmit` and `Fill`.
    pub enum Ring: u8 from u64 {
        /// Received packets: descriptors of 16 bytes.
        Receive = 0,
        /// Packets to send: descriptors of 16 bytes.
        Transmit = 1,
        /// Memory to receive into: addresses of 8 bytes.
        Fill = 2,
        /// Memory of sent packets: addresses of 8 bytes.
        Completion = 3,
    }
}

impl Ring {
    /// Returns the size of an entry in bytes.
    #[must_use]
    pub const fn entry_bytes(self) -> usize {
        match self {
            Self::Receive | Self::Transmit => layout::RING_ENTRY_BYTES,
            Self::Fill | Self::Completion => 8,
        }
    }

    /// Returns the number of window slots reserved for each ring of `entries` entries.
    #[must_use]
    pub const fn slots(entries: u32) -> u32 {
        layout::ring_slots(entries)
    }

    /// Returns the index of the ring's range of slots in the window.
    #[must_use]
    pub const fn index(self) -> u32 {
        self as u32
    }
}

/// Offsets of the parts of a ring in its mapping, as chosen by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    /// The u32 that counts entries produced.
    pub producer: u16,
    /// The u32 that counts entries consumed.
    pub consumer: u16,
    /// The u32 with [`NEED_WAKEUP`].
    pub flags: u16,
    /// The first entry.
    pub entries: u16,
}

/// Flag of a fill or transmit ring: the kernel reads the ring only after a wake-up by a system
/// call.
pub const NEED_WAKEUP: u32 = 1;

impl RingLayout {
    /// Encodes the layout as a result word.
    #[must_use]
    pub const fn encode(self) -> u64 {
        (self.producer as u64)
            | (self.consumer as u64) << 16
            | (self.flags as u64) << 32
            | (self.entries as u64) << 48
    }

    /// Decodes a result word.
    #[must_use]
    pub const fn decode(word: u64) -> Self {
        Self {
            producer: word as u16,
            consumer: (word >> 16) as u16,
            flags: (word >> 32) as u16,
            entries: (word >> 48) as u16,
        }
    }
}

wire_enum! {
    /// The kernel's counters of a socket.
    pub enum Counter: u8 from u64 {
        /// Packets dropped for reasons other than those below, such as an address in the fill ring
        /// outside of the socket's memory.
        Dropped = 0,
        /// Transmit descriptors outside of the socket's memory.
        BadTransmit = 1,
        /// Packets dropped because the receive ring was full.
        RingFull = 2,
        /// Packets dropped because the fill ring was empty.
        FillEmpty = 3,
    }
}

/// Control calls of an AF_XDP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpControl {
    /// Returns a ring's [`RingLayout`].
    Layout(Ring),
    /// Returns a counter's value.
    Counter(Counter),
    /// Starts a dedicated queue: frames are directed to it. Result: 0.
    Enable,
    /// Stops a dedicated queue permanently. Result: 0, once no frame is in flight.
    Stop,
    /// Reports that another domain can continue with the shared socket. Result: 0.
    ReportReusable,
    /// Returns the number of frames that the rule with this number ([`crate::firewall::RuleLists`])
    /// denied on a dedicated queue.
    DeniedFrames(u32),
    /// Returns the number of bytes of the frames that the rule with this number denied on a
    /// dedicated queue.
    DeniedBytes(u32),
}

impl XdpControl {
    const LAYOUT: u64 = 1;
    const COUNTER: u64 = 2;
    const ENABLE: u64 = 3;
    const DENIED_FRAMES: u64 = 4;
    const DENIED_BYTES: u64 = 5;
    const STOP: u64 = 6;
    const SOUND: u64 = 7;

    /// Encodes the call as words 1 and 2 of a hypercall.
    #[must_use]
    pub const fn encode(self) -> [u64; 2] {
        match self {
            Self::Layout(ring) => [Self::LAYOUT, ring as u64],
            Self::Counter(counter) => [Self::COUNTER, counter as u64],
            Self::Enable => [Self::ENABLE, 0],
            Self::Stop => [Self::STOP, 0],
            Self::ReportReusable => [Self::SOUND, 0],
            Self::DeniedFrames(rule) => [Self::DENIED_FRAMES, rule as u64],
            Self::DeniedBytes(rule) => [Self::DENIED_BYTES, rule as u64],
        }
    }

    /// Decodes words 1 and 2.
    #[must_use]
    pub fn decode(words: [u64; 2]) -> Option<Self> {
        let [kind, which] = words;
        let rule = u32::try_from(which).ok()?;
        match kind {
            Self::LAYOUT => Ring::from_wire(which).map(Self::Layout),
            Self::COUNTER => Counter::from_wire(which).map(Self::Counter),
            Self::ENABLE if which == 0 => Some(Self::Enable),
            Self::STOP if which == 0 => Some(Self::Stop),
            Self::SOUND if which == 0 => Some(Self::ReportReusable),
            Self::DENIED_FRAMES => Some(Self::DeniedFrames(rule)),
            Self::DENIED_BYTES => Some(Self::DeniedBytes(rule)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_calls_survive_encoding() {
        let layouts = Ring::ALL.map(XdpControl::Layout);
        let counters = Counter::ALL.map(XdpControl::Counter);
        let all = layouts.into_iter().chain(counters);
        let denied = [
            XdpControl::DeniedFrames(7),
            XdpControl::DeniedBytes(u32::MAX),
        ];
        for request in all
            .chain([
                XdpControl::Enable,
                XdpControl::Stop,
                XdpControl::ReportReusable,
            ])
            .chain(denied)
        {
            assert_eq!(XdpControl::decode(request.encode()), Some(request));
        }
        for nonsense in [
            [0, 0],
            [1, 4],
            [2, 4],
            [3, 1],
            [4, 1 << 32],
            [6, 1],
            [8, 0],
            [1, u64::MAX],
            [u64::MAX, 0],
        ] {
            assert_eq!(XdpControl::decode(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn a_layout_survives_encoding() {
        let layout = RingLayout {
            producer: 0,
            consumer: 128,
            flags: 0xffff,
            entries: 320,
        };
        assert_eq!(RingLayout::decode(layout.encode()), layout);
    }

    #[test]
    fn ring_slots_hold_the_header_and_entries() {
        assert_eq!(Ring::slots(1), 2);
        assert_eq!(Ring::slots(256), 2);
        assert_eq!(Ring::slots(257), 3);
        assert_eq!(Ring::slots(1024), 5);
    }
}
