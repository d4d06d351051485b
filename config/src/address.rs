//! Addresses in text form: MACs, and IP addresses with a prefix length.

use crate::text::as_text;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An IP address and the length of its network's prefix, written `10.0.0.2/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cidr {
    /// The IP address.
    pub address: IpAddr,
    /// Bits of the prefix: at most 32 for IPv4, 128 for IPv6.
    pub prefix: u8,
}

impl Cidr {
    /// Returns whether `other` is in the same network.
    #[must_use]
    pub fn contains(self, other: IpAddr) -> bool {
        let prefix = self.prefix;
        let other = Self {
            address: other,
            prefix,
        };
        other.network() == self.network()
    }

    /// Returns the address with all bits after the prefix set to 0.
    #[must_use]
    pub fn network(self) -> IpAddr {
        let mask = |bits: u8| {
            let host_bits = u32::from(bits.saturating_sub(self.prefix));
            u128::MAX.checked_shl(host_bits).unwrap_or(0)
        };
        match self.address {
            IpAddr::V4(own) => Ipv4Addr::from_bits(own.to_bits() & mask(32) as u32).into(),
            IpAddr::V6(own) => Ipv6Addr::from_bits(own.to_bits() & mask(128)).into(),
        }
    }

    /// Returns the broadcast address of the IPv4 network of `own`.
    fn broadcast(self, own: Ipv4Addr) -> Ipv4Addr {
        let hosts = u32::MAX.checked_shr(self.prefix.into()).unwrap_or(0);
        Ipv4Addr::from_bits(own.to_bits() | hosts)
    }

    /// Returns the reason why no station can have the address, or `None` if a station can. The text
    /// completes a sentence whose subject is the address.
    #[must_use]
    pub fn non_station_reason(self) -> Option<&'static str> {
        let is_network = self.network() == self.address;
        match self.address {
            address if address.is_unspecified() => Some("is the unspecified address"),
            address if address.is_multicast() => Some("is a multicast address"),
            address if address.is_loopback() => Some("is a loopback address"),
            IpAddr::V4(Ipv4Addr::BROADCAST) => Some("is the broadcast address"),
            // Networks of two addresses have two stations (RFC 3021, 6164).
            IpAddr::V4(_) if self.prefix < 31 && is_network => {
                Some("is the address of the network itself")
            }
            IpAddr::V4(own) if self.prefix < 31 && own == self.broadcast(own) => {
                Some("is the broadcast address of its network")
            }
            IpAddr::V6(own) if own.to_ipv4_mapped().is_some() => {
                Some("is an IPv4 address mapped into IPv6")
            }
            IpAddr::V6(_) if self.prefix < 127 && is_network => {
                Some("is the address of all routers of the network")
            }
            _ => None,
        }
    }

    /// Returns what to write instead of `text`, which is not an address with a prefix length.
    fn remedy(text: &str) -> String {
        if text.is_empty() {
            return "write it like \"10.0.0.2/24\"".to_owned();
        }
        let like = match text.contains(':') {
            true => "fd00::2/64",
            false => "10.0.0.2/24",
        };
        let (address, prefix) = text.split_once('/').unwrap_or((text, ""));
        let (usual, most) = match address.parse() {
            Ok(IpAddr::V4(_)) => (24, 32),
            Ok(IpAddr::V6(_)) => (64, 128),
            Err(_) => return format!("write it like {like}"),
        };
        match prefix {
            "" => format!("prefix length missing: write it like {address}/{usual}"),
            _ => format!("write a prefix length from 0 to {most}, like {address}/{usual}"),
        }
    }

    /// Returns the first free address of the network, except the network's own and its broadcast
    /// address. Searches the first 65 536 addresses.
    #[must_use]
    pub fn first_free(self, is_taken: impl Fn(IpAddr) -> bool) -> Option<Self> {
        const SEARCH_LIMIT: u128 = 1 << 16;
        let (first, bits) = match self.network() {
            IpAddr::V4(first) => (u128::from(first.to_bits()), 32),
            IpAddr::V6(first) => (first.to_bits(), 128),
        };
        let host_bits = u32::from(u8::checked_sub(bits, self.prefix)?);
        let size = 1_u128.checked_shl(host_bits).unwrap_or(u128::MAX);
        // A network of two addresses has two stations.
        let (from, to) = match (size, self.address) {
            (..=2, _) => (0, size),
            (_, IpAddr::V4(_)) => (1, size - 1),
            (_, IpAddr::V6(_)) => (1, size),
        };
        let address = |n: u128| match self.address {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::from_bits((first + n) as u32)),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(first + n)),
        };
        let mut all = (from..to.min(SEARCH_LIMIT)).map(address);
        let address = all.find(|address| !is_taken(*address))?;
        Some(Self { address, ..self })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// An invalid address. Its message describes the expected form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} `{text}`: {remedy}")]
