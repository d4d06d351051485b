//! Counters of an interface. Every drop has a reason.

use abi::counts::Counts;

abi::named_enum! {
    /// Reason for dropping a packet.
    pub enum VifDrop: usize {
        /// A part of the packet has no bytes.
        ZeroSize = "zero_size",
        /// A part of the packet extends beyond its page or buffer.
        CrossesPage = "crosses_page",
        /// The parts have more bytes than the whole packet.
        SizeMismatch = "size_mismatch",
        /// The packet is shorter than an Ethernet header.
        TooShort = "too_short",
        /// The packet exceeds the maximum length.
        TooLong = "too_long",
        /// The packet has more slots than negotiated.
        TooManySlots = "too_many_slots",
        /// An extra info is invalid.
        BadExtra = "bad_extra",
        /// An offload was not negotiated.
        OffloadNotNegotiated = "offload_not_negotiated",
        /// An offload does not fit the packet.
        BadOffload = "bad_offload",
        /// The grant does not permit the access.
        Grant = "grant",
        /// The memory is no longer accessible.
        Fault = "fault",
        /// The guest joins more multicast groups than the filter holds.
        TooManyGroups = "too_many_groups",
        /// The guest's multicast filter excludes this group.
        NotWanted = "not_wanted",
        /// The guest has posted too few buffers.
        NoRequest = "no_request",
        /// The guest posted an invalid buffer.
        BadRequest = "bad_request",
        /// The peer answered with an error.
        PeerError = "peer_error",
        /// No local buffer was free.
        NoBuffer = "no_buffer",
        /// The interface is disabled.
        Disabled = "disabled",
    }
}

/// Drops by reason.
pub type DropCounts = Counts<VifDrop, { VifDrop::COUNT }>;

/// Counters since the interface connected. `from_guest` and `to_guest` mean the same at both ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceCounters {
    /// Packets from the guest.
    pub from_guest: u64,
    /// Bytes of those packets.
    pub from_guest_bytes: u64,
    /// Packets to the guest.
    pub to_guest: u64,
    /// Bytes of those packets.
    pub to_guest_bytes: u64,
    /// Dropped packets from the guest.
    pub from_guest_drops: DropCounts,
    /// Dropped packets to the guest.
    pub to_guest_drops: DropCounts,
    /// Requests consumed for packet metadata rather than payload (counted by the backend).
    pub meta_requests: u64,
    /// Notifications sent to the peer, with or without ringing its doorbell.
    pub notifications: u64,
}

impl std::ops::AddAssign for InterfaceCounters {
    fn add_assign(&mut self, other: Self) {
        self.from_guest += other.from_guest;
        self.from_guest_bytes += other.from_guest_bytes;
        self.to_guest += other.to_guest;
        self.to_guest_bytes += other.to_guest_bytes;
        self.from_guest_drops += other.from_guest_drops;
        self.to_guest_drops += other.to_guest_drops;
        self.meta_requests += other.meta_requests;
        self.notifications += other.notifications;
    }
}
