//! What a netfront needs of its domain's memory, as numbers: a configuration computes a domain's
//! frames and grant entries from these.

use crate::netif::record::RX_BUFFER_MIN;
use crate::ring::ORDER_MAX;
use abi::PAGE;
use std::ops::Range;

/// How large a netfront is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// log2 of the pages of the ring from the guest, 0 … [`ORDER_MAX`].
    pub tx_order: u8,
    /// log2 of the pages of the ring to the guest.
    pub rx_order: u8,
    /// Pages of receive buffers.
    pub rx_pages: u32,
    /// Pages of receive buffers that are granted when they are needed, beside those.
    pub rx_spare_pages: u32,
    /// Bytes of a receive buffer: a page or half of one.
    pub rx_buffer: u16,
    /// Pages of small transmit buffers, two to a page.
    pub tx_small_pages: u32,
    /// Pages that continue a frame which does not fit a small buffer.
    pub tx_large_pages: u32,
}

/// The most buffers of a kind that a 16-bit id can name.
const BUFFERS_MAX: u32 = 1 << 15;

impl Sizes {
    /// The nearest sizes that are possible.
    #[must_use]
    pub fn clamped(self) -> Self {
        let half = usize::from(self.rx_buffer) <= RX_BUFFER_MIN;
        let rx_pages = self.rx_pages.clamp(1, BUFFERS_MAX / 2);
        Self {
            tx_order: self.tx_order.min(ORDER_MAX),
            rx_order: self.rx_order.min(ORDER_MAX),
            rx_pages,
            rx_spare_pages: self.rx_spare_pages.min(BUFFERS_MAX / 2 - rx_pages),
            rx_buffer: if half { RX_BUFFER_MIN } else { PAGE } as u16,
            tx_small_pages: self.tx_small_pages.clamp(1, BUFFERS_MAX / 2),
            tx_large_pages: self.tx_large_pages.min(BUFFERS_MAX / 2),
        }
    }
}

/// Where a netfront's pages lie, counted from its first frame.
///
/// ```text
///   tx ring │ rx ring │ event page │ receive buffers
///   │ small tx buffers │ large tx buffers │ spare receive buffers
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    sizes: Sizes,
}

impl Layout {
    /// The layout for `sizes` ([`Sizes::clamped`]).
    #[must_use]
    pub fn new(sizes: Sizes) -> Self {
        Self {
            sizes: sizes.clamped(),
        }
    }

    /// The sizes.
    #[must_use]
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Frames that it takes, one after the other.
    #[must_use]
    pub fn frames(&self) -> u32 {
        self.rx_spare().end
    }

    /// Entries of the domain's grant table that it takes. The table's entry 0 is never used, so a
    /// domain needs one more than the sum over its netfronts.
    #[must_use]
    pub fn grants(&self) -> u32 {
        self.frames()
    }

    /// The ring from the guest.
    #[must_use]
    pub fn tx_ring(&self) -> Range<u32> {
        0..1 << self.sizes.tx_order
    }

    /// The ring to the guest.
    #[must_use]
    pub fn rx_ring(&self) -> Range<u32> {
        after(self.tx_ring(), 1 << self.sizes.rx_order)
    }

    /// The event channel's page.
    #[must_use]
    pub fn event(&self) -> u32 {
        self.rx_ring().end
    }

    /// Receive buffers.
    #[must_use]
    pub fn rx_pool(&self) -> Range<u32> {
        after(0..self.event() + 1, self.sizes.rx_pages)
    }

    /// Small transmit buffers.
    #[must_use]
    pub fn tx_small(&self) -> Range<u32> {
        after(self.rx_pool(), self.sizes.tx_small_pages)
    }

    /// Large transmit buffers.
    #[must_use]
    pub fn tx_large(&self) -> Range<u32> {
        after(self.tx_small(), self.sizes.tx_large_pages)
    }

    /// Receive buffers that are granted when they are needed.
    #[must_use]
    pub fn rx_spare(&self) -> Range<u32> {
        after(self.tx_large(), self.sizes.rx_spare_pages)
    }
}

fn after(range: Range<u32>, pages: u32) -> Range<u32> {
    range.end..range.end + pages
}
