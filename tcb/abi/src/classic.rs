//! Classic grants and exchanges: their grant table, and the operations of calls that only a monitor
//! for comparisons serves ([`crate::hypercall::HypercallKind::is_experimental`]).
//!
//! The layout of an entry is Xen's `grant_entry_v1` (public/grant_table.h): 16 bits of flags, the
//! domain that may use the grant, the page frame. A domain writes entries of its table without a
//! hypercall; the monitor sets and clears the two in-use flags. The format is fixed: no call
//! switches its version (unlike in XSA-379).

use crate::ids::{DomId, GrantRef, Handle, Slot};

/// One entry of a grant table, as stored in its 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantEntry(pub u64);

impl GrantEntry {
    /// Flags of an entry whose transfer is complete.
    pub const TRANSFERRED: u16 = Self::ACCEPT_TRANSFER | Self::COMMITTED | Self::COMPLETED;
    /// An entry without a grant.
    pub const INVALID: Self = Self(0);
    /// Flag: the frame may be mapped, or copied from and to (`GTF_permit_access`).
    pub const PERMIT_ACCESS: u16 = 1;
    /// Flag: the frame is read-only (`GTF_readonly`).
    pub const READONLY: u16 = 1 << 2;
    /// Flag, set by the monitor while the grant is in use (`GTF_reading`).
    pub const READING: u16 = 1 << 3;
    /// Flag, set by the monitor while the grant is in use for writing (`GTF_writing`).
    pub const WRITING: u16 = 1 << 4;
    /// Flag: another domain may exchange the page at this slot for one of its pages
    /// (`GTF_accept_transfer`). It excludes the access flags; the two flags below indicate the
    /// state of the transfer.
    pub const ACCEPT_TRANSFER: u16 = 2;
    /// Flag of a transfer entry, set by the monitor: a transfer has begun
    /// (`GTF_transfer_committed`).
    pub const COMMITTED: u16 = 1 << 2;
    /// Flag of a transfer entry, set by the monitor: the transfer is complete
    /// (`GTF_transfer_completed`).
    pub const COMPLETED: u16 = 1 << 3;

    /// Returns an entry that lets `to` use page `frame` of the granting domain.
    #[must_use]
    pub const fn access(to: DomId, frame: u32, readonly: bool) -> Self {
        let flags = Self::PERMIT_ACCESS | if readonly { Self::READONLY } else { 0 };
        Self(flags as u64 | (to.0 as u64) << 16 | (frame as u64) << 32)
    }

    /// Returns an entry that lets `from` put a page at slot `slot` of the granting domain's window,
    /// in exchange for the page at that slot.
    #[must_use]
    pub const fn transfer(from: DomId, slot: Slot) -> Self {
        Self(Self::ACCEPT_TRANSFER as u64 | (from.0 as u64) << 16 | (slot.0 as u64) << 32)
    }

    /// Returns whether the entry accepts a page and no transfer has begun.
    #[must_use]
    pub const fn accepts(self) -> bool {
        self.flags() == Self::ACCEPT_TRANSFER
    }

    /// Returns whether a transfer to the entry is complete.
    #[must_use]
    pub const fn is_transferred(self) -> bool {
        self.flags() == Self::TRANSFERRED
    }

    /// Returns the flags.
    #[must_use]
    pub const fn flags(self) -> u16 {
        self.0 as u16
    }

    /// Returns the entry with its flags replaced by these.
    #[must_use]
    pub const fn with_flags(self, flags: u16) -> Self {
        Self(self.0 & !0xffff | flags as u64)
    }

    /// Returns the domain that may use the grant.
    #[must_use]
    pub const fn domain(self) -> DomId {
        DomId((self.0 >> 16) as u16)
    }

    /// Returns the granted frame of the granting domain; for a transfer, the slot of its window.
    #[must_use]
    pub const fn frame(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Returns whether the grant permits access at all.
    #[must_use]
    pub const fn permits(self) -> bool {
        self.flags() & Self::PERMIT_ACCESS != 0
    }

    /// Returns whether the grant is read-only.
    #[must_use]
    pub const fn readonly(self) -> bool {
        self.flags() & Self::READONLY != 0
    }

    /// Returns whether the monitor has marked the grant as in use.
    #[must_use]
    pub const fn in_use(self) -> bool {
        self.flags() & (Self::READING | Self::WRITING) != 0
    }
}

/// One side of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyOperand {
    /// A page frame of the caller.
    Own {
        /// The frame's number.
        frame: u32,
    },
    /// A page that `domain` granted to the caller.
    Granted {
        /// The granting domain.
        domain: DomId,
        /// The reference.
        gref: GrantRef,
    },
}

