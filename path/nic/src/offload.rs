//! What travels beside the bytes of a frame: work that is left to a device, and work it has done.

/// What is known about a frame's transport checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// Nothing: the bytes say what they say.
    #[default]
    Unknown,
    /// The field holds the pseudo-header's sum; the sum from `start` to the end of the frame has
    /// still to be put at `start + offset` (virtio's NEEDS_CSUM, netif's `csum_blank`).
    Blank {
        /// First byte that the checksum covers, from the start of the frame.
        start: u16,
        /// Where the checksum field is, from `start`.
        offset: u16,
    },
    /// It was found right (netif's `data_validated`).
    Valid,
}

/// Kinds of segmentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GsoKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
}

/// How a frame that exceeds the MTU is to be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// The kind.
    pub kind: GsoKind,
    /// Payload bytes of a segment.
    pub size: u16,
}

/// What travels beside a frame's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// The checksum's state.
    pub checksum: Checksum,
    /// Segmentation that is still to be done.
    pub gso: Option<Gso>,
}
