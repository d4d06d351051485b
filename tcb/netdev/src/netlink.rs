//! The required part of rtnetlink: link settings, veth pairs, addresses, routes. Safe code builds
//! the messages byte by byte (linux/netlink.h, linux/rtnetlink.h).

use abi::machine::Route;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
pub(crate) const RTM_GETLINK: u16 = 18;
pub(crate) const RTM_NEWADDR: u16 = 20;
pub(crate) const RTM_GETADDR: u16 = 22;
pub(crate) const RTM_NEWROUTE: u16 = 24;
pub(crate) const RTM_GETROUTE: u16 = 26;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 0x01;
const NLM_F_ACK: u16 = 0x04;
const NLM_F_DUMP: u16 = 0x300;
pub(crate) const NLM_F_EXCL: u16 = 0x200;
pub(crate) const NLM_F_CREATE: u16 = 0x400;
pub(crate) const NLM_F_APPEND: u16 = 0x800;

const IFLA_ADDRESS: u16 = 1;
pub(crate) const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_TXQLEN: u16 = 13;
pub(crate) const IFLA_LINKINFO: u16 = 18;
pub(crate) const IFLA_IFALIAS: u16 = 20;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_LINK_NETNSID: u16 = 37;
pub(crate) const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
pub(crate) const IFA_ADDRESS: u16 = 1;
pub(crate) const IFA_LOCAL: u16 = 2;
pub(crate) const RTA_DST: u16 = 1;
pub(crate) const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;

const IFF_UP: u32 = 1;
const IFA_F_NODAD: u8 = 0x02;
pub(crate) const RT_TABLE_MAIN: u8 = 254;
const RTPROT_BOOT: u8 = 3;
const RTN_UNICAST: u8 = 1;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_LINK: u8 = 253;

/// Bytes of `struct nlmsghdr`.
const HEADER: usize = 16;
/// Bytes of `struct ifinfomsg`.
pub(crate) const LINK: usize = 16;
/// Bytes of `struct nlattr`.
const ATTRIBUTE: usize = 4;

/// An rtnetlink socket of the opening thread's namespace.
pub(super) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

