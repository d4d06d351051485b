//! TCP, UDP, ICMP: where the header is and where it ends.

use super::bytes::{ParseError, be32, byte};
use super::numbers::protocol;

/// Offset of the checksum in a TCP header.
pub(crate) const TCP_CHECKSUM: usize = 16;

/// TCP flags, as in byte 13 of the header.
pub mod flags {
    /// No more data.
    pub const FIN: u8 = 0x01;
    /// Start of a connection.
    pub const SYN: u8 = 0x02;
    /// End by force.
    pub const RST: u8 = 0x04;
    /// Hand over to the application.
    pub const PSH: u8 = 0x08;
    /// The acknowledgement number counts.
    pub const ACK: u8 = 0x10;
    /// The urgent pointer counts.
    pub const URG: u8 = 0x20;
    /// ECN echo.
    pub const ECE: u8 = 0x40;
    /// Congestion window reduced.
    pub const CWR: u8 = 0x80;
    /// Flags that are about one byte or one moment: a segment with one of them is neither merged
    /// (Linux `tcp_gro_receive`) nor cut.
    pub const CONTROL: u8 = SYN | RST | URG;
}

/// What an IP packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp(Tcp),
    /// UDP; where its header starts.
    Udp {
        /// Offset of the header.
        at: usize,
    },
    /// ICMP or ICMPv6; where its header starts.
    Icmp {
        /// Offset of the header.
        at: usize,
    },
    /// Another protocol, or a fragment without a transport header.
    None,
}

/// A TCP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// Offset of the header.
    pub at: usize,
    /// Sequence number.
    pub sequence: u32,
    /// [`flags`].
    pub flags: u8,
    /// Offset of the payload.
    pub payload_at: usize,
}

impl Transport {
    /// What stands at `at`.
    ///
    /// # Errors
    /// The header reaches beyond the bytes, or contradicts itself.
    pub fn parse(bytes: &[u8], at: usize, number: u8) -> Result<Self, ParseError> {
        let ends = |header: usize| match bytes.len() < at + header {
            true => Err(ParseError::TooShort),
            false => Ok(()),
        };
        match number {
            protocol::TCP => {
                let header = usize::from(byte(bytes, at + 12)? >> 4) * 4;
                if header < 20 {
                    return Err(ParseError::Malformed);
                }
                ends(header)?;
                let sequence = be32(bytes, at + 4)?;
                let flags = byte(bytes, at + 13)?;
                Ok(Self::Tcp(Tcp {
                    at,
                    sequence,
                    flags,
                    payload_at: at + header,
                }))
            }
            protocol::UDP => ends(8).map(|()| Self::Udp { at }),
            protocol::ICMP | protocol::ICMPV6 => ends(4).map(|()| Self::Icmp { at }),
            _ => Ok(Self::None),
        }
    }
}
