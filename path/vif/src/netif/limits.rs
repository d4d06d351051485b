//! Constants of the wire format: flags, statuses, and limits of packets.

/// Flags of a transmit request (`NETTXF_*`).
pub mod txf {
    /// The transport checksum is blank and must be computed.
    pub const CSUM_BLANK: u16 = 1;
    /// The transport checksum is valid or need not be checked.
    pub const DATA_VALIDATED: u16 = 1 << 1;
    /// The packet continues in the next request.
    pub const MORE_DATA: u16 = 1 << 2;
    /// The next slot is an extra info, not a request.
    pub const EXTRA_INFO: u16 = 1 << 3;
}

/// Flags of a receive response (`NETRXF_*`).
pub mod rxf {
    /// The transport checksum is valid.
    pub const DATA_VALIDATED: u16 = 1;
    /// The transport checksum is blank and must be computed.
    pub const CSUM_BLANK: u16 = 1 << 1;
    /// The packet continues in the next response.
    pub const MORE_DATA: u16 = 1 << 2;
    /// The next slot is an extra info, not a response.
    pub const EXTRA_INFO: u16 = 1 << 3;
    /// TCP over IPv4 to be segmented; the id is the segment size (NETIF-21).
    pub const GSO_TCPV4: u16 = 1 << 8;
    /// TCP over IPv6 to be segmented; the id is the segment size.
    pub const GSO_TCPV6: u16 = 1 << 9;
    /// Both of these flags, as a mask.
    pub const GSO: u16 = GSO_TCPV4 | GSO_TCPV6;
}

/// Status of a response (`NETIF_RSP_*`).
pub mod rsp {
    /// Dropped without an error.
    pub const DROPPED: i16 = -2;
    /// The request is invalid.
    pub const ERROR: i16 = -1;
    /// Success. In receive responses, a value of 0 or more is a length in bytes.
    pub const OKAY: i16 = 0;
    /// The response to an extra info, which has no id.
    pub const NULL: i16 = 1;
}

/// Extra infos (`XEN_NETIF_EXTRA_*`).
pub mod extra {
    /// Segmentation.
    pub const TYPE_GSO: u8 = 1;
    /// The guest joins a multicast group.
    pub const TYPE_MCAST_ADD: u8 = 2;
    /// The guest leaves a multicast group.
    pub const TYPE_MCAST_DEL: u8 = 3;
    /// Flag: another extra info follows.
    pub const FLAG_MORE: u8 = 1;
    /// Segments of TCP over IPv4.
    pub const GSO_TCPV4: u8 = 1;
    /// Segments of TCP over IPv6.
    pub const GSO_TCPV6: u8 = 2;
}

/// Data slots per packet that every peer must accept (`XEN_NETIF_NR_SLOTS_MIN`).
pub const MAX_SLOTS_STOCK: u16 = 18;
/// Data slots per packet that this implementation accepts: enough for 64 KB in half pages, and some
/// more (NETIF-12).
pub const MAX_SLOTS: u16 = 40;
/// Slots per packet beyond which a peer is hostile rather than faulty (NETIF-13).
pub const FATAL_SLOTS: u32 = 64;
/// Maximum packet length in bytes: the limit of a request's 16-bit size.
pub const MAX_PACKET: usize = u16::MAX as usize;
/// Minimum packet length in bytes: an Ethernet header.
pub const MIN_PACKET: usize = 14;
