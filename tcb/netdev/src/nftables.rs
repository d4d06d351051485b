//! The part of nf_tables that address translation needs. One transaction creates one table of
//! rules. The sending socket owns the table: the kernel removes the table when the last descriptor
//! of that socket is closed, in any process. Safe code builds the messages byte by byte
//! (linux/netfilter/nfnetlink.h, linux/netfilter/nf_tables.h). Numbers in attributes are
//! big-endian.

use crate::netlink::{
    Attributes, NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, NetlinkRequest, dump, error_of,
};
use rustix::net::netlink::NETFILTER;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
pub(crate) const SUBSYSTEM: u16 = 10;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const GET_TABLE: u16 = (SUBSYSTEM << 8) | 1;
const DELETE_TABLE: u16 = (SUBSYSTEM << 8) | 2;
const NEW_CHAIN: u16 = (SUBSYSTEM << 8) | 3;
const NEW_RULE: u16 = (SUBSYSTEM << 8) | 6;
pub(crate) const NEW_SET: u16 = (SUBSYSTEM << 8) | 9;

const NFPROTO_INET: u8 = 1;
const TABLE_F_OWNER: u32 = 2;
/// Bytes of `struct nfgenmsg`, which follows a message's header.
pub(crate) const GENERIC: usize = 4;
const TABLE_NAME: u16 = 1;
const TABLE_USERDATA: u16 = 6;
/// The type of the comment in a table's user data, as `nft` shows it.
const COMMENT: u8 = 0;
pub(crate) const HOOK_PREROUTING: u32 = 0;
const HOOK_FORWARD: u32 = 2;
const HOOK_POSTROUTING: u32 = 4;
const PRIORITY_DSTNAT: i32 = -100;
const PRIORITY_FILTER: i32 = 0;
const PRIORITY_SRCNAT: i32 = 100;

/// The register for a rule's comparisons, and the register for the port of a translation.
pub(crate) const REG: u32 = 1;
const REG_PORT: u32 = 2;
pub(crate) const META_IIFNAME: u32 = 6;
const META_OIFNAME: u32 = 7;
const META_NFPROTO: u32 = 15;
const META_L4PROTO: u32 = 16;
pub(crate) const CMP_EQ: u32 = 0;
const CMP_NEQ: u32 = 1;
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
const FIB_RESULT_ADDRTYPE: u32 = 3;
const FIB_F_DADDR: u32 = 2;
const NAT_DNAT: u32 = 1;
const CT_STATE: u32 = 0;
pub(crate) const CT_STATUS: u32 = 2;
/// Bit of `CT_STATE`: the packet belongs to no connection and begins none.
const INVALID: u32 = 1;
const ESTABLISHED: u32 = 2;
const RELATED: u32 = 4;
/// Bit of `CT_STATUS`: the connection's destination was translated.
const DST_NAT: u32 = 1 << 5;
const REG_VERDICT: u32 = 0;
/// Verdict that drops the packet.
pub(crate) const DROP: u32 = 0;
/// Verdict that accepts the packet in this chain. It still passes the chains of other tables at the
/// same hook.
const ACCEPT: u32 = 1;
/// Bytes of an interface's name in a register.
const IFNAME_BYTES: usize = 16;

/// The rules of one table, under construction.
pub(crate) struct NftTable {
    name: String,
    messages: Vec<NetlinkRequest>,
}

/// One rule: comparisons, followed by a verdict or a translation.
pub(crate) struct NftRule(NetlinkRequest);

/// A table in the kernel's list.
pub(crate) struct Listed {
    pub(crate) name: String,
    /// The table's comment, empty if unset.
    pub(crate) comment: String,
}

impl NftTable {
    /// Creates a table for address translation: chains before, at and after routing, without rules.
    pub(crate) fn new(name: &str, comment: &str) -> Self {
        let mut table = Self::empty(name, comment);
        table.chain("prerouting", "nat", HOOK_PREROUTING, PRIORITY_DSTNAT);
        table.chain("forward", "filter", HOOK_FORWARD, PRIORITY_FILTER);
        table.chain("postrouting", "nat", HOOK_POSTROUTING, PRIORITY_SRCNAT);
        table
    }