impl CopyOperand {
    const GRANTED: u64 = 1 << 63;

    /// Encodes the operand as a word.
    #[must_use]
    pub const fn encode(self) -> u64 {
        match self {
            Self::Own { frame } => frame as u64,
            Self::Granted { domain, gref } => {
                Self::GRANTED | (domain.0 as u64) << 32 | gref.0 as u64
            }
        }
    }

    /// Decodes a word. Every word is valid.
    #[must_use]
    pub const fn decode(word: u64) -> Self {
        if word & Self::GRANTED == 0 {
            Self::Own { frame: word as u32 }
        } else {
            Self::Granted {
                domain: DomId((word >> 32) as u16),
                gref: GrantRef(word as u32),
            }
        }
    }
}

/// Operation that copies bytes between two pages (`GNTTABOP_copy`). Neither range may cross a page
/// boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyOp {
    /// The source.
    pub src: CopyOperand,
    /// The destination.
    pub dst: CopyOperand,
    /// Offset in the source page, in bytes.
    pub src_offset: u16,
    /// Offset in the destination page, in bytes.
    pub dst_offset: u16,
    /// Length in bytes.
    pub len: u16,
}

impl CopyOp {
    /// Encodes the operation as words 0 … 2.
    #[must_use]
    pub const fn encode(self) -> [u64; 3] {
        [
            self.src.encode(),
            self.dst.encode(),
            self.src_offset as u64 | (self.dst_offset as u64) << 16 | (self.len as u64) << 32,
        ]
    }

    /// Decodes words 0 … 2.
    #[must_use]
    pub const fn decode(words: [u64; 3]) -> Self {
        Self {
            src: CopyOperand::decode(words[0]),
            dst: CopyOperand::decode(words[1]),
            src_offset: words[2] as u16,
            dst_offset: (words[2] >> 16) as u16,
            len: (words[2] >> 32) as u16,
        }
    }
}

/// Operation that maps a granted page into the caller's window (`GNTTABOP_map_grant_ref`). The slot
/// is the handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapOp {
    /// The granting domain.
    pub domain: DomId,
    /// The reference.
    pub gref: GrantRef,
    /// The slot, which must be free.
    pub slot: Slot,
    /// Whether to map the page read-only, even if the grant permits writing.
    pub readonly: bool,
}

impl MapOp {
    /// Encodes the operation as words 0 … 2.
    #[must_use]
    pub const fn encode(self) -> [u64; 3] {
        [
            (self.domain.0 as u64) << 32 | self.gref.0 as u64,
            self.slot.0 as u64,
            self.readonly as u64,
        ]
    }

    /// Decodes words 0 … 2.
    #[must_use]
    pub const fn decode(words: [u64; 3]) -> Self {
        Self {
            domain: DomId((words[0] >> 32) as u16),
            gref: GrantRef(words[0] as u32),
            slot: Slot(words[1] as u32),
            readonly: words[2] & 1 != 0,
        }
    }
}

/// Operation that unmaps a page from the caller's window (`GNTTABOP_unmap_grant_ref`). Word 0 is
/// the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnmapOp {
    /// The slot.
    pub slot: Slot,
}

impl UnmapOp {
    /// Encodes the operation as words 0 … 2.
    #[must_use]
    pub const fn encode(self) -> [u64; 3] {
        [self.slot.0 as u64, 0, 0]
    }
}

/// Operation that exchanges two pages (`GNTTABOP_transfer`). The page at the caller's slot is
/// mapped at the slot that the granter's entry specifies. The page from that slot is zeroed and
/// mapped at the caller's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferOp {
    /// The exchange that both slots belong to.
    pub exchange: Handle,
    /// The caller's slot.
    pub slot: Slot,
    /// An entry of the granter's classic table that accepts a page.
    pub gref: GrantRef,
}

impl TransferOp {
    /// Encodes the operation as words 0 … 2.
    #[must_use]
    pub const fn encode(self) -> [u64; 3] {
        [
            (self.exchange.0 as u64) << 32 | self.gref.0 as u64,
            self.slot.0 as u64,
            0,
        ]
    }

    /// Decodes words 0 … 2.
    #[must_use]
    pub const fn decode(words: [u64; 3]) -> Self {
        Self {
            exchange: Handle((words[0] >> 32) as u32),
            slot: Slot(words[1] as u32),
            gref: GrantRef(words[0] as u32),
        }
    }
}
