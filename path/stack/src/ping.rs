//! The program `ping`.

use crate::app::{App, Context};
use crate::latency::Latency;
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::socket::icmp;
use smoltcp::wire::{Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, IpAddress};
use std::net::IpAddr;

/// Number of data bytes of an echo request, as in the program `ping`.
const PING_DATA: usize = 56;
/// Interval between echo requests in nanoseconds.
const PING_EVERY_NS: u64 = 100_000_000;

/// A program that sends echo requests and records the round-trip times.
#[derive(Debug)]
pub(crate) struct Ping {
    handle: SocketHandle,
    to: IpAddr,
    count: u32,
    ident: u16,
    next_ns: u64,
    sent: u32,
    received: u64,
    duplicates: u64,
    /// Send time of each request that has no reply yet.
    waiting: Vec<Option<u64>>,
    latency: Latency,
}

impl Ping {
    pub(crate) fn new(
        to: IpAddr,
        count: u32,
        after_ns: u64,
        ident: u16,
        sockets: &mut SocketSet<'static>,
    ) -> Self {
        let buffer =
            || icmp::PacketBuffer::new(vec![icmp::PacketMetadata::EMPTY; 16], vec![0; 16 * 256]);
        Self {
            handle: sockets.add(icmp::Socket::new(buffer(), buffer())),
            to,
            count,
            ident,
            next_ns: after_ns,
            sent: 0,
            received: 0,
            duplicates: 0,
            waiting: Vec::new(),
            latency: Latency::default(),
        }
    }

    /// Returns an echo request as bytes, or `None` if the station has no source address.
    fn request(&self, context: &Context<'_>) -> Option<Vec<u8>> {
        let (ident, seq_no, data) = (self.ident, self.sent as u16, &[0x5a; PING_DATA]);
        let sums = ChecksumCapabilities::default();
        match self.to {
            IpAddr::V4(_) => {
                let repr = Icmpv4Repr::EchoRequest {
                    ident,
                    seq_no,
                    data,
                };
                let mut bytes = vec![0; repr.buffer_len()];
                repr.emit(&mut Icmpv4Packet::new_unchecked(&mut bytes), &sums);
                Some(bytes)
            }
            IpAddr::V6(to) => {
                let repr = Icmpv6Repr::EchoRequest {
                    ident,
                    seq_no,
                    data,
                };
                let mut bytes = vec![0; repr.buffer_len()];
                let from = context.interface.get_source_address_ipv6(&to);
                repr.emit(
                    &from,
                    &to,
                    &mut Icmpv6Packet::new_unchecked(&mut bytes),
                    &sums,
                );
                Some(bytes)
            }
        }
    }

    /// Returns the sequence number in a reply to one of this program's requests.
    fn reply(&self, bytes: &[u8]) -> Option<u16> {
        // smoltcp has verified the checksum before it passed the reply to this socket.
        let sums = ChecksumCapabilities::ignored();
        let (ident, seq_no) = match self.to {
            IpAddr::V4(_) => {
                match Icmpv4Repr::parse(&Icmpv4Packet::new_checked(bytes).ok()?, &sums).ok()? {
                    Icmpv4Repr::EchoReply { ident, seq_no, .. } => (ident, seq_no),
                    _ => return None,
                }
            }
            IpAddr::V6(to) => {
                let packet = Icmpv6Packet::new_checked(bytes).ok()?;
                match Icmpv6Repr::parse(&to, &to, &packet, &sums).ok()? {
                    Icmpv6Repr::EchoReply { ident, seq_no, .. } => (ident, seq_no),
                    _ => return None,
                }
            }
        };
        (ident == self.ident).then_some(seq_no)
    }
}

impl App for Ping {
    fn step(&mut self, context: &mut Context<'_>) {
        let now_ns = context.since_start_ns;
        let request = (now_ns >= self.next_ns && self.sent < self.count)
            .then(|| self.request(context))
            .flatten();
        let socket = context
            .sockets
            .get_mut::<icmp::Socket<'static>>(self.handle);
        // Binding fails only if the socket is already bound.
        if !socket.is_open() && socket.bind(icmp::Endpoint::Ident(self.ident)).is_err() {
            return;
        }
        if let Some(bytes) = request
            && socket.send_slice(&bytes, IpAddress::from(self.to)).is_ok()
        {
            self.sent += 1;
            self.waiting.push(Some(now_ns));
            self.next_ns = now_ns + PING_EVERY_NS;
        }
        while let Ok((bytes, _)) = socket.recv() {
            let Some(seq_no) = self.reply(bytes) else {
                continue;
            };
            // Sequence numbers repeat after 65536 requests. A reply belongs to the newest request
            // with its number.
            let newest = self.waiting.iter().rposition(|_| true).unwrap_or(0);
            let back = (newest as u16).wrapping_sub(seq_no);
            let place = newest.checked_sub(usize::from(back));
            match place
                .and_then(|place| self.waiting.get_mut(place))
                .map(Option::take)
            {
                Some(Some(sent_ns)) => {
                    self.received += 1;
                    self.latency.add(now_ns.saturating_sub(sent_ns));
                }
                _ => self.duplicates += 1,
            }
        }
    }

    fn due_ns(&self) -> Option<u64> {
        (self.sent < self.count).then_some(self.next_ns)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = vec![
            ("sent", self.sent.into()),
            ("received", self.received),
            ("duplicates", self.duplicates),
        ];
        all.extend(self.latency.counters());
        all
    }
}
