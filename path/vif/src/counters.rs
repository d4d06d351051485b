//! What an interface counts. Every drop has a reason.

macro_rules! drops {
    ($(#[doc = $doc:literal] $name:ident = $text:literal,)*) => {
        /// Why a packet was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum Drop { $(#[doc = $doc] $name,)* }

        impl Drop {
            /// Every reason.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Its name in counters.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// What it means, in a sentence.
            #[must_use]
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$name => $doc.trim(),)* }
            }
        }
    };
}

drops! {
    /// A part of the packet has no bytes.
    ZeroSize = "zero_size",
    /// A part of the packet reaches beyond its page or buffer.
    CrossesPage = "crosses_page",
    /// The parts have more bytes than the whole packet.
    SizeMismatch = "size_mismatch",
    /// Shorter than an Ethernet header.
    TooShort = "too_short",
    /// Longer than any packet can be.
    TooLong = "too_long",
    /// More slots than were agreed on.
    TooManySlots = "too_many_slots",
    /// An extra info that means nothing.
    BadExtra = "bad_extra",
    /// An offload that was not negotiated.
    OffloadNotNegotiated = "offload_not_negotiated",
    /// An offload that does not fit the packet.
    BadOffload = "bad_offload",
    /// The grant does not permit what has to be done.
    Grant = "grant",
    /// The memory was not there.
    Fault = "fault",
    /// The guest asks for more groups than are kept.
    TooManyGroups = "too_many_groups",
    /// The guest does not want to hear this group.
    NotWanted = "not_wanted",
    /// The guest has posted too few buffers.
    NoRequest = "no_request",
    /// The guest posted a buffer that is no buffer.
    BadRequest = "bad_request",
    /// The peer answered with an error.
    PeerError = "peer_error",
    /// No buffer of our own was free.
    NoBuffer = "no_buffer",
    /// The interface is disabled.
    Disabled = "disabled",
}

/// Drops by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops([u64; Drop::ALL.len()]);

impl Drops {
    /// Counts one.
    #[inline]
    pub fn count(&mut self, reason: Drop) {
        self.add(reason, 1);
    }

    /// Counts `n`.
    #[inline]
    pub fn add(&mut self, reason: Drop, n: u64) {
        if let Some(count) = self.0.get_mut(reason as usize) {
            *count += n;
        }
    }

    /// How many for this reason.
    #[must_use]
    pub fn get(&self, reason: Drop) -> u64 {
        self.0.get(reason as usize).copied().unwrap_or(0)
    }

    /// How many in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Every reason with its count.
    pub fn iter(&self) -> impl Iterator<Item = (Drop, u64)> + '_ {
        Drop::ALL.iter().map(|&reason| (reason, self.get(reason)))
    }
}

impl std::ops::AddAssign for Drops {
    fn add_assign(&mut self, other: Self) {
        for (to, from) in self.0.iter_mut().zip(other.0) {
            *to += from;
        }
    }
}

/// What an interface has done since it was connected. `from_guest` and `to_guest` mean the same
/// at both ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets from the guest.
    pub from_guest: u64,
    /// Their bytes.
    pub from_guest_bytes: u64,
    /// Packets to the guest.
    pub to_guest: u64,
    /// Their bytes.
    pub to_guest_bytes: u64,
    /// Packets from the guest that were dropped.
    pub from_guest_drops: Drops,
    /// Packets to the guest that were dropped.
    pub to_guest_drops: Drops,
    /// Requests to the guest that were consumed for what belongs to a packet and is none of its
    /// bytes (counted by the backend).
    pub meta_requests: u64,
    /// Times that the peer was notified (its doorbell may have been rung).
    pub notifications: u64,
}

impl std::ops::AddAssign for Counters {
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
