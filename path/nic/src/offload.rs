//! Offload metadata of a frame: the work that a device must still do, and the work that a device
//! has done.

/// State of a frame's transport checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// The checksum was not verified.
    #[default]
    Unknown,
    /// The field at `start + offset` holds only the sum of the pseudo-header. A device or software
    /// must replace it by the sum from `start` to the end of the frame (virtio's NEEDS_CSUM,
    /// netif's `csum_blank`).
    Blank {
        /// First byte that the checksum covers, from the start of the frame.
        start: u16,
        /// Offset of the checksum field from `start`.
        offset: u16,
    },
    /// A device has verified the checksum (netif's `data_validated`).
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

/// Parameters for segmenting a frame that exceeds the MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// Kind of segmentation.
    pub kind: GsoKind,
    /// Maximum payload bytes of a segment.
    pub size: u16,
}

/// Offload metadata of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// State of the checksum.
    pub checksum: Checksum,
    /// Pending segmentation.
    pub gso: Option<Gso>,
}
