//! Parameters that both ends of a connection share.

use serde::{Deserialize, Serialize};

/// The largest `ring_order`: 16 pages, 4096 slots.
pub const RING_ORDER_MAX: u8 = 4;

/// Bytes of a buffer of the driver domain, and of a half-page buffer.
pub const BUFFER_BYTES: u32 = 2048;

/// Bytes per second of one megabit per second.
const BYTES_PER_S_PER_MBPS: f64 = 125_000.0;

/// Converts megabits per second to bytes per second. Returns at least 1, because a rate of zero
/// would block forever.
#[must_use]
pub fn bytes_per_s(mbps: f64) -> u64 {
    // The cast saturates.
    ((mbps * BYTES_PER_S_PER_MBPS).round() as u64).max(1)
}

/// How the driver domain accesses granted pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GrantMode {
    /// One hypercall copies the data of many packets.
    Copy,
    /// The driver maps every page for one packet and unmaps it afterwards (`frames-map`).
    Map,
    /// A NIC receives a frame into a page that the driver exchanges for a zeroed page that the
    /// guest has posted. The driver maps frames from guests as with [`GrantMode::Map`].
    Flip,
    /// Like [`GrantMode::Flip`], but the driver copies each frame into the page that it exchanges.
    #[serde(rename = "flip-copy")]
    FlipCopy,
    /// The driver maps a page at its first use and keeps it mapped until the connection closes
    /// (`frames-mapped`).
    Persistent,
    /// The new grant mechanism. Granted pages stay mapped, and the guest can revoke any of them at
    /// any time. The driver checks and counts its uses without a hypercall.
    #[default]
    Counted,
    /// Like [`GrantMode::Counted`], but the driver neither checks nor counts. Until the connection
    /// closes it can access all of the guest's buffers, even those that the guest has revoked. This
    /// mode shows the cost of checking and counting.
    Unchecked,
}

impl GrantMode {
    /// Returns whether guests grant through tables that the driver domain reads without a
    /// hypercall.
    #[must_use]
    pub const fn has_tables(self) -> bool {
        matches!(self, Self::Counted | Self::Unchecked)
    }

    /// Returns whether the driver exchanges pages with guests.
    #[must_use]
    pub const fn exchanges_pages(self) -> bool {
        matches!(self, Self::Flip | Self::FlipCopy)
    }

    /// Returns whether only `grantwayd-lab` and `driver-lab` implement it, for comparisons.
    #[must_use]
    pub const fn needs_lab(self) -> bool {
        !self.has_tables()
    }
}

/// Work that the sender of a packet on a ring may leave to the receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Offloads {
    /// Nothing.
    None,
    /// The TCP or UDP checksum.
    Checksum,
    /// The checksum, and the segmentation of up to 64 KB of TCP data.
    #[default]
    Tso,
}

/// Layout of rings in their pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RingFormat {
    /// Separate requests, responses and indices, so that no cache line is written by both ends.
    #[default]
    Native,
    /// The layout of Xen's `ring.h`.
    Xen,
}

/// Size of a guest's buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BufferSize {
    /// Two per page. A frame of 1514 bytes fits, and the pool takes half the memory.
    #[default]
    Half,
    /// One per page, as in stock netfronts.
    Full,
}

impl BufferSize {
    /// Returns the bytes of a buffer.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Half => BUFFER_BYTES as usize,
            Self::Full => abi::PAGE,
        }
    }

    /// Returns the number of buffers per page.
    #[must_use]
    pub const fn per_page(self) -> u32 {
        (abi::PAGE / self.bytes()) as u32
    }
}
