//! Sets of IP addresses as prefixes.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// All addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressBlock {
    is_v6: bool,
    /// The first address; an IPv4 address in the lowest 32 bits.
    first: u128,
    bits: u8,
}

/// A text that is not `ADDRESS/BITS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAPrefix;

impl FromStr for AddressBlock {
    type Err = NotAPrefix;

    /// Parses a prefix. As in Kubernetes, bits after the prefix are ignored.
    fn from_str(text: &str) -> Result<Self, NotAPrefix> {
        let (address, bits) = text.split_once('/').ok_or(NotAPrefix)?;
        let is_number = !bits.is_empty() && bits.bytes().all(|digit| digit.is_ascii_digit());
        let bits = bits.parse().ok().filter(|_| is_number);
        let host = Self::host(address.parse().map_err(|_| NotAPrefix)?);
        let bits: u8 = bits.filter(|bits| *bits <= host.bits).ok_or(NotAPrefix)?;
        Ok(Self { bits, ..host }.rounded())
    }
}

impl fmt::Display for AddressBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address: IpAddr = match self.is_v6 {
            true => IpAddr::V6(self.first.into()),
            false => IpAddr::V4((self.first as u32).into()),
        };
        write!(f, "{address}/{}", self.bits)
    }
}

impl AddressBlock {
    /// Returns the prefix of one address.
    #[must_use]
    pub fn host(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self {
                is_v6: false,
                first: v4.to_bits().into(),
                bits: 32,
            },
            IpAddr::V6(v6) => Self {
                is_v6: true,
                first: v6.to_bits(),
                bits: 128,
            },
        }
    }

    /// Returns whether both have an address in common.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.covers(other) || other.covers(self)
    }

    /// Returns all addresses of both versions of IP.
    #[must_use]
    pub fn everything() -> [Self; 2] {
        [false, true].map(|is_v6| Self {
            is_v6,
            first: 0,
            bits: 0,
        })
    }

    /// Returns the number of the last address of the prefix, counted from its first one.
    fn last_index(self) -> u128 {
        let width: u32 = if self.is_v6 { 128 } else { 32 };
        let free = width.saturating_sub(self.bits.into());
        1u128.checked_shl(free).map_or(u128::MAX, |size| size - 1)
    }

    /// Returns the address of a node in the subnet of its pods: the one after the first address, as
    /// `contrib/kubernetes/node.sh` and the plugin `host-local` assign it. `None` if the subnet has
    /// fewer than four addresses.
    #[must_use]
    pub fn gateway(self) -> Option<Self> {
        let bits = if self.is_v6 { 128 } else { 32 };
        let gateway = || Self {
            first: self.first + 1,
            bits,
            ..self
        };
        (self.last_index() >= 3).then(gateway)
    }

    fn rounded(self) -> Self {
        Self {
            first: self.first & !self.last_index(),
            ..self
        }
    }

    /// Returns whether every address of `other` is in it.
    #[must_use]
    pub fn covers(self, other: Self) -> bool {
        let is_same = self.is_v6 == other.is_v6 && self.bits <= other.bits;
        is_same && other.first & !self.last_index() == self.first
    }

    /// Returns whether an address is of the same version of IP.
    pub(crate) fn is_like(self, address: IpAddr) -> bool {
        self.is_v6 == address.is_ipv6()
    }

    /// Returns the two halves, or `None` for a single address.
    fn halves(self) -> Option<[Self; 2]> {
        let size = self
            .last_index()
            .checked_add(1)
            .map_or(1 << 127, |size| size / 2);
        let bits = self.bits + 1;
        let half = |first| Self {
            first,
            bits,
            ..self
        };
        (self.last_index() > 0).then(|| [half(self.first), half(self.first + size)])
    }

    /// Returns the prefix that is one bit shorter and contains it.
    fn parent(self) -> Option<Self> {
        let bits = self.bits.checked_sub(1)?;
        Some(Self { bits, ..self }.rounded())
    }

    /// Appends to `to` the prefixes of this block's addresses without those of `except`, until `to`
    /// has `limit` prefixes. Returns whether all were appended.
    pub fn without(self, except: &[Self], limit: usize, to: &mut Vec<Self>) -> bool {
        if except.iter().any(|one| one.covers(self)) {
            return true;
        }
        let inside: Vec<Self> = except
            .iter()
            .copied()
            .filter(|one| self.covers(*one))
            .collect();
        if inside.is_empty() {
            let has_room = to.len() < limit;
            to.extend(has_room.then_some(self));
            return has_room;
        }
        // A single address has no halves, but does not get here, because an exception inside it
        // also covers it.
        let mut halves = self.halves().into_iter().flatten();
        halves.all(|half| half.without(&inside, limit, to))
    }
}

