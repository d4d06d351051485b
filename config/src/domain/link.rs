//! What both ends of a connection have to know of each other's.

use serde::{Deserialize, Serialize};

/// The largest `ring_order`: 16 pages, 4096 slots.
pub const RING_ORDER_MAX: u8 = 4;

/// Bytes of a buffer of the driver domain, and of a half-page buffer.
pub const BUFFER_BYTES: u32 = 2048;

/// How the driver domain gets at granted pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GrantMode {
    /// A hypercall copies, many packets at once.
    Copy,
    /// Every page is mapped for its packet and unmapped after it (`frames-map`).
    Map,
    /// Pages change hands: the one that holds a frame for the one that the guest has posted,
    /// zeroed. What guests send is mapped as with [`GrantMode::Map`].
    Flip,
    /// A page is mapped at its first use and stays until the connection ends (`frames-mapped`).
    Persistent,
    /// The new grant mechanism: the guest has its pages mapped and unmapped, and can take back any
    /// of them at any moment; the driver makes no hypercall, and checks and counts its uses.
    #[default]
    Counted,
    /// As [`GrantMode::Counted`], but the driver neither checks nor counts: it can reach all of
    /// the guest's buffers as long as the connection lasts, whatever the guest revokes. To measure
    /// what checking and counting cost.
    Unchecked,
}

impl GrantMode {
    /// Whether guests grant by tables that the driver domain reads without a hypercall.
    #[must_use]
    pub const fn has_tables(self) -> bool {
        matches!(self, Self::Counted | Self::Unchecked)
    }

    /// Whether it is for comparisons alone: only the program `grantwayd-lab` serves its calls.
    #[must_use]
    pub const fn needs_lab(self) -> bool {
        !self.has_tables()
    }
}

/// What a packet on a ring may leave undone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Offloads {
    /// Nothing.
    None,
    /// The TCP or UDP checksum.
    Checksum,
    /// That, and cutting TCP data of up to 64 KB into segments.
    #[default]
    Tso,
}

/// How rings lie in their pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RingFormat {
    /// Requests, responses and indices apart from each other: no line of the cache is written by
    /// both ends.
    #[default]
    Native,
    /// As Xen's `ring.h` has it.
    Xen,
}

/// Size of a guest's buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BufferSize {
    /// Two to a page: a frame of 1514 bytes fits, and the pool is half as large.
    #[default]
    Half,
    /// One to a page, as stock netfronts have it.
    Full,
}

impl BufferSize {
    /// Bytes of a buffer.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Half => BUFFER_BYTES as usize,
            Self::Full => abi::PAGE,
        }
    }

    /// Buffers of a page.
    #[must_use]
    pub const fn per_page(self) -> u32 {
        (abi::PAGE / self.bytes()) as u32
    }
}