pub struct InvalidAddress {
    pub(crate) what: &'static str,
    pub(crate) text: String,
    pub(crate) remedy: String,
}

impl FromStr for Cidr {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        let wrong = || InvalidAddress {
            what: "not an address with a prefix length:",
            text: text.to_owned(),
            remedy: Self::remedy(text),
        };
        let (address, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let prefix: u8 = prefix.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        if prefix > most {
            return Err(wrong());
        }
        Ok(Self { address, prefix })
    }
}

as_text!(Cidr, Cidr::remedy);

/// An Ethernet address, written `02:00:00:00:00:01` in a file, and as six numbers in a domain's
/// configuration.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "MacForm")]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// Returns whether it is a group address.
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Returns whether it is 00:00:00:00:00:00.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        matches!(self.0, [0, 0, 0, 0, 0, 0])
    }

    /// Returns a locally administered address for interface `interface` of station `station` of
    /// kind `kind`. Interfaces without a configured MAC use it.
    #[must_use]
    pub const fn derived(kind: u8, station: u16, interface: u8) -> Self {
        let [high, low] = station.to_be_bytes();
        Self([0x02, 0x67, kind, high, low, interface])
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for MacAddress {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        let wrong = || InvalidAddress {
            what: "not a MAC:",
            text: text.to_owned(),
            remedy: "write it like 02:00:00:00:00:01".to_owned(),
        };
        let mut bytes = [0u8; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().ok_or_else(wrong)?;
            if part.len() != 2 || !part.bytes().all(|c| c.is_ascii_hexdigit()) {
                return Err(wrong());
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
        }
        if parts.next().is_some() {
            return Err(wrong());
        }
        Ok(Self(bytes))
    }
}

const MAC_REMEDY: &str = "write it like \"02:00:00:00:00:01\"";

/// A MAC in a file or in a domain's configuration.
#[derive(Deserialize)]
#[serde(untagged, expecting = "write it like \"02:00:00:00:00:01\"")]
enum MacForm {
    Text(String),
    Bytes([u8; 6]),
}

impl TryFrom<MacForm> for MacAddress {
    type Error = &'static str;

    fn try_from(form: MacForm) -> Result<Self, Self::Error> {
        match form {
            MacForm::Text(text) => text.parse().map_err(|_| MAC_REMEDY),
            MacForm::Bytes(bytes) => Ok(Self(bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        for text in ["10.0.0.2/24", "fd00::2/64", "0.0.0.0/0", "::1/128"] {
            assert_eq!(
                text.parse::<Cidr>().map(|c| c.to_string()).as_deref(),
                Ok(text)
            );
        }
        assert_eq!(
            "02:00:5e:10:00:ff"
                .parse::<MacAddress>()
                .unwrap()
                .to_string(),
            "02:00:5e:10:00:ff"
        );
    }

    #[test]
    fn invalid_texts_are_rejected_with_an_example() {
        for text in [
            "",
            "10.0.0.2",
            "10.0.0.2/33",
            "fd00::/129",
            "10.0.0/24",
            "10.0.0.2/-1",
            "/",
        ] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
        for text in [
            "",
            "2:0:0:0:0:1",
            "02:00:00:00:00",
            "02:00:00:00:00:01:02",
            "02-00-00-00-00-01",
            "zz:00:00:00:00:01",
            "+1:00:00:00:00:00",
        ] {
            assert!(text.parse::<MacAddress>().is_err(), "{text}");
        }
        let message = "1.2.3.4".parse::<Cidr>().unwrap_err().to_string();
        assert!(
            message.contains("`1.2.3.4`") && message.contains("missing: write it like 1.2.3.4/24"),
            "{message}"
        );
    }

    #[test]
    fn networks_contain_their_stations() {
        let contains = |net: &str, address: &str| {
            net.parse::<Cidr>()
                .unwrap()
                .contains(address.parse().unwrap())
        };
        assert!(contains("10.0.0.2/24", "10.0.0.255") && !contains("10.0.0.2/24", "10.0.1.0"));
        assert!(contains("10.0.0.2/0", "192.0.2.1") && !contains("10.0.0.2/0", "fd00::1"));
        assert!(contains("fd00::2/64", "fd00::ffff") && !contains("fd00::2/64", "fd01::1"));
        assert!(contains("::1/0", "ffff::") && !contains("fd00::2/128", "fd00::3"));
    }

    #[test]
    fn errors_of_a_prefix_are_explained() {
        for (text, remedy) in [
            ("fd00::1", "prefix length missing: write it like fd00::1/64"),
            (
                "10.0.0.1/",
                "prefix length missing: write it like 10.0.0.1/24",
            ),
            (
                "fd00::1/129",
                "a prefix length from 0 to 128, like fd00::1/64",
            ),
            (
                "10.0.0.1/33",
                "a prefix length from 0 to 32, like 10.0.0.1/24",
            ),
            ("fd00::g/64", "write it like fd00::2/64"),
            ("10.0.0/24", "write it like 10.0.0.2/24"),
        ] {
            let error = text.parse::<Cidr>().unwrap_err().to_string();
            assert!(error.contains(text) && error.ends_with(remedy), "{error}");
        }
    }

    #[test]
    fn special_addresses_are_not_stations() {
        for (text, why) in [
            ("0.0.0.0/0", "unspecified"),
            ("::/0", "unspecified"),
            ("224.0.0.1/24", "multicast"),
            ("ff02::1/64", "multicast"),
            ("127.0.0.5/8", "loopback"),
            ("::1/128", "loopback"),
            ("255.255.255.255/32", "broadcast"),
            ("10.91.0.0/24", "the network itself"),
            ("10.91.0.255/24", "broadcast"),
            ("10.91.0.3/30", "broadcast"),
            ("::ffff:10.0.0.1/96", "mapped"),
            ("fd00::/64", "all routers"),
        ] {
            let message = text.parse::<Cidr>().unwrap().non_station_reason();
            assert!(
                message.is_some_and(|message| message.contains(why)),
                "{text}: {message:?}"
            );
        }
        for text in [
            "10.91.0.1/24",
            "10.91.0.0/31",
            "10.91.0.1/31",
            "10.91.0.0/32",
            "10.0.1.0/16",
            "10.0.0.255/16",
            "fd00::/127",
            "fd00::/128",
            "fe80::1/64",
            "10.0.0.1/0",
        ] {
            assert_eq!(
                text.parse::<Cidr>().unwrap().non_station_reason(),
                None,
                "{text}"
            );
        }
    }

    #[test]
    fn a_network_has_no_bits_after_its_prefix() {
        for (text, network) in [
            ("10.1.2.3/16", "10.1.0.0"),
            ("10.1.2.3/32", "10.1.2.3"),
            ("10.1.2.3/0", "0.0.0.0"),
            ("fd00::1:2/112", "fd00::1:0"),
            ("fd00::1/128", "fd00::1"),
            ("fd00::1/0", "::"),
        ] {
            let cidr: Cidr = text.parse().unwrap();
            assert_eq!(cidr.network().to_string(), network, "{text}");
        }
    }

    #[test]
    fn derived_macs_are_local_unicast() {
        let mac = MacAddress::derived(1, 513, 2);
        assert!(!mac.is_multicast() && !mac.is_zero());
        assert_eq!(mac.to_string(), "02:67:01:02:01:02");
    }
}