impl Netlink {
    pub(super) fn open() -> io::Result<Self> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None, // the protocol NETLINK_ROUTE is number 0
        )?;
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// Returns the number of an interface.
    pub(super) fn index(&self, name: &str) -> io::Result<u32> {
        Ok(rustix::net::netdevice::name_to_index(&self.socket, name)?)
    }

    /// Returns the name of an interface.
    pub(super) fn name(&self, index: u32) -> io::Result<String> {
        Ok(rustix::net::netdevice::index_to_name(&self.socket, index)?)
    }

    /// Sets the MAC, if any, the MTU, and the length of the transmit queue in packets (0:
    /// unchanged).
    pub(super) fn set_link(
        &mut self,
        index: u32,
        mac: Option<[u8; 6]>,
        mtu: u32,
        tx_queue: u32,
    ) -> io::Result<()> {
        let mut message = NetlinkRequest::link(index, 0, 0);
        if let Some(mac) = mac {
            message.attribute(IFLA_ADDRESS, &mac);
        }
        message.attribute(IFLA_MTU, &mtu.to_ne_bytes());
        if tx_queue != 0 {
            message.attribute(IFLA_TXQLEN, &tx_queue.to_ne_bytes());
        }
        self.request(message)
    }

    /// Creates a veth pair: `near` in this namespace, and `far` in the namespace `far_netns`.
    /// Neither name may exist in its namespace. Frames that `far` sends arrive on `queues` queues
    /// of `near`.
    pub(super) fn add_veth(
        &mut self,
        near: &str,
        far: &str,
        far_netns: BorrowedFd<'_>,
        queues: u32,
    ) -> io::Result<()> {
        let numbers = |message: &mut NetlinkRequest, transmit: u32, receive: u32| {
            message.attribute(IFLA_NUM_TX_QUEUES, &transmit.to_ne_bytes());
            message.attribute(IFLA_NUM_RX_QUEUES, &receive.to_ne_bytes());
        };
        let mut message = NetlinkRequest::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL);
        message.bytes(&[0; LINK]);
        message.text(IFLA_IFNAME, near);
        numbers(&mut message, 1, queues);
        message.nested(IFLA_LINKINFO, |info| {
            info.text(IFLA_INFO_KIND, "veth");
            info.nested(IFLA_INFO_DATA, |data| {
                data.nested(VETH_INFO_PEER, |peer| {
                    peer.bytes(&[0; LINK]);
                    peer.text(IFLA_IFNAME, far);
                    numbers(peer, queues, 1);
                    peer.attribute(IFLA_NET_NS_FD, &far_netns.as_raw_fd().to_ne_bytes());
                });
            });
        });
        self.request(message)
    }

    /// Removes an interface, and for a veth also the other end.
    pub(super) fn delete_link(&mut self, index: u32) -> io::Result<()> {
        let mut message = NetlinkRequest::new(RTM_DELLINK, 0);
        message.link_header(index, 0, 0);
        self.request(message)
    }

    /// Returns the number of the other end of a veth if that end is in the same namespace.
    pub(super) fn other_end(&mut self, index: u32) -> io::Result<Option<u32>> {
        Ok(other_end(&self.link(index)?))
    }

    /// Returns the alias of an interface and the number of its transmit queues.
    pub(super) fn alias(&mut self, index: u32) -> io::Result<(String, u32)> {
        Ok(alias_and_queues(&self.link(index)?))
    }

    /// Returns the message that describes an interface.
    pub(crate) fn link(&mut self, index: u32) -> io::Result<Vec<u8>> {
        let mut message = NetlinkRequest::new(RTM_GETLINK, 0);
        message.link_header(index, 0, 0);
        self.answer(message, RTM_NEWLINK)
    }

    /// Sets an interface's alias.
    pub(super) fn set_alias(&mut self, index: u32, alias: &str) -> io::Result<()> {
        let mut message = NetlinkRequest::link(index, 0, 0);
        message.text(IFLA_IFALIAS, alias);
        self.request(message)
    }

    /// Makes an interface a port of `master`.
    pub(super) fn set_master(&mut self, index: u32, master: u32) -> io::Result<()> {
        let mut message = NetlinkRequest::link(index, 0, 0);
        message.attribute(IFLA_MASTER, &master.to_ne_bytes());
        self.request(message)
    }

    /// Brings an interface up.
    pub(super) fn set_up(&mut self, index: u32) -> io::Result<()> {
        self.request(NetlinkRequest::link(index, IFF_UP, IFF_UP))
    }

    /// Adds an address to an interface. The address is usable immediately, or with `detect`, for an
    /// IPv6 address, after duplicate address detection.
    pub(super) fn add_address(
        &mut self,
        index: u32,
        (address, prefix): (IpAddr, u8),
        detect: bool,
    ) -> io::Result<()> {
        let mut message = NetlinkRequest::new(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL);
        let flags = if detect { 0 } else { IFA_F_NODAD };
        message.bytes(&[family(address), prefix, flags, 0]);
        message.bytes(&index.to_ne_bytes());
        let (octets, len) = octets(address);
        message.attribute(IFA_LOCAL, octets.get(..len).unwrap_or(&[]));
        message.attribute(IFA_ADDRESS, octets.get(..len).unwrap_or(&[]));
        self.request(message)
    }

    /// Adds a route via an interface.
    pub(super) fn add_route(&mut self, index: u32, route: &Route) -> io::Result<()> {
        // The gateway of another route may be a neighbour on this one.
        let scope = match route.via {
            Some(_) => RT_SCOPE_UNIVERSE,
            None => RT_SCOPE_LINK,
        };
        let mut message = NetlinkRequest::new(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL);
        message.bytes(&[family(route.to), route.prefix, 0, 0]);
        message.bytes(&[RT_TABLE_MAIN, RTPROT_BOOT, scope, RTN_UNICAST]);
        message.bytes(&0u32.to_ne_bytes());
        for (kind, address) in [(RTA_DST, Some(route.to)), (RTA_GATEWAY, route.via)] {
            if let Some(address) = address {
                let (octets, len) = octets(address);
                message.attribute(kind, octets.get(..len).unwrap_or(&[]));
            }
        }
        message.attribute(RTA_OIF, &index.to_ne_bytes());
        self.request(message)
    }

    /// Lists the kernel's objects of one type: see [`dump`].
    pub(crate) fn list(&self, kind: u16, visit: impl FnMut(u16, &[u8])) -> io::Result<()> {
        let mut message = NetlinkRequest::new(kind, 0);
        message.bytes(&[0; LINK]);
        dump(&self.socket, message, visit)
    }

    /// Sends a request and waits for the kernel's acknowledgement, which is immediate.
    fn request(&mut self, message: NetlinkRequest) -> io::Result<()> {
        self.answer(message, NLMSG_ERROR).map(drop)
    }

    /// Sends a request and waits for a message of type `wanted`, or an error.
    fn answer(&mut self, message: NetlinkRequest, wanted: u16) -> io::Result<Vec<u8>> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = message.finish(self.sequence);
        rustix::net::send(&self.socket, &bytes, SendFlags::empty())?;
        let mut answer = [0u8; 16 << 10];
        loop {
            let (len, _) = rustix::net::recv(&self.socket, &mut answer[..], RecvFlags::empty())?;
            let answer = answer.get(..len).unwrap_or(&[]);
            if let Some(reply) = reply(answer, self.sequence, wanted) {
                return reply.map(|()| answer.to_vec());
            }
        }
    }
}

