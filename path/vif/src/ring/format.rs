//! How a ring lies in its pages, and the arithmetic of its indices.

use abi::PAGE;

/// Bytes before the first slot of a page in Xen's format.
pub const HEADER_BYTES: usize = 64;
/// Slots of a page, whatever their size (RING-3).
pub const SLOTS_PER_PAGE: u32 = 256;
/// log2 of the most pages that a ring may have.
pub const ORDER_MAX: u8 = 4;
/// The most pages that a ring may have.
pub const PAGES_MAX: usize = 1 << ORDER_MAX;
/// Slots that are copied out by one access at the most.
pub const BURST: usize = 64;

/// How a ring lies in its pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// As Xen's peers have it.
    #[default]
    Xen,
    /// Requests, responses and indices apart from each other (RING-14).
    Native,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 2] = [Self::Xen, Self::Native];

    /// Where requests of `req` words lie whose responses have `rsp`.
    #[must_use]
    pub const fn requests(self, req: usize) -> Place {
        Place {
            at: match self {
                Self::Xen => HEADER_BYTES,
                Self::Native => 0,
            },
            stride: req * 4,
        }
    }

    /// Where their responses lie.
    #[must_use]
    pub const fn responses(self, req: usize, rsp: usize) -> Place {
        match self {
            Self::Xen => self.requests(req),
            Self::Native => Place {
                at: SLOTS_PER_PAGE as usize * req * 4,
                stride: rsp * 4,
            },
        }
    }
}

/// Where the slots of one kind lie in each page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Offset of the first one.
    pub at: usize,
    /// Bytes from one to the next.
    pub stride: usize,
}

impl Place {
    /// Page and offset of slot number `index` (already masked).
    #[must_use]
    #[inline]
    pub const fn of(self, index: u32) -> (usize, usize) {
        let (page, slot) = (index / SLOTS_PER_PAGE, index % SLOTS_PER_PAGE);
        (page as usize, self.at + slot as usize * self.stride)
    }
}

/// Whether both formats have room for slots of so many words.
pub(super) const fn fits(req: usize, rsp: usize) -> bool {
    let slots = SLOTS_PER_PAGE as usize;
    0 < rsp
        && rsp <= req
        && HEADER_BYTES + slots * req * 4 <= PAGE
        && slots * (req + rsp) * 4 <= PAGE
}

/// Slots of a ring of 2^`order` pages.
#[must_use]
pub const fn slots(order: u8) -> u32 {
    let order = if order > ORDER_MAX { ORDER_MAX } else { order };
    SLOTS_PER_PAGE << order
}

/// Whether publishing the indices `old + 1 ..= new` passes the index that the consumer asked to
/// be notified of (RING-9). Any `event` is fine: it decides about a wake-up of its own writer.
#[must_use]
#[inline]
pub const fn passes(event: u32, old: u32, new: u32) -> bool {
    new.wrapping_sub(event) < new.wrapping_sub(old)
}