    /// Creates a table without chains. `comment` has at most 127 bytes.
    pub(crate) fn empty(name: &str, comment: &str) -> Self {
        let mut table = Self {
            name: name.to_owned(),
            messages: Vec::new(),
        };
        let mut message = message(NEW_TABLE, NLM_F_CREATE | NLM_F_EXCL);
        message.text(1, name);
        message.attribute(2, &TABLE_F_OWNER.to_be_bytes());
        if !comment.is_empty() {
            let len = comment.len() as u8 + 1;
            let data = [&[COMMENT, len], comment.as_bytes(), &[0]].concat();
            message.attribute(TABLE_USERDATA, &data);
        }
        table.messages.push(message);
        table
    }

    pub(crate) fn chain(&mut self, name: &str, kind: &str, hook: u32, priority: i32) {
        let mut message = message(NEW_CHAIN, NLM_F_CREATE);
        message.text(1, &self.name);
        message.text(3, name);
        message.nested(4, |of| {
            of.attribute(1, &hook.to_be_bytes());
            of.attribute(2, &priority.to_be_bytes());
        });
        message.text(7, kind);
        self.messages.push(message);
    }

    pub(crate) fn rule(&mut self, chain: &str, expressions: impl FnOnce(&mut NftRule)) {
        let mut message = message(NEW_RULE, NLM_F_CREATE | NLM_F_APPEND);
        message.text(1, &self.name);
        message.text(2, chain);
        let mut rule = NftRule(NetlinkRequest::bare());
        expressions(&mut rule);
        message.nested(4, |list| list.bytes(rule.0.as_bytes()));
        self.messages.push(message);
    }

    /// Accepts forwarded packets between the guests' `networks`, behind `ifname`, and other
    /// networks: all connections that guests open, and connections to guests on forwarded ports.
    /// Drops all other packets routed to or from `ifname`, including packets with forged sources.
    pub(crate) fn guard(&mut self, networks: &[(IpAddr, u8)], ifname: &str) {
        // The kernel does not translate invalid packets, so they would leave with a guest's
        // address.
        self.rule("forward", |rule| {
            rule.interface(META_IIFNAME, CMP_EQ, ifname);
            rule.stray();
            rule.verdict(DROP);
        });
        for &(address, prefix) in networks {
            self.rule("forward", |rule| {
                rule.family(address);
                rule.interface(META_IIFNAME, CMP_EQ, ifname);
                rule.source_network(address, prefix);
                rule.verdict(ACCEPT);
            });
        }
        self.rule("forward", |rule| {
            rule.interface(META_IIFNAME, CMP_EQ, ifname);
            rule.verdict(DROP);
        });
        for (key, bits) in [(CT_STATE, ESTABLISHED | RELATED), (CT_STATUS, DST_NAT)] {
            self.rule("forward", |rule| {
                rule.interface(META_OIFNAME, CMP_EQ, ifname);
                rule.connection(key, CMP_NEQ, bits);
                rule.verdict(ACCEPT);
            });
        }
        self.rule("forward", |rule| {
            rule.interface(META_OIFNAME, CMP_EQ, ifname);
            rule.verdict(DROP);
        });
    }

    /// Translates the source address of packets that are from the network `address`/`prefix` and
    /// leave through an interface other than `ifname`. The new source is the address of the
    /// outgoing interface.
    pub(crate) fn masquerade(&mut self, address: IpAddr, prefix: u8, ifname: &str) {
        self.rule("postrouting", |rule| {
            rule.family(address);
            rule.source_network(address, prefix);
            rule.interface(META_OIFNAME, CMP_NEQ, ifname);
            rule.expression("masq", |_| {});
        });
    }

