//! All the headers of a frame.

use super::bytes::{ParseError, array, be16};
use super::constants::{ETHERNET_BYTES, MAX_TAGS, TAG_BYTES, ethertype};
use super::mac::Mac;
use super::network::Network;
use super::transport::Transport;

/// Header positions of one frame. Offsets count from the frame's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Destination MAC.
    pub destination: Mac,
    /// Source MAC.
    pub source: Mac,
    /// Number of VLAN tags, 0 … [`MAX_TAGS`].
    pub tags: usize,
    /// EtherType behind the tags, or below 1536 the length of an 802.3 frame.
    pub ethertype: u16,
    /// Start of the network header.
    pub network_at: usize,
    /// The network header.
    pub network: Network,
}

impl Packet {
    /// Parses the headers.
    ///
    /// # Errors
    /// Returns an error if the headers could not be parsed up to the first byte of the transport
    /// header.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let destination = Mac(array(bytes, 0)?);
        let source = Mac(array(bytes, 6)?);
        let (tags, ethertype) = after_tags(bytes)?;
        let network_at = ETHERNET_BYTES + tags * TAG_BYTES;
        let network = Network::parse(bytes, network_at, ethertype)?;
        Ok(Self {
            destination,
            source,
            tags,
            ethertype,
            network_at,
            network,
        })
    }

    /// Returns the transport header, which must lie in these bytes.
    ///
    /// # Errors
    /// Returns an error if the transport header could not be parsed.
    pub fn transport(&self, bytes: &[u8]) -> Result<Transport, ParseError> {
        match self.network {
            Network::Ipv4(ip) if !ip.is_later_fragment() => {
                Transport::parse(bytes, ip.transport_at, ip.protocol)
            }
            Network::Ipv6(ip) if !ip.is_later_fragment() => {
                Transport::parse(bytes, ip.transport_at, ip.protocol)
            }
            _ => Ok(Transport::None),
        }
    }
}

/// Returns the number of tags, and the EtherType behind them.
fn after_tags(bytes: &[u8]) -> Result<(usize, u16), ParseError> {
    for tags in 0..=MAX_TAGS {
        let ethertype = be16(bytes, ETHERNET_BYTES - 2 + tags * TAG_BYTES)?;
        if !matches!(ethertype, ethertype::VLAN | ethertype::SERVICE_VLAN) {
            return Ok((tags, ethertype));
        }
    }
    Err(ParseError::TooManyTags)
}
