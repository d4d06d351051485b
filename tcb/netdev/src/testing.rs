//! A hostile kernel for the fuzz targets: replies of rtnetlink, nf_tables and the older iptables.

use crate::host_checks::{dropping_chain, kind_of, naming_rule, unused};
use crate::legacy;
use crate::netlink::{self, Attributes, NetlinkRequest};
use crate::nftables::listed;
use crate::overlap::{self, Subnet, overlap};
use std::net::IpAddr;

/// Attributes of one message.
pub type Written<'a> = &'a [(u16, &'a [u8])];

/// Parses one datagram as a part of every list, and as the reply to request `sequence`. Checks that
/// each message is parsed once and within its bounds.
///
/// # Panics
/// Panics if a parser violates an invariant.
pub fn hostile_datagram(bytes: &[u8], sequence: u32) {
    let (mut count, mut bodies) = (0, 0);
    let listed = netlink::each(bytes, &mut |kind, body: &[u8]| {
        count += 1;
        bodies += body.len();
        hostile_body(kind, body);
    });
    assert!(16 * count + bodies <= bytes.len() + 3, "{count} messages");
    if let Err(error) = listed {
        assert_ne!(error.raw_os_error(), Some(0), "an error without a code");
    }
    for wanted in [2, 16] {
        let reply = netlink::reply(bytes, sequence, wanted);
        if let Some(Err(error)) = reply {
            assert_ne!(error.raw_os_error(), Some(0), "an error without a code");
        }
    }
    let (alias, _) = netlink::alias_and_queues(bytes);
    for text in [alias, kind_of(bytes)] {
        assert!(text.len() <= 3 * bytes.len());
    }
    let _index = netlink::other_end(bytes);
    legacy::read_hostile(bytes);
}

/// Parses the body of a message as every type of message in lists.
fn hostile_body(kind: u16, body: &[u8]) {
    let _interface = unused(body, "grantway m");
    let _table = listed(body);
    for (v4, v6) in [(true, false), (false, true)] {
        let chain = dropping_chain(kind, body, v4, v6);
        let is_wanted = |family| match family {
            "ip" => v4,
            "ip6" => v6,
            _ => family == "inet",
        };
        assert!(chain.is_none_or(|(family, ..)| is_wanted(family)));
    }
    let _rule = naming_rule(kind, body, |rules| rules.starts_with(b"up0\0"));
    let found = [overlap::address(body), overlap::route(body)];
    let networks: Vec<Subnet> = found.into_iter().flatten().map(|(cidr, _)| cidr).collect();
    for one in &networks {
        for other in &networks {
            hostile_networks(*one, *other);
        }
    }
}

/// Compares [`mod@overlap`] with a bitwise comparison.
///
/// # Panics
/// Panics if the results differ.
pub fn hostile_networks(one: Subnet, other: Subnet) {
    let prefix = one.1.min(other.1);
    let bits = |(address, _): Subnet| match address {
        IpAddr::V4(v4) => (32, u128::from(v4.to_bits()) << 96),
        IpAddr::V6(v6) => (128, v6.to_bits()),
    };
    let ((len, first), (other_len, second)) = (bits(one), bits(other));
    let common = (first ^ second).leading_zeros();
    let expected = len == other_len && common >= u32::from(prefix).min(len);
    assert_eq!(overlap(one, other), expected, "{one:?} {other:?}");
}

/// Writes a message like a request, and parses it as part of a list: the attributes must be
/// unchanged and in order. Then sets the byte at `at` to `to`, and parses the message again.
///
/// # Panics
/// Panics if the attributes differ, or a parser violates an invariant.
pub fn written_and_read(kind: u16, header: &[u8], attributes: Written<'_>, at: usize, to: u8) {
    let mut message = NetlinkRequest::new(kind, 0);
    message.bytes(header);
    for (kind, value) in attributes {
        message.attribute(*kind, value);
    }
    let mut bytes = message.finish(7);
    let mut count = 0;
    let ended = netlink::each(&bytes, &mut |found, body: &[u8]| {
        count += 1;
        assert_eq!(found, kind);
        let read = Attributes(body.get(header.len()..).unwrap_or(&[]));
        assert!(read.eq(attributes.iter().copied()));
    });
    let is_control = matches!(kind, 2 | 3);
    assert!(is_control || (count == 1 && matches!(ended, Ok(false))));
    hostile_datagram(&bytes, 7);
    let len = bytes.len();
    if let Some(byte) = bytes.get_mut(at % len) {
        *byte = to;
    }
    hostile_datagram(&bytes, 7);
}