/// A request under construction.
pub(crate) struct NetlinkRequest(Vec<u8>);

impl NetlinkRequest {
    /// Creates a message that consists only of attributes.
    pub(crate) fn bare() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn new(kind: u16, flags: u16) -> Self {
        let mut message = Self(Vec::with_capacity(128));
        message.bytes(&[0; 4]);
        message.bytes(&kind.to_ne_bytes());
        message.bytes(&(NLM_F_REQUEST | NLM_F_ACK | flags).to_ne_bytes());
        message.bytes(&[0; 8]);
        message
    }

    /// Creates an RTM_NEWLINK message for an existing interface that sets the flags in `mask` to
    /// `flags`.
    fn link(index: u32, flags: u32, mask: u32) -> Self {
        let mut message = Self::new(RTM_NEWLINK, 0);
        message.link_header(index, flags, mask);
        message
    }

    /// Appends a `struct ifinfomsg`.
    fn link_header(&mut self, index: u32, flags: u32, mask: u32) {
        self.bytes(&[0; 4]);
        for word in [index, flags, mask] {
            self.bytes(&word.to_ne_bytes());
        }
    }

    fn add_flags(&mut self, flags: u16) {
        let with = u16_at(&self.0, 6).unwrap_or(0) | flags;
        if let Some(field) = self.0.get_mut(6..8) {
            field.copy_from_slice(&with.to_ne_bytes());
        }
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Appends an attribute, padded to four bytes.
    pub(crate) fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.bytes(&(value.len() as u16 + 4).to_ne_bytes());
        self.bytes(&kind.to_ne_bytes());
        self.bytes(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    /// Appends a text with its terminating zero.
    pub(crate) fn text(&mut self, kind: u16, text: &str) {
        self.attribute(kind, &[text.as_bytes(), &[0]].concat());
    }

    /// Appends a nested attribute with the contents that `fill` appends.
    pub(crate) fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.0.len();
        self.attribute(kind, &[]);
        fill(self);
        let len = (self.0.len() - start) as u16;
        if let Some(field) = self.0.get_mut(start..start + 2) {
            field.copy_from_slice(&len.to_ne_bytes());
        }
    }

    /// Returns the bytes, including length and sequence number.
    pub(crate) fn finish(mut self, sequence: u32) -> Vec<u8> {
        let len = self.0.len() as u32;
        if let Some(field) = self.0.get_mut(0..4) {
            field.copy_from_slice(&len.to_ne_bytes());
        }
        if let Some(field) = self.0.get_mut(8..12) {
            field.copy_from_slice(&sequence.to_ne_bytes());
        }
        self.0
    }
}

/// Returns the result of request `sequence`, whose reply is a message of type `wanted`. Returns
/// `None` if `answer` is not the reply to this request.
pub(crate) fn reply(answer: &[u8], sequence: u32, wanted: u16) -> Option<io::Result<()>> {
    if u32_at(answer, 8) != Some(sequence) {
        return None;
    }
    let kind = u16_at(answer, 4);
    if kind != Some(NLMSG_ERROR) {
        return (kind == Some(wanted)).then_some(Ok(()));
    }
    match u32_at(answer, HEADER).map(|code| code as i32) {
        Some(0) => (wanted == NLMSG_ERROR).then_some(Ok(())),
        Some(code) => Some(Err(io::Error::from_raw_os_error(code.saturating_neg()))),
        None => Some(Err(io::Error::from(io::ErrorKind::UnexpectedEof))),
    }
}

/// Returns the attributes of an interface in a whole RTM_NEWLINK message.
pub(crate) fn of_link(message: &[u8]) -> Attributes<'_> {
    Attributes(message.get(HEADER + LINK..).unwrap_or(&[]))
}

/// Returns the number of the interface's other end if that end is in the same namespace.
pub(crate) fn other_end(message: &[u8]) -> Option<u32> {
    let mut all = of_link(message);
    let is_foreign = all.any(|(kind, _)| kind == IFLA_LINK_NETNSID);
    u32_at(of_link(message).get(IFLA_LINK), 0).filter(|_| !is_foreign)
}

pub(crate) fn alias_and_queues(message: &[u8]) -> (String, u32) {
    let all = of_link(message);
    let queues = u32_at(all.get(IFLA_NUM_TX_QUEUES), 0).unwrap_or(0);
    (all.text(IFLA_IFALIAS), queues)
}

/// Returns the sequence number and the errno (0 for success) of an acknowledgement, or `None` for
/// any other message.
pub(crate) fn error_of(message: &[u8]) -> Option<(u32, i32)> {
    if u16_at(message, 4)? != NLMSG_ERROR {
        return None;
    }
    let code = u32_at(message, HEADER)? as i32;
    Some((u32_at(message, 8)?, code.saturating_neg()))
}