    /// Redirects connections to the address `to` if they are for `port` of this system and arrive
    /// on an interface other than `ifname`. `transport` is the number of the protocol.
    pub(crate) fn forward(&mut self, transport: u8, port: u16, to: SocketAddr, ifname: &str) {
        self.rule("prerouting", |rule| {
            rule.family(to.ip());
            rule.interface(META_IIFNAME, CMP_NEQ, ifname);
            rule.for_this_system();
            rule.meta(META_L4PROTO, CMP_EQ, &[transport]);
            rule.destination_port(port);
            rule.destination(to);
        });
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn push(&mut self, message: NetlinkRequest) {
        self.messages.push(message);
    }

    /// Installs the whole table, or nothing on error. The table exists as long as the descriptor.
    pub(crate) fn install(self) -> io::Result<OwnedFd> {
        let socket = open()?;
        commit(&socket, self.messages)?;
        Ok(socket)
    }
}

/// Opens an nf_tables socket of the calling thread's namespace.
pub(crate) fn open() -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
    let flags = SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(
        family,
        kind,
        flags,
        Some(NETFILTER),
    )?)
}

/// Deletes a table of `owner`. The table no longer exists when this returns, even if other
/// processes have descriptors of the same socket.
pub(crate) fn delete(owner: &OwnedFd, name: &str) -> io::Result<()> {
    let mut message = message(DELETE_TABLE, 0);
    message.text(TABLE_NAME, name);
    commit(owner, vec![message])
}

/// Returns the tables of the calling thread's namespace that cover both IPv4 and IPv6.
pub(crate) fn tables() -> io::Result<Vec<Listed>> {
    let mut tables = Vec::new();
    dump(&open()?, message(GET_TABLE, 0), |_, body| {
        tables.push(listed(body));
    })?;
    Ok(tables)
}

/// Returns the table in the body of a message that lists tables.
pub(crate) fn listed(body: &[u8]) -> Listed {
    let attributes = Attributes(body.get(GENERIC..).unwrap_or(&[]));
    let (name, comment) = (attributes.text(TABLE_NAME), attributes.get(TABLE_USERDATA));
    let comment = match comment {
        [COMMENT, len, text @ ..] => text.get(..usize::from(*len)).unwrap_or(&[]),
        _ => &[],
    };
    let comment = comment.strip_suffix(&[0]).unwrap_or(comment);
    let comment = String::from_utf8_lossy(comment).into_owned();
    Listed { name, comment }
}

/// Sends `messages` as one transaction and waits until the kernel has executed it.
fn commit(socket: &OwnedFd, messages: Vec<NetlinkRequest>) -> io::Result<()> {
    let (bytes, last) = transaction(messages);
    rustix::net::send(socket, &bytes, SendFlags::empty())?;
    let mut answer = [0u8; 8 << 10];
    loop {
        let (len, _) = rustix::net::recv(socket, &mut answer[..], RecvFlags::empty())?;
        match error_of(answer.get(..len).unwrap_or(&[])) {
            Some((_, code)) if code != 0 => return Err(io::Error::from_raw_os_error(code)),
            // The kernel acknowledges messages in order.
            Some((sequence, _)) if sequence == last => return Ok(()),
            _ => {}
        }
    }
}

/// Returns the bytes of all messages, and the sequence number of the last message that makes a
/// change.
fn transaction(messages: Vec<NetlinkRequest>) -> (Vec<u8>, u32) {
    let mut bytes = batch(BATCH_BEGIN).finish(0);
    let mut sequence = 0;
    for message in messages {
        sequence += 1;
        bytes.extend(message.finish(sequence));
    }
    bytes.extend(batch(BATCH_END).finish(sequence + 1));
    (bytes, sequence)
}

impl NftRule {
    pub(crate) fn expression(&mut self, name: &str, data: impl FnOnce(&mut NetlinkRequest)) {
        self.0.nested(1, |element| {
            element.text(1, name);
            element.nested(2, data);
        });
    }

    fn compare(&mut self, how: u32, value: &[u8]) {
        self.expression("cmp", |data| {
            data.attribute(1, &REG.to_be_bytes());
            data.attribute(2, &how.to_be_bytes());
            data.nested(3, |data| data.attribute(1, value));
        });
    }