/// Returns the same addresses as the smallest number of prefixes, in order.
#[must_use]
pub fn merged(mut prefixes: Vec<AddressBlock>) -> Vec<AddressBlock> {
    prefixes.sort_unstable();
    let mut merged: Vec<AddressBlock> = Vec::new();
    for prefix in prefixes {
        if merged.last().is_some_and(|last| last.covers(prefix)) {
            continue;
        }
        merged.push(prefix);
        while let [.., a, b] = merged[..]
            && a.bits == b.bits
            && let Some(parent) = b.parent()
            && parent.covers(a)
        {
            merged.truncate(merged.len() - 2);
            merged.push(parent);
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn prefix(text: &str) -> AddressBlock {
        text.parse().unwrap()
    }

    fn texts(prefixes: &[AddressBlock]) -> String {
        let texts: Vec<String> = prefixes.iter().map(ToString::to_string).collect();
        texts.join(" ")
    }

    #[test]
    fn prefixes_are_parsed_as_kubernetes_does() {
        for (text, same) in [
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("10.1.2.3/32", "10.1.2.3/32"),
            ("1.2.3.4/0", "0.0.0.0/0"),
            ("fd00::1/64", "fd00::/64"),
            ("::1/128", "::1/128"),
            ("ff::/0", "::/0"),
        ] {
            assert_eq!(prefix(text).to_string(), same);
        }
        for text in [
            "",
            "/",
            "10.0.0.0",
            "10.0.0.0/33",
            "::/129",
            "10.0.0/8",
            "10.0.0.0/+8",
            "a/8",
        ] {
            assert!(text.parse::<AddressBlock>().is_err(), "{text}");
        }
    }

    #[test]
    fn gateways_follow_the_first_address() {
        for (subnet, expected) in [
            ("10.244.3.0/24", Some("10.244.3.1/32")),
            ("10.244.3.4/30", Some("10.244.3.5/32")),
            ("10.244.3.4/31", None),
            ("fd00:10:244:3::/64", Some("fd00:10:244:3::1/128")),
            ("fd00::fffc/126", Some("fd00::fffd/128")),
            ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128", None),
        ] {
            let gateway = prefix(subnet).gateway().map(|one| one.to_string());
            assert_eq!(gateway.as_deref(), expected);
        }
    }

    #[test]
    fn exceptions_are_cut_out() {
        let mut left = Vec::new();
        assert!(prefix("10.0.0.0/30").without(&[prefix("10.0.0.1/32")], 9, &mut left));
        assert_eq!(texts(&left), "10.0.0.0/32 10.0.0.2/31");
        let mut left = Vec::new();
        assert!(prefix("::/0").without(&[prefix("::/0")], 9, &mut left));
        assert_eq!(left, []);
        assert!(!prefix("::/0").without(&[prefix("::1/128")], 9, &mut left));
        assert_eq!(left.len(), 9);
    }

    #[test]
    fn neighbours_are_merged() {
        let all = [
            "10.0.0.3/32",
            "10.0.0.0/32",
            "10.0.0.1/32",
            "10.0.0.2/32",
            "10.0.0.0/31",
        ];
        assert_eq!(texts(&merged(all.map(prefix).to_vec())), "10.0.0.0/30");
        let apart = ["10.0.0.1/32", "10.0.0.2/32", "0.0.0.0/32", "::/128"];
        let apart = merged(apart.map(prefix).to_vec());
        assert_eq!(texts(&apart), "0.0.0.0/32 10.0.0.1/32 10.0.0.2/32 ::/128");
        let all = AddressBlock::everything();
        let halves = all.iter().flat_map(|all| all.halves().unwrap()).collect();
        assert_eq!(merged(halves), all);
    }

    /// Returns a small space, in which every address can be tried.
    fn small() -> impl Strategy<Value = AddressBlock> {
        let v4 = (0u8..32, 27u8..=32).prop_map(|(n, bits)| prefix(&format!("10.0.0.{n}/{bits}")));
        let v6 =
            (0u8..32, 123u8..=128).prop_map(|(n, bits)| prefix(&format!("fd00::{n:x}/{bits}")));
        prop_oneof![v4, v6]
    }

    proptest! {
        #[test]
        fn sets_are_those_of_their_addresses(
            whole in small(),
            except in prop::collection::vec(small(), 0..6),
            more in prop::collection::vec(small(), 0..12),
        ) {
            let mut left = more.clone();
            prop_assert!(whole.without(&except, 1000, &mut left));
            let merged = merged(left.clone());
            for pair in merged.windows(2) {
                prop_assert!(!pair[0].covers(pair[1]) && pair[0] < pair[1]);
                prop_assert!(pair[0].parent() != pair[1].parent() || pair[0].bits != pair[1].bits);
            }
            for n in 0..64 {
                let one = match n {
                    0..32 => prefix(&format!("10.0.0.{n}/32")),
                    _ => prefix(&format!("fd00::{:x}/128", n - 32)),
                };
                let has = |all: &[AddressBlock]| all.iter().any(|prefix| prefix.covers(one));
                let is_in = (whole.covers(one) && !has(&except)) || has(&more);
                prop_assert_eq!(has(&left), is_in);
                prop_assert_eq!(has(&merged), is_in);
            }
        }
    }
}