/// Requests a list, and calls `visit` with the type and the body (without header) of each message.
pub(crate) fn dump(
    socket: &OwnedFd,
    mut message: NetlinkRequest,
    mut visit: impl FnMut(u16, &[u8]),
) -> io::Result<()> {
    message.add_flags(NLM_F_DUMP);
    rustix::net::send(socket, &message.finish(1), SendFlags::empty())?;
    // The kernel sends at most 32 KB per datagram.
    let mut answer = vec![0u8; 64 << 10];
    loop {
        let (len, _) = rustix::net::recv(socket, &mut answer[..], RecvFlags::empty())?;
        if each(answer.get(..len).unwrap_or(&[]), &mut visit)? {
            return Ok(());
        }
    }
}

/// Calls `visit` with the type and the body of each message in one part of a list. Returns whether
/// this part is the last.
pub(crate) fn each(mut rest: &[u8], visit: &mut impl FnMut(u16, &[u8])) -> io::Result<bool> {
    while let (Some(len), Some(kind)) = (u32_at(rest, 0), u16_at(rest, 4)) {
        let len = len as usize;
        let message = rest.get(..len).filter(|_| len >= HEADER);
        let message = message.ok_or(io::ErrorKind::InvalidData)?;
        match (kind, error_of(message)) {
            (NLMSG_DONE, _) => return Ok(true),
            (_, Some((_, 0))) => {}
            (_, Some((_, code))) => return Err(io::Error::from_raw_os_error(code)),
            _ => visit(kind, message.get(HEADER..).unwrap_or(&[])),
        }
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Ok(false)
}

/// Iterator over the attributes of a message: type and value.
#[derive(Clone, Copy)]
pub(crate) struct Attributes<'a>(pub(crate) &'a [u8]);

impl<'a> Attributes<'a> {
    /// Returns the value of an attribute, or an empty slice if it is absent.
    pub(crate) fn get(mut self, wanted: u16) -> &'a [u8] {
        let found = self.find(|(kind, _)| *kind == wanted);
        found.map_or(&[], |(_, value)| value)
    }

    /// Returns the value of a text attribute, without its terminating zero.
    pub(crate) fn text(self, wanted: u16) -> String {
        let value = self.get(wanted);
        let value = value.strip_suffix(&[0]).unwrap_or(value);
        String::from_utf8_lossy(value).into_owned()
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let len = usize::from(u16_at(self.0, 0)?);
        let kind = u16_at(self.0, 2)?;
        let value = self.0.get(ATTRIBUTE..len)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    }
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn family(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}

/// Returns an address's bytes, and their number.
fn octets(address: IpAddr) -> ([u8; 16], usize) {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            ([a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 4)
        }
        IpAddr::V6(v6) => (v6.octets(), 16),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_its_length_and_padded_attributes() {
        let mut message = NetlinkRequest::link(7, IFF_UP, IFF_UP);
        message.attribute(IFLA_ADDRESS, &[1, 2, 3, 4, 5, 6]);
        let bytes = message.finish(9);
        assert_eq!(bytes.len(), HEADER + 16 + 12);
        assert_eq!(u32_at(&bytes, 0), Some(bytes.len() as u32));
        assert_eq!(u16_at(&bytes, 4), Some(RTM_NEWLINK));
        assert_eq!(u32_at(&bytes, 8), Some(9));
        assert_eq!(u32_at(&bytes, HEADER + 4), Some(7));
        assert_eq!(
            u16_at(&bytes, HEADER + 16),
            Some(10),
            "an attribute's length is without padding"
        );
        assert_eq!(bytes.get(bytes.len() - 2..), Some(&[0, 0][..]));
    }

    #[test]
    fn attributes_nest() {
        let mut message = NetlinkRequest::new(RTM_NEWLINK, 0);
        message.nested(IFLA_LINKINFO, |info| {
            info.text(IFLA_INFO_KIND, "veth");
            info.nested(IFLA_INFO_DATA, |data| data.attribute(VETH_INFO_PEER, &[7]));
        });
        message.text(IFLA_IFNAME, "a");
        let bytes = message.finish(1);
        let all: Vec<_> = Attributes(&bytes[HEADER..]).collect();
        let [(IFLA_LINKINFO, info), (IFLA_IFNAME, b"a\0")] = all[..] else {
            panic!("{all:?}")
        };
        let info: Vec<_> = Attributes(info).collect();
        let [(IFLA_INFO_KIND, b"veth\0"), (IFLA_INFO_DATA, data)] = info[..] else {
            panic!("{info:?}")
        };
        assert_eq!(Attributes(data).collect::<Vec<_>>(), [(1, &[7][..])]);
    }
}
