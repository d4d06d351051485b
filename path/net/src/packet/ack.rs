//! Recognizes pure acknowledgements. Their number on the wire is the first visible effect of
//! receive aggregation.

use super::constants::protocol;
use super::headers::Packet;
use super::network::Network;
use super::transport::{Transport, flags};
use nic::Frame;

/// Length of the longest pure acknowledgement: two tags, IPv6, and a TCP header with the maximum of
/// options.
const ACK_BYTES_MAX: usize = 14 + 8 + 40 + 60;

/// The TCP option numbers that matter here.
mod option {
    pub(super) const END: u8 = 0;
    pub(super) const NOTHING: u8 = 1;
    pub(super) const SACK: u8 = 5;
}

/// A pure acknowledgement: TCP without payload that neither opens nor ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Whether it has selective acknowledgements (RFC 2018).
    pub selective: bool,
}

/// Returns the acknowledgement if the frame is a pure one.
#[must_use]
pub fn pure_ack(frame: &Frame) -> Option<Ack> {
    if frame.len() > ACK_BYTES_MAX {
        return None;
    }
    let packet = Packet::parse(frame.header()).ok()?;
    let (ends, number) = match packet.network {
        Network::Ipv4(ip) => (packet.network_at + ip.total_len, ip.protocol),
        Network::Ipv6(ip) => (packet.network_at + 40 + ip.payload_len, ip.protocol),
        _ => return None,
    };
    if number != protocol::TCP {
        return None;
    }
    // The options may extend beyond the snapshot.
    let mut bytes = [0; ACK_BYTES_MAX];
    let length = frame.prefix(&mut bytes).ok()?;
    let header = bytes.get(..length)?;
    let Ok(Transport::Tcp(tcp)) = packet.transport(header) else {
        return None;
    };
    let others = flags::SYN | flags::FIN | flags::RST;
    let pure = tcp.flags & (flags::ACK | others) == flags::ACK && ends == tcp.payload_at;
    pure.then(|| Ack {
        selective: has_sack(header.get(tcp.at + 20..tcp.payload_at).unwrap_or(&[])),
    })
}

/// Returns whether TCP options contain selective acknowledgements.
fn has_sack(mut options: &[u8]) -> bool {
    // Each iteration consumes at least one of at most 40 bytes.
    while let [kind, rest @ ..] = options {
        options = match *kind {
            option::END => return false,
            option::NOTHING => rest,
            option::SACK => return true,
            _ => match rest.first() {
                Some(&length @ 2..) => options.get(usize::from(length)..).unwrap_or(&[]),
                _ => return false,
            },
        };
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use nic::Pool;
    use shmem::Area;

    /// Returns a TCP packet over IPv4 with these flags, options (a multiple of 4 bytes) and
    /// payload.
    fn packet(flags: u8, options: &[u8], payload: usize) -> Frame {
        let mut bytes = vec![2; 12];
        let total = 20 + 20 + options.len() + payload;
        bytes.extend([8, 0, 0x45, 0]);
        bytes.extend((total as u16).to_be_bytes());
        bytes.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.extend([0, 80, 4, 0, 0, 0, 0, 1, 0, 0, 0, 2]);
        bytes.extend([((5 + options.len() / 4) << 4) as u8, flags]);
        bytes.extend([1, 0, 0, 0, 0, 0]);
        bytes.extend(options);
        bytes.resize(bytes.len() + payload, 7);
        // Ethernet pads the frame, so the IP length counts.
        bytes.resize(bytes.len().max(60), 0);
        let mut pool = Pool::new(Area::anonymous(4096).unwrap(), 2048);
        Frame::from_bytes(&bytes, &mut pool).unwrap()
    }

    #[test]
    fn acknowledgements_differ_from_data_and_control() {
        let plain = Some(Ack { selective: false });
        assert_eq!(pure_ack(&packet(flags::ACK, &[], 0)), plain);
        let time = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
        assert_eq!(pure_ack(&packet(flags::ACK, &time, 0)), plain);
        for (bits, payload) in [
            (flags::ACK, 1),
            (flags::ACK | flags::SYN, 0),
            (flags::ACK | flags::FIN, 0),
            (flags::ACK | flags::RST, 0),
            (0, 0),
        ] {
            assert_eq!(pure_ack(&packet(bits, &[], payload)), None, "{bits:#x}");
        }
    }

    #[test]
    fn selective_ones_are_found_behind_other_options() {
        let sack = [1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2];
        let found = Some(Ack { selective: true });
        assert_eq!(pure_ack(&packet(flags::ACK, &sack, 0)), found);
        let mut both = vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
        both.extend(sack);
        assert_eq!(pure_ack(&packet(flags::ACK, &both, 0)), found);
        // Invalid lengths.
        for options in [[8, 0, 5, 10], [8, 1, 5, 10], [8, 200, 5, 10], [0, 0, 5, 10]] {
            let ack = pure_ack(&packet(flags::ACK, &options, 0));
            assert_eq!(ack, Some(Ack { selective: false }), "{options:?}");
        }
    }
}
