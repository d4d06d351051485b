//! Constants of Ethernet and IP, and limits of header parsing.

/// Bytes of an Ethernet header without tags.
pub const ETHERNET_BYTES: usize = 14;
/// Bytes of a VLAN tag.
pub const TAG_BYTES: usize = 4;
/// Maximum number of parsed tags.
pub const MAX_TAGS: usize = 2;
/// Maximum number of parsed IPv6 extension headers.
pub const MAX_EXTENSIONS: usize = 8;

/// EtherTypes.
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// Reverse ARP: uses the ARP format.
    pub const RARP: u16 = 0x8035;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// A VLAN tag (802.1Q).
    pub const VLAN: u16 = 0x8100;
    /// An outer VLAN tag (802.1ad).
    pub const SERVICE_VLAN: u16 = 0x88a8;
}

/// IP protocol numbers.
pub mod protocol {
    /// IPv6 hop-by-hop options.
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// IPv6 routing header.
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header.
    pub const FRAGMENT: u8 = 44;
    /// IPsec authentication header.
    pub const AUTHENTICATION: u8 = 51;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
    /// IPv6 destination options.
    pub const DESTINATION: u8 = 60;
    /// Mobility header.
    pub const MOBILITY: u8 = 135;
}
