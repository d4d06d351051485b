//! AF_XDP sockets: what the monitor tells a domain about one that it made for it.
//!
//! A socket has four rings, which the monitor has mapped into the domain's window at its start, and
//! a memory for packets (UMEM), which is part of the domain's own frames.

use crate::layout;

/// One of a socket's rings. The kernel fills the first and the last, the domain the other two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Ring {
    /// Packets that have come: descriptors of 16 bytes.
    Receive,
    /// Packets to be sent: descriptors of 16 bytes.
    Transmit,
    /// Memory to receive into: addresses of 8 bytes.
    Fill,
    /// Memory of packets that were sent: addresses of 8 bytes.
    Completion,
}

impl Ring {
    /// All of them, in the order of their places in the window.
    pub const ALL: [Self; 4] = [Self::Receive, Self::Transmit, Self::Fill, Self::Completion];

    /// Bytes of an entry.
    #[must_use]
    pub const fn entry_bytes(self) -> usize {
        match self {
            Self::Receive | Self::Transmit => layout::RING_ENTRY_BYTES,
            Self::Fill | Self::Completion => 8,
        }
    }

    /// Slots of the window that are kept for each ring of `entries` entries.
    #[must_use]
    pub const fn slots(entries: u32) -> u32 {
        layout::ring_slots(entries)
    }

    /// Which of these places in the window is the ring's.
    #[must_use]
    pub const fn place(self) -> u32 {
        self as u32
    }
}

/// Where the parts of a ring lie in its mapping: the kernel's own choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    /// The u32 that counts what was put in.
    pub producer: u16,
    /// The u32 that counts what was taken out.
    pub consumer: u16,
    /// The u32 with [`NEED_WAKEUP`].
    pub flags: u16,
    /// The first entry.
    pub entries: u16,
}

/// Flag of a fill or transmit ring: the kernel looks at it only when it is asked to.
pub const NEED_WAKEUP: u32 = 1;

impl RingLayout {
    /// As an answer.
    #[must_use]
    pub const fn encode(self) -> u64 {
        (self.producer as u64)
            | (self.consumer as u64) << 16
            | (self.flags as u64) << 32
            | (self.entries as u64) << 48
    }

    /// From an answer.
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

/// Counters that the kernel keeps of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Counter {
    /// Packets dropped for other reasons than the ones below: what lay in the fill ring was no
    /// memory of the socket's, for one.
    Dropped,
    /// Descriptors to be sent that were no packet within the socket's memory.
    BadTransmit,
    /// Packets dropped because the receive ring was full.
    RingFull,
    /// Packets dropped because the fill ring was empty.
    FillEmpty,
}

impl Counter {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Dropped,
        Self::BadTransmit,
        Self::RingFull,
        Self::FillEmpty,
    ];
}

/// What an AF_XDP socket can be asked by its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpControl {
    /// Answered by a [`RingLayout`].
    Layout(Ring),
    /// Answered by a number.
    Counter(Counter),
    /// A queue for a single guest: from now on frames come by it. Answered by 0.
    Enable,
    /// The same: from now on none does, for good. Answered by 0, when none is on its way any more.
    Stop,
    /// The shared socket: another domain can go on with it. Answered by 0.
    Sound,
    /// A queue for a single guest: frames that the rule of this number
    /// ([`crate::firewall::Rules`]) has denied.
    DeniedFrames(u32),
    /// Their bytes.
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

    /// As words 1 and 2 of a hypercall.
    #[must_use]
    pub const fn encode(self) -> [u64; 2] {
        match self {
            Self::Layout(ring) => [Self::LAYOUT, ring as u64],
            Self::Counter(counter) => [Self::COUNTER, counter as u64],
            Self::Enable => [Self::ENABLE, 0],
            Self::Stop => [Self::STOP, 0],
            Self::Sound => [Self::SOUND, 0],
            Self::DeniedFrames(rule) => [Self::DENIED_FRAMES, rule as u64],
            Self::DeniedBytes(rule) => [Self::DENIED_BYTES, rule as u64],
        }
    }

    /// From words 1 and 2.
    #[must_use]
    pub fn decode(words: [u64; 2]) -> Option<Self> {
        let [kind, which] = words;
        let which = u32::try_from(which).ok()?;
        let place = which as usize;
        match kind {
            Self::LAYOUT => Ring::ALL.get(place).copied().map(Self::Layout),
            Self::COUNTER => Counter::ALL.get(place).copied().map(Self::Counter),
            Self::ENABLE if which == 0 => Some(Self::Enable),
            Self::STOP if which == 0 => Some(Self::Stop),
            Self::SOUND if which == 0 => Some(Self::Sound),
            Self::DENIED_FRAMES => Some(Self::DeniedFrames(which)),
            Self::DENIED_BYTES => Some(Self::DeniedBytes(which)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_survives_the_call_and_nonsense_is_nothing() {
        let layouts = Ring::ALL.map(XdpControl::Layout);
        let counters = Counter::ALL.map(XdpControl::Counter);
        let all = layouts.into_iter().chain(counters);
        let denied = [
            XdpControl::DeniedFrames(7),
            XdpControl::DeniedBytes(u32::MAX),
        ];
        for asked in all
            .chain([XdpControl::Enable, XdpControl::Stop, XdpControl::Sound])
            .chain(denied)
        {
            assert_eq!(XdpControl::decode(asked.encode()), Some(asked));
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
    fn a_layout_survives_the_answer() {
        let layout = RingLayout {
            producer: 0,
            consumer: 128,
            flags: 0xffff,
            entries: 320,
        };
        assert_eq!(RingLayout::decode(layout.encode()), layout);
    }

    #[test]
    fn a_ring_s_slots_hold_its_words_and_its_entries() {
        assert_eq!(Ring::slots(1), 2);
        assert_eq!(Ring::slots(256), 2);
        assert_eq!(Ring::slots(257), 3);
        assert_eq!(Ring::slots(1024), 5);
    }
}
