//! The status of a grant operation.

/// The result of one grant operation: Xen's `GNTST_*` values (public/grant_table.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i16)]
pub enum GrantStatus {
    /// Done.
    Okay = 0,
    /// Another error. It is also the initial status of every operation, so that an operation that
    /// was never executed cannot read as done (XSA-500).
    GeneralError = -1,
    /// No such domain.
    BadDomain = -2,
    /// No such grant, or not for this domain.
    BadRef = -3,
    /// No such mapping.
    BadHandle = -4,
    /// No such window slot, or it is in use.
    BadSlot = -5,
    /// No room to record the mapping.
    NoSpace = -7,
    /// The grant does not permit this.
    PermissionDenied = -8,
    /// The page cannot be used.
    BadPage = -9,
    /// The range crosses a page boundary.
    BadCopyArg = -10,
    /// The frame does not exist.
    AddressTooBig = -11,
    /// In use; try again.
    Again = -12,
}
