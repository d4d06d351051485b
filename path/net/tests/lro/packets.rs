//! TCP packets with valid checksums, built field by field.

use crate::common::{DST, SRC};
use net::packet::checksum::{Sum, pseudo_v4, pseudo_v6};
use net::packet::{flags, protocol};

/// A TCP packet to be built.
#[derive(Clone, Debug)]
pub(crate) struct Tcp {
    pub(crate) v6: bool,
    pub(crate) tags: usize,
    pub(crate) tag: u8,
    pub(crate) mac: u8,
    /// Last byte of the source address.
    pub(crate) host: u8,
    pub(crate) port: u16,
    pub(crate) tos: u8,
    pub(crate) label: u32,
    pub(crate) ttl: u8,
    pub(crate) id: u16,
    /// IPv4 flags and fragment offset.
    pub(crate) fragment: u16,
    pub(crate) ip_options: Vec<u8>,
    /// IPv6 extension headers: type, and the bytes behind the first two.
    pub(crate) extensions: Vec<(u8, Vec<u8>)>,
    pub(crate) sequence: u32,
    pub(crate) acknowledgement: u32,
    pub(crate) flags: u8,
    pub(crate) reserved: u8,
    pub(crate) window: u16,
    pub(crate) urgent: u16,
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl Tcp {
    /// Returns `len` bytes of data at `sequence`, over IPv4 with DF.
    pub(crate) fn v4(sequence: u32, len: usize) -> Self {
        Self {
            v6: false,
            tags: 0,
            tag: 1,
            mac: SRC.0[5],
            host: 1,
            port: 1500,
            tos: 0,
            label: 0,
            ttl: 8,
            id: 0,
            fragment: 0x4000,
            ip_options: Vec::new(),
            extensions: Vec::new(),
            sequence,
            acknowledgement: 100,
            flags: flags::ACK,
            reserved: 0,
            window: 0xffff,
            urgent: 0,
            options: Vec::new(),
            payload: (0..len).map(|at| (at + sequence as usize) as u8).collect(),
        }
    }

    pub(crate) fn of(v6: bool, sequence: u32, len: usize) -> Self {
        Self {
            v6,
            ..Self::v4(sequence, len)
        }
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    pub(crate) fn network_at(&self) -> usize {
        14 + 4 * self.tags
    }

    pub(crate) fn tcp_at(&self) -> usize {
        let extensions: usize = self.extensions.iter().map(|(_, rest)| rest.len() + 2).sum();
        let ip = if self.v6 {
            40 + extensions
        } else {
            20 + self.ip_options.len()
        };
        self.network_at() + ip
    }

    /// Returns the frame with computed checksums.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let tcp = self.tcp();
        let mut bytes = DST.0.to_vec();
        bytes.extend([2, 0, 0, 0, 0, self.mac]);
        for tag in 0..self.tags {
            let outer = tag == 0 && self.tags == 2;
            bytes.extend(if outer { [0x88, 0xa8] } else { [0x81, 0] });
            bytes.extend([0, self.tag]);
        }
        if self.v6 {
            self.ipv6(tcp.len(), &mut bytes);
        } else {
            self.ipv4(tcp.len(), &mut bytes);
        }
        bytes.extend(tcp);
        bytes
    }

    fn source4(&self) -> [u8; 4] {
        [10, 0, 0, self.host]
    }

    fn source6(&self) -> [u8; 16] {
        let mut address = [0; 16];
        address[0] = 0xfd;
        address[15] = self.host;
        address
    }

    fn tcp(&self) -> Vec<u8> {
        let words = (20 + self.options.len()) / 4;
        let mut tcp = self.port.to_be_bytes().to_vec();
        tcp.extend(8000u16.to_be_bytes());
        tcp.extend(self.sequence.to_be_bytes());
        tcp.extend(self.acknowledgement.to_be_bytes());
        tcp.extend([(words << 4) as u8 | self.reserved, self.flags]);
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0, 0]);
        tcp.extend(self.urgent.to_be_bytes());
        tcp.extend(&self.options);
        tcp.extend(&self.payload);
        let pseudo = if self.v6 {
            let (from, to) = (self.source6().into(), crate::common::DST6.into());
            pseudo_v6(from, to, protocol::TCP, tcp.len())
        } else {
            let (from, to) = (self.source4().into(), crate::common::DST4.into());
            pseudo_v4(from, to, protocol::TCP, tcp.len())
        };
        let mut sum = Sum::new(pseudo);
        sum.add_bytes(&tcp);
        tcp[16..18].copy_from_slice(&sum.finish().to_be_bytes());
        tcp
    }

    fn ipv4(&self, tcp: usize, bytes: &mut Vec<u8>) {
        let len = 20 + self.ip_options.len();
        let mut ip = vec![0x40 | (len / 4) as u8, self.tos];
        ip.extend(((len + tcp) as u16).to_be_bytes());
        ip.extend(self.id.to_be_bytes());
        ip.extend(self.fragment.to_be_bytes());
        ip.extend([self.ttl, protocol::TCP, 0, 0]);
        ip.extend(self.source4());
        ip.extend(crate::common::DST4);
        ip.extend(&self.ip_options);
        let mut sum = Sum::default();
        sum.add_bytes(&ip);
        ip[10..12].copy_from_slice(&(!sum.folded()).to_be_bytes());
        bytes.extend([8, 0]);
        bytes.extend(ip);
    }

    fn ipv6(&self, tcp: usize, bytes: &mut Vec<u8>) {
        let len = self.tcp_at() - self.network_at() - 40 + tcp;
        let first = 0x6000_0000 | u32::from(self.tos) << 20 | self.label;
        bytes.extend([0x86, 0xdd]);
        bytes.extend(first.to_be_bytes());
        bytes.extend((len as u16).to_be_bytes());
        let kinds: Vec<u8> = self.extensions.iter().map(|(kind, _)| *kind).collect();
        let kinds = [&kinds[..], &[protocol::TCP]].concat();
        bytes.extend([kinds[0], self.ttl]);
        bytes.extend(self.source6());
        bytes.extend(crate::common::DST6);
        for ((_, rest), next) in self.extensions.iter().zip(&kinds[1..]) {
            bytes.extend([*next, ((rest.len() + 2) / 8 - 1) as u8]);
            bytes.extend(rest);
        }
    }
}

/// Returns the timestamp option as Linux writes it.
pub(crate) fn timestamp(value: u32, echo: u32) -> Vec<u8> {
    let mut option = vec![1, 1, 8, 10];
    option.extend(value.to_be_bytes());
    option.extend(echo.to_be_bytes());
    option
}

/// Returns `count` segments of `len` bytes starting at sequence number 1000, with increasing
/// identifications.
pub(crate) fn stream(v6: bool, count: usize, len: usize) -> Vec<Tcp> {
    (0..count)
        .map(|n| Tcp::of(v6, 1000 + (n * len) as u32, len).with(|p| p.id = n as u16))
        .collect()
}
