//! The status of a grant operation.

use crate::names::named_enum;

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
