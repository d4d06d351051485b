//! TCP, UDP and ICMP headers.

use super::bytes::{ParseError, be32, byte};
use super::constants::protocol;

/// Offset of the checksum in a TCP header.
pub(crate) const TCP_CHECKSUM: usize = 16;

/// TCP flags, as in byte 13 of the header.
pub mod flags {
    /// No more data.
    pub const FIN: u8 = 0x01;
    /// Start of a connection.
    pub const SYN: u8 = 0x02;
    /// Abort of a connection.
    pub const RST: u8 = 0x04;
    /// Push to the application.
    pub const PSH: u8 = 0x08;
    /// The acknowledgement number is valid.
    pub const ACK: u8 = 0x10;
    /// The urgent pointer is valid.
    pub const URG: u8 = 0x20;
    /// ECN echo.
    pub const ECE: u8 = 0x40;
    /// Congestion window reduced.
    pub const CWR: u8 = 0x80;
    /// Flags that refer to one byte or one moment. A segment with one of them is neither merged
    /// (Linux `tcp_gro_receive`) nor segmented.
    pub const CONTROL: u8 = SYN | RST | URG;
}

/// Transport protocol of an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp(Tcp),
    /// UDP.
    Udp {
        /// Offset of the header.
        at: usize,
    },
    /// ICMP or ICMPv6.
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
    /// Parses the header at `at`.
    ///
    /// # Errors
    /// Returns an error if the header extends beyond the bytes or contradicts itself.
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