    pub(crate) fn meta(&mut self, key: u32, how: u32, value: &[u8]) {
        self.expression("meta", |data| {
            data.attribute(1, &REG.to_be_bytes());
            data.attribute(2, &key.to_be_bytes());
        });
        self.compare(how, value);
    }

    fn family(&mut self, like: IpAddr) {
        let family = match like {
            IpAddr::V4(_) => libc::AF_INET,
            IpAddr::V6(_) => libc::AF_INET6,
        };
        self.meta(META_NFPROTO, CMP_EQ, &[family as u8]);
    }

    pub(crate) fn interface(&mut self, which: u32, how: u32, ifname: &str) {
        let mut name = ifname.as_bytes().to_vec();
        name.resize(IFNAME_BYTES, 0);
        self.meta(which, how, &name);
    }

    pub(crate) fn load(&mut self, header: u32, offset: u32, len: u32) {
        self.expression("payload", |data| {
            data.attribute(1, &REG.to_be_bytes());
            data.attribute(2, &header.to_be_bytes());
            data.attribute(3, &offset.to_be_bytes());
            data.attribute(4, &len.to_be_bytes());
        });
    }

    fn source_network(&mut self, address: IpAddr, prefix: u8) {
        let (octets, offset) = match address {
            IpAddr::V4(address) => (address.octets().to_vec(), 12),
            IpAddr::V6(address) => (address.octets().to_vec(), 8),
        };
        let mask = mask(prefix, octets.len());
        let network: Vec<u8> = octets.iter().zip(&mask).map(|(a, m)| a & m).collect();
        self.load(NETWORK_HEADER, offset, octets.len() as u32);
        self.and(&mask);
        self.compare(CMP_EQ, &network);
    }

    /// Matches if the packet's connection has one of these bits under `key` (`CMP_NEQ`), or none
    /// (`CMP_EQ`).
    pub(crate) fn connection(&mut self, key: u32, how: u32, bits: u32) {
        self.expression("ct", |data| {
            data.attribute(1, &REG.to_be_bytes());
            data.attribute(2, &key.to_be_bytes());
        });
        self.and(&bits.to_ne_bytes());
        self.compare(how, &[0; 4]);
    }

    /// Matches packets that belong to no connection and begin none.
    pub(crate) fn stray(&mut self) {
        self.connection(CT_STATE, CMP_NEQ, INVALID);
    }

    pub(crate) fn verdict(&mut self, verdict: u32) {
        self.expression("immediate", |data| {
            data.attribute(1, &REG_VERDICT.to_be_bytes());
            data.nested(2, |data| {
                data.nested(2, |code| code.attribute(1, &verdict.to_be_bytes()));
            });
        });
    }

    /// Masks the register with `mask`.
    fn and(&mut self, mask: &[u8]) {
        self.expression("bitwise", |data| {
            data.attribute(1, &REG.to_be_bytes());
            data.attribute(2, &REG.to_be_bytes());
            data.attribute(3, &(mask.len() as u32).to_be_bytes());
            data.nested(4, |data| data.attribute(1, mask));
            data.nested(5, |data| data.attribute(1, &vec![0; mask.len()]));
        });
    }

    fn for_this_system(&mut self) {
        self.expression("fib", |data| {
            data.attribute(1, &REG.to_be_bytes());
            data.attribute(2, &FIB_RESULT_ADDRTYPE.to_be_bytes());
            data.attribute(3, &FIB_F_DADDR.to_be_bytes());
        });
        self.compare(CMP_EQ, &u32::from(libc::RTN_LOCAL).to_ne_bytes());
    }

    fn destination_port(&mut self, port: u16) {
        self.load(TRANSPORT_HEADER, 2, 2);
        self.compare(CMP_EQ, &port.to_be_bytes());
    }

