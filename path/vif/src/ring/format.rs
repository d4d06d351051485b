//! Layout of a ring in its pages, and arithmetic on its indices.

use abi::PAGE;

/// Bytes before the first slot of a page in Xen's format.
pub const HEADER_BYTES: usize = 64;
/// Number of slots in a page, whatever their size (RING-3).
pub const SLOTS_PER_PAGE: u32 = 256;
/// log2 of the maximum number of pages of a ring.
pub const ORDER_MAX: u8 = 4;
/// Maximum number of pages of a ring.
pub const PAGES_MAX: usize = 1 << ORDER_MAX;
/// Maximum number of slots copied out by one access.
pub const BURST: usize = 64;

/// Layout of a ring in its pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Xen's format.
    #[default]
    Xen,
    /// Requests, responses and indices in separate places (RING-14).
    Native,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 2] = [Self::Xen, Self::Native];

    /// Returns the place of requests of `req` words.
    #[must_use]
    pub const fn requests(self, req: usize) -> SlotLayout {
        SlotLayout {
            at: match self {
                Self::Xen => HEADER_BYTES,
                Self::Native => 0,
            },
            stride: req * 4,
        }
    }

    /// Returns the place of responses of `rsp` words, to requests of `req` words.
    #[must_use]
    pub const fn responses(self, req: usize, rsp: usize) -> SlotLayout {
        match self {
            Self::Xen => self.requests(req),
            Self::Native => SlotLayout {
                at: SLOTS_PER_PAGE as usize * req * 4,
                stride: rsp * 4,
            },
        }
    }
}

/// Positions of one kind of slots in each page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLayout {
    /// Offset of the first slot.
    pub at: usize,
    /// Bytes from one slot to the next.
    pub stride: usize,
}

impl SlotLayout {
    /// Returns page and offset of slot number `index` (already masked).
    #[must_use]
    #[inline]
    pub const fn of(self, index: u32) -> (usize, usize) {
        let (page, slot) = (index / SLOTS_PER_PAGE, index % SLOTS_PER_PAGE);
        (page as usize, self.at + slot as usize * self.stride)
    }
}

/// Returns whether both formats have room for slots of these sizes, in words.
pub(super) const fn fits(req: usize, rsp: usize) -> bool {
    let slots = SLOTS_PER_PAGE as usize;
    0 < rsp
        && rsp <= req
        && HEADER_BYTES + slots * req * 4 <= PAGE
        && slots * (req + rsp) * 4 <= PAGE
}

/// Returns the number of slots of a ring of 2^`order` pages.
#[must_use]
pub const fn slots(order: u8) -> u32 {
    let order = if order > ORDER_MAX { ORDER_MAX } else { order };
    SLOTS_PER_PAGE << order
}

/// Returns whether publishing the indices `old + 1 ..= new` passes the consumer's event index
/// (RING-9). Any `event` is safe, because it affects only notifications to its writer.
#[must_use]
#[inline]
pub const fn passes(event: u32, old: u32, new: u32) -> bool {
    new.wrapping_sub(event) < new.wrapping_sub(old)
}
