//! The numbers of the wire format: flags, statuses, and limits of packets.

/// Flags of a transmit request (`NETTXF_*`).
pub mod txf {
    /// The transport checksum is still to be filled in.
    pub const CSUM_BLANK: u16 = 1;
    /// The transport checksum was found right, or need not be looked at.
    pub const DATA_VALIDATED: u16 = 1 << 1;
    /// The packet goes on in the next request.
    pub const MORE_DATA: u16 = 1 << 2;
    /// The next slot is an extra info, not a request.
    pub const EXTRA_INFO: u16 = 1 << 3;
}

/// Flags of a receive response (`NETRXF_*`).
pub mod rxf {
    /// The transport checksum was found right.
    pub const DATA_VALIDATED: u16 = 1;
    /// The transport checksum is still to be filled in.
    pub const CSUM_BLANK: u16 = 1 << 1;
    /// The packet goes on in the next response.
    pub const MORE_DATA: u16 = 1 << 2;
    /// The next slot is an extra info, not a response.
    pub const EXTRA_INFO: u16 = 1 << 3;
    /// TCP over IPv4 to be cut; the id is the segment size (NETIF-21).
    pub const GSO_TCPV4: u16 = 1 << 8;
    /// TCP over IPv6 to be cut; the id is the segment size.
    pub const GSO_TCPV6: u16 = 1 << 9;
    /// Either of them.
    pub const GSO: u16 = GSO_TCPV4 | GSO_TCPV6;
}

/// Status of a response (`NETIF_RSP_*`).
pub mod rsp {
    /// Thrown away, without anything being wrong with it.
    pub const DROPPED: i16 = -2;
    /// Something is wrong with the request.
    pub const ERROR: i16 = -1;
    /// Done. In receive responses, any number from 0 on is a length in bytes.
    pub const OKAY: i16 = 0;
    /// The answer to an extra info, which has no id.
    pub const NULL: i16 = 1;
}

/// Extra infos (`XEN_NETIF_EXTRA_*`).
pub mod extra {
    /// Segmentation.
    pub const TYPE_GSO: u8 = 1;
    /// The guest wants to hear a group.
    pub const TYPE_MCAST_ADD: u8 = 2;
    /// It does not want to hear it any more.
    pub const TYPE_MCAST_DEL: u8 = 3;
    /// Flag: another extra info follows.
    pub const FLAG_MORE: u8 = 1;
    /// Segments of TCP over IPv4.
    pub const GSO_TCPV4: u8 = 1;
    /// Segments of TCP over IPv6.
    pub const GSO_TCPV6: u8 = 2;
}

/// Slots with data of one packet that every peer has to take (`XEN_NETIF_NR_SLOTS_MIN`).
pub const MAX_SLOTS_STOCK: u16 = 18;
/// Slots with data of one packet that this implementation takes: 64 KB in half pages, and room
/// to spare (NETIF-12).
pub const MAX_SLOTS: u16 = 40;
/// Slots of one packet after which a peer is not merely wrong but hostile (NETIF-13).
pub const FATAL_SLOTS: u32 = 64;
/// Bytes of the longest packet: what fits a request's 16-bit size.
pub const MAX_PACKET: usize = u16::MAX as usize;
/// Bytes of the shortest packet: an Ethernet header.
pub const MIN_PACKET: usize = 14;