    fn destination(&mut self, to: SocketAddr) {
        let (octets, family) = match to.ip() {
            IpAddr::V4(address) => (address.octets().to_vec(), libc::AF_INET),
            IpAddr::V6(address) => (address.octets().to_vec(), libc::AF_INET6),
        };
        for (register, value) in [(REG, &octets[..]), (REG_PORT, &to.port().to_be_bytes())] {
            self.expression("immediate", |data| {
                data.attribute(1, &register.to_be_bytes());
                data.nested(2, |data| data.attribute(1, value));
            });
        }
        self.expression("nat", |data| {
            data.attribute(1, &NAT_DNAT.to_be_bytes());
            data.attribute(2, &(family as u32).to_be_bytes());
            data.attribute(3, &REG.to_be_bytes());
            data.attribute(5, &REG_PORT.to_be_bytes());
        });
    }
}

/// Creates a message about rules of all families.
pub(crate) fn message_of_any(kind: u16) -> NetlinkRequest {
    let mut message = NetlinkRequest::new(kind, 0);
    message.bytes(&[0; GENERIC]);
    message
}

/// Creates a message about rules for both IPv4 and IPv6.
pub(crate) fn message(kind: u16, flags: u16) -> NetlinkRequest {
    let mut message = NetlinkRequest::new(kind, flags);
    message.bytes(&[NFPROTO_INET, 0, 0, 0]);
    message
}

/// Creates the message that begins or ends a transaction.
fn batch(kind: u16) -> NetlinkRequest {
    let mut message = NetlinkRequest::new(kind, 0);
    let [high, low] = SUBSYSTEM.to_be_bytes();
    message.bytes(&[0, 0, high, low]);
    message
}

/// Returns a mask of the first `prefix` bits of `len` bytes.
fn mask(prefix: u8, len: usize) -> Vec<u8> {
    let byte = |n: usize| {
        let bits = usize::from(prefix).saturating_sub(n * 8).min(8);
        !(0xffu16 >> bits) as u8
    };
    (0..len).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Namespace;
    use testing::require;

    #[test]
    fn masks_have_the_length_of_their_prefixes() {
        assert_eq!(mask(0, 4), [0; 4]);
        assert_eq!(mask(20, 4), [255, 255, 0xf0, 0]);
        assert_eq!(mask(32, 4), [255; 4]);
        assert_eq!(mask(64, 16), [[255; 8], [0; 8]].concat());
    }

    #[test]
    fn a_transaction_is_framed_by_begin_and_end() {
        let mut table = NftTable::new("t", "c");
        table.masquerade("10.0.0.1".parse().unwrap(), 24, "up0");
        let (bytes, last) = transaction(table.messages);
        assert_eq!(last, 5, "a table, three chains, a rule");
        let mut kinds = Vec::new();
        let mut rest = &bytes[..];
        while let Some(len) = rest.first_chunk().map(|len| u32::from_ne_bytes(*len)) {
            kinds.push(u16::from_ne_bytes([rest[4], rest[5]]));
            rest = &rest[len as usize..];
        }
        let chains = [NEW_CHAIN; 3];
        let inner = [&[NEW_TABLE], &chains[..], &[NEW_RULE]].concat();
        assert_eq!(
            kinds,
            [&[BATCH_BEGIN], &inner[..], &[BATCH_END]].concat(),
            "{bytes:?}"
        );
    }

    #[test]
    fn tables_are_listed_until_deleted() {
        require!(netns);
        let found = Namespace::new().unwrap().enter(|| {
            let owner = NftTable::new("grantway-t", "on: ip_forward").install()?;
            let _kept = owner.try_clone()?;
            let _bare = NftTable::empty("bare", "").install()?;
            let list = || -> io::Result<Vec<(String, String)>> {
                let listed = tables()?.into_iter();
                Ok(listed.map(|t| (t.name, t.comment)).collect())
            };
            let before = list()?;
            delete(&owner, "grantway-t")?;
            io::Result::Ok((before, list()?))
        });
        let (before, after) = found.unwrap().unwrap();
        let bare = ("bare".to_owned(), String::new());
        let table = ("grantway-t".to_owned(), "on: ip_forward".to_owned());
        assert_eq!(before, [table, bare.clone()]);
        assert_eq!(after, [bare]);
    }
}
