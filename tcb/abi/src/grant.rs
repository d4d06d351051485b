//! The classic grant table and the status of a grant operation.
//!
//! The layout is Xen's `grant_entry_v1` (public/grant_table.h): 16 bits of flags, the domain that
//! may use the grant, the page frame. A domain writes entries of its own table without any
//! hypercall; the monitor sets and clears the two in-use flags. One immutable format: there is no
//! version to switch (the class of XSA-379).

use crate::ids::{DomId, Slot};
use crate::names::named_enum;

/// One entry of a grant table, as its 8 bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantEntry(pub u64);

impl GrantEntry {
    /// Flags of an entry that has accepted a page.
    pub const TRANSFERRED: u16 = Self::ACCEPT_TRANSFER | Self::COMMITTED | Self::COMPLETED;
    /// An entry that grants nothing.
    pub const INVALID: Self = Self(0);
    /// Flag: the frame may be mapped, or copied from and to (`GTF_permit_access`).
    pub const PERMIT_ACCESS: u16 = 1;
    /// Flag: not to be written (`GTF_readonly`).
    pub const READONLY: u16 = 1 << 2;
    /// Flag, set by the monitor while the grant is in use (`GTF_reading`).
    pub const READING: u16 = 1 << 3;
    /// Flag, set by the monitor while the grant is in use for writing (`GTF_writing`).
    pub const WRITING: u16 = 1 << 4;
    /// Flag: a page may be put in the place of the one at this slot (`GTF_accept_transfer`). It
    /// stands alone: the two below say what has become of it.
    pub const ACCEPT_TRANSFER: u16 = 2;
    /// Flag of such an entry, set by the monitor: it is used, and the page is on its way
    /// (`GTF_transfer_committed`).
    pub const COMMITTED: u16 = 1 << 2;
    /// Flag of such an entry, set by the monitor: the page is there (`GTF_transfer_completed`).
    pub const COMPLETED: u16 = 1 << 3;

    /// An entry that lets `to` use page `frame` of the granting domain.
    #[must_use]
    pub const fn access(to: DomId, frame: u32, readonly: bool) -> Self {
        let flags = Self::PERMIT_ACCESS | if readonly { Self::READONLY } else { 0 };
        Self(flags as u64 | (to.0 as u64) << 16 | (frame as u64) << 32)
    }

    /// An entry that lets `from` put a page at slot `slot` of the granting domain's window, in
    /// exchange for the one that is there.
    #[must_use]
    pub const fn transfer(from: DomId, slot: Slot) -> Self {
        Self(Self::ACCEPT_TRANSFER as u64 | (from.0 as u64) << 16 | (slot.0 as u64) << 32)
    }

    /// Whether it accepts a page, and no transfer of one has begun.
    #[must_use]
    pub const fn accepts(self) -> bool {
        self.flags() == Self::ACCEPT_TRANSFER
    }

    /// Whether it has accepted one, which is there.
    #[must_use]
    pub const fn is_transferred(self) -> bool {
        self.flags() == Self::TRANSFERRED
    }

    /// The flags.
    #[must_use]
    pub const fn flags(self) -> u16 {
        self.0 as u16
    }

    /// The same entry with other flags.
    #[must_use]
    pub const fn with_flags(self, flags: u16) -> Self {
        Self(self.0 & !0xffff | flags as u64)
    }

    /// Who may use the grant.
    #[must_use]
    pub const fn domain(self) -> DomId {
        DomId((self.0 >> 16) as u16)
    }

    /// Which of the granting domain's frames is granted; of a transfer, which slot of its window.
    #[must_use]
    pub const fn frame(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Whether the grant permits access at all.
    #[must_use]
    pub const fn permits(self) -> bool {
        self.flags() & Self::PERMIT_ACCESS != 0
    }

    /// Whether the grant is read-only.
    #[must_use]
    pub const fn readonly(self) -> bool {
        self.flags() & Self::READONLY != 0
    }

    /// Whether the monitor has marked the grant as in use.
    #[must_use]
    pub const fn in_use(self) -> bool {
        self.flags() & (Self::READING | Self::WRITING) != 0
    }
}

named_enum! {
    /// How one grant operation ended: Xen's `GNTST_*` values (public/grant_table.h).
    pub enum GrantStatus: i16 {
        /// Done.
        Okay(0) = "done",
        /// Something else went wrong. Also what every operation starts as, so that one which was
        /// never carried out cannot read as done (XSA-500).
        GeneralError(-1) = "general error",
        /// No such domain.
        BadDomain(-2) = "no such domain",
        /// No such grant, or not for this domain.
        BadRef(-3) = "no such grant, or not for this domain",
        /// No such mapping.
        BadHandle(-4) = "no such mapping",
        /// No such window slot, or it is in use.
        BadSlot(-5) = "no such window slot, or it is in use",
        /// No room to keep track of the mapping.
        NoSpace(-7) = "no room to keep track of the mapping",
        /// The grant does not permit this.
        PermissionDenied(-8) = "the grant does not permit this",
        /// The page cannot be used.
        BadPage(-9) = "the page cannot be used",
        /// The range crosses a page boundary.
        BadCopyArg(-10) = "the range crosses a page boundary",
        /// The frame does not exist.
        AddressTooBig(-11) = "the frame does not exist",
        /// In use just now; try again.
        Again(-12) = "in use just now",
    }
}

impl GrantStatus {
    /// The status of a value from the wire; anything unknown is a general error.
    #[must_use]
    pub const fn from_wire(value: i16) -> Self {
        match Self::from_value(value) {
            Some(status) => status,
            None => Self::GeneralError,
        }
    }
}
