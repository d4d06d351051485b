//! Permitted IP sources of a guest.

use super::prefix::Prefix;
use std::net::IpAddr;

/// Number of addresses per family that are compared without a look-up.
const INLINE: usize = 4;

/// A guest's IP sources: its addresses, and the prefixes from which it forwards packets.
#[derive(Debug)]
pub(super) struct Sources {
    /// The first IPv4 addresses. Unused entries hold the unspecified address, which every guest may
    /// use, because DHCP and duplicate address detection send from it.
    v4: [u32; INLINE],
    v6: [u128; INLINE],
    /// Addresses beyond [`INLINE`], sorted.
    more: Vec<IpAddr>,
    prefixes: Vec<Prefix>,
}

impl Sources {
    pub(super) fn new(addresses: &[IpAddr], prefixes: &[Prefix]) -> Self {
        let mut sources = Self {
            v4: [0; INLINE],
            v6: [0; INLINE],
            more: Vec::new(),
            prefixes: prefixes.to_vec(),
        };
        let (mut v4, mut v6) = (sources.v4.iter_mut(), sources.v6.iter_mut());
        for address in addresses {
            match address {
                IpAddr::V4(own) => match v4.next() {
                    Some(place) => *place = own.to_bits(),
                    None => sources.more.push(*address),
                },
                IpAddr::V6(own) => match v6.next() {
                    Some(place) => *place = own.to_bits(),
                    None => sources.more.push(*address),
                },
            }
        }
        sources.more.sort_unstable();
        sources
    }

    /// Returns whether the guest may send from an IPv4 address.
    #[inline]
    pub(super) fn has_v4(&self, source: u32) -> bool {
        let compare = |found: bool, own: &u32| found | (*own == source);
        self.v4.iter().fold(false, compare) || self.has_rare(IpAddr::V4(source.into()))
    }

    /// Returns whether the guest may send from an IPv6 address.
    #[inline]
    pub(super) fn has_v6(&self, source: u128) -> bool {
        let compare = |found: bool, own: &u128| found | (*own == source);
        self.v6.iter().fold(false, compare) || self.has_rare(IpAddr::V6(source.into()))
    }

    /// Returns whether the guest may send from an address.
    pub(super) fn has(&self, source: IpAddr) -> bool {
        match source {
            IpAddr::V4(v4) => self.has_v4(v4.to_bits()),
            IpAddr::V6(v6) => self.has_v6(v6.to_bits()),
        }
    }

    #[cold]
    fn has_rare(&self, source: IpAddr) -> bool {
        source.is_unspecified()
            || self.more.binary_search(&source).is_ok()
            || self.prefixes.iter().any(|prefix| prefix.has(source))
    }
}
