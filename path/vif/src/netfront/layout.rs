//! Layout of a netfront's memory. A configuration computes a domain's frames and grant entries from
//! it.

use crate::netif::record::RX_BUFFER_MIN;
use crate::ring::ORDER_MAX;
use abi::PAGE;
use std::ops::Range;

/// Sizes of a netfront.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// log2 of the pages of the ring from the guest, 0 … [`ORDER_MAX`].
    pub tx_order: u8,
    /// log2 of the pages of the ring to the guest.
    pub rx_order: u8,
    /// Pages of receive buffers.
    pub rx_pages: u32,
    /// Further pages of receive buffers, granted on demand.
    pub rx_spare_pages: u32,
    /// Bytes of a receive buffer: a page or half of one.
    pub rx_buffer: u16,
    /// Pages of small transmit buffers, two to a page.
    pub tx_small_pages: u32,
    /// Pages for the rest of frames that do not fit a small buffer.
    pub tx_large_pages: u32,
}

/// Maximum number of buffers of a kind that a 16-bit id can name.
const BUFFERS_MAX: u32 = 1 << 15;

impl Sizes {
    /// Returns the nearest valid sizes.
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

/// Positions of a netfront's pages, counted from its first frame.
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
    /// Returns the layout for `sizes` ([`Sizes::clamped`]).
    #[must_use]
    pub fn new(sizes: Sizes) -> Self {
        Self {
            sizes: sizes.clamped(),
        }
    }

    /// Returns the sizes.
    #[must_use]
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Returns the number of consecutive frames that the layout occupies.
    #[must_use]
    pub fn frames(&self) -> u32 {
        self.rx_spare().end
    }

    /// Returns the number of grant table entries that the netfront needs. Entry 0 of the table is
    /// never used, so a domain needs one more than the sum over its netfronts.
    #[must_use]
    pub fn grants(&self) -> u32 {
        self.frames()
    }

    /// Pages of the ring from the guest.
    #[must_use]
    pub fn tx_ring(&self) -> Range<u32> {
        0..1 << self.sizes.tx_order
    }

    /// Pages of the ring to the guest.
    #[must_use]
    pub fn rx_ring(&self) -> Range<u32> {
        after(self.tx_ring(), 1 << self.sizes.rx_order)
    }

    /// Page of the event channel.
    #[must_use]
    pub fn event(&self) -> u32 {
        self.rx_ring().end
    }

    /// Pages of receive buffers.
    #[must_use]
    pub fn rx_pool(&self) -> Range<u32> {
        after(0..self.event() + 1, self.sizes.rx_pages)
    }

    /// Pages of small transmit buffers.
    #[must_use]
    pub fn tx_small(&self) -> Range<u32> {
        after(self.rx_pool(), self.sizes.tx_small_pages)
    }

    /// Pages of large transmit buffers.
    #[must_use]
    pub fn tx_large(&self) -> Range<u32> {
        after(self.tx_small(), self.sizes.tx_large_pages)
    }

    /// Pages of receive buffers that are granted on demand.
    #[must_use]
    pub fn rx_spare(&self) -> Range<u32> {
        after(self.tx_large(), self.sizes.rx_spare_pages)
    }
}

fn after(range: Range<u32>, pages: u32) -> Range<u32> {
    range.end..range.end + pages
}
