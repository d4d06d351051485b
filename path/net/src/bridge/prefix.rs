//! IP prefixes.

use std::net::IpAddr;

/// An IP prefix: all addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    address: Address,
    /// Has ones in the bits that must be equal, which are the highest bits of the address's width.
    mask: u128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Address {
    V4(u32),
    V6(u128),
}

impl From<IpAddr> for Address {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self::V4(v4.to_bits()),
            IpAddr::V6(v6) => Self::V6(v6.to_bits()),
        }
    }
}

impl Prefix {
    /// Returns the prefix of the first `bits` bits of `address`, or of all its bits if it has
    /// fewer.
    #[must_use]
    pub fn new(address: IpAddr, bits: u8) -> Self {
        let width = if address.is_ipv4() { 32 } else { 128 };
        let rest = u32::from(width - bits.min(width));
        let ones = u128::MAX >> (128 - u32::from(width));
        Self {
            address: address.into(),
            mask: ones.checked_shl(rest).unwrap_or(0) & ones,
        }
    }

    /// Returns whether an address begins with the prefix.
    pub(super) fn has(self, other: IpAddr) -> bool {
        self.contains(other.into())
    }

    #[inline]
    pub(super) fn contains(self, other: Address) -> bool {
        let differ = match (self.address, other) {
            (Address::V4(own), Address::V4(other)) => u128::from(own ^ other),
            (Address::V6(own), Address::V6(other)) => own ^ other,
            _ => return false,
        };
        differ & self.mask == 0
    }
}

impl From<u32> for Address {
    fn from(bits: u32) -> Self {
        Self::V4(bits)
    }
}

impl From<u128> for Address {
    fn from(bits: u128) -> Self {
        Self::V6(bits)
    }
}
