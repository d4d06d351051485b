//! I/O addresses: addresses in the address space of a device.

use abi::PAGE;

/// An address in a device's address space: the number of an I/O page, and an offset in the page. It
/// is never an address of this process, so a forged address gives no access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IoAddr(u64);

impl IoAddr {
    /// Creates the address of the first byte of an I/O page.
    #[must_use]
    pub const fn of_page(page: u32) -> Self {
        Self(page as u64 * PAGE as u64)
    }

    /// Decodes an address from a descriptor.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Encodes the address for a descriptor.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the number of the I/O page.
    #[must_use]
    pub const fn page(self) -> u64 {
        self.0 / PAGE as u64
    }

    /// Returns the offset in the page.
    #[must_use]
    pub const fn offset(self) -> usize {
        (self.0 % PAGE as u64) as usize
    }

    /// Returns the address plus `bytes`, or `None` if it exceeds the address space.
    #[must_use]
    pub const fn add(self, bytes: usize) -> Option<Self> {
        match self.0.checked_add(bytes as u64) {
            Some(bits) => Some(Self(bits)),
            None => None,
        }
    }
}

impl std::fmt::Display for IoAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
