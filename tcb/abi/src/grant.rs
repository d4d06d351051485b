//! The status of a grant operation.

/// The result of one grant operation: Xen's `GNTST_*` values (public/grant_table.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i16)]
pub enum GrantStatus {
    /// Success.
    Okay = 0,
    /// Another error. It is also the initial status of every operation, so that an operation that
    /// was never executed cannot appear as successful (XSA-500).
    GeneralError = -1,
    /// The domain does not exist.
    BadDomain = -2,
    /// The grant does not exist, or is not for this domain.
    BadRef = -3,
    /// The mapping or table does not exist.
    BadHandle = -4,
    /// The window slot does not exist or is in use.
    BadSlot = -5,
    /// The monitor cannot record another mapping.
    NoSpace = -7,
    /// The grant does not permit this.
    PermissionDenied = -8,
    /// The page cannot be used.
    BadPage = -9,
    /// The range crosses a page boundary.
    BadCopyArg = -10,
    /// The frame does not exist.
    AddressTooBig = -11,
    /// The grant is in use; the caller may retry.
    Again = -12,
}
